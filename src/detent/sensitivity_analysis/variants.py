"""Compare variants of a model with the float model on a sample, as sums that add over samples.

Floating-point sums depend on their order. So each sample has sums of its own, and whoever adds them does so in the
order of the samples, wherever each was computed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.errors import ModelError
from detent.evaluation.fidelity import looks_like_scores
from detent.execute.probe import ITSELF, UNCHANGED, Probe, Variant
from detent.observe.samples import PendingSample, Sample
from detent.plan.plan import Plan
from detent.sensitivity_analysis.units import QuantizedUnit, all_quantized, left_float

EVERYTHING = "everything"
"""The name of the variant in which all units are quantized."""

Experiment = Literal["quantized alone", "left float"]
"""What is varied: each unit is quantized alone in the float model, or each layer left float in the quantized one."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class VariantErrors:
    """Sums over samples, with an entry for each output: of y^2, and by variant of e^2 and of changed answers."""

    samples: int
    signal: Floats
    noise: Mapping[str, Floats]
    changed: Mapping[str, int]

    def __add__(self, more: VariantErrors) -> VariantErrors:
        return VariantErrors(
            self.samples + more.samples,
            self.signal + more.signal,
            {name: noise + more.noise[name] for name, noise in self.noise.items()},
            {name: count + more.changed[name] for name, count in self.changed.items()},
        )

    def error(self, variant: str) -> float:
        """Return the noise power of a variant over the signal power; infinite if its outputs are not numbers."""
        there = self.signal > 0  # an output that is zero throughout has nothing to compare with
        mean = float((self.noise[variant][there] / self.signal[there]).mean()) if there.any() else 0.0
        return mean if math.isfinite(mean) else math.inf


class VariantComparison:
    """Variants of a base against the float model, on one sample after another, in any number of threads."""

    def __init__(
        self, model: ir.Model, plan: Plan, base: Variant, variants: Sequence[Variant], memory: int = 1 << 30
    ) -> None:
        """Prepare to run `variants` of `base`, with about `memory` bytes for their values."""
        self._float = Probe(model, plan.layout)
        self._varied = self._float if base is UNCHANGED else Probe(model, plan.layout, base)
        self._variants, self._memory = variants, memory
        self._together: int | None = None
        self._lock = threading.Lock()
        types = {str(value.name): value.dtype for value in model.graph.outputs}
        self._floats = [index for index, name in enumerate(self._float.outputs) if types[name] == ir.DataType.FLOAT]
        if not self._floats:
            raise ModelError("The model has no output of float numbers at which errors could be measured.")
        first = model.graph.outputs[0]
        self._scores = self._float.outputs.index(str(first.name)) if looks_like_scores(first) else None

    @classmethod
    def of(
        cls, experiment: Experiment, model: ir.Model, plan: Plan, units: Sequence[QuantizedUnit], memory: int
    ) -> VariantComparison:
        """Prepare the variants of an experiment."""
        whole = all_quantized(EVERYTHING, units)
        if experiment == "left float":
            return cls(model, plan, whole, list(left_float(units)), memory)
        return cls(model, plan, UNCHANGED, [whole, *(unit.variant for unit in units)], memory)

    def __call__(self, pending: PendingSample) -> VariantErrors:
        """Return the sums of one sample."""
        sample = pending.load()
        answers = self._answers(sample)
        itself = next(answers)
        expected = itself[1] if self._varied is self._float else self._float(sample)[ITSELF]
        truth = [expected[index].astype(np.float64) for index in self._floats]
        noise: dict[str, Floats] = {}
        changed: dict[str, int] = {}
        for name, found in chain([itself], answers):
            # The shape of an output may depend on the data. Outputs of another shape count as all error.
            pairs = zip(truth, (found[index] for index in self._floats), strict=True)
            errors = [y - x if y.shape == x.shape else x for x, y in pairs]
            noise[name] = np.array([np.vdot(error, error) for error in errors])
            changed[name] = self._count_changed(expected, found)
        return VariantErrors(pending.size, np.array([np.vdot(x, x) for x in truth]), noise, changed)

    def _answers(self, sample: Sample) -> Iterator[tuple[str, list[Any]]]:
        """Yield the outputs of the base, then of the variants; as many are run together as fit into memory."""
        together = self._fitting(sample)
        for start in range(0, max(len(self._variants), 1), together):
            answers = self._varied(sample, self._variants[start : start + together])
            itself = answers.pop(ITSELF)
            if start == 0:
                yield ITSELF, itself
            yield from answers.items()

    def _fitting(self, sample: Sample) -> int:
        """Return how many variants fit into memory: measured on the first sample, for all."""
        with self._lock:
            if self._together is None:
                self._together = max(1, self._memory // max(self._varied.footprint(sample), 1))
            return self._together

    def _count_changed(self, expected: Sequence[Any], found: Sequence[Any]) -> int:
        if self._scores is None:
            return 0
        return int((expected[self._scores].argmax(-1) != found[self._scores].argmax(-1)).sum())
