from __future__ import annotations

import json
from pathlib import Path

import onnx

from detent.demo import CALIBRATION, MODEL, PREPROCESS


def test_quantize_prints_what_it_did(detent, demo_arguments, tmp_path):
    outcome = detent(*demo_arguments)
    assert outcome.code == 0, outcome.err
    for word in ("XINT8 for npu-xint8", "times smaller", "31 of 31 nodes", "(8 held out", "SQNR", "worst tensors"):
        assert word in outcome.out
    assert len(outcome.out.splitlines()) < 25
    assert outcome.err == ""
    everything = detent(*demo_arguments, "--verbose").out
    for word in ("Conv", "logits", "block1/depthwise/relu6", "subgraph 1", "calibrate"):
        assert word in everything
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
    assert report["calibration"]["samples"] == 10 - 1  # one in eight is held out
    assert report["calibration"]["preprocess"]["mean"] == [77.85]
    assert report["calibration"]["preprocess"]["size"] == [32, 32]


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


def test_memory_reaches_the_refinement(detent, demo_arguments):
    told = json.loads(detent(*demo_arguments, "--limit", "32", "--memory", "1GB", "--json").out)
    assert all("memory" not in layer["note"] for layer in told["refined"])
    failed = detent(*demo_arguments, "--memory", "1KB")
    assert failed.code != 0 and "Give --memory" in failed.err
    failed = detent(*demo_arguments, "--memory", "much")
    assert failed.code != 0 and "such as 2GB" in failed.err
    failed = detent(*demo_arguments, "--memory", "1GB", "--refine", "none")
    assert failed.code != 0 and "refines nothing" in failed.err
