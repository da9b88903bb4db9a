"""Statistics as bytes and back: a JSON header, then the occupied bins of all histograms, then their counts.

    length of the header (4 bytes)  header  bins (2 bytes each)  counts (8 bytes each)

Equal statistics give equal bytes. Reading trusts nothing: every field is checked for its type and range, and those that
depend on each other (extremes and bins, sums and samples) are checked together.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DataError
from detent.observe.counting import BINS, HALF
from detent.observe.histogram import LOWEST_EXPONENT, Histogram
from detent.observe.statistics import Statistics, TensorStatistics, fixed_point

MOST_TENSORS = 1 << 16
HIGHEST_EXPONENT = 128
_COUNT_LIMIT = 1 << 48  # per bin, so that no sum over the bins overflows
_POSITION_LIMIT = 1 << 10
_LENGTH = struct.Struct("<I")

Header = dict[str, Any]


class _ImplausibleError(ValueError):
    """A field that no statistics could have."""


def pack(header: Mapping[str, Any], statistics: Statistics) -> bytes:
    """`header` (plain values of any kind) and the statistics as bytes."""
    bins = [np.flatnonzero(each.histogram.counts) for each in statistics.values()]
    counts = [each.histogram.counts[used] for each, used in zip(statistics.values(), bins, strict=True)]
    tensors = [_describe(name, each, len(used)) for (name, each), used in zip(statistics.items(), bins, strict=True)]
    text = json.dumps({**header, "tensors": tensors}, sort_keys=True, separators=(",", ":")).encode()
    parts = [part.astype("<u2").tobytes() for part in bins] + [part.astype("<u8").tobytes() for part in counts]
    return b"".join([_LENGTH.pack(len(text)), text, *parts])


def _describe(name: str, statistics: TensorStatistics, bins: int) -> Header:
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


def unpack(body: bytes, where: str) -> tuple[Header, Statistics]:
    """What `pack` was given. Raises DataError, naming the file `where`, for anything that it could not have written."""
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
        header = json.loads(body[_LENGTH.size : end])
    except (ValueError, RecursionError) as error:
        raise _ImplausibleError("its header is not JSON") from error
    if not isinstance(header, dict):
        raise _ImplausibleError("its header is not an object")
    return header, body[end:]


def _tensors(entries: object, data: bytes) -> Iterator[tuple[str, TensorStatistics]]:
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
            raise _ImplausibleError(f"a tensor is called {name!r}, which is no name or not its own")
        seen.add(name)
        try:
            yield name, _restore(entry, used, numbers)
        except _ImplausibleError as error:
            raise _ImplausibleError(f"tensor {name!r}: {error}") from error


def _restore(entry: Header, bins: npt.NDArray[np.uint16], numbers: npt.NDArray[np.uint64]) -> TensorStatistics:
    histogram = _histogram(entry, bins, numbers)
    samples = _integer(entry, "samples", 0, _COUNT_LIMIT)
    if bool(samples) != bool(histogram.total) or samples > histogram.total:
        raise _ImplausibleError(f"{samples} samples cannot have {histogram.total} values")
    least, most = (fixed_point(histogram.minimum), fixed_point(histogram.maximum)) if samples else (0, 0)
    minima = _integer(entry, "sum_of_minima", samples * least, samples * most)
    maxima = _integer(entry, "sum_of_maxima", minima, samples * most)
    return TensorStatistics(histogram, samples, minima, maxima, _votes(entry.get("votes"), samples))


def _histogram(entry: Header, bins: npt.NDArray[np.uint16], numbers: npt.NDArray[np.uint64]) -> Histogram:
    exponent = _integer(entry, "exponent", LOWEST_EXPONENT, HIGHEST_EXPONENT)
    extremes = entry.get("extremes")
    if not isinstance(extremes, list) or len(extremes) != 2 or not all(_is_integer(bits) for bits in extremes):
        raise _ImplausibleError("its extremes are not two numbers")
    counts = np.zeros(BINS, np.int64)
    if not len(bins):
        return Histogram.restore(exponent, counts, 0.0, 0.0)
    if (np.diff(bins.astype(np.int64)) <= 0).any() or bins[-1] >= BINS:
        raise _ImplausibleError("its bins are not in order")
    if (numbers < 1).any() or (numbers >= _COUNT_LIMIT).any():
        raise _ImplausibleError("a bin has an impossible count")
    low, high = (_float(bits) for bits in extremes)
    width = math.ldexp(1.0, exponent - HALF.bit_length() + 1)
    if low > high or (_bin_of(low, width), _bin_of(high, width)) != (bins[0], bins[-1]):
        raise _ImplausibleError("its extremes are not in its outermost bins")
    counts[bins] = numbers
    return Histogram.restore(exponent, counts, low, high)


def _votes(entries: object, samples: int) -> Counter[int]:
    plausible = isinstance(entries, list) and all(
        isinstance(vote, list) and len(vote) == 2 and all(_is_integer(number) for number in vote) for vote in entries
    )
    if not plausible:
        raise _ImplausibleError("its votes are not pairs of numbers")
    assert isinstance(entries, list)
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


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(entry: Header, key: str, least: int, most: int) -> int:
    value = entry.get(key)
    if not _is_integer(value) or not least <= int(value) <= most:  # type: ignore[arg-type]  # an integer by now
        raise _ImplausibleError(f"'{key}' is not a whole number that it could be")
    assert isinstance(value, int)
    return value
