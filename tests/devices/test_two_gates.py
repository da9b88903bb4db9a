"""SiLU by two HardSigmoids: how near that is, what becomes of the graph, and that all of it is on grids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import detent
from detent.devices.two_gates import FLAT, STEEP, SiluToTwoGates
from detent.pipeline import trials
from detent.plan.mixed import arrange
from detent.plan.select import Selection
from detent.recipe.recipe import find_preset
from detent.refine.layers import find_layers, gates_of
from detent.refinements.activations import TwoGates
from tests.models import as_ir, build, info, node, normal, run

IMAGES = [{"x": normal(1, 3, 8, 8, seed=seed)} for seed in range(12)]
STEP = "silu_to_two_gates"


def silu_layers(*behind, also_read=()):
    """Return two layers with SiLU between them, and what else reads or follows."""
    nodes = [
        node("Conv", "x w b", "c", name="conv"),
        *(node("Sigmoid", "c", "s", name="gate"), node("Mul", "c s", "m", name="product")),
        *also_read,
        *(behind or (node("Conv", "m v", "y", name="last"),)),
    ]
    constants = {"w": normal(4, 3, 3, 3) / 3, "b": normal(4, seed=1), "v": normal(2, 4, 1, 1, seed=2)}
    return build(nodes, "y", constants, [info("x", (1, 3, 8, 8))])


def quantized(model, recipe="XINT8", **options):
    return detent.quantize(model, None, IMAGES, recipe, set=[f"also={STEP}"], **options)


def planned(proto):
    """Return a model in which the step was made, and its layout."""
    model = as_ir(proto)
    layout = arrange(model, Selection(), find_preset("XINT8"))
    step = SiluToTwoGates(layout)
    step(model)
    return model, step.laid_out(layout)


def hard(z):
    return np.clip(z / 6 + 0.5, 0, 1)


def test_two_gates_are_ten_decibels_nearer_than_one():
    x = np.linspace(-14, 14, 2801)
    silu, one, two = x / (1 + np.exp(-x)), x * hard(x), x / 2 * (hard(STEEP * x) + hard(FLAT * x))
    assert np.abs(one - silu).max() == pytest.approx(0.142, abs=0.001)
    assert np.abs(two - silu).max() == pytest.approx(0.080, abs=0.001)

    def decibels(found, mean, deviation):
        p = np.exp(-(((x - mean) / deviation) ** 2) / 2)
        p /= p.sum()
        return 10 * np.log10((p * silu**2).sum() - (p * silu).sum() ** 2) - 10 * np.log10(
            (p * (found - silu) ** 2).sum()
        )

    cases = [(mean, deviation) for mean in (-2, -1, 0, 1) for deviation in (1, 2, 3)]
    assert np.mean([decibels(one, *case) for case in cases]) == pytest.approx(21.0, abs=0.1)
    assert np.mean([decibels(two, *case) for case in cases]) == pytest.approx(31.4, abs=0.1)


def test_the_graph_computes_it_with_exact_factors_and_the_codes_of_the_input():
    report = quantized(silu_layers(), refine="none")
    assert all(each.quantized for each in report.nodes) and {"gate", "product"} <= {each.node for each in report.nodes}
    tensors = {each.name: each for each in report.tensors}
    assert tensors["gate/half_output"].scale == tensors["c"].scale / 2
    for name, factor in (("steep", STEEP), ("flat", FLAT), ("half", 0.5)):
        scale = tensors[f"gate/{name}_factor"].scale
        assert tensors[f"gate/{name}_factor"].dtype == "int8"
        assert (factor / scale).is_integer() and factor / scale <= 127
    kinds = [each.op_type for each in report.model.graph.node]
    assert kinds.count("HardSigmoid") == 2 and "Sigmoid" not in kinds
    assert report.device.accepted and report.device.subgraphs == 1
    assert any("two HardSigmoids" in each and "'gate'" in each for each in report.warnings), "the price is said"


def test_it_is_nearer_to_float_than_one_gate():
    plain = detent.quantize(silu_layers(), None, IMAGES, "XINT8", refine="none")
    gates = quantized(silu_layers(), refine="none")
    assert gates.fidelity.outputs["y"].sqnr_db > plain.fidelity.outputs["y"].sqnr_db + 2


def test_the_emulator_computes_the_same_codes():
    emulated = detent.emulate(quantized(silu_layers()).model, IMAGES[:2])
    assert not emulated.report.float_steps and [each.differing for each in emulated.outputs] == [0]


def test_a_device_that_rounds_ties_upwards_computes_it_in_integers_too():
    up = quantized(silu_layers(), rounding="dpu")
    assert not detent.emulate(up.model, IMAGES[:2], rounding="dpu").report.float_steps


def test_what_is_no_silu_gets_one_gate():
    scores = silu_layers(node("Sigmoid", "m", "y", name="score"))
    report = quantized(scores)
    assert {(each.node, each.by) for each in report.changes if "igmoid" in each.what} >= {
        ("gate", "SiluToTwoGates"),
        ("score", "SigmoidToHardSigmoid"),
    }
    read_twice = silu_layers(node("Add", "m s", "y"))
    report = quantized(read_twice)
    assert "SiluToTwoGates" not in {each.by for each in report.changes}


def test_a_device_with_a_sigmoid_declines_it():
    report = quantized(silu_layers(), "A8W8")
    (declined,) = [each for each in report.declined if each.by == "SiluToTwoGates"]
    assert declined.node == "gate" and "power of two" in declined.what
    assert "Sigmoid" in {each.op_type for each in report.model.graph.node}


def test_a_silu_that_stays_float_is_left_alone():
    report = quantized(silu_layers(), exclude=["product"])
    assert "SiluToTwoGates" not in {each.by for each in report.changes}
    feeds = IMAGES[0]
    assert run(report.model, feeds)["y"].shape == run(silu_layers(), feeds)["y"].shape


def test_a_layer_is_refined_through_both_gates_towards_the_float_silu():
    model, layout = planned(silu_layers())
    layers, _ = find_layers(model, layout)
    reference = {str(each.name): each for each in as_ir(silu_layers()).graph}
    (layer,) = [each for each in layers.values() if each.name == "conv"]
    float_curve, curve = gates_of(layer, layout, reference)
    assert curve == TwoGates(STEEP, FLAT)
    x = np.linspace(-5, 5, 11)
    np.testing.assert_allclose(float_curve(x), x / (1 + np.exp(-x)))
    assert gates_of(layer, layout, {}) is None, "what was no Sigmoid is computed as it is written"


@pytest.fixture
def bad_with_one(monkeypatch):
    """Call a result bad whose worst output is below what two gates reach."""
    judge = trials.judge

    def strict(fidelity, doubts=()):
        level = "worse" if fidelity.outputs["y"].sqnr_db < 25 else "close"
        return replace(judge(fidelity, doubts), level=level)

    monkeypatch.setattr(trials, "judge", strict)


@pytest.mark.usefixtures("bad_with_one")
def test_two_gates_are_taken_where_one_is_worse_than_float_and_two_are_nearer():
    report = detent.quantize(silu_layers(), None, IMAGES, "XINT8")
    assert report.recipe.also == (STEP,)
    assert report.model.SerializeToString() == quantized(silu_layers()).model.SerializeToString()
    (note,) = [each for each in report.remarks if STEP in each]
    kept = detent.quantize(silu_layers(), None, IMAGES, "XINT8", set=[f"without={STEP}"])
    assert f"{kept.fidelity.outputs['y'].sqnr_db:.1f} dB" in note
    assert f"{report.fidelity.outputs['y'].sqnr_db:.1f} dB" in note
    assert kept.recipe.also == () and "SiluToTwoGates" not in {each.by for each in kept.changes}
    assert {"calibrate", "refine", "measure", "try"} <= set(report.seconds), "what was tried took time too"


@pytest.mark.usefixtures("bad_with_one")
@pytest.mark.parametrize(
    "options",
    [{"recipe": "XINT8", "refine": "none"}, {"recipe": "A8W8"}, {"recipe": "XINT8", "dry_run": True}],
    ids=["no accuracy steps", "a device with Sigmoid", "nothing is run"],
)
def test_one_gate_stays_where_nothing_is_to_be_improved(options):
    assert detent.quantize(silu_layers(), None, IMAGES, **options).recipe.also == ()


def test_a_result_that_is_close_keeps_one_gate():
    report = detent.quantize(silu_layers(), None, IMAGES, "XINT8")
    assert report.judgement.level not in ("worse", "broken") and report.recipe.also == ()


@pytest.mark.usefixtures("bad_with_one")
def test_the_recipe_of_a_tuned_model_says_how_many_gates_it_has(tmp_path):
    images = np.concatenate([each["x"] for each in IMAGES])
    tuned = detent.tune(silu_layers(), tmp_path / "t.onnx", images, "XINT8", max_drop=1e6, hold_out=4)
    assert tuned.recipe.without == (STEP,), "quantize would take two"
    again = detent.quantize(silu_layers(), None, images, tmp_path / "t.toml")
    assert again.recipe.also == ()
