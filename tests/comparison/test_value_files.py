from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from detent.comparison.folders import dump_codes
from detent.emulator import Emulator
from detent.errors import ModelError, UsageError
from tests.conftest import tiny_model
from tests.emulator.qdq import Qdq, code_names, feeds_of
from tests.models import values_of


@pytest.fixture
def model():
    model = Qdq("uint8")
    weight = model.codes(np.random.default_rng(0).integers(-60, 60, (6, 4)), 6)
    result = model.op("Gemm", [model.input(2, 6, position=5), weight])
    return model.build(model.pair(result, 3))


@pytest.mark.parametrize("rounding", [None, "half-even"])
def test_codes_are_the_int8_operands_of_the_device(model, tmp_path, rounding):
    feeds = feeds_of(model)
    done = dump_codes(model, feeds, tmp_path / "codes", rounding=rounding)
    assert (done.activations, done.constants) == (2, 1)
    expected = values_of(model, code_names(model), feeds)
    for stem, name in done.codes.items():
        found = np.fromfile(tmp_path / "codes" / f"{stem}.bin", np.int8)
        assert (tmp_path / "codes" / f"{stem}.txt").read_text().split() == [str(code) for code in found]
        if name in expected:
            np.testing.assert_array_equal(found, expected[name].reshape(-1).astype(int) - 128)


def test_the_device_rounds_its_own_way(model, tmp_path):
    feeds = feeds_of(model)
    done = dump_codes(model, feeds, tmp_path, rounding="dpu")
    stem, name = list(done.codes.items())[1]
    expected = Emulator(model, rounding="dpu").codes(feeds)[name].astype(int) - 128
    np.testing.assert_array_equal(np.fromfile(tmp_path / f"{stem}.bin", np.int8), expected.reshape(-1))


def test_float_values(model, tmp_path):
    done = dump_codes(model, feeds_of(model), tmp_path, floats=True)
    gemm = next(node.output[0] for node in model.graph.node if node.op_type == "Gemm")
    assert gemm in done.floats.values()
    expected = values_of(model, [gemm], feeds_of(model))[gemm]
    np.testing.assert_array_equal(np.fromfile(tmp_path / "float" / f"{gemm}.bin", np.float32), expected.reshape(-1))


def test_bad_input(model, tmp_path):
    with pytest.raises(UsageError, match="leave --rounding out"):
        dump_codes(model, feeds_of(model), tmp_path, floats=True, rounding="dpu")
    with pytest.raises(ModelError, match="not quantized"):
        dump_codes(tiny_model(), {"x": np.zeros((1, 3, 8, 8), np.float32)}, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_command(detent, model, tmp_path):
    onnx.save(model, tmp_path / "model.onnx")
    np.save(tmp_path / "data.npy", feeds_of(model)["x0"])
    arguments = ["dump", tmp_path / "model.onnx", "--data", tmp_path / "data.npy", "--out", tmp_path / "codes"]
    outcome = detent(*arguments, "--float")
    assert outcome.code == 0, outcome.err
    assert "codes of 2 tensors and 1 constants" in outcome.out
    again = detent(*arguments)
    assert again.code == 5
    assert "not an empty folder" in again.err
    arguments[-1] = tmp_path / "device"
    told = json.loads(detent(*arguments, "--rounding", "dpu", "--json").out)
    assert (told["activations"], told["constants"], told["floats"]) == (2, 1, {})
