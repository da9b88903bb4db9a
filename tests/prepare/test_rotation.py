from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import detent
from detent.graph.load import load
from detent.prepare import default_passes, prepare
from detent.prepare.rotation import RotateResiduals, rotation
from tests.models import build, info, node, normal, run

TOKENS = 5


@pytest.mark.parametrize("size", [1, 2, 3, 8, 12, 24, 64, 7])
def test_a_rotation_keeps_lengths_and_the_ones_and_spreads_axes(size):
    turn = rotation(size)
    np.testing.assert_allclose(turn @ turn.T, np.eye(size), atol=1e-12)
    np.testing.assert_allclose(turn @ np.ones(size), np.ones(size), atol=1e-12)
    if size >= 8:
        assert np.abs(turn).max() < 0.95  # no axis is kept


def norm(kind, source, name, size):
    """A norm of `source`, with scales and shifts that are no ones and zeros; its nodes, and its constants."""
    constants = {f"{name}_g": 1 + 0.5 * normal(size, seed=len(name)), f"{name}_b": normal(size, seed=2)}
    if kind == "layer":
        return [node("LayerNormalization", f"{source} {name}_g {name}_b", name, axis=-1)], constants
    del constants[f"{name}_b"]
    constants |= {f"{name}_two": np.float32(2), f"{name}_eps": np.float32(1e-5)}
    nodes = [
        node("Pow", f"{source} {name}_two", f"{name}_p"),
        node("ReduceMean", f"{name}_p", f"{name}_m", axes=[-1]),
        node("Add", f"{name}_m {name}_eps", f"{name}_e"),
        node("Sqrt", f"{name}_e", f"{name}_s"),
        node("Div", f"{source} {name}_s", f"{name}_n"),
        node("Mul", f"{name}_n {name}_g", name),
    ]
    return nodes, constants


def transformer(kind, size=8, **changes):
    """Two blocks: embeddings, norms, layers with and without bias that read and write the stream, and a head."""
    constants = {"table": normal(11, size), "place": normal(TOKENS, size)}
    constants["table"][:, 1] *= 50  # a channel that stands out
    nodes = [node("Gather", "table ids", "tokens"), node("Add", "tokens place", "x0")]
    for block in range(2):
        name = f"n{block}"
        more, scales = norm(kind, f"x{block}", name, size)
        wide = {f"up{block}": normal(size, 16), f"down{block}": normal(16, size) / 8, f"db{block}": normal(size)}
        constants |= {**scales, **wide, f"ub{block}": normal(16)}
        nodes += [
            *more,
            node("MatMul", f"{name} up{block}", f"u{block}"),
            node("Add", f"u{block} ub{block}", f"ua{block}"),
            node("Relu", f"ua{block}", f"r{block}"),
            node("MatMul", f"r{block} down{block}", f"d{block}"),
            node("Add", f"d{block} db{block}", f"da{block}"),
            node("Add", changes.get("sum", "x{0} da{0}").format(block), f"x{block + 1}"),
        ]
    last, scales = norm(kind, "x2", "last", size)
    nodes += [*last, node("MatMul", "last head", "y")]
    ids = info("ids", (2, TOKENS), 7)
    return build(nodes, changes.get("outputs", "y"), {**constants, **scales, "head": normal(size, 3)}, [ids])


FEEDS = {"ids": np.arange(2 * TOKENS, dtype=np.int64).reshape(2, TOKENS)}


def rotated(proto):
    model = load(proto)
    step = RotateResiduals()
    prepare(model, default_passes(None, [step]))
    return model, step


@pytest.mark.parametrize("kind", ["layer", "mean square"])
@pytest.mark.parametrize("size", [8, 12])
def test_the_function_is_the_same_and_the_channel_no_longer_stands_out(kind, size):
    proto = transformer(kind, size)
    model, step = rotated(proto)
    assert [change.what[:22] for change in step.changes] == ["rotated the stream of "], step.declined
    made = ir.to_proto(model)
    expected = run(proto, FEEDS)["y"]
    np.testing.assert_allclose(run(made, FEEDS)["y"], expected, rtol=2e-4, atol=2e-4 * np.abs(expected).max())
    tables = [
        numpy_helper.to_array(each)
        for each in (proto, made)
        for each in each.graph.initializer
        if each.dims[:1] == [11]
    ]
    before, after = (np.abs(each).max() / np.sqrt((each.astype(np.float64) ** 2).mean()) for each in tables)
    assert after < 0.9 * before


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sum": "n{0} da{0}"}, "what the norm"),  # post-norm: the result of the norm is added
        ({"outputs": "y x1"}, "is an output of the model"),
    ],
)
def test_a_stream_that_is_used_otherwise_stays(changes, why):
    proto = transformer("layer", **changes)
    model, step = rotated(proto)
    assert not step.changes
    assert any(why in each.what for each in step.declined), step.declined
    np.testing.assert_allclose(run(ir.to_proto(model), FEEDS)["y"], run(proto, FEEDS)["y"], rtol=1e-4, atol=1e-4)


def test_a_recipe_asks_for_it():
    recipe = detent.find_recipe("A8W8").replace(also=("rotate_residuals",), refinement=None)
    report = detent.quantize(transformer("layer"), None, [FEEDS] * 4, recipe)
    assert any(each.by == "RotateResiduals" for each in report.changes)
