"""Samples of calibration or evaluation data, and the checks that each passes before a model sees it.

A `Source` hands out `PendingSample`s, which are cheap; `load()` decodes and checks, in any thread and outside any lock.
Every complaint is a `DataError` that names the sample, the input, what was expected and what was found.

Also decide which samples are used, which are held out, and how they are grouped into batches: pure arithmetic on
positions. Held-out samples measure the result and never take part in calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol

import numpy as np

from detent.errors import DataError, UsageError, nearest
from detent.observe.preprocess import InputSpec, Preprocess

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sample:
    """One feed of the model: an array for each input, checked, contiguous and in the input's own type.

    `index` counts from 0 over all samples of a pass, `held_out` marks those kept back to measure the result with.
    """

    index: int
    origin: str
    feeds: Mapping[str, Array]
    held_out: bool = False


@dataclass(frozen=True)
class PendingSample:
    """A sample that is not decoded yet. `read` returns checked feeds; call `load()`, in any thread.

    `size` is how many samples it stands for: more than one where it is a batch. A sample that is held out, so that
    nothing learns from it, may be `counted` all the same: ranges are those of all samples then.
    """

    index: int
    origin: str
    held_out: bool
    read: Callable[[], Mapping[str, Array]]
    size: int = 1
    counted: bool = False

    def is_taken(self, *, counted: bool) -> bool:
        """Return whether it is not held out; with `counted`, whether it calibrates."""
        return not self.held_out or (counted and self.counted)

    def load(self) -> Sample:
        """Decode and check. Raise `DataError` if the data cannot be read or does not fit the model."""
        return Sample(self.index, self.origin, self.read(), self.held_out)


class Source(Protocol):
    """A stream of samples. Each iteration is a fresh pass, unless `repeatable` is False: then only one is possible.

    An iterator may be shared by threads under a lock; `PendingSample.load` needs none. `random` numbers stand in for
    data where none was given. `preprocess` is how images are read, and `note` what of that was guessed, to show.
    """

    random: bool = False
    repeatable: bool = True
    preprocess: Preprocess | None = None
    note: str = ""

    @property
    def length(self) -> int | None:
        """Number of samples in a pass, those held out included; None if that is unknown before the end."""
        return None

    @property
    def describe(self) -> str:
        """One line for the terminal: "128 images from calib/"."""

    @property
    def fingerprint(self) -> str | None:
        """Differs when the samples, their order or what is held out differ; None if that is unknown before reading.

        Reads all that it covers: files up to 64 MB whole, of larger ones a page in sixteen.
        """
        return None

    def __iter__(self) -> Iterator[PendingSample]: ...

    def peek(self, count: int, *, counted: bool = False) -> list[PendingSample]:
        """Return the first `count` samples that are not held out. The next pass gives them again.

        With `counted` these are all that calibrate, some of which may be held out.
        """
        return list(islice((pending for pending in self if pending.is_taken(counted=counted)), count))


def check_names(found: Iterable[str], inputs: Sequence[InputSpec], origin: str) -> list[str]:
    """Return the names that the model does not take. Raise `DataError` unless all its inputs are among `found`.

    Tokenizers and data loaders give more than one model takes: token types, labels, texts.
    """
    known, names = [spec.name for spec in inputs], list(found)
    others = [name for name in names if name not in known]
    missing = next((name for name in known if name not in names), None)
    listed = ", ".join(f"'{name}'" for name in known)
    if missing is None:
        return others
    if others:
        guess = nearest(str(others[0]), known)
        raise DataError(f"{origin}: the model has no input '{others[0]}'.{guess} Its inputs are {listed}.")
    found_text = ", ".join(f"'{name}'" for name in names) or "none"
    state = f" If it is a state that an output hands on: --feedback {missing}=OUTPUT." if len(known) > 1 else ""
    raise DataError(f"{origin}: there is no data for input '{missing}'. Expected {listed}, found {found_text}.{state}")


def without_text(ignored: Iterable[object]) -> str:
    """Return the end of a description of data: what of it is not read, such as labels, or states that are fed back."""
    named = ", ".join(f"'{name}'" for name in dict.fromkeys(ignored))
    return f" (without {named}: not needed)" if named else ""


def check_feeds(arrays: Mapping[str, Array], inputs: Sequence[InputSpec], origin: str) -> dict[str, Array]:
    """Return the arrays as the model takes them, in its order: a missing batch axis added, float16 widened."""
    check_names(arrays, inputs, origin)
    return {spec.name: check_array(arrays[spec.name], spec, origin) for spec in inputs}


def check_array(array: Array, spec: InputSpec, origin: str) -> Array:
    """Check one array against its input and return it: type, rank, dimensions and, for floats, no NaN or infinity."""
    where = f"{origin}: input '{spec.name}'"
    check_dtype(array.dtype, spec, where)
    if array.ndim == len(spec.shape) - 1:
        array = array[np.newaxis]
    _check_shape(array.shape, spec, where)
    # ascontiguousarray() makes a scalar one-dimensional, so the shape is put back.
    array = np.ascontiguousarray(array, dtype=spec.dtype).reshape(array.shape)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        # -inf is what masks attention. If the input is to be quantized, the sweep refuses it.
        bad = int(array.size - (array < np.inf).sum())
        if bad:
            raise DataError(f"{where} expects finite numbers, found {bad} NaN or infinite of {array.size}.")
    return array


def check_dtype(found: np.dtype[Any], spec: InputSpec, where: str) -> None:
    """Raise `DataError` unless data of type `found` can be fed: the input's own type, or other floats for float32."""
    if found.kind == "O":
        raise DataError(
            f"{where} expects {spec.type_text}, found Python objects, such as rows of different lengths. "
            f"Give a plain array of {'str' if spec.dtype.kind == 'U' else 'numbers'}."
        )
    same = found.newbyteorder("=") == spec.dtype or found.kind == spec.dtype.kind == "U"  # text of any length
    if same or (found in (np.float16, np.float64) and spec.dtype == np.float32):
        return
    # Versions of NumPy below 2 have no np.bool.
    kind = {"b": "bool", "U": "str"}.get(spec.dtype.kind) or f"np.{spec.dtype.name}"
    advice = f"Convert it with .astype({kind})"
    if found.kind in "iub" and spec.dtype.kind == "f":
        advice += ", after the scaling that the model was trained with"
    raise DataError(f"{where} expects {spec.type_text}, found {found.name}. {advice}.")


