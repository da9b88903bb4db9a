from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from detent.emit.emitter import emit
from detent.emulator import EmulatedValues
from detent.errors import ModelError
from detent.graph.session import Runner
from detent.recipe.file import find_recipe
from tests.models import IMAGE, SMALL_MODELS, normal, planned

FEEDS = {"x": normal(*IMAGE, seed=9)}


@pytest.mark.parametrize("name", ["residual", "concat", "leaky"])
def test_every_value_is_what_onnxruntime_computes_with_its_rounding(name):
    model, plan = planned(SMALL_MODELS[name]())
    names = list(emit(model, plan).values())
    before = ir.to_proto(model).SerializeToString()
    found = EmulatedValues(model, "half-even")(FEEDS, "the sample", names)
    assert ir.to_proto(model).SerializeToString() == before, "the model is left as it is"
    for array, expected in zip(found, Runner(model, names, exact=True)(FEEDS), strict=True):
        assert array.dtype == expected.dtype == np.float32
        np.testing.assert_array_equal(array, expected)


def test_a_model_that_is_not_the_devices_is_refused():
    model, plan = planned(SMALL_MODELS["residual"](), recipe=find_recipe("A8W8"))
    emit(model, plan)
    with pytest.raises(ModelError, match="power of two"):
        EmulatedValues(model, "dpu")
