"""Formats of layers: those of the tensors that they read and write, as Quark has it."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from detent.compat.algorithms import AutoMixprecisionConfig
from detent.compat.configs import QConfig
from detent.compat.data_types import (
    BFloat16Spec,
    BFP16Spec,
    Int8Spec,
    Int16,
    Int16Spec,
    QLayerConfig,
    UInt8Spec,
    XInt8Spec,
)
from detent.compat.entry_points import AS_QUARK, ModelQuantizer
from detent.compat.enums import ExtendedQuantType, QuantType
from detent.compat.option_rows import ScriptNote
from detent.errors import UsageError
from tests.models import build, info, node, normal

INT8 = QLayerConfig(input_tensors=Int8Spec(), weight=Int8Spec())
WIDE = QLayerConfig(input_tensors=Int16Spec(), weight=Int8Spec())
FLOATS = QLayerConfig(input_tensors=BFloat16Spec(), weight=BFloat16Spec())
BLOCKS = QLayerConfig(input_tensors=BFP16Spec(), weight=BFP16Spec())


def chain():
    """Return three convolutions with activation functions between them."""
    nodes = [
        node("Conv", "x w0 b0", "c0", pads=[1, 1, 1, 1], name="conv0"),
        node("Relu", "c0", "r0", name="relu0"),
        node("Conv", "r0 w1 b1", "c1", pads=[1, 1, 1, 1], name="conv1"),
        node("Relu", "c1", "r1", name="relu1"),
        node("Conv", "r1 w2 b2", "y", pads=[1, 1, 1, 1], name="conv2"),
    ]
    weights = {f"w{n}": normal(8, 8, 3, 3) / 8 for n in range(3)} | {f"b{n}": normal(8) for n in range(3)}
    return build(nodes, "y", weights, [info("x", (1, 8, 8, 8))])


class Reader:
    def __init__(self):
        rng = np.random.default_rng(3)
        self.data = [{"x": rng.standard_normal((1, 8, 8, 8)).astype(np.float32)} for _ in range(4)]
        self.left = iter(self.data)

    def get_next(self):
        return next(self.left, None)


def quantized(layer=INT8, **more):
    return ModelQuantizer(QConfig(layer, PrintSummary=False, **more)).quantize_model(chain(), None, Reader())


def pairs(model):
    """Return the pairs behind each value, innermost last, and of each convolution what it reads and writes."""
    producers = {name: each for each in model.graph.node for name in each.output}
    initial = {each.name: onnx.numpy_helper.to_array(each).dtype for each in model.graph.initializer}

    def behind(value):
        found = []
        while (each := producers.get(value)) is not None and each.name not in {
            f"{kind}{n}" for kind in ("conv", "relu") for n in range(3)
        }:
            found += [str(initial[each.input[2]])] if each.op_type == "DequantizeLinear" else []
            found += [each.op_type] if each.op_type in ("Cast", "BFPQuantizeDequantize") else []
            value = each.input[0]
        return list(reversed(found))

    return {each.name: [behind(value) for value in each.input] for each in model.graph.node if each.op_type == "Conv"}


def read(model, layer):
    return pairs(model)[layer][0]


def snr(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    float_session = onnxruntime.InferenceSession(chain().SerializeToString())
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    feeds = Reader().data[0]
    [expected], [found] = float_session.run(None, feeds), session.run(None, feeds)
    return 10 * np.log10((expected**2).sum() / ((expected - found) ** 2).sum())


@pytest.mark.parametrize(
    "more",
    [
        {"specific_layer_config": {WIDE: ["conv1"]}},
        {"specific_layer_config": {WIDE: ["^conv1.*"]}},
        {"specific_layer_config": {WIDE: [(["conv1"], ["conv1"])]}},
        {"specific_layer_config": {QLayerConfig(output_tensors=Int16Spec()): ["relu0"]}},
        {"algo_config": [AutoMixprecisionConfig(WIDE, include_layers=["conv1"])]},
        {
            "layer_type_config": {WIDE: ["Conv"]},
            "TensorQuantOverrides": {t: [{"quant_type": QuantType.QInt8}] for t in ("x", "r1")},
        },
    ],
)
def test_the_tensor_that_a_layer_reads_has_its_format_and_no_other(more):
    """One pair of 16 bits from float, not one behind another of 8 bits; the rest of the model is as without it."""
    model = quantized(**more)
    assert read(model, "conv1") == ["int16"]
    assert [read(model, layer) for layer in ("conv0", "conv2")] == [["int8"], ["int8"]]
    kinds = [[each.op_type for each in made.graph.node] for made in (model, quantized())]
    assert kinds[0] == kinds[1]


def test_what_a_layer_writes_and_its_weights():
    wide = QLayerConfig(input_tensors=Int8Spec(), weight=Int16Spec(), output_tensors=Int16Spec())
    model = quantized(specific_layer_config={wide: ["conv1", "relu1"]})
    assert pairs(model)["conv1"][:2] == [["int8"], ["int16"]]
    assert read(model, "conv2") == ["int16"]


def test_a_type_stands_for_its_specification():
    model = quantized(specific_layer_config={Int16: ["conv1"]}, layer_type_config={None: ["Gemm"]})
    assert pairs(model)["conv1"] == [["int16"]] * 3


def test_pairs_of_both_formats_on_request():
    model = quantized(specific_layer_config={WIDE: ["conv1"]}, EnableDualQuantNodePairs=True)
    assert read(model, "conv1") == ["int8", "int16"]


@pytest.mark.parametrize("as_quark", [False, True])
@pytest.mark.parametrize("usual", [INT8, QLayerConfig(input_tensors=XInt8Spec(), weight=XInt8Spec())])
@pytest.mark.parametrize(
    ("layer", "kind"),
    [(FLOATS, "Cast"), (BLOCKS, "BFPQuantizeDequantize"), (QLayerConfig(BFP16Spec()), "BFPQuantizeDequantize")],
)
@pytest.mark.filterwarnings("ignore::detent.compat.option_rows.ScriptNote")
def test_floats_and_blocks_beside_integers(as_quark, usual, layer, kind):
    """A bias of int32 would be counted in the unit of products of codes, which there are none of."""
    token = AS_QUARK.set(as_quark)
    try:
        model = quantized(usual, specific_layer_config={layer: ["conv1"]})
    finally:
        AS_QUARK.reset(token)
    data, _, bias = pairs(model)["conv1"]
    assert {*data, *bias} == {kind}
    assert read(model, "conv2") == ["int8"]
    assert snr(model) > 20


def test_a_single_tensor_of_floats_before_a_layer_with_an_integer_bias():
    model = quantized(extra_options={"TensorQuantOverrides": {"r1": [{"quant_type": ExtendedQuantType.QBFloat16}]}})
    data, weights, bias = pairs(model)["conv2"]
    assert ({*data, *bias}, weights) == ({"Cast"}, ["int8"])
    assert pairs(model)["conv1"][2] == ["int32"]
    assert snr(model) > 20


@pytest.mark.parametrize("as_quark", [False, True])
@pytest.mark.parametrize("usual", [FLOATS, BLOCKS])
def test_integers_beside_floats_and_blocks(as_quark, usual):
    token = AS_QUARK.set(as_quark)
    try:
        model = quantized(usual, specific_layer_config={INT8: ["conv1"]})
    finally:
        AS_QUARK.reset(token)
    assert pairs(model)["conv1"][:2] == [["int8"], ["int8"]]
    assert "int8" not in read(model, "conv2")
    assert snr(model) > 25


def test_patterns_without_a_match_and_without_sense():
    with pytest.warns(ScriptNote, match="'\\^nothing.*' matches no node"):
        model = quantized(specific_layer_config={WIDE: ["^nothing.*"]})
    assert model == quantized()
    with pytest.raises(UsageError, match="not a regular expression"):
        quantized(specific_layer_config={WIDE: ["^conv.*("]})
    with pytest.raises(UsageError, match="A subgraph with formats of its own is"):
        quantized(specific_layer_config={WIDE: [(["conv0"],)]})


def test_unsigned_activations_keep_their_type():
    model = quantized(
        QLayerConfig(input_tensors=UInt8Spec(), weight=Int8Spec()), specific_layer_config={WIDE: ["conv1"]}
    )
    assert [read(model, f"conv{n}") for n in range(3)] == [["uint8"], ["int16"], ["uint8"]]
