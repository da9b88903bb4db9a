"""The modules and names of AMD Quark, vai_q_onnx and onnxruntime's quantizer: where each one is in Detent.

    module of the tool -> module of Detent (below detent.compat) -> names, with spaces between them

`finder` serves these modules. `new=old` is the tool's name for what is called `old` in Detent. To add a name that
exists, put it into its row; to refuse one, put it into `_REFUSED` with what to do instead. The modules of a package
import from each other, and older versions keep the same names elsewhere: so each serves the names of all of them.

The modules in `INSIDES` can be imported, and any name from them: they are the tools' own parts, so using one is an
error that says so. What onnxruntime's quantizer has and the table does not is onnxruntime's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NoReturn

from detent.errors import UsageError

_METHODS = "ExtendedCalibrationMethod Int16Method LayerWiseMethod PowerOfTwoMethod"
_FAMILIES = (
    f"CalibrationMethod ExtendedQuantFormat ExtendedQuantType {_METHODS} QuantFormat QuantType VitisQuantFormat "
    "VitisQuantType"
)
_READERS = "CachedDataReader PathDataReader RandomDataReader"
_CONFIGS = "Config QConfig QuantizationConfig"
_ALGORITHMS = (
    "AdaQuantConfig AdaRoundConfig AlgoConfig AutoMixprecisionConfig BiasCorrectionConfig CLEConfig GPTQConfig "
    "QuarotConfig SmoothQuantConfig"
)
_PRESETS = (
    "DEFAULT_CONFIG_MAPPING=DefaultConfigMapping DefaultConfigMapping get_default_config get_default_config_mapping"
)
_SEARCH = "AutoSearch AutoSearchPro SearchSpace generate_all_configs get_auto_search_config"
_LOGS = {"readers": "ScreenLogger log_errors logger"}
_PROFILES = {"readers": "GlobalProfiler ProfileStep profile_scope"}
_PASSES = "ModelConfig ONNXModelConfig RunConfig shapeshifter"
_TYPES = (
    "BFP16 MX4 MX6 MX9 MXFP4E2M1 MXFP6E2M3 MXFP6E3M2 MXFP8E4M3 MXFP8E5M2 BFloat16 Float16 Int8 Int16 Int32 MXInt8 "
    "UInt8 UInt16 UInt32"
)
_SPECS = " ".join(["QLayerConfig", "QTensorConfig", "XInt8Spec", *(f"{name}Spec" for name in _TYPES.split())])
_SPEC_ENUMS = "CalibMethod QuantGranularity ScaleType"
_QUARK_FUNCTIONS = "quantize_dynamic=quark_quantize_dynamic quantize_static=quark_quantize_static"
_ONNXRUNTIME_FUNCTIONS = "DynamicQuantConfig StaticQuantConfig quantize quantize_dynamic quantize_static"

MODULES: dict[str, dict[str, str]] = {
    "quark.onnx": {
        "enums": f"{_FAMILIES} {_SPEC_ENUMS}",
        "data_types": f"DataType {_TYPES} {_SPECS}",
        "algorithms": _ALGORITHMS,
        "configs": _CONFIGS,
        "readers": f"CalibrationDataReader {_READERS}",
        "entry_points": f"ModelQuantizer dump_model get_library_path {_QUARK_FUNCTIONS}",
        "auto_search": _SEARCH,
    },
    "quark.common.profiler": _PROFILES,
    "quark.common.utils.log": _LOGS,
    "quark.shapeshifter": {"shapeshifter": _PASSES},
    "quark.onnx.auto_search": {"auto_search": _SEARCH},
    "quark.onnx.quantization.auto_search": {
        "auto_search": "A16W8_SEARCH_CONFIG A8W8_SEARCH_CONFIG ADVANCED_SEARCH_CONFIG XINT8_SEARCH_CONFIG "
        f"AutoSearchConfig METRICS {_SEARCH}"
    },
    "quark.onnx.quantization.config": {"configs": f"{_CONFIGS} {_PRESETS}"},
    "quark.onnx.quantization.config.algorithm": {"algorithms": f"{_ALGORITHMS} ALGO_NAME_TO_CLASS from_dict"},
    "quark.onnx.quantization.config.custom_config": {
        "configs": f"DEFAULT_ADAQUANT_PARAMS DEFAULT_ADAROUND_PARAMS {_PRESETS}",
        "data_types": "DEFAULT_BFP_PARAMS DEFAULT_MICROEXPONENTS_PARAMS DEFAULT_MICROSCALING_PARAMS",
    },
    "quark.onnx.quantization.config.data_type": {
        "data_types": f"BaseDataType=DataType DataType {_TYPES} parse_data_type"
    },
    "quark.onnx.quantization.config.spec": {"enums": _SPEC_ENUMS, "data_types": _SPECS},
    "quark.onnx.quantization.config.utils": {"data_types": "config_to_dict=plain"},
    "quark.onnx.tools": {},
    "quark.onnx.tools.evaluate": {"tools": "main=evaluate parse_subgraphs_list=parse_subgraphs"},
    "vai_q_onnx": {
        "enums": _FAMILIES,
        "readers": f"CalibrationDataReader {_READERS}",
        "entry_points": "dump_model get_library_path quantize_dynamic=quark_quantize_dynamic "
        "quantize_static=vai_quantize_static",
    },
    "vai_q_onnx.tools": {},
    "vai_q_onnx.tools.evaluate": {"tools": "main=evaluate"},
    "onnxruntime.quantization": {
        "enums": "CalibrationMethod QuantFormat QuantType",
        "entry_points": _ONNXRUNTIME_FUNCTIONS,
        "tools": "quant_pre_process",
        "readers": "CalibrationDataReader",
    },
    "onnxruntime.quantization.calibrate": {"enums": "CalibrationMethod", "readers": "CalibrationDataReader"},
    "onnxruntime.quantization.preprocess": {"tools": "main=preprocess quant_pre_process"},
    "onnxruntime.quantization.qdq_loss_debug": {"tools": "create_activation_matching"},
    "onnxruntime.quantization.quant_utils": {"enums": "QuantFormat QuantType"},
    "onnxruntime.quantization.quantize": {"entry_points": _ONNXRUNTIME_FUNCTIONS},
    "onnxruntime.quantization.shape_inference": {"tools": "quant_pre_process"},
}

# Set in the environment of processes that a script starts under --as-quark.
AS_QUARK_IN_CHILDREN = "DETENT_AS_QUARK"
# By package: the distribution that it comes from, and the newest version whose scripts run. Some scripts ask.
VERSIONS = {"quark": ("amd-quark", "0.13"), "vai_q_onnx": ("vai-q-onnx", "1.16.0")}

_CALIBRATORS = "Calibration is part of detent.quantize; `detent stats` shows what each method would choose."
_STATISTICS = "`detent quantize --save-stats FILE` keeps statistics."

_REFUSED: dict[str, dict[str, str]] = {
    "quark.onnx": {
        _CALIBRATORS: "create_calibrator_power_of_two create_calibrator_float_scale CalibraterBase MinMaxCalibrater",
        _STATISTICS: "write_calibration_table",
    },
}
# By module: names that can be imported and not used, with what to do instead.
UNSUPPORTED = {
    module: {name: instead for instead, names in rows.items() for name in names.split()}
    for module, rows in _REFUSED.items()
}

# Modules that have names of others alone.
_BARE = {
    "quark": "common.utils shares.utils.log version",
    "quark.onnx": "calibration.methods operators.custom_ops utils.deploy_utils",
    "quark.onnx.quantization": "api",
    "quark.onnx.quantization.config": "config legacy",
    "vai_q_onnx": "calibrate quantize version",
}
_CREATE_TORCH = "base_fn_quantizers base_qdq_quantizers create_model create_model_ops create_model_utils"
_QUANT_OPS = "quant_base_ops quant_conv_ops quant_gemm_ops quant_matmul_ops quant_norm_ops"
_TRANSFORMS = "convert_transforms convert_transforms_pipeline model_transformer transforms transforms_pipeline"
_INSIDES: dict[str, str] = {
    "quark.common.utils": "collect_env detect_pytorch_extension_dir doc import_utils testing_utils torch_utils",
    "quark.shares.utils": "import_utils testing_utils",
    "quark.onnx": "equalization finetuning gptq graph_transformations mprecision onnx_quantizer optimize qdq_quantizer "
    "refine registry simulate_dpu smooth_quant",
    "quark.onnx.algorithm": "bc.bias_correction cle.equalization gptq.gptq interface quarot.quarot sq.smooth_quant",
    "quark.onnx.algorithm.finetuning": "fast_finetune onnx_evaluate onnx_subgraph torch_utils",
    "quark.onnx.algorithm.finetuning.create_torch": f"{_CREATE_TORCH} {_QUANT_OPS}",
    "quark.onnx.algorithm.finetuning.train_torch": "train_model train_model_loss train_model_param",
    "quark.onnx.algorithm.mprecision": "auto_mixprecision metric_funcs mixing_executor mixing_strategy "
    "mprecision_config sensitivity_analyzer subgraph_parser",
    "quark.onnx.calibrate": "",
    "quark.onnx.calibration": "calib_utils calibrate calibrators collectors data_readers interface",
    "quark.onnx.gptq": "gptq",
    "quark.onnx.operators.custom_ops": "build_custom_ops",
    "quark.onnx.operators.quant_ops": "concat hardsigmoid layernorm prelu softmax",
    "quark.onnx.optimizations": f"interface optimize {_TRANSFORMS}",
    "quark.onnx.postprocess": "postproc refinement.refine simulation.simulate_dpu simulation.simulate_dpu_softmax",
    "quark.onnx.preprocess": "preproc",
    "quark.onnx.quant_utils": "",
    "quark.onnx.quantization": "input_check output_eval quantize",
    "quark.onnx.quantization.auto_search": "auto_search_pro auto_search_v1 config_generator qconfig_mapping utils",
    "quark.onnx.quantization.config": "maps utils",
    "quark.onnx.quantization.quant_utils": "",
    "quark.onnx.quantizers": "extended_quantizer interface matmul_nbits_quantizer npu_cnn_quantizer "
    "npu_transformer_quantizer onnx_quantizer qdq_quantizer registry",
    "quark.onnx.utils": "file_utils model_utils print_utils shapeshifter_utils system_utils",
    "quark.shapeshifter": "api engine engine_config model_config pass_base pass_config pass_discovery run_config utils",
    "quark.common": "config data_type torch_cpp_build_specs torch_cpp_ext",
    "quark.common.profiler": "profiler utils",
    "vai_q_onnx": "equalization gen_files onnx_quantizer qdq_quantizer refine registry simulate_dpu",
    "vai_q_onnx.graph_transformations": "model_transformer transforms transforms_pipeline",
    "vai_q_onnx.operators": "custom_ops vai_ops.qdq_ops",
    "vai_q_onnx.optimizations": _TRANSFORMS,
    "vai_q_onnx.quant_utils": "",
    "vai_q_onnx.utils": "model_utils",
}
_TORCH = "It quantizes PyTorch models, and Detent ONNX models: export yours (torch.onnx.export) and quantize that."
_ASIDE = "It is no part of quantizing an ONNX model."
# Packages that are served whole, whatever is below them: any name can be imported, and using one says this.
ELSEWHERE = {
    **{"quark.torch": _TORCH, "quark.experimental": _ASIDE, "quark.contrib": _ASIDE},
    "quark.shapeshifter.passes": "`shapeshifter` runs passes by their names.",
}
# Constants of Quark: its own operators, and those of a quantized model.
_CUSTOM = {
    **{"DOMAIN": "com.amd.quark", "VERSION": 1, "QUANT_OP_NAME": "ExtendedQuantizeLinear"},
    **{"DEQUANT_OP_NAME": "ExtendedDequantizeLinear", "IN_OP_NAME": "ExtendedInstanceNormalization"},
    **{"LSTM_OP_NAME": "ExtendedLSTM", "BFP_OP_NAME": "BFPQuantizeDequantize", "MX_OP_NAME": "MXQuantizeDequantize"},
}
CONSTANTS: dict[str, Any] = {
    **{f"{prefix}COP_{name}": value for prefix in ("", "_") for name, value in _CUSTOM.items()},
    "QUANT_OP_TYPES": ["QuantizeLinear", _CUSTOM["QUANT_OP_NAME"]],
    "DEQUANT_OP_TYPES": ["DequantizeLinear", _CUSTOM["DEQUANT_OP_NAME"]],
    "FN_OP_TYPES": [_CUSTOM["BFP_OP_NAME"], _CUSTOM["MX_OP_NAME"]],
}
# Their insides are below them; an unknown name of their own is a mistake in the script.
_PUBLIC = {"quark.onnx", "quark.onnx.quantization", "quark.onnx.quantization.config", "vai_q_onnx"}


def _with_packages(root: str, paths: str) -> list[str]:
    """Return a module, and for each path below it the modules on the way and at its end."""
    parts = [path.split(".") for path in paths.split()]
    return [root, *(".".join((root, *each[: end + 1])) for each in parts for end in range(len(each)))]


# Modules from which any name can be imported, and none that the table does not have can be used.
INSIDES = {name for root, paths in _INSIDES.items() for name in _with_packages(root, paths)} - _PUBLIC
_BESIDE = {name for root, paths in _BARE.items() for name in _with_packages(root, paths)}
MODULES.update({name: {} for name in sorted({*INSIDES, *_BESIDE}) if name not in MODULES})


def homes(module: str) -> dict[str, tuple[str, str]]:
    """Return for each name of a tool's module the module of Detent that has it, and the name there."""
    found: dict[str, tuple[str, str]] = {}
    for home, names in MODULES.get(module, {}).items():
        for name in names.split():
            theirs, _, ours = name.partition("=")
            found[theirs] = (home, ours or theirs)
    return found


@cache
def anywhere(package: str) -> Mapping[str, tuple[str, str]]:
    """Return the names of all modules of a package: they import from each other, and scripts from any of them."""
    modules = [module for module in MODULES if module.partition(".")[0] == package]
    found = {name: home for module in reversed(modules) for name, home in homes(module).items()}
    return {name: home for name, home in found.items() if name != "main"}


class Unsupported:
    """A stand-in for a name that Detent has no counterpart of: using it is an error that says what to do instead."""

    def __init__(self, name: str, instead: str) -> None:
        self._name, self._instead = name, instead

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{self._name} is not part of Detent. {self._instead}")

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):  # asked by Python itself, of any object
            raise AttributeError(attribute)
        self()
        raise AssertionError("not reached")

    def __repr__(self) -> str:
        return f"<{self._name}: not part of Detent>"
