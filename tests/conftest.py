"""Shared by all tests: the demo model, a command line that runs in this process, and small models."""

from __future__ import annotations

import os

# The cores are busy with one test each: threads within a product of matrices would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import multiprocessing
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import settings
from onnx import TensorProto, helper, numpy_helper

from detent.demo import CALIBRATION, MODEL, PREPROCESS
from detent.graph.session import usable_cores
from detent.pipeline import trials

# Trying each model file in a process of its own takes a moment; tests/graph/test_guard.py does.
os.environ["DETENT_TRUST"] = "1"

# The command line tries its advice on a bad result, as small models give it; tests/pipeline/test_trials.py does that.
trials.LEAST_SECONDS = trials.MOST_SECONDS = 0.0

# A busy machine is not a fault of the code under test. A quarter of the usual number of examples: every run draws new
# ones, so what one run misses another finds, and the properties here fail on most examples or on none.
settings.register_profile("unhurried", deadline=None, max_examples=25)
settings.load_profile("unhurried")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """One more than there are cores: there is always one that waits for a process, a file or a clock."""
    return 1 + usable_cores()


def pytest_configure(config):
    """Compile the loops of the default path once, while the workers of pytest-xdist collect, not in each of them."""
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        from detent.pipeline.first_run import compile_ahead

        compile_ahead()


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def detent(monkeypatch, capsys):
    """`detent(*arguments)` runs the command line and returns exit code, standard output and standard error."""

    def run(*arguments):
        from detent.cli import main

        monkeypatch.setattr(sys, "argv", ["detent", *map(str, arguments)])
        code = 0
        endings = (signal.SIGINT, signal.SIGTERM)
        answers = [signal.getsignal(ending) for ending in endings]
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        finally:
            for ending, answer in zip(endings, answers, strict=True):  # a command ends its process; tests go on
                signal.signal(ending, answer)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def demo_arguments(tmp_path):
    """What quantizes the demo model to tmp_path/out.onnx."""
    return ["quantize", MODEL, tmp_path / "out.onnx", "--calib", CALIBRATION, "--preprocess", PREPROCESS]


@pytest.fixture(scope="session")
def quantized_demo(tmp_path_factory) -> Path:
    """The demo model, quantized."""
    import detent as package

    path = tmp_path_factory.mktemp("quantized") / "demo.onnx"
    package.quantize(MODEL, path, CALIBRATION, preprocess=PREPROCESS, limit=16)
    return path


@pytest.fixture(scope="session")
def processes():
    """Two worker processes."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield pool


def tiny_model(opset: int = 17, batch: int | str = "N", **changes) -> onnx.ModelProto:
    """Conv, Relu and Conv on [batch, 3, 8, 8], with the weights of a fixed seed."""
    rng = np.random.default_rng(7)
    weights = {
        "w1": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "b1": rng.standard_normal(4).astype(np.float32),
        "w2": rng.standard_normal((2, 4, 1, 1)).astype(np.float32),
    } | changes
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu"),
        helper.make_node("Conv", ["r1", "w2"], ["y"], name="second"),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 2, 8, 8])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    return model


@pytest.fixture
def tiny(tmp_path) -> Path:
    path = tmp_path / "tiny.onnx"
    onnx.save(tiny_model(), path)
    return path


@pytest.fixture
def samples() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((12, 3, 8, 8)).astype(np.float32)
