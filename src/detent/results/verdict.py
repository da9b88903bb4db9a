"""The verdict on a quantized model: close, unclear, worse or broken; or unknown, if the data cannot tell.

A task that counts right answers is judged by the share of them that is expected to be lost, with its interval:

    close     the upper end is below 3 points, or the estimate below 1 point after many samples; and three of four top
              classes may be kept
    broken    the lower end is beyond 25 points; or an output, or a part of one, says nothing any more
    worse     the lower end is beyond 1.5 points, and the estimate beyond 2
    unclear   anything else: the samples do not tell

Encoders are judged by the ranking of similarities, images by PSNR, other numbers by the SQNR of the worst part of any
output and by their error beside how much they differ between samples. A model with several kinds of answers gets the
verdict of the worst. The verdict of doubtful data is "unknown" where it would be close or unclear.

Beside it stand warnings of what is wrong, and suggestions of what to try.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from detent.numerics.formats import is_integer
from detent.plan.layout import Decision
from detent.recipe import Recipe
from detent.results.tensors import Closeness, Fidelity, PartCloseness, TaskAgreement, TensorReport

Level = Literal["close", "unclear", "worse", "broken", "unknown"]

CLOSE_LOSS, SMALL_LOSS = 0.03, 0.01  # shares of right answers, as in the table above
CLOSE_KEPT = 0.75  # the share of top classes that may be kept, by the upper end of its interval
WORSE_LOSS, WORSE_ESTIMATE = 0.015, 0.02
BROKEN_LOSS = 0.25
MANY_SAMPLES = 32
LEAST_SAMPLES = 4  # with fewer, an interval of resampled samples says nothing

CLOSE_RANKING, WORSE_RANKING, BROKEN_RANKING, CLOSE_COSINE = 0.97, 0.85, 0.3, 0.9
CLOSE_PSNR, WORSE_PSNR, BROKEN_PSNR = 35.0, 27.0, 10.0  # 35 dB: hardly visible
CLOSE_DB = 20.0  # the quantization noise is a tenth of the signal
CLOSE_DETECTIONS_DB, WORSE_DETECTIONS_DB = 25.0, 10.0
CLOSE_SPREAD, WORSE_SPREAD, BROKEN_SPREAD = 0.3, 0.6, 1.0  # 0.3: nine tenths of the variance is explained
DEAD_DB = 3.0  # half of the output is noise
APART = 30.0  # parts this far apart in size leave the smaller one 4 of 127 codes
MOST_RESHAPED = 0.5  # of the answers may have other rows, such as a faint object more, before that is a loss
UNSURE_SCORE = 0.25  # A score that users do not show

# A part of an output that is never larger than this in float was not exercised by the data; nor were scores that are
# never larger than the other and 0 in the quantized model, since HardSigmoid makes 0 of every score below 0.05.
FAINT, FAINT_SCORE = 1e-3, 0.05

_NUMBERS = ("regress", "embed", "image")

_FROM_BEST: tuple[Level, ...] = ("close", "unclear", "worse", "broken")

TITLES: dict[Level, str] = {
    "close": "Close to float",
    "unclear": "Cannot tell from {samples} samples",
    "worse": "Worse than float",
    "broken": "Broken",
    "unknown": "Unknown: the data is doubtful",
}


@dataclass(frozen=True)
class Judgement:
    """What the figures say: a short title, and the reason in one sentence, which is empty if there is none to tell."""

    level: Level
    title: str
    reason: str = ""


def judge(fidelity: Fidelity, doubts: Sequence[str] = ()) -> Judgement:
    """Return the verdict on the outputs. `doubts` are what is wrong with the data."""
    level, reason = _judged(fidelity)
    if doubts and level in ("close", "unclear"):
        level, reason = "unknown", doubts[0].rstrip(".")
    title = TITLES[level].format(samples=fidelity.samples)
    if level == "unclear" and _faint(fidelity):
        title = "Cannot tell from these samples"
    return Judgement(level, title, reason)


def dead_parts(fidelity: Fidelity, tensors: Sequence[TensorReport] = ()) -> list[str]:
    """Name each output, or part of one, that says nothing any more, with its node and the likely cause."""
    found = [
        f"{_dead_text(output, part)}: {_cause(output, part, fidelity.parts[output], tensors)}"
        for output, part in _dead(fidelity)
    ]
    return found + [f"{text}: {_first_broken(tensors)}" for text in _dead_outputs(fidelity)]


def _judged(fidelity: Fidelity) -> tuple[Level, str]:
    faint = _faint(fidelity)
    measured = {name: close for name, close in fidelity.outputs.items() if name not in faint}
    # Inside, infinities are also masks, which float has at other places: what they do to the answers is in the outputs.
    wild = [name for name, close in measured.items() if close.sqnr_db == -math.inf]
    if wild:
        return "broken", f"output '{wild[0]}' of the quantized model is NaN or infinite, or not zero where it should be"
    dead = [] if _counts_order(fidelity) else [_dead_text(*each) for each in _dead(fidelity)]
    dead += _dead_outputs(fidelity)
    if dead:
        return "broken", dead[0]
    level, reason = _judged_by_answers(fidelity, measured)
    if faint and (level == "close" or not measured):  # what was not exercised may be anything
        name, peak = next(iter(faint.items()))
        seen = f"'{name}' is at most {peak:.1g} in float"
        advice = "these samples hardly exercise the model. Calibrate and measure on some in which it finds something"
        return "unclear", f"{seen}: {advice}"
    return level, reason


def _judged_by_answers(fidelity: Fidelity, outputs: dict[str, Closeness]) -> tuple[Level, str]:
    if fidelity.agreement is None:
        return _worst(_by_noise(fidelity, outputs), _by_shape(fidelity))
    if fidelity.agreement.task == "regress":
        return _worst(_by_noise(fidelity, outputs), _by_spread(fidelity.agreement))
    found = _by_task(fidelity.agreement)
    numbers = {name: outputs[name] for name in fidelity.numbers if name in outputs}
    blurred = [name for name in fidelity.beside if name in outputs and outputs[name].sqnr_db < WORSE_DETECTIONS_DB]
    if blurred and _counts_order(fidelity):
        found = _worst(found, ("unclear", f"output '{blurred[0]}' has an SQNR of {outputs[blurred[0]].sqnr_db:.1f} dB"))
    for name in _noisy_maps(fidelity):
        found = _worst(found, ("unclear", f"{found[1]}; output '{name}' has an SQNR of {outputs[name].sqnr_db:.1f} dB"))
    if not numbers:
        return found
    sqnr, name = min(_noise(fidelity, numbers))
    level = _graded(sqnr, (CLOSE_DB, WORSE_DETECTIONS_DB, DEAD_DB))
    return _worst(found, (level, f"output SQNR {sqnr:.1f} dB of {name}"))


def _worst(*found: tuple[Level, str]) -> tuple[Level, str]:
    return max(found, key=lambda each: _FROM_BEST.index(each[0]))


def _by_spread(found: TaskAgreement) -> tuple[Level, str]:
    """Judge numbers by how much they differ between samples: an error as large as that leaves nothing of them."""
    if found.figures.keys() & {"still", "unsure"}:
        return "unclear", found.summary
    error = found.figures.get("error_of_spread", 0.0)
    return _graded(-error, (-CLOSE_SPREAD, -WORSE_SPREAD, -BROKEN_SPREAD)), found.summary


def _counts_order(fidelity: Fidelity) -> bool:
    """Return whether only the order of scores counts, or their sides: their noise is not that of the answers."""
    return _task(fidelity) in ("classify", "tag", "sequence")


def _task(fidelity: Fidelity) -> str | None:
    return None if fidelity.agreement is None else fidelity.agreement.task


def _by_task(found: TaskAgreement) -> tuple[Level, str]:
    if found.task == "image":
        psnr = found.figures["psnr_db"]
        return _graded(psnr, (CLOSE_PSNR, WORSE_PSNR, BROKEN_PSNR)), found.summary
    if found.task == "embed":
        if found.loss is None:
            close = found.figures["cosine"] >= 0.99
            return ("close" if close else "unclear"), found.summary
        level = _graded(1.0 - found.loss, (CLOSE_RANKING, WORSE_RANKING, BROKEN_RANKING))
        blurred = level == "close" and found.figures["cosine"] < CLOSE_COSINE
        return ("unclear" if blurred else level), found.summary
    if found.loss is None or found.interval is None:
        return "unclear", "the float model itself finds nothing in these samples"
    low, high = found.interval
    if found.task in ("detect", "tag") and not found.figures.get("confident", 1.0):
        # What float itself would not show is mostly background noise: keeping it or not says nothing of detections.
        return "unclear", f"the float model is sure of nothing in these samples; {found.summary}"
    if found.samples < LEAST_SAMPLES:
        return ("close" if high < CLOSE_LOSS else "unclear"), found.summary
    if low > BROKEN_LOSS:
        return "broken", found.summary
    if low > WORSE_LOSS and found.loss > WORSE_ESTIMATE:
        return "worse", found.summary
    # Of samples that float itself is unsure of, changes cost little, but many of them are not close.
    kept = found.figures.get("same_top1_high", 1.0) >= CLOSE_KEPT
    if kept and (high < CLOSE_LOSS or (found.loss < SMALL_LOSS and found.samples >= MANY_SAMPLES)):
        return "close", found.summary
    return "unclear", found.summary


def worst_sqnr(fidelity: Fidelity) -> float | None:
    """Return the SQNR of the worst part of all outputs; None if none could be compared."""
    return min((sqnr for sqnr, _ in _noise(fidelity, dict(fidelity.outputs))), default=None)


def _by_shape(fidelity: Fidelity) -> tuple[Level, str]:
    """Judge by how many answers still have as many rows: the noise is that of the others alone."""
    if not fidelity.reshaped:
        return "close", ""
    reason = f"in {fidelity.reshaped} of {fidelity.samples} samples the answer has another shape than float's"
    return "worse" if fidelity.reshaped > MOST_RESHAPED * fidelity.samples else "unclear", reason


def _by_noise(fidelity: Fidelity, outputs: dict[str, Closeness]) -> tuple[Level, str]:
    """Judge by the worst part of all outputs."""
    worst = min(_noise(fidelity, outputs), default=None)
    if worst is None:
        why = (
            "the model answers with no rows, or with rows of other shapes" if fidelity.resized else "no output has rows"
        )
        return "unclear", f"no output could be compared with float: {why} on these samples"
    sqnr, name = worst
    reason = f"output SQNR {sqnr:.1f} dB" + (f" of {name}" if name else "")
    if fidelity.agreement is None and fidelity.parts:
        levels = (CLOSE_DETECTIONS_DB, WORSE_DETECTIONS_DB, DEAD_DB)
        level = _graded(sqnr, levels)
    else:
        level = "close" if sqnr >= CLOSE_DB else "broken" if sqnr < DEAD_DB else "worse"
    return level, "" if level == "close" else reason


def _noise(fidelity: Fidelity, outputs: dict[str, Closeness]) -> list[tuple[float, str]]:
    """Return the SQNR of each part, and of each output without parts."""
    several = len(fidelity.outputs) > 1
    found = []
    for name, close in outputs.items():
        parts = [part for part in fidelity.parts.get(name, ()) if part.peak > 0.0]
        found += [(part.closeness.sqnr_db, f"'{part.label}' of '{name}'") for part in parts]
        found += [] if parts else [(close.sqnr_db, f"'{name}'" if several else "")]
    return found


def _graded(value: float, thresholds: tuple[float, float, float]) -> Level:
    close, worse, broken = thresholds
    return "close" if value >= close else "unclear" if value >= worse else "worse" if value >= broken else "broken"


def _faint(fidelity: Fidelity) -> dict[str, float]:
    """Return the outputs that the data did not exercise, with the largest value that they have in float.

    A score map in which float itself finds nothing is one. Numbers that are no scores may be small and right.
    """
    task = _task(fidelity)
    limit = UNSURE_SCORE if task in ("detect", "segment") else 0.0 if task in _NUMBERS else FAINT_SCORE
    return {name: peak for name, peak in fidelity.silent.items() if peak < limit}


def _dead_outputs(fidelity: Fidelity) -> list[str]:
    """Say of each output without parts that it says nothing any more.

    Of scores of classes, only the order counts; but zeros alone have none. They are as far from float as that is large.
    """
    zeros = [name for name in fidelity.silent if name in fidelity.outputs and fidelity.outputs[name].sqnr_db == 0.0]
    judged = [*fidelity.beside, *zeros] if _counts_order(fidelity) else {*fidelity.outputs} - {*_noisy_maps(fidelity)}
    return [
        f"Output '{name}' says nothing any more ({_decibels(close)})"
        for name, close in fidelity.outputs.items()
        if name in judged and name not in fidelity.parts and close.sqnr_db < DEAD_DB and name not in _faint(fidelity)
    ]


def _noisy_maps(fidelity: Fidelity) -> list[str]:
    """Return the outputs that are noise by their numbers, while detections that are read from them tell more.

    Most numbers of score maps are background, which is no answer: an offset there is all of the noise. But they are not
    close either, since a map that few samples exercise may be lost among the others.
    """
    agreement = fidelity.agreement
    if agreement is None or agreement.task != "detect" or not agreement.figures.get("confident", 1.0):
        return []
    read = [name for name in fidelity.outputs if name not in {*fidelity.beside, *fidelity.parts, *fidelity.silent}]
    return [name for name in read if fidelity.outputs[name].sqnr_db < DEAD_DB]


def _dead(fidelity: Fidelity) -> list[tuple[str, PartCloseness]]:
    """Return each part, with its output, that says nothing any more.

    Scores of a detector that is sure of nothing are not exercised: then only a constant is dead, noise is not.
    """
    agreement = fidelity.agreement
    unsure = agreement is not None and agreement.task == "detect" and not agreement.figures.get("confident", 1.0)
    found = []
    for output, parts in fidelity.parts.items():
        for part in parts:
            exercised = part.peak >= (UNSURE_SCORE if unsure else FAINT)
            if part.peak >= FAINT and (part.constant or (exercised and part.closeness.sqnr_db < DEAD_DB)):
                found.append((output, part))
    return found


def _dead_text(output: str, part: PartCloseness) -> str:
    how = "constant" if part.constant else _decibels(part.closeness)
    of = f", from node '{part.node}'" if part.node else ""
    where = f"{part.start}..{part.stop} of axis {part.axis}{of}"
    return f"'{part.label}' of output '{output}' ({where}) is dead ({how})"


def _decibels(close: Closeness) -> str:
    return f"SQNR {close.sqnr_db:.1f} dB"


def _cause(output: str, part: PartCloseness, parts: Sequence[PartCloseness], tensors: Sequence[TensorReport]) -> str:
    larger = [other for other in parts if other.peak > APART * part.peak]
    quantized = next((tensor for tensor in tensors if tensor.name == output), None)
    if not larger or (tensors and quantized is None):  # what is joined in float does not share a scale
        return _first_broken(tensors)
    other = max(larger, key=lambda each: each.peak)
    found = f"it is joined with '{other.label}' (up to {other.peak:.3g}, it is up to {part.peak:.3g}) under one scale"
    if quantized is None:
        return found
    return f"{found}. Leave what joins them float: --exclude {shlex.quote(quantized.node)}"


def _first_broken(tensors: Sequence[TensorReport]) -> str:
    for tensor in tensors:
        if tensor.role == "activation" and tensor.closeness is not None and tensor.closeness.sqnr_db < DEAD_DB:
            return f"the error begins at node '{tensor.node}': try --exclude {shlex.quote(tensor.node)}"
    return "compare it layer by layer with `detent compare`"


if TYPE_CHECKING:
    from detent.results.quantized import Report, Trial

FEW_SAMPLES = 32  # ranges from fewer are unsteady
MOST_CULPRITS = 3
MUCH_CLIPPED = 0.01  # a share of the values
LEAST_GAIN = 1.0  # in dB: less is not worth another format or a longer run


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
        found.append(
            "The model holds float16: it was converted to float32, as were inputs and outputs that were float16."
        )
    if report.calibration is not None and report.calibration.random:
        found.append(
            "Calibrated with random data: the file has the right form, its accuracy is not real. Give data (--calib)."
            if report.calibration.samples
            else "Measured on random data, so how close it is to float is not real. Give data (--calib)."
        )
    hard = hardened(report)
    if hard:
        found.append(
            f"{len(hard)} Sigmoid became HardSigmoid, the one that XINT8's device has ('{hard[0]}'). They "
            "differ by up to 0.07, and part of the loss is due to that; recipe A8W8 keeps Sigmoid (--device stx)."
        )
    gates = [change.node for change in report.changes if change.by == "SiluToTwoGates"]
    if gates:
        found.append(
            f"{len(gates)} SiLU are computed by two HardSigmoids each ('{gates[0]}'): nearer to float, but five nodes "
            "more for each take time on the device, and no network with them was seen on one yet. Measure it there."
        )
    inside = [node.node for node in report.nodes if node.reason.startswith("control flow")]
    if inside:
        both = " --set also=both_branches computes both branches of an If, and quantizes them."
        kept = next((note.what for note in report.declined if note.by == "BothBranches"), None)
        advice = (
            f" One If stays: {kept}." if kept else both if any(node.op_type == "If" for node in report.nodes) else ""
        )
        found.append(
            f"Left float: the graphs inside {', '.join(repr(name) for name in inside)} (If, Loop or Scan).{advice}"
        )
    return found


def hardened(report: Report) -> list[str]:
    """Return the names of nodes that were Sigmoids, and are HardSigmoids because the device has no other."""
    return [change.node for change in report.changes if change.by == "SigmoidToHardSigmoid"]


def _measured_warnings(fidelity: Fidelity | None, in_sample: bool) -> list[str]:
    if fidelity is None:
        return ["Not measured: there was no data. Give some (--calib) to see how close the result is to float."]
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
    """Return whether an activation clips so much that a wider range may be the better one."""
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
