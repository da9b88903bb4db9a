"""Variants that are walked side by side are, each, what a model with only that change computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from detent.emit import emit
from detent.emulator import Emulator
from detent.execute import probe as probe_module
from detent.execute.probe import ITSELF, Probe, Variant
from detent.graph.session import Runner
from detent.numerics.floats import FloatFormat, FloatParams
from detent.observe.samples import Sample
from detent.plan.layout import Role
from detent.sensitivity_analysis.variants import all_quantized, left_float, quantized_units
from tests.models import IMAGE, SMALL_MODELS, XINT8, build, info, node, normal, planned

SAMPLE = Sample(0, "the sample", {"x": normal(*IMAGE, seed=9)})


def deep(layers=11):
    """Enough layers for several sections, with a value that is read over the border of two."""
    nodes, constants, before = [], {}, "x"
    for index in range(layers):
        constants |= {f"w{index}": normal(3, 3, 1, 1, seed=index), f"b{index}": normal(3, seed=index) / 8}
        nodes += [node("Conv", f"{before} w{index} b{index}", f"c{index}"), node("Relu", f"c{index}", f"r{index}")]
        before = f"r{index}"
        if index % 3 == 2:
            nodes.append(node("Add", f"{before} r{index - 2}", f"s{index}"))
            before = f"s{index}"
    nodes.append(node("GlobalAveragePool", before, "y"))
    return build(nodes, "y s2", constants)


MODELS = {**SMALL_MODELS, "deep": deep}


@pytest.mark.parametrize("name", MODELS)
def test_everything_is_what_the_emitted_model_computes(name):
    model, plan = planned(MODELS[name]())
    whole = all_quantized("all", quantized_units(model, plan))
    answers = Probe(model, plan.layout)(SAMPLE, [whole])
    base = Probe(model, plan.layout, whole)(SAMPLE)
    expected_float = Runner(model)(SAMPLE.feeds)
    emit(model, plan)
    for index, expected in enumerate(Runner(model, exact=True)(SAMPLE.feeds)):
        np.testing.assert_array_equal(answers["all"][index], expected)
        np.testing.assert_array_equal(base[ITSELF][index], expected)
        np.testing.assert_allclose(answers[ITSELF][index], expected_float[index], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["residual", "deep"])
def test_everything_on_a_device_that_rounds_ties_up(name):
    model, plan = planned(MODELS[name](), recipe=XINT8.replace(rounding="dpu"))
    whole = all_quantized("all", quantized_units(model, plan))
    found = Probe(model, plan.layout)(SAMPLE, [whole])["all"]
    base = Probe(model, plan.layout, whole)(SAMPLE)[ITSELF]
    emit(model, plan)
    on_device = [Emulator(ir.to_proto(model), rounding=rounding)(SAMPLE.feeds) for rounding in ("dpu", "half-even")]
    for index, expected in enumerate(on_device[0]):
        np.testing.assert_array_equal(found[index], expected)
        np.testing.assert_array_equal(base[index], expected)
    assert any(not np.array_equal(*pair) for pair in zip(*on_device, strict=True)), "there are ties"


def with_constants(model, constants):
    changed = model.clone()
    for name, array in constants.items():
        changed.graph.initializers[name].const_value = ir.tensor(array, name=name)
    return Runner(changed)(SAMPLE.feeds)


@pytest.mark.parametrize("name", MODELS)
def test_constants_of_one_layer(name):
    model, plan = planned(MODELS[name]())
    things = [thing for thing in quantized_units(model, plan) if thing.is_weight]
    answers = Probe(model, plan.layout)(SAMPLE, [thing.variant for thing in things])
    for thing in things:
        for found, expected in zip(answers[thing.name], with_constants(model, thing.variant.constants), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_one_activation_alone(name):
    """The model with one site only in the plan, emitted."""
    model, plan = planned(MODELS[name]())
    things = [thing for thing in quantized_units(model, plan) if not thing.is_weight]
    answers = Probe(model, plan.layout)(SAMPLE, [thing.variant for thing in things])
    for thing in things:
        (site,) = thing.variant.rounding
        alone, its_plan = planned(MODELS[name]())
        its_plan = replace(its_plan, layout=replace(its_plan.layout, sites={site: its_plan.layout.sites[site]}))
        emit(alone, its_plan)
        for found, expected in zip(answers[thing.name], Runner(alone, exact=True)(SAMPLE.feeds), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=thing.name)


def test_variants_do_not_disturb_each_other():
    model, plan = planned(deep())
    variants = [thing.variant for thing in quantized_units(model, plan)]
    probe = Probe(model, plan.layout)
    together = probe(SAMPLE, variants)
    for variant in variants:
        alone = probe(SAMPLE, [variant])
        for name in (ITSELF, variant.name):
            for one, other in zip(alone[name], together[name], strict=True):
                np.testing.assert_array_equal(one, other)


def test_a_layer_that_is_left_float_in_the_quantized_model():
    model, plan = planned(SMALL_MODELS["conv_relu_conv"]())
    things = quantized_units(model, plan)
    whole = all_quantized("all", things)
    left = {variant.name: variant for variant in left_float(things)}
    answers = Probe(model, plan.layout, whole)(SAMPLE, list(left.values()))
    # conv_c1 computes r1 (the Relu is fused), which conv_y reads: it stays rounded; x is read by nobody else.
    assert set(left["conv_c1"].rounding) == {"x"}
    assert set(left["conv_y"].rounding) == {"y"}
    emitted, its_plan = planned(SMALL_MODELS["conv_relu_conv"]())
    for name in ("w2", "b2", "y"):
        del its_plan.layout.sites[name]
    emit(emitted, its_plan)
    np.testing.assert_array_equal(answers["conv_y"][0], Runner(emitted, exact=True)(SAMPLE.feeds)[0])


def test_a_variant_is_computed_from_its_first_change_on():
    """Counted: of 24 pieces, the last layer's weights need the base and what is behind them."""
    model, plan = planned(deep())
    last = next(thing for thing in quantized_units(model, plan) if thing.name == "weights of conv_c10")
    probe = Probe(model, plan.layout)
    computed = []
    compute = probe._compute
    probe._compute = lambda segment, held, variant, *rest: (
        computed.append(variant.name),
        compute(segment, held, variant, *rest),
    )
    probe(SAMPLE, [last.variant])
    assert computed.count(last.name) == 2  # the layer and the pool
    assert computed.count(ITSELF) == sum(len(section.segments) for section in probe._sections)


