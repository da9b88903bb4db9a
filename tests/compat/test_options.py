"""Every option of the table does something, or says why not."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from tools.option_page import page

from detent.compat.configs import QuantizationConfig
from detent.compat.data_types import Int8Spec, QLayerConfig
from detent.compat.enums import (
    CalibrationMethod,
    ExtendedCalibrationMethod,
    ExtendedQuantType,
    LayerWiseMethod,
    PowerOfTwoMethod,
    QuantType,
)
from detent.compat.option_rows import ScriptNote
from detent.compat.table import OPTIONS, SECTIONS
from detent.compat.translate import translate
from detent.convert.float_types import ToBfloat16
from detent.convert.quantizing_nodes import WithoutOutputQdq
from detent.devices.catalog import check_steps
from detent.equalizations import CrossLayer, GlobalEqualization
from detent.errors import UsageError
from detent.methods import Distribution, Entropy, LayerwisePercentile, MinMax, MinMSE, NonOverflow, Percentile
from detent.numerics.blocks import BlockFloat, Microscaling
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat
from detent.recipe import Override
from detent.recipe.recipe import FUSED_ACTIVATIONS
from detent.refinements import AdaRound, Gptq

NPU = {"calibrate_method": PowerOfTwoMethod.MinMSE, "activation_type": QuantType.QUInt8, "enable_npu_cnn": True}
FLOAT = {}
BF16 = {"activation_type": ExtendedQuantType.QBFloat16, "weight_type": ExtendedQuantType.QBFloat16}
BFP = {"activation_type": ExtendedQuantType.QBFP, "weight_type": ExtendedQuantType.QBFP}
MX = {"activation_type": ExtendedQuantType.QMX, "weight_type": ExtendedQuantType.QMX}
PERCENTILE = {"calibrate_method": CalibrationMethod.Percentile}
LAYERWISE = {"calibrate_method": LayerWiseMethod.LayerWisePercentile}
ENTROPY = {"calibrate_method": CalibrationMethod.Entropy}
MINMSE = {"WeightCalibrateMethod": ExtendedCalibrationMethod.MinMSE}


def request(fields, **options):
    return translate(QuantizationConfig(**fields, extra_options=options))


def recipe(fields, **options):
    return request(fields, **options).recipe


HONOURED = {
    "ActivationSymmetric": (FLOAT, True, {"activations": IntegerFormat("int8")}),
    "WeightSymmetric": (FLOAT, False, {"weights": IntegerFormat("int8", symmetric=False)}),
    "QuantizeBias": (FLOAT, False, {"biases": None}),
    "Int32Bias": (NPU, True, {"biases": IntegerFormat("int32", scale="power_of_two")}),
    "Int16Bias": (FLOAT, True, {"biases": IntegerFormat("int16")}),
    "Int16Scale": (FLOAT, True, {"weights": IntegerFormat("int8", scale="int16")}),
    "UsePowerOf2Scale": (NPU, True, {}),
    "ActivationScaled": (BF16, True, {"activations": FloatFormat("bfloat16", scaled=True)}),
    "WeightScaled": (BF16, True, {"weights": FloatFormat("bfloat16", scaled=True)}),
    "ConvertOpsetVersion": (FLOAT, 21, {"opset": 21}),
    "ConvertBNToConv": (NPU, False, {"without": ("batch_norm_to_conv",)}),
    "ConvertReduceMeanToGlobalAvgPool": (NPU, False, {"without": ("reduce_mean_to_pool",)}),
    "SplitLargeKernelPool": (NPU, False, {"without": ("split_global_pool",)}),
    "ConvertSplitToSlice": (NPU, False, {"without": ("split_to_slice",)}),
    "ConvertClipToRelu": (NPU, True, {"also": ("clip_to_relu",)}),
    "SimplifyModel": (FLOAT, False, {"without": ("remove_identity", "mat_mul_to_gemm")}),
    "FuseInstanceNorm": (FLOAT, False, {"without": ("fuse_instance_norm",)}),
    "FuseL2Norm": (FLOAT, False, {"without": ("fuse_l2_norm",)}),
    "FuseGelu": (FLOAT, False, {"without": ("fuse_gelu",)}),
    "FuseLayerNorm": (FLOAT, False, {"without": ("fuse_layer_norm",)}),
    "FoldBatchNorm": (NPU, False, {"without": ("fold_batch_norm",)}),
    "OpTypesToQuantize": (FLOAT, ["Conv"], {"operators": ("Conv",)}),
    "ExtraOpTypesToQuantize": (FLOAT, ["Exp"], {"more_operators": ("Exp",)}),
    "QuantizeAllOpTypes": (FLOAT, True, {"all_operators": True}),
    "WeightsOnly": (FLOAT, True, {"activations": None}),
    "MatMulConstBOnly": (FLOAT, True, {"products_of_activations": False}),
    "MixedPrecisionTensor": (
        {"specific_tensor_precision": True},
        {ExtendedQuantType.QInt16: ["a", "b"]},
        {
            "overrides": (
                Override(
                    tensors=("a", "b"),
                    optional=True,
                    activations=IntegerFormat("int16", symmetric=False),
                    weights=IntegerFormat("int16"),
                ),
            )
        },
    ),
    "AddQDQPairToWeight": (FLOAT, True, {"weight_pairs": True}),
    "DedicatedQDQPair": (FLOAT, True, {"dedicated_pairs": True}),
    "DedicateDQNode": (FLOAT, True, {"dedicated_pairs": True}),
    "RemoveQDQConvClip": (FLOAT, False, {"fuse": ("Relu", "LeakyRelu", "PRelu")}),
    "RemoveQDQConvRelu": (FLOAT, False, {"fuse": ("LeakyRelu", "PRelu", "Clip")}),
    "RemoveQDQConvLeakyRelu": (FLOAT, False, {"fuse": ("Relu", "PRelu", "Clip")}),
    "RemoveQDQConvPRelu": (FLOAT, False, {"fuse": ("Relu", "LeakyRelu", "Clip")}),
    "RemoveQDQConvGelu": (FLOAT, True, {"fuse": (*FUSED_ACTIVATIONS, "Gelu")}),
    "CLESteps": (NPU, -1, {"equalize": CrossLayer(-1)}),
    "CLEWeightThreshold": (NPU, 0.1, {"equalize": CrossLayer(threshold=0.1)}),
    "CLEScaleAppendBias": (NPU, False, {"equalize": CrossLayer(append_bias=False)}),
    "CLEScaleUseThreshold": (NPU, False, {"equalize": CrossLayer(threshold=0.0)}),
    "CLETotalLayerDiffThreshold": (FLOAT, 1e-5, {"equalize": CrossLayer(converged=1e-5)}),
    "CalibMovingAverage": (FLOAT, True, {"method": MinMax(moving_average=True)}),
    "Percentile": (PERCENTILE, 99.9, {"method": Percentile(99.9)}),
    "CalibPercentile": (PERCENTILE, 99.9, {"method": Percentile(99.9)}),
    "LWPMetric": (LAYERWISE, "mse", {"method": LayerwisePercentile(metric="mse")}),
    "PercentileCandidates": (LAYERWISE, [99.0, 99.9], {"method": LayerwisePercentile((99.0, 99.9))}),
    "MinMSEModePof2Scale": (NPU, "MostCommon", {"method": MinMSE("MostCommon")}),
    "MinMSEMode": (NPU, "All", {"method": MinMSE()}),
    "WeightCalibrateMethod": (FLOAT, ExtendedCalibrationMethod.MinMSE, {"weight_method": MinMSE()}),
    "NumBins": (ENTROPY, 256, {"method": Entropy(256)}),
    "NumQuantizedBins": (ENTROPY, 64, {"method": Entropy(quantized_bins=64)}),
    "Scenario": ({"calibrate_method": CalibrationMethod.Distribution}, "p3", {"method": Distribution("p3")}),
    "TensorQuantOverrides": (
        FLOAT,
        {"x": [{"quant_type": QuantType.QInt16, "symmetric": True}], "y": [{"rmin": -1, "rmax": 2}]},
        {
            "overrides": (
                Override(
                    tensors=("x",),
                    activations=IntegerFormat("int16"),
                    weights=IntegerFormat("int16"),
                    optional=True,
                ),
                Override(tensors=("y",), range=(-1.0, 2.0), optional=True),
            )
        },
    ),
    "ConvertLeakyReluToDPUVersion": (NPU, False, {"without": ("round_leaky_slope",)}),
    "ConvertSigmoidToHardSigmoid": (NPU, False, {"without": ("sigmoid_to_hard_sigmoid",)}),
    "ConvertHardSigmoidToDPUVersion": (NPU, False, {"without": ("scale_hard_sigmoid",)}),
    "ConvertAvgPoolToDPUVersion": (NPU, False, {"without": ("scale_pools",)}),
    "ConvertReduceMeanToDPUVersion": (NPU, False, {"without": ("scale_reduce_mean",)}),
    "ConvertClipToDPUVersion": (NPU, True, {"also": ("whole_clip",)}),
    "AdjustShiftCut": (NPU, False, {"without": ("shift_cut",)}),
    "AdjustShiftBias": (NPU, False, {"without": ("shift_bias",)}),
    "AdjustShiftRead": (NPU, False, {"without": ("shift_read",)}),
    "AdjustShiftWrite": (NPU, False, {"without": ("shift_write",)}),
    "AdjustHardSigmoid": (NPU, False, {"without": ("hard_sigmoid",)}),
    "AdjustShiftSwish": (NPU, False, {"without": ("shift_swish",)}),
    "AlignConcat": (FLOAT, True, {"target": "npu-float-scale"}),
    "AlignPool": (NPU, False, {"without": ("align_pool",)}),
    "AlignPad": (NPU, False, {"without": ("align_pad",)}),
    "AlignSlice": (NPU, False, {"without": ("align_slice",)}),
    "AlignEltwiseQuantType": (FLOAT, True, {"constants_as_activations": True}),
    "BF16WithClip": (BF16, True, {"activations": FloatFormat("bfloat16", clip=True)}),
    "BF16QDQToCast": (BF16, True, {"format": "cast"}),
    "BFPAttributes": (BFP, {"bit_width": 13, "rounding_mode": 1}, {"weights": BlockFloat(13, rounding="half_up")}),
    "MXAttributes": (
        MX,
        {"element_dtype": "fp4_e2m1", "block_size": 16, "rounding_mode": 2},
        {"activations": Microscaling("fp4_e2m1", 16)},
    ),
    "UseMatMulNBits": (FLOAT, True, {"weights": IntegerFormat("int4", granularity="per_group:128")}),
    "SmoothQuant": (FLOAT, True, {"smooth": 0.5}),
    "SmoothAlpha": ({"include_sq": True}, 0.8, {"smooth": 0.8}),
    "BiasCorrection": (FLOAT, False, {"refinement": None}),
    "FastFinetune": ({"include_fast_ft": True}, {"NumIterations": 3}, {"refinement": AdaRound(iterations=3)}),
    "AutoMixprecision": (
        {"include_auto_mp": True},
        {"TargetLayerConfig": QLayerConfig(weight=Int8Spec()), "TargetOpType": ["Gemm"], "DualQuantNodes": True},
        {"overrides": (Override(op_types=("Gemm",), weights=IntegerFormat("int8")),)},
    ),
    "EnableNPUCnn": ({"calibrate_method": PowerOfTwoMethod.MinMSE}, True, {"target": "npu-cnn"}),
}
"""By option: fields of the configuration, a value, and what becomes of the recipe."""

BESIDE = {
    "ConvertNCHWToNHWC": (True, {"conversions": ("nhwc",)}),
    "RemoveQDQMulAdd": (True, {"conversions": ("without-qdq-between:pairs=Mul/Add",)}),
    "RemoveQDQBetweenOps": (
        [("Conv", "Relu"), ["Mul", "Add"]],
        {"conversions": ("without-qdq-between:pairs=Conv/Relu+Mul/Add",)},
    ),
    "OpTypesToExcludeOutputQuantization": (
        ["MatMul", "Gemm"],
        {"conversions": (WithoutOutputQdq(op_types="MatMul+Gemm"),)},
    ),
    "NodesToExcludeOutputQuantization": (["a"], {"conversions": (WithoutOutputQdq(nodes=("a",)),)}),
    "EnableDualQuantNodePairs": (True, {"dual": True}),
    "FixShapes": ("x:[1,3,8,8]; y:[2]", {"fix_shapes": {"x": [1, 3, 8, 8], "y": [2]}}),
    "NodesToQuantize": (["a"], {"include": ("a",)}),
    "InputNodes": (["a"], {"start": ("a",)}),
    "OutputNodes": (["a"], {"end": ("a",)}),
    "CalibDataSize": (5, {"limit": 5}),
    "CalibWorkerNum": (4, {"threads": 4}),
    "SaveAndRestore": ("ranges.stats", {"statistics": Path("ranges.stats")}),
    "TensorsRangeFile": ("ranges.stats", {"statistics": Path("ranges.stats")}),
    "ExecutionProviders": (["X"], {"providers": ("X",)}),
    "PrintSummary": (False, {"summary": False}),
}
ELSEWHERE = {
    *("SimulateDPU", "NPULimitationCheck", "IPULimitationCheck", "CalibTensorRangeSymmetric", "MinMSEModeFloatScale"),
    *("RandomDataReaderInputShape", "RandomDataReaderInputDataRange", "SmoothQuantAlpha", "MatMulNBitsParams"),
    *("UseGPTQ", "GPTQParams", "EnableVaimlBF16", "ShapeShifterYaml", "PreprocessYAML", "EnableSubgraph"),
}
"""Options with a test of their own, below, in test_algorithms.py or in test_foreign.py."""


def test_every_honoured_option_is_tested_here():
    honoured = {name for name, option in OPTIONS.items() if option.verdict == "honoured"}
    assert honoured == {*HONOURED, *BESIDE, *ELSEWHERE}


@pytest.mark.parametrize("name", HONOURED)
def test_an_honoured_option_changes_the_recipe(name):
    fields, value, expected = HONOURED[name]
    found = recipe(fields, **{name: value})
    check_steps(found)
    assert {field: getattr(found, field) for field in expected} == expected
    usual = {"UsePowerOf2Scale", "MinMSEMode", "BF16QDQToCast"}  # what they ask for is the default there
    if name not in usual:
        switches = dict.fromkeys(("include_fast_ft", "include_auto_mp", "specific_tensor_precision"), False)
        assert found != recipe({**fields, **switches})


@pytest.mark.parametrize("name", BESIDE)
def test_an_honoured_option_changes_the_request(name):
    value, expected = BESIDE[name]
    found = request(FLOAT, **{name: value})
    assert {field: getattr(found, field) for field in expected} == expected


def test_settings_of_cross_layer_equalization_add_up_in_any_order():
    options = {"CLEScaleUseThreshold": False, "CLEWeightThreshold": 0.3, "CLESteps": 2}
    for each in (options, dict(reversed(options.items()))):
        assert recipe(NPU, **each).equalize == CrossLayer(2, threshold=0.0)
    assert recipe({**NPU, "include_cle": False}, **options).equalize is None


def test_any_setting_of_cross_layer_equalization_asks_for_it():
    """Even the default. The switch alone gives that of all layers at once."""
    assert recipe({**NPU, "include_cle": True}).equalize == GlobalEqualization()
    assert recipe({**NPU, "include_cle": True}, CLESteps=1).equalize == CrossLayer()
    assert recipe({**NPU, "include_cle": True}, CLEBalanceMethod="max").equalize == GlobalEqualization()


def test_switches_for_many_steps_at_once():
    assert set(recipe(NPU, SimulateDPU=False).without) == {
        *("round_leaky_slope", "sigmoid_to_hard_sigmoid", "scale_hard_sigmoid", "scale_pools", "scale_reduce_mean")
    }
    for name in ("NPULimitationCheck", "IPULimitationCheck"):
        without = recipe(NPU, **{name: False}).without
        assert {"shift_cut", "align_concat", "shift_swish"} <= set(without)
        assert len(without) == 10
        assert recipe(NPU, **{name: True}) == recipe(NPU)


def test_switches_that_ask_for_the_usual_change_nothing():
    for name in ("AdjustShiftCut", "ConvertSplitToSlice", "AlignConcat", "SimulateDPU"):
        assert recipe(NPU, **{name: True}) == recipe(NPU)
    for name in ("AdjustShiftCut", "ConvertSplitToSlice", "AlignConcat"):
        assert recipe(FLOAT, **{name: False}) == recipe(FLOAT)
    with pytest.warns(ScriptNote, match="AlignPool=True: the target cpu does not do that"):
        assert recipe(FLOAT, AlignPool=True) == recipe(FLOAT)


def test_a_rule_of_shifts_with_float_scales_names_the_method_and_not_what_is_said_already():
    asked = QuantizationConfig(enable_npu_cnn=True, extra_options={"AlignPool": True})
    with pytest.warns(ScriptNote, match="AlignPool=True: it is for .* power-of-two scales, which PowerOfTwoMethod"):
        translate(asked)


def test_activations_of_dynamic_operators_have_the_zero_points_that_they_find():
    asked = QuantizationConfig(use_dynamic_quant=True, extra_options={"ActivationSymmetric": True})
    with pytest.warns(ScriptNote, match="ActivationSymmetric=True: dynamic operators find the zero points"):
        found = translate(asked).recipe
    assert found == translate(QuantizationConfig(use_dynamic_quant=True)).recipe


def test_options_that_must_agree_with_others():
    assert recipe(NPU, CalibTensorRangeSymmetric=True) == recipe(NPU)
    assert recipe(FLOAT, CalibTensorRangeSymmetric=True) == recipe(FLOAT, ActivationSymmetric=True)
    assert recipe(NPU, CalibTensorRangeSymmetric=False) == recipe(NPU)
    assert recipe(FLOAT, SmoothQuant=True, SmoothQuantAlpha=0.3).smooth == 0.3
    assert recipe(FLOAT, **MINMSE, MinMSEModeFloatScale="Percentile").weight_method == MinMSE("Percentile")
    assert recipe(FLOAT, **MINMSE, MinMSEModeFloatScale="HistCenter").weight_method == MinMSE("All")


NO_EFFECT = [
    (FLOAT, {"UsePowerOf2Scale": True}, "UsePowerOf2Scale=True.*calibrate_method"),
    (NPU, {"ActivationSymmetric": False}, "fixed zero point"),
    (FLOAT, {"SmoothQuantAlpha": 0.3}, "no effect without SmoothQuant"),
    (FLOAT, {"MinMSEModeFloatScale": "All"}, "MinMSEModeFloatScale"),
    (FLOAT, {"MatMulNBitsParams": {"GroupSize": 32}}, "no effect without UseMatMulNBits=True"),
    (NPU, {"Percentile": 99.0}, "Percentile=99.0: .* Percentile, .* MinMSE"),
    (FLOAT, {"LWPMetric": "mse"}, "LWPMetric='mse': .* LayerwisePercentile"),
    (FLOAT, {"MinMSEModePof2Scale": "All"}, "is for MinMSE"),
    (FLOAT, {"BFPAttributes": {}}, "BFPAttributes: no tensor"),
    (NPU, {"BF16QDQToCast": True}, "BF16QDQToCast=True.*bfloat16"),
    (FLOAT, {"BF16WithClip": True}, "BF16WithClip=True.*bfloat16"),
    (FLOAT, {"ActivationScaled": True}, "ActivationScaled=True.*bfloat16"),
    (FLOAT, {"EnableVaimlBF16": True}, "EnableVaimlBF16=True.*bfloat16"),
    (FLOAT, {"NumBins": 1 << 20}, "NumBins"),
    (FLOAT, {"UseFP32Scale": False}, "UseFP32Scale=False"),
    (FLOAT, {"RemoveInputInit": False}, "RemoveInputInit=False"),
    (FLOAT, {"calibrate": 1}, "no option 'calibrate'"),
    (FLOAT, {"FastFinetune": {"NumIterations": 5}}, "FastFinetune .*include_fast_ft"),
    (FLOAT, {"AutoMixprecision": {"OutputIndex": 5}}, "AutoMixprecision .*include_auto_mp"),
]


@pytest.mark.parametrize(("fields", "options", "message"), NO_EFFECT)
def test_what_has_no_effect_beside_the_rest_is_noted(fields, options, message):
    with pytest.warns(ScriptNote, match=message):
        assert recipe(fields, **options) == recipe(fields)


def test_weights_in_bfloat16_alone():
    assert request(BF16, EnableVaimlBF16=True).conversions == ("float", ToBfloat16(form="simulated"))


def test_random_data():
    found = request(FLOAT, RandomDataReaderInputShape={"x": [1]}, RandomDataReaderInputDataRange={"x": [0, 9]})
    assert (found.random_shapes, found.random_ranges) == ({"x": [1]}, {"x": [0, 9]})


def test_formats_without_scales_need_no_calibration():
    assert request(BF16, CalibDataSize=1).limit is None
    assert request(BF16, CalibDataSize=1, ActivationScaled=True).limit == 1


def test_few_bits_have_parameters():
    found = recipe(FLOAT, UseMatMulNBits=True, MatMulNBitsParams={"GroupSize": 32, "Symmetric": False})
    assert found.weights == IntegerFormat("uint4", symmetric=False, granularity="per_group:32")
    learned = recipe(FLOAT, UseMatMulNBits=True, MatMulNBitsParams={"Algorithm": "GPTQ"})
    assert (learned.refinement, learned.weights.dtype) == (Gptq(), "int4")
    chosen = recipe(FLOAT, UseMatMulNBits=True, MatMulNBitsParams={"Algorithm": "HQQ"})
    assert (chosen.weight_method, chosen.weights.dtype) == (MinMSE(), "uint4")


def test_small_floats_are_pairs_of_casts_or_of_custom_operators():
    assert recipe(BF16, BF16QDQToCast=False).format == "extended-qdq"
    assert recipe(FLOAT, BF16QDQToCast=False) == recipe(FLOAT)


def test_tensors_take_the_scales_of_the_rest_of_the_model():
    override = recipe(
        {**NPU, "activation_type": ExtendedQuantType.QInt16, "enable_npu_cnn": False},
        TensorQuantOverrides={"x": [{"symmetric": True}]},
    )
    assert override.overrides[0].activations == IntegerFormat("int16", scale="power_of_two")
    assert override.overrides[0].weights == IntegerFormat("int8", scale="power_of_two")


def overridden(**entry):
    [override] = recipe(FLOAT, TensorQuantOverrides={"t": [entry]}).overrides
    return override


def test_a_zero_point_that_scales_of_powers_of_two_cannot_have_is_an_error():
    with pytest.raises(UsageError, match="must be 0"):
        recipe(
            {**NPU, "activation_type": QuantType.QInt8}, TensorQuantOverrides={"x": [{"scale": 0.5, "zero_point": 3}]}
        )


def test_scales_channels_and_small_types_of_single_tensors():
    sixteen = overridden(quant_type=QuantType.QUInt16, scale=np.array(2**-16, np.float32), zero_point=np.array(0))
    assert sixteen.range == (0, 65535 / 65536)
    params = sixteen.activations.fit(*sixteen.range)
    assert (params.scale, params.zero_point) == (2**-16, 0)
    signed = overridden(quant_type=QuantType.QInt8, symmetric=True, scale=0.5, zero_point=0)
    params = signed.activations.fit(*signed.range)
    assert (params.scale, params.zero_point) == (0.5, 0)
    shifted = overridden(quant_type=QuantType.QInt8, symmetric=True, scale=0.5, zero_point=3)
    params = shifted.activations.fit(*shifted.range)
    assert (params.scale, params.zero_point) == (0.5, 3)
    [of_arrays] = {overridden(scale=as_given(0.5), zero_point=as_given(3)).range for as_given in (float, np.atleast_1d)}
    assert of_arrays == (-65.5, 62.0)
    by_channel = overridden(axis=0, quant_type=QuantType.QInt8, symmetric=True)
    assert by_channel.formats == {"weights": IntegerFormat("int8", granularity="per_channel")}
    assert overridden(quant_type=QuantType.QInt4, symmetric=True).formats == {"weights": IntegerFormat("int4")}
    with pytest.warns(ScriptNote, match="'t': reduce_range=True: weights keep 8 bits"):
        assert recipe(FLOAT, TensorQuantOverrides={"t": [{"reduce_range": True}]}) == recipe(FLOAT)


def test_a_percentage_is_for_methods_that_cut():
    assert recipe(NPU, Percentile=99.0, MinMSEMode="Percentile").method == MinMSE("Percentile", 99.0)


def test_methods_of_weights():
    assert recipe(NPU, WeightCalibrateMethod=PowerOfTwoMethod.NonOverflow).weight_method == NonOverflow()
    assert recipe(ENTROPY, NumBins=None) == recipe(ENTROPY)


def test_without_activations_there_is_no_unit_for_wide_biases():
    assert recipe(FLOAT, WeightsOnly=True).biases is None
    assert recipe(FLOAT, WeightsOnly=True, Int16Bias=True).biases == IntegerFormat("int16")


REFUSED = [name for name, option in OPTIONS.items() if option.verdict == "refused"]
MET = [name for name, option in OPTIONS.items() if option.verdict == "met"]
NOTED = [name for name, option in OPTIONS.items() if option.verdict == "noted"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_option_is_named_with_what_to_do(name):
    with pytest.raises(UsageError, match=rf"{name}='something': .*\. \S.*\."):
        recipe(FLOAT, **{name: "something"})
    assert recipe(FLOAT, **{name: None}) == recipe(FLOAT)


@pytest.mark.parametrize("name", MET)
def test_a_met_option_changes_nothing_and_says_where_it_was_asked_for_another_thing(name):
    said = 0
    for value in (True, False, "something"):
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            assert recipe(FLOAT, **{name: value}) == recipe(FLOAT)
        said += len(notes)
        assert all(f"{name}={value!r}" in str(note.message) for note in notes)
    assert said < 3


@pytest.mark.parametrize("name", NOTED)
def test_a_noted_option_says_that_it_is_not_done(name):
    with pytest.warns(ScriptNote, match=f"{name}='something'"):
        assert recipe(FLOAT, **{name: "something"}) == recipe(FLOAT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert recipe(FLOAT, **{name: None}) == recipe(FLOAT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"QuantizeBias": "yes"}, "QuantizeBias='yes': it must be True or False"),
        ({"OpTypesToQuantize": "Conv"}, "OpTypesToQuantize='Conv'.*list"),
        ({"RemoveQDQBetweenOps": [("Conv",)]}, "expected pairs"),
        ({"RemoveQDQBetweenOps": "Conv,Relu"}, "RemoveQDQBetweenOps"),
        ({"FixShapes": "x=1,3"}, "expected 'input:"),
        ({"ConvertOpsetVersion": "21"}, "ConvertOpsetVersion='21'"),
        ({"WeightCalibrateMethod": PowerOfTwoMethod.MinMSE}, "not for weights"),
        ({"UseMatMulNBits": True, "MatMulNBitsParams": {"Bits": 3}}, "Bits 3"),
        ({"UseMatMulNBits": True, "MatMulNBitsParams": {"Size": 3}}, "no key 'Size'"),
        ({"UseMatMulNBits": True, "MatMulNBitsParams": {"Algorithm": "AWQ"}}, "AWQ"),
        ({"TensorQuantOverrides": {"x": [{"scale": 1.0}]}}, "'x': .*one of scale and zero_point"),
        ({"TensorQuantOverrides": {"x": [{"scal": 1.0}]}}, "'x': .*'scale'"),
        ({"TensorQuantOverrides": {"x": [{"convert": {}}]}}, "'x': 'convert'"),
        ({"TensorQuantOverrides": {"x": [{"rmin": 0, "rmax": 1}, {"rmin": 0, "rmax": 2}]}}, "one entry for each"),
        ({"TensorQuantOverrides": {"x": [{"rmin": 1.0}]}}, "one of rmin and rmax"),
        ({"TensorQuantOverrides": {"x": []}}, "one entry for each tensor"),
        ({"TensorQuantOverrides": {"x": {"rmin": 0, "rmax": 1}}}, "'x': .*list of dictionaries"),
        ({"TensorQuantOverrides": {"x": [{"rmin": 0, "rmax": "1 or so"}]}}, "'x': rmax is '1 or so': .*one number"),
        ({"TensorQuantOverrides": {"x": [{"scale": np.ones(2), "zero_point": 0}]}}, "'x': scale .*one number"),
        ({"TensorQuantOverrides": {"x": [{"scale": 1.0, "zero_point": 256}]}}, "zero_point .*-128 to 127"),
        ({"NumBins": "many"}, "NumBins='many'.*number"),
        ({"InputNodes": 5}, "InputNodes=5: it must be a list of names"),
        ({"TensorQuantOverrides": [1]}, "TensorQuantOverrides: .*type list"),
        ({"TensorsRangeFile": 1.5}, "TensorsRangeFile=1.5: .*type float"),
        ({"MinMSEModeFloatScale": ["All"]}, "MinMSEModeFloatScale: .*type list"),
        ({"CalibDataSize": 1.5}, "CalibDataSize=1.5.*whole number"),
    ],
)
def test_bad_values_are_named(options, message):
    with pytest.raises(UsageError, match=message):
        recipe(FLOAT, **options)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"bfp_method": "to_mx"}, "to_bfp, to_bfp_prime"),
        ({"bits": 3}, "no key 'bits'"),
        ({"axis": 0}, "axis 0"),
        ({"rounding_mode": 7}, "rounding_mode is 7"),
        ({"convert_to_bfloat_before_bfp": 1}, "convert_to_bfloat"),
    ],
)
def test_bad_attributes_of_blocks_are_named(attributes, message):
    with pytest.raises(UsageError, match=message):
        recipe(BFP, BFPAttributes=attributes)


def test_the_order_in_which_a_script_gives_options_does_not_matter():
    one = recipe(FLOAT, AlignConcat=True, AlignSlice=False, ActivationSymmetric=True)
    assert one == recipe(FLOAT, ActivationSymmetric=True, AlignSlice=False, AlignConcat=True)


def test_float_scales_for_the_npu_have_its_preparations():
    assert recipe(FLOAT, ConvertSplitToSlice=False, AlignConcat=True).without == ("split_to_slice",)
    assert recipe(FLOAT, ConvertSplitToSlice=True, AlignConcat=True) == recipe(FLOAT, AlignConcat=True)


def test_no_option_is_listed_twice():
    names = [option.name for section in SECTIONS.values() for option in section]
    assert len(names) == len(set(names))


def test_the_manual_is_up_to_date():
    assert (Path(__file__).parents[2] / "docs" / "options.md").read_text(encoding="utf-8") == page(), (
        "run `python -m tools.option_page docs/options.md`"
    )
