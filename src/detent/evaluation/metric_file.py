"""Measures of the user's own, from a Python file; and perplexity.

    def score(outputs, sample):                  # for each sample
        return float(outputs.argmax() == sample.label)

or, for a figure of all samples together,

    def metric(outputs, labels):                 # once, over all samples
        return np.mean(outputs.argmax(1) == labels)

Scores of samples can be paired, so the difference of two models has an interval; a metric is one number per model.
Higher is better, unless the file says `lower_is_better = True`. `outputs` is what the model returns, with its batch
axis: (1, classes) for a sample, (samples, classes) for all; if a model has several outputs, a dict by their names.
Whatever goes wrong in such a file becomes a UsageError with the file, the line, and what to do.

One measure is built in. Perplexity is how many words a language model hesitates between, on files of token ids:

    exp( - mean over t of  log softmax(scores[t])[token[t + 1]] )

of each sequence; the mean over sequences is reported. The tokens are the model's own input; those that a mask leaves
out are neither read nor asked for.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import numbers
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DataError, ModelError, UsageError
from detent.observe.samples import Array

EXAMPLE = "def score(outputs, sample): return float(outputs.argmax() == sample.label)"

Outputs = Array | Mapping[str, Array]


@dataclass(frozen=True)
class LabelledSample:
    """What `score` gets to know about a sample: its name, its file and label if it has them, and the model's inputs."""

    name: str
    path: Path | None
    label: int | None
    inputs: Mapping[str, Array]


@dataclass(frozen=True)
class Metric:
    """A measure: either `score` for each sample or `whole` for all of them. `origin` names it in messages."""

    name: str
    score: Callable[[Any, Any], Any] | None = None
    whole: Callable[[Any, Any], Any] | None = None
    lower_is_better: bool = False
    origin: str = "the metric"

    def __post_init__(self) -> None:
        if (self.score is None) == (self.whole is None):
            found = "both" if self.score else "neither"
            raise UsageError(
                f"{self.origin}: found {found} of score(outputs, sample) and metric(outputs, labels). Define one of "
                f"them, such as: {EXAMPLE}"
            )
        if not isinstance(self.lower_is_better, bool):
            raise UsageError(f"{self.origin}: lower_is_better must be True or False, not {self.lower_is_better!r}.")
        _check_parameters(self._function, self.origin)

    @property
    def _function(self) -> Callable[[Any, Any], Any]:
        function = self.score or self.whole
        assert function is not None
        return function

    def of_sample(self, outputs: Outputs, sample: LabelledSample) -> float:
        """Return the score of one sample."""
        return self._call(outputs, sample, f" on {sample.name}")

    def of_all(self, outputs: Outputs, labels: npt.NDArray[np.int64] | None) -> float:
        """Return the metric over all samples."""
        return self._call(outputs, labels, "")

    def _call(self, outputs: Outputs, about: Any, where: str) -> float:
        function = self._function
        try:
            value = function(outputs, about)
        except (Exception, SystemExit) as error:  # the user's own code runs here and may raise anything
            raise UsageError(
                f"{self._place(function, error)}: {_named(function)} failed{where} with {type(error).__name__}: "
                f"{error}. Its outputs were {_shapes(outputs)}."
            ) from error
        if not (isinstance(value, (numbers.Real, np.number, np.bool_)) or getattr(value, "shape", None) == ()):
            raise UsageError(
                f"{self._place(function)}: {_named(function)} must return a number, but returned "
                f"{type(value).__name__}{where}."
            )
        if not math.isfinite(float(value)):
            raise UsageError(
                f"{self._place(function)}: {_named(function)} returned {float(value)}{where}. Return a finite number "
                "there, such as the worst there can be."
            )
        return float(value)

    def _place(self, function: Callable[..., Any], error: BaseException | None = None) -> str:
        return _place(self.origin, _last_line(self.origin, error) or _first_line(function))


def as_metric(given: str | os.PathLike[str] | Metric | None) -> Metric | None:
    """Return a measure that is given as a file, by the name of one that is built in, or as itself; None for None."""
    if given is None or isinstance(given, Metric):
        return given
    return PERPLEXITY if str(given) == "perplexity" else load_metric(given)


def load_metric(path: str | os.PathLike[str]) -> Metric:
    """Return the measure that a file defines."""
    file = Path(path)
    module = _run(file)
    return Metric(
        name=file.stem,
        score=_function_of(module, "score", file),
        whole=_function_of(module, "metric", file),
        lower_is_better=getattr(module, "lower_is_better", False),
        origin=str(file),
    )


