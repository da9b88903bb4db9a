from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import detent as package
from detent.demo.run import CALIBRATION, MODEL, PREPROCESS


def test_quantize_prints_what_it_did(detent, demo_arguments, tmp_path):
    outcome = detent(*demo_arguments)
    assert outcome.code == 0, outcome.err
    for word in ("XINT8 for npu-cnn", "times smaller", "Conv", "held-out samples", "SQNR", "worst tensors", "logits"):
        assert word in outcome.out
    assert outcome.err == ""
    onnx.checker.check_model(tmp_path / "out.onnx", full_check=True)


def test_json_is_json_and_nothing_else(detent, demo_arguments, tmp_path):
    outcome = detent(*demo_arguments, "--json", "--report", tmp_path / "report.json")
    report = json.loads(outcome.out)
    assert report["recipe"]["name"] == "XINT8"
    assert report["fidelity"]["outputs"]["logits"]["sqnr_db"] > 10
    assert json.loads((tmp_path / "report.json").read_text()) == report


def test_dry_run_writes_nothing(detent, demo_arguments, tmp_path):
    outcome = detent(*demo_arguments, "--dry-run")
    assert outcome.code == 0
    assert "nothing written (dry run)" in outcome.out
    assert list(tmp_path.iterdir()) == []


def test_node_options_reach_the_plan(detent, demo_arguments):
    options = ["--exclude", "stem/*", "--exclude", "head/gemm", "--op-types", "Conv", "--op-types", "Clip", "--dry-run"]
    report = json.loads(detent(*demo_arguments, *options, "--json").out)
    reasons = {node["node"]: node["reason"] for node in report["nodes"]}
    assert reasons["stem/conv"] == "excluded by 'stem/*'"
    assert reasons["mix/concat"] == "operator type not in --op-types"
    assert reasons["block1/expand/conv"] == "quantized"
    inside = json.loads(detent(*demo_arguments, "--from", "block3/*", "--to", "block3/add", "--dry-run", "--json").out)
    quantized = {node["node"] for node in inside["nodes"] if node["quantized"]}
    assert "block3/add" in quantized
    assert all(name.startswith("block3/") for name in quantized)


def test_recipe_options_reach_the_file(detent, demo_arguments, tmp_path):
    detent(*demo_arguments, "--activations", "int8", "--method", "nonoverflow", "--target", "cpu")
    inspection = json.loads(detent("inspect", tmp_path / "out.onnx", "--json").out)
    assert {tensor["dtype"] for tensor in inspection["quantized"]} == {"INT8"}


def test_data_options_reach_the_reader(detent, tmp_path):
    arguments = ["quantize", MODEL, tmp_path / "out.onnx", "--calib", CALIBRATION, "--json"]
    options = ["--mean", "77.85", "--std", "82.46", "--size", "32", "--limit", "10", "--batch", "2", "--seed", "4"]
    report = json.loads(detent(*arguments, *options).out)
    assert report["calibration"]["samples"] == 10
    assert report["calibration"]["preprocess"]["mean"] == [77.85]
    assert report["calibration"]["preprocess"]["size"] == [32, 32]


def test_inspect_shows_operators_scales_and_nodes(detent, demo_arguments, tmp_path):
    plain = detent("inspect", MODEL).out
    assert "Not quantized" in plain
    assert "BatchNormalization" in plain
    detent(*demo_arguments)
    quantized = detent("inspect", tmp_path / "out.onnx", "--nodes").out
    for word in ("quantized tensor", "position", "uint8".upper(), "made by detent", "stem/conv"):
        assert word in quantized


def test_demo(detent, tmp_path):
    outcome = detent("demo", tmp_path / "new" / "digits.onnx")
    assert outcome.code == 0
    assert "Accuracy on 400 labelled digits: float 99.50 %, XINT8 99.50 % (0 images lost, 0 won)." in outcome.out
    assert (tmp_path / "new" / "digits.onnx").is_file()


def test_demo_files_are_all_that_it_takes_to_try_things(detent, tmp_path):
    folder = tmp_path / "digits"
    assert detent("demo", "--files", folder).code == 0
    data = ("--data", folder / "labelled", "--preprocess", folder / "preprocess.json")
    assert "99.50" in detent("evaluate", folder / "digits.onnx", *data).out
    assert len(list((folder / "calibration").iterdir())) == 64
    again = detent("demo", "--files", folder)
    assert again.code == 5
    assert "exists already" in again.err


def test_version(detent):
    assert detent("--version").out.strip() == package.__version__


def test_no_arguments_is_help(detent):
    assert "quantize" in detent().out


