"""Calibration as work for shards: the sites of the model are counted, and the statistics sent back."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from detent.graph.session import Runner
from detent.methods.method import Vote
from detent.observe.counter import SiteCounter, taps_of
from detent.observe.samples import PendingSample
from detent.observe.shards import Divisible, Shard, samples_of
from detent.observe.statistics import Statistics
from detent.observe.statistics_bytes import pack, unpack

_QUICK = 1  # a higher level of compression saves a few percent and takes several times as long


@dataclass(frozen=True)
class ShardCounts:
    """What came of a shard: compressed statistics, over how many samples, of how many feeds; and what it held out."""

    number: int
    compressed: bytes
    samples: int
    feeds: int
    held_out: tuple[PendingSample, ...] = ()

    @property
    def statistics(self) -> Statistics:
        """The statistics, restored and checked."""
        return unpack(zlib.decompress(self.compressed), f"What a worker sent for shard {self.number}")[1]


@dataclass(frozen=True)
class Counting:
    """What all tasks of a sweep share."""

    sites: tuple[str, ...]
    source: Divisible
    vote: Vote | None

    def begin(self, model: ir.Model) -> Callable[[Shard], ShardCounts]:
        """What counts a shard."""
        return partial(self._count, taps_of(model, self.sites).unordered)

    def _count(self, runner: Runner, shard: Shard) -> ShardCounts:
        """Run all samples of a shard."""
        counter = SiteCounter(runner, self.sites, self.vote)
        samples = feeds = 0
        held_out = []
        for pending in samples_of(self.source, shard):
            feeds += 1
            if pending.held_out:
                held_out.append(pending)
                continue
            counter.count(pending.load())
            samples += pending.size
        return ShardCounts(shard.number, compress(counter.statistics), samples, feeds, tuple(held_out))


def compress(statistics: Statistics) -> bytes:
    """Statistics as few bytes, to travel: a site is a few kilobytes instead of a hundred and more."""
    return zlib.compress(pack({}, statistics), _QUICK)
