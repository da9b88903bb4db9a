from __future__ import annotations

import importlib

import pytest

from detent.compat.algorithms import (
    AdaQuantConfig,
    AdaRoundConfig,
    AutoMixprecisionConfig,
    BiasCorrectionConfig,
    CLEConfig,
    GPTQConfig,
    QuarotConfig,
    SmoothQuantConfig,
)
from detent.compat.configs import QCONFIG_NAMES, QConfig
from detent.compat.data_types import (
    BFloat16Spec,
    BFP16Spec,
    Int8,
    Int8Spec,
    Int16Spec,
    MX6Spec,
    MX9Spec,
    MXInt8Spec,
    QLayerConfig,
    QTensorConfig,
    UInt8Spec,
    XInt8Spec,
)
from detent.compat.enums import CalibMethod, QuantGranularity, ScaleType
from detent.compat.layer_tensors import LayerFormats
from detent.compat.option_rows import ScriptNote
from detent.compat.translate import as_quark_writes, translate
from detent.equalizations import CrossLayer
from detent.errors import UsageError
from detent.methods import Entropy, LayerwisePercentile, MinMSE, NonOverflow, Percentile
from detent.numerics.blocks import BlockFloat, Microscaling
from detent.numerics.formats import IntegerFormat
from detent.recipe import Override
from detent.recipe.recipe import POWER_OF_TWO_INT8, PRESETS
from detent.refinements import AdaQuant, AdaRound, Gptq

custom_config = importlib.import_module("detent.compat.quark.onnx.quantization.config.custom_config")

INT8 = QLayerConfig(Int8Spec(), Int8Spec())


def named(layer, **formats):
    """Return what a specification of integers says of one layer."""
    part = Override(nodes=(layer,), leave_float=True, optional=True)
    return LayerFormats(part, {role: IntegerFormat(dtype) for role, dtype in formats.items()})


ENTROPY_LAYER = QLayerConfig(Int8Spec(calibration_method=CalibMethod.Entropy), Int8Spec())


def test_the_newer_xint8_is_signed_and_not_equalized():
    recipe = translate(custom_config.XINT8_QCONFIG).recipe
    assert recipe.replace(name="XINT8", description=PRESETS["XINT8"].description) == PRESETS["XINT8"].replace(
        activations=POWER_OF_TWO_INT8, equalize=False
    )


def test_the_newer_a8w8_takes_percentiles():
    recipe = translate(custom_config.A8W8_QCONFIG).recipe
    preset = as_quark_writes(PRESETS["A8W8"])
    expected = preset.replace(method=Percentile(), equalize=False)
    assert recipe.replace(name="A8W8", description=preset.description) == expected


def test_the_newer_vint8_and_blocks():
    vint8 = translate(custom_config.VINT8_QCONFIG)
    assert (vint8.recipe.target, vint8.recipe.all_operators) == ("npu-vaiml", True)
    assert translate(custom_config.BFP16_QCONFIG).recipe.weights == BlockFloat(rounding="half_away")


@pytest.mark.parametrize("name", QCONFIG_NAMES)
def test_constants_are_at_both_places_and_fresh(name):
    one = getattr(custom_config, name)
    one.extra_options["ForceQuantizeNoInputCheck"] = "changed"
    onnx = importlib.import_module("detent.compat.quark.onnx")
    assert getattr(onnx, name).extra_options.get("ForceQuantizeNoInputCheck") != "changed"
    refinement = translate(getattr(onnx, name)).recipe.refinement
    assert isinstance(refinement, AdaRound) == ("ADAROUND" in name)
    assert isinstance(refinement, AdaQuant) == ("ADAQUANT" in name)
    with pytest.raises(AttributeError, match="X_QCONFIG"):
        _ = custom_config.X_QCONFIG


