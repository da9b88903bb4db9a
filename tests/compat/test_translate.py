from __future__ import annotations

import dataclasses

import pytest

from detent.compat import translate as module
from detent.compat.algorithms import AdaRoundConfig
from detent.compat.configs import PRESET_FIELDS, Config, QConfig, QuantizationConfig, get_default_config
from detent.compat.data_types import Int8Spec, QLayerConfig
from detent.compat.enums import (
    CalibrationMethod,
    ExtendedQuantFormat,
    ExtendedQuantType,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
    QuantFormat,
    QuantType,
    VitisQuantFormat,
    VitisQuantType,
)
from detent.compat.option_rows import ScriptNote
from detent.compat.translate import as_quark_writes, translate
from detent.equalizations import GlobalEqualization
from detent.errors import UsageError
from detent.methods import LayerwisePercentile, MinMax, MinMSE, NonOverflow, Percentile
from detent.numerics.formats import IntegerFormat
from detent.recipe import Override
from detent.recipe.recipe import PRESETS
from detent.refinements import AdaRound, QuickRounding

SEARCHED = {name for name in PRESET_FIELDS if "MIXED" in name}
"""Quark chooses formats by searching there; Detent's presets are what it settles on."""

OTHER_METHOD = {name for name in PRESET_FIELDS if name.startswith("A8W8")}
"""Quark's preset says MinMax, Detent's clips what costs less than it gains."""


OF_TENSORS = ("S16S16_MIXED_S8S8",)
"""Quark's preset has other formats for the tensors of layers; Detent's converts before these and behind them."""


def _without_layers(name):
    preset = as_quark_writes(PRESETS[name])
    return preset.replace(overrides=()) if name in OF_TENSORS else preset


@pytest.mark.parametrize("name", PRESET_FIELDS)
def test_a_preset_is_the_preset_of_that_name(name):
    for spelling in (name, f"{name}_CONFIG", name.lower()):
        request = translate(Config(get_default_config(spelling)))
        assert request.recipe == _without_layers(name)
        assert [each.formats for each in request.layers] == [
            each.formats for each in PRESETS[name].overrides if name in OF_TENSORS
        ]


@pytest.mark.parametrize("name", sorted(set(PRESET_FIELDS) - SEARCHED))
def test_the_fields_of_a_preset_alone_say_the_same(name, monkeypatch):
    monkeypatch.setattr(module, "_named", lambda request, config: request.recipe)
    preset = as_quark_writes(PRESETS[name])
    recipe = translate(QuantizationConfig(**PRESET_FIELDS[name])).recipe
    if name in OTHER_METHOD:
        assert (recipe.method, preset.method) == (MinMax(), MinMSE())
        recipe = recipe.replace(method=preset.method)
    assert recipe.replace(name=preset.name, description=preset.description) == preset


@pytest.mark.parametrize("name", PRESET_FIELDS)
def test_what_is_printed_or_left_out_does_not_change_the_recipe(name):
    config = get_default_config(name)
    config.print_summary = False
    config.nodes_to_exclude = ["head"]
    assert translate(config).recipe == _without_layers(name)


def test_a_script_gets_the_tensors_that_quark_writes():
    recipe = translate(Config(get_default_config("A8W8"))).recipe
    assert (recipe.weights, recipe.smooth, recipe.widen) == (IntegerFormat("int8"), None, None)
    config = get_default_config("A8W8")
    config.per_channel = True
    assert translate(config).recipe.weights == IntegerFormat("int8", granularity="per_channel")


@pytest.mark.parametrize(
    "changed",
    [
        {"enable_npu_cnn": True},  # it is for that device already
        {"subgraphs_to_exclude": [(["a"], ["b"])]},
        {"extra_options": {"TmpDir": "there", "UseRandomData": True}},
        {"extra_options": {"ConvertOpsetVersion": 21}},
    ],
)
def test_what_changes_no_numbers_leaves_a_preset_its_method(changed):
    config = get_default_config("A8W8")
    changed = {**changed, "extra_options": {**config.extra_options, **changed.get("extra_options", {})}}
    recipe = translate(dataclasses.replace(config, **changed)).recipe
    assert recipe.replace(overrides=(), opset=None) == as_quark_writes(PRESETS["A8W8"])
    assert len(recipe.overrides) == ("subgraphs_to_exclude" in changed)
    assert recipe.opset == changed["extra_options"].get("ConvertOpsetVersion")