def _run(file: Path) -> ModuleType:
    if not file.is_file():
        raise UsageError(f"There is no metric file {file}. Make one, such as: {EXAMPLE}")
    name = f"detent_metric_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file}: a metric is a Python file, and its name ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UsageError(f"{_place(str(file), error.lineno)}: this is not valid Python: {error.msg}.") from error
    except (Exception, SystemExit) as error:  # the user's own code runs here and may raise anything
        line = _last_line(str(file), error)
        raise UsageError(
            f"{_place(str(file), line)}: the metric file failed with {type(error).__name__}: {error}"
        ) from error
    return module


def _function_of(module: ModuleType, name: str, file: Path) -> Callable[[Any, Any], Any] | None:
    found = getattr(module, name, None)
    if found is not None and not callable(found):
        raise UsageError(f"{file}: '{name}' must be a function, found {type(found).__name__}.")
    return found


def _check_parameters(function: Callable[..., Any], origin: str) -> None:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise UsageError(
            f"{_place(origin, _first_line(function))}: {_named(function)} must take two arguments, the outputs and the "
            f"sample (or, for a metric, the labels): {error}."
        ) from error
    except ValueError:  # a function in C that does not say what it takes
        return


def _named(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__name__', 'the metric')}()"


def _place(origin: str, line: int | None) -> str:
    return origin if line is None else f"{origin}, line {line}"


def _first_line(function: Callable[..., Any]) -> int | None:
    code = getattr(function, "__code__", None)
    return None if code is None else int(code.co_firstlineno)


def _last_line(file: str, error: BaseException | None) -> int | None:
    """Return the last line of `file` that ran before the error."""
    if error is None:
        return None
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if Path(frame.filename) == Path(file).absolute()), None)


def _shapes(outputs: Outputs) -> str:
    if isinstance(outputs, Mapping):
        return ", ".join(f"'{name}' {list(array.shape)}" for name, array in outputs.items())
    return f"of shape {list(outputs.shape)}"


_NO_TOKENS = ("mask", "position", "type", "segment")
"""Parts of the names of inputs that hold integers but no tokens."""


def perplexity_of(outputs: Outputs, sample: LabelledSample) -> float:
    """Return the perplexity of one sequence. Raise ModelError or DataError if the model or the sample has none."""
    tokens, mask = _tokens(sample)
    scores = _scores(outputs, tokens)
    asked = mask[1:] & mask[:-1]
    if not asked.any():
        raise DataError(f"{sample.name} has no two tokens after each other that the mask lets through.")
    highest = scores[:-1].max(1, keepdims=True)
    logs = scores[:-1] - highest - np.log(np.exp(scores[:-1] - highest).sum(1, keepdims=True))
    chosen = np.take_along_axis(logs, tokens[1:, np.newaxis], 1)[:, 0]
    return math.exp(min(-float(chosen[asked].mean()), 700.0))


def _tokens(sample: LabelledSample) -> tuple[Array, Array]:
    """Return the tokens of a sequence, and which of them count."""
    whole = {name: array for name, array in sample.inputs.items() if array.dtype.kind in "iu" and array.ndim == 2}
    found = [array for name, array in whole.items() if not any(part in name.lower() for part in _NO_TOKENS)]
    if len(found) != 1 or len(found[0]) != 1:
        raise ModelError(f"Perplexity needs one input of token ids for one sequence; found {len(found)} of them.")
    masks = [array for name, array in whole.items() if "mask" in name.lower() and array.shape == found[0].shape]
    mask = masks[0][0] != 0 if masks else np.ones(found[0].shape[1], bool)
    return found[0][0].astype(np.int64), mask


def _scores(outputs: Outputs, tokens: Array) -> Array:
    named: Mapping[str, Any] = outputs if isinstance(outputs, Mapping) else {"": outputs}
    fitting = [array[0] for array in named.values() if array.ndim == 3 and array.shape[:2] == (1, len(tokens))]
    if not fitting:
        raise ModelError("Perplexity needs an output with a score for every word at every token.")
    scores: Array = fitting[0].astype(np.float64)
    if tokens.min() < 0 or tokens.max() >= scores.shape[1]:
        raise DataError(f"Token {int(tokens.max())} is not one of the model's {scores.shape[1]}.")
    return scores


PERPLEXITY = Metric("perplexity", score=perplexity_of, lower_is_better=True, origin="perplexity")
