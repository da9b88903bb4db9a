"""Data that comes one item after the other: iterables, data loaders, calibration data readers.

A pass holds one item at a time and never asks for more than it needs. Items are used as they come; one with a batch
counts as that many samples, and the last is cut if it would exceed the limit. Each is copied when it is taken: a reader
may reuse its buffer for the next one while the last is still being read.

A shard reader is the user's own object that reads a share of the data at a time, on whichever worker asks:

    class Reader:
        def shard(self, index: int, count: int) -> Iterable[{input: array}]: ...

The shards 0 to count - 1 together give every sample once, whatever `count` is: `files[index::count]` is the usual way.
Some may be empty. The object itself is sent to the workers, so it holds paths or addresses and no arrays. The number of
shards is fixed, and the limit and the held-out samples are divided over them: so the samples that count are the same on
one machine as on many.

A model with state is fed in one step what it handed on in the step before:

    detent quantize vad.onnx vad_int8.onnx --calib chunks/ --feedback state=stateN

A decoder has a state for each layer: `--feedback 'past.*=present.*'` names all of them, the same in place of each *.
Samples are then the steps of one sequence, in order, without the states. The first step starts from zeros, or from
nothing where the state grows with the sequence, as keys and values of a decoder do. The float model computes the
states, so what is quantized sees those that it has in use.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from detent.errors import DataError, DetentError, UsageError, nearest
from detent.observe.preprocess import InputSpec
from detent.observe.samples import (
    Array,
    PendingSample,
    Source,
    StreamSelection,
    as_array,
    check_feeds,
    check_names,
    is_array_like,
    shares_batch,
    without_text,
)

if TYPE_CHECKING:
    import onnx_ir as ir  # reading data does not load onnx

SUSPICIOUS = 10_000  # items of a stream of unknown length after which it may well have no end


@dataclass
class StreamSource(Source):
    """Samples from a stream. What comes is unknown before it is read, so it has no fingerprint.

    `start` begins a pass and is called once for each. `noun` is what messages call the stream: "iterable", "reader".
    `count` says how much it gives, where that is not its length in items.
    """

    start: Callable[[], Iterator[Any]]
    inputs: Sequence[InputSpec]
    _: KW_ONLY
    noun: str
    repeatable: bool
    total: int | None
    selection: StreamSelection
    may_be_empty: bool = False
    count: str = ""

    def __post_init__(self) -> None:
        self._started = False
        self._ignored: dict[str, None] = {}
        self._peeked: Iterator[PendingSample] | None = None
        if self.total == 0:
            raise self._empty()

    @property
    def length(self) -> int | None:
        """The most items that a pass takes, those held out included, if the stream says how long it is."""
        most = self.selection.most
        return self.total if most is None or self.total is None else min(most, self.total)

    @property
    def describe(self) -> str:
        reserve, limit = self.selection.reserve, self.selection.limit
        if limit is not None:
            held = f", {'then up to ' if self.selection.beyond else ''}{reserve} held out" if reserve else ""
            count = f"up to {limit} samples"
        else:
            word = "judged by too," if self.selection.counted else "held out"
            held = f", every 8th {word} up to {reserve}" if reserve else ""
            count = self.count or ("all items" if self.total is None else f"{self.total} items")
        return f"{count} from the {self.noun}{held}{without_text(self._ignored)}"

    def __iter__(self) -> Iterator[PendingSample]:
        if self._peeked is not None:
            samples, self._peeked = self._peeked, None
            return samples
        if self._started and not self.repeatable:
            raise DataError(
                f"The {self.noun} can be read only once, and it has been. Give a list, or an object that can be "
                "iterated again, or a reader with rewind()."
            )
        self._started = True
        return self._pass()

    def peek(self, count: int, *, counted: bool = False) -> list[PendingSample]:
        """Return the first samples. What can be read only once is kept, for the one pass."""
        if self.repeatable:
            return super().peek(count, counted=counted)
        samples = iter(self)
        chosen: list[PendingSample] = []
        read: list[PendingSample] = []
        while len(chosen) < count and (pending := next(samples, None)) is not None:
            read.append(pending)
            if pending.is_taken(counted=counted):
                chosen.append(pending)
        self._peeked = chain(read, samples)
        return chosen

    def _pass(self) -> Iterator[PendingSample]:
        index = taken = held = 0
        selection, items = self.selection, self._items()
        # Asked for only if more is needed: a generator may be slow, or must not be read beyond its end.
        while not selection.ends_after(taken, held) and (item := next(items, None)) is not None:
            origin, arrays = item
            size = _rows(arrays, self.inputs)
            if index == SUSPICIOUS and selection.limit is None and self.total is None:
                warnings.warn(
                    f"The {self.noun} has given {SUSPICIOUS:,} items so far. If it repeats for ever, so does "
                    "calibration: interrupt it and give a limit.",
                    stacklevel=2,
                )
            held_out = selection.holds_out(index, size, taken, held)
            if held_out:
                held += size
            else:
                room = selection.room(taken, held)
                if room is not None and size > room and self.inputs[0].shape[0] is None:
                    size = room
                    arrays = {name: array[:size] for name, array in arrays.items()}
                taken += size
            read = partial(check_feeds, arrays, self.inputs, origin)
            yield PendingSample(index, origin, held_out, read, size, held_out and selection.counted)
            index += 1
        if index == 0 and not self.may_be_empty:
            raise self._empty()

    def _items(self) -> Iterator[tuple[str, dict[str, Array]]]:
        """Yield what the stream gives, and where it is from. A batch is divided if the model's own is smaller."""
        items: Iterator[Any] | None = None
        index = 0
        while True:
            origin = f"item {index} of the {self.noun}"
            try:
                if items is None:
                    items = self.start()
                arrays = arrays_of(next(items), self.inputs, origin, self._ignored)
            except StopIteration:
                return
            except DetentError:
                raise
            except Exception as error:  # the user's own code runs here and may raise anything
                raise DataError(f"{origin}: reading it failed with {type(error).__name__}: {error}") from error
            batch, rows = self.inputs[0].shape[0] if self.inputs[0].shape else None, _rows(arrays, self.inputs)
            if batch and rows > batch and rows % batch == 0 and all(len(array) == rows for array in arrays.values()):
                for start in range(0, rows, batch):
                    part = {name: array[start : start + batch] for name, array in arrays.items()}
                    yield f"{origin}, row {start}", part
            else:
                yield origin, arrays
            index += 1

    def _empty(self) -> DataError:
        return DataError(f"The {self.noun} has no items: there is nothing to calibrate with.")


