"""The values of options, from text as the command line has it or from Python values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from detent.errors import UsageError
from detent.graph.session import DEFAULT_PROVIDERS
from detent.observe.preprocess import PreprocessOptions, preprocess_options
from detent.options import ImageOptions, Shapes


def names_of(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def providers_of(given: str | Sequence[str], options: str | Sequence[str] = ()) -> tuple[str, ...]:
    """Return onnxruntime's execution providers; without any, the CPU. `options`, KEY=VALUE, are those of the first."""
    first, *others = names_of(given) or tuple(DEFAULT_PROVIDERS)
    own = ",".join(names_of(options))
    if not own:
        return first, *others
    if not names_of(given):
        raise UsageError(f"--provider-options {own}: name the provider that they are for with --providers.")
    return f"{first}{',' if ':' in first else ':'}{own}", *others


def image_options(given: ImageOptions) -> PreprocessOptions:
    """Return the image options. Spelling is checked here, meaning when the model's input is known."""
    size: Any = given["size"]
    if isinstance(size, str):
        sides = _whole_numbers(size, "--size")
        if len(sides) > 2:
            raise UsageError(f"--size '{size}': expected one number or H,W.")
        size = sides[0] if len(sides) == 1 else tuple(sides)
    flags: dict[str, Any] = {
        "size": size,
        "resize": given["resize"],
        "mean": _numbers(given["mean"], "--mean"),
        "std": _numbers(given["std"], "--std"),
        "order": given["order"] and given["order"].upper(),
        "layout": given["layout"] and given["layout"].upper(),
        "resample": given["resample"] and given["resample"].lower(),
        "fit": given["fit"] and given["fit"].lower(),
        "pad": given["pad"],
    }
    changes = {name: value for name, value in flags.items() if value is not None}
    return replace(preprocess_options(given["preprocess"]), **changes)


def shapes_of(given: Shapes | str | Sequence[str] | None) -> Shapes | None:
    """Return the shape of each input, from texts such as `input=1,3,224,224` or from a mapping."""
    if given is None or isinstance(given, Mapping):
        return given
    shapes = _assignments(given, "--fix-shape", "INPUT=D,D,..., such as input=1,3,224,224")
    return {name: _whole_numbers(dims, "--fix-shape") for name, dims in shapes} or None


def fixing_of(given: Shapes | str | Sequence[str] | None) -> tuple[Shapes | None, str]:
    """Return the shapes to fix, and how others are fixed: "auto" as the samples are, "none", or "" as the device needs.

    Raise UsageError if one of the two words stands beside shapes.
    """
    words = () if given is None or isinstance(given, Mapping) else names_of(given)
    word = next((word for word in words if word in ("auto", "none")), "")
    if word and len(words) > 1:
        raise UsageError(f"--fix-shape {word} speaks of all inputs: give it alone, or the shapes that you mean.")
    return (None if word else shapes_of(given)), word


def constants_of(given: Mapping[str, float | Sequence[float]] | str | Sequence[str] | None) -> dict[str, list[float]]:
    """Return the numbers of each input that becomes constant, from texts such as `sr=16000` or from a mapping."""
    if given is None or isinstance(given, Mapping):
        return {name: list(np.ravel(value).tolist()) for name, value in (given or {}).items()}
    found: dict[str, list[float]] = {}
    words = {"true": "1", "false": "0"}
    for name, numbers in _assignments(given, "--fix-input", "INPUT=VALUE, such as sr=16000"):
        try:
            found[name] = [float(words.get(part.strip().lower(), part)) for part in numbers.split(",")]
        except ValueError:
            raise UsageError(f"--fix-input '{name}={numbers}': '{numbers}' is not a number, nor several.") from None
    return found


def _assignments(given: str | Sequence[str], option: str, expected: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each NAME=VALUE."""
    for assignment in names_of(given):
        name, separator, value = assignment.rpartition("=")
        if not separator or not name:
            raise UsageError(f"{option} '{assignment}': expected {expected}.")
        yield name, value


def noise_of(given: float | str | None) -> float | None:
    """Return an error as noise power over signal power, from that or from decibels: -20dB is 0.01."""
    if not isinstance(given, str):
        return given
    number, is_decibels = given.strip().lower(), False
    if number.endswith("db"):
        number, is_decibels = number[:-2], True
    try:
        value = float(number)
    except ValueError:
        raise UsageError(
            f"--max-error '{given}': expected decibels such as -25dB, or a number such as 0.003."
        ) from None
    if is_decibels and not value < 0:
        raise UsageError(
            f"--max-error {given}: the error would be as large as the signal. Decibels are below 0: -25dB."
        )
    if not is_decibels and not value > 0:
        raise UsageError(f"--max-error {given}: a power above 0, such as 0.003. Decibels are written -25dB.")
    return 10 ** (value / 10) if is_decibels else value


def _numbers(given: float | Sequence[float] | str | None, option: str) -> float | tuple[float, ...] | None:
    if given is None or isinstance(given, int | float):
        return given
    if not isinstance(given, str):
        return tuple(given)
    try:
        return tuple(float(part) for part in given.split(","))
    except ValueError:
        raise UsageError(f"{option} '{given}': expected numbers separated by commas, such as 0.5,0.5,0.5.") from None


def _whole_numbers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} '{text}': expected whole numbers separated by commas, such as 224,224.") from None