def test_importing_is_light():
    """`import detent` and `detent --help` load none of the heavy libraries."""
    code = (
        "import sys, detent, detent.cli; "
        "print([name for name in ('numpy', 'onnx', 'onnxruntime', 'numba', 'PIL', 'torch') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_nothing_is_left_in_the_working_folder(tmp_path, monkeypatch, detent, demo_arguments):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    detent(*demo_arguments)
    assert list(Path().iterdir()) == []


def test_rich_markup_in_names_is_plain_text(detent, tmp_path, samples):
    import numpy as np

    from tests.conftest import tiny_model

    model = tiny_model()
    model.graph.node[0].name = "[bold]first[/bold]"
    model.graph.node[1].output[0] = model.graph.node[2].input[0] = "[red]r1"
    onnx.save(model, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", samples)
    outcome = detent("quantize", tmp_path / "m.onnx", tmp_path / "o.onnx", "--calib", tmp_path / "x.npy")
    assert "[red]r1" in outcome.out
    message = detent("quantize", tmp_path / "m.onnx", tmp_path / "p.onnx", "--exclude", "[bold]fir").err
    assert "'[bold]fir'" in message
    assert PREPROCESS.is_file()


def test_recipes_are_listed(detent):
    listed = detent("recipes").out
    assert all(name in listed for name in ("XINT8", "A8W8", "BF16_MIXED_MXINT8", "UINT8_DYNAMIC_QUANT"))
    assert "_CONFIG" in listed and "--set" in listed
    assert json.loads(detent("recipes", "--json").out)["A16W8"]["activations"]["type"] == "int16"


def test_one_recipe(detent, tmp_path):
    shown = detent("recipes", "a8w8").out
    assert shown.startswith("A8W8: ") and "equalize channels, calibrate with MinMax, correct biases" in shown
    assert json.loads(detent("recipes", "A8W8", "--json").out)["target"] == "npu-float-scale"
    text = detent("recipes", "A8W8", "--set", "weights.granularity=per_channel", "--toml").out
    (tmp_path / "mine.toml").write_text(text)
    assert detent("recipes", tmp_path / "mine.toml", "--toml").out == text
    assert 'granularity = "per_channel"' in text


def test_a_recipe_from_a_file_and_settings_reach_the_model(detent, demo_arguments, tmp_path):
    (tmp_path / "mine.toml").write_text('base = "A8W8"\nrefinement = "none"\n[activations]\ntype = "int16"\n')
    arguments = [*demo_arguments, "--recipe", tmp_path / "mine.toml", "--set", "weights.granularity=per_channel"]
    report = json.loads(detent(*arguments, "--opset", "21", "--json").out)
    assert report["recipe"]["name"] == "mine"
    assert report["recipe"]["weights"]["granularity"] == "per_channel"
    assert onnx.load(tmp_path / "out.onnx").opset_import[0].version == 21
    inspection = json.loads(detent("inspect", tmp_path / "out.onnx", "--json").out)
    assert {tensor["dtype"] for tensor in inspection["quantized"]} == {"INT16", "INT8", "INT32"}


def test_the_output_format_is_an_option(detent, demo_arguments, tmp_path):
    options = ["--activations", "int8", "--format", "fix-neuron", "--refine", "none", "--no-equalize"]
    outcome = detent(*demo_arguments, *options)
    assert outcome.code == 0, outcome.err
    operators = {one.op_type for one in onnx.load(tmp_path / "out.onnx").graph.node}
    assert "FixNeuron" in operators and "QuantizeLinear" not in operators


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        ([], {"name": "GlobalEqualization", "absorb": False}),
        (["--equalize", "--equalize-with", "globalequalization:absorb=true"], {"absorb": True}),
        (["--equalize-with", "CrossLayer:steps=3"], {"name": "CrossLayer", "steps": 3}),
        (["--equalize-with", "none"], "none"),
        (["--no-equalize", "--equalize-with", "none"], "none"),
    ],
)
def test_the_way_to_equalize_is_an_option(flags, chosen, detent, demo_arguments):
    recipe = json.loads(detent(*demo_arguments, "--dry-run", "--json", *flags).out)["recipe"]
    assert recipe["equalize"] == chosen if chosen == "none" else chosen.items() <= recipe["equalize"].items()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--no-equalize", "--equalize-with", "CrossLayer"], "--no-equalize and --equalize-with CrossLayer contradict"),
        (["--equalize", "--equalize-with", "none"], "--equalize and --equalize-with none contradict"),
        (["--equalize-with", "CrosLayer"], "Did you mean 'CrossLayer'"),
        (["--equalize-with", "CrossLayer:step=3"], "Did you mean 'steps'"),
    ],
)
def test_ways_to_equalize_that_are_refused(flags, words, detent, demo_arguments):
    outcome = detent(*demo_arguments, *flags)
    assert outcome.code == 2
    assert words in " ".join(outcome.err.split())


def test_without_bias_correction_nothing_is_refined(detent, demo_arguments):
    plain = json.loads(detent(*demo_arguments, "--limit", "8", "--no-bias-correction", "--json").out)
    assert plain["refined"] == [] and plain["recipe"]["refinement"] == "none"


def test_refinements_that_include_bias_correction_cannot_be_without(detent, demo_arguments):
    for name in ("Rounding", "AdaRound", "Gptq"):
        failed = detent(*demo_arguments, "--refine", name, "--no-bias-correction")
        assert failed.code != 0
        assert f"{name} corrects biases along with the weights" in failed.err


def test_memory_reaches_the_refinement(detent, demo_arguments):
    told = json.loads(detent(*demo_arguments, "--limit", "32", "--memory", "1GB", "--json").out)
    assert all("memory" not in layer["note"] for layer in told["refined"])
    failed = detent(*demo_arguments, "--memory", "1KB")
    assert failed.code != 0 and "Give --memory" in failed.err
    failed = detent(*demo_arguments, "--memory", "much")
    assert failed.code != 0 and "such as 2GB" in failed.err
    failed = detent(*demo_arguments, "--memory", "1GB", "--refine", "none")
    assert failed.code != 0 and "refines nothing" in failed.err