def arrays_of(item: Any, inputs: Sequence[InputSpec], origin: str, ignored: dict[str, None]) -> dict[str, Array]:
    """Return the arrays of one item by input name, copied. `ignored` takes what else the item holds."""
    if isinstance(item, Mapping):
        ignored |= dict.fromkeys(check_names(item, inputs, origin))
        return {spec.name: _copy(item[spec.name], f"{origin}: input '{spec.name}'") for spec in inputs}
    if isinstance(item, (list, tuple)) and item and len(inputs) == 1:
        # What data loaders give: the tensor first, then labels and the like.
        item = item[0]
    if len(inputs) > 1 or not is_array_like(item):
        wanted = "an array, or a dict {input name: array}" if len(inputs) == 1 else "a dict {input name: array}"
        raise DataError(f"{origin}: expected {wanted}, found {type(item).__name__}.")
    return {inputs[0].name: _copy(item, origin)}


def _rows(arrays: Mapping[str, Array], inputs: Sequence[InputSpec]) -> int:
    """Return how many samples an item stacks along the batch axis that all inputs share; 1 if they share none."""
    first = arrays[inputs[0].name]
    stacked = shares_batch(inputs) and all(arrays[spec.name].ndim == len(spec.shape) for spec in inputs)
    return first.shape[0] if stacked else 1