def test_specifications_decide():
    def recipe(inputs, weight, **more):
        return translate(QConfig(QLayerConfig(input_tensors=inputs, weight=weight), **more)).recipe

    assert recipe(UInt8Spec(), Int8Spec()).activations == IntegerFormat("uint8", symmetric=False)
    assert recipe(Int8Spec(calibration_method=CalibMethod.Entropy), Int8Spec()).method == Entropy()
    assert recipe(Int8Spec(calibration_method=CalibMethod.MinMSE), Int8Spec()).method == MinMSE()
    assert recipe(XInt8Spec(calibration_method=CalibMethod.MinMax), XInt8Spec()).method == NonOverflow()
    per_channel = recipe(Int8Spec(), Int8Spec(quant_granularity=QuantGranularity.Channel))
    assert per_channel.weights.granularity == "per_channel"
    assert recipe(Int8Spec(), Int8Spec(calibration_method=CalibMethod.MinMSE)).weight_method == MinMSE()
    assert recipe(MX6Spec(), MX6Spec()).activations == BlockFloat(13, 16, 2)
    assert recipe(QTensorConfig(data_type=Int8), Int8Spec()).activations == IntegerFormat("int8")


@pytest.mark.parametrize(
    ("layer", "noted", "method", "scale"),
    [
        (QLayerConfig(XInt8Spec(), Int8Spec()), "scale_type Float32 of weights", MinMSE(), "power_of_two"),
        (QLayerConfig(Int8Spec(), XInt8Spec()), "scale_type PowerOf2 of weights", Percentile(), "float"),
        (
            QLayerConfig(XInt8Spec(calibration_method=CalibMethod.Percentile), XInt8Spec()),
            "Percentile with scale_type PowerOf2",
            Percentile(),
            "power_of_two",
        ),
        (
            QLayerConfig(XInt8Spec(calibration_method=CalibMethod.LayerwisePercentile), XInt8Spec()),
            "LayerwisePercentile with scale_type PowerOf2",
            LayerwisePercentile(),
            "power_of_two",
        ),
        (QLayerConfig(Int8Spec(), Int8Spec(), output_tensors=Int16Spec()), "output_tensors", Percentile(), "float"),
    ],
)
def test_scales_of_a_kind_that_the_other_specification_or_the_method_does_not_have(layer, noted, method, scale):
    with pytest.warns(ScriptNote, match=noted):
        recipe = translate(QConfig(layer)).recipe
    assert recipe.method == method
    assert recipe.weight_method in (None, MinMSE())
    assert {fmt.scale for fmt in (recipe.activations, recipe.weights)} == {scale}
    on_device = layer.activation.scale_type == layer.weight.scale_type == ScaleType.PowerOf2
    assert (recipe.target == "npu-cnn") == on_device


def test_algorithms():
    def recipe(*algorithms):
        return translate(QConfig(INT8, algo_config=list(algorithms))).recipe

    assert recipe().equalize is None
    assert recipe(CLEConfig()).equalize == CrossLayer()
    assert recipe(CLEConfig(cle_steps=2)).equalize == CrossLayer(steps=2)
    assert recipe(CLEConfig(cle_scale_use_threshold=False)).equalize == CrossLayer(threshold=0.0)
    assert recipe(SmoothQuantConfig(alpha=0.7)).smooth == 0.7
    assert recipe(QuarotConfig(use_random_had=True)).also == ("rotate_residuals",)
    assert recipe(BiasCorrectionConfig()) == recipe()
    assert recipe(AdaRoundConfig(num_iterations=9)).refinement.iterations == 9
    assert recipe(GPTQConfig(act_order=True)).refinement == Gptq()
    mixed = AutoMixprecisionConfig(QLayerConfig(Int16Spec(), Int8Spec()), include_layers=["head"])
    assert translate(QConfig(INT8, algo_config=[mixed])).layers == (named("head", activations="int16", weights="int8"),)
    for algorithm, message in ((AutoMixprecisionConfig(["A8W8"]), "TargetLayerConfig"),):
        with pytest.raises(UsageError, match=message):
            recipe(algorithm)
    with pytest.raises(UsageError, match="both AdaRoundConfig and AdaQuantConfig"):
        recipe(AdaRoundConfig(), AdaQuantConfig())


