from __future__ import annotations

import onnx
import pytest

import detent
from detent.emit.output_formats import check_formats
from detent.errors import ModelError, UsageError
from detent.recipe.file import with_settings
from detent.recipe.presets import PRESETS

NEWEST = onnx.defs.onnx_opset_version()

CONTRADICTIONS = {
    "powers of two and Entropy": ("XINT8", ["method=Entropy"], ("Entropy", "power-of-two")),
    "float scales and NonOverflow": ("A8W8", ["method=NonOverflow"], ("NonOverflow", "float scales")),
    "Distribution of integers": ("A8W8", ["method=Distribution"], ("Distribution", "int8")),
    "Distribution without a scale": (
        "A8W8",
        ["activations=float8_e4m3", "biases=float", "method=Distribution", "opset=19"],
        ("Distribution", "float8_e4m3", "scaled"),
    ),
    "Percentile of a float": (
        "A8W8",
        ["activations.type=bfloat16", "activations.scaled=true", "biases=float", "method=Percentile"],
        ("Percentile", "bfloat16 scaled", "MinMax"),
    ),
    "NPU and per channel": ("XINT8", ["weights.granularity=per_channel"], ("npu-cnn", "weights", "each channel")),
    "NPU and float scales": ("XINT8", ["weights.scale=float"], ("npu-cnn", "weights", "float scales")),
    "NPU and blocks": ("XINT8", ["activations=BFP16"], ("npu-cnn", "activations", "BFP16")),
    "NPU and an override": (
        "XINT8",
        ['overrides=[{nodes=["a"],activations="int16"}]'],
        ("npu-cnn", "activations for a", "float scales"),
    ),
    "QOperator and 16 bits": ("A16W8", ["format=qoperator"], ("activations", "int16", "qoperator")),
    "QOperator and groups": (
        "A8W8",
        ["weights.granularity=per_group:8", "biases=float", "opset=21", "format=qoperator"],
        ("weights", "qoperator"),
    ),
    "FixNeuron and uint8": ("XINT8", ["format=fix-neuron"], ("activations", "uint8", "fix-neuron")),
    "FixNeuron and float scales": (
        "A8W8",
        ["format=fix-neuron"],
        ("activations", "int8", "fix-neuron", "power-of-two"),
    ),
    "Cast and integers": ("BF16", ["weights=int8"], ("weights", "int8", "cast")),
    "bfloat16 and float16": ("FP16", ["format=bfloat16"], ("float16", "bfloat16")),
    "float8 at opset 18": (
        "BF16",
        ["format=qdq", "weights=float8_e5m2", "opset=18"],
        ("weights", "float8_e5m2", "opset 19", "opset is 18"),
    ),
    "float8 at no opset": ("BF16", ["format=qdq", "weights=float8_e5m2"], ("float8_e5m2", "opset 19")),
    "groups at opset 17": (
        "MATMUL_NBITS",
        ["opset=17"],
        ("weights", "per_group:128", "opset 21", "opset is 17"),
    ),
    "int32 biases and bfloat16 activations": (
        "A8W8",
        ["activations=bfloat16"],
        ("biases", "int32", "activations are bfloat16"),
    ),
    "int32 biases and float weights": ("A8W8", ["weights=float"], ("biases", "int32", "weights stay float")),
    "int32 biases and groups": (
        "A8W8",
        ["weights.granularity=per_group:8", "opset=21"],
        ("biases", "int32", "per_group:8"),
    ),
    "uint32 biases": ("A8W8", ["format=extended-qdq", "biases=uint32"], ("biases", "uint32", "symmetric int32")),
    "int32 biases off zero": ("A8W8", ["biases.symmetric=false"], ("biases", "int32", "symmetric")),
    "dynamic and overrides": (
        "UINT8_DYNAMIC_QUANT",
        ['overrides=[{nodes=["a"],weights="int8"}]'],
        ("dynamic", "overrides"),
    ),
    "dynamic and another format": ("UINT8_DYNAMIC_QUANT", ["format=qoperator"], ("dynamic", "format")),
    "dynamic and pairs": ("UINT8_DYNAMIC_QUANT", ["weight_pairs=true"], ("dynamic", "weight_pairs")),
    "bfloat16 and a part": ("BF16", ["format=bfloat16", "operators=Conv"], ("bfloat16", "operators", "format cast")),
    "bfloat16 and pairs": ("BF16", ["format=bfloat16", "weight_pairs=true"], ("bfloat16", "weight_pairs")),
    "bfloat16 and floats": ("BF16", ["format=bfloat16", "biases=float"], ("bfloat16", "biases stay float")),
    "a method for nothing": ("BF16", ["method=Entropy"], ("Entropy", "no activation has a scale")),
    "dynamic and a method": ("UINT8_DYNAMIC_QUANT", ["method=Percentile"], ("Percentile", "no activation has a scale")),
    "dynamic and int8": ("UINT8_DYNAMIC_QUANT", ["activations=int8"], ("dynamic", "uint8")),
    "dynamic and 16 bits": ("UINT8_DYNAMIC_QUANT", ["weights=int16"], ("dynamic", "8-bit")),
    "dynamic and a zero point for each channel": (
        "UINT8_DYNAMIC_QUANT",
        ["weights.granularity=per_channel", "weights.symmetric=false"],
        ("dynamic", "per_channel", "symmetric=False"),
    ),
    "dynamic and refinement": ("UINT8_DYNAMIC_QUANT", ["refinement=BiasCorrection"], ("dynamic", "refine")),
    "AdaRound and blocks": ("BFP16", ["refinement=AdaRound"], ("AdaRound", "BFP16")),
    "AdaRound and blocks in a part": (
        "A8W8_ADAROUND",
        ['overrides=[{op_types=["Conv"],weights="BFP16"}]', "biases=float"],
        ("AdaRound", "BFP16"),
    ),
    "asymmetric powers of two": ("XINT8", ["weights.symmetric=false"], ("power_of_two", "symmetric=False")),
    "activations per channel": ("A8W8", ["activations.granularity=per_channel"], ("activations", "per_channel")),
    "biases per group": ("A8W8", ["biases.granularity=per_group:4"], ("biases", "per_group:4")),
    "extended-qdq and int4": ("A8W8", ["format=extended-qdq", "weights=int4"], ("weights", "int4", "extended-qdq")),
    "extended-qdq and clip": (
        "BF16",
        ["format=extended-qdq", "activations.clip=true"],
        ("activations", "clipped", "extended-qdq"),
    ),
    "int4 activations": ("A8W8", ["activations=int4"], ("activations", "int4", "qdq")),
    "int32 weights": ("A8W8", ["weights=int32"], ("weights", "int32", "qdq")),
    "a step that there is not": ("XINT8", ["without=fold_batchnrm"], ("fold_batchnrm", "'fold_batch_norm'")),
    "a wish that there is not": ("XINT8", ["also=clip_to_rel"], ("clip_to_rel", "'clip_to_relu'")),
    "an operator that there is not": ("XINT8", ["more_operators=Logg"], ("more_operators", "'Logg'", "'Log'")),
    "an operator of an override": (
        "A8W8",
        ['overrides=[{op_types=["Conv", "Gem"],leave_float=true}]'],
        ("override of Conv; Gem", "'Gem'", "'Gemm'"),
    ),
    "an opset to come": ("XINT8", [f"opset={NEWEST + 1}"], (f"opset of recipe XINT8 is {NEWEST + 1}", str(NEWEST))),
    "no opset": ("XINT8", ["opset=0"], ("opset of recipe XINT8 is 0",)),
    "a target that there is not": ("XINT8", ["target=npu"], ("'npu'", "'npu-cnn'")),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_contradictions_are_refused_before_the_model_is_read(kind):
    name, settings, words = CONTRADICTIONS[kind]
    with pytest.raises(UsageError) as caught:
        detent.quantize("there is no such file.onnx", None, None, with_settings(PRESETS[name], settings))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("XINT8", ["opset=11"]),
        ("XINT8", ["activations=int8", "format=fix-neuron"]),
        ("A8W8", ["weights.granularity=per_group:8", "biases=float", "opset=21"]),
        ("A8W8", ["biases=float", "activations=float8_e4m3", "method=MinMax", "opset=19"]),
        ("A8W8", ['overrides=[{op_types=["Softmax"],activations="bfloat16"}]']),
        ("BF16", ["activations.clip=true"]),
        ("UINT8_DYNAMIC_QUANT", ["weights=int8", "weights.granularity=per_channel"]),
    ],
)
def test_what_is_no_contradiction(name, settings):
    recipe = with_settings(PRESETS[name], settings)
    check_formats(recipe)
    with pytest.raises(ModelError, match="no such file"):
        detent.quantize("there is no such file.onnx", None, None, recipe)


def test_the_whole_model_is_bfloat16_or_none_of_it():
    recipe = with_settings(PRESETS["BF16"], ["format=bfloat16"])
    for selection in ({"include": "a"}, {"exclude": "a"}, {"start": "a"}):
        with pytest.raises(UsageError, match="computes the whole model in bfloat16"):
            detent.quantize("there is no such file.onnx", None, None, recipe, **selection)
