from __future__ import annotations

import onnx_ir as ir
import pytest

from detent.prepare.affine import Affine, read_batchnorm
from tests.prepare.equivalence import bn_constants, make, node


def first(opset=17, outputs="y", constants=None, **attributes):
    item = node("BatchNormalization", "x s b m v", outputs, **attributes)
    proto = make([item], {"x": [1, 3, 4, 4]}, {"y": [1, 3, 4, 4]}, constants or bn_constants(3), opset)
    return next(iter(ir.from_proto(proto).graph))


def test_the_map():
    found = read_batchnorm(first(epsilon=0.5))
    given = bn_constants(3)
    assert isinstance(found, Affine)
    assert found.scale == pytest.approx(given["s"] / (given["v"] + 0.5) ** 0.5, rel=1e-6)
    assert found.shift == pytest.approx(given["b"] - given["m"] * found.scale, rel=1e-5)


def test_training_mode():
    assert "training" in str(read_batchnorm(first(outputs="y rm rv", training_mode=1)))


def test_negative_variance():
    constants = bn_constants(3)
    constants["v"] = -constants["v"] - 1
    assert "variance" in str(read_batchnorm(first(constants=constants)))
