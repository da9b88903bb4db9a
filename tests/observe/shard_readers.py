"""Shard readers for tests. Worker processes import this module, so it imports next to nothing."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SAMPLES = 200


def sample(index):
    return np.random.default_rng(index).standard_normal((1, 3, 8, 8)).astype(np.float32) * np.float32(1 + index % 7)


@dataclass(frozen=True)
class Numbers:
    """Every sample follows from its number."""

    samples: int = SAMPLES

    def shard(self, index: int, count: int):
        for number in range(index, self.samples, count):
            yield {"x": sample(number)}


@dataclass(frozen=True)
class Deadly(Numbers):
    """Kills the process that reads shard 3, as often as `times` says."""

    folder: Path = Path()
    times: int = 1

    def shard(self, index: int, count: int):
        if index == 3 and len(list(self.folder.iterdir())) < self.times:
            (self.folder / f"death of {os.getpid()} at {time.monotonic_ns()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().shard(index, count)


@dataclass(frozen=True)
class Faulty(Numbers):
    """Has one NaN, in shard 5."""

    def shard(self, index: int, count: int):
        for item in super().shard(index, count):
            if index == 5:
                item["x"][0, 0, 0, 0] = np.nan
            yield item


@dataclass(frozen=True)
class Slow(Numbers):
    """Takes its time, and leaves a note of who reads what."""

    folder: Path = Path()

    def shard(self, index: int, count: int):
        (self.folder / f"{os.getpid()} {index}").touch()
        time.sleep(0.2)
        yield from super().shard(index, count)
