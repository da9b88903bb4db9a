"""What leads from an input to a Log stays float: a grid of equal steps has no codes for the quiet parts of a sound."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

import detent
from detent.plan.select import SIGNAL_REASON, find_signals
from tests.models import build, info, node, normal

WAVES = {
    "re": normal(8, 1, 16, seed=1),
    "im": normal(8, 1, 16, seed=2),
    "mel": np.abs(normal(8, 4, seed=3)),
    "w": normal(4, 2, seed=4),
    "low": np.float32(1e-10),
    "zero": np.float32(0),
    "six": np.float32(6),
    "two": np.float32(2),
    "last": np.array([-1], np.int64),
}
POWER = [
    *(node("Conv", "x re", "a", strides=[8], name="real"), node("Conv", "x im", "b", strides=[8], name="imaginary")),
    *(node("Mul", "a a", "aa", name="square"), node("Pow", "b two", "bb", name="power")),
    *(node("Add", "aa bb", "p", name="sum"), node("Transpose", "p", "t", perm=[0, 2, 1], name="turn")),
]
SQUARES = [
    *(node("Conv", "x re", "a", strides=[8], name="real"), node("Unsqueeze", "a last", "u", name="unsqueeze")),
    *(
        node("ReduceSumSquare", "u", "p", axes=[-1], keepdims=0, name="squares"),
        node("Transpose", "p", "t", perm=[0, 2, 1], name="turn"),
    ),
]
MEL = [*POWER, node("MatMul", "t mel", "m", name="mel")]
ENDS = {
    "clip": [*MEL, node("Clip", "m low", "c", name="clip"), node("Log", "c", "l", name="log")],
    "relu": [*MEL, node("Relu", "m", "r", name="relu"), node("Add", "r low", "c", name="add")],
    "sums of squares": [*SQUARES, node("MatMul", "t mel", "c", name="mel")],
    "clip before the product": [
        *(*POWER, node("Clip", "t low", "u", name="clip"), node("MatMul", "u mel", "c", name="mel")),
    ],
}


def model(nodes):
    last = [] if nodes[-1].op_type == "Log" else [node("Log", "c", "l", name="log")]
    return build([*nodes, *last, node("MatMul", "l w", "y", name="layer")], "y", WAVES, [info("x", [1, 1, 64])])


@pytest.mark.parametrize("form", ENDS)
def test_a_spectrogram_stays_float_and_the_network_behind_it_does_not(form):
    sounds = [{"x": normal(1, 1, 64, seed=i) * 10.0**-i} for i in range(4)]
    report = detent.quantize(model(ENDS[form]), None, sounds, "A8W8")
    float_nodes = {each.node: each.reason for each in report.nodes if not each.quantized}
    assert set(float_nodes) == {each.name for each in ENDS[form]} | {"log"}
    assert {reason for name, reason in float_nodes.items() if name != "log"} == {SIGNAL_REASON}


def test_formats_with_exponents_keep_small_numbers():
    report = detent.quantize(model([*MEL[:-1], node("MatMul", "t mel", "c", name="mel")]), None, None, "BF16")
    assert SIGNAL_REASON not in {each.reason for each in report.nodes}


@pytest.mark.parametrize(
    "activation",
    [
        [node("Relu", "t", "u", name="act")],
        [node("Clip", "t zero six", "u", name="act")],
        [node("Sigmoid", "t", "u", name="act")],
    ],
    ids=lambda nodes: nodes[0].op_type,
)
def test_what_has_an_activation_function_before_a_product_is_a_network(activation):
    nodes = [*POWER, *activation, node("MatMul", "u mel", "c", name="mel")]
    assert not find_signals(ir.from_proto(model(nodes)).graph)


@pytest.mark.parametrize("inside", ["Identity", "Tanh"])
def test_frames_may_be_cut_by_a_scan(inside):
    """Each frame begins with the end of the one before. What has a function inside is a network."""
    state, part, new = (info(name, [8]) for name in ("state", "part", "new"))
    body = [
        node(inside, "part", "new"),
        node("Concat", "state part", "joined", axis=0),
        node("Cast", "joined", "frame", to=1),
    ]
    cut = helper.make_graph(body, "cut", [state, part], [new, info("frame", [16])])
    nodes = [node("Reshape", "x parts", "rows"), node("Gather", "rows first", "begin", name="begin")]
    nodes += [node("Scan", "begin rows", "end frames", body=cut, num_scan_inputs=1, name="cut")]
    nodes += [node("Mul", "frames frames", "p", name="square"), node("Log", "p", "y", name="log")]
    constants = {"parts": np.array([8, 8]), "first": np.array(0)}
    found = find_signals(ir.from_proto(build(nodes, "y", constants, [info("x", [1, 64])])).graph)
    assert ({"cut", "begin", "square"} <= set(found)) == (inside == "Identity")
