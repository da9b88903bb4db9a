"""Statistics in a file: counted once, used for every method and recipe afterwards.

The file says which model and which data it was counted with (as fingerprints), so that statistics of another model are
refused. It holds no date and no path: equal statistics give equal bytes. Within the seal of `store`:

    length of the header (4 bytes)  JSON header  bins (2 bytes each)  counts (8 bytes each)

with the occupied bins of all histograms, then their counts. Reading trusts nothing: every field is checked for its type
and range, and fields that depend on each other (extremes and bins, sums and samples) are checked together.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from detent.errors import DataError, UsageError
from detent.observe import statistics as counted
from detent.observe.counting import BINS, HALF
from detent.observe.store import STATISTICS, read_sealed, write_sealed
from detent.settings import parse_json
from detent.version import __version__

MOST_TENSORS = 1 << 16  # a file may come from anyone: it must not ask for all memory
HIGHEST_EXPONENT = 128  # of float32
_COUNT_LIMIT = 1 << 48  # per bin, so that no sum over the bins overflows
_POSITION_LIMIT = 1 << 10
_LENGTH = struct.Struct("<I")

Header = dict[str, Any]


class _ImplausibleError(ValueError):
    """A field that no statistics could have."""


def pack(header: Mapping[str, Any], statistics: counted.Statistics) -> bytes:
    """Return a header (plain values of any kind) and statistics as bytes."""
    bins = [np.flatnonzero(each.histogram.counts) for each in statistics.values()]
    counts = [each.histogram.counts[used] for each, used in zip(statistics.values(), bins, strict=True)]
    tensors = [_describe(name, each, len(used)) for (name, each), used in zip(statistics.items(), bins, strict=True)]
    text = json.dumps({**header, "tensors": tensors}, sort_keys=True, separators=(",", ":")).encode()
    parts = [part.astype("<u2").tobytes() for part in bins] + [part.astype("<u8").tobytes() for part in counts]
    return b"".join([_LENGTH.pack(len(text)), text, *parts])


def _describe(name: str, statistics: counted.TensorStatistics, bins: int) -> Header:
    histogram = statistics.histogram
    return {
        "name": name,
        "samples": statistics.samples,
        "sum_of_minima": statistics.sum_of_minima,
        "sum_of_maxima": statistics.sum_of_maxima,
        "votes": sorted(statistics.votes.items()),
        "exponent": histogram.exponent,
        "extremes": [_bits(histogram.minimum), _bits(histogram.maximum)] if histogram.total else [0, 0],
        "bins": bins,
    }


def unpack(body: bytes, where: str) -> tuple[Header, counted.Statistics]:
    """Return what `pack` was given. Raise DataError, naming the file `where`, for anything else."""
    try:
        header, rest = _split(body)
        return header, dict(_tensors(header.pop("tensors", None), rest))
    except _ImplausibleError as error:
        raise DataError(f"{where} is refused: {error}. It was not written by Detent; make it again.") from error


def _split(body: bytes) -> tuple[Header, bytes]:
    if len(body) < _LENGTH.size:
        raise _ImplausibleError("it has no header")
    end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    try:
        header = parse_json(body[_LENGTH.size : end])
    except ValueError as error:
        raise _ImplausibleError("its header is not JSON") from error
    if not isinstance(header, dict):
        raise _ImplausibleError("its header is not an object")
    return header, body[end:]


def _tensors(entries: object, data: bytes) -> Iterator[tuple[str, counted.TensorStatistics]]:
    if not isinstance(entries, list) or len(entries) > MOST_TENSORS or not all(isinstance(e, dict) for e in entries):
        raise _ImplausibleError("its list of tensors is not one")
    sizes = [_integer(entry, "bins", 0, BINS) for entry in entries]
    total = sum(sizes)
    if len(data) != 10 * total:
        raise _ImplausibleError(f"{total} bins need {10 * total} bytes, but there are {len(data)}")
    bins = np.split(np.frombuffer(data, "<u2", total), np.cumsum(sizes[:-1]))
    counts = np.split(np.frombuffer(data, "<u8", total, offset=2 * total), np.cumsum(sizes[:-1]))
    seen: set[str] = set()
    for entry, used, numbers in zip(entries, bins, counts, strict=False):  # without entries there is one empty part
        name = entry.get("name")
        if not isinstance(name, str) or name in seen:
            raise _ImplausibleError(f"a tensor is called {name!r}, which is not a name or not its own")
        seen.add(name)
        try:
            yield name, _restore(entry, used, numbers)
        except _ImplausibleError as error:
            raise _ImplausibleError(f"tensor {name!r}: {error}") from error


def _restore(entry: Header, bins: npt.NDArray[np.uint16], numbers: npt.NDArray[np.uint64]) -> counted.TensorStatistics:
    histogram = _histogram(entry, bins, numbers)
    samples = _integer(entry, "samples", 0, _COUNT_LIMIT)
    if bool(samples) != bool(histogram.total) or samples > histogram.total:
        raise _ImplausibleError(f"{samples} samples cannot have {histogram.total} values")
    least, most = (
        (counted.fixed_point(histogram.minimum), counted.fixed_point(histogram.maximum)) if samples else (0, 0)
    )
    minima = _integer(entry, "sum_of_minima", samples * least, samples * most)
    maxima = _integer(entry, "sum_of_maxima", minima, samples * most)
    return counted.TensorStatistics(histogram, samples, minima, maxima, _votes(entry.get("votes"), samples))


def _histogram(entry: Header, bins: npt.NDArray[np.uint16], numbers: npt.NDArray[np.uint64]) -> counted.Histogram:
    exponent = _integer(entry, "exponent", counted.LOWEST_EXPONENT, HIGHEST_EXPONENT)
    extremes = entry.get("extremes")
    if not _is_pair(extremes):
        raise _ImplausibleError("its extremes are not two numbers")
    counts = np.zeros(BINS, np.int64)
    if not len(bins):
        return counted.Histogram.restore(exponent, counts, 0.0, 0.0)
    if (np.diff(bins.astype(np.int64)) <= 0).any() or bins[-1] >= BINS:
        raise _ImplausibleError("its bins are not in order")
    if (numbers < 1).any() or (numbers >= _COUNT_LIMIT).any():
        raise _ImplausibleError("a bin has an impossible count")
    low, high = (_float(bits) for bits in extremes)
    width = counted.bin_width(exponent)
    if low > high or (_bin_of(low, width), _bin_of(high, width)) != (bins[0], bins[-1]):
        raise _ImplausibleError("its extremes are not in its outermost bins")
    counts[bins] = numbers
    return counted.Histogram.restore(exponent, counts, low, high)


def _votes(entries: object, samples: int) -> Counter[int]:
    if not isinstance(entries, list) or not all(map(_is_pair, entries)):
        raise _ImplausibleError("its votes are not pairs of numbers")
    votes = Counter(dict(entries))
    if len(votes) != len(entries) or min(votes.values(), default=1) < 1 or votes.total() > samples:
        raise _ImplausibleError("its votes do not add up")
    if any(abs(position) > _POSITION_LIMIT for position in votes):
        raise _ImplausibleError("it has a vote for an impossible position")
    return votes


def _bin_of(value: float, width: float) -> int:
    return int(value / width) - (value < 0) + HALF


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def _float(bits: int) -> float:
    value = float(np.uint32(bits).view(np.float32)) if 0 <= bits < 1 << 32 else math.nan
    if not math.isfinite(value):
        raise _ImplausibleError("an extreme is not a finite number")
    return value


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_pair(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_integer, value))


def _integer(entry: Header, key: str, least: int, most: int) -> int:
    value = entry.get(key)
    if not _is_integer(value) or not least <= value <= most:
        raise _ImplausibleError(f"'{key}' is not a whole number that it could be")
    return value


_NAMES_SHOWN = 5


@dataclass(frozen=True)
class StatisticsFile:
    """The statistics of each tensor, in the order of the graph, and what they were counted with.

    `model` is the fingerprint of the model as it was given (preparing it changes no value that keeps its name, so other
    recipes and targets may use the file too), `data` that of the samples (None for a stream, which has none) and
    `description` a line about them. `votes_for` names the method and grid that samples voted for; empty: no votes.
    `factors` are the logarithms by which channels had been rescaled; None: as they were. `equalization` is the choice
    that they follow from, as text; None: format 1 did not note it. `absorbed` are the biases that
    layers had given to those behind, by the value that was computed without them; None: as they were. `smoothed` are
    the factors by which smoothing had divided values, and `alpha` is what they follow from: a number, or the choice as
    text. `not_finite` are the values that were not counted, since they held NaN or infinity.
    """

    model: str
    data: str | None
    description: str
    samples: int
    statistics: counted.Statistics
    votes_for: str = ""
    factors: tuple[float, ...] | None = None
    absorbed: Mapping[str, tuple[float, ...]] | None = None
    smoothed: Mapping[str, tuple[float, ...]] | None = None
    alpha: float | str | None = None
    equalization: str | None = None
    not_finite: Sequence[str] | None = None
    detent_version: str = __version__


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_factor(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _are_factors(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_factor, value))


def _are_named(value: object) -> bool:
    return isinstance(value, dict) and all(map(_are_factors, value.values()))


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


# The fields of a header and what each may be, and no others. Format 1 lacks `equalization`; without a value that is not
# finite, a file is as versions before that field wrote it.
_HEADER: Mapping[str, Callable[[Any], bool]] = {
    "model": _is_text,
    "data": _is_text,
    "description": _is_text,
    "samples": lambda value: isinstance(value, int) and value >= 0,
    "votes_for": _is_text,
    "factors": _are_factors,
    "absorbed": _are_named,
    "smoothed": _are_named,
    "alpha": lambda value: _is_factor(value) or _is_text(value),
    "equalization": _is_text,
    "not_finite": _are_names,
    "detent_version": _is_text,
}

_MAY_BE_NONE = frozenset(("data", "factors", "absorbed", "smoothed", "alpha", "equalization", "not_finite"))


def save_statistics(path: Path, file: StatisticsFile) -> None:
    """Write the file, complete or not at all. Raise OutputError."""
    header = {name: getattr(file, name) for name in _HEADER if name != "not_finite" or file.not_finite}
    write_sealed(path, STATISTICS, pack(header, file.statistics))


def load_statistics(path: Path) -> StatisticsFile:
    """Read a file. Raise DataError that names it and says why it cannot be used."""
    header, statistics = unpack(read_sealed(path, STATISTICS), str(path))
    fields = {name: header.pop(name, None) for name in _HEADER}
    equalization, voted = fields["equalization"], any(each.votes for each in statistics.values())
    if (
        header
        or not all(
            fits(fields[name]) or (fields[name] is None and name in _MAY_BE_NONE) for name, fits in _HEADER.items()
        )
        or (equalization is not None and (equalization == "none") != (fields["factors"] is None))
        or (voted and not fields["votes_for"])
    ):
        raise DataError(f"{path} is refused: its header is not that of a {STATISTICS.noun}. Make it again.")
    if fields["factors"] is not None:
        fields["factors"] = tuple(map(float, fields["factors"]))
    for name in ("absorbed", "smoothed"):
        if fields[name] is not None:
            fields[name] = {value: tuple(map(float, each)) for value, each in fields[name].items()}
    return StatisticsFile(statistics=statistics, **fields)


def check_fits(
    file: StatisticsFile, model: str, sites: Sequence[str], data: str | None = None, votes_for: str = ""
) -> None:
    """Refuse statistics of another model or other data, without some of the `sites`, or without votes that are needed.

    `model` and `data` are fingerprints; data is compared where both are known. A file may hold more tensors than asked.
    """
    missing = [site for site in sites if site not in file.statistics]
    if file.model != model:
        raise UsageError(
            f"The statistics are of another model{_named(missing)}. Give the model that they were saved with, or "
            "calibrate again."
        )
    if missing:
        raise UsageError(
            f"The statistics do not have all tensors that are needed{_named(missing)}. Another selection of nodes or "
            "another target exposes other tensors: calibrate again."
        )
    if data is not None and file.data is not None and file.data != data:
        raise UsageError(
            f"The statistics were counted on other data ({file.description}): a file, the selection, the batch or the "
            "preprocessing differs. Leave the data out to use the statistics as they are, or calibrate again."
        )
    if file.samples == 0:
        raise DataError("The statistics were counted on no samples: there is nothing to choose a range from.")
    if votes_for and file.votes_for != votes_for:
        held = f"for {file.votes_for}" if file.votes_for else "none"
        raise UsageError(
            f"The method needs the votes of each sample for {votes_for}, but the statistics hold {held}. "
            "Calibrate again with that method."
        )


def _named(missing: Sequence[str]) -> str:
    if not missing:
        return ""
    more = len(missing) - _NAMES_SHOWN
    listed = ", ".join(f"'{name}'" for name in missing[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"; missing: {listed}"
