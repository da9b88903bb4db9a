"""Labelled samples from a DataLoader of PyTorch, or from what is built like one.

A loader shuffles, drops what does not fill a batch and stacks the rest, so no two passes are the same. Models are
compared sample by sample, so here the loader is not iterated: the items of its dataset are read one by one, in the
order of their numbers, and each goes through the loader's own `collate_fn` as a batch of one:

    loader.collate_fn([loader.dataset[7]])  ->  (input, label) or {input name: ..., "labels": ...}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from threading import Lock
from typing import Any

from detent.errors import DataError, DetentError
from detent.observe.preprocess import InputSpec
from detent.observe.samples import Array, as_array
from detent.observe.store import Digest
from detent.observe.streams import arrays_of

LABELS = ("labels", "label", "label_ids")  # what datasets call the answers


def is_loader(data: object) -> bool:
    """Tell whether this is a loader with a dataset whose items have numbers; one of a mere stream is not."""
    dataset = getattr(data, "dataset", None)
    numbered = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return numbered and callable(getattr(data, "collate_fn", None)) and hasattr(data, "sampler")


def first_sample(data: Any) -> Any:
    """Return the first sample of arrays or a DataLoader, which says what a PyTorch module is called with; or None."""
    if hasattr(data, "shape"):
        return data[:1]
    if isinstance(data, Mapping):
        return {name: value[:1] for name, value in data.items()}
    if isinstance(data, list | tuple) and data:
        first = data[0]
        return first if isinstance(first, Mapping) or hasattr(first, "shape") else None
    if hasattr(data, "dataset") and hasattr(data, "batch_size"):
        batch = next(iter(data))
        if isinstance(batch, Mapping):
            return {name: value[:1] for name, value in batch.items() if name not in LABELS}
        return (batch[0] if isinstance(batch, list | tuple) else batch)[:1]
    return None


@dataclass(frozen=True)
class LoaderRows:
    """The items that a loader's sampler chooses from its dataset, in the order of their numbers."""

    loader: Any
    inputs: Sequence[InputSpec]
    noun: str = "samples"
    in_memory: bool = True
    numbers: list[int] = field(init=False)
    lock: Any = field(default_factory=Lock, repr=False, compare=False)  # datasets are read by one thread at a time

    def __post_init__(self) -> None:
        # A loader of given batches has a sampler as well, which it does not use.
        given = self.loader.batch_size is None and self.loader.batch_sampler is not None
        chosen = chain.from_iterable(self.loader.batch_sampler) if given else self.loader.sampler
        object.__setattr__(self, "numbers", sorted({int(each) for each in chosen}))
        if not self.numbers:
            raise DataError(f"The {self._name} has no samples.")
        first, again = (self.read(0) for _ in range(2))
        if any(first[name].tobytes() != again[name].tobytes() for name in first if not first[name].dtype.hasobject):
            raise DataError(
                f"The dataset of the {self._name} gives other values each time that {self.origin(0)} is read, so "
                "models cannot be compared on it. Give the loader of validation, without random augmentation."
            )

    @property
    def _name(self) -> str:
        return type(self.loader).__name__

    @property
    def place(self) -> str:
        return f"from a {self._name}"

    def __len__(self) -> int:
        return len(self.numbers)

    def origin(self, row: int) -> str:
        return f"item {self.numbers[row]}"

    def read(self, row: int) -> Mapping[str, Array]:
        return arrays_of(self._item(row), self.inputs, self.origin(row), {})

    def identify(self, rows: Sequence[int], digest: Digest) -> None:
        for row in rows:
            for name, array in sorted(self.read(row).items()):
                digest.add(name)
                digest.add_array(array)

    def label(self, row: int) -> int | None:
        """Return the class of a sample: what follows the input, or stands under `labels`; None if there is none."""
        item = self._item(row)
        if isinstance(item, Mapping):
            given = next((item[name] for name in LABELS if name in item), None)
        else:
            given = item[1] if isinstance(item, list | tuple) and len(item) == 2 else None
        if given is None:
            return None
        found = as_array(given, f"{self.origin(row)}: label")
        return int(found.item()) if found.size == 1 and found.dtype.kind in "iub" else None

    def _item(self, row: int) -> Any:
        loader = self.loader
        try:
            with self.lock:
                item = loader.dataset[self.numbers[row]]
                return loader.collate_fn(item if loader.batch_sampler is None else [item])
        except DetentError:
            raise
        except Exception as error:  # the user's own code runs here and may raise anything
            raise DataError(
                f"{self.origin(row)} of the {self._name}: reading it failed with {type(error).__name__}: {error}"
            ) from error
