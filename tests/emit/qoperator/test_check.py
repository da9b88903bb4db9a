from __future__ import annotations

import pytest

from detent.emit.qoperator import check_qoperator
from detent.errors import UsageError
from detent.numerics.formats import IntegerFormat
from detent.presets import find_recipe
from tests.emit.qoperator.forms import RECIPES, U8


@pytest.mark.parametrize("recipe", [*RECIPES.values(), find_recipe("XINT8"), find_recipe("A8W8")])
def test_8_bit_recipes_are_fine(recipe):
    check_qoperator(recipe)


def test_16_bit_activations_are_refused():
    with pytest.raises(UsageError, match="activations of recipe A16W8 are int16.*int8 and uint8.*QDQ"):
        check_qoperator(find_recipe("A16W8"))


@pytest.mark.parametrize("role", ["weights", "biases"])
def test_16_bit_constants_are_refused(role):
    with pytest.raises(UsageError, match=f"The {role} of recipe test are int16"):
        check_qoperator(U8.replace(**{role: IntegerFormat("int16")}))


def test_8_bit_biases_need_powers_of_two():
    with pytest.raises(UsageError, match="scale of their own.*int32"):
        check_qoperator(U8.replace(biases=IntegerFormat("int8")))
