"""`detent sensitivity` and detent.sensitivity(), on the demo model."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import detent as package
from detent.demo import CALIBRATION, MODEL, PREPROCESS
from detent.errors import UsageError
from detent.pipeline.job import Job
from detent.pipeline.run import Run
from detent.recipe.file import find_recipe
from detent.search import unrefined
from tests.conftest import tiny_model

DEMO = [MODEL, "--calib", CALIBRATION, "--preprocess", PREPROCESS, "--samples", "8"]


def test_table(detent):
    done = detent("sensitivity", *DEMO)
    assert done.code == 0
    assert "All quantized, nothing refined: error -" in done.out
    assert "block2/depthwise/conv" in done.out
    assert "Proposal" not in done.out


def test_a_target_without_16_bits_is_told_before_anything_is_measured(samples, tmp_path):
    with pytest.raises(UsageError, match="npu-cnn stores activations as uint8 or int8, .* are uint16"):
        package.sensitivity(tmp_path / "missing.onnx", samples, max_error=1e-3, propose="a16", recipe="XINT8")


def test_the_proposed_recipe_reaches_what_was_wanted(detent, tmp_path):
    file = tmp_path / "better.toml"
    done = detent("sensitivity", *DEMO, "--max-error", "-35dB", "--toml", file, "--json")
    assert done.code == 0
    proposal = json.loads(done.out)["proposal"]
    assert proposal["reached"]
    assert proposal["predicted"] <= 10**-3.5
    quantized = [
        package.quantize(MODEL, None, CALIBRATION, recipe, preprocess=PREPROCESS) for recipe in ("XINT8", file)
    ]
    before, after = (next(iter(report.fidelity.outputs.values())).sqnr_db for report in quantized)
    assert after > before
    left = {node.node for node in quantized[1].left_float()}
    assert set(proposal["nodes"]) <= left


def test_in_python(samples):
    report = package.sensitivity(tiny_model(), samples, "A8W8", samples=4, exact=True)
    assert isinstance(report, package.SensitivityReport)
    assert [layer.node for layer in report.found.layers] == ["first", "second"]
    assert report.found.samples == 4
    assert all(layer.weights > 0 for layer in report.found.layers)


def test_formats_that_need_no_statistics(samples):
    """bfloat16 is rounded as well, and needs nothing but samples to measure on."""
    report = package.sensitivity(tiny_model(), samples, find_recipe("BF16").replace(format="cast"), samples=2)
    assert 0 < report.found.total < 1e-4


def test_statistics_of_an_earlier_run(samples, tmp_path):
    file = tmp_path / "counted.npz"
    package.quantize(tiny_model(), None, samples, "A8W8", save_stats=file)
    fresh, reused = (package.sensitivity(tiny_model(), samples, "A8W8", stats=stats) for stats in (None, file))
    assert fresh.found.errors == reused.found.errors


@pytest.fixture
def workers():
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def folder(samples, tmp_path):
    np.save(tmp_path / "samples.npy", samples)
    return tmp_path / "samples.npy"


@pytest.mark.parametrize(
    "recipe", [find_recipe("XINT8"), find_recipe("BF16").replace(format="cast")], ids=["XINT8", "no statistics"]
)
def test_an_executor_counts_and_measures(folder, workers, recipe):
    here, there = (package.sensitivity(tiny_model(), folder, recipe, executor=each) for each in (None, workers))
    assert there.to_json() == here.to_json()


def test_an_executor_measures_where_statistics_are_there_already(folder, workers, tmp_path):
    file = tmp_path / "counted.npz"
    package.quantize(tiny_model(), None, folder, save_stats=file)
    here, there = (package.sensitivity(tiny_model(), folder, stats=file, executor=each) for each in (None, workers))
    assert there.to_json() == here.to_json()


def test_arrays_are_not_sent_to_an_executor(samples, workers):
    messages = []
    for work in (package.sensitivity, lambda *given, **options: package.quantize(given[0], None, given[1], **options)):
        with pytest.raises(package.UsageError, match="arrays in memory are not sent") as refused:
            work(tiny_model(), samples, executor=workers)
        messages.append(str(refused.value))
    assert messages[0] == messages[1]


@pytest.mark.slow
def test_two_processes_report_the_same(detent, tiny, folder):
    here, there = (detent("sensitivity", tiny, "--calib", folder, "--json", *more) for more in ([], ["--workers", "2"]))
    assert (there.code, there.out) == (0, here.out)


def test_nothing_is_refined(samples):
    job = Job(tiny_model(), None, find_recipe("XINT8"), samples)
    planned = Run(unrefined(job)).planned
    assert not planned.plan.refined
    assert len(planned.probes) == len(samples) - 1  # one is held out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-error", "loud"], "expected decibels such as -25dB"),
        (["--max-error", "-25"], "Decibels are written -25dB"),
        (["--toml", "x.toml"], "say with --max-error"),
        (["--recipe", "S8S8_DYNAMIC"], ""),
    ],
)
def test_bad_options(detent, arguments, message):
    done = detent("sensitivity", *DEMO, *arguments)
    assert done.code == 2
    assert message in done.err


def test_without_data(detent, tiny):
    done = detent("sensitivity", tiny)
    assert done.code == 2
    assert "give calibration data" in done.err


def test_dynamic_recipes(samples):
    dynamic = find_recipe("A8W8").replace(dynamic=True, refinement=None, equalize=False)
    with pytest.raises(package.UsageError, match="while the model runs"):
        package.sensitivity(tiny_model(), samples, dynamic)


def test_a_model_without_layers(samples):
    graph = helper.make_graph(
        [helper.make_node("Exp", ["x"], ["y"], name="exp")],
        "nothing",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 8, 8])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    with pytest.raises(package.ModelError, match="no node to quantize"):
        package.sensitivity(model, samples)


def test_the_job_stays_as_it_was(samples):
    job = Job(tiny_model(), None, find_recipe("XINT8"), np.asarray(samples))
    before = vars(job).copy()
    Run(unrefined(job, 2)).planned
    assert all(value is before[name] for name, value in vars(job).items())
