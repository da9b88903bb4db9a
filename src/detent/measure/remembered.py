"""The outputs of a model on samples that it has seen, as far as a small amount of memory goes."""

from __future__ import annotations

import threading

from detent.measure.candidate import Candidate
from detent.observe.samples import Array, Sample

MOST_BYTES = 32 * 2**20
"""Class scores of 8,000 samples of 1,000 classes; of larger outputs the first few."""


class Remembered:
    """Runs a model, and again only on samples whose outputs there was no room for. Any number of threads may call it.

    Samples are told apart by their index: they must come from one source.
    """

    def __init__(self, candidate: Candidate, most_bytes: int = MOST_BYTES) -> None:
        self.name = candidate.name
        self._candidate = candidate
        self._room = most_bytes
        self._outputs: dict[int, dict[str, Array]] = {}
        self._lock = threading.Lock()

    def __call__(self, sample: Sample) -> dict[str, Array]:
        """All outputs by name."""
        known = self._outputs.get(sample.index)
        if known is not None:
            return known
        outputs = self._candidate(sample)
        size = sum(array.nbytes for array in outputs.values())
        with self._lock:
            if size <= self._room and sample.index not in self._outputs:
                self._outputs[sample.index] = outputs
                self._room -= size
        return outputs