def _check_shape(shape: tuple[int, ...], spec: InputSpec, where: str) -> None:
    expected = f"{where} expects shape {spec.shape_text}, found {list(shape)}"
    if len(shape) != len(spec.shape):
        raise DataError(f"{expected}: {len(shape)} axes instead of {len(spec.shape)}.")
    if any(have == 0 != want for want, have in zip(spec.shape, shape, strict=True)):
        what = "an empty batch" if shape[0] == 0 else "an empty array"
        raise DataError(f"{expected}: {what}.")
    for axis, (want, have) in enumerate(zip(spec.shape, shape, strict=True)):
        if want is not None and want != have:
            raise DataError(f"{expected}: axis {axis} must be {want}, not {have}.{_transposition(shape, spec)}")


def _transposition(shape: tuple[int, ...], spec: InputSpec) -> str:
    """Return advice if the axes of an image are all there, but in the other layout."""
    if len(shape) != 4:
        return ""
    for axes in ((3, 1, 2), (2, 3, 1)):
        moved = (shape[0], *(shape[axis] for axis in axes))
        if all(want in (None, have) for want, have in zip(spec.shape, moved, strict=True)):
            return f" The axes look transposed: try .transpose(0, {axes[0]}, {axes[1]}, {axes[2]})."
    return ""


def is_array_like(value: object) -> bool:
    """Return whether `as_array` takes it without guessing: a numpy array, a tensor with .numpy(), or the like."""
    return hasattr(value, "__array__") or callable(getattr(value, "numpy", None))


def as_array(value: Any, where: str) -> Array:
    """Return a numpy array from an array, a tensor of any framework or nested lists, shared if possible."""
    if isinstance(value, np.ndarray):
        return value
    if callable(getattr(value, "numpy", None)):
        # A torch tensor gives its numbers only off the device and off the gradient tape.
        if callable(getattr(value, "detach", None)):
            value = value.detach().cpu()
        return np.asarray(value.numpy())
    try:
        return np.asarray(value)
    except ValueError as error:
        raise DataError(f"{where}: expected an array, found ragged data ({error}).") from error


def shares_batch(inputs: Sequence[InputSpec]) -> bool:
    """Return whether the first axis of all inputs is one batch axis: one static size, or all dynamic."""
    return all(spec.shape for spec in inputs) and len({spec.shape[0] for spec in inputs}) == 1


