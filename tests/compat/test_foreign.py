"""What scripts found in public do, written anew: each failed once."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import types
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import detent as package
from detent.compat.algorithms import AutoMixprecisionConfig
from detent.compat.auto_mixprecision import MixedSearch, mixed_of
from detent.compat.auto_search import AutoSearch, SearchSpace
from detent.compat.configs import Config, QConfig, QuantizationConfig, get_default_config
from detent.compat.data_types import Int8Spec, Int16Spec, QLayerConfig, XInt8Spec, format_of
from detent.compat.enums import ExtendedQuantType, QuantType
from detent.compat.finder import other_tools
from detent.compat.option_rows import ScriptNote
from detent.compat.shapeshifter import ONNXModelConfig, RunConfig, shapeshifter
from detent.compat.translate import translate
from detent.errors import UsageError
from detent.methods import MinMax
from detent.numerics.formats import IntegerFormat
from detent.recipe.recipe import PRESETS
from tests.compat.scripts import READER
from tests.models import build, info, node, normal, since_runtime

INT8 = QLayerConfig(Int8Spec(), Int8Spec())
INT16 = QLayerConfig(Int16Spec(), Int16Spec())


def run(detent, tmp_path, monkeypatch, text, *arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(f"{READER}{text}", encoding="utf-8")
    return detent("run", "script.py", *arguments)


# -- names -------------------------------------------------------------------------------------------------------------


def test_constants_and_the_profiler_are_there():
    with other_tools():
        ops = importlib.import_module("quark.onnx.operators.custom_ops")
        assert (ops._COP_DOMAIN, ops._COP_VERSION) == ("com.amd.quark", 1)
        utils = importlib.import_module("quark.onnx.quantization.quant_utils")
        assert utils.COP_QUANT_OP_NAME in utils.QUANT_OP_TYPES
        utils.QUANT_OP_TYPES.append("mine")
        assert "mine" not in utils.QUANT_OP_TYPES
        profiler = importlib.import_module("quark.common.profiler")
        with profiler.GlobalProfiler("profile.yaml").scope(profiler.ProfileStep.MODEL_LOADING, user_msg="x"):
            assert profiler.ProfileStep.MODEL_LOADING == "Model Loading"
        assert profiler.profile_scope("x")(len) is len
        importlib.import_module("quark.common.utils.log").logger.info("nothing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from quark.torch import ModelQuantizer\nModelQuantizer(1)", "PyTorch models, and Detent ONNX models"),
        ("import quark.experimental.cli.main as m\nm.main()", "no part of quantizing"),
        ("from quark.shapeshifter.passes.onnx_simplify import P\nP()", "by their names"),
    ],
)
def test_packages_that_are_elsewhere_say_so_when_they_are_used(detent, tmp_path, monkeypatch, text, message):
    outcome = run(detent, tmp_path, monkeypatch, text)
    assert outcome.code == 2
    assert message in outcome.err


def test_a_tool_can_be_run_by_runpy(detent, tiny, tmp_path, monkeypatch):
    text = f"""
import runpy, sys
sys.argv = ["preprocess", "--input", {str(tiny)!r}, "--output", "prepared.onnx"]
runpy.run_module("onnxruntime.quantization.preprocess", run_name="__main__")
"""
    assert run(detent, tmp_path, monkeypatch, text).code == 0
    assert (tmp_path / "prepared.onnx").exists()


def test_what_onnxruntime_asks_for_an_npu_of_another_maker(detent, tmp_path, monkeypatch):
    """It gives 16-bit outputs of Sigmoid and Tanh a scale and a zero point of their own."""
    nodes = [node("Conv", "x w", "c", pads=[1, 1, 1, 1]), node("Sigmoid", "c", "s"), node("Tanh", "s", "y")]
    onnx.save(build(nodes, "y", {"w": normal(4, 3, 3, 3)}), tmp_path / "gates.onnx")
    text = """
