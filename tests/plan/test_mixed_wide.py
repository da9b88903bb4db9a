"""Which activations may get 16 bits, and which go together."""

from __future__ import annotations

from detent.graph.load import load
from detent.numerics.formats import IntegerFormat
from detent.plan.mixed import arrange, where_width_may_pay, wide_candidates, wide_format, with_wide
from detent.plan.select import Selection
from detent.prepare import default_passes, prepare
from detent.recipe.recipe import find_preset
from tests.models import build, info, node, normal
from tests.transformer_models import bert

JOINED = build(
    [
        node("Relu", "x", "a"),
        node("Sigmoid", "x", "b"),
        node("Concat", "a b", "c", axis=1),
        node("Tanh", "c", "d"),
        node("Flatten", "d", "y"),
    ],
    "y",
    {},
    inputs=[info("x", (1, 2, 4))],
)


def laid_out(proto, recipe="A8W8"):
    model = load(proto)
    prepare(model, default_passes(None, []))
    return model, arrange(model, Selection(), find_preset(recipe))


def test_what_shares_codes_goes_together():
    model, layout = laid_out(JOINED)
    assert {frozenset(group) for group in wide_candidates(model, layout)} == {
        frozenset("x"),
        frozenset("abc"),
        frozenset("dy"),
    }


def test_all_of_a_group_become_wide():
    _, layout = laid_out(JOINED)
    wide = with_wide(layout, ("d", "y"))
    assert {name: wide.formats[name].dtype for name in "dyx"} == {"d": "int16", "y": "int16", "x": "int8"}
    assert wide.wide == {"d", "y"}


def test_only_8_bits_of_float_scales_become_wide():
    assert wide_format(IntegerFormat("uint8", symmetric=False)) == IntegerFormat("uint16", symmetric=False)
    assert wide_format(IntegerFormat("int16")) is None
    assert wide_format(IntegerFormat("int8", scale="power_of_two")) is None
    assert wide_format(None) is None
    assert wide_candidates(*laid_out(JOINED, "A16W8")) == []


def test_where_width_may_pay():
    whole = load(bert(layers=1)).graph
    assert {value.name for node in whole for value in node.outputs} <= where_width_may_pay(whole)
    assert where_width_may_pay(load(JOINED).graph) == set()
    scores = [node("MatMul", "x w", "a"), node("Softmax", "a", "s"), node("MatMul", "s x", "b"), node("Relu", "b", "y")]
    attends = build(scores, "y", {"w": normal(4, 4)}, inputs=[info("x", (4, 4))])
    assert where_width_may_pay(load(attends).graph) == {"s", "x", "b"}
