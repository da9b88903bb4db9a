"""Compare the quantized model with the float one on the same samples: its outputs, and every site inside.

The sums of an output (see tensor_noise.py) run over all samples, those of inner values over the first few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.emulator.emulator import EmulatedValues
from detent.evaluation.tensor_noise import NoiseSums
from detent.execute.inference import map_in_order
from detent.graph.session import Runner
from detent.numerics.rounding import DeviceRounding
from detent.observe.samples import PendingSample, Sample
from detent.progress import Progress, silent
from detent.results.tensors import Fidelity

STAGE = "measure"

DETAILED_SAMPLES = 4
"""Samples on which every tensor is compared: with thousands of elements each, a few tell which are the worst."""


def measure_fidelity(
    reference: Runner,
    quantized_model: ir.Model,
    sites: Mapping[str, str],
    samples: Sequence[PendingSample],
    *,
    original: Callable[[Sample], Mapping[str, npt.NDArray[Any]]] | None = None,
    emulate: DeviceRounding | None = None,
    threads: int = 0,
    progress: Progress = silent,
) -> Fidelity:
    """Run both models on `samples`: the outputs on all of them, every site on the first few.

    `reference` is the float model and fetches its outputs first, then the sites; `sites` maps the name of each value in
    the float model to its name in the quantized one. `original`, if given, computes the outputs to compare with: those
    of the model before its channels were rescaled. With `emulate` the quantized model is computed in integers, with
    that rounding.
    """
    outputs = [str(value.name) for value in quantized_model.graph.outputs]
    renamed = {name: name if name in outputs else sites[name] for name in reference.outputs}
    quantized = _open(quantized_model, list(renamed.values()), emulate)
    scores = looks_like_scores(quantized_model.graph.outputs[0])

    def compare(work: tuple[PendingSample, Sequence[str]]) -> tuple[dict[str, NoiseSums], list[str], list[bool]]:
        """Return the sums of each tensor, those of another shape, and which samples have the same top answer."""
        pending, names = work
        sample = pending.load()
        expected = reference(sample.feeds, sample.origin, names)
        if original is not None:
            outputs_before = original(sample)
            expected = [outputs_before.get(name, array) for name, array in zip(names, expected, strict=True)]
        found = quantized(sample.feeds, sample.origin, [renamed[name] for name in names])
        pairs = list(zip(names, expected, found, strict=True))
        sums = {name: NoiseSums.of(x, y) for name, x, y in pairs if x.dtype.kind == "f" and x.shape == y.shape}
        changed = [name for name, x, y in pairs if x.shape != y.shape]
        comparable = scores and expected[0].shape == found[0].shape
        same = expected[0].argmax(-1) == found[0].argmax(-1) if comparable else np.zeros(pending.size, bool)
        return sums, changed, same.reshape(-1).tolist()

    resized: set[str] = set()
    totals = {name: NoiseSums() for name in reference.outputs}
    agreement: list[bool] = []
    progress(STAGE, 0, len(samples))
    works = [(each, reference.outputs if at < DETAILED_SAMPLES else outputs) for at, each in enumerate(samples)]
    # In the order of the samples, whatever order they finish in: floating-point sums must not depend on timing.
    for done, (_, (sums, changed, same)) in enumerate(map_in_order(compare, works, threads), 1):
        totals |= {name: totals[name] + more for name, more in sums.items()}
        resized.update(changed)
        agreement += same
        progress(STAGE, done, len(samples))
    measured = {name: sums.closeness() for name, sums in totals.items() if sums.elements}
    return Fidelity(
        outputs={name: measured[name] for name in outputs if name in measured},
        tensors={name: closeness for name, closeness in measured.items() if name in sites},
        samples=len(agreement),
        same_top1=sum(agreement) if scores else None,
        resized=sorted(resized),
        silent={name: totals[name].peak for name in outputs if totals[name].signal and not totals[name].other},
        emulated=emulate,
    )


def _open(model: ir.Model, fetched: Sequence[str], emulate: DeviceRounding | None) -> Runner | EmulatedValues:
    return Runner(model, fetched, exact=True) if emulate is None else EmulatedValues(model, emulate)


def looks_like_scores(output: ir.Value) -> bool:
    """Tell whether an output is declared as a row of class scores per sample: [batch, classes], two or more."""
    shape = output.shape
    if shape is None or len(shape) != 2 or output.dtype != ir.DataType.FLOAT:
        return False
    classes = shape[1]
    return isinstance(classes, int) and classes >= 2
