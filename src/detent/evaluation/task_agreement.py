"""Judge the answers of a quantized model by those of the float one, as the user of its task would; without labels.

classify, tag     rows of scores                 row_answers.py
sequence          rows of scores for each step   step_answers.py
detect            boxes                          box_answers.py
segment, image    maps                           map_answers.py
embed, regress    vectors and numbers            vector_answers.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from detent.evaluation.box_answers import BOXES
from detent.evaluation.map_answers import IMAGES, MAPS
from detent.evaluation.row_answers import ROWS
from detent.evaluation.sample_answers import Floats, Rows, SampleAnswer
from detent.evaluation.step_answers import STEPS
from detent.evaluation.vector_answers import EMBEDDINGS, NUMBERS
from detent.results.tensors import TaskAgreement
from detent.tasks import Task
from detent.tasks.purpose import Outputs, Purpose, where_sure

_READERS = {
    Task.CLASSIFY: ROWS,
    Task.TAG: ROWS,
    Task.SEQUENCE: STEPS,
    Task.DETECT: BOXES,
    Task.SEGMENT: MAPS,
    Task.EMBED: EMBEDDINGS,
    Task.IMAGE: IMAGES,
    Task.REGRESS: NUMBERS,
}


def compare_answers(purpose: Purpose, expected: Outputs, found: Outputs, samples: int) -> list[SampleAnswer]:
    """Return what became of each sample's answer; empty if this output cannot be read as the task's."""
    expected, found = where_sure(purpose, expected, found)
    try:
        return _READERS[purpose.task].compare(purpose, purpose.answers(expected), purpose.answers(found), samples)
    except (ValueError, IndexError, KeyError, StopIteration):  # an output of another shape than the task's
        return []


def add_answers(purpose: Purpose, answers: list[SampleAnswer], more: Sequence[SampleAnswer]) -> None:
    """Append the answers to further samples, without vectors that no summary uses."""
    most = _READERS[purpose.task].vectors
    used = len(more) if most is None else max(0, most - len(answers))
    answers += [each if at < used else replace(each, vectors=None) for at, each in enumerate(more)]


def summarize_answers(purpose: Purpose, answers: Sequence[SampleAnswer]) -> TaskAgreement | None:
    """Return the figures of all samples; None if there are none."""
    if not answers:
        return None
    loss, interval, figures, text = _READERS[purpose.task].summarize(_rows(answers), answers)
    return TaskAgreement(str(purpose.task), purpose.why, len(answers), loss, interval, figures, text)


def paired_costs(purpose: Purpose, answers: Sequence[SampleAnswer]) -> tuple[Floats, Floats] | None:
    """Return what each sample costs, and its weight: the loss is the ratio of their sums. None if there is no such."""
    costs = _READERS[purpose.task].costs
    return None if costs is None or not answers else costs(_rows(answers))


def _rows(answers: Sequence[SampleAnswer]) -> Rows:
    return {name: np.array([answer.numbers.get(name, 0.0) for answer in answers]) for name in answers[0].numbers}
