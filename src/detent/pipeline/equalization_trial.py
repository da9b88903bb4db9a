"""Whether equalization helps, with as few samples as there are: both ways are calibrated and judged.

Equalization stretches every channel to the largest value that was observed in it. With few samples, new inputs then
leave the range in all channels, where without it only the largest channels meet it. So with fewer than TRUSTED samples
the model is calibrated without equalization too, and the one whose answers are closer on samples that are held out is
taken.
"""

from __future__ import annotations

from dataclasses import replace

from detent.pipeline.judged import JudgedOutputs
from detent.pipeline.observed import Observed
from detent.pipeline.planned import make_planned
from detent.pipeline.prepared import Stopwatch
from detent.progress import silent

JUDGED_ON = 8


def better_of(equalized: Observed, plain: Observed) -> Observed:
    """Return the observation whose plan is closer to the given model, and say so if it is the plain one."""
    samples = equalized.observation.measured_on[:JUDGED_ON]
    judged = JudgedOutputs(equalized.prepared, equalized.original, samples)
    with_it, without = (_error(each, judged) for each in (equalized, plain))
    if with_it <= without:
        return equalized
    note = (
        f"Equalization was taken back: with {equalized.observation.samples} calibration samples, the error of the "
        f"answers on {len(samples)} others was {with_it:.3g} with it and {without:.3g} without it. More samples may "
        "help it."
    )
    return replace(plain, notes=[*plain.notes, note])


def _error(observed: Observed, judged: JudgedOutputs) -> float:
    planned = make_planned(observed, Stopwatch(silent))
    return judged.error(planned.model, planned.plan)
