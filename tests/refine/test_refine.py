"""Bias correction and rounding on whole models: what they promise, on what is really emitted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from detent.emit import emit
from detent.errors import DataError, UsageError
from detent.graph.session import Runner
from detent.numerics.formats import IntegerFormat, QuantParams
from detent.observe.samples import PendingSample
from detent.plan.layout import Role
from detent.recipe.file import find_recipe
from detent.refine.refine import refine
from detent.refinements import AdaQuant, AdaRound, BiasCorrection, Rounding
from detent.refinements.refinement import Choice
from tests.models import (
    IMAGE,
    SMALL_MODELS,
    XINT8,
    as_ir,
    build,
    conv_relu_conv,
    info,
    node,
    normal,
    plan_at,
    planned,
    residual,
    values_of,
)


def pending(*feeds):
    return [PendingSample(index, f"sample {index}", False, lambda one=one: one) for index, one in enumerate(feeds)]


FEEDS = [{"x": normal(*IMAGE, seed=seed)} for seed in range(20, 30)]
SAMPLES = pending(*FEEDS)


def mean_errors(proto, model, plan, value, feeds=FEEDS):
    """By how much each channel's mean is off in the emitted model. `value` is read before its QuantizeLinear."""
    expected = [values_of(proto, [value], one)[value] for one in feeds]
    emit(model, plan)
    name = (
        value if any(value == one.name for n in model.graph for one in n.outputs) else f"{value}_QuantizeLinear_Input"
    )
    if any(one.name == f"{value}_QuantizeLinear_Input" for n in model.graph for one in n.outputs):
        name = f"{value}_QuantizeLinear_Input"
    runner = Runner(model, [name], exact=True)
    found = [runner(one)[0] for one in feeds]
    return np.mean([(a - b).mean(axis=(0, 2, 3)) for a, b in zip(expected, found, strict=True)], axis=0)


@pytest.mark.parametrize("value", ["c1", "c2"])
def test_every_channel_has_the_float_mean_to_half_a_step_of_the_bias(value):
    proto = residual()
    model, plan = planned(proto)
    plan, reports = refine(model, model, plan, BiasCorrection(), SAMPLES)
    assert [(one.name, one.method) for one in reports] == [
        ("conv_c1", "bias correction"),
        ("conv_c2", "bias correction"),
    ]
    assert set(plan.refined) == {"b1", "b2"}
    assert all(one.after <= one.before for one in reports)
    step = float(plan.of("b" + value[1]).scale)
    # Half a step, and what the samples do not settle.
    assert np.abs(mean_errors(proto, model, plan, value)).max() <= step * 0.6


def test_without_correction_the_means_are_further_off():
    proto = residual()
    before = np.abs(mean_errors(proto, *planned(proto), "c2")).max()
    model, plan = planned(proto)
    plan, _ = refine(model, model, plan, BiasCorrection(), SAMPLES)
    assert np.abs(mean_errors(proto, model, plan, "c2")).max() < before


def test_a_correction_by_hand():
    """1.25 x with x always 1: the weight is rounded to 1, and the bias of 0.5 makes up for it."""
    proto = build(
        [node("Conv", "x w b", "y")], "y", {"w": np.full((1, 3, 1, 1), 1.25 / 3, np.float32), "b": np.float32([0.5])}
    )
    model, plan = plan_at(proto, {"x": 6, "w": 0, "b": 4, "y": 4})
    ones = pending({"x": np.ones(IMAGE, np.float32)})
    plan, reports = refine(model, model, plan, BiasCorrection(), ones)
    np.testing.assert_array_equal(plan.refined["b"], [1.75])  # 0.5 + 1.25 - 0: 1.25 / 3 rounds to 0
    assert reports[0].before == pytest.approx(1.25**2 / 1.75**2) and reports[0].after == 0


def test_a_bias_that_does_not_fit_saturates_and_that_is_said():
    proto = conv_relu_conv()
    model, plan = planned(proto)
    plan = replace(plan, params={**plan.params, "b2": QuantParams.at(XINT8.biases, 12)})
    plan, reports = refine(model, model, plan, BiasCorrection(), SAMPLES)
    assert "saturates" in reports[1].note and "saturates" not in reports[0].note
    assert np.abs(plan.refined["b2"]).max() <= 127 / 4096


