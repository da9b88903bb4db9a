from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import detent
from detent.errors import ModelError
from detent.pipeline import prepared
from detent.pipeline.job import make_job
from detent.progress import silent
from detent.tasks import Task
from tests.conftest import tiny_model
from tests.models import build, info, node, normal, with_maps


def test_nearly_tied_scores_before_a_top_k_are_told_and_what_differs_before_it_is_an_error(monkeypatch):
    proto = build(
        [
            node("Conv", "x w", "s"),
            node("Reshape", "s flat", "f"),
            node("TopK", "f k", "v i"),
            node("Cast", "i", "y", to=1),
        ],
        "y",
        {"w": normal(2, 3, 1, 1), "flat": np.array([1, -1]), "k": np.array([5])},
    )
    data = [{"x": normal(1, 3, 8, 8, seed=seed)} for seed in range(3)]
    answer = prepared.Original.__call__
    # As another optimization of the same model may order ties.
    other_order = lambda self, sample: {name: array[:, ::-1] for name, array in answer(self, sample).items()}
    monkeypatch.setattr(prepared.Original, "__call__", other_order)
    report = detent.quantize(proto, None, data, "A8W8")
    assert [remark for remark in report.remarks if "TopK" in remark and "'y'" in remark]
    monkeypatch.setattr(prepared, "_difference", lambda before, after: 1.0)
    with pytest.raises(ModelError, match="'y'"):
        detent.quantize(proto, None, data, "A8W8")


def test_matrix_products_take_one_thread_within_a_stage_and_as_many_as_before_after_it():
    def threads():
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with prepared.Stopwatch(silent).step("equalize"):
            assert threads() <= {1}  # none where NumPy's library is not known
        assert threads() == before


def test_an_ir_version_of_the_future_is_no_obstacle(samples):
    """New exporters write the newest one, whatever the operators need."""
    model = tiny_model()
    model.ir_version = 99
    assert detent.quantize(model, None, samples).model.ir_version < 20


def test_the_given_model_shares_its_weights_with_the_one_that_is_prepared_if_they_are_large(tiny, samples, monkeypatch):
    def shared(job):
        ready = prepared.prepare_model(job, prepared.Stopwatch(silent))
        given, model = ready.original.open()._model, ready.model
        values = {name: value.const_value for name, value in given.graph.initializers.items()}
        return [each.const_value is values.get(name) for name, each in model.graph.initializers.items()], ready

    job = make_job(tiny, samples, "XINT8")
    assert not any(shared(job)[0])
    monkeypatch.setattr(prepared, "LARGE_MODEL", 0)
    found, ready = shared(job)
    assert any(found)
    ready.original.keep([])
    assert ready.original._given is None, "its weights are free when all was answered"
    small = detent.quantize(tiny, None, samples, "XINT8").model.SerializeToString()
    monkeypatch.undo()
    assert small == detent.quantize(tiny, None, samples, "XINT8").model.SerializeToString()


def test_an_output_that_was_a_map_is_told_of_and_measured():
    report = detent.quantize(with_maps(["cat", "dog", "eel"]), None, normal(8, 3, 8, 8))
    assert [warning for warning in report.warnings if "'y'" in warning and "cat, dog, eel" in warning]
    assert report.fidelity.outputs["y"].sqnr_db > 10


def test_sizes_that_a_fixed_batch_settles_tell_the_task():
    """Exporters name sizes that they do not follow: five tags, in a shape that is computed from the input's."""
    nodes = [
        node("Shape", "x", "all"),
        node("Gather", "all zero", "n"),
        node("Concat", "n five", "target", axis=0),
        node("Flatten", "x", "f"),
        node("Gemm", "f w", "g"),
        node("Sigmoid", "g", "s"),
        node("Reshape", "s target", "y"),
    ]
    constants = {"zero": np.array([0]), "five": np.array([5, 1]), "w": normal(12, 5)}
    proto = build(nodes, [info("y", ("n", "tags", "one"))], constants, [info("x", ("n", 3, 2, 2))])
    job = make_job(proto, {"x": normal(1, 3, 2, 2)}, "A8W8")
    found = prepared.prepare_model(job, prepared.Stopwatch(silent))
    assert found.purpose.task is Task.TAG and found.purpose.heads == {"y": "tags"}
