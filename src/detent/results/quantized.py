"""The report of a quantization: everything that `quantize` decided and measured, as plain data.

A report is built once, from facts. What to warn of and what to try next follow from these facts (verdict.py), and are
computed when they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import onnx

from detent.convert.splitting import Cut
from detent.equalize.absorb import Absorption
from detent.equalize.equalize import Equalization
from detent.equalize.input_channels import Smoothing
from detent.errors import UsageError
from detent.plan.layout import Decision
from detent.plan.plan import Move
from detent.plan.postprocessing import Postprocessing
from detent.prepare.base import Change
from detent.recipe import Recipe
from detent.recipe.file import to_plain
from detent.refine.layers import LayerReport
from detent.results import Result, plain, plain_fields
from detent.results.checked import DeviceCheck
from detent.results.paired import in_percent, wilson_interval
from detent.results.tensors import Fidelity, Pictures, TensorReport
from detent.results.verdict import Judgement, dead_parts, judge, suggestions_for, warnings_for


@dataclass
class Notes:
    """What passes did to the model, and what they looked at and left alone, with the reason."""

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
    findings: Sequence[str] = ()
    """What makes the data doubtful (evaluation/data_check.py)."""
    flags: Sequence[str] = ()
    """The options by which the user said how images are read, for the next command."""
    path: str | None = None
    """Where the data is, for the next command; None if it was not read from files."""


@dataclass(frozen=True)
class Trial:
    """What some more options would do: the SQNR of the worst part of the outputs, in dB, without and with them."""

    options: str
    before: float
    after: float

    @property
    def gain(self) -> float:
        """How much better it is with them, in dB."""
        return self.after - self.before


@dataclass(frozen=True)
class WideTensor:
    """An activation with 16 bits, and `shared`, those that have its codes.

    `cost` is the error at the outputs, noise over signal, if it alone were rounded to 8 bits. `channel_ratio` says how
    many times as large its largest channel is as the middle one, if it has channels.
    """

    name: str
    shared: Sequence[str]
    role: str
    cost: float
    channel_ratio: float | None


@dataclass(frozen=True)
class Widening:
    """The activations that got 16 bits, of how many, and the error of the others at the outputs before and after."""

    tensors: Sequence[WideTensor]
    candidates: int
    before: float
    after: float

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for tensor in self.tensors for name in tensor.shared)


@dataclass(frozen=True)
class Report(Result):
    """What was done to every node and tensor, why, and what it cost.

    After a dry run `tensors` is empty and nothing was written. `fidelity` is None if there was no data to measure with.
    `device` says whether the device that the recipe is for takes the result, and is None if it is for no device.
    `postprocessing` is what decodes detections and was left float. `remarks` are warnings of the stages that ran;
    `warnings` adds those that follow from the other fields. `pictures` are what a page draws, and not in the JSON.
    `model` is the quantized model, unless it was written to a file. With `cut` it ends before the post-processing,
    which is `tail_model` or a file of its own. `trials` are what was tried on a bad result.
    """

    json_fields: ClassVar[tuple[str, ...]] = (
        *("source", "output", "recipe", "nodes", "tensors", "changes", "declined", "moves"),
        *("equalization", "smoothing", "refined", "calibration", "fidelity", "in_sample", "dry_run"),
        *("bytes_before", "bytes_after", "seconds", "errors", "warnings", "suggestions", "device"),
        *("absorption", "trials", "widening"),
    )

    source: str
    output: str | None
    recipe: Recipe
    nodes: Sequence[Decision]
    changes: Sequence[Change]
    declined: Sequence[Change]
    calibration: Calibration | None
    bytes_before: int
    seconds: Mapping[str, float]
    dry_run: bool = False
    tensors: Sequence[TensorReport] = ()
    moves: Sequence[Move] = ()
    equalization: Equalization | None = None
    smoothing: Smoothing | None = None
    absorption: Absorption | None = None
    widening: Widening | None = None
    refined: Sequence[LayerReport] = ()
    fidelity: Fidelity | None = None
    in_sample: bool = False
    bytes_after: int | None = None
    remarks: Sequence[str] = ()
    device: DeviceCheck | None = None
    postprocessing: Postprocessing | None = None
    cut: Cut | None = None
    trials: Sequence[Trial] = ()
    recipe_reason: str = ""
    pictures: Pictures = field(default_factory=Pictures, repr=False, compare=False)
    model: onnx.ModelProto | None = field(default=None, repr=False, compare=False)
    tail_model: onnx.ModelProto | None = field(default=None, repr=False, compare=False)

    @cached_property
    def judgement(self) -> Judgement | None:
        """The verdict; None if nothing was measured."""
        doubts = () if self.calibration is None else self.calibration.findings
        return None if self.fidelity is None else judge(self.fidelity, doubts)

    @cached_property
    def errors(self) -> list[str]:
        """What is dead in the result: outputs or parts of them that say nothing any more, and why."""
        return [] if self.fidelity is None else dead_parts(self.fidelity, self.tensors)

    @cached_property
    def warnings(self) -> list[str]:
        """What makes the result untrustworthy, or is likely to surprise."""
        return [*([] if self.dry_run else warnings_for(self)), *self.remarks]

    @cached_property
    def suggestions(self) -> list[str]:
        """What to try next if the loss is large."""
        return [] if self.dry_run else suggestions_for(self)

    def worst_tensors(self, count: int = 10) -> list[TensorReport]:
        """Return the tensors furthest from their float originals, the worst first."""
        measured = [tensor for tensor in self.tensors if tensor.closeness is not None]
        return sorted(measured, key=lambda tensor: tensor.closeness.sqnr_db if tensor.closeness else math.inf)[:count]

    def to_frame(self) -> Any:
        """Return the tensors as a pandas DataFrame, the names as its index. Raise UsageError without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise UsageError("to_frame() needs pandas, which is not installed: `pip install pandas`.") from error
        rows = [plain(tensor) for tensor in self.tensors]
        flat = [{**row, **(row.pop("closeness") or {})} for row in rows]
        return pandas.DataFrame(flat).set_index("name") if flat else pandas.DataFrame()

    def left_float(self) -> list[Decision]:
        """Return the nodes that were not quantized."""
        return [decision for decision in self.nodes if not decision.quantized]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. Decibels of equal tensors (infinite) are null."""
        values = plain_fields(self)
        values["recipe"] = to_plain(self.recipe)
        # Factors of thousands of channels are left out.
        for name, factors in (("equalization", "factors"), ("absorption", "amounts"), ("smoothing", "factors")):
            if values[name] is not None:
                values[name][factors].clear()
        if self.postprocessing is not None:
            values["postprocessing"] = self.postprocessing.to_dict()
        if self.cut is not None:
            values["cut"] = plain(self.cut)
        if self.fidelity is not None and self.judgement is not None:
            same = self.fidelity.same_top1
            ends = None if same is None else list(in_percent(wilson_interval(same, self.fidelity.samples)))
            judged = {"same_top1_interval": ends, "verdict": self.judgement.level, "why": self.judgement.reason}
            values["fidelity"] |= judged
        return values