def _copy(value: Any, where: str) -> Array:
    array = as_array(value, where)
    return array if array.dtype.hasobject else np.array(array)


def reader_passes(reader: Any) -> Callable[[], Iterator[Any]]:
    """Return what begins a pass over a calibration data reader; from the second on, it rewinds first."""
    first = True

    def start() -> Iterator[Any]:
        nonlocal first
        if not first:
            reader.rewind()
        first = False
        return _read_all(reader)

    return start


def _read_all(reader: Any) -> Iterator[Any]:
    # Not iter(get_next, None): that compares with ==, which an array answers with an array.
    while (item := reader.get_next()) is not None:
        yield item


SHARDS = 16  # how many shares a shard reader is asked for


class ShardReader(Protocol):
    """What a user writes to calibrate with data that only the workers can read."""

    def shard(self, index: int, count: int) -> Iterable[Mapping[str, Array]]:
        """Return the samples of share `index` out of `count`."""


def is_shard_reader(data: object) -> bool:
    """Return whether `data` has shard(index, count), not another library's shard() with other parameters."""
    shard = getattr(data, "shard", None)
    return callable(shard) and list(inspect.signature(shard).parameters) == ["index", "count"]


@dataclass(frozen=True)
class ShardedSource(Source):
    """The samples of a shard reader. What it reads is unknown here, so it has neither length nor fingerprint."""

    reader: ShardReader
    inputs: Sequence[InputSpec]
    selection: StreamSelection

    @property
    def describe(self) -> str:
        limit = self.selection.limit
        count = "all samples" if limit is None else f"up to {limit} samples"
        return f"{count} from the shards of a {type(self.reader).__name__}"

    def __iter__(self) -> Iterator[PendingSample]:
        empty = True
        for index in range(SHARDS):
            for pending in self.shard(index):
                empty = False
                yield pending
        if empty:
            raise DataError(f"None of the {SHARDS} shards of the {type(self.reader).__name__} has a sample.")

    def shard(self, index: int) -> Iterator[PendingSample]:
        """Return the samples of one shard, numbered so that no two shards share a number."""
        stream = StreamSource(
            lambda: iter(self.reader.shard(index=index, count=SHARDS)),
            self.inputs,
            noun=f"reader's shard {index}",
            repeatable=False,
            total=None,
            selection=replace(
                self.selection,
                limit=None if self.selection.limit is None else share(self.selection.limit, index),
                reserve=share(self.selection.reserve, index),
            ),
            may_be_empty=True,
        )
        return (replace(pending, index=pending.index * SHARDS + index) for pending in stream)

    def chosen(self, numbers: Sequence[int]) -> Iterator[PendingSample]:
        """Return the samples of these numbers, in that order. Their shards are read as far as the last of them."""
        last: dict[int, int] = {}
        for number in numbers:
            last[number % SHARDS] = max(number // SHARDS, last.get(number % SHARDS, 0))
        read = (pending for index, item in last.items() for pending in islice(self.shard(index), item + 1))
        found = {pending.index: pending for pending in read if pending.index in numbers}
        for number in numbers:
            if number not in found:
                raise DataError(
                    f"Item {number // SHARDS} of the reader's shard {number % SHARDS} is gone: the "
                    f"{type(self.reader).__name__} must give the same samples each time."
                )
            yield found[number]


def share(total: int, index: int) -> int:
    """Return the part of `total` that falls to shard `index`: all parts differ by at most one and add up to it."""
    return total * (index + 1) // SHARDS - total * index // SHARDS


# Parts of the names of dimensions that are empty before the first step.
_GROWING = ("past", "seq", "len", "cache", "token")

# Runs the float model on the inputs of one step, which has a name, and returns its outputs.
Step = Callable[[Mapping[str, Array], str], Mapping[str, Array]]


def states_of(given: Sequence[str], model: ir.Model) -> dict[str, str]:
    """Return the output that each state comes from, from texts such as `past=present`."""
    inputs, outputs = ([str(value.name) for value in values] for values in (model.graph.inputs, model.graph.outputs))
    found: dict[str, str] = {}
    for text in chain.from_iterable(_each_state(text, inputs) for text in given):
        state, _, result = text.partition("=")
        for name, known, kind in ((state, inputs, "input"), (result, outputs, "output")):
            if name not in known:
                raise UsageError(
                    f"--feedback '{text}': the model has no {kind} '{name}'.{nearest(name, known)} It has "
                    f"{', '.join(known)}."
                )
        before, handed_on = (
            next(value.shape for value in values if value.name == name)
            for name, values in ((state, model.graph.inputs), (result, model.graph.outputs))
        )
        if before is not None and handed_on is not None and not _may_be_equal(before, handed_on):
            raise UsageError(
                f"--feedback '{text}': '{state}' has the shape {before} and '{result}' {handed_on}, so one is not the "
                "other a step later."
            )
        if found.setdefault(state, result) != result:
            raise UsageError(f"--feedback '{text}': '{state}' comes from '{found[state]}' already. Give one output.")
    if found and len(found) == len(inputs):
        raise UsageError("--feedback names every input of the model: there must be one that samples are fed to.")
    return found


def _each_state(text: str, inputs: Sequence[str]) -> list[str]:
    """Return INPUT=OUTPUT for every input that a pattern names; any other text as it is."""
    state, separator, result = text.partition("=")
    if not separator or state.count("*") != result.count("*") or state.count("*") > 1:
        raise UsageError(f"--feedback '{text}': expected INPUT=OUTPUT, such as past=present, or past.*=present.*.")
    if "*" not in state or state in inputs:
        return [text]
    head, _, tail = state.partition("*")
    named = [name for name in inputs if name.startswith(head) and name[len(head) :].endswith(tail)]
    if not named:
        raise UsageError(f"--feedback '{text}': no input has such a name. The model has {', '.join(inputs)}.")
    return [f"{name}={result.replace('*', name[len(head) : len(name) - len(tail)])}" for name in named]


def _may_be_equal(one: ir.Shape, other: ir.Shape) -> bool:
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and not any(
        isinstance(size, int) and isinstance(another, int) and size != another for size, another in pairs
    )


def initial_states(model: ir.Model, specs: Sequence[InputSpec], states: Mapping[str, str]) -> dict[str, Array]:
    """Return zeros for each state, of size 1 where a batch is open, and none where it grows."""
    types = {spec.name: spec.dtype for spec in specs}
    found = {}
    for value in model.graph.inputs:
        name = str(value.name)
        if name in states and value.shape is not None:
            sizes = [dim if isinstance(dim, int) else _start(dim.value or "") for dim in value.shape]
            found[name] = np.zeros(sizes, types[name])
    return found


def _start(name: str) -> int:
    return 0 if any(part in name.lower() for part in _GROWING) else 1


@dataclass(frozen=True)
class FeedbackSource(Source):
    """The samples of `steps`, with the states added that the model hands on from one to the next."""

    steps: Source
    states: Mapping[str, str]
    initial: Mapping[str, Array]
    step: Step

    def __post_init__(self) -> None:
        for name in ("random", "repeatable", "preprocess", "note"):
            object.__setattr__(self, name, getattr(self.steps, name))

    @property
    def length(self) -> int | None:
        return self.steps.length

    @property
    def describe(self) -> str:
        return f"{self.steps.describe}, steps of one sequence with {', '.join(self.states)} fed back"

    @property
    def fingerprint(self) -> str | None:
        """That of the samples: states follow from them and from the model."""
        return self.steps.fingerprint

    def __iter__(self) -> Iterator[PendingSample]:
        """Run step after step, in whichever thread asks for the next."""
        state = dict(self.initial)
        for pending in self.steps:
            feeds = {**pending.load().feeds, **state}
            outputs = self.step(feeds, pending.origin)
            state = {name: outputs[result] for name, result in self.states.items()}
            yield replace(pending, read=partial(dict, feeds))
