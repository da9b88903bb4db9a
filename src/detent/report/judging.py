"""How close is close? The verdict on a quantization, one for the terminal, the JSON and the page.

The SQNR of the outputs decides. The top answers of a few samples cannot: 5 of 16 that change are 14 to 56 % of all, and
an answer that changed was perhaps wrong before. They are told with their interval, and count as a large loss only where
most of all answers certainly change. An output that is next to nothing in float says nothing about the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from detent.evaluation.fidelity import Fidelity
from detent.evaluation.statistics import Interval, wilson_interval
from detent.report.figures import interval

LARGE_LOSS_DB = 20.0  # the quantization noise is a tenth of the signal
LARGE_LOSS_OF_SCORES_DB = 10.0  # class scores may be off by more before the largest one changes
MANY_CHANGES = 0.1  # of the samples get another class than in float: worth measuring with labels
MOST_CHANGES = 0.5
FAINT = 1e-3
"""An output that is never larger than this in float, and 0 in the quantized model, was not exercised by the data."""


@dataclass(frozen=True)
class Judgement:
    """What the figures say: a short title, and the reason (empty where there is nothing to mind)."""

    level: Literal["close", "unclear", "large"]
    title: str
    said: str = ""


def judge(fidelity: Fidelity) -> Judgement:
    """The verdict on the outputs."""
    faint = {name: peak for name, peak in fidelity.silent.items() if peak < FAINT}
    loss = _large_loss(fidelity, [name for name in fidelity.outputs if name not in faint])
    if loss is not None:
        return Judgement("large", "Large loss", loss)
    if faint:
        name, peak = next(iter(faint.items()))
        said = f"'{name}' is 0 throughout in the quantized model, and at most {peak:.1g} in float"
        advice = "these samples hardly exercise the model. Calibrate and measure on some in which it finds something"
        return Judgement("unclear", "Cannot tell from these samples", f"{said}: {advice}")
    changed = _changed(fidelity)
    if changed > MANY_CHANGES * fidelity.samples:
        advice = f"What that costs, {fidelity.samples} samples cannot tell; `detent evaluate` on labelled images can"
        said = f"{_changes(fidelity)}. {advice}"
        return Judgement("unclear", f"Cannot tell from {fidelity.samples} samples", said)
    return Judgement("close", "Close to float")


def agreement(fidelity: Fidelity) -> str:
    """How many samples keep their top answer, with the interval of all possible samples."""
    assert fidelity.same_top1 is not None, "the output looks like class scores"
    ends = agreement_interval(fidelity.same_top1, fidelity.samples)
    return f"{fidelity.same_top1} of {fidelity.samples} (95 % interval {interval(ends, '.0f')} %)"


def agreement_interval(same: int, samples: int) -> Interval:
    """Wilson's interval, in percent."""
    low, high = wilson_interval(same, samples)
    return 100 * low, 100 * high


def _large_loss(fidelity: Fidelity, outputs: list[str]) -> str | None:
    sqnr = min((fidelity.outputs[name].sqnr_db for name in outputs), default=math.inf)
    if fidelity.same_top1 is not None:
        if fidelity.samples and wilson_interval(_changed(fidelity), fidelity.samples)[0] > MOST_CHANGES:
            return _changes(fidelity)
        return f"output SQNR {sqnr:.1f} dB" if sqnr < LARGE_LOSS_OF_SCORES_DB else None
    return f"output SQNR {sqnr:.1f} dB" if sqnr < LARGE_LOSS_DB else None


def _changed(fidelity: Fidelity) -> int:
    return 0 if fidelity.same_top1 is None else fidelity.samples - fidelity.same_top1


def _changes(fidelity: Fidelity) -> str:
    changed = _changed(fidelity)
    ends = interval(agreement_interval(changed, fidelity.samples), ".0f")
    return f"{changed} of {fidelity.samples} samples get another class than in float (95 % interval {ends} %)"