from onnxruntime.quantization import QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
wide = {"activation_type": QuantType.QUInt16, "weight_type": QuantType.QUInt8}
quantize("gates.onnx", "out.onnx", get_qnn_qdq_config("gates.onnx", Reader(), **wide))
"""
    outcome = run(detent, tmp_path, monkeypatch, text)
    assert outcome.code == 0, outcome.err
    values = {
        each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(tmp_path / "out.onnx").graph.initializer
    }
    assert (values["s_scale"], values["s_zero_point"]) == (1 / 65536, 0)
    assert (values["y_scale"], values["y_zero_point"]) == (1 / 32768, 32768)


def test_the_two_directions_of_float16(tiny):
    with other_tools():
        float16 = importlib.import_module("quark.onnx.tools.float16")
        half = float16.convert_float_to_float16(onnx.load(tiny))
        types_of = {each.data_type for each in half.graph.initializer}
        assert onnx.TensorProto.FLOAT16 in types_of
        back = float16.convert_float16_to_float(half)
    assert {each.data_type for each in back.graph.initializer} & types_of <= {onnx.TensorProto.INT64}


@since_runtime(22, "matmul_nbits_quantizer")
def test_names_of_onnxruntimes_quantizer_are_its_own(detent, tiny, tmp_path, monkeypatch):
    text = """
import sys
from onnxruntime.quantization import QuantizationMode
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
from quark.onnx import QuantizationMode as again
from quark.onnx.quant_utils import model_has_pre_process_metadata
from quark.onnx.quantization.config import DEFAULT_CONFIG_MAPPING, get_default_config
import onnx

assert again is QuantizationMode
assert not model_has_pre_process_metadata(onnx.load(sys.argv[1]))
assert "XINT8" in DEFAULT_CONFIG_MAPPING
ONNXQuantizer(onnx.load(sys.argv[1]), False, False, QuantizationMode.IntegerOps, False, *[None] * 5, ["MatMul"])
"""
    outcome = run(detent, tmp_path, monkeypatch, text, tiny)
    assert "unsupported quantization mode" not in outcome.err
    assert "AssertionError" not in outcome.err
    tool = "onnxruntime.quantization.matmul_nbits_quantizer"
    outcome = detent("run", "-m", tool, "--input_model", tiny, "--output_model", tmp_path / "few.onnx")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "few.onnx").exists()


def test_processes_that_a_script_starts_get_the_names_too(tiny, tmp_path):
    text = """
import multiprocessing, os, subprocess, sys

def seen(_):
    from quark.onnx.quantization.config import get_default_config
    from detent.compat.entry_points import AS_QUARK
    import sitecustomize
    return get_default_config("XINT8").enable_npu_cnn, AS_QUARK.get(), sitecustomize.OWN

if __name__ == "__main__":
    command = ["-m", "quark.onnx.tools.convert_fp32_to_bf16", "--input", sys.argv[1], "--output", "bf16.onnx"]
    subprocess.run([sys.executable, *command], check=True)
    assert os.path.exists("bf16.onnx")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map_async(seen, [1]).get(60))