def test_biases_in_the_unit_of_the_products():
    proto = residual()
    recipe = find_recipe("A8W8").replace(weights=IntegerFormat("int4"))
    before = np.abs(mean_errors(proto, *planned(proto, recipe=recipe), "c2")).max()
    model, plan = planned(proto, recipe=recipe)
    plan, reports = refine(model, model, plan, BiasCorrection(), SAMPLES)
    assert all(one.after <= one.before for one in reports) and "b2" in plan.refined
    assert np.abs(mean_errors(proto, model, plan, "c2")).max() < 0.3 * before


def test_layers_that_cannot_be_changed_say_why():
    proto = build(
        [
            node("Conv", "x w", "a"),
            node("Conv", "x w", "b"),
            node("Add", "a b", "c"),
            node("Conv", "c v", "d"),
            node("Conv", "d u k", "e"),
            node("Conv", "d t k", "f"),
            node("Add", "e f", "y"),
        ],
        "y",
        {"w": normal(3, 3, 1, 1), "v": normal(3, 3, 1, 1), "u": normal(3, 3, 1, 1), "t": normal(3, 3, 1, 1),
         "k": normal(3)},
    )  # fmt: skip
    for refinement in (BiasCorrection(), Rounding()):
        model, plan = planned(proto)
        plan, found = refine(model, model, plan, refinement, SAMPLES)
        reports = {one.name: one for one in found}
        assert len(reports) == 5
        assert "read by other nodes" in reports["conv_a"].note and reports["conv_a"].method == "as it was"
        assert reports["conv_d"].note.startswith("no bias")
        assert "bias 'k' is read by other nodes" in reports["conv_e"].note
        assert "w" not in plan.refined and "k" not in plan.refined


def test_nothing_to_refine():
    model, plan = planned(build([node("Relu", "x", "y")], "y"))
    assert refine(model, model, plan, BiasCorrection(), SAMPLES) == (plan, [])
    with pytest.raises(DataError, match="no samples"):
        refine(model, model, plan, BiasCorrection(), [])


def test_the_reference_may_compute_the_targets_in_another_way():
    """The targets are those of the reference: the difference of the two models goes into the bias."""
    proto = conv_relu_conv()
    model, plan = planned(proto)
    own = plan.of("b2").snap(np.array(proto_constant(proto, "b2")))
    reference = as_ir(proto)
    shifted = reference.graph.initializers["b2"]
    shifted.const_value = ir.tensor((shifted.const_value.numpy() + 0.5).astype(np.float32), name="b2")
    plan, _ = refine(model, reference, plan, BiasCorrection(), SAMPLES)
    assert (plan.refined["b2"] - own).min() > 0.3


def proto_constant(proto, name):
    return ir.from_proto(proto).graph.initializers[name].const_value.numpy()


@pytest.mark.parametrize("refinement", [BiasCorrection(), Rounding()])
def test_the_same_for_any_number_of_threads(refinement):
    found = []
    for threads in (1, 3):
        model, plan = planned(residual())
        plan, reports = refine(model, model, plan, refinement, SAMPLES, threads=threads)
        found.append((reports, {name: array.tobytes() for name, array in plan.refined.items()}))
    assert found[0] == found[1]


def error_on(proto, model, plan, feeds):
    emit(model, plan)
    runner, plain = Runner(model, exact=True), Runner(as_ir(proto))
    return sum(float(np.square(runner(one)[0] - plain(one)[0]).sum()) for one in feeds)


def smooth(seed):
    """Images whose neighbours are alike: their patches are correlated, as those of photographs are."""
    rough = normal(1, 3, 16, 16, seed=seed)
    return {"x": sum(rough[:, :, i : i + 8, j : j + 8] for i in range(6) for j in range(6)).astype(np.float32) / 6}


@pytest.mark.parametrize("name", ["conv_relu_conv", "residual", "leaky"])
def test_rounding_is_closer_to_float_on_new_data(name):
    proto, seen, unseen = (
        SMALL_MODELS[name](),
        [smooth(seed) for seed in range(40)],
        [smooth(90 + k) for k in range(20)],
    )
    widest = {"x": 1.5 * max((one["x"] for one in seen), key=lambda x: float(np.abs(x).max()))}
    errors = {}
    for refinement in (None, BiasCorrection(), Rounding(rows=36)):
        model, plan = planned(proto, widest)
        for site in plan.layout.of_role(Role.WEIGHT):  # coarse, so that the rounding of weights is what matters
            plan = plan.with_position(site.value, plan.position(site.value) - 4, "test", "")
        if refinement is not None:
            plan, reports = refine(model, model, plan, refinement, pending(*seen))
        errors[type(refinement).__name__] = error_on(proto, model, plan, unseen)
    assert errors["Rounding"] < 0.8 * errors["BiasCorrection"]
    assert errors["BiasCorrection"] < 1.01 * errors["NoneType"]  # Gaussian inputs: there is little to correct
    assert all(one.after <= one.before for one in reports)
    assert any(one.method.startswith("rounding") for one in reports)


