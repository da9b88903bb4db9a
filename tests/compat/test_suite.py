"""Scripts of every family of users, written anew: the imports and calls that they make, on small models."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from detent.compat import entry_points
from detent.compat.finder import other_tools
from detent.compat.tool_names import INSIDES, MODULES
from detent.compat.tools import FUNCTIONS, TOOLS
from detent.equalizations import CrossLayer
from tests.compat.scripts import READER
from tests.models import build, info, node, normal, since_runtime

SUITE = {
    "a model from AMD's tutorial, the newest API": """
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config.algorithm import AdaRoundConfig, CLEConfig
from quark.onnx.quantization.config.config import QConfig
from quark.onnx.quantization.config.spec import CalibMethod, Int8Spec, Int16Spec, QLayerConfig, XInt8Spec

kinds = {"XINT8": XInt8Spec(), "A8W8": Int8Spec()}
activation, weight = kinds["A8W8"], Int8Spec()
for spec in (activation, weight):
    spec.set_calibration_method(CalibMethod.MinMax)
activation.symmetric = True
options = {"EnableNPUCnn": False, "AlignSlice": False, "FoldRelu": True, "AlignConcat": True}
tuned = AdaRoundConfig(data_size=4, batch_size=2, num_iterations=3, optim_device="cuda:0", infer_device="cuda:0")
config = QConfig(
    global_config=QLayerConfig(activation=activation, weight=weight),
    algo_config=[CLEConfig(), tuned],
    exclude=["not there", (["second"], ["second"])],
    use_external_data_format=False,
    **options,
)
again = QConfig.from_dict(config.to_dict())
assert again.to_dict() == config.to_dict()
ModelQuantizer(again).quantize_model(sys.argv[1], sys.argv[2], Reader())
""",
    "a detector on AMD's laptop": """
import copy
import onnxruntime as ort
from onnxruntime.quantization.calibrate import CalibrationMethod
from quark.onnx import ModelQuantizer, get_library_path
from quark.onnx.quantization.config import Config, DefaultConfigMapping, get_default_config
from quark.onnx.quantization.config.custom_config import DEFAULT_BFP_PARAMS, XINT8_WEIGHTSONLY_ADAROUND_CONFIG

quant_config = copy.deepcopy(get_default_config("XINT8"))
assert "XINT8" in DefaultConfigMapping
quant_config.extra_options["BF16QDQToCast"] = True
quant_config.extra_options["UseFP32Scale"] = False
quant_config.extra_options["QuantizeFP16"] = True
quant_config.extra_options["FastFinetune"] = {"NumIterations": 5}
quant_config.nodes_to_exclude = ["second", "/model.22/Concat_3"]
quant_config.execution_providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
ModelQuantizer(Config(global_quant_config=quant_config)).quantize_model(sys.argv[1], sys.argv[2], Reader())
so = ort.SessionOptions()
so.register_custom_ops_library(get_library_path())
ort.InferenceSession(sys.argv[2], so)
""",
    "the older tool, without a format": """
import vai_q_onnx
from vai_q_onnx.operators.vai_ops.qdq_ops import vai_dquantize
from vai_q_onnx.version import __version__

vai_q_onnx.quantize_static(
    sys.argv[1], sys.argv[2], Reader(),
    activation_type=vai_q_onnx.QuantType.QUInt8, weight_type=vai_q_onnx.QuantType.QInt8,
    enable_dpu=True, include_cle=True,
    extra_options={"ActivationSymmetric": True, "ReplaceClip6Relu": True, "CLESteps": 1, "UseUnsignedReLU": True})
""",
    "blocks in the older tool": """
import vai_q_onnx

vai_q_onnx.quantize_static(sys.argv[1], sys.argv[2], Reader(), quant_format=vai_q_onnx.VitisQuantFormat.BFPFixNeuron)
""",
    "operators on codes, then the tool that makes them": """
import onnx
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType
import vai_q_onnx
from vai_q_onnx.tools.convert_qdq_to_qop import convert_qdq_to_qop

vai_q_onnx.quantize_static(sys.argv[1], "qdq.onnx", Reader(), quant_format=QuantFormat.QDQ,
                           calibrate_method=CalibrationMethod.MinMax, activation_type=QuantType.QUInt8)
onnx.save(convert_qdq_to_qop(onnx.load("qdq.onnx")), sys.argv[2])
""",
    "tools as functions": """
import onnx
from quark.onnx.tools import convert_shared_initializer_to_unique
from quark.onnx.tools.convert_opset_version import convert_opset_version
from quark.onnx.tools.remove_qdq_between_ops import remove_qdq_between_ops
from quark.onnx.tools.replace_inf_weights import replace_inf_in_onnx_weights
from quark.shares.utils.log import ScreenLogger

