"""How long a model takes on the CPU of this machine."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np
import onnxruntime

from detent.errors import ModelError
from detent.graph.load import load
from detent.graph.session import RUNTIME_ERRORS, first_line
from detent.observe.sources import input_specs

RUNS = 20


def cpu_milliseconds(model: Path) -> float:
    """Return the fastest of some inferences in onnxruntime with all cores, as an application would run it."""
    try:
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    except RUNTIME_ERRORS as error:
        raise ModelError(f"onnxruntime cannot load {model}: {first_line(str(error))}") from error
    shapes = {spec.name: ([size or 1 for size in spec.shape], spec.dtype) for spec in input_specs(load(model))}
    feeds = {name: np.ones(shape, dtype) for name, (shape, dtype) in shapes.items()}
    seconds = []
    for _ in range(RUNS):
        start = perf_counter()
        session.run(None, feeds)
        seconds.append(perf_counter() - start)
    return 1000 * min(seconds)
