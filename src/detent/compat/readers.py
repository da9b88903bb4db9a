"""Data readers as other tools have them: objects with `get_next() -> {input: array} | None`.

Detent reads any object with that method; these classes are for scripts that derive from one or construct one.

The loggers and the profiler that scripts take from Quark are here too.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.compat.option_rows import note
from detent.errors import UsageError, nearest
from detent.graph.load import ModelLike, load
from detent.graph.session import Feeds
from detent.observe.preprocess import InputSpec
from detent.observe.sources import input_specs, open_source

RANDOM_SAMPLES = 8
RANDOM_SEED = 42  # any number: the same data in every run


class CalibrationDataReader(abc.ABC):
    """One sample per call of `get_next`, then None."""

    @classmethod
    def __subclasshook__(cls, subclass: type) -> bool:
        return True if callable(getattr(subclass, "get_next", None)) else NotImplemented

    @abc.abstractmethod
    def get_next(self) -> Feeds | None:
        """Return the next sample, by input name, or None at the end."""

    def set_range(self, start_index: int, end_index: int) -> None:
        """Read the samples from one index to before another, in a reader that starts from there (onnxruntime's)."""
        self.start_index, self.end_index = start_index, end_index

    def __iter__(self) -> Iterator[Feeds]:
        return self

    def __next__(self) -> Feeds:
        feeds = self.get_next()
        if feeds is None:
            raise StopIteration
        return feeds


class Repeatable(CalibrationDataReader):
    """A reader that can start again."""

    _pending: Iterator[Feeds] | None = None
    _first: int = 0
    _last: int | None = None

    @abc.abstractmethod
    def samples(self) -> Iterator[Feeds]:
        """Yield the samples of one pass over the data."""

    def get_next(self) -> Feeds | None:
        """Return the next sample, or None at the end."""
        if self._pending is None:
            self._pending = islice(self.samples(), self._first, self._last)
        return next(self._pending, None)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Start again, with the samples from one index to before another."""
        self._first, self._last = start_index, end_index
        self.rewind()

    def rewind(self) -> None:
        """Start again."""
        self._pending = None

    def reset_iter(self) -> None:
        """Start again."""
        self.rewind()

    reset = reset_iter


class ReadOnce:
    """A script's reader without its rewind(), which need not work: the other tools keep what they read."""

    def __init__(self, get_next: Callable[[], Feeds | None]) -> None:
        self.get_next = get_next


def channels_first(feeds: Feeds | None, inputs: Sequence[InputSpec]) -> Feeds | None:
    """Return a sample with its channels first where they are last, as a model takes them that is converted to that."""
    if feeds is None:
        return None
    turned = {name: np.moveaxis(array, -1, 1) for name, array in feeds.items() if np.ndim(array) == 4}
    fitting = [spec.name for spec in inputs if spec.name in turned and not _fits(spec, feeds[spec.name].shape)]
    return {**feeds, **{name: turned[name] for name in fitting}}


class CachedDataReader(Repeatable):
    """What another reader gives, kept, so that it can be read again."""

    def __init__(
        self, dr: Any, data_size: int | None = None, convert_nchw_to_nhwc: bool = False, quantize_fp16: bool = False
    ) -> None:
        if convert_nchw_to_nhwc or quantize_fp16:
            note("CachedDataReader: data is kept as the reader gives it.")
        self._kept = list(islice(iter(dr.get_next, None), data_size))

    def samples(self) -> Iterator[Feeds]:
        """Yield the samples that were kept."""
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


class RandomDataReader(Repeatable):
    """Uniform random numbers, for a quick test: the accuracy of what is calibrated with them is not real.

    `input_shape` fills dynamic dimensions: {input: shape}, a list of shapes, or one shape for a model with one input.
    What it does not say is guessed as Quark does: batches of 1, sequences of 16, images of 3 x 32 x 32.
    `input_data_range` is {input: (low, high)} or a list of pairs; 0 to 1 by default.
    """

    def __init__(
        self, model_input: ModelLike, input_shape: Any = None, input_data_range: Any = None, *, seed: int = RANDOM_SEED
    ) -> None:
        self._inputs = input_specs(load(model_input))
        self._shapes = {
            spec.name: _filled(spec, shape) for spec, shape in _by_input(self._inputs, input_shape, "input_shape")
        }
        self._ranges = {spec.name: given for spec, given in _by_input(self._inputs, input_data_range, "data_range")}
        self._seed = seed

    def samples(self) -> Iterator[Feeds]:
        """Yield the same numbers on every pass."""
        generator = np.random.default_rng(self._seed)
        for _ in range(RANDOM_SAMPLES):
            yield {spec.name: self._array(spec, generator) for spec in self._inputs}

    def _array(self, spec: InputSpec, generator: np.random.Generator) -> npt.NDArray[Any]:
        low, high = self._ranges[spec.name] or (0, 1)
        numbers = generator.uniform(low, high, self._shapes[spec.name])
        return (numbers if spec.dtype.kind == "f" else np.rint(numbers)).astype(spec.dtype)


def _by_input(inputs: Sequence[InputSpec], given: Any, what: str) -> list[tuple[InputSpec, Any]]:
    """Return what is given for each input, or None."""
    if isinstance(given, Mapping):
        names = [spec.name for spec in inputs]
        for unknown in (name for name in given if name not in names):
            note(f"{what} names the input '{unknown}', which the model lacks.{nearest(unknown, names)}")
        return [(spec, given.get(spec.name)) for spec in inputs]
    if given is None or len(given) == 0:
        return [(spec, None) for spec in inputs]
    listed = [given] if np.ndim(given[0]) == 0 else list(given)
    if len(listed) != len(inputs):
        raise UsageError(f"{what} is given for {len(listed)} inputs, and the model has {len(inputs)}.")
    return list(zip(inputs, listed, strict=True))


_GUESSED = {2: (1, 16), 4: (1, 3, 32, 32)}  # by the number of dimensions; 1 for any other


def _filled(spec: InputSpec, shape: Any) -> tuple[int, ...]:
    """Return the shape of random data for an input: its own dimensions, else the given ones, else a guess."""
    if shape is not None and not _fits(spec, shape):
        raise UsageError(
            f"input_shape {list(shape)} for '{spec.name}', whose shape is {spec.shape_text}: it fills what is dynamic."
        )
    guessed = _GUESSED.get(len(spec.shape), (1,) * len(spec.shape))
    return tuple(own or int(given) for own, given in zip(spec.shape, shape or guessed, strict=True))


def _fits(spec: InputSpec, shape: Any) -> bool:
    same_rank = len(shape) == len(spec.shape)
    return same_rank and all(own in (None, int(given)) for own, given in zip(spec.shape, shape, strict=True))


class PathDataReader(Repeatable):
    """A folder of .npy or .npz files or images, or one such file."""

    def __init__(self, model_input: ModelLike, data_path: str | Path, input_shape: Sequence[int] = ()) -> None:
        if input_shape:
            raise UsageError("input_shape of PathDataReader: files are read as they are. Save them in that shape.")
        self._source = open_source(Path(data_path), input_specs(load(model_input)))

    def samples(self) -> Iterator[Feeds]:
        """Yield a sample for each file."""
        return (pending.load().feeds for pending in self._source)


class ScreenLogger:
    """A logger that writes to the screen."""

    def __init__(self, name: str = "quark", *_: Any, **__: Any) -> None:
        self._logger = logging.getLogger(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)


logger = ScreenLogger()


class _Steps:
    """Names of the parts of a run that Quark's profiler knows: the words of a name, as in `MODEL_LOADING`."""

    def __getattr__(self, name: str) -> str:
        return name.replace("_", " ").title()


ProfileStep = _Steps()


class GlobalProfiler:
    """Where Quark measures time and memory; Detent's report has the seconds of every stage, and nothing is written."""

    enabled = False

    def __init__(self, output_path: str = "quark_profile.yaml") -> None:
        self.output_path = output_path
        note(f"GlobalProfiler: {output_path} is not written; the report has the seconds of every stage.")

    def scope(self, *_: Any, **__: Any) -> AbstractContextManager[None]:
        """Run a block as it is."""
        return nullcontext()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def profile_scope(*_: Any, **__: Any) -> Callable[[Any], Any]:
    """Return a function as it is."""
    return lambda function: function


def log_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function unchanged: errors are reported once, at the end."""
    return function
