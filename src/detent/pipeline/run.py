"""One quantization, stage by stage.

    prepared   load -> prepare -> lay out -> open the data
    observed   equalize -> sweep
    planned    choose parameters -> constrain them for the device
    refined    bias correction, AdaRound, ...: weights, biases and ranges by what they do
    measured   emit -> measure
    written    check for the device -> save

Decisions are made on the plan, weights are encoded once at emission, and nothing is written before everything held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from os import PathLike

from detent.graph.load import name_of, stored_bytes
from detent.graph.session import take_fallbacks
from detent.observe.samples import Source
from detent.observe.sweep import Observation
from detent.pipeline.job import Job
from detent.pipeline.judged import better_of
from detent.pipeline.observed import Observed, observe
from detent.pipeline.planned import Planned, make_planned
from detent.pipeline.prepared import Prepared, Stopwatch, prepare_model
from detent.pipeline.refined import Refined, refine_plan
from detent.pipeline.written import Measured, Written, measure, write
from detent.recipe import Recipe
from detent.results.quantized import Calibration, Notes, Report
from detent.results.tensors import Pictures, distributions_of, network_of

OBSERVING = ("load", "prepare", "equalize", "calibrate")
"""Stages that two runs share if only what comes later differs."""

TRYING = "try"
"""What was run, but is not in the result."""


class Run:
    """The stages of one job; each is computed when it is first asked for.

    What only measures layers takes `planned`; tuning gives the observations of `earlier` runs of the same job with
    other recipes, and the first that serves is used instead of a new sweep.
    """

    def __init__(self, job: Job, earlier: Sequence[Observed] = ()) -> None:
        self.job = job
        self.note = ""  # for the report
        self._watch = Stopwatch(job.progress)
        self._earlier = next((each for each in earlier if each.serves(job)), None)
        if not earlier:
            take_fallbacks()  # of what this process did before

    @cached_property
    def prepared(self) -> Prepared:
        """The float model, rewritten and laid out, and its data."""
        return prepare_model(self.job, self._watch) if self._earlier is None else self.observed.prepared

    @cached_property
    def observed(self) -> Observed:
        """The rescaled float model and its statistics."""
        if self._earlier is not None:
            return self._earlier.under(self.job)
        return observe(self.prepared, self._watch, better_of)

    @cached_property
    def planned(self) -> Planned:
        """The parameters of every site."""
        return make_planned(self.observed, self._watch)

    @cached_property
    def refined(self) -> Refined:
        """The final plan."""
        return refine_plan(self.planned, self._watch)

    @cached_property
    def measured(self) -> Measured:
        """The quantized model, and how far it is from float."""
        return measure(self.refined, self._watch)

    @cached_property
    def written(self) -> Written:
        """The quantized model, saved."""
        return write(self.measured, self._watch)

    def with_recipe(self, recipe: Recipe) -> Run:
        """Return a run with another recipe in place of this one. It shares what it can, and counts all time."""
        other = Run(replace(self.job, recipe=recipe), (self.observed,))
        for name, seconds in self._watch.seconds.items():
            kept = name if name in OBSERVING else TRYING
            other._watch.seconds[kept] = other._watch.seconds.get(kept, 0.0) + seconds
        return other

    def report(self) -> Report:
        """Go through all stages and report. Raise a DetentError, and leave no output, if anything is wrong."""
        if self.job.options["dry_run"]:
            return self._decisions()
        written, measured, planned, observed = self.written, self.measured, self.planned, self.observed
        prepared, observation, plan = self.prepared, self.observed.observation, self.refined.plan
        notes = Notes([*planned.notes.changes, *written.changes], [*planned.notes.declined, *written.declined])
        calibration = _calibration(prepared.job, observed.source, observation, observed.findings)
        nodes, recipe = list(plan.layout.decisions.values()), prepared.job.recipe
        remarks = [
            *([self.note] if self.note else []),
            *prepared.warnings,
            *map(str, planned.unsettled),
            *observation.notes,
            *observed.notes,
            *self.refined.warnings,
            *written.warnings,
            *take_fallbacks(),
        ]
        return Report(
            source=name_of(self.job.model),
            output=None if self.job.output is None else str(self.job.output),
            recipe=recipe,
            nodes=nodes,
            tensors=measured.tensors,
            changes=notes.changes,
            declined=notes.declined,
            moves=plan.moves,
            equalization=observed.rescaling.equalization,
            smoothing=observed.rescaling.smoothing,
            absorption=observed.rescaling.absorption,
            widening=planned.widening,
            refined=self.refined.layers,
            calibration=calibration,
            fidelity=measured.fidelity,
            in_sample=observation.in_sample,
            bytes_before=stored_bytes(self.job.model),
            bytes_after=written.bytes,
            seconds=self._watch.seconds,
            remarks=remarks,
            device=written.device,
            pictures=Pictures(distributions_of(plan, observation.statistics), observed.channels, measured.network),
            model=written.protos[0] if written.protos else None,
            tail_model=written.protos[1] if written.cut is not None and written.protos else None,
            cut=written.cut,
            postprocessing=prepared.tail,
            recipe_reason=self.job.recipe_reason,
        )

    def _decisions(self) -> Report:
        """Report every decision that needs no data: that of a dry run."""
        prepared, source = self.prepared, self.prepared.source
        expected = None if source is None else Observation({}, None, source.length or 0, source.describe)
        return Report(
            source=name_of(self.job.model),
            output=None,
            recipe=prepared.job.recipe,
            nodes=list(prepared.layout.decisions.values()),
            changes=prepared.notes.changes,
            declined=prepared.notes.declined,
            calibration=None if expected is None else _calibration(prepared.job, source, expected),
            dry_run=True,
            bytes_before=stored_bytes(self.job.model),
            seconds=self._watch.seconds,
            postprocessing=prepared.tail,
            pictures=Pictures(network=network_of(prepared.model)),
        )


def _calibration(
    job: Job, source: Source | None, observation: Observation, findings: Sequence[str] = ()
) -> Calibration:
    """Describe what the statistics were counted on."""
    described = observation.described
    if job.collecting.reuse is not None:
        described = f"the statistics in {job.collecting.reuse} ({described})"
    preprocess = source.preprocess.to_dict() if source is not None and source.preprocess else None
    note = "" if source is None else source.note
    random = source is not None and source.random
    path = str(job.calibration) if isinstance(job.calibration, (str, PathLike)) else None
    return Calibration(described, observation.samples, random, preprocess, note, findings, job.preprocess.flags, path)