"""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("OWN = 7", encoding="utf-8")
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path / "own"), str(Path(package.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", "detent.cli", "run", "--as-quark", "script.py", tiny],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.stdout.splitlines()[-1:] == ["[(True, True, 7)]"], done.stderr


# -- types -------------------------------------------------------------------------------------------------------------


def test_types_by_their_number_in_onnx_and_by_name():
    assert (QuantType.QInt8.tensor_type, ExtendedQuantType.QBFloat16.tensor_type) == (3, 16)
    assert ExtendedQuantType.QBFP.tensor_type == 0
    assert QuantType.QFLOAT8E4M3FN.tensor_type == onnx.TensorProto.FLOAT8E4M3FN
    stub = types.SimpleNamespace(tensor_type=onnx.TensorProto.FLOAT8E5M2)
    assert format_of(stub).dtype == "float8_e5m2"
    assert format_of("QInt16") == IntegerFormat("int16")
    assert QLayerConfig(input_tensors=Int8Spec, weight=Int8Spec).inputs == Int8Spec()


def test_fields_and_names_of_older_versions():
    config = QuantizationConfig(enable_dpu=True, random_data_reader_input_shape={"x": [1, 3, 8, 8]})
    assert config.enable_npu_cnn
    assert config.extra_options == {"RandomDataReaderInputShape": {"x": [1, 3, 8, 8]}}
    assert get_default_config("DEFAULT_U8S8_AAWS_CONFIG") == get_default_config("U8S8_AAWS")


# -- what is not in the model ------------------------------------------------------------------------------------------


def test_formats_for_what_the_model_lacks_are_notes(detent, tiny, tmp_path, monkeypatch):
    text = """
import sys
from quark.onnx import Int8Spec, Int16Spec, ModelQuantizer, QConfig, QLayerConfig, QuantType

wide = QLayerConfig(input_tensors=Int16Spec(), weight=Int16Spec())
config = QConfig(
    global_config=QLayerConfig(input_tensors=Int8Spec(), weight=Int8Spec()),
    specific_layer_config={wide: ["nowhere"]},
    layer_type_config={None: ["Softmax"]},
    extra_options={"TensorQuantOverrides": {"nothing": [{"quant_type": QuantType.QInt16}]}},
)
ModelQuantizer(config).quantize_model(sys.argv[1], "out.onnx", Reader())
"""
    outcome = run(detent, tmp_path, monkeypatch, text, tiny)
    assert outcome.code == 0, outcome.err
    for name in ("nowhere", "Softmax", "nothing"):
        assert f"Note: The model has no '{name}'" in outcome.err


@pytest.mark.parametrize(
    "first",
    [
        "from quark.onnx.quant_utils import model_has_pre_process_metadata",
        "from onnxruntime.quantization.onnx_model import ONNXModel",
        pytest.param(
            "import onnxruntime.quantization.static_quantize_runner",
            marks=since_runtime(22, "static_quantize_runner"),
        ),
    ],
)
def test_a_name_of_onnxruntimes_own_before_all_others_brings_none_of_the_rest(detent, tmp_path, monkeypatch, first):
    text = f"""
{first}
from onnxruntime.quantization import quantize_static
import onnxruntime.quantization.quantize as module
print(quantize_static.__module__, module.quantize_dynamic.__module__)
"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    assert detent("run", "script.py").out.split() == ["detent.compat.entry_points"] * 2


@since_runtime(22, "static_quantize_runner")
def test_a_program_of_onnxruntime_that_quantizes_does_so_here(detent, tiny, tmp_path):
    data = tmp_path / "test_data_set_0"
    data.mkdir()
    shutil.copy(tiny, tmp_path / "model.onnx")
    tensor = onnx.numpy_helper.from_array(normal(1, 3, 8, 8), "x")
    (data / "input_0.pb").write_bytes(tensor.SerializeToString())
    tool = "onnxruntime.quantization.static_quantize_runner"
    outcome = detent("run", "-m", tool, "-i", tmp_path / "model.onnx", "-o", tmp_path / "out.onnx")
    assert outcome.code == 0, outcome.err
    assert onnx.load(tmp_path / "out.onnx").producer_name == "detent"


def conditional():
    """Return a model whose MatMul is inside an If that the input decides."""
    inner = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"], name="inside")], "then", [], [info("z", (2, 8))]
    )
    other = helper.make_graph([helper.make_node("Mul", ["x", "x"], ["u"])], "else", [], [info("u", (2, 8))])
    nodes = [
        node("MatMul", "x w", "first"),
        node("ReduceSum", "first", "total", keepdims=0),
        node("Greater", "total zero", "positive"),
        helper.make_node("If", ["positive"], ["y"], name="if", then_branch=inner, else_branch=other),
    ]
    return build(nodes, "y", {"w": normal(8, 8), "zero": np.float32(0)}, [info("x", (2, 8))])


