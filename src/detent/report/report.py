"""The report: everything that `quantize` decided and measured, as plain data."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from detent.device_check.findings import DeviceCheck
from detent.equalize.absorb import Absorption
from detent.equalize.factors import Equalization
from detent.equalize.smooth import Smoothing
from detent.evaluation.fidelity import Fidelity
from detent.evaluation.noise import Closeness
from detent.graph.save import write_text
from detent.plan.layout import Decision
from detent.plan.plan import Move
from detent.prepare.base import Change
from detent.recipe import Recipe
from detent.recipe_file import to_plain
from detent.refine.layers import LayerReport
from detent.report.pictures import Pictures


@dataclass(frozen=True)
class TensorReport:
    """One quantized tensor.

    `dtype` is the short name of its format. `position` is that of a power-of-two scale. Where each of `channels` (or
    groups) has its own scale, `scale` is the largest; blocks have none. `minimum` and `maximum` were observed (of a
    weight: are its own), and are None where the format did not need it. `clipped` is the fraction of values beyond the
    ends of the grid, `shares` names the tensor whose position this one has, `closeness` compares it with float.
    """

    name: str
    role: str
    node: str
    dtype: str
    position: int | None
    scale: float | None
    zero_point: int
    channels: int | None
    minimum: float | None
    maximum: float | None
    clipped: float
    shares: str | None = None
    closeness: Closeness | None = None


@dataclass
class Notes:
    """What passes did to the model, and what they looked at and left, with the reason."""

    changes: list[Change]
    declined: list[Change]


@dataclass(frozen=True)
class Calibration:
    """The data that the ranges come from."""

    source: str
    samples: int
    random: bool
    preprocess: Mapping[str, Any] | None
    note: str


@dataclass(frozen=True)
class Report:
    """What was done to every node and tensor, why, and what it cost.

    After a dry run `tensors` is empty and nothing was written. `fidelity` is None where there was no data to measure
    with. `device` says whether the device that the recipe is for takes the result; None where it is for no device.
    `pictures` are what a page draws, and not in the JSON. `model` is the quantized model where no output file was asked
    for.
    """

    source: str
    output: str | None
    recipe: Recipe
    nodes: Sequence[Decision]
    tensors: Sequence[TensorReport]
    changes: Sequence[Change]
    declined: Sequence[Change]
    moves: Sequence[Move]
    equalization: Equalization | None
    smoothing: Smoothing | None
    refined: Sequence[LayerReport]
    calibration: Calibration | None
    fidelity: Fidelity | None
    in_sample: bool
    dry_run: bool
    bytes_before: int
    bytes_after: int | None
    seconds: Mapping[str, float]
    warnings: Sequence[str] = ()
    suggestions: Sequence[str] = ()
    device: DeviceCheck | None = None
    absorption: Absorption | None = None
    pictures: Pictures = field(default_factory=Pictures, repr=False, compare=False)
    model: onnx.ModelProto | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        """What the command line prints."""
        from detent.report.terminal import report_text

        return report_text(self)

    def worst_tensors(self, count: int = 10) -> list[TensorReport]:
        """The tensors furthest from their float originals, the worst first."""
        measured = [tensor for tensor in self.tensors if tensor.closeness is not None]
        return sorted(measured, key=lambda tensor: tensor.closeness.sqnr_db if tensor.closeness else math.inf)[:count]

    def left_float(self) -> list[Decision]:
        """The nodes that were not quantized."""
        return [decision for decision in self.nodes if not decision.quantized]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; decibels of equal tensors (infinite) are null."""
        shallow = {item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.compare}
        if self.equalization is not None:  # without thousands of factors
            shallow["equalization"] = dataclasses.replace(self.equalization, factors=())
        if self.absorption is not None:
            shallow["absorption"] = dataclasses.replace(self.absorption, amounts={})
        if self.smoothing is not None:
            shallow["smoothing"] = dataclasses.replace(self.smoothing, factors={})
        values = plain({**shallow, "recipe": to_plain(self.recipe)})
        assert isinstance(values, dict)
        if self.fidelity is not None:
            values["fidelity"] |= _judged(self.fidelity)
        return values

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def save(self, path: str | Path) -> None:
        """Write the report as JSON, complete or not at all."""
        write_text(self.to_json() + "\n", Path(path))


def _judged(fidelity: Fidelity) -> dict[str, Any]:
    """What the figures say, as the terminal and the page tell it; the interval in percent."""
    from detent.report.judging import agreement_interval, judge

    judgement = judge(fidelity)
    same = fidelity.same_top1
    ends = None if same is None else list(agreement_interval(same, fidelity.samples))
    return {"same_top1_interval": ends, "verdict": judgement.level, "why": judgement.said}


def plain(value: Any) -> Any:
    """A value as JSON has it: dataclasses as objects, and numbers that are not finite as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
