from __future__ import annotations

import pytest

from detent.emit.output_formats import check_formats
from detent.errors import UsageError
from detent.numerics.formats import IntegerFormat
from detent.recipe.file import find_recipe
from tests.emit.qoperator.forms import RECIPES, U8


@pytest.mark.parametrize("recipe", [*RECIPES.values(), find_recipe("XINT8"), find_recipe("A8W8")])
def test_8_bit_recipes_are_fine(recipe):
    check_formats(recipe.replace(format="qoperator"))


def test_16_bit_activations_are_refused():
    with pytest.raises(UsageError, match="activations of recipe A16W8 are int16"):
        check_formats(find_recipe("A16W8").replace(format="qoperator"))


@pytest.mark.parametrize("role", ["weights", "biases"])
def test_16_bit_constants_are_refused(role):
    with pytest.raises(UsageError, match=f"{role} of recipe test are int16"):
        check_formats(U8.replace(format="qoperator", **{role: IntegerFormat("int16")}))


def test_8_bit_biases_need_powers_of_two():
    with pytest.raises(UsageError, match="scale of their own.*int32"):
        check_formats(U8.replace(format="qoperator", biases=IntegerFormat("int8")))