def test_a_configuration_that_says_minmax_itself_keeps_it():
    options = {"ActivationSymmetric": True, "AlignConcat": True, "AlignSlice": False}
    recipe = translate(QuantizationConfig(calibrate_method=CalibrationMethod.MinMax, extra_options=options)).recipe
    assert recipe.method == MinMax()
    config = get_default_config("A8W8")
    config.include_cle = False
    assert translate(config).recipe.method == MinMax()


def test_every_preset_has_its_fields():
    assert set(PRESET_FIELDS) == set(PRESETS)
    with pytest.raises(UsageError, match="no preset 'XINT9'. Did you mean 'XINT8'"):
        get_default_config("XINT9")


def test_a_preset_is_handed_out_afresh():
    one = get_default_config("XINT8_ADAROUND")
    one.extra_options["FastFinetune"]["NumIterations"] = 3
    one.include_cle = False
    assert get_default_config("XINT8_ADAROUND").extra_options["FastFinetune"]["NumIterations"] == 1000
    changed = translate(one).recipe
    assert changed.refinement.iterations == 3
    assert changed.equalize is None
    assert changed.name == "custom"


def test_the_tutorials_configuration_for_the_npu():
    recipe = translate(
        QuantizationConfig(
            calibrate_method=PowerOfTwoMethod.MinMSE,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            enable_npu_cnn=True,
            extra_options={"ActivationSymmetric": True},
        )
    ).recipe
    assert recipe == PRESETS["XINT8"]


def test_the_tutorials_configuration_for_fine_tuning():
    config = QuantizationConfig(
        calibrate_method=CalibrationMethod.Percentile,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        include_fast_ft=True,
        extra_options={"Percentile": 99.9999, "FastFinetune": {"OptimAlgorithm": "adaround", "NumIterations": 7}},
    )
    recipe = translate(config).recipe
    assert recipe.activations == IntegerFormat("uint8", symmetric=False)
    assert recipe.weights == IntegerFormat("int8")
    assert recipe.biases == IntegerFormat("int32")
    assert recipe.method == Percentile(99.9999)
    assert recipe.refinement == AdaRound(iterations=7)
    assert (recipe.target, recipe.equalize) == ("cpu", GlobalEqualization())


@pytest.mark.parametrize("family", [QuantType, ExtendedQuantType, VitisQuantType])
def test_types_of_any_family(family):
    recipe = translate(QuantizationConfig(activation_type=family.QUInt8, weight_type=family.QInt8)).recipe
    assert (recipe.activations.dtype, recipe.weights.dtype) == ("uint8", "int8")


def test_types_of_onnxruntime_itself():
    from onnxruntime import quantization as real

    config = QuantizationConfig(
        calibrate_method=real.CalibrationMethod.Percentile,
        quant_format=real.QuantFormat.QOperator,
        activation_type=real.QuantType.QUInt8,
        weight_type=real.QuantType.QInt8,
    )
    recipe = translate(config).recipe
    assert (recipe.method, recipe.format, recipe.activations.dtype) == (Percentile(), "qoperator", "uint8")


@pytest.mark.parametrize(
    ("method", "expected", "scale"),
    [
        (PowerOfTwoMethod.MinMSE, MinMSE(), "power_of_two"),
        (PowerOfTwoMethod.NonOverflow, NonOverflow(), "power_of_two"),
        (CalibrationMethod.MinMax, MinMax(), "float"),
        (Int16Method.MinMax, MinMax(), "int16"),
        (LayerWiseMethod.LayerWisePercentile, LayerwisePercentile(), "float"),
    ],
)
def test_methods_decide_the_scales(method, expected, scale):
    recipe = translate(QuantizationConfig(calibrate_method=method)).recipe
    assert recipe.method == expected
    assert {fmt.scale for fmt in recipe.formats.values()} == {scale}


SIXTEEN = {
    "calibrate_method": PowerOfTwoMethod.MinMSE,
    "activation_type": ExtendedQuantType.QInt16,
    "weight_type": ExtendedQuantType.QInt16,
}


