"""What scripts found in public do, written anew: each failed once."""

from __future__ import annotations

import importlib
import types

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

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
from tests.compat.scripts import READER
from tests.models import build, info, node, normal

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


def test_the_two_directions_of_float16(tiny):
    with other_tools():
        float16 = importlib.import_module("quark.onnx.tools.float16")
        half = float16.convert_float_to_float16(onnx.load(tiny))
        types_of = {each.data_type for each in half.graph.initializer}
        assert onnx.TensorProto.FLOAT16 in types_of
        back = float16.convert_float16_to_float(half)
    assert {each.data_type for each in back.graph.initializer} & types_of <= {onnx.TensorProto.INT64}


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


def test_graphs_inside_nodes_are_not_quantized_and_that_is_said(detent, tmp_path, monkeypatch):
    onnx.save(conditional(), tmp_path / "if.onnx")
    text = """
from onnxruntime.quantization import quantize_dynamic
quantize_dynamic("if.onnx", "out.onnx", extra_options={"EnableSubgraph": SUBGRAPH})
"""
    outcome = run(detent, tmp_path, monkeypatch, text.replace("SUBGRAPH", "True"))
    assert outcome.code == 2
    assert "EnableSubgraph=True: 'inside' is in a graph inside an If" in outcome.err
    assert run(detent, tmp_path, monkeypatch, text.replace("SUBGRAPH", "False")).code == 0


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


# -- mixed precision and searches --------------------------------------------------------------------------------------


def test_targets_by_name_and_the_finest_of_several():
    named = {INT8: [], INT16: ["head"]}
    everywhere, head = mixed_of({"TargetLayerConfig": named})
    assert (everywhere.activations, head.activations) == (IntegerFormat("int8"), IntegerFormat("int16"))
    assert (head.nodes, head.optional) == (("head",), True)
    [finest] = mixed_of({"TargetLayerConfig": [INT8, INT16]})
    assert finest.weights == IntegerFormat("int16")
    kept, search = mixed_of({"TargetLayerConfig": named, "MetricThreshold": 0.5})
    assert kept == head
    assert isinstance(search, MixedSearch)
    assert len(translate(QConfig(INT8, algo_config=[AutoMixprecisionConfig(named)])).recipe.overrides) == 2


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
        recipe = translate(QConfig(QLayerConfig(XInt8Spec(), XInt8Spec()), {wide: ["head"]})).recipe
    assert recipe.target == "npu-vaiml"  # the CNN device has 8 bits only
    assert recipe.overrides[0].activations == IntegerFormat("int16", scale="power_of_two")


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
