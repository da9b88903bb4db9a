"""Results of comparisons: two models tensor by tensor, two folders of answers, an emulated model and onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detent.numerics.codec import DeviceRounding
from detent.results import Result, for_people, plain_fields

MEASURES = ("sqnr_db", "psnr_db", "cosine", "l1", "l2")  # of two tensors

FOLDER_MEASURES = ("cosine", "l1", "l2", "psnr_db", "ssim")  # of two files of answers

HIGHER_IS_BETTER = ("sqnr_db", "psnr_db", "cosine")
LOWER_IS_BETTER = ("l1", "l2")


@dataclass(frozen=True, eq=False)
class TensorDifference:
    """One tensor on all samples: `values` has a row for each measure (see MEASURES) and a column for each sample.

    `rescaled`: the second model has its channels in other scales, which were undone.
    """

    name: str
    is_output: bool
    samples: Sequence[str]
    values: np.ndarray[Any, np.dtype[np.float64]]
    rescaled: bool = False

    def mean(self, measure: str) -> float:
        """Return the mean over the samples; infinite decibels (equal tensors) make it infinite."""
        return float(self.values[MEASURES.index(measure)].mean())

    def worst(self, measure: str) -> float:
        """Return the value of the sample on which it is worst."""
        values = self.values[MEASURES.index(measure)]
        return float(values.min() if measure in HIGHER_IS_BETTER else values.max())

    def worst_samples(self, count: int = 3) -> list[str]:
        """Return the samples of the least SQNR, the worst first."""
        order = np.argsort(self.values[MEASURES.index("sqnr_db")], kind="stable")
        return [self.samples[at] for at in order[:count].tolist()]


@dataclass(frozen=True)
class ModelComparison(Result):
    """All tensors of one name in both models, in the order of the first. `skipped` have other shapes or types."""

    before: str
    after: str
    data: str
    note: str
    tensors: Sequence[TensorDifference]
    skipped: Sequence[str]

    def worst_first(self) -> list[TensorDifference]:
        """Return the tensors by their mean SQNR."""
        return sorted(self.tensors, key=lambda tensor: tensor.mean("sqnr_db"))

    @property
    def rescaling(self) -> str:
        """A sentence on the tensors that were rescaled; empty if none were."""
        count = sum(tensor.rescaled for tensor in self.tensors)
        if not count:
            return ""
        were, their = ("tensor was", "its") if count == 1 else ("tensors were", "their")
        return f"{count} inner {were} compared with the scales of {their} channels undone."

    def to_dict(self) -> dict[str, Any]:
        return {
            "before": self.before,
            "after": self.after,
            "data": self.data,
            "tensors": [
                {
                    "name": tensor.name,
                    "is_output": tensor.is_output,
                    "rescaled": tensor.rescaled,
                    **{name: {"mean": tensor.mean(name), "worst": tensor.worst(name)} for name in MEASURES},
                    "worst_samples": tensor.worst_samples(),
                }
                for tensor in self.tensors
            ],
            "skipped": list(self.skipped),
        }


@dataclass(frozen=True)
class Difference:
    """How far one result is from its baseline. PSNR is infinite if they are equal; only images have an SSIM."""

    name: str
    cosine: float
    l1: float
    l2: float
    psnr_db: float
    ssim: float | None


@dataclass(frozen=True)
class Worst:
    """The worst value of a measure, and the file that has it."""

    value: float
    file: str


@dataclass(frozen=True)
class FolderComparison(Result):
    """All files of two folders."""

    files: Sequence[Difference]
    baseline: str
    other: str

    def measures(self) -> list[str]:
        return [measure for measure in FOLDER_MEASURES if self._values(measure)]

    def mean(self, measure: str) -> float:
        """Return the mean of a measure over the files that have it."""
        return float(np.mean(list(self._values(measure).values())))

    def worst(self, measure: str) -> Worst:
        """Return the worst value of a measure: the largest of a distance, the least of a likeness."""
        values = self._values(measure)
        choose = max if measure in LOWER_IS_BETTER else min
        name = choose(values, key=values.__getitem__)
        return Worst(values[name], name)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. A measure that no file has is null."""
        found = {
            measure: {"mean": self.mean(measure), "worst": self.worst(measure).value, "file": self.worst(measure).file}
            for measure in self.measures()
        }
        compared = {"baseline": self.baseline, "other": self.other, "files": len(self.files)}
        return {**compared, **dict.fromkeys(FOLDER_MEASURES), **found}

    def _values(self, measure: str) -> dict[str, float]:
        found = {file.name: getattr(file, measure) for file in self.files}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class OutputDifference:
    """One output of the emulated model against onnxruntime's: elements in all, those that differ, and by how much.

    `same_top1` counts the rows with the same largest element, if the output looks like class scores.
    """

    name: str
    elements: int
    differing: int
    farthest: float
    rows: int
    same_top1: int


@dataclass(frozen=True)
class FloatStep:
    """A node that is computed in float, on the host, and why."""

    node: str
    op_type: str
    reason: str


@dataclass(frozen=True)
class EmulationReport:
    """What was computed in integers, what in float and why, and the elements of each node that left int32."""

    rounding: DeviceRounding
    integer_steps: int
    float_steps: Sequence[FloatStep]
    quantized_tensors: int
    overflows: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        return plain_fields(self)


@dataclass(frozen=True)
class Emulation(Result):
    """What emulating a model on data gave."""

    data: str
    note: str
    random: bool
    samples: int
    report: EmulationReport
    outputs: Sequence[OutputDifference]
    folder: str | None
    source: str = for_people("")