def heavy(tail, batch="N"):
    """Two sections, the last with many more weights than what goes into it; `tail` are its last nodes."""
    nodes, constants = [node("GlobalAveragePool", "x", "p"), node("Flatten", "p", "f")], {"single": np.array([1, 8])}
    before = "f"
    for index in range(6):
        rows = 3 if index == 0 else 8
        constants |= {f"w{index}": normal(rows, 8, seed=index), f"b{index}": normal(8, seed=index) / 8}
        nodes.append(node("Gemm", f"{before} w{index} b{index}", f"g{index}"))
        before = f"g{index}"
    return build([*nodes, *tail(before)], "y", constants, [info("x", (batch, *IMAGE[1:]))])


TAILS = {
    "rows apart": (lambda before: [node("Relu", before, "y")], True),
    "rows mixed": (
        lambda before: [node("ReduceMean", before, "m", axes=[0], keepdims=1), node("Sub", f"{before} m", "y")],
        False,
    ),
    "rows gone": (lambda before: [node("ReduceMean", before, "y", keepdims=0)], False),
    "rows fixed": (lambda before: [node("Reshape", f"{before} single", "y")], False),
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("batch", ["N", 1])
def test_variants_are_stacked_where_that_changes_nothing(tail, batch, monkeypatch):
    monkeypatch.setattr(probe_module, "HEAVY", 1)
    nodes, stackable = TAILS[tail]
    model, plan = planned(heavy(nodes, batch))
    variants = [thing.variant for thing in quantized_units(model, plan)]
    probe = Probe(model, plan.layout)
    found = probe(SAMPLE, variants)
    assert probe._sections[-1].stacks == (stackable and batch == "N")
    monkeypatch.setattr(probe_module, "HEAVY", 1e9)
    expected = Probe(model, plan.layout)(SAMPLE, variants)
    for name, outputs in expected.items():
        np.testing.assert_allclose(found[name][0], outputs[0], rtol=1e-4, atol=1e-5)
    # Whoever else is walked along, a variant is the same to the bit.
    for variant in variants:
        np.testing.assert_array_equal(probe(SAMPLE, [variant])[variant.name][0], found[variant.name][0])


def test_a_huge_model_is_read_where_it_is(monkeypatch):
    # Four products with weights of 256 kB each: two sections, each there as a whole and in segments.
    nodes = [node("MatMul", f"{'x' if at == 0 else f'm{at - 1}'} w{at}", f"m{at}") for at in range(4)]
    weights = {f"w{at}": normal(256, 256, seed=at) / 16 for at in range(4)}
    model, plan = planned(build(nodes, "m3", weights, [info("x", (1, 256))]), {"x": normal(1, 256, seed=9)})
    sample = Sample(0, "the sample", {"x": normal(1, 256, seed=10)})
    variants = [unit.variant for unit in quantized_units(model, plan)]
    expected = Probe(model, plan.layout)(sample, variants)
    copied, program = [], probe_module.Program

    def watched(*given, copies=True):
        copied.append(copies)
        return program(*given, copies=copies)

    monkeypatch.setattr(probe_module, "HUGE_MODEL", 1 << 20)
    monkeypatch.setattr(probe_module, "Program", watched)
    found = Probe(model, plan.layout)(sample, variants)
    for name, (output,) in expected.items():
        np.testing.assert_allclose(found[name][0], output, rtol=1e-4, atol=1e-4)
    assert copied.count(True) == 2, "sections as wholes"
    assert copied.count(False) == 4 + 4, "segments, and those of variants with other weights"


def test_results_that_no_output_depends_on_are_not_computed():
    constants = {"w": normal(2, 3, 1, 1)}
    model, plan = planned(build([node("Conv", "x w", "y"), node("Sigmoid", "x", "unused")], "y", constants))
    assert len(Probe(model, plan.layout)._sections) == 1


def test_footprint_is_the_most_that_is_held():
    model, plan = planned(SMALL_MODELS["conv_relu_conv"]())
    # x is 3 * 64 numbers and r1 4 * 36; after the second layer r1 and y, 2 * 36, are there
    assert Probe(model, plan.layout).footprint(SAMPLE) == 4 * (3 * 64 + 4 * 36)


def test_activations_in_any_format():
    model, plan = planned(SMALL_MODELS["conv_relu_conv"]())
    half = FloatParams(FloatFormat("bfloat16"))
    halved = Sample(0, "the sample", {"x": half.snap(SAMPLE.feeds["x"])})
    probe = Probe(model, plan.layout)
    found = probe(SAMPLE, [Variant("half", rounding={"x": half})])["half"]
    np.testing.assert_array_equal(found[0], probe(halved)[ITSELF][0])


def test_roles_are_told_apart():
    model, plan = planned(SMALL_MODELS["residual"]())
    things = quantized_units(model, plan)
    rounded_sites = {name for thing in things for name in thing.variant.rounding}
    assert rounded_sites == {site.value for site in plan.layout.of_role(Role.ACTIVATION)}
    assert [thing.name for thing in things if thing.is_weight] == ["weights of conv_c1", "weights of conv_c2"]
