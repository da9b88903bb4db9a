"""What is kept beside the output."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from detent.errors import OutputError
from detent.tuning import tuner
from detent.tuning.tuner import BEST, STEPS, Record, contents_of, folder_beside, key_of
from tests.conftest import tiny_model


def test_what_was_added_is_found_again(tmp_path):
    output = tmp_path / "out.onnx"
    record = Record.open(output, "key", resume=True)
    record.add("plain", {"loss": 3.0}, tiny_model())
    record.add("worse", {"loss": 5.0}, None)
    again = Record.open(output, "key", resume=True)
    assert again.steps == {"plain": {"loss": 3.0}, "worse": {"loss": 5.0}}
    assert again.best == "plain"
    assert [node.op_type for node in again.best_model().graph.node] == ["Conv", "Relu", "Conv"]
    again.remove()
    assert not folder_beside(output).exists()


@pytest.mark.parametrize("damage", ["{", "[]", '{"key": "other"}'])
def test_what_belongs_to_something_else_is_not_used(tmp_path, damage):
    output = tmp_path / "out.onnx"
    Record.open(output, "key", resume=True).add("plain", {"loss": 3.0}, tiny_model())
    (folder_beside(output) / STEPS).write_text(damage)
    assert Record.open(output, "key", resume=True).steps == {}


def test_a_record_whose_model_is_gone_is_not_used(tmp_path):
    output = tmp_path / "out.onnx"
    Record.open(output, "key", resume=True).add("plain", {"loss": 3.0}, tiny_model())
    (folder_beside(output) / BEST).unlink()
    assert Record.open(output, "key", resume=True).steps == {}


def test_without_a_folder_nothing_is_written(tmp_path):
    record = Record.open(tmp_path / "out.onnx", "key", resume=False)
    record.add("plain", {"loss": 3.0}, tiny_model())
    record.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    output = tmp_path / "out.onnx"
    folder_beside(output).write_text("a file is in the way")
    with pytest.raises(OutputError, match=r"out\.onnx\.tuning"):
        Record.open(output, "key", resume=True).add("plain", {}, None)


def test_keys_tell_parts_apart(tmp_path):
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 2})
    (tmp_path / "one.txt").write_text("1")
    before = contents_of(tmp_path)
    (tmp_path / "two.txt").write_text("22")
    assert contents_of(tmp_path) != before
    assert json.dumps(before)
    one, other = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    assert contents_of(one) == contents_of(one.copy()) != contents_of(other)
    assert contents_of({"x": one}) != contents_of({"x": other})
    assert contents_of(iter([one])) != contents_of(iter([one]))  # nobody can know what a stream gives


def test_a_record_of_an_earlier_version_is_used(tmp_path):
    output = tmp_path / "out.onnx"
    folder_beside(output).mkdir()
    plain = {"key": "key", "rungs": {"plain": {"loss": 3.0}}, "best": None}
    (folder_beside(output) / "ladder.json").write_text(json.dumps(plain))
    assert Record.open(output, "key", resume=True).steps == plain["rungs"]


@pytest.mark.parametrize("moment", ["save", "write_sealed"])
def test_another_tuning_of_the_same_output_that_ends_takes_nothing_away(tmp_path, monkeypatch, moment):
    output, real, calls = tmp_path / "out.onnx", getattr(tuner, moment), []

    def write(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            shutil.rmtree(folder_beside(output))
        return real(*arguments)

    monkeypatch.setattr(tuner, moment, write)
    Record.open(output, "key", resume=True).add("plain", {"loss": 3.0}, tiny_model())
    again = Record.open(output, "key", resume=True)
    assert (again.steps, again.best) == ({"plain": {"loss": 3.0}}, "plain")
