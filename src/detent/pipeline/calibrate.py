"""Where the statistics come from: a sweep here, one on other workers, or a file that an earlier sweep saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from detent.errors import UsageError
from detent.graph.session import DEFAULT_PROVIDERS
from detent.methods import MinMSE
from detent.numerics.formats import IntegerFormat
from detent.observe.checkpoint import Checkpoint
from detent.observe.executors import sweep_on
from detent.observe.methods.positions import vote_of
from detent.observe.sources import Source
from detent.observe.statistics import Vote
from detent.observe.statistics_file import StatisticsFile, check_fits, load_statistics, save_statistics
from detent.observe.sweep import Observation, sweep
from detent.pipeline.rescaling import Rescaling
from detent.progress import Progress, silent
from detent.recipe import Recipe
from detent.settings import choice_text


@dataclass(frozen=True)
class Collecting:
    """How statistics are collected.

    `reuse` is a file of an earlier sweep and `save` one to write; `checkpoint` keeps what an interrupted sweep counted.
    `executor` counts on other workers than the threads of this process.
    """

    reuse: Path | None = None
    save: Path | None = None
    checkpoint: Path | None = None
    executor: Any = None
    threads: int = 0
    providers: Sequence[str] = DEFAULT_PROVIDERS

    def __post_init__(self) -> None:
        if self.reuse is not None and (self.executor is not None or self.save is not None):
            raise UsageError("With --stats nothing is counted: leave --save-stats, --workers and --dask out.")
        if self.executor is not None and tuple(self.providers) != DEFAULT_PROVIDERS:
            raise UsageError("--providers are those of this process; workers compute on their CPUs.")

    @property
    def needs_identity(self) -> bool:
        """Whether a file of statistics, which goes by the model's fingerprint, is read or written."""
        return self.reuse is not None or self.save is not None


def checkpoint_beside(output: Path) -> Path:
    """Where an interrupted calibration keeps what it has counted."""
    return output.with_name(f"{output.name}.checkpoint")


def refinement_beside(output: Path) -> Path:
    """Where an interrupted refinement keeps the layers that it has finished."""
    return output.with_name(f"{output.name}.refinement")


def saved_statistics(
    how: Collecting, identity: str | None, sites: Sequence[str], source: Source | None, recipe: Recipe
) -> StatisticsFile | None:
    """The file of an earlier sweep, if there is one to use. Raises where it does not fit.

    `identity` is the fingerprint of the model as it was given, which files of statistics go by.
    """
    if how.reuse is None:
        return None
    assert identity is not None
    file = load_statistics(how.reuse)
    check_fits(file, identity, sites, None if source is None else source.fingerprint, _vote(recipe)[1])
    if (file.smoothed is not None) != (recipe.smooth is not None):
        counted, other = ("after", "--smooth") if file.smoothed is not None else ("without", "no --smooth")
        raise UsageError(f"The statistics were counted {counted} smoothing: give {other}, or calibrate again.")
    if file.alpha != recipe.smooth:
        raise UsageError(f"The statistics were counted after smoothing by {file.alpha}: give that, or calibrate again.")
    _check_equalization(file, recipe)
    return file


def _check_equalization(file: StatisticsFile, recipe: Recipe) -> None:
    """The channels that were counted are those of one equalization, and of its settings."""
    wanted, made = choice_text(recipe.equalize), file.equalization
    if made is None and file.factors is not None:
        raise UsageError(
            f"The statistics were saved by Detent {file.detent_version}, which did not note the equalization that they "
            f"were counted after; recipe {recipe.name} has {wanted}. Calibrate again."
        )
    made = made or choice_text(None)
    if made != wanted:
        raise UsageError(
            f"The statistics were counted after the equalization {made}, and recipe {recipe.name} has {wanted}. Give "
            f"--set equalize={made}, or calibrate again."
        )


def collect(
    how: Collecting,
    model: ir.Model,
    sites: Sequence[str],
    source: Source,
    recipe: Recipe,
    progress: Progress = silent,
) -> Observation:
    """The statistics of `sites`, counted now, and the samples to measure the result with."""
    vote, votes_for = _vote(recipe)
    if how.executor is not None:
        return sweep_on(how.executor, model, sites, source, vote=vote, progress=progress)
    return sweep(
        model,
        sites,
        source,
        vote=vote,
        threads=how.threads,
        progress=progress,
        checkpoint=None if how.checkpoint is None else Checkpoint(how.checkpoint, votes_for=votes_for),
        providers=how.providers,
    )


def keep(
    how: Collecting,
    identity: str | None,
    source: Source,
    observation: Observation,
    recipe: Recipe,
    rescaling: Rescaling,
) -> None:
    """Save the statistics, where that was asked for."""
    if how.save is not None:
        assert identity is not None
        file = StatisticsFile(
            model=identity,
            data=source.fingerprint,
            description=source.describe,
            samples=observation.samples,
            statistics=observation.statistics,
            votes_for=_vote(recipe)[1],
            factors=rescaling.factors,
            absorbed=rescaling.absorbed,
            smoothed=rescaling.smoothed,
            alpha=recipe.smooth,
            equalization=choice_text(recipe.equalize),
        )
        save_statistics(how.save, file)


def _vote(recipe: Recipe) -> tuple[Vote | None, str]:
    """What each sample is asked, and its name; nothing for most methods."""
    method, fmt = recipe.method, recipe.activations
    if not isinstance(fmt, IntegerFormat) or not isinstance(method, MinMSE) or not fmt.power_of_two:
        return None, ""
    vote = vote_of(fmt, method)
    return vote, "" if vote is None else f"{method} on {fmt.dtype}"