def test_graphs_inside_nodes_are_left_to_onnxruntime(detent, tmp_path, monkeypatch):
    onnx.save(conditional(), tmp_path / "if.onnx")
    text = """
from onnxruntime.quantization import quantize_dynamic, quantize_static, QuantFormat
if "static" in sys.argv:
    quantize_static("if.onnx", "out.onnx", Reader(), QuantFormat.QOperator, extra_options={"EnableSubgraph": True})
quantize_dynamic("if.onnx", "out.onnx", extra_options={"EnableSubgraph": "inner" in sys.argv})
"""
    for argument, quantized in (("inner", 2), ("outer", 1)):
        outcome = run(detent, tmp_path, monkeypatch, f"import sys\n{text}", argument)
        assert outcome.code == 0, outcome.err
        assert str(onnx.load(tmp_path / "out.onnx")).count('op_type: "MatMulInteger"') == quantized
        assert ("onnxruntime's own quantizer" in outcome.err) == (quantized == 2)
    outcome = run(detent, tmp_path, monkeypatch, f"import sys\n{text}", "static")
    assert outcome.code == 2
    assert "EnableSubgraph=True: layers inside If, Loop or Scan stay float here" in outcome.err


def test_recurrent_models_are_left_to_onnxruntime(detent, tmp_path, monkeypatch):
    values = {"w": normal(1, 32, 8), "r": normal(1, 32, 8)}
    nodes = [node("LSTM", "x w r", "y", hidden_size=8)]
    onnx.save(build(nodes, [info("y", None)], values, [info("x", (3, 1, 8))]), tmp_path / "lstm.onnx")
    text = """
from onnxruntime.quantization import quantize_dynamic
quantize_dynamic("lstm.onnx", "out.onnx")
"""
    outcome = run(detent, tmp_path, monkeypatch, text)
    assert outcome.code == 0, outcome.err
    assert "Note: quantize_dynamic: layers that are LSTM are quantized by onnxruntime" in outcome.err
    assert "DynamicQuantizeLSTM" in [each.op_type for each in onnx.load(tmp_path / "out.onnx").graph.node]


def recurrent_with_a_head():
    """Return a model of a table, an LSTM and a layer behind it."""
    nodes = [
        node("Gather", "table x", "e"),
        node("LSTM", "e w r", "h", hidden_size=8),
        node("Reshape", "h rows", "flat"),
        node("MatMul", "flat v", "y"),
    ]
    values = {"table": normal(50, 8), "w": normal(1, 32, 8), "r": normal(1, 32, 8), "v": normal(8, 4)}
    inputs = [info("x", (3, 1), onnx.TensorProto.INT64)]
    return build(nodes, "y", {**values, "rows": np.array([-1, 8])}, inputs)


def test_an_lstm_beside_layers_does_not_stay_float_unless_the_script_says_so(detent, tmp_path, monkeypatch):
    onnx.save(recurrent_with_a_head(), tmp_path / "model.onnx")
    text = """
import sys
from onnxruntime.quantization import quantize_dynamic
quantize_dynamic("model.onnx", "out.onnx", op_types_to_quantize=sys.argv[1:])
"""
    for arguments, quantized in (((), True), (("LSTM", "MatMul"), True), (("MatMul", "Gather"), False)):
        outcome = run(detent, tmp_path, monkeypatch, text, *arguments)
        assert outcome.code == 0, outcome.err
        found = {each.op_type for each in onnx.load(tmp_path / "out.onnx").graph.node}
        assert ("DynamicQuantizeLSTM" in found) == quantized
        assert "MatMulInteger" in found
        assert ("onnxruntime's own quantizer" in outcome.err) == quantized


