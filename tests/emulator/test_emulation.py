from __future__ import annotations

import errno
import json

import numpy as np
import onnx
import pytest

import detent
from detent.errors import DataError, OutputError
from tests.emulator.qdq import Qdq, feeds_of


@pytest.fixture
def model(tmp_path):
    model = Qdq()
    weight = model.codes(np.random.default_rng(0).integers(-60, 60, (6, 4)), 6)
    result = model.op("Gemm", [model.input("n", 6, position=5), weight])
    path = tmp_path / "model.onnx"
    onnx.save(model.build(model.pair(result, 3)), path)
    return path


@pytest.fixture
def data(model):
    return [{"x0": feeds_of(onnx.load(model), seed)["x0"]} for seed in range(7)]


def test_answers_are_those_of_onnxruntime(model, data, tmp_path):
    done = detent.emulate(model, data, tmp_path / "new" / "answers")
    (output,) = done.outputs
    assert (done.samples, output.elements, output.differing, output.farthest) == (2 * len(data), 8 * len(data), 0, 0.0)
    assert (output.rows, output.same_top1) == (2 * len(data), 2 * len(data))
    files = sorted((tmp_path / "new" / "answers").iterdir())
    assert [file.name for file in files][:2] == ["00000.npy", "00001.npy"]  # each sample has two rows
    np.testing.assert_array_equal(
        np.concatenate([np.load(file) for file in files[-2:]]), detent.Emulator(model)(data[-1])[0]
    )


def test_answers_have_the_names_that_infer_gives_them(model, tmp_path):
    for name in ("b", "a"):
        np.save(tmp_path / f"{name}.npy", feeds_of(onnx.load(model), 1)["x0"])
    detent.emulate(model, tmp_path / "a.npy", tmp_path / "integers")
    detent.infer(model, tmp_path / "a.npy", tmp_path / "float")
    found = detent.compare(tmp_path / "float", tmp_path / "integers")
    assert [each.name for each in found.files] == ["a_0.npy", "a_1.npy"]
    assert all(each.l1 == 0 for each in found.files)


def test_answers_are_there_as_a_whole_or_not_at_all(model, tmp_path, monkeypatch):
    saved = []

    def full(*arguments, **named):
        saved.append(arguments)
        if len(saved) == 3:
            raise OSError(errno.ENOSPC, "no space")
        np_save(*arguments, **named)

    np_save = np.save
    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OutputError, match="the disk is full. No part of it was left behind"):
        detent.emulate(model, limit=4, output=tmp_path / "answers")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_the_rounding_of_the_device_differs_on_ties(data):
    model = Qdq()
    weight = model.codes(np.random.default_rng(0).integers(-2, 3, (6, 4)), 1)
    coarse = model.build(model.pair(model.op("Gemm", [model.input("n", 6, position=5), weight]), 5))  # shifts by one
    done = detent.emulate(coarse, data, rounding="dpu")
    (output,) = done.outputs
    assert 0 < output.differing < output.elements
    assert output.farthest == 2.0**-5
    assert done.folder is None


def test_the_same_nan_and_infinity_are_no_difference():
    model = Qdq()
    quantized = model.build(model.op("Log", [model.pair(model.op("Relu", [model.input("x", 4, position=5)]), 5)]))
    data = np.float32([[-1, 0, 0.5, 1]])
    (output,) = detent.emulate(quantized, data).outputs
    assert (output.differing, output.farthest) == (0, 0.0)


def test_random_data_is_said_to_be_random(model):
    done = detent.emulate(model, limit=3)
    assert (done.random, done.samples) == (True, 3)


def test_what_cannot_be(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="exists and is not an empty folder"):
        detent.emulate(model, limit=1, output=tmp_path / "file")
    with pytest.raises(DataError, match="axis 1 must be 6"):
        detent.emulate(model, np.zeros((2, 5), np.float32))


def test_the_command(detent, model, data, tmp_path):
    np.save(tmp_path / "data.npy", np.concatenate([each["x0"] for each in data]))
    outcome = detent("emulate", model, "--data", tmp_path / "data.npy", "--limit", 5, "--out", tmp_path / "answers")
    assert outcome.code == 0, outcome.err
    assert "1 nodes in integers, 2 tensors of codes" in outcome.out
    assert "5 of 5" in outcome.out
    assert len(list((tmp_path / "answers").iterdir())) == 5
    told = json.loads(detent("emulate", model, "--rounding", "dpu", "--limit", 4, "--json").out)
    assert (told["report"]["rounding"], told["samples"], told["random"]) == ("dpu", 4, True)
    refused = detent("emulate", model, "--rounding", "up")
    assert (refused.code, "half-even, dpu" in refused.err) == (2, True)
