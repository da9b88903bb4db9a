"""Statistics from a file, from workers and after an interruption: always the same result."""

from __future__ import annotations

import dataclasses
import json
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest

import detent as package
from detent.demo import CALIBRATION, MODEL, PREPROCESS
from detent.equalizations import CrossLayer, GlobalEqualization
from detent.errors import DataError, UsageError
from detent.methods import METHODS
from detent.observe.statistics_file import load_statistics, save_statistics
from tests.conftest import tiny_model
from tests.equalize.networks import between_convs
from tests.models import node

XINT8 = package.find_recipe("XINT8").replace(refinement=None)
UNREFINED = ("--refine", "none")  # refinement looks at samples, which statistics do not have


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The demo's statistics, and the model that was quantized while they were counted."""
    folder = tmp_path_factory.mktemp("saved")
    file, out = folder / "demo.stats", folder / "out.onnx"
    package.quantize(MODEL, out, CALIBRATION, XINT8, preprocess=PREPROCESS, save_stats=file)
    return file, out.read_bytes()


def test_statistics_from_a_file_give_the_same_model(detent, saved, tmp_path):
    stats, expected = saved
    outcome = detent("quantize", MODEL, tmp_path / "again.onnx", "--stats", stats, *UNREFINED)
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "again.onnx").read_bytes() == expected
    assert "Not measured: there was no data" in outcome.out
    assert f"Calibrated on the statistics in {stats} (56 images" in outcome.out


def test_with_data_beside_them_the_result_is_measured(detent, saved, demo_arguments):
    stats, expected = saved
    measured = json.loads(detent(*demo_arguments, "--stats", stats, "--json", *UNREFINED).out)
    assert demo_arguments[2].read_bytes() == expected
    assert measured["fidelity"]["samples"] == 32
    assert measured["fidelity"]["counted"] == 24
    assert measured["calibration"]["samples"] == 56


@pytest.fixture(scope="module")
def unequalized(tmp_path_factory):
    """Statistics of the demo as it is (equalization depends on the kind of scales), and what they were counted on."""
    path = tmp_path_factory.mktemp("stats") / "demo.stats"
    data = {"calibration": CALIBRATION, "preprocess": PREPROCESS, "limit": 16}
    package.quantize(MODEL, recipe=XINT8.replace(equalize=False), save_stats=path, **data)
    return path, data


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("NonOverflow", "Distribution")])
def test_one_sweep_serves_every_method_of_another_recipe(method, unequalized):
    recipe = package.find_recipe("A8W8").replace(method=METHODS[method], refinement=None, equalize=False)
    stats, data = unequalized
    reused, counted = (
        package.quantize(MODEL, stats=stats, recipe=recipe),
        package.quantize(MODEL, recipe=recipe, **data),
    )
    assert reused.model == counted.model
    assert reused.fidelity is None


def test_statistics_of_an_equalized_model_serve_another_recipe(saved):
    """The channels keep the factors that were found for the first one."""
    recipe = package.find_recipe("A8W8").replace(refinement=None)
    data = {"calibration": CALIBRATION, "preprocess": PREPROCESS, "recipe": recipe}
    reused, counted = package.quantize(MODEL, stats=saved[0], **data), package.quantize(MODEL, **data)
    for name, closeness in counted.fidelity.outputs.items():
        assert reused.fidelity.outputs[name].sqnr_db == pytest.approx(closeness.sqnr_db, abs=1.0)


def test_factors_found_layer_by_layer_are_kept_too(tmp_path):
    recipe = XINT8.replace(equalize=CrossLayer(steps=2))
    data = {"calibration": CALIBRATION, "preprocess": PREPROCESS, "recipe": recipe}
    counted = package.quantize(MODEL, save_stats=tmp_path / "demo.stats", **data)
    assert counted.equalization.channels > 0 and counted.equalization.noise_before is None
    assert package.quantize(MODEL, stats=tmp_path / "demo.stats", recipe=recipe).model == counted.model
    assert package.quantize(MODEL, **{**data, "recipe": XINT8}).model != counted.model


