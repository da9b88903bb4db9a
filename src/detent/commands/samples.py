"""The options that say which samples are read, and how they are run and counted, as groups.

Each group gives its values as keyword arguments of the functions that take them: `detent.mix(..., **reading.given())`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from detent.commands.images import ImageOptions
from detent.commands.options import CALIBRATION, Batch, FixShape, Limit, Seed, Threads
from detent.commands.parsing import shapes

if TYPE_CHECKING:
    from detent.observe.preprocess import PreprocessOptions


class SampleArguments(TypedDict):
    """What says which samples are read."""

    preprocess: PreprocessOptions
    limit: int | None
    seed: int | None
    batch: int | None


class ReadingArguments(SampleArguments):
    """What says which samples are read, and in which shape and by how many threads."""

    fix_shapes: dict[str, list[int]] | None
    threads: int


class RunningArguments(TypedDict):
    """What says which samples finished models are run on, and how."""

    preprocess: PreprocessOptions
    limit: int | None
    batch: int | None
    threads: int
    providers: Sequence[str]


@dataclass(frozen=True)
class SampleOptions:
    """Which samples are read."""

    limit: Limit = None
    seed: Seed = None
    batch: Batch = None
    images: ImageOptions = field(default_factory=ImageOptions)

    def given(self) -> SampleArguments:
        """As keyword arguments."""
        return {"preprocess": self.images.parsed(), "limit": self.limit, "seed": self.seed, "batch": self.batch}


@dataclass(frozen=True)
class ReadingOptions:
    """How samples are read into a float model that is to be quantized."""

    fix_shape: FixShape = field(default_factory=list)
    samples: SampleOptions = field(default_factory=SampleOptions)
    threads: Threads = 0

    def given(self) -> ReadingArguments:
        """As keyword arguments."""
        return {**self.samples.given(), "fix_shapes": shapes(self.fix_shape), "threads": self.threads}


@dataclass(frozen=True)
class RunningOptions:
    """How finished models are run on samples, all of them or the first."""

    limit: Limit = None
    batch: Batch = None
    images: ImageOptions = field(default_factory=ImageOptions)
    threads: Threads = 0
    providers: Annotated[list[str], typer.Option("--providers", help="onnxruntime's.", metavar="PROVIDER")] = field(
        default_factory=list
    )

    def given(self) -> RunningArguments:
        """As keyword arguments."""
        return {
            "preprocess": self.images.parsed(),
            "limit": self.limit,
            "batch": self.batch,
            "threads": self.threads,
            "providers": self.providers,
        }


@dataclass(frozen=True)
class CountingOptions:
    """Where statistics are counted, or where they are known from."""

    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Count in N processes.", metavar="N", rich_help_panel=CALIBRATION),
    ] = None
    dask: Annotated[
        str | None,
        typer.Option("--dask", help="Count on a Dask cluster.", metavar="ADDRESS", rich_help_panel=CALIBRATION),
    ] = None
    stats: Annotated[
        Path | None,
        typer.Option("--stats", help="Use these statistics instead of counting.", rich_help_panel=CALIBRATION),
    ] = None

    def executor(self) -> AbstractContextManager[Any]:
        """The workers that were asked for, while the block lasts; None for the threads of this process."""
        from detent.observe.executors import open_executor

        return open_executor(self.workers, self.dask)
