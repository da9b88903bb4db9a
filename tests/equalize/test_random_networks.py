"""Random networks of all operators that a factor passes, and of some that it does not: the function always stays."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.equalize.networks import assert_kept
from tests.models import build, info, node, normal

C = 4
PADS = [1, 1, 1, 1]
UNARY = (
    *("Relu", "LeakyRelu", "PRelu", "Clip", "Identity", "MaxPool", "AveragePool", "Pad", "Sigmoid"),
    *("Conv 1", "Conv 2", "Conv 4", "BatchNormalization"),
)
BINARY = ("Add", "Add", "Add", "Concat", "Mul")
SHARED = {
    "zero": np.float32(0),
    "pads": np.array([0, 0, 1, 1, 0, 0, -1, -1]),
    "slopes": normal(C, 1, 1, seed=1),
    **{name: np.abs(normal(C, seed=2)) + 0.5 for name in ("bn_s", "bn_b", "bn_m", "bn_v")},
}


class Growing:
    """A graph whose values all have the shape of its input, so that any two can be added."""

    def __init__(self) -> None:
        self.values = ["x"]
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def layer(self, source: str, result: str, inputs: int, group: int = 1) -> None:
        seed, taps = len(self.nodes), 1 if inputs > C else 3
        weight = normal(C, inputs // group, taps, taps, seed=seed) / np.float32(np.sqrt(inputs // group) * taps)
        self.weights |= {f"w_{result}": weight, f"b_{result}": normal(C, seed=seed + 100)}
        names = f"{source} w_{result} b_{result}"
        self.nodes.append(node("Conv", names, result, group=group, pads=PADS if taps == 3 else [0] * 4))

    def add(self, op: str, one: str, other: str) -> None:
        result = f"v{len(self.nodes)}"
        kernel = {"kernel_shape": [3, 3], "pads": PADS}
        if op.startswith("Conv"):
            self.layer(one, result, C, int(op.split()[1]))
        elif op == "Concat":
            self.nodes.append(node("Concat", f"{one} {other}", f"{result}_both", axis=1))
            self.layer(f"{result}_both", result, 2 * C)
        else:
            names = {
                "PRelu": f"{one} slopes",
                "Clip": f"{one} zero",
                "Pad": f"{one} pads",
                "BatchNormalization": f"{one} bn_s bn_b bn_m bn_v",
            }.get(op, f"{one} {other}" if op in BINARY else one)
            self.nodes.append(node(op, names, result, **(kernel if op.endswith("Pool") else {})))
        self.values.append(result)

    def finished(self, outputs: set[str]) -> onnx.ModelProto:
        self.nodes += [
            node("GlobalAveragePool", self.values[-1], "pooled"),
            node("Flatten", "pooled", "row"),
            node("Gemm", "row w_end b_end", "y", transB=1),
        ]
        self.weights |= {"w_end": normal(3, C), "b_end": normal(3)}
        read = {name for each in self.nodes for name in each.input}
        used = {name: array for name, array in (self.weights | SHARED).items() if name in read}
        return build(self.nodes, " ".join(["y", *sorted(outputs)]), used, [info("x", (1, C, 5, 5))])


@st.composite
def networks(draw) -> onnx.ModelProto:
    growing = Growing()
    growing.add("Conv 1", "x", "x")
    # Mostly layers and what passes: a network of nothing but Sigmoids has no channel to rescale.
    for op in draw(st.lists(st.sampled_from((*UNARY, *BINARY, "Conv 1", "Conv 4", "Relu")), min_size=2, max_size=10)):
        recent = st.sampled_from(growing.values[-4:])
        growing.add(op, draw(recent), draw(recent))
    return growing.finished(draw(st.sets(st.sampled_from(growing.values[1:]), max_size=1)))


@settings(max_examples=60, deadline=None)
@given(networks(), st.integers(0, 1000))
def test_any_factors_keep_the_function(proto, seed):
    assert_kept(proto, seed)


def test_they_are_not_all_fixed():
    growing = Growing()
    for op, one, other in (("Conv 1", "x", "x"), ("Relu", "v0", ""), ("Conv 4", "v1", ""), ("Add", "v1", "v2")):
        growing.add(op, one, other)
    assert assert_kept(growing.finished(set())).count == C
