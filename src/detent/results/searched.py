"""Results of searches: what each layer costs, which precision each gets, and which recipe a tuning took.

Errors are noise power over signal power at the outputs; in dB they are negative, and more negative is better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal

import onnx
from typing_extensions import Self

from detent.graph.save import write_text
from detent.numerics.formats import IntegerFormat
from detent.numerics.interface import NumberFormat
from detent.recipe import Recipe
from detent.recipe.file import to_plain, to_toml
from detent.results import Result, finite, plain_fields
from detent.results.checked import Placement
from detent.results.paired import Interval


def decibels(error: float) -> float:
    """Return an error in dB relative to the signal: -20 is a hundredth of its power."""
    return 10 * math.log10(error) if error > 0 else -math.inf


def _error(error: float) -> dict[str, float | None]:
    """Return an error as JSON has it. No error at all is null in dB."""
    return {"error": error, "error_db": finite(decibels(error))}


@dataclass(frozen=True)
class ErrorSource:
    """What was quantized alone: the constants of a layer, or one or more activations that are rounded together.

    It is float only if all layers in `touches`, which compute or read it, are left float. `constants` and `activations`
    are the names of its tensors. `elements` counts its numbers for one sample, and `operations` the products that its
    layer computes with them (of activations: their numbers). A size that only the data tells counts as 1.
    """

    name: str
    layer: str
    touches: frozenset[str]
    constants: tuple[str, ...] = ()
    activations: tuple[str, ...] = ()
    elements: int = 0
    operations: int = 0

    @property
    def is_weight(self) -> bool:
        """Whether it is the constants of a layer."""
        return bool(self.constants)


@dataclass(frozen=True)
class LayerSensitivity:
    """One layer. An error is None if the layer has nothing of that kind that is quantized.

    `gain` is None if it was not measured, or if nothing becomes float because others read and compute it too.
    `changed` counts samples with another top answer when the layer's weights, and when its activations are quantized;
    it is None if outputs are not class scores. `members` are the nodes that are computed with it, itself first. `part`
    is the part of the outputs at which the layer makes most error, and where its errors are measured; it is empty if
    there is one output, and that is one thing.
    """

    json_fields: ClassVar[tuple[str, ...]] = (
        *("node", "op_type", "weights", "activations", "error", "error_db", "gain", "changed"),
        *("parameters", "operations", "part"),
    )

    node: str
    op_type: str
    members: tuple[str, ...]
    weights: float | None
    activations: float | None
    gain: float | None
    changed: tuple[int, int] | None
    parameters: int
    operations: int
    part: str = ""

    @property
    def error(self) -> float:
        """Of weights and activations together: noise powers add."""
        return (self.weights or 0.0) + (self.activations or 0.0)

    @property
    def error_db(self) -> float:
        return decibels(self.error)


@dataclass(frozen=True)
class PartErrors:
    """Errors at each part of the outputs: of the whole quantized model, and by source.

    Noise powers add within a part: so what leaving sources float does is known for each part.
    """

    names: tuple[str, ...]
    total: tuple[float, ...]
    by_source: Mapping[str, tuple[float, ...]]

    def to_list(self) -> list[dict[str, Any]]:
        """Return the error of the whole model at each part, for JSON; none if outputs are one thing."""
        named = zip(self.names, self.total, strict=True)
        return [{"part": name, **_error(error)} for name, error in named if name]


@dataclass(frozen=True)
class Sensitivity:
    """Every layer in graph order, every source of error, and the error of the whole quantized model.

    All errors are those at the worst part of the outputs; `parts` has those at each.
    """

    layers: tuple[LayerSensitivity, ...]
    sources: tuple[ErrorSource, ...]
    errors: Mapping[str, float]
    total: float
    changed: int | None
    samples: int
    exact: bool
    parts: PartErrors | None = None

    @property
    def part(self) -> str:
        """The part with the error of the whole model; empty if outputs are one thing."""
        if self.parts is None:
            return ""
        return max(zip(self.parts.total, self.parts.names, strict=True), key=lambda each: each[0])[1]

    def worst_first(self) -> list[LayerSensitivity]:
        """Return the layers, those with the largest error first."""
        return sorted(self.layers, key=lambda layer: -layer.error)


# What a proposal does: leave nodes float, or give activations 16 bits, or weights 8.
Way = Literal["exclude", "a16", "w8"]


@dataclass(frozen=True)
class Proposal:
    """A recipe whose error is expected to be `predicted`, and the nodes or activations that it treats differently.

    `operations` is the share of all products that is computed in float. If `reached` is False, the wanted error is out
    of reach this way, and everything that helps is in the recipe.
    """

    json_fields: ClassVar[tuple[str, ...]] = ("way", "nodes", "tensors", "wanted", "predicted", "reached")

    recipe: Recipe
    way: Way
    nodes: tuple[str, ...]
    tensors: tuple[str, ...]
    before: float
    predicted: float
    wanted: float
    operations: float

    @property
    def reached(self) -> bool:
        """Whether the wanted error is expected to be reached."""
        return self.predicted <= self.wanted


class RecipeResult(Result):
    """A result that comes with a recipe to continue from. `file` is where that was written, or None."""

    ascii_json: ClassVar[bool] = True
    file: str | None

    def to_toml(self) -> str:
        """Return the recipe as a file for `--recipe`."""
        return to_toml(self.recipe)  # type: ignore[attr-defined]  # every one of them has it

    def with_file(self, path: str | PathLike[str]) -> Self:
        """Write the recipe to a file, and return the result that names it."""
        write_text(self.to_toml(), Path(path))
        return replace(self, file=str(path))  # type: ignore[type-var]  # every one of them is a dataclass


@dataclass(frozen=True)
class SensitivityReport(RecipeResult):
    """What was measured on which model, and what follows from it if that was asked for.

    `data` and `note` say what the samples are, and how they were read. `device` is what a proposal to leave nodes float
    does to the device's part of the model; None if there is no such proposal, or no device.
    """

    source: str
    recipe: Recipe
    found: Sensitivity
    proposal: Proposal | None = None
    data: str = ""
    note: str = ""
    device: Placement | None = None
    file: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. No error at all is null in dB."""
        found = self.found
        values: dict[str, Any] = {
            "model": self.source,
            "recipe": self.recipe.name,
            "data": self.data,
            "samples": found.samples,
            "exact": found.exact,
            **_error(found.total),
            "part": found.part,
            "parts": [] if found.parts is None else found.parts.to_list(),
            "changed": found.changed,
            "layers": [plain_fields(layer) for layer in found.worst_first()],
        }
        if self.proposal is not None:
            values["proposal"] = {
                **plain_fields(self.proposal),
                "float_operations": self.proposal.operations,
                "device": None if self.device is None else self.device.to_dict(),
                "recipe": to_plain(self.proposal.recipe),
            }
        return values

    def to_toml(self) -> str:
        """Return the proposed recipe as a file for `--recipe`."""
        return to_toml(self.recipe if self.proposal is None else self.proposal.recipe)


