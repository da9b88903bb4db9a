from __future__ import annotations

import json
from types import MappingProxyType

import numpy as np
import onnx
import pytest

from detent.compat import auto_search
from detent.compat.configs import Config, get_default_config
from detent.compat.enums import CalibrationMethod, QuantType
from detent.errors import OutputError, UsageError


class Reader:
    def __init__(self, samples):
        self.samples = iter([{"x": each[None]} for each in samples])

    def get_next(self):
        return next(self.samples, None)


SPACE = {
    "calibrate_method": [CalibrationMethod.MinMax, CalibrationMethod.Percentile],
    "activation_type": [QuantType.QInt8],
    "include_cle": [False],
    "include_fast_ft": [False],
    "extra_options": {
        "ActivationSymmetric": [True],
        "CalibMovingAverage": [False, True],
        "FastFinetune": {"NumIterations": [2, 3], "OptimAlgorithm": ["adaround"]},
    },
}


class Settings:
    search_space = SPACE
    search_metric = "L2"
    search_metric_tolerance = 1e9
    search_stop_condition = MappingProxyType({"find_n_candidates": 2})


def search(tiny, samples, folder, **changes):
    settings = type("Chosen", (Settings,), {"search_output_dir": str(folder), **changes})()
    config = Config(get_default_config("S8S8_AAWS"))
    return auto_search.AutoSearch(tiny, config, settings, calibration_data_reader=Reader(samples))


def test_a_space_is_every_combination():
    assert len(auto_search.SearchSpace(SPACE).get_all_configs()) == 8


def test_candidates_are_the_best_first_and_their_files_are_there(tiny, samples, tmp_path):
    made = search(tiny, samples, tmp_path)
    found = made.search_model()
    assert len(found) == 2
    assert found[0]["difference"] <= found[1]["difference"]
    assert {each["model_path"] for each in found} == {str(path) for path in tmp_path.glob("iter_*.onnx")}
    assert made.best_candidate == found[0]


@pytest.mark.filterwarnings("ignore::detent.compat.option_rows.ScriptNote")
def test_what_means_the_same_is_tried_once_and_not_again(tiny, samples, tmp_path, monkeypatch):
    made = search(tiny, samples, tmp_path, search_stop_condition={})
    made.search_model()
    assert len(made.searched_space) == 3  # MinMax, its mean of ranges, and Percentile, which has none
    monkeypatch.setattr(auto_search.ModelQuantizer, "quantize_model", lambda *_: pytest.fail("quantized again"))
    again = search(tiny, samples, tmp_path, search_stop_condition={})
    again.search_model()
    assert again.searched_space == made.searched_space


def test_the_best_model_is_where_an_older_script_wants_it(tiny, samples, tmp_path):
    config, output = Config(get_default_config("S8S8_AAWS")), tmp_path / "best.onnx"
    settings = type("Chosen", (Settings,), {"search_output_dir": str(tmp_path)})()
    made = auto_search.AutoSearch(
        config=config,
        auto_search_config=settings,
        model_input=tiny,
        model_output=output,
        calibration_data_reader=Reader(samples),
    )
    best = made.search_model()[0]
    assert onnx.load(output) == onnx.load(best["model_path"])
    by_position = auto_search.AutoSearch(
        config, settings, tiny, str(output), calibration_data_reader=made.calibration_data_reader
    )
    assert by_position.model_output == output
    with pytest.raises(OutputError):
        auto_search.AutoSearch(
            tiny, config, settings, calibration_data_reader=Reader(samples), model_output=tmp_path / "none" / "o.onnx"
        )


def test_two_stages_tune_the_best_calibration(tiny, samples, tmp_path):
    space = {**SPACE, "calibrate_method": [CalibrationMethod.MinMax]}
    made = search(tiny, samples, tmp_path, search_space=space, two_stage_search=True, search_stop_condition={})
    best = made.search_model()[0]
    assert best["include_fast_ft"]
    assert best["extra_options"]["FastFinetune"]["NumIterations"] in (2, 3)


def test_the_evaluator_of_the_script_judges(tiny, samples, tmp_path):
    seen = []
    search(tiny, samples, tmp_path, search_evaluator=staticmethod(lambda path: seen.append(path) or 1.0)).search_model()
    assert seen[0] == str(tiny)
    assert len(seen) == 3


def test_conditions_of_a_space():
    space = {"a": ["x", None], "a_params": {"n": [1, 2], "only_if": {"a": "x"}}}
    assert auto_search.generate_all_configs(space) == [
        {"a": "x", "a_params": {"n": 1}},
        {"a": "x", "a_params": {"n": 2}},
        {"a": None},
    ]
    with pytest.raises(UsageError, match="'n'"):
        auto_search.generate_all_configs({"p": {"n": {"type": "int", "low": 1, "high": 2}}})


def test_the_newer_search(tiny, samples, tmp_path):
    config = auto_search.get_auto_search_config("XINT8_SEARCH")
    space = config["search_space"]
    for name in ("adaround_params", "adaquant_params"):
        space[name]["num_iterations"] = [2]
    config |= {"model_input": str(tiny), "calib_data_reader": Reader(samples), "output_dir": str(tmp_path)}
    best = auto_search.AutoSearchPro({**config, "n_trials": 2}).run()
    assert best["algorithms"] in ("adaround", "adaquant")
    assert json.loads((tmp_path / "best_params.json").read_text())["weight"] == "XInt8Spec"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: auto_search.get_auto_search_config("XINT9_SEARCH"), "XINT8_SEARCH"),
        (lambda: auto_search.AutoSearchPro({"model_input": "m.onnx"}), "calib_data_reader"),
        (lambda: auto_search.AutoSearch("m.onnx", Config(get_default_config("XINT8"))), "calibration_data_reader"),
    ],
)
def test_what_is_missing_is_named(make, named):
    with pytest.raises(UsageError, match=named):
        make()


@pytest.mark.parametrize("metric", auto_search.METRICS)
def test_equal_answers_are_nearest(metric):
    one = np.array([1.0, 2.0, 3.0])
    assert auto_search.METRICS[metric](one, one) < auto_search.METRICS[metric](one, 3 * one[::-1])
