"""Statistics in a file: counted once, used for every method and recipe afterwards.

The file says which model and which data it was counted with (as fingerprints), so that statistics of another model are
refused and not used. It has no date and no path of its own: equal statistics give equal bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from detent.errors import DataError, UsageError
from detent.graph.save import write_bytes
from detent.observe.sealed import Kind, read_sealed, seal
from detent.observe.statistics import Statistics
from detent.observe.statistics_bytes import pack, unpack
from detent.version import __version__

STATISTICS = Kind("statistics file", b"\x89DetentStats\r\n\x1a\n", 2)
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
    the factors by which SmoothQuant had divided values, and `alpha` is what they follow from.
    """

    model: str
    data: str | None
    description: str
    samples: int
    statistics: Statistics
    votes_for: str = ""
    factors: tuple[float, ...] | None = None
    absorbed: Mapping[str, tuple[float, ...]] | None = None
    smoothed: Mapping[str, tuple[float, ...]] | None = None
    alpha: float | None = None
    equalization: str | None = None
    detent_version: str = __version__


def save_statistics(path: Path, file: StatisticsFile) -> None:
    """Write the file, complete or not at all. Raises OutputError."""
    header = {
        "model": file.model,
        "data": file.data,
        "description": file.description,
        "samples": file.samples,
        "votes_for": file.votes_for,
        "factors": None if file.factors is None else list(file.factors),
        "absorbed": _listed(file.absorbed),
        "smoothed": _listed(file.smoothed),
        "alpha": file.alpha,
        "equalization": file.equalization,
        "detent_version": file.detent_version,
    }
    write_bytes(seal(STATISTICS, pack(header, file.statistics)), path)


def load_statistics(path: Path) -> StatisticsFile:
    """Read a file. Raises DataError that names it and says why it cannot be used."""
    header, statistics = unpack(read_sealed(path, STATISTICS), str(path))
    texts = {key: header.pop(key, None) for key in ("model", "description", "votes_for", "detent_version")}
    data, samples, factors, alpha = (header.pop(key, None) for key in ("data", "samples", "factors", "alpha"))
    absorbed, smoothed, equalization = (header.pop(key, None) for key in ("absorbed", "smoothed", "equalization"))
    if (
        header
        or not all(isinstance(text, str) for text in texts.values())
        or not (data is None or isinstance(data, str))
        or not isinstance(samples, int)
        or samples < 0
        or not _is_factors(factors)
        or not _is_named(absorbed)
        or not _is_named(smoothed)
        or not (equalization is None or isinstance(equalization, str))
        or (equalization is not None and (equalization == "none") != (factors is None))
        or not _is_factors(None if alpha is None else [alpha])
        or (any(each.votes for each in statistics.values()) and not texts["votes_for"])
    ):
        raise DataError(f"{path} is refused: its header is not that of a {STATISTICS.noun}. Make it again.")
    rescaled = None if factors is None else tuple(float(factor) for factor in factors)
    return StatisticsFile(
        data=data,
        samples=samples,
        statistics=statistics,
        factors=rescaled,
        absorbed=_tuples(absorbed),
        smoothed=_tuples(smoothed),
        alpha=alpha,
        equalization=equalization,
        **texts,
    )


def _listed(named: Mapping[str, tuple[float, ...]] | None) -> dict[str, list[float]] | None:
    return None if named is None else {name: list(each) for name, each in named.items()}


def _tuples(named: Mapping[str, Sequence[float]] | None) -> dict[str, tuple[float, ...]] | None:
    return None if named is None else {name: tuple(map(float, each)) for name, each in named.items()}


def _is_factors(value: object) -> bool:
    numbers = value if isinstance(value, list) else [] if value is None else [None]
    return all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers)


def _is_named(value: object) -> bool:
    named = value if isinstance(value, dict) else {} if value is None else {"": None}
    return all(isinstance(each, list) and _is_factors(each) for each in named.values())


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
