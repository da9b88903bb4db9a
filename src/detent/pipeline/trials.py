"""Try changes that may improve a bad result. Some are adopted; all others become measured suggestions.

Two steps are taken before anything is written (`with_better_steps`), if the result is worse than float and nearer with
them by LEAST_GAIN: SiLU by two gates, and HardSwish as a product through which channels are equalized. They cost some
time on the device, which the report says, and need no other number format.

Everything else is suggested. It is tried only if the verdict is that the result is worse than float or broken, and
within TIMES the time that the run took, at most MOST_SECONDS. Each trial quantizes with one thing changed, on the same
calibration samples, writes nothing, and is measured on the same held-out samples. The cheapest are tried first, by what
the stages of the run took, and one that is not expected to end in time is not begun. What was tried and did not help is
not suggested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import perf_counter

from detent.devices.rewrites import SigmoidToHardSigmoid
from detent.devices.two_gates import SiluToTwoGates
from detent.errors import DetentError, UsageError
from detent.numerics.formats import has_power_of_two_scale, is_integer
from detent.pipeline.job import Job
from detent.pipeline.planned import INFERENCES
from detent.pipeline.prepared import check_recipe
from detent.pipeline.run import OBSERVING, TRYING, Run
from detent.prepare import Pass
from detent.prepare.replaced_operators import HardSwishToRelu6
from detent.progress import silent
from detent.recipe import Recipe
from detent.recipe.file import change, find_recipe, with_settings
from detent.recipe.recipe import WIDENING_SQNR
from detent.results.quantized import Report, Trial
from detent.results.verdict import (
    LEAST_GAIN,
    exclusions,
    hardened,
    judge,
    many_clipped,
    refinement_to_try,
    worst_sqnr,
)

# The time of one run would be too short for another format of activations, which needs statistics of its own.
TIMES, LEAST_SECONDS, MOST_SECONDS = 2.0, 3.0, 40.0

LEARNING_WEIGHTS = 4.0
"""How many times as long a refinement takes that chooses weights as one that corrects biases."""


class _OutOfTimeError(Exception):
    """The time for trials is over."""


@dataclass(frozen=True)
class _Change:
    """Options to add to the command, and the job that they make. `same_data`: it differs in its recipe only."""

    options: str
    job: Job
    same_data: bool = False

    def seconds(self, run: Run, report: Report) -> float:
        """Return how long it should take, by what the stages of the run took."""
        served = self.same_data and run.observed.serves(self.job)
        shared = (TRYING, *OBSERVING) if served else (TRYING,)
        known = {name: each for name, each in report.seconds.items() if name not in shared}
        if self.job.recipe.widen_everywhere and report.calibration is not None:
            inference = report.seconds.get("calibrate", 0.0) / max(1, report.calibration.samples)
            known["plan"] = known.get("plan", 0.0) + INFERENCES * inference
        refinement, before = self.job.recipe.refinement, run.job.recipe.refinement
        learns = refinement is not None and refinement.learns_weights
        if learns and not (before is not None and before.learns_weights):
            known["refine"] = LEARNING_WEIGHTS * known.get("refine", 0.0)
        return sum(known.values())


def with_better_steps(run: Run) -> Run:
    """Return the run, or one with more steps, each where the result is worse than float and nearer with it.

    Nothing is written yet. A recipe that names steps decides by itself; one without a refinement asks for none.
    """
    recipe = run.job.recipe
    if run.job.options["dry_run"] or recipe.refinement is None or recipe.also:
        return run
    if any(change.by == SigmoidToHardSigmoid.__name__ for change in run.planned.notes.changes):
        run = _with_step(run, SiluToTwoGates, "one HardSigmoid for each SiLU", "two, so these were", "one")
    if recipe.equalize is not None and any(node.op_type == "HardSwish" for node in run.prepared.model.graph):
        said = (
            "HardSwish as it is",
            "x/6 * clip(x + 3, 0, 6), whose channels can be equalized, so that was",
            "HardSwish",
        )
        run = _with_step(run, HardSwishToRelu6, *said)
    return run


def _with_step(run: Run, step: type[Pass], plain: str, instead: str, kept: str) -> Run:
    """Return a run with the step if the result is bad and nearer to float with it; else the run itself."""
    recipe, name = run.job.recipe, step.step()
    before = None if name in recipe.without else _worst_if_bad(run)
    if before is None:
        return run
    other = run.with_recipe(recipe.replace(also=(*recipe.also, name)))
    if not any(change.by == step.__name__ for change in other.planned.notes.changes):
        return run
    fidelity = other.measured.fidelity
    after = None if fidelity is None else worst_sqnr(fidelity)
    if after is None or after < before + LEAST_GAIN:
        return run
    note = (
        f"With {plain} the result was worse than float: {before:.1f} dB, and {after:.1f} dB with {instead} taken. "
        f"`--set without={name}` keeps {kept}, which is quicker on the device."
    )
    other.note = " ".join(filter(None, (run.note, note)))
    return other


def _worst_if_bad(run: Run) -> float | None:
    """Return the SQNR of the worst output if the verdict is bad and there are samples to measure again; else None."""
    observed, fidelity = run.observed, run.measured.fidelity
    if observed.source is None or not observed.source.repeatable or observed.observation.in_sample or fidelity is None:
        return None
    bad = judge(fidelity, observed.findings).level in ("worse", "broken")
    return worst_sqnr(fidelity) if bad else None


def with_trials(run: Run, report: Report) -> Report:
    """Return the report with what was tried, if its verdict is bad and there are samples to measure on."""
    before = None if report.dry_run else _worst_if_bad(run)
    if before is None:
        return report
    end = perf_counter() + min(max(TIMES * sum(report.seconds.values()), LEAST_SECONDS), MOST_SECONDS)
    trials: list[Trial] = []
    costs = [(each.seconds(run, report), each) for each in _changes(run.job, report)]
    # The sort is stable: of equal cost, what helps most often comes first.
    for cost, tried in sorted(costs, key=lambda each: each[0]):
        if perf_counter() + cost > end:
            break
        run.job.progress(TRYING, len(trials), None)
        try:
            after = _measured(tried, run, end)
        except _OutOfTimeError:
            break
        except DetentError:
            continue  # the change does not fit this model or device: then it is not suggested
        if after is not None:
            trials.append(Trial(tried.options, before, after))
    return replace(report, trials=tuple(trials))


def _measured(tried: _Change, run: Run, end: float) -> float | None:
    def watch(stage: str, done: int, total: int | None) -> None:  # noqa: ARG001  (that of a Progress)
        if perf_counter() > end:
            raise _OutOfTimeError

    watch(TRYING, 0, None)
    earlier = (run.observed,) if tried.same_data else ()
    fidelity = Run(tried.job.with_options(progress=watch), earlier).report().fidelity
    return None if fidelity is None else worst_sqnr(fidelity)


def _changes(job: Job, report: Report) -> Iterator[_Change]:
    """Yield what may help."""
    recipe = job.recipe
    quiet = replace(job, output=None).with_options(save_stats=None, resume=False, progress=silent, executor=None)
    if job.options["postprocessing"] == "keep":
        yield _Change("--postprocessing float", quiet.with_options(postprocessing="float"))
    for options, changed in changes_of(recipe, many_clipped(report), hardened=bool(hardened(report))):
        try:
            check_recipe(changed, job.selection)
        except UsageError:
            continue  # the device has no such numbers
        yield _Change(options, replace(quiet, recipe=changed), same_data=True)
    nodes, options = exclusions(report)
    if nodes:
        yield _Change(options, quiet.with_options(exclude=(*job.selection.exclude, *nodes)))
    if recipe.name != "BF16" and job.options["stats"] is None:
        yield _Change("--recipe BF16", replace(quiet, recipe=find_recipe("BF16")))


def changes_of(recipe: Recipe, clipped: bool = False, *, hardened: bool = False) -> Iterator[tuple[str, Recipe]]:
    """Yield changes of the recipe, with the options that make them: first what helps most often, last what learns.

    `clipped`: much is cut off at the ends of the ranges. `hardened`: a Sigmoid became a HardSigmoid.
    """
    if hardened and not recipe.also and SiluToTwoGates.step() not in recipe.without:
        setting = f"also={SiluToTwoGates.step()}"
        yield f"--set {setting}", with_settings(recipe, (setting,))
    if is_integer(recipe.activations) and recipe.activations.bits == 8 and not recipe.activations.power_of_two:
        if not recipe.widen_everywhere:
            yield f"--widen {WIDENING_SQNR:g}", recipe.replace(widen=WIDENING_SQNR, widen_everywhere=True)
        wide = recipe.activations.dtype.replace("8", "16")
        yield f"--activations {wide}", change(recipe, {"activations": wide})
    if is_integer(recipe.weights) and recipe.weights.granularity == "per_tensor" and not recipe.weights.power_of_two:
        setting = "weights.granularity=per_channel"
        yield f"--set {setting}", with_settings(recipe, (setting,))
    widest = "NonOverflow" if has_power_of_two_scale(recipe.activations) else "MinMax"
    if clipped and type(recipe.method).__name__ != widest:
        yield f"--method {widest}", change(recipe, {"method": widest})
    refinement = refinement_to_try(recipe)
    if refinement is not None and recipe.weights is not None:
        yield f"--refine {refinement}", change(recipe, {"refinement": refinement})