SearchedRole = Literal["weights", "activations"]  # whose formats are chosen


@dataclass(frozen=True)
class FormatOption:
    """A format that a tensor may have, the bits of all its numbers in it, and the error that it alone makes."""

    format: NumberFormat
    bits: int
    error: float

    @property
    def numbers(self) -> int:
        """How many numbers the tensor has."""
        return self.bits // self.format.bits


Choice = dict[str, FormatOption]


@dataclass(frozen=True)
class PrecisionSearch:
    """The recipe that was found, with the option that every layer or activation got, and what it costs.

    `error` was measured on the whole model; `uniform` is the same with one format throughout. `mean_bits` is of all
    numbers whose format was chosen. If `reached` is False, no choice has the wanted error, and this one is the nearest.
    """

    recipe: Recipe
    what: SearchedRole
    choice: Choice
    uniform: Mapping[IntegerFormat, float]
    error: float
    mean_bits: float
    reached: bool
    samples: int

    @property
    def formats(self) -> dict[str, NumberFormat]:
        """By layer, or activation."""
        return {name: option.format for name, option in self.choice.items()}

    def uniform_errors(self) -> list[tuple[IntegerFormat, float]]:
        """Return each format with the error that it has throughout, from the fewest bits on."""
        return sorted(self.uniform.items(), key=lambda each: (each[0].bits, each[0].label))