def test_dynamic_quantization_stores_tables_of_words_in_8_bits(detent, tmp_path, monkeypatch):
    values = {"table": normal(300, 64), "w": normal(64, 8)}
    inputs = [info("x", (1, 5), onnx.TensorProto.INT64)]
    model = build([node("Gather", "table x", "e"), node("MatMul", "e w", "y")], "y", values, inputs)
    onnx.save(model, tmp_path / "model.onnx")
    text = """
import sys
from onnxruntime.quantization import QuantType, quantize_dynamic
chosen = {"op_types_to_quantize": sys.argv[1:]} if sys.argv[1:] else {}
quantize_dynamic("model.onnx", "out.onnx", weight_type=QuantType.QInt8, **chosen)
"""
    for arguments, bytes_of_table in (((), 1), (("Gather",), 1), (("MatMul",), 4)):
        outcome = run(detent, tmp_path, monkeypatch, text, *arguments)
        assert outcome.code == 0, outcome.err
        size = (tmp_path / "out.onnx").stat().st_size
        assert 300 * 64 * bytes_of_table < size < 300 * 64 * bytes_of_table + 6000


def test_subgraphs_matter_where_the_other_tools_change_them():
    def asks(**fields):
        return translate(QuantizationConfig(extra_options={"EnableSubgraph": True}, **fields)).subgraphs

    assert asks(use_dynamic_quant=True)
    assert not asks()


# -- onnxruntime's older keywords --------------------------------------------------------------------------------------


def test_keywords_of_older_versions_of_onnxruntime(detent, tiny, tmp_path, monkeypatch):
    text = """
import sys
from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static
quantize_dynamic(sys.argv[1], "d.onnx", activation_type=QuantType.QInt8, optimize_model=False)
quantize_static(sys.argv[1], "s.onnx", Reader(), optimize_model=False)
"""
    outcome = run(detent, tmp_path, monkeypatch, text, tiny)
    assert outcome.code == 0, outcome.err
    assert "Note: activation_type: dynamic operators take QUInt8" in outcome.err


def test_lists_of_operators_may_name_some_of_onnxruntimes_own(detent, tiny, tmp_path, monkeypatch):
    text = """
import sys
from onnxruntime.quantization import quantize_static
from onnxruntime.quantization.registry import QLinearOpsRegistry
quantize_static(sys.argv[1], "out.onnx", Reader(), op_types_to_quantize=["EmbedLayerNormalization", *sys.argv[2:]])
"""
    outcome = run(detent, tmp_path, monkeypatch, text, tiny, "Conv")
    assert outcome.code == 0, outcome.err
    assert "Note: op_types_to_quantize: ONNX has no EmbedLayerNormalization: such nodes stay float." in outcome.err
    outcome = run(detent, tmp_path, monkeypatch, text, tiny)
    assert outcome.code == 2
    assert "ONNX has no operator 'EmbedLayerNormalization'" in outcome.err


def sentences():
    """Return a model of token ids, of any number of sentences and of any length."""
    nodes = [node("Gather", "table ids", "t"), node("MatMul", "t w", "y")]
    values = {"table": normal(50, 8), "w": normal(8, 8)}
    return build(nodes, [info("y", None)], values, [info("ids", [None, None], onnx.TensorProto.INT64)])