@pytest.mark.parametrize("way", [GlobalEqualization, CrossLayer])
def test_absorbed_biases_are_kept_too(way, samples, tmp_path):
    model = between_convs([node("Relu", "c", "m")], {"b1": np.array([60, 0, 80, -60], np.float32)})
    recipe, plain = XINT8.replace(equalize=way(absorb=True)), XINT8.replace(equalize=way())
    file, without = tmp_path / "absorbed.stats", tmp_path / "plain.stats"
    counted = package.quantize(model, None, samples, recipe, save_stats=file)
    assert counted.absorption.channels == 2
    assert "Absorbed the biases of 2 channels of 1 layers" in counted.to_text(verbose=True)
    assert counted.to_dict()["absorption"]["amounts"] == {}
    reused = package.quantize(model, stats=file, recipe=recipe)
    assert reused.model == counted.model
    assert reused.absorption == counted.absorption
    other = package.quantize(model, None, samples, plain, save_stats=without)
    assert other.absorption is None and other.model != counted.model
    name = way.__name__
    with pytest.raises(UsageError, match=f"after the equalization {name}:absorb=true, and recipe XINT8 has {name}\\. "):
        package.quantize(model, stats=file, recipe=plain)
    with pytest.raises(UsageError, match=f"after the equalization {name}, and recipe XINT8 has {name}:absorb=true"):
        package.quantize(model, stats=without, recipe=recipe)


EQUALIZATIONS = {
    "none": None,
    "GlobalEqualization": GlobalEqualization(),
    "CrossLayer": CrossLayer(),
    "CrossLayer:steps=2,append_bias=false": CrossLayer(steps=2, append_bias=False),
}


@pytest.mark.parametrize("counted", EQUALIZATIONS)
def test_statistics_are_for_the_equalization_that_they_were_counted_after(counted, samples, tmp_path):
    file = tmp_path / "saved.stats"
    package.quantize(tiny_model(), None, samples, XINT8.replace(equalize=EQUALIZATIONS[counted]), save_stats=file)
    for wanted, choice in EQUALIZATIONS.items():
        recipe = XINT8.replace(equalize=choice)
        if wanted == counted:
            package.quantize(tiny_model(), stats=file, recipe=recipe)
            continue
        words = f"equalization {counted}, and recipe XINT8 has {wanted}. Give --set equalize={counted}, or calibrate"
        with pytest.raises(UsageError, match=re.escape(words)):
            package.quantize(tiny_model(), stats=file, recipe=recipe)


@pytest.mark.parametrize("choice", [None, GlobalEqualization()])
def test_statistics_of_an_earlier_format_do_not_say_which_equalization_it_was(choice, samples, tmp_path):
    recipe, file = XINT8.replace(equalize=choice), tmp_path / "earlier.stats"
    counted = package.quantize(tiny_model(), None, samples, recipe, save_stats=file)
    save_statistics(file, dataclasses.replace(load_statistics(file), equalization=None))
    if choice is None:  # there is only one way to do nothing
        assert package.quantize(tiny_model(), stats=file, recipe=recipe).model == counted.model
        return
    with pytest.raises(UsageError, match=r"saved by Detent .*, which did not note the equalization .* again"):
        package.quantize(tiny_model(), stats=file, recipe=recipe)


def test_another_selection_uses_the_same_statistics(saved):
    stats, _ = saved
    report = package.quantize(MODEL, recipe=XINT8, stats=stats, exclude="head/*")
    assert report.left_float()


def test_most_common_needs_its_own_statistics(detent, saved, demo_arguments, tmp_path):
    stats, _ = saved
    method = ["--method", "MinMSE:mode=MostCommon", *UNREFINED]
    outcome = detent("quantize", MODEL, tmp_path / "x.onnx", "--stats", stats, *method)
    assert outcome.code == 2
    assert "needs the votes of each sample" in outcome.err
    assert detent(*demo_arguments, "--save-stats", tmp_path / "votes.stats", *method).code == 0
    first = demo_arguments[2].read_bytes()
    assert detent("quantize", MODEL, tmp_path / "x.onnx", "--stats", tmp_path / "votes.stats", *method).code == 0
    assert (tmp_path / "x.onnx").read_bytes() == first


def test_an_executor_gives_the_same_model(saved, tmp_path):
    stats, expected = saved
    with ThreadPoolExecutor(2) as pool:
        package.quantize(
            MODEL,
            tmp_path / "pool.onnx",
            CALIBRATION,
            XINT8,
            preprocess=PREPROCESS,
            executor=pool,
            save_stats=tmp_path / "pool.stats",
        )
    assert (tmp_path / "pool.onnx").read_bytes() == expected
    assert (tmp_path / "pool.stats").read_bytes() == stats.read_bytes()


def test_statistics_serve_a_shape_that_is_fixed_afterwards(detent, saved, demo_arguments):
    stats, _ = saved
    outcome = detent(*demo_arguments, "--stats", stats, "--fix-shape", "image=1,1,32,32")
    assert outcome.code == 0, outcome.err


