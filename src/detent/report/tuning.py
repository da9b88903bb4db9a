"""The result of a tuning: every rung that was climbed, and the one that was taken."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from detent.evaluation.statistics import Interval
from detent.graph.save import write_text
from detent.recipe import Recipe
from detent.recipe_file import to_plain, to_toml


@dataclass(frozen=True)
class RungOutcome:
    """What a rung lost, and what it took.

    `output_error` is noise power over signal power at the outputs, on calibration samples that were held out; None
    where none were. `kept`: it was better than what was below it.
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

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> RungOutcome:
        """The outcome of an earlier run."""
        interval = plain["interval"]
        return cls(**{**plain, "interval": None if interval is None else tuple(interval), "resumed": True})


@dataclass(frozen=True)
class Tuning:
    """All rungs in the order in which they were climbed, and which one was taken.

    `met`: its loss is at most `max_drop`. `stopped` says why no more was tried, `reference` what the float model gets,
    `note` how images were read. `kept` is where a tuning that ran out of time left what it knows, for one with more.
    """

    source: str
    output: str | None
    recipe: Recipe
    taken: str
    rungs: Sequence[RungOutcome]
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

    @property
    def outcome(self) -> RungOutcome:
        """That of the rung that was taken."""
        return min(self.rungs, key=lambda rung: rung.loss)

    def to_toml(self) -> str:
        """The winning recipe, as a file for `--recipe`."""
        return to_toml(self.recipe)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the model, as plain values."""
        skipped = ("model", "recipe", "rungs")
        plain = {name: value for name, value in self.__dict__.items() if name not in skipped}
        return {**plain, "recipe": to_plain(self.recipe), "rungs": [rung.to_plain() for rung in self.rungs]}

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2)

    def save(self, path: Path) -> None:
        """Write the JSON."""
        write_text(self.to_json() + "\n", path)