@dataclass(frozen=True)
class PrecisionReport(RecipeResult):
    """What was found for which model, on top of which recipe, and the bound that was asked for: one of the two."""

    source: str
    base: Recipe
    found: PrecisionSearch
    max_error: float | None = None
    mean_bits: float | None = None
    file: str | None = None

    @property
    def recipe(self) -> Recipe:
        """The recipe to quantize with."""
        return self.found.recipe

    @property
    def reached(self) -> bool:
        """Whether the bound was met."""
        return self.found.reached

    @property
    def numbers(self) -> int:
        """How many numbers have a chosen format; of activations, for one sample."""
        return sum(option.numbers for option in self.found.choice.values())

    @property
    def bits(self) -> int:
        """The bits of all these numbers."""
        return sum(option.bits for option in self.found.choice.values())

    @property
    def bits_before(self) -> int:
        """The same in the format of the recipe that the search began with."""
        usual = self.base.formats[self.found.what]
        assert usual is not None, "only numbers that have a format are searched"
        return self.numbers * usual.bits

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. No error at all is null in dB."""
        found = self.found
        return {
            "model": self.source,
            "base": self.base.name,
            "what": found.what,
            "samples": found.samples,
            "max_error": self.max_error,
            "wanted_mean_bits": self.mean_bits,
            "reached": found.reached,
            **_error(found.error),
            "mean_bits": found.mean_bits,
            "bits": self.bits,
            "bits_before": self.bits_before,
            "uniform": {fmt.label: _error(error) for fmt, error in found.uniform_errors()},
            "formats": [
                {"name": name, "format": each.format.label, "numbers": each.numbers, "bits": each.bits}
                | _error(each.error)
                for name, each in found.choice.items()
            ],
            "recipe": to_plain(found.recipe),
        }


@dataclass(frozen=True)
class StepOutcome:
    """What a tuning step lost, and what it took.

    `output_error` is noise power over signal power at the outputs, on calibration samples that were held out; None
    if none were. `kept`: it was better than the steps before it, and later ones are built on it. `drawn` is the loss on
    draws of the samples, the same for all steps; None if there are none.
    """

    name: str
    what: str
    loss: float
    unit: str
    interval: Interval | None
    output_error: float | None
    seconds: float
    bytes_after: int | None
    kept: bool = False
    resumed: bool = False
    drawn: tuple[float, ...] | None = None

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> StepOutcome:
        """Return the outcome that an earlier run recorded."""
        lists = {name: None if plain.get(name) is None else tuple(plain[name]) for name in ("interval", "drawn")}
        return cls(**{**plain, **lists, "resumed": True})


@dataclass(frozen=True)
class Tuning(RecipeResult):
    """All steps in the order in which they were tried, and which one was taken.

    `met`: its loss is at most `max_drop`. `stopped` says why no more was tried, `reference` what the float model gets,
    `note` how images were read, `blame` whether weights or activations make the error. `kept` is where a tuning that
    ran out of time left what it knows, for one with more.
    """

    source: str
    output: str | None
    recipe: Recipe
    taken: str
    steps: Sequence[StepOutcome]
    max_drop: float
    met: bool
    stopped: str
    data: str
    note: str
    reference: str
    samples: int
    seconds: float
    bytes_before: int | None
    model: onnx.ModelProto | None = None
    kept: str | None = None
    file: str | None = None
    blame: str = ""

    @property
    def outcome(self) -> StepOutcome:
        """That of the step that was taken."""
        return next(step for step in reversed(self.steps) if step.name == self.taken and step.kept)

    @property
    def rungs(self) -> Sequence[StepOutcome]:
        """The steps, under the name that the JSON has for them."""
        return self.steps

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model, as plain values."""
        skipped = ("model", "recipe", "steps", "file")
        plain = {name: value for name, value in self.__dict__.items() if name not in skipped}
        steps = [step.to_plain() for step in self.steps]
        for step in steps:
            del step["drawn"]
        return {**plain, "recipe": to_plain(self.recipe), "rungs": steps}