def test_the_refined_weights_are_on_the_grid_that_emission_uses():
    model, plan = planned(residual())
    plan, _ = refine(model, model, plan, Rounding(), SAMPLES)
    assert set(plan.refined) == {"w1", "b1", "w2", "b2"}
    for name, array in plan.refined.items():
        np.testing.assert_array_equal(plan.of(name).snap(array), array)


@pytest.mark.parametrize("refinement", [AdaRound(iterations=40), AdaQuant(iterations=40, quantized_share=0.5)])
def test_gradient_methods_take_the_same_way(refinement):
    model, plan = planned(residual())
    plan, reports = refine(model, model, plan, refinement, SAMPLES)
    assert all(one.after <= one.before for one in reports)
    for name, array in plan.refined.items():
        np.testing.assert_array_equal(plan.of(name).snap(array), array)


def test_every_fifth_sample_is_held_out(monkeypatch):
    seen = []

    def judge(_, problem, held_out, *rest):
        seen.append((problem, held_out))
        return Choice(None, True, 0.0, 0.0)

    monkeypatch.setattr(Rounding, "choose", judge)
    proto = build([node("Gemm", "x w b", "y")], "y", {"w": normal(2, 4), "b": normal(4)}, inputs=[info("x", [4, 2])])
    feeds = [{"x": np.full((4, 2), index / 16, np.float32)} for index in range(12)]
    model, plan = planned(proto, feeds[-1])
    plan, _ = refine(model, model, plan, Rounding(), pending(*feeds))
    ((problem, held_out),) = seen
    assert sorted(set((held_out.rows[0, :, 0] * 16).tolist())) == [4, 9]
    assert sorted(set((problem.rows[0, :, 0] * 16).tolist())) == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11]
    for one in seen[0]:
        expected = one.rows[0].astype(np.float64) @ proto_constant(proto, "w") + proto_constant(proto, "b")
        np.testing.assert_allclose(one.target[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_few_rows_keep_the_weights():
    proto = build([node("Gemm", "x w b", "y")], "y", {"w": normal(6, 4), "b": normal(4)}, inputs=[info("x", [1, 6])])
    feeds = [{"x": normal(1, 6, seed=seed)} for seed in range(15)]
    model, plan = planned(proto, feeds[0])
    plan, (report,) = refine(model, model, plan, Rounding(), pending(*feeds))
    assert report.method == "bias correction" and "15 rows are too few" in report.note
    assert "w" not in plan.refined


def test_less_memory_means_fewer_samples_and_rows():
    model, plan = planned(residual())
    plan, reports = refine(model, model, plan, Rounding(rows=100), pending(*FEEDS * 20), memory=80_000)
    assert "of 128 samples" in reports[0].note and "of 100 rows" in reports[0].note


def test_no_more_samples_are_read_than_asked_for():
    read = Counter()

    def counted(index):
        return lambda: read.update([index]) or FEEDS[index]

    samples = [PendingSample(index, "", False, counted(index)) for index in range(10)]
    model, plan = planned(residual())
    plan, _ = refine(model, model, plan, BiasCorrection(samples=4), samples)
    assert set(read) == {0, 2, 5, 7}


def test_progress_reaches_the_end():
    seen = []
    model, plan = planned(residual())
    plan, _ = refine(model, model, plan, BiasCorrection(), SAMPLES, progress=lambda *step: seen.append(step))
    assert seen[0] == ("refine", 0, 12) and seen[-1] == ("refine", 12, 12)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_too_little_memory_says_how_much_is_enough():
    model, plan = planned(residual())
    with pytest.raises(UsageError, match=r"at least 1MB .* Give --memory 1MB or more, or --refine none"):
        refine(model, model, plan, Rounding(), SAMPLES, memory=1000)
    plan, _ = refine(model, model, plan, Rounding(), SAMPLES, memory=1 << 20)
