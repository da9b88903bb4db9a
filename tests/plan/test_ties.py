from __future__ import annotations

from detent.plan.mixed import arrange
from detent.plan.select import Selection
from detent.recipe.file import find_recipe
from tests.models import as_ir, residual

DPU = find_recipe("XINT8").replace(rounding="dpu")


def ties(recipe, **selected):
    layout = arrange(as_ir(residual()), Selection(**selected), recipe)
    return {name: layout.ties_of(name) for name in layout.sites}


def test_the_device_rounds_up_what_it_computes_and_the_host_away_from_zero_what_it_feeds():
    assert ties(DPU) == {
        "x": "half_away",
        "w1": "half_even",
        "b1": "half_even",
        "r1": "half_up",
        "w2": "half_even",
        "b2": "half_even",
        "c2": "half_up",
        "y": "half_up",
    }


def test_the_result_of_a_node_that_stays_float_is_quantized_by_the_host():
    found = ties(DPU, exclude=("conv_c2",))
    assert (found["c2"], found["r1"], found["y"]) == ("half_away", "half_up", "half_up")


def test_half_to_even_is_what_the_file_says():
    assert set(ties(DPU.replace(rounding="half-even")).values()) == {"half_even"}
