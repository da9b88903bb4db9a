"""What every verb returns: frozen types, and their JSON. Nothing here draws or prints.

quantized   Report of `quantize`, with its advice (verdict.py)
tensors     what a Report says of each tensor; StatisticsView
evaluated   Evaluation, and the scores that it is made of (task_scores.py); their statistics are in paired.py
searched    SensitivityReport, PrecisionReport, Tuning
compared    ModelComparison, FolderComparison, Emulation
checked     DeviceCheck
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from detent.graph.save import write_text


class Result:
    """Base of what a verb returns. It prints as on the command line, and has a JSON form."""

    ascii_json: ClassVar[bool] = False
    """Whether JSON spells out characters beyond ASCII. Files of both kinds are in use, so each type keeps its own."""

    json_fields: ClassVar[tuple[str, ...]] = ()
    """Attributes in the order in which JSON lists them; empty: all fields but those that are `for_people`."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return plain_fields(self)

    def to_json(self) -> str:
        """Return `to_dict` as JSON text. Numbers that are not finite are null, because JSON has none."""
        return json.dumps(plain(self.to_dict()), indent=2, ensure_ascii=self.ascii_json)

    def save(self, path: str | Path) -> None:
        """Write the JSON, complete or not at all."""
        write_text(self.to_json() + "\n", Path(path))

    def to_text(self, *, verbose: bool = False) -> str:
        """Return what the command line prints: a short answer, or all with `verbose`."""
        # By name, at run time: results are built by rooms that must not depend on how they are shown.
        rendered: str = importlib.import_module("detent.report.documents").text_of(self, verbose=verbose)
        return rendered

    def __str__(self) -> str:
        """Return the short answer."""
        return self.to_text()

    def __init_subclass__(cls) -> None:
        # Before @dataclass sees the class: it would write a __repr__ of every field, which floods a notebook.
        cls.__repr__ = Result.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """Return one line: the kind of result, its subject, and its verdict."""
        line: str = importlib.import_module("detent.report.documents").line_of(self)
        return line

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the summary of the page, with its first pictures."""
        html: str = importlib.import_module("detent.report.documents").summary_frame(self)
        return html


def for_people(default: Any) -> Any:
    """Declare a field that texts and pages show, and JSON does not have."""
    return dataclasses.field(default=default, metadata={"json": False})


def plain_fields(value: Any) -> dict[str, Any]:
    """Return the `json_fields` of a dataclass, or all of its fields, as JSON has them."""
    every = [item.name for item in dataclasses.fields(value) if item.metadata.get("json", True)]
    return {name: plain(getattr(value, name)) for name in getattr(value, "json_fields", ()) or every}


def plain(value: Any) -> Any:
    """Return a value as JSON has it: what has a `to_dict` as that says, other dataclasses by their fields.

    Numbers that are not finite are null.
    """
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain_fields(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return finite(value)
    return value


def finite(value: float) -> float | None:
    """Return the number, or None (null in JSON) if it is NaN or infinite."""
    return value if math.isfinite(value) else None
