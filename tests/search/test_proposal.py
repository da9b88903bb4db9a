from __future__ import annotations

import pytest

from detent.errors import UsageError
from detent.numerics.formats import IntegerFormat
from detent.plan.mixed import assign_formats
from detent.recipe import Override
from detent.recipe.file import find_recipe, to_toml
from detent.results.searched import ErrorSource, LayerSensitivity, Sensitivity
from detent.search import LEFT_BY_4_BITS, LEFT_BY_8_BITS, propose
from detent.sensitivity_analysis import sensitivity
from tests.models import SMALL_MODELS, XINT8, laid_out, planned
from tests.sensitivity_analysis.test_layer_errors import SAMPLES


def layer(name, operations=10, members=()):
    return LayerSensitivity(name, "Conv", (name, *members), None, None, 0.0, None, 0, operations)


def weights(name, *touches):
    return ErrorSource(name, touches[0], frozenset(touches), constants=(name,))


def activation(name, *touches, elements=1):
    return ErrorSource(name, touches[0], frozenset(touches), activations=(name,), elements=elements)


def found(layers, errors, total=None):
    """Things with their errors; the whole error is their sum, where nothing else is said."""
    values = {thing.name: error for thing, error in errors.items()}
    whole = sum(values.values()) if total is None else total
    return Sensitivity(tuple(layers), tuple(errors), values, whole, None, 1, False)


THREE = found(
    [layer("a", members=("relu",)), layer("b"), layer("c", operations=1000)],
    {weights("wa", "a"): 4.0, weights("wb", "b"): 1.0, weights("wc", "c"): 5.0, activation("t", "a", "b"): 2.0},
)


@pytest.mark.parametrize(
    ("wanted", "nodes", "predicted"),
    [
        (12.0, (), 12.0),  # nothing to do
        (8.0, ("a", "relu"), 8.0),  # 4 of 12, for 10 products
        (7.9, ("a", "relu", "b"), 5.0),  # with b the activation between a and b is float too
        (0.001, ("a", "relu", "b", "c"), 0.0),
    ],
)
def test_exclude(wanted, nodes, predicted):
    proposal = propose(THREE, None, XINT8, wanted)
    assert proposal.nodes == nodes
    assert proposal.predicted == pytest.approx(predicted)
    assert proposal.reached
    assert proposal.before == 12.0
    left = [override for override in proposal.recipe.overrides if override.leave_float]
    assert [override.nodes for override in left] == ([nodes] if nodes else [])


def test_layers_around_an_activation_are_taken_together():
    """Neither of the two alone helps, but both do."""
    both = found([layer("a"), layer("b"), layer("c")], {activation("t", "a", "b"): 9.0, weights("wc", "c"): 1.0})
    assert propose(both, None, XINT8, 1.0).nodes == ("a", "b")


def test_the_prediction_is_a_share_of_what_was_measured():
    halved = found([layer("a"), layer("b")], {weights("wa", "a"): 3.0, weights("wb", "b"): 1.0}, total=2.0)
    proposal = propose(halved, None, XINT8, 1.0)
    assert proposal.nodes == ("a",)
    assert proposal.predicted == pytest.approx(0.5)
    assert proposal.operations == pytest.approx(0.5)


def test_what_turns_out_not_to_be_needed_is_given_back():
    """a gains 2 for 1 product and comes first; b, which has to come then, is enough alone."""
    measured = found([layer("a", 1), layer("b", 10)], {weights("wa", "a"): 2.0, weights("wb", "b"): 8.0})
    proposal = propose(measured, None, XINT8, 3.0)
    assert proposal.nodes == ("b",)
    assert proposal.predicted == pytest.approx(2.0)


def test_16_bits_for_the_worst_activations():
    model, plan = planned(SMALL_MODELS["residual"]())
    measured = sensitivity(model, plan, SAMPLES)
    worst = max(
        (thing for thing in measured.sources if not thing.is_weight),
        key=lambda thing: measured.errors[thing.name] / thing.elements,
    )
    whole = sum(measured.errors.values())
    less = measured.errors[worst.name] * (1 - LEFT_BY_8_BITS) / whole
    proposal = propose(measured, plan.layout, XINT8, measured.total * (1 - less / 2), "a16")
    assert proposal.tensors == tuple(worst.activations)
    assert proposal.predicted == pytest.approx(measured.total * (1 - less))
    (override,) = proposal.recipe.overrides
    assert override.activations.dtype == "uint16"
    assert override.activations.power_of_two
    # and it does what it says
    again, layout = laid_out(SMALL_MODELS["residual"]())
    layout = assign_formats(again, layout, proposal.recipe)
    wide = [name for name, fmt in layout.formats.items() if fmt.bits == 16]
    assert wide == list(proposal.tensors)
    assert 'type = "uint16"' in to_toml(proposal.recipe)


def test_weights_alone_can_be_out_of_reach_of_16_bits():
    model, plan = planned(SMALL_MODELS["residual"]())
    measured = sensitivity(model, plan, SAMPLES)
    proposal = propose(measured, plan.layout, XINT8, 1e-12, "a16")
    assert not proposal.reached
    assert set(proposal.tensors) == {plan.layout.leader(name) for t in measured.sources for name in t.activations}


def test_8_bits_for_the_worst_weights():
    recipe = find_recipe("A8W8").replace(weights=IntegerFormat("int4"))
    model, plan = planned(SMALL_MODELS["residual"](), recipe=recipe)
    measured = sensitivity(model, plan, SAMPLES)
    mine = [thing for thing in measured.sources if thing.is_weight]
    worst = max(mine, key=lambda thing: measured.errors[thing.name] / thing.elements)
    less = measured.errors[worst.name] * (1 - LEFT_BY_4_BITS) / sum(measured.errors.values())
    proposal = propose(measured, plan.layout, recipe, measured.total * (1 - less / 2), "w8")
    assert proposal.nodes == (worst.layer,)
    assert proposal.predicted == pytest.approx(measured.total * (1 - less))
    assert proposal.recipe.overrides == (Override(nodes=(worst.layer,), weights=IntegerFormat("int8")),)
    all_of_them = propose(measured, plan.layout, recipe, 1e-12, "w8")
    assert not all_of_them.reached
    assert set(all_of_them.nodes) == {thing.layer for thing in mine}


def test_bad_input():
    with pytest.raises(UsageError, match="no proposal 'excluse'. Did you mean 'exclude'"):
        propose(THREE, None, XINT8, 1.0, "excluse")
    with pytest.raises(UsageError, match="above 0"):
        propose(THREE, None, XINT8, 0.0)
    wide = find_recipe("A16W8")
    model, plan = planned(SMALL_MODELS["residual"](), recipe=wide)
    with pytest.raises(UsageError, match="no activations of 8-bit integers"):
        propose(sensitivity(model, plan, SAMPLES[:1]), plan.layout, wide, 1e-9, "a16")
    with pytest.raises(UsageError, match="no 4-bit weights that could have 8"):
        propose(sensitivity(model, plan, SAMPLES[:1]), plan.layout, wide, 1e-9, "w8")
    starred = found([layer("a*")], {weights("w", "a*"): 1.0})
    with pytest.raises(UsageError, match="takes for a pattern"):
        propose(starred, None, XINT8, 0.1)
