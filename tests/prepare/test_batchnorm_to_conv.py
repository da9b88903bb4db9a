from __future__ import annotations

import pytest

from detent.prepare import BatchNormToConv
from tests.prepare.equivalence import bn_constants, check, f32, make, node

BN = node("BatchNormalization", "x s b m v", "y", name="bn")


@pytest.mark.parametrize("spatial", [(5,), (5, 6), (3, 4, 5)])
@pytest.mark.parametrize("opset", [17, 18, 21])
def test_becomes_depthwise(spatial, opset):
    done = check(BatchNormToConv(), make([BN], {"x": ["N", 7, *spatial]}, {"y": None}, bn_constants(7), opset))
    assert done.ops == ["Conv"]
    assert done.attributes("Conv") == {"group": 7, "kernel_shape": [1] * len(spatial)}
    assert set(done.constants) == {"bn/conv_weight", "bn/conv_bias"}


def test_shared_parameters_stay_for_the_other_node():
    other = node("BatchNormalization", "x s b m v", "z", name="other", epsilon=0.1)
    done = check(BatchNormToConv(), make([BN, other], {"x": [1, 3, 4, 4]}, {"y": None, "z": None}, bn_constants(3)))
    assert done.ops == ["Conv", "Conv"]
    assert len(done.constants) == 4


def test_declines_rank_2_and_computed_parameters():
    done = check(BatchNormToConv(), make([BN], {"x": [4, 3]}, {"y": None}, bn_constants(3)))
    assert "2 dimensions" in done.why
    constants = bn_constants(3)
    scale = constants.pop("s")
    proto = make([BN], {"x": [1, 3, 4, 4], "s": [3]}, {"y": None}, constants)
    assert "scale is not constant" in check(BatchNormToConv(), proto, {"x": f32(1, 3, 4, 4), "s": scale}).why