def without_batch(inputs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
    """Return the inputs with a free first axis, to check single samples that are stacked afterwards."""
    return tuple(InputSpec(spec.name, spec.dtype, (None, *spec.shape[1:])) for spec in inputs)


HOLD_OUT_EVERY = 8  # one in so many of the samples that are read is held out, if the user does not say how many

MOST_HELD_OUT = 64  # both models run on every one of them
LEAST_BEYOND = 16

# How many of the samples that are read are held out; None: an eighth of them. "beyond": all of them calibrate, and held
# out are some of those that the limit leaves; if it leaves none, an eighth is judged by, not learned from, but counted.
HoldOut = int | Literal["beyond"] | None


@dataclass(frozen=True)
class RowSelection:
    """The rows to use, in order. `held_out` are positions in `rows`.

    `used` rows take part in calibration, with those held out if these are `counted`; `dropped` more were asked for but
    do not fill a whole batch.
    """

    rows: Sequence[int]
    held_out: frozenset[int]
    used: int
    dropped: int
    counted: bool = False


def held_out_of(read: int, hold_out: HoldOut) -> int:
    """Return how many of `read` samples are held out. Raise UsageError if that leaves none to calibrate with."""
    if hold_out is None or hold_out == "beyond":
        return min(MOST_HELD_OUT, read // HOLD_OUT_EVERY)
    if hold_out >= read > 0 and hold_out > 0:
        raise UsageError(f"--hold-out {hold_out} of {read} samples leaves none to calibrate with: give a smaller one.")
    return hold_out


def held_out_beyond(limit: int) -> int:
    """Return how many samples are held out at most of those that the limit leaves."""
    return min(MOST_HELD_OUT, max(LEAST_BEYOND, limit // 5))


def select(total: int, *, limit: int | None, hold_out: HoldOut, seed: int | None, whole: int = 1) -> RowSelection:
    """Choose at most `limit` of `total` rows, and which of them are held out.

    If the limit leaves some, those taken are spread evenly over all (or chosen at random, if there is a seed), and so
    are those that are held out. The numbers of both are multiples of `whole`, the batch size that the model insists on;
    rows beyond are counted as dropped.
    """
    read = total if limit is None else min(limit, total)
    if hold_out == "beyond" and limit is not None and limit <= total:
        held = min(held_out_beyond(limit), total - limit) // whole * whole
        taken = limit
    else:
        held = held_out_of(read, hold_out) // whole * whole
        taken = read - held
    counted = hold_out == "beyond" and read == total and taken < read
    used = taken // whole * whole
    count = used + held
    if read == total:
        # Up to 512 samples, every eighth is evenly spread too, and each stays where it is if samples are added.
        every = hold_out == "beyond" or (hold_out is None and held < MOST_HELD_OUT)
        eighths = frozenset(range(HOLD_OUT_EVERY - 1, held * HOLD_OUT_EVERY, HOLD_OUT_EVERY))
        held_out = eighths if every else spread(held, total)
        return RowSelection(range(total), held_out, used + held * counted, taken - used, counted)
    if seed is None:
        rows = [position * total // count for position in range(count)]
    else:
        rows = sorted(np.random.default_rng(seed).choice(total, count, replace=False).tolist())
    return RowSelection(rows, spread(held, count), used, taken - used)


def spread(held: int, count: int) -> frozenset[int]:
    """Return `held` of `count` positions, evenly spaced, the last one at the end."""
    return frozenset(at for at in range(count) if (at + 1) * held // count > at * held // count)


def batches(selection: RowSelection, size: int, *, whole: bool) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Yield groups of `size` rows and whether they are held out, in the order in which the groups fill up.

    Calibration and held-out rows are never in one group. What is left at the end is given as smaller groups, or
    dropped if only `whole` ones will do.
    """
    filling: dict[bool, list[int]] = {False: [], True: []}
    for position, row in enumerate(selection.rows):
        held_out = position in selection.held_out
        group = filling[held_out]
        group.append(row)
        if len(group) == size:
            yield tuple(group), held_out
            group.clear()
    if not whole:
        yield from ((tuple(group), held_out) for held_out, group in filling.items() if group)


def batch_count(selection: RowSelection, size: int, *, whole: bool) -> int:
    """Return how many groups `batches` gives."""
    held = len(selection.held_out)
    used = len(selection.rows) - held
    return used // size + held // size if whole else -(-used // size) - (-held // size)


@dataclass(frozen=True)
class StreamSelection:
    """Which items of a stream are used and held out, decided as they come: nobody knows how many there will be.

    At most `limit` samples are read, and `reserve` of them held out; with `beyond`, `reserve` more. An item may be a
    batch: with a limit it is held out when the share that is due by then has room for it. Without, every eighth is,
    until there are enough; it may be `counted` all the same.
    """

    limit: int | None
    reserve: int
    beyond: bool = False
    counted: bool = False

    @classmethod
    def of(cls, limit: int | None, hold_out: HoldOut) -> StreamSelection:
        """Return the selection that a user asks for."""
        if limit is None:
            return cls(None, hold_out if isinstance(hold_out, int) else MOST_HELD_OUT, counted=hold_out == "beyond")
        beyond = hold_out == "beyond"
        return cls(limit, held_out_beyond(limit) if beyond else held_out_of(limit, hold_out), beyond)

    @property
    def most(self) -> int | None:
        """The most samples that are read."""
        return None if self.limit is None else self.limit + (self.reserve if self.beyond else 0)

    def ends_after(self, taken: int, held: int) -> bool:
        """Tell whether nothing more is read after so many samples taken and held out."""
        if self.limit is None:
            return False
        return taken >= self.limit and held >= self.reserve if self.beyond else taken + held >= self.limit

    def holds_out(self, index: int, size: int, taken: int, held: int) -> bool:
        """Tell whether item `index`, of `size` samples, is held out."""
        if self.limit is None:
            return index % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1 and held < self.reserve
        if self.beyond:
            return taken >= self.limit
        return held + size <= min(self.reserve, (taken + held + size) * self.reserve // self.limit)

    def room(self, taken: int, held: int) -> int | None:
        """Return how many more samples may be taken; None if any number may."""
        return None if self.limit is None else self.limit - taken - (0 if self.beyond else held)