@pytest.mark.parametrize("preset", ["INT8_TRANSFORMER_DEFAULT", "UINT8_DYNAMIC_QUANT", "MATMUL_NBITS", "BF16"])
def test_without_data_lengths_may_be_open(detent, tmp_path, monkeypatch, preset):
    onnx.save(sentences(), tmp_path / "text.onnx")
    text = f"""
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config
config = get_default_config({preset!r})
config.extra_options["RandomDataReaderInputDataRange"] = {{"ids": [1, {49 if "INT8_T" in preset else 1000}]}}
ModelQuantizer(Config(global_quant_config=config)).quantize_model("text.onnx", "out.onnx")
"""
    outcome = run(detent, tmp_path, monkeypatch, text)
    assert outcome.code == 0, outcome.err
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    assert session.run(None, {"ids": np.ones((2, 5), np.int64)})[0].shape == (2, 5, 8)


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (1, 8, 8, 3)])
def test_a_model_that_is_converted_to_channels_last_is_calibrated_with_either(
    detent, tiny, tmp_path, monkeypatch, shape
):
    text = f"""
import sys, vai_q_onnx
class Images:
    left = 3
    def get_next(self):
        self.left -= 1
        return {{"x": np.ones({shape}, np.float32)}} if self.left > 0 else None
vai_q_onnx.quantize_static(sys.argv[1], "out.onnx", Images(), enable_dpu=True, convert_nchw_to_nhwc=True)
"""
    outcome = run(detent, tmp_path, monkeypatch, text, tiny)
    assert outcome.code == 0, outcome.err
    assert onnxruntime.InferenceSession(tmp_path / "out.onnx").get_inputs()[0].shape[1:] == [8, 8, 3]


# -- mixed precision and searches --------------------------------------------------------------------------------------


def test_targets_by_name_and_the_finest_of_several():
    named = {INT8: [], INT16: ["head"]}
    mixed = partial(mixed_of, recipe=PRESETS["A8W8"])
    everywhere, head = mixed({"TargetLayerConfig": named})
    found = [each.formats["activations"] for each in (everywhere, head)]
    assert found == [IntegerFormat("int8"), IntegerFormat("int16")]
    assert (head.part.nodes, head.part.optional) == (("head",), True)
    [finest] = mixed({"TargetLayerConfig": [INT8, INT16]})
    assert finest.formats["weights"] == IntegerFormat("int16")
    kept, search = mixed({"TargetLayerConfig": named, "MetricThreshold": 0.5})
    assert (kept.nodes, kept.formats) == (head.part.nodes, head.formats)
    assert isinstance(search, MixedSearch)
    assert len(translate(QConfig(INT8, algo_config=[AutoMixprecisionConfig(named)])).layers) == 2
    both = AutoMixprecisionConfig(named, dual_quant_nodes=True)
    assert len(translate(QConfig(INT8, algo_config=[both])).recipe.overrides) == 2


def test_iterations_and_rate_in_one_and_the_older_order_of_arguments(tiny):
    space = {"extra_options": {"FastFinetune": {"NumIterLR": [[5, 0.1], [6, 0.2]]}}}
    tuned = [each["extra_options"]["FastFinetune"] for each in SearchSpace(space).get_all_configs()]
    assert tuned == [{"NumIterations": 5, "LearningRate": 0.1}, {"NumIterations": 6, "LearningRate": 0.2}]
    reader = types.SimpleNamespace(get_next=lambda: None)
    config = Config(get_default_config("A8W8"))
    search = AutoSearch(config, None, str(tiny), reader)
    assert (search.config, search.model_input) == (config, str(tiny))


def test_wider_layers_beside_powers_of_two():
    wide = QLayerConfig(Int16Spec(), Int16Spec())
    with pytest.warns(ScriptNote, match="MinMSE calibrates the whole model"):
        request = translate(QConfig(QLayerConfig(XInt8Spec(), XInt8Spec()), {wide: ["head"]}))
    assert request.recipe.target == "npu-vaiml"  # the CNN device has 8 bits only
    assert request.layers[0].formats["activations"] == IntegerFormat("int16", scale="power_of_two")


def test_weights_alone_have_no_method():
    config = get_default_config("INT8_TRANSFORMER_DEFAULT")
    config.extra_options["WeightsOnly"] = True
    recipe = translate(config).recipe
    assert (recipe.activations, recipe.method) == (None, MinMax())


def test_groups_of_weights_leave_biases_float():
    config = get_default_config("INT8_TRANSFORMER_DEFAULT")
    config.extra_options |= {"UseGPTQ": True, "GPTQParams": {"GroupSize": 32, "PerChannel": True}}
    recipe = translate(config).recipe
    assert (recipe.weights.granularity, recipe.biases) == ("per_group:32", None)