def test_refusals_come_before_any_work(detent, saved, demo_arguments, tmp_path):
    stats, _ = saved
    refused = {
        ("--stats", stats, "--save-stats", tmp_path / "x"): "leave --save-stats, --workers and --dask out",
        ("--stats", stats, "--workers", "2"): "leave --save-stats, --workers and --dask out",
        ("--providers", "Abacus"): "has no provider 'Abacus'",
        ("--workers", "2", "--dask", "nowhere:1"): "--workers",
        ("--stats", stats, "--limit", "20"): "counted on other data",
        ("--stats", tmp_path / "missing.stats"): "missing.stats",
        ("--method", "MinMES"): "Did you mean 'MinMSE'",
        ("--recipe", "A8W8", "--method", "NonOverflow"): "NonOverflow",
        ("--stats", stats, "--no-equalize", *UNREFINED): "after the equalization GlobalEqualization",
        ("--refine", "BiasCorection"): "Did you mean 'BiasCorrection'",
    }
    for options, words in refused.items():
        outcome = detent(*demo_arguments, *options)
        assert outcome.code in (2, 4), options
        assert words in outcome.err, options


def test_refinement_needs_samples_beside_statistics(detent, saved, tmp_path):
    outcome = detent("quantize", MODEL, tmp_path / "x.onnx", "--stats", saved[0])
    assert outcome.code == 2
    assert "QuickRounding looks at samples" in outcome.err


def test_statistics_of_another_model_are_refused(saved, tmp_path):
    stats, _ = saved
    with pytest.raises(UsageError, match="of another model"):
        package.quantize(tiny_model(), recipe=XINT8, stats=stats)
    damaged = tmp_path / "damaged.stats"
    damaged.write_bytes(stats.read_bytes()[:-10])
    with pytest.raises(DataError, match="is cut short"):
        package.quantize(MODEL, recipe=XINT8, stats=damaged)


def test_stats_shows_every_tensor(detent, saved, tmp_path):
    stats, _ = saved
    outcome = detent("stats", stats, "--plot", tmp_path / "plots", "--sort", "outliers", "--verbose")
    assert outcome.code == 0, outcome.err
    shown = json.loads(detent("stats", stats, "--json").out)
    assert len(list((tmp_path / "plots").glob("*.svg"))) == len(shown["tensors"])
    assert all(tensor["choices"]["MinMax"][1] >= tensor["maximum"] * 0.99 for tensor in shown["tensors"])
    assert "Entropy" in outcome.out
    assert "quantize MODEL OUTPUT --calib DATA --stats FILE" in outcome.out  # most recipes look at samples as well
    assert detent("stats", stats, "--tensor", "nothing*").code == 2


def test_a_nearly_blank_sample_before_normal_ones():
    rng = np.random.default_rng(3)
    images = [np.full((1, 3, 8, 8), 1e-9, np.float32), *rng.standard_normal((20, 1, 3, 8, 8)).astype(np.float32)]
    with_blank = package.quantize(tiny_model(), calibration=np.concatenate(images))
    assert with_blank.fidelity.outputs["y"].sqnr_db > 25


@pytest.mark.parametrize("size", [3e38, 1e-40])
def test_values_at_the_ends_of_float32(size):
    images = np.full((9, 3, 8, 8), size, np.float32)
    images[:, 0] = 0
    weights = {"w1": np.full((4, 3, 3, 3), 1e-3, np.float32), "b1": np.zeros(4, np.float32)}
    report = package.quantize(tiny_model(**weights), calibration=images)
    onnx.checker.check_model(report.model, full_check=True)


@pytest.mark.parametrize("recipe", ["BF16", "BFP16", "UINT8_DYNAMIC_QUANT"])
@pytest.mark.parametrize("option", ["stats", "save_stats"])
def test_recipes_that_need_no_statistics_neither_read_nor_write_any(saved, tmp_path, recipe, option):
    file = saved[0] if option == "stats" else tmp_path / "new.stats"
    with pytest.raises(UsageError, match=f"Recipe {recipe} needs no statistics"):
        package.quantize(MODEL, recipe=recipe, **{option: file})
    assert not (tmp_path / "new.stats").exists()


def test_statistics_after_smoothing_are_for_that_smoothing(tmp_path):
    model, stats = tiny_model(), tmp_path / "smooth.stats"
    data = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    smooth = XINT8.replace(smooth=0.5)
    package.quantize(model, None, data, smooth, save_stats=stats)
    package.quantize(model, None, None, smooth, stats=stats)
    with pytest.raises(UsageError, match="smoothing"):
        package.quantize(model, None, None, smooth.replace(smooth=0.8), stats=stats)