ScreenLogger(__name__).info("begin")
model = convert_shared_initializer_to_unique.convert(onnx.load(sys.argv[1]), ["Conv"])
model = convert_opset_version(model, 19)
model = remove_qdq_between_ops(model, [("Conv", "Relu")])
replace_inf_in_onnx_weights(model, sys.argv[2])
assert onnx.load(sys.argv[2]).opset_import[0].version == 19
""",
    "a search": """
from quark.onnx import auto_search
from onnxruntime.quantization.calibrate import CalibrationMethod
from quark.onnx.quantization.config import Config, get_default_config
import shutil

class Search:
    search_space = {"calibrate_method": [CalibrationMethod.MinMax], "include_cle": [False], "include_fast_ft": [False]}
    search_metric_tolerance = 0.60001
    search_output_dir = "./"
    search_stop_condition = {"find_n_candidates": 1, "iteration_limit": 10000, "time_limit": 1000000.0}

found = auto_search.AutoSearch(config=Config(global_quant_config=get_default_config("S8S8_AAWS")),
                               auto_search_config=Search(), model_input=sys.argv[1], calibration_data_reader=Reader())
found.all_configs = found.build_all_configs(Search.search_space)
found.search_model()
shutil.copy(found.best_candidate["model_path"], sys.argv[2])
""",
    "onnxruntime's quantizer": """
import onnxruntime.quantization as q
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.quantization.quant_utils import load_model_with_shape_infer
from onnxruntime.quantization.shape_inference import quant_pre_process

quant_pre_process(input_model_path=sys.argv[1], output_model_path="prepared.onnx", auto_merge=True)
q.quantize_static("prepared.onnx", sys.argv[2], Reader(), q.QuantFormat.QDQ, reduce_range=True,
                  nodes_to_exclude=["second"], op_types_to_quantize=["Conv"],
                  extra_options={"MinimumRealRange": 1e-4, "CalibTensorRangeSymmetric": True})
assert len(ONNXModel(load_model_with_shape_infer(__import__("pathlib").Path(sys.argv[2]))).nodes())
""",
    "a tool that exports for a vendor": """
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config
from quark.onnx.quantization.config.custom_config import get_default_config

quant_config = get_default_config("VINT8")
quant_config.enable_npu_cnn = True
quant_config.nodes_to_exclude = ["second"]
quantizer = ModelQuantizer(Config(global_quant_config=quant_config))
quantizer.quantize_model(model_input=sys.argv[1], model_output=sys.argv[2], calibration_data_reader=Reader())
""",
    "a workflow tool's pass, from a file of settings": """
from quark import __version__
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config.algorithm import AdaRoundConfig, CLEConfig
from quark.onnx.quantization.config.config import QConfig
from quark.onnx.quantization.config.spec import CalibMethod, QLayerConfig, QuantGranularity, ScaleType

assert tuple(map(int, __version__.split("."))) >= (0, 10)
tensor = {"symmetric": True, "quant_granularity": "QuantGranularity.Tensor", "scale_type": "ScaleType.PowerOf2"}
activation = {**tensor, "calibration_method": "CalibMethod.MinMSE", "data_type": "UInt8"}
weight = {**tensor, "calibration_method": "CalibMethod.MinMax", "data_type": "Int8"}
layer = QLayerConfig.from_dict({"activation": activation, "input_tensors": activation, "weight": weight})
tuned = AdaRoundConfig()
tuned.optim_device = tuned.infer_device = "cuda:6"
tuned.num_iterations, tuned.data_size = 3, 4
cle = CLEConfig()
cle.cle_steps = 6
config = QConfig(global_config=layer, specific_layer_config={}, layer_type_config={}, exclude=[],
                 algo_config=[cle, tuned],
                 extra_options={"EnableNPUCnn": True, "ConvertOpsetVersion": 21, "Int32Bias": False})
ModelQuantizer(config).quantize_model(sys.argv[1], sys.argv[2], Reader())
import onnx
assert onnx.load(sys.argv[2]).opset_import[0].version == 21
""",
    "the accuracy of the script's own decides on precision": """
from quark.onnx import ModelQuantizer, QuantType, VitisQuantFormat, VitisQuantType, CalibrationMethod
from quark.onnx.quantization.config.config import Config, QuantizationConfig

def top1(results):
    first.append(results) if not first else None
    return float(np.mean([np.argmax(a) == np.argmax(b) for a, b in zip(results, first[0])]))

first = []
quant_config = QuantizationConfig(
    calibrate_method=CalibrationMethod.Percentile, quant_format=VitisQuantFormat.QDQ,
    activation_type=VitisQuantType.QInt16, weight_type=QuantType.QInt8, include_auto_mp=True,
    extra_options={"ActivationSymmetric": False, "WeightsSymmetric": True, "Int32Bias": False, "AutoMixprecision": {
        "ActTargetQuantType": QuantType.QInt8, "WeightTargetQuantType": QuantType.QInt8, "OutputIndex": 0,
        "Top1AccTarget": 0.5, "EvaluateFunction": top1}})
