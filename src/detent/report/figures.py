"""Figures and names as people read them, the same in a terminal and on a page.

Names of tensors, nodes and files are untrusted text: they may hold line breaks, terminal codes or worse.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from os import PathLike

from detent.devices.device import GENERATIONS
from detent.graph.load import is_in_memory
from detent.recipe import Recipe
from detent.recipe.recipe import PRESETS
from detent.results.evaluated import CHANGED, OUTPUT_ERROR, POINTS
from detent.results.paired import Interval, interval_text
from detent.results.task_scores import POINTS_OF
from detent.results.tensors import LOSS_UNITS, TensorReport

PERCENTAGES = (POINTS.format(top=1), POINTS.format(top=5), CHANGED)


SHORT_UNITS = {
    POINTS.format(top=1): "points of top-1",
    POINTS.format(top=5): "points of top-5",
    CHANGED: "% of top answers changed",
    OUTPUT_ERROR: "% of relative output error (noise power / signal power)",
    LOSS_UNITS["classify"]: "points of accuracy (expected)",
    LOSS_UNITS["tag"]: "points of F1 (expected)",
    LOSS_UNITS["sequence"]: "% of the classes in sequences (expected)",
    LOSS_UNITS["detect"]: "points of average precision (expected)",
    LOSS_UNITS["segment"]: "points of overlap (expected)",
    LOSS_UNITS["embed"]: "% of the ranking of similarities",
}

SQNR = "The power of the float signal over that of its error: 20 dB is an error of 1 %, 10 dB of 10 %; more is better."

_KEPT_LENGTH = 60  # characters of a name that a file keeps


def printable(name: str) -> str:
    """Spell out everything that does not print: line breaks, terminal codes, reversed writing."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in name
    )


def printable_lines(text: str) -> str:
    """Spell out everything that does not print, but keep line breaks."""
    return "\n".join(map(printable, text.split("\n")))


def in_the_middle(text: str, most: int) -> str:
    """Shorten a text in its middle: the beginning and the end of a name tell more."""
    if len(text) <= most:
        return text
    tail = (most - 1) * 2 // 3
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"


def file_stem(index: int, name: str) -> str:
    """Return a file name without ending: the tensor's number, for uniqueness, and the harmless part of its name."""
    harmless = "".join(character if character.isascii() and character.isalnum() else "_" for character in name)
    return f"{index:03d}_{harmless.strip('_')[:_KEPT_LENGTH]}".rstrip("_")


def size(count: float) -> str:
    """Write bytes in the unit that leaves three digits."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} bytes"


def ratio(before: int, after: int) -> str:
    """Say how much smaller or larger; the nodes for each tensor make small models larger."""
    if f"{max(before, after) / max(min(before, after), 1):.1f}" == "1.0":
        return "about the same"
    if after > before:
        return f"{after / max(before, 1):.1f} times larger"
    return f"{before / max(after, 1):.1f} times smaller"


def decibels(value: float) -> str:
    """Write a ratio of powers; it is infinite if nothing differs."""
    return "exact" if value == math.inf else f"{value:.1f}"


def in_decibels(value: float) -> str:
    """Write a ratio of powers with its unit."""
    return decibels(value) if value == math.inf else f"{decibels(value)} dB"


def percent(share: float) -> str:
    """Write a share with as many digits as matter."""
    return f"{100 * share:.3g} %"


def step(tensor: TensorReport) -> str:
    """Write the distance between two codes, or the format if it has none."""
    if tensor.position is not None:
        return f"2^{-tensor.position}"
    return tensor.dtype if tensor.scale is None or tensor.scale == 1.0 else f"{tensor.scale:.4g}"


def extent(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.4g} .. {high:.4g}"


def form_of(*values: float | None) -> str:
    """Return one format for numbers that stand together: digits that leave the largest four in all."""
    largest = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
    if largest == 0.0 or not 1e-4 <= largest < 1e6:
        return ".4g"
    return f".{max(0, 3 - math.floor(math.log10(largest)))}f"


def loss_words(unit: str, loss: float, ends: Interval | None) -> tuple[str, str]:
    """Write a loss and its interval, empty if there is none: percentages with two digits, all else with four."""
    is_percentage = unit in PERCENTAGES or unit.startswith(POINTS_OF.format(figure=""))
    form = ".2f" if is_percentage else form_of(loss, *(ends or ()))
    return f"{loss:{form}}", "" if ends is None else interval_text(ends, form)


def unit_of(unit: str) -> str:
    """Write a unit of loss in few words."""
    return SHORT_UNITS.get(unit, unit)


def probability(value: float) -> str:
    """Write a p-value to three decimal places."""
    return "<0.001" if value < 0.0005 else f"{value:.3f}"


def command(*words: str | PathLike[str]) -> str:
    """Write a command to type. Names are quoted for a shell, because a model's names are untrusted text."""
    named = ["detent", *("MODEL" if is_in_memory(str(word)) else str(word) for word in words)]
    return " ".join(map(_quoted_for_windows, named)) if sys.platform == "win32" else shlex.join(named)


def _quoted_for_windows(word: str) -> str:
    """Quote a word for cmd.exe and PowerShell. Characters that these interpret within quotes become the wildcard ?."""
    return word if re.fullmatch(r"[\w.:/\\=+-]+", word) else '"' + re.sub('["%$`!^]', "?", word).rstrip("\\") + '"'


def recipe_words(recipe: Recipe) -> list[str]:
    """Return the options that repeat a recipe, its steps and its device; RECIPE stands for a recipe without a name."""
    device = ["--device", recipe.target] if recipe.target in GENERATIONS else []
    preset = PRESETS.get(recipe.name)
    if preset is None:
        return ["--recipe", "RECIPE", *device]
    steps = [("also", recipe.also, preset.also), ("without", recipe.without, preset.without)]
    changed = [word for key, own, usual in steps if own != usual for word in ("--set", f"{key}={','.join(own)}")]
    return ["--recipe", recipe.name, *changed, *device]
