from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from detent.prepare import WriteAttributes, prepare
from tests.prepare.equivalence import check, f32, make, node, run


@pytest.mark.parametrize("spatial", [(7,), (7, 6), (5, 4, 6)])
@pytest.mark.parametrize("opset", [17, 18, 21])
def test_conv_defaults(spatial, opset):
    kernel = [3, 2, 1][: len(spatial)]
    proto = make([node("Conv", "x w", "y")], {"x": [1, 2, *spatial]}, {"y": None}, {"w": f32(4, 2, *kernel)}, opset)
    done = check(WriteAttributes(), proto, exact=True)
    ones = [1] * len(spatial)
    want = {"kernel_shape": kernel, "strides": ones, "dilations": ones, "pads": [0] * 2 * len(spatial), "group": 1}
    assert done.attributes("Conv") == want


@pytest.mark.parametrize("opset", [17, 18, 19, 21])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pool_defaults_follow_the_opset(opset, op):
    done = check(
        WriteAttributes(),
        make([node(op, "x", "y", kernel_shape=[2, 3])], {"x": [1, 2, 7, 6]}, {"y": None}, {}, opset),
        exact=True,
    )
    want = {"kernel_shape": [2, 3], "strides": [1, 1], "pads": [0] * 4}
    want |= {"ceil_mode": 0}
    if op == "MaxPool":
        want |= {"storage_order": 0} if opset >= 8 else {}
        want |= {"dilations": [1, 1]}
    else:
        want |= {"count_include_pad": 0}
    assert done.attributes(op) == want


@pytest.mark.parametrize(("dilations", "kept"), [([1, 1], False), ([2, 1], True)])
def test_an_average_pool_keeps_real_dilations_only(dilations, kept):
    pool = node("AveragePool", "x", "y", kernel_shape=[2, 2], dilations=dilations)
    done = check(WriteAttributes(), make([pool], {"x": [1, 2, 7, 6]}, {"y": None}, {}, 19), exact=True)
    assert ("dilations" in done.attributes("AveragePool")) == kept


def test_conv_transpose_defaults():
    proto = make(
        [node("ConvTranspose", "x w", "y", strides=[2, 2])], {"x": [1, 2, 4, 5]}, {"y": None}, {"w": f32(2, 3, 3, 2)}
    )
    found = check(WriteAttributes(), proto, exact=True).attributes("ConvTranspose")
    want = {"kernel_shape": [3, 2], "strides": [2, 2], "dilations": [1, 1], "pads": [0] * 4, "group": 1}
    assert found == {**want, "output_padding": [0, 0]}


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("kernel", [(1, 1), (2, 3), (3, 4), (5, 2)])
@pytest.mark.parametrize("strides", [[1, 1], [2, 3], [3, 2]])
def test_auto_pad_of_conv(mode, kernel, strides):
    conv = node("Conv", "x w", "y", auto_pad=mode, strides=strides)
    done = check(
        WriteAttributes(), make([conv], {"x": ["N", 2, 11, 10]}, {"y": None}, {"w": f32(3, 2, *kernel)}), rtol=1e-6
    )
    assert "auto_pad" not in done.attributes("Conv")
    assert len(done.attributes("Conv")["pads"]) == 4


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "upper", "lower"),
    [
        (11, 3, 1, 2, [2, 2], [2, 2]),
        (11, 2, 1, 3, [1, 2], [2, 1]),
        (11, 4, 2, 2, [3, 3], [3, 3]),
        (10, 4, 3, 2, [3, 3], [3, 3]),
        (10, 2, 2, 3, [1, 1], [1, 1]),
        (10, 2, 4, 1, [0, 0], [0, 0]),
        (9, 2, 4, 1, [0, 1], [1, 0]),
    ],
)
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_auto_pad_with_dilation_which_onnxruntime_does_not_run(size, kernel, stride, dilation, upper, lower, mode):
    conv = node("Conv", "x w", "y", auto_pad=mode, strides=[stride], dilations=[dilation])
    model = ir.from_proto(make([conv], {"x": [1, 2, size]}, {"y": None}, {"w": f32(3, 2, kernel)}))
    prepare(model, [WriteAttributes()])
    after = ir.to_proto(model)
    pads = {a.name: list(a.ints) for a in after.graph.node[0].attribute}["pads"]
    assert pads == (upper if mode == "SAME_UPPER" else lower)
    assert run(after, {"x": f32(1, 2, size)})["y"].shape[2] == -(-size // stride)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("strides", [[1, 1], [2, 3], [3, 2]])
@pytest.mark.parametrize("count", [0, 1])
def test_auto_pad_of_pools(op, mode, strides, count):
    more = {"count_include_pad": count} if op == "AveragePool" else {}
    pool = node(op, "x", "y", auto_pad=mode, kernel_shape=[3, 2], strides=strides, **more)
    done = check(WriteAttributes(), make([pool], {"x": [1, 2, 9, 8]}, {"y": None}), rtol=1e-6)
    assert "auto_pad" not in done.attributes(op)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("kernel", "odd"), [((4, 4), False), ((3, 4), True)])
def test_auto_pad_of_conv_transpose(mode, kernel, odd):
    up = node("ConvTranspose", "x w", "y", auto_pad=mode, strides=[2, 2])
    done = check(WriteAttributes(), make([up], {"x": [1, 2, 5, 5]}, {"y": None}, {"w": f32(2, 3, *kernel)}), rtol=1e-6)
    assert ("auto_pad" in done.attributes("ConvTranspose")) == odd
    assert ("odd padding" in done.why) == odd


def test_declines():
    conv = node("Conv", "x w", "y", auto_pad="SAME_UPPER")
    done = check(
        WriteAttributes(),
        make([conv], {"x": [1, 2, "H", 8]}, {"y": None}, {"w": f32(3, 2, 3, 3)}),
        {"x": f32(1, 2, 6, 8)},
        exact=True,
    )
    assert "static height and width" in done.why
    assert done.attributes("Conv")["auto_pad"] == b"SAME_UPPER"
    assert done.attributes("Conv")["kernel_shape"] == [3, 3], "the rest is written all the same"
    up = node("ConvTranspose", "x w", "y", output_shape=[9, 9], strides=[2, 2])
    done = check(WriteAttributes(), make([up], {"x": [1, 2, 4, 4]}, {"y": None}, {"w": f32(2, 3, 3, 3)}), exact=True)
    assert "output_shape" in done.why
    pool = node("MaxPool", "x", "y", auto_pad="SAME_UPPER", kernel_shape=[2, 2], ceil_mode=1)
    assert "ceil_mode" in check(WriteAttributes(), make([pool], {"x": [1, 2, 4, 4]}, {"y": None}), exact=True).why


def test_weight_of_unknown_shape():
    nodes = [node("Reshape", "v s", "w"), node("Conv", "x w", "y")]
    proto = make(nodes, {"x": [1, 2, 4, 4], "v": [2 * 2 * 9]}, {"y": [1, 2, 2, 2]}, {"s": np.array([2, 2, 3, 3])})
    assert "weight is not known" in check(WriteAttributes(), proto, exact=True).why
