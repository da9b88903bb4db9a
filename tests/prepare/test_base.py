from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from detent.graph.values import Names
from detent.prepare import Pass, RemoveIdentity, default_passes, prepare
from detent.prepare.base import Change
from tests.prepare.equivalence import f32, make, node


class Twice(Pass):
    def run(self, model: ir.Model) -> None:
        self.changed("n", "did it")
        self.decline(next(iter(model.graph)), "did not")


def model() -> ir.Model:
    nodes = [node("Relu", "x", "a"), node("Relu", "a", "y", name="last")]
    return ir.from_proto(make(nodes, {"x": [2]}, {"y": None}, {"last/k": f32(2), "last/k_1": f32(2)}))


def test_notes_name_the_pass_and_start_afresh_each_run():
    step = Twice()
    for _ in range(2):
        assert step(model()).modified
        assert step.changes == [Change("n", "did it", "Twice")]
        assert step.declined == [Change("a", "did not", "Twice")], "an unnamed node is called by its output"


def test_prepare_returns_all_changes_in_order():
    assert prepare(model(), [Twice(), RemoveIdentity(), Twice()]) == [Change("n", "did it", "Twice")] * 2


def test_a_change_cannot_be_changed():
    with pytest.raises(AttributeError):
        Change("a", "b").what = "c"


def test_fresh_names_are_unique_and_the_same_every_time():
    given = []
    for _ in range(2):
        names = Names(model())
        given.append(
            [names.fresh("last/k"), names.fresh("last/k"), names.fresh("new"), names.fresh("x"), names.fresh("y")]
        )
    assert given[0] == given[1] == ["last/k_2", "last/k_3", "new", "x_1", "y_1"]


def test_new_initializers_own_their_tensor():
    graph = model()
    step = Twice()
    step(graph)
    last = list(graph.graph)[-1]
    value = step.initializer(graph, last, "w", np.zeros((), np.float32))
    assert value.name == "last/w"
    assert value.shape == ()
    assert graph.graph.initializers["last/w"] is value


def test_default_order():
    names = [type(step).__name__ for step in default_passes()]
    assert names.index("InferShapes") < names.index("FoldConstants") < names.index("FoldBatchNorm")
    assert names.index("FoldBatchNorm") < names.index("BatchNormToConv")
    assert "FixShapes" not in names
    fixed = [type(step).__name__ for step in default_passes({"x": [1]})]
    assert fixed.index("FixShapes") < fixed.index("FoldConstants")