# -- passes ------------------------------------------------------------------------------------------------------------


def test_passes_from_a_script(tiny, tmp_path):
    passes = {"onnx_simplify": {"simplify": True}, "onnx_fold_batch_norm": {"fold_batch_norm": True}}
    made = shapeshifter(RunConfig(passes), onnx.load(tiny))
    onnxruntime.InferenceSession(made.SerializeToString())
    output = tmp_path / "out.onnx"
    assert shapeshifter(RunConfig(passes, ONNXModelConfig(input_model_path=tiny), output)) is None
    assert output.exists()
    with pytest.raises(UsageError, match="no pass 'onnx_simplfy'. Did you mean 'onnx_simplify'"):
        shapeshifter({"passes": {"onnx_simplfy": {}}}, onnx.load(tiny))


# -- what scripts do with the result -----------------------------------------------------------------------------------

DEBUGGING = """
import numpy as np
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from onnxruntime.quantization.qdq_loss_debug import (
    _add_pre_post_qdq_pair,
    collect_activations,
    compute_activation_error,
    create_activation_matching,
    modify_model_output_intermediate_tensors,
)


class One(CalibrationDataReader):
    def __init__(self):
        self.left = iter([{"x": np.linspace(-1, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8)}])

    def get_next(self):
        return next(self.left, None)


quantize_static("model.onnx", "out.onnx", One())
for name in ("model", "out"):
    modify_model_output_intermediate_tensors(f"{name}.onnx", f"{name}_all.onnx")
matching = create_activation_matching(*(collect_activations(f"{name}_all.onnx", One()) for name in ("out", "model")))
print(sorted(compute_activation_error(matching)))
"""


def test_onnxruntimes_debugger_passes_over_what_preparing_added(detent, tmp_path, monkeypatch):
    # onnxruntime's own Gelu is written out, so that values have pairs which the float model does not have.
    nodes = [node("Conv", "x w", "a"), node("Relu", "a", "h"), node("Conv", "h v", "y")]
    model = build(nodes, "y", {"w": normal(4, 3, 3, 3), "v": normal(4, 4, 1, 1)}, [info("x", (1, 3, 8, 8))])
    model.graph.node[1].op_type, model.graph.node[1].domain = "Gelu", "com.microsoft"
    model.opset_import.add(domain="com.microsoft", version=1)
    onnx.save(model, tmp_path / "model.onnx")
    outcome = run(detent, tmp_path, monkeypatch, DEBUGGING)
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[-1].startswith("['a'")


def test_warnings_of_detent_in_a_script_are_lines_without_a_place(detent, tiny, tmp_path, monkeypatch):
    text = """
import sys
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config
ModelQuantizer(Config(get_default_config("XINT8"))).quantize_model(sys.argv[1], "out.onnx")
"""
    outcome = run(detent, tmp_path, monkeypatch, text, tiny)
    assert outcome.code == 0, outcome.err
    assert outcome.err == "Warning: Calibrated with random data: the accuracy of this model is not real.\n"


@pytest.mark.parametrize("arguments", ["out.onnx", "out.onnx nhwc", "model.onnx"])
def test_the_report_names_the_file_that_was_written(detent, tiny, tmp_path, monkeypatch, arguments):
    shutil.copy(tiny, tmp_path / "model.onnx")
    text = """
import sys
import vai_q_onnx
vai_q_onnx.quantize_static("model.onnx", sys.argv[1], Reader(), convert_nchw_to_nhwc="nhwc" in sys.argv)
"""
    outcome = run(detent, tmp_path, monkeypatch, text, *arguments.split())
    assert outcome.code == 0, outcome.err
    assert f"Wrote {arguments.split()[0]}:" in outcome.out
    assert "in memory" not in outcome.out
