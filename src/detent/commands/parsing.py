"""What options say, from the text that they have."""

from __future__ import annotations

from collections.abc import Sequence

from detent.errors import UsageError


def numbers(text: str, option: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} '{text}': expected numbers separated by commas, such as 0.5,0.5,0.5.") from None


def whole_numbers(text: str, option: str) -> list[int]:
    """Whole numbers separated by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} '{text}': expected whole numbers separated by commas, such as 224,224.") from None


def shapes(assignments: Sequence[str]) -> dict[str, list[int]] | None:
    """`input=1,3,224,224` for each input."""
    found: dict[str, list[int]] = {}
    for assignment in assignments:
        name, separator, dims = assignment.rpartition("=")
        if not separator or not name:
            raise UsageError(f"--fix-shape '{assignment}': expected INPUT=D,D,..., such as input=1,3,224,224.")
        found[name] = whole_numbers(dims, "--fix-shape")
    return found or None


def error_of(text: str) -> float:
    """An error as noise power over signal power, from that or from decibels: -20dB is 0.01."""
    number, is_decibels = text.strip().lower(), False
    if number.endswith("db"):
        number, is_decibels = number[:-2], True
    try:
        value = float(number)
    except ValueError:
        raise UsageError(f"--max-error '{text}': expected decibels such as -25dB, or a number such as 0.003.") from None
    if is_decibels and not value < 0:
        raise UsageError(f"--max-error {text}: the error would be as large as the signal. Decibels are below 0: -25dB.")
    if not is_decibels and not value > 0:
        raise UsageError(f"--max-error {text}: a power above 0, such as 0.003. Decibels are written -25dB.")
    return 10 ** (value / 10) if is_decibels else value