ModelQuantizer(Config(global_quant_config=quant_config)).quantize_model(sys.argv[1], sys.argv[2], Reader())
assert first
""",
    "mixed precision, as it was asked for before": """
from quark.onnx import ModelQuantizer, QConfig, QLayerConfig, AutoMixprecisionConfig
from quark.onnx.quantization.config.data_type import Int8
from quark.onnx.quantization.config.spec import Int16Spec

mixed = AutoMixprecisionConfig(
    act_target_quant_type=Int8, weight_target_quant_type=Int8, l2_target=10000, output_index=0)
config = QConfig(QLayerConfig(input_tensors=Int16Spec(), weight=Int16Spec()), algo_config=[mixed],
                 extra_options={"Percentile": 99.9999, "Int32Bias": False, "Int16Bias": False})
ModelQuantizer(config).quantize_model(sys.argv[1], sys.argv[2], Reader())
""",
}


@pytest.mark.parametrize("name", SUITE)
def test_a_script_runs_unmodified(detent, tiny, tmp_path, monkeypatch, samples, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(f"import sys\n{READER}{SUITE[name]}", encoding="utf-8")
    outcome = detent("run", tmp_path / "script.py", tiny, tmp_path / "out.onnx")
    assert outcome.code == 0, outcome.err
    found = onnxruntime.InferenceSession(tmp_path / "out.onnx").run(None, {"x": samples[:1]})[0]
    expected = onnxruntime.InferenceSession(tiny).run(None, {"x": samples[:1]})[0]
    assert np.abs(found - expected).max() < 0.15 * np.abs(expected).max()


@since_runtime(22, "matmul_nbits_quantizer")
def test_weights_of_four_bits(detent, tmp_path, monkeypatch):
    """A transformer's layer, with onnxruntime's quantizer of weights."""
    monkeypatch.chdir(tmp_path)
    onnx.save(build([node("MatMul", "x w", "y")], "y", {"w": normal(64, 8)}, [info("x", (2, 64))]), "m.onnx")
    script = """
import onnx
from onnxruntime.quantization import matmul_nbits_quantizer as n

quantizer = n.MatMulNBitsQuantizer(onnx.load("m.onnx"), block_size=32, is_symmetric=True)
quantizer.process()
quantizer.model.save_model_to_file("out.onnx", False)
"""
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    assert detent("run", "script.py").code == 0
    onnxruntime.InferenceSession("out.onnx").run(None, {"x": normal(2, 64)})


def test_every_module_can_be_imported():
    with other_tools():
        for name in (*MODULES, *(f"quark.onnx.tools.{tool}" for tool in TOOLS)):
            exec(f"import {name}", {})
        for name in INSIDES:
            exec(f"from {name} import anything", {})
        for tool, functions in FUNCTIONS.items():
            names = ", ".join(name.partition("=")[0] for name in functions)
            exec(f"from quark.onnx.tools.{tool} import {names}", {})


def test_a_part_of_another_tool_says_so_when_it_is_used(detent, tmp_path):
    (tmp_path / "script.py").write_text("from quark.onnx.optimizations.optimize import optimize\noptimize()\n")
    outcome = detent("run", tmp_path / "script.py")
    assert outcome.code == 2
    assert "quark.onnx.optimizations.optimize.optimize" in outcome.err


def test_notes_are_lines_of_their_own(detent, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = f"import sys\n{READER}{SUITE['a detector on AMD' + chr(39) + 's laptop']}"
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    lines = detent("run", tmp_path / "script.py", tiny, tmp_path / "out.onnx").err.splitlines()
    assert "Note: nodes_to_exclude: the model has no node '/model.22/Concat_3'." in lines
    assert any(line.startswith("Note: QuantizeFP16=True") for line in lines)


def test_the_numbers_of_quark_on_request(detent, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(f"import sys\n{READER}{SUITE['a tool that exports for a vendor']}")
    seen = []
    quantize = entry_points.detent.quantize
    monkeypatch.setattr(entry_points.detent, "quantize", lambda *a, **k: seen.append((a[3], k)) or quantize(*a, **k))
    assert detent("run", "--as-quark", tmp_path / "script.py", tiny, tmp_path / "out.onnx").code == 0
    recipe, options = seen[0]
    assert (recipe.equalize, recipe.refinement, recipe.clip_outputs) == (CrossLayer(through_pools=False), None, True)
    assert (options["postprocessing"], options["hold_out"]) == ("keep", "beyond")
