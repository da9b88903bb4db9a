"""What a report says beyond its figures and its verdict: warnings of what is wrong, and suggestions of what to try."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from detent.numerics.formats import is_integer
from detent.plan.layout import Decision
from detent.recipe import Recipe
from detent.results.tensors import Fidelity, TensorReport

if TYPE_CHECKING:
    from detent.results.quantized import Report, Trial

FEW_SAMPLES = 32
MOST_CULPRITS = 3
MUCH_CLIPPED = 0.01
LEAST_GAIN = 1.0
"""In dB: less is not worth another format or a longer run."""


def warnings_for(report: Report) -> list[str]:
    """Return what makes the result untrustworthy, or is likely to surprise."""
    # What is wrong with the data comes first: nothing else is worth reading then.
    found = [] if report.calibration is None else list(report.calibration.findings)
    found += [note.what for note in report.declined if note.what.startswith("shape inference failed")]
    seen = [tensor for tensor in report.tensors if tensor.role == "activation" and tensor.minimum is not None]
    still = [tensor.name for tensor in seen if tensor.minimum == tensor.maximum]
    if still:
        found.append(f"'{still[0]}' had the same value in all samples ({len(still)} such in all). Is the data right?")
    found += _measured_warnings(report.fidelity, report.in_sample)
    if any(change.by == "HalfToFloat" for change in report.changes):
        found.append("The model was float16: it was converted, and its inputs and outputs are float32 now.")
    if report.calibration is not None and report.calibration.random:
        found.append(
            "Calibrated with random data: the file has the right form, but its accuracy is not real. Give --calib."
            if report.calibration.samples
            else "Measured on random data, so how close it is to float is not real. Give --calib."
        )
    hardened = [change.node for change in report.changes if change.by == "SigmoidToHardSigmoid"]
    if hardened:
        found.append(
            f"{len(hardened)} Sigmoid became HardSigmoid, the only one that the device has ('{hardened[0]}'). They "
            "differ by up to 0.07; where that matters, as in a detector's scores, leave the node float with --exclude."
        )
    inside = [node.node for node in report.nodes if node.reason.startswith("control flow")]
    if inside:
        found.append(f"Left float: the graphs inside {', '.join(repr(name) for name in inside)} (If, Loop or Scan).")
    return found


def _measured_warnings(fidelity: Fidelity | None, in_sample: bool) -> list[str]:
    if fidelity is None:
        return ["Not measured: there was no data. Give --calib beside --stats to see how close the result is to float."]
    found = []
    if fidelity.resized:
        found.append(f"The shape of '{fidelity.resized[0]}' depends on the data and changed: it could not be compared.")
    measured = {**fidelity.tensors, **fidelity.outputs}
    broken = [name for name, closeness in measured.items() if closeness.sqnr_db == -math.inf]
    if broken:
        found.append(f"'{broken[0]}' is NaN or infinite in the quantized model, or not zero where float is.")
    if in_sample:
        found.append("No samples were held out: the figures are measured on calibration data, and flatter the result.")
    return found


def suggestions_for(report: Report) -> list[str]:
    """Return what to try if the loss is large: of other settings, only what was measured to help."""
    judgement = report.judgement
    if judgement is None or judgement.level not in ("worse", "broken"):
        return []
    found = []
    calibration = report.calibration
    if calibration is not None and calibration.note.startswith("Guessed"):
        found.append(
            "The preprocessing was guessed. If it is not the one of training, every range is wrong: check it first."
        )
    if calibration is not None and 0 < calibration.samples < FEW_SAMPLES:
        found.append(f"Few calibration samples ({calibration.samples}): 100 to 500 give steadier ranges.")
    found += [
        f"{trial.options}: measured here, {trial.before:.1f} dB -> {trial.after:.1f} dB."
        for trial in helpful_trials(report)
    ]
    return found


def refinement_to_try(recipe: Recipe) -> str | None:
    """Name the refinement of the weights that a recipe lacks; None if it has one."""
    if recipe.refinement is not None and recipe.refinement.learns_weights:
        return None
    return "Rounding" if is_integer(recipe.weights) else "AdaQuant"


def helpful_trials(report: Report) -> list[Trial]:
    """Return what was tried and helped, the best first; another recipe last, since it may be for another device."""
    helped = [trial for trial in report.trials if trial.gain >= LEAST_GAIN]
    return sorted(helped, key=lambda trial: (trial.options.startswith("--recipe"), -trial.after))


def many_clipped(report: Report) -> bool:
    """Tell whether an activation clips so much that a wider range may be the better one."""
    return any(tensor.role == "activation" and tensor.clipped > MUCH_CLIPPED for tensor in report.tensors)


def exclusions(report: Report) -> tuple[list[str], str]:
    """Return the nodes at which the error grows most, and the options that leave them float."""
    nodes = _where_it_falls(report.tensors, report.nodes)
    return nodes, " ".join(f"--exclude {shlex.quote(node)}" for node in nodes)


def _where_it_falls(tensors: Sequence[TensorReport], nodes: Sequence[Decision]) -> list[str]:
    """Return the nodes at whose output the SQNR drops most from one tensor to the next, in graph order."""
    order = {node.node: index for index, node in enumerate(nodes)}
    along = [tensor for tensor in tensors if tensor.closeness is not None and tensor.node in order]
    along.sort(key=lambda tensor: order[tensor.node])
    drops: list[tuple[float, str]] = []
    for before, after in pairwise(along):
        assert before.closeness is not None and after.closeness is not None
        drop = before.closeness.sqnr_db - after.closeness.sqnr_db
        if math.isfinite(drop) and drop > 3.0:
            drops.append((drop, after.node))
    return [name for _, name in sorted(drops, reverse=True)[:MOST_CULPRITS]]
