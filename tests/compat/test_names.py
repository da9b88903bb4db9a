"""The imports that scripts make, across the versions of the tools."""

from __future__ import annotations

import importlib
from importlib import metadata

import pytest

from detent.compat.configs import PRESET_FIELDS
from detent.compat.finder import other_tools
from detent.compat.tool_names import MODULES, VERSIONS, Unsupported, homes
from detent.errors import UsageError

quark_onnx = importlib.import_module("detent.compat.quark.onnx")

IMPORTS = """
import quark
import quark.onnx
import vai_q_onnx
import onnxruntime.quantization
from quark.onnx import ModelQuantizer, Config, QConfig, QuantizationConfig, QLayerConfig, QTensorConfig
from quark.onnx import CalibrationDataReader, CachedDataReader, RandomDataReader, PathDataReader
from quark.onnx import CalibrationMethod, CalibMethod, ExtendedCalibrationMethod, PowerOfTwoMethod, Int16Method
from quark.onnx import LayerWiseMethod, QuantFormat, QuantType, QuantizationMode, ExtendedQuantFormat, ExtendedQuantType
from quark.onnx import VitisQuantFormat, VitisQuantType, ScaleType, QuantGranularity, DataType
from quark.onnx import Int8, UInt8, Int16, UInt16, Int32, UInt32, Float16, BFloat16, BFP16, MX4, MX6, MX9
from quark.onnx import MXFP4E2M1, MXFP6E3M2, MXFP6E2M3, MXFP8E5M2, MXFP8E4M3, MXInt8
from quark.onnx import Int8Spec, UInt8Spec, XInt8Spec, Int16Spec, UInt16Spec, Int32Spec, UInt32Spec, Float16Spec
from quark.onnx import BFloat16Spec, BFP16Spec, MX4Spec, MX6Spec, MX9Spec, MXFP4E2M1Spec, MXFP6E3M2Spec, MXFP6E2M3Spec
from quark.onnx import MXFP8E5M2Spec, MXFP8E4M3Spec, MXInt8Spec
from quark.onnx import AlgoConfig, CLEConfig, SmoothQuantConfig, BiasCorrectionConfig, AdaRoundConfig, AdaQuantConfig
from quark.onnx import GPTQConfig, QuarotConfig, AutoMixprecisionConfig
from quark.onnx import XINT8_QCONFIG, VINT8_QCONFIG, A8W8_QCONFIG, A16W8_QCONFIG, BF16_QCONFIG, BFP16_QCONFIG
from quark.onnx import XINT8_ADAROUND_QCONFIG, A16W8_ADAQUANT_QCONFIG
from quark.onnx import AutoSearch, AutoSearchPro, SearchSpace, quantize_static, quantize_dynamic, dump_model
from quark.onnx import get_library_path, write_calibration_table, create_calibrator_power_of_two
from quark.onnx.quantization.config import Config, get_default_config, custom_config
from quark.onnx.quantization.config.config import Config, QuantizationConfig
from quark.onnx.quantization.config.custom_config import get_default_config, DEFAULT_ADAROUND_PARAMS
from quark.onnx.quantization.config.custom_config import DEFAULT_ADAQUANT_PARAMS, XINT8_CONFIG, INT8_CNN_ACCURATE_CONFIG
from quark.onnx.quantization.config.legacy import QuantizationConfig
from quark.onnx.quantization.config.algorithm import AdaRoundConfig
from quark.onnx.quantization.config.spec import CalibMethod, QLayerConfig, XInt8Spec
from quark.onnx.quantization.config.data_type import Int8, MXInt8
from quark.onnx.quantization.api import ModelQuantizer
from quark.onnx.quantization.quantize import quantize_static
from quark.onnx.quant_utils import PowerOfTwoMethod, VitisQuantType, VitisQuantFormat
from quark.onnx.quantization.quant_utils import ExtendedQuantFormat, ExtendedQuantType
from quark.onnx.calibration import PowerOfTwoMethod
from quark.onnx.calibration.methods import LayerWiseMethod
from quark.onnx.calibration.data_readers import RandomDataReader
from quark.onnx.operators.custom_ops import get_library_path
from quark.onnx.tools import convert_fp16_to_fp32, evaluate
from vai_q_onnx import quantize_static, quantize_dynamic, dump_model, PowerOfTwoMethod, VitisQuantFormat, VitisQuantType
from vai_q_onnx import QuantFormat, QuantType, CalibrationMethod, CalibrationDataReader
from vai_q_onnx.quant_utils import PowerOfTwoMethod
from vai_q_onnx.calibrate import CalibrationDataReader
from onnxruntime.quantization import quantize_static, quantize_dynamic, quantize, CalibrationMethod, QuantType
from onnxruntime.quantization import QuantFormat, CalibrationDataReader, shape_inference, quant_pre_process
from onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod
from onnxruntime.quantization.quant_utils import QuantType, QuantFormat
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.quantization.quantize import quantize_static
from onnxruntime import InferenceSession, SessionOptions
"""


@pytest.mark.parametrize("line", IMPORTS.strip().splitlines())
def test_imports(line):
    with other_tools():
        exec(line, {})


@pytest.mark.parametrize("name", PRESET_FIELDS)
def test_every_preset_is_a_constant_too(name):
    with other_tools():
        exec(f"from quark.onnx.quantization.config.custom_config import {name}_CONFIG", {})


def test_all_lists_what_there_is():
    for name in quark_onnx.__all__:
        assert hasattr(quark_onnx, name)
    assert not hasattr(quark_onnx, "ModelQuantiser")


@pytest.mark.parametrize("name", ["create_calibrator_float_scale", "CalibraterBase"])
def test_what_detent_does_not_do_says_what_to_do(name):
    stand_in = getattr(quark_onnx, name)
    with pytest.raises(UsageError, match=rf"{name} is not part of Detent\. \S"):
        stand_in("anything", option=1)
    with pytest.raises(UsageError, match=name):
        stand_in.search()
    assert "not part of Detent" in repr(stand_in)


def test_every_name_of_the_table_is_there():
    with other_tools():
        for module in MODULES:
            for name in homes(module):
                if module.partition(".")[0] in VERSIONS:
                    assert not isinstance(getattr(importlib.import_module(module), name), Unsupported), (module, name)


def test_modules_serve_the_names_of_each_other_and_answer_for_versions():
    with other_tools():
        from quark.onnx.quantization.api import CLEConfig, Config
        from quark.onnx.quantization.config.custom_config import Int8Spec
        from quark.onnx.quantization.quantize import XINT8_CONFIG
        from quark.version import __version__

        assert (Config.__name__, CLEConfig.__name__, Int8Spec.__name__) == ("Config", "CLEConfig", "Int8Spec")
        assert XINT8_CONFIG.enable_npu_cnn
        assert metadata.version("amd-quark") == metadata.version("amd_quark") == __version__ == "0.13"
        with pytest.raises(ImportError, match="Configg"):
            from quark.onnx.quantization.api import Configg  # noqa: F401
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("vai-q-onnx")


def test_a_star_brings_all_constants():
    found: dict[str, object] = {}
    with other_tools():
        exec("from quark.onnx.quantization.config.custom_config import *", found)
    assert {f"{name}_CONFIG" for name in PRESET_FIELDS} <= found.keys()
    assert {"A8W8_ADAROUND_QCONFIG", "XINT8_WEIGHTSONLY_ADAROUND_CONFIG", "get_default_config"} <= found.keys()
