"""Compare answers that are rows of scores for each step, read as text.

The dominant first or last class is a blank and says nothing; if blanks stand between others (CTC), repeated classes are
one. Changes (the edit distance) are counted among the classes of both, and cost what changed steps cost on average, as
in row_answers.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.evaluation.row_answers import Heads, compare_classes
from detent.evaluation.sample_answers import (
    AnswerReader,
    Floats,
    Rows,
    SampleAnswer,
    Summary,
    bootstrap,
    points_text,
    rankable,
    unseen,
)
from detent.tasks.purpose import Outputs, Purpose

LEAST_BLANK = 0.25  # the share of steps from which on a class is taken for a blank

Classes = npt.NDArray[np.int64]


def step_scores(heads: Heads, outputs: Outputs, samples: int) -> tuple[str, Floats]:
    """Return the first output, of `heads` if possible, with class scores of steps, as [samples, steps, classes]."""
    for name, array in sorted(outputs.items(), key=lambda item: item[0] not in heads):
        if array.dtype.kind == "f" and array.ndim == 3 and array.shape[2] > 1 and samples in array.shape[:2]:
            return name, in_steps(array, samples)
    raise ValueError("no output holds class scores of steps")


def in_steps(array: npt.NDArray[Any], samples: int) -> Floats:
    """Return [samples, steps, classes] of an array that may have the steps first, as recurrent networks do."""
    first = array.shape[1] == samples and array.shape[0] != samples
    return np.asarray(np.swapaxes(array, 0, 1) if first else array, np.float64)


def _compare(purpose: Purpose, expected: Outputs, found: Outputs, samples: int) -> list[SampleAnswer]:
    name, scores = step_scores(purpose.heads, expected, samples)
    first, second = rankable(scores), rankable(in_steps(found[name], samples))
    _, costs = compare_classes(first, second)
    one, other = first.argmax(-1), second.argmax(-1)
    blank = _blank(one, first.shape[-1])
    answers = []
    for at in range(samples):
        if purpose.tokens:
            said = (one[at] != blank) | (other[at] != blank)
            edits, length = int((one[at] != other[at]).sum()), int(said.sum())
        else:
            texts = [_text(each, blank, merged=_is_merged(one[at], blank)) for each in (one[at], other[at])]
            edits, length = edit_distance(*texts), max(map(len, texts))
        changed = one[at] != other[at]
        cost = edits * float(costs[at][changed].mean()) if edits else 0.0
        answers.append(SampleAnswer({"kept": float(not edits), "edits": edits, "length": length, "loss": cost}))
    return answers


def _blank(classes: Classes, count: int) -> int | None:
    """Return the class that says nothing, as CTC's blank and the label of other words: a frequent first or last one."""
    shares = {end: float((classes == end).mean()) for end in (0, count - 1)}
    end = max(shares, key=lambda each: shares[each])
    return end if shares[end] >= LEAST_BLANK else None


def _is_merged(classes: Classes, blank: int | None) -> bool:
    """Tell whether blanks stand between other classes. Those that only fill the end do not divide repeated ones."""
    said = np.flatnonzero(classes != blank)
    return blank is not None and bool(len(said)) and bool((classes[: said[-1]] == blank).any())


def _text(classes: Classes, blank: int | None, *, merged: bool) -> list[int]:
    """Return what steps say together."""
    before = [None, *classes.tolist()[:-1]] if merged else [None] * len(classes)
    return [one for one, last in zip(classes.tolist(), before, strict=True) if one not in (blank, last)]


def edit_distance(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many insertions, deletions and replacements make one text the other (Levenshtein)."""
    row = list(range(len(other) + 1))
    for at, each in enumerate(one, 1):
        above, row = row, [at]
        for column, its in enumerate(other, 1):
            row.append(min(above[column] + 1, row[-1] + 1, above[column - 1] + (each != its)))
    return row[-1]


def _summarize(rows: Rows, answers: Sequence[SampleAnswer]) -> Summary:
    count, edits, length = len(answers), int(rows["edits"].sum()), int(rows["length"].sum())
    kept = int(rows["kept"].sum())
    loss, (low, high) = bootstrap(rows["loss"], rows["length"])
    figures = {"kept": kept / count, "classes": float(length), "changed": edits / length if length else 0.0}
    if not length:
        return None, None, figures, f"float reads nothing in any of the {count} samples"
    high = max(high, unseen(min(edits, length), length, float(rows["loss"].sum())))
    text = f"{kept} of {count} sequences are kept whole, {edits} of their {length} classes change"
    return loss, (low, high), figures, f"{text}; expected loss {points_text(loss, (low, high))}"


def _costs(rows: Rows) -> tuple[Floats, Floats]:
    return rows["loss"], rows["length"]


STEPS = AnswerReader(_compare, _summarize, _costs)