def test_the_device_that_shifts_computes_with_8_bits():
    with pytest.warns(ScriptNote, match="enable_npu_cnn=True is for 8 bits, .* int16 activations and int16 weights"):
        translate(QuantizationConfig(enable_npu_cnn=True, **SIXTEEN))
    bf16 = get_default_config("BF16")
    bf16.enable_npu_cnn = True
    with pytest.warns(ScriptNote, match="enable_npu_cnn=True is for integers"):
        assert translate(bf16).recipe == translate(get_default_config("BF16")).recipe


@pytest.mark.parametrize(
    ("fields", "target", "written"),
    [
        ({"enable_npu_cnn": True, "calibrate_method": PowerOfTwoMethod.MinMSE}, "npu-cnn", "qdq"),
        ({"calibrate_method": PowerOfTwoMethod.MinMSE}, "npu-vaiml", "qdq"),
        ({"enable_npu_cnn": True}, "npu-float-scale", "qdq"),
        (
            {"calibrate_method": PowerOfTwoMethod.MinMSE, "quant_format": VitisQuantFormat.FixNeuron},
            "npu-cnn",
            "fix-neuron",
        ),
        ({"calibrate_method": PowerOfTwoMethod.MinMSE, "quant_format": VitisQuantFormat.QDQ}, "npu-cnn", "vitis-qdq"),
        ({"quant_format": QuantFormat.QOperator}, "cpu", "qoperator"),
        ({**SIXTEEN, "quant_format": VitisQuantFormat.QDQ}, "npu-vaiml", "vitis-qdq"),
        (SIXTEEN, "npu-vaiml", "qdq"),
        ({"quant_format": ExtendedQuantFormat.QDQ}, "cpu", "qdq"),
        ({"extra_options": {"AlignConcat": True}}, "npu-float-scale", "qdq"),
        (
            {"activation_type": ExtendedQuantType.QBFloat16, "weight_type": ExtendedQuantType.QBFloat16},
            "npu-bf16",
            "cast",
        ),
    ],
)
def test_target_and_output_format(fields, target, written):
    recipe = translate(QuantizationConfig(**fields)).recipe
    assert (recipe.target, recipe.format) == (target, written)


def test_fields_beside_the_recipe():
    request = translate(
        QuantizationConfig(
            input_nodes=["a"],
            output_nodes=["b"],
            nodes_to_quantize=["c"],
            nodes_to_exclude=["d", "^/head/.*"],
            subgraphs_to_exclude=[(["e"], ["f", "g"])],
            op_types_to_quantize=["Conv"],
            extra_op_types_to_quantize=["Exp"],
            execution_providers=["CUDAExecutionProvider"],
            use_external_data_format=True,
            per_channel=True,
            print_summary=False,
            include_sq=True,
        )
    )
    assert (request.start, request.end, request.include) == (("a",), ("b",), ("c",))
    assert (request.exclude, request.patterns) == (("d",), ("^/head/.*",))
    assert request.recipe.overrides == (Override(between=(("e",), ("f", "g")), leave_float=True),)
    assert (request.recipe.operators, request.recipe.more_operators) == (("Conv",), ("Exp",))
    assert request.providers == ("CUDAExecutionProvider",)
    assert (request.external_data, request.summary) == (True, False)
    assert request.recipe.weights.granularity == "per_channel"
    assert request.recipe.smooth == 0.5


def test_accuracy_steps_are_on_unless_they_are_switched_off():
    usual = translate(QuantizationConfig()).recipe
    assert (usual.equalize, usual.refinement) == (GlobalEqualization(), QuickRounding())
    without = translate(QuantizationConfig(include_cle=False, extra_options={"BiasCorrection": False})).recipe
    assert (without.equalize, without.refinement) == (None, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"crypto_mode": True}, "crypto_mode"),
        ({"calibrate_method": "MinMax"}, "calibrate_method is 'MinMax'"),
        ({"quant_format": "QDQ"}, "quant_format is 'QDQ'"),
        ({"activation_type": "int8"}, "'int8' is not a number format"),
        ({"nodes_to_exclude": ["^/head/.*("]}, "not a regular expression"),
        ({"include_auto_mp": True}, "AutoMixprecision|TargetLayerConfig"),
    ],
)
def test_what_cannot_be_had_is_named(fields, message):
    if fields == {"include_auto_mp": True}:
        fields = {**fields, "extra_options": {"AutoMixprecision": {"TargetLayerConfig": "Int8"}}}
    with pytest.raises(UsageError, match=message):
        translate(QuantizationConfig(**fields))


