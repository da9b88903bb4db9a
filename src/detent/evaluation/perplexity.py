"""Perplexity: how many words a language model hesitates between, on files of token ids (`--metric perplexity`).

    exp( - mean over t of  log softmax(scores[t])[token[t + 1]] )

of each sequence; the mean over sequences is reported. The tokens are the model's own input; those that a mask leaves
out are neither read nor asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from detent.errors import DataError, ModelError
from detent.evaluation.metric_file import LabelledSample, Metric, Outputs
from detent.observe.samples import Array

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
    """Return a row of scores for each token."""
    named: Mapping[str, Any] = outputs if isinstance(outputs, Mapping) else {"": outputs}
    fitting = [array[0] for array in named.values() if array.ndim == 3 and array.shape[:2] == (1, len(tokens))]
    if not fitting:
        raise ModelError("Perplexity needs an output with a score for every word at every token.")
    scores: Array = fitting[0].astype(np.float64)
    if tokens.min() < 0 or tokens.max() >= scores.shape[1]:
        raise DataError(f"Token {int(tokens.max())} is none of the model's {scores.shape[1]}.")
    return scores


PERPLEXITY = Metric("perplexity", score=perplexity_of, lower_is_better=True, origin="perplexity")
