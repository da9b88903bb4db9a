"""A value that is a function of another's codes is looked up, and is what the nodes compute of every element."""

from __future__ import annotations

import numpy as np
import pytest

from detent.execute import quantized_walk
from detent.execute.quantized_walk import QuantizedWalk
from detent.observe.samples import Sample
from tests.models import build, node, normal, planned


def gated(second: str = "x"):
    """A Conv, a HardSigmoid of it, a Mul by a constant and a Mul by itself, or by the input of the model."""
    nodes = [
        node("Conv", "x w", "c", name="conv", pads=[1, 1, 1, 1]),
        node("HardSigmoid", "c", "h", alpha=1 / 6, beta=0.5),
        node("Mul", "h k", "m"),
        node("Mul", f"m {second}", "g"),
        node("Conv", "g v", "y", name="last", pads=[1, 1, 1, 1]),
    ]
    return build(nodes, "y", {"w": normal(3, 3, 3, 3), "v": normal(3, 3, 3, 3, seed=1), "k": np.float32(1.02)})


def walked(proto, monkeypatch=None):
    """The values of a walk by name, and how many segments were run."""
    model, plan = planned(proto, {"x": normal(1, 3, 8, 8)})
    programs, found = [], {}
    real = quantized_walk.Program

    class Counted(real):
        def __call__(self, feeds, origin):
            programs.append(origin)
            return super().__call__(feeds, origin)

    if monkeypatch is not None:
        monkeypatch.setattr(quantized_walk, "Program", Counted)
    walk = QuantizedWalk(model, plan, ["one", "other"], 1)
    for index in range(2):
        walk.start(index, Sample(index, "it", {"x": normal(1, 3, 8, 8, seed=index)}))
    walk.run(lambda _: None, lambda name, frontier: found.setdefault(name, [frontier.get(name, at) for at in (0, 1)]))
    return found, programs


@pytest.mark.parametrize("second", ["c", "x"])
def test_looking_up_gives_what_running_gives(second, monkeypatch):
    looked, programs = walked(gated(second), monkeypatch)
    tabulated = programs.count("all codes")
    assert tabulated == (3 if second == "c" else 2), "x has codes of its own"
    monkeypatch.setattr(quantized_walk, "are_elementwise", lambda *_: False)
    run, programs = walked(gated(second), monkeypatch)
    assert "all codes" not in programs and set(run) == set(looked)
    for name, arrays in run.items():
        np.testing.assert_array_equal(looked[name], arrays, err_msg=name)


def test_the_same_activation_is_computed_once(monkeypatch):
    nodes = [node("MaxPool", "x", "p", kernel_shape=[1, 1]), node("Tanh", "p", "a"), node("Tanh", "x", "b")]
    found, programs = walked(build(nodes, "a b"), monkeypatch)
    assert programs.count("all codes") == 1
    np.testing.assert_array_equal(found["a"], found["b"])