def test_layers_and_exclusions():
    request = translate(
        QConfig(
            INT8,
            specific_layer_config={QLayerConfig(input_tensors=Int16Spec(), weight=Int8Spec()): ["head"]},
            layer_type_config={None: ["Softmax"], QLayerConfig(weight=BFP16Spec()): ["Gemm"]},
            exclude=["/stem/conv", "^/aux.*", (["a"], ["b"])],
        )
    )
    assert request.exclude == ("/stem/conv",)
    assert request.patterns == ("^/aux.*",)
    assert request.recipe.overrides == (
        Override(between=(("a",), ("b",)), leave_float=True),
        Override(op_types=("Softmax",), leave_float=True, optional=True),
    )
    gemm = Override(op_types=("Gemm",), leave_float=True, optional=True)
    assert request.layers == (
        LayerFormats(gemm, {"weights": BlockFloat(rounding="half_away")}),
        named("head", activations="int16", weights="int8"),
    )


def test_the_method_of_the_model_calibrates_its_layers_too():
    with pytest.warns(ScriptNote, match="Entropy of a layer: Percentile calibrates the whole model"):
        request = translate(QConfig(INT8, specific_layer_config={ENTROPY_LAYER: ["head"]}))
    assert request.recipe.method == Percentile(99.999)


def test_nothing_that_a_specification_says_is_lost():
    def of(*layer, **more):
        return translate(QConfig(QLayerConfig(*layer), **more)).recipe

    blocks = of(MX9Spec(), MX6Spec())
    assert (blocks.activations.bit_width, blocks.weights.bit_width) == (16, 13)
    assert isinstance(of(MX9Spec(), MXInt8Spec()).weights, Microscaling)
    assert of(Int8Spec(), Int8Spec(), None, Int16Spec()).biases == IntegerFormat("int16")
    assert of(Int8Spec(), Int8Spec(calibration_method=CalibMethod.Entropy)).weight_method == Entropy()
    whole = of(XInt8Spec(), XInt8Spec(calibration_method=CalibMethod.MinMax))
    assert (whole.method, whole.weight_method) == (MinMSE(), NonOverflow())
    fine = QLayerConfig(weight=Int8Spec(quant_granularity=QuantGranularity.Channel))
    [per_channel] = translate(QConfig(INT8, specific_layer_config={fine: ["head"]})).layers
    assert per_channel.formats["weights"] == IntegerFormat("int8", granularity="per_channel")
    integers_beside_floats = of(BFloat16Spec(), BFloat16Spec(), specific_layer_config={ENTROPY_LAYER: ["head"]})
    assert integers_beside_floats.method == Entropy()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: QConfig(QLayerConfig(weight=Int8Spec())), "global_config needs both"),
        (
            lambda: QConfig(QLayerConfig(XInt8Spec(calibration_method=CalibMethod.Entropy), XInt8Spec())),
            "not for PowerOf2",
        ),
        (lambda: QConfig(QLayerConfig(Int8Spec(), Int8Spec(quant_granularity=QuantGranularity.Group))), "Group"),
        (
            lambda: QConfig(QLayerConfig(Int8Spec(scale_type=ScaleType.Int16), Int8Spec(scale_type=ScaleType.Int16))),
            "Int16",
        ),
        (
            lambda: QConfig(QLayerConfig(Int8Spec(quant_granularity=QuantGranularity.Channel), Int8Spec())),
            "for weights",
        ),
        (lambda: QConfig(INT8, algo_config=["cle"]), "algo_config lists 'cle'"),
        (lambda: QConfig(INT8, {INT8: [(["a"],)]}), "A subgraph with formats of its own is"),
        (lambda: QConfig(INT8, exclude=[3]), "A subgraph to exclude is 3"),
    ],
)
def test_what_cannot_be_had_is_named(config, message):
    with pytest.raises(UsageError, match=message):
        translate(config())


def test_options_by_keyword_and_in_a_dictionary_are_the_same():
    by_keyword = QConfig(INT8, AlignConcat=True)
    in_dictionary = QConfig(INT8, extra_options={"AlignConcat": True})
    assert by_keyword == in_dictionary
    assert translate(by_keyword) == translate(in_dictionary)
    assert "QConfig(global_config=" in str(by_keyword)