BLOCKS = {"activation_type": ExtendedQuantType.QBFP, "weight_type": ExtendedQuantType.QBFP}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reduce_range": True}, "reduce_range"),
        ({"debug_mode": True}, "debug_mode"),
        ({"extra_options": {"MixedPrecisionTensor": {"a": []}}}, "without specific_tensor_precision=True"),
        ({"extra_options": {"ActivationSymetric": True}}, "'ActivationSymetric'. Did you mean 'ActivationSym"),
        ({"extra_options": {"FastFinetune": {"DataSize": 1}}}, "FastFinetune has no effect without include_fast_ft"),
        ({**BLOCKS, "per_channel": True}, "per_channel"),
    ],
)
def test_what_the_result_is_right_without_is_noted(fields, message):
    usual = BLOCKS if "activation_type" in fields else {}
    with pytest.warns(ScriptNote, match=message):
        assert translate(QuantizationConfig(**fields)).recipe == translate(QuantizationConfig(**usual)).recipe


def test_only_configurations_are_translated():
    with pytest.raises(UsageError, match="found str"):
        translate(Config("XINT8"))


def test_a_configuration_prints_its_recipe_and_what_was_said():
    text = str(Config(get_default_config("A16W8")))
    for words in ("Recipe A16W8", "activations  int16, symmetric", "npu-float-scale", "AlignEltwiseQuantType"):
        assert words in text
    assert "No recipe: crypto_mode" in str(QuantizationConfig(crypto_mode=True))
    assert "Recipe XINT8:" in str(QConfig.get_default_config("XINT8"))


@pytest.mark.parametrize(
    ("config", "slip", "meant"),
    [
        (get_default_config("XINT8"), "node_to_exclude", "nodes_to_exclude"),
        (QConfig.get_default_config("XINT8"), "global_quantconfig", "global_quant_config"),
        (AdaRoundConfig(), "num_iteration", "num_iterations"),
        (Int8Spec(), "symetric", "symmetric"),
    ],
)
def test_a_field_that_there_is_not_is_noted_when_it_is_set(config, slip, meant):
    with pytest.warns(ScriptNote, match=f"'{slip}': setting it changes nothing. Did you mean '{meant}'"):
        setattr(config, slip, 1)


def test_every_field_is_in_the_record():
    # The names and the order of Quark's configuration, which scripts may rely on by position.
    names = [field.name for field in dataclasses.fields(QuantizationConfig)]
    assert len(names) == 33
    assert names[:4] == ["calibrate_method", "quant_format", "activation_type", "weight_type"]
    assert names[-3:] == ["ignore_warnings", "log_severity_level", "extra_options"]
    assert QuantizationConfig().include_cle is True
    assert QuantizationConfig().optimize_model is True


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"include_auto_mp": True}, "include_auto_mp=True has no effect without the option AutoMixprecision"),
        ({"specific_tensor_precision": True}, "no effect without the option MixedPrecisionTensor"),
        ({"subgraphs_to_exclude": ["head"]}, "A subgraph to exclude is 'head'"),
        ({"subgraphs_to_exclude": [3]}, "A subgraph to exclude is 3"),
        ({"nodes_to_exclude": "conv1"}, "nodes_to_exclude='conv1': it must be a list of names"),
        ({"op_types_to_quantize": 5}, "op_types_to_quantize=5: it must be a list of names"),
        ({"op_types_to_quantize": "Conv"}, "op_types_to_quantize='Conv': it must be a list of names"),
    ],
)
def test_what_would_have_no_effect_is_an_error(fields, message):
    with pytest.raises(UsageError, match=message):
        translate(QuantizationConfig(**fields))


def test_a_single_name_is_no_list():
    layer = QLayerConfig(activation=Int8Spec(), weight=Int8Spec())
    with pytest.raises(UsageError, match="exclude='conv1': it must be a list"):
        translate(QConfig(layer, exclude="conv1"))


def test_as_quark_leaves_means_without_their_dimensions():
    for name in ("XINT8", "A8W8"):
        config = Config(get_default_config(name))
        assert {"keep_mean_dims", "float_concats", "pool_positions"} <= {
            *translate(config, as_quark=True).recipe.without
        }
        assert "keep_mean_dims" not in translate(config).recipe.without
