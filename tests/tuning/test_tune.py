"""Tuning from end to end, on the demo model and on one whose layers do not take rounding well."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import detent
from detent.demo import CALIBRATION, FOLDER, MODEL, PREPROCESS
from detent.errors import DataError, UsageError
from detent.numerics.formats import IntegerFormat
from detent.observe.sweep import sweep
from detent.pipeline import observed
from detent.recipe.file import read_recipe
from detent.results.tensors import LOSS_UNITS
from detent.tuning import tuner as tuning
from detent.tuning.tuner import ENDED, MET, OUT_OF_TIME, folder_beside
from tests.models import chain_with_unequal_channels

ROWS = np.random.default_rng(3).standard_normal((48, 3, 8, 8)).astype(np.float32)


def tune(output, **options):
    told = []
    model = chain_with_unequal_channels()
    result = detent.tune(model, output, ROWS, **{"max_drop": 0.0, "told": told.append, **options})
    assert list(result.rungs) == told
    return result


def test_the_first_rung_that_is_good_enough_is_taken(tmp_path):
    result = tune(tmp_path / "out.onnx", max_drop=100.0)
    assert [rung.name for rung in result.rungs] == ["XINT8"]
    assert (result.met, result.stopped, result.taken) == (True, MET, "XINT8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.onnx", "out.toml"]


class OnlyTheFirst:
    """A metric that finds every model worse than the first quantized one."""

    def __init__(self):
        self.asked = 0

    def __call__(self, outputs, sample):
        model, self.asked = self.asked // JUDGED, self.asked + 1
        return -1.0 if model == 1 else -float(model)  # the float model, which is asked first, gets 0


class Never:
    """A metric that finds every model worse than the float one, which is asked first."""

    def __init__(self):
        self.asked = 0

    def __call__(self, outputs, sample):
        self.asked += 1
        return float(self.asked <= JUDGED)


JUDGED = len(ROWS) // 8


def test_where_all_other_steps_are_worse_the_recipe_itself_is_the_result_byte_for_byte(tmp_path):
    result = tune(tmp_path / "tuned.onnx", metric=detent.Metric("only the first", score=OnlyTheFirst()))
    assert len(result.rungs) > 5
    assert all(rung.loss > result.rungs[0].loss for rung in result.rungs[1:])
    assert (result.taken, result.recipe.name, result.stopped) == ("XINT8", "XINT8", ENDED)
    detent.quantize(chain_with_unequal_channels(), tmp_path / "default.onnx", ROWS)
    assert (tmp_path / "tuned.onnx").read_bytes() == (tmp_path / "default.onnx").read_bytes()


def test_without_labels_the_task_judges():
    # Enough to hold out 32: of fewer, `quantize` alone also judges by samples that only gave ranges.
    model, shifts = chain_with_unequal_channels(), np.linspace(0, 1, 6 * len(ROWS), dtype=np.float32)
    rows = np.concatenate([ROWS] * 6) + shifts[:, None, None, None]
    result = detent.tune(model, None, rows, max_drop=1e9)
    assert result.outcome.unit == LOSS_UNITS["classify"]
    assert result.samples == len(rows) // 8
    report = detent.quantize(model, None, rows)
    assert result.outcome.loss == pytest.approx(100 * report.fidelity.agreement.loss)


@pytest.mark.parametrize(("count", "hold_out", "judged"), [(20, None, 4), (8, None, 4), (40, None, 5), (20, 6, 6)])
def test_as_many_samples_are_held_out_as_judge(count, hold_out, judged):
    result = detent.tune(chain_with_unequal_channels(), None, ROWS[:count], max_drop=1e9, hold_out=hold_out)
    assert result.samples == judged
    with_as_many = detent.quantize(chain_with_unequal_channels(), None, ROWS[:count], hold_out=judged)
    assert count == 40 or result.model == with_as_many.model


@pytest.mark.parametrize(("count", "hold_out"), [(7, None), (20, 2)])
def test_too_few_samples_to_judge_by_are_refused(count, hold_out):
    with pytest.raises(UsageError, match=r"held out to judge by.*Give 8 samples or more, a larger --hold-out, or"):
        detent.tune(chain_with_unequal_channels(), None, ROWS[:count], hold_out=hold_out)


def test_every_rung_is_climbed_where_none_is_good_enough(tmp_path):
    result = tune(tmp_path / "out.onnx", metric=detent.Metric("never", score=Never()))
    names = [rung.name for rung in result.rungs]
    assert names[0] == "XINT8"
    assert names.index("rounding") < names.index("no equalization") < names.index("AdaRound")
    assert {"range search", "rounding", "AdaRound", "AdaQuant"} <= set(names)
    assert names[-1].startswith("float x")
    assert (result.met, result.stopped) == (False, ENDED)
    assert result.outcome.loss <= result.rungs[0].loss


def test_models_are_judged_as_the_device_rounds():
    unseen = np.random.default_rng(4).standard_normal((16, 3, 8, 8)).astype(np.float32)
    metric = detent.Metric("all scores", score=lambda outputs, sample: float(np.abs(outputs).sum()))
    recipe = detent.find_recipe("XINT8").replace(rounding="dpu")
    result = tune(None, recipe=recipe, max_drop=1e9, evaluation=unseen, metric=metric)
    losses = [
        detent.evaluate([chain_with_unequal_channels(), result.model], unseen, metric=metric, emulate=rounding)
        .models[1]
        .losses[0]
        .points
        for rounding in ("dpu", "half-even")
    ]
    assert result.outcome.loss == losses[0] != losses[1]


def test_4_bit_weights_get_8_before_anything_stays_float(monkeypatch):
    monkeypatch.setattr(tuning, "worth_trying", lambda *_: ())
    recipe = detent.find_recipe("A8W8").replace(weights=IntegerFormat("int4"), refinement=detent.BiasCorrection())
    result = tune(None, recipe=recipe)
    kinds = list(dict.fromkeys(rung.name.split(" x")[0] for rung in result.rungs))
    assert kinds == ["A8W8", "W8", "A16", "float"]
    widest = [rung for rung in result.rungs if rung.name.startswith("W8")][-1]
    assert widest.output_error < result.rungs[0].output_error / 2
    assert any(override.weights == IntegerFormat("int8") for override in result.recipe.overrides), "it is kept"


def test_the_winning_recipe_gives_the_same_model_again(tmp_path):
    result = tune(tmp_path / "out.onnx")
    recipe = read_recipe(tmp_path / "out.toml")
    assert recipe.name == "XINT8-tuned"
    again = detent.quantize(chain_with_unequal_channels(), None, ROWS, recipe)
    assert again.model.SerializeToString() == result.model.SerializeToString()
    assert onnx.load(tmp_path / "out.onnx").graph.node == again.model.graph.node


def test_an_interrupted_tuning_continues(tmp_path):
    output = tmp_path / "out.onnx"

    done = []

    def interrupt(outcome):
        done.append(outcome.name)
        if len(done) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(output, told=interrupt)
    assert not output.exists()
    assert folder_beside(output).is_dir()
    continued = tune(output)
    assert [rung.resumed for rung in continued.rungs][:3] == [True, True, False]
    assert not folder_beside(output).exists()
    whole = tune(tmp_path / "whole.onnx")
    assert [rung.loss for rung in whole.rungs] == [rung.loss for rung in continued.rungs]
    assert (tmp_path / "whole.onnx").read_bytes() == output.read_bytes()


def test_with_a_tiny_budget_the_lowest_rung_is_the_result(tmp_path):
    result = tune(tmp_path / "out.onnx", budget=1e-6)
    assert [rung.name for rung in result.rungs] == ["XINT8"]
    assert result.stopped == OUT_OF_TIME
    assert (tmp_path / "out.onnx").exists()
    assert result.kept == str(folder_beside(tmp_path / "out.onnx"))
    longer = tune(tmp_path / "out.onnx", budget=1e-6)
    assert [rung.resumed for rung in longer.rungs] == [True]
    met = tune(tmp_path / "out.onnx", budget=1e-6, max_drop=100.0)
    assert met.kept is None
    assert not folder_beside(tmp_path / "out.onnx").exists()


def test_a_rung_that_runs_out_of_time_leaves_the_best_so_far(tmp_path, monkeypatch):
    seconds = iter(range(1000))
    monkeypatch.setattr(tuning.Clock, "elapsed", property(lambda _: float(next(seconds))))
    result = tune(None, budget=20.0)
    assert result.stopped == OUT_OF_TIME
    assert 1 <= len(result.rungs) < 7
    assert result.model is not None


def test_labelled_data_is_judged_by_top_1(tmp_path):
    result = detent.tune(
        MODEL, tmp_path / "out.onnx", CALIBRATION, evaluation=FOLDER, preprocess=PREPROCESS, evaluation_limit=40
    )
    assert result.met
    assert "points of top-1" in result.outcome.unit
    assert "top-1" in result.reference
    assert json.loads(result.to_json())["rungs"][0]["name"] == "XINT8"


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"max_drop": -1.0}, UsageError, "negative"),
        ({"max_drop": float("nan")}, UsageError, "negative"),
        ({"budget": "soon"}, UsageError, "10m"),
        ({"evaluation_limit": 4}, UsageError, "--eval"),
        ({"metric": detent.Metric("nan", score=lambda outputs, sample: float("nan"))}, UsageError, "finite"),
        ({"evaluation": "no/such/folder"}, DataError, "no/such/folder"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(tmp_path, options, error, said):
    with pytest.raises(error, match=said):
        tune(tmp_path / "out.onnx", **options)
    assert not (tmp_path / "out.onnx").exists()


def test_no_data_at_all():
    with pytest.raises(UsageError, match="--calib"):
        detent.tune(chain_with_unequal_channels(), None)


def test_a_stream_cannot_be_judged_by():
    with pytest.raises(UsageError, match="stream"):
        detent.tune(chain_with_unequal_channels(), None, iter(ROWS))


def test_steps_that_change_only_what_comes_after_observation_share_one_sweep(monkeypatch):
    """Sweeps are counted: one with the channels as they are, one with them equalized, whatever is tried after."""
    swept = []
    monkeypatch.setattr(observed, "sweep", lambda *given, **named: swept.append(1) or sweep(*given, **named))
    monkeypatch.setattr(tuning, "exception_stages", lambda _: ())
    result = tune(None, metric=detent.Metric("never", score=Never()))
    names = [rung.name for rung in result.rungs]
    assert {"XINT8", "no equalization", "rounding", "AdaRound"} <= set(names)
    assert len(swept) == 2


def test_a_shared_observation_changes_no_byte(monkeypatch):
    first = tune(None, max_drop=3.0)
    monkeypatch.setattr(observed.Observed, "serves", lambda self, job: False)
    assert tune(None, max_drop=3.0).model.SerializeToString() == first.model.SerializeToString()


def test_the_only_layer_does_not_stay_float():
    weights = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Gemm", ["x", "w"], ["y"], name="only", transB=1)],
            "one layer",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
            [numpy_helper.from_array(weights, "w")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    rows = np.random.default_rng(1).standard_normal((24, 8)).astype(np.float32)
    rounded = detent.Metric("on the grid", score=lambda outputs, _: float(outputs[0, 0] * 64 % 1 != 0))
    result = detent.tune(model, None, rows, max_drop=0.0, hold_out=8, metric=rounded)
    assert not result.met
    assert not any(rung.name.startswith("float") for rung in result.rungs)
