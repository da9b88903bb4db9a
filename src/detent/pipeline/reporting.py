"""The report of a run: what was decided, and what to say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from detent.graph.load import name_of, stored_bytes
from detent.observe.sources import Source
from detent.observe.sweep import Observation
from detent.pipeline.job import Job
from detent.plan.layout import Layout
from detent.report.advice import suggestions_for, warnings_for
from detent.report.report import Calibration, Notes, Report


def decided(
    job: Job, layout: Layout, notes: Notes, calibration: Calibration | None, seconds: Mapping[str, float]
) -> Report:
    """The report of every decision that needs no data: that of a dry run."""
    return Report(
        source=name_of(job.model),
        output=None if job.output is None or job.dry_run else str(job.output),
        recipe=job.recipe,
        nodes=list(layout.decisions.values()),
        tensors=(),
        changes=notes.changes,
        declined=notes.declined,
        moves=(),
        equalization=None,
        smoothing=None,
        refined=(),
        calibration=calibration,
        fidelity=None,
        in_sample=False,
        dry_run=job.dry_run,
        bytes_before=stored_bytes(job.model),
        bytes_after=None,
        seconds=seconds,
    )


def calibrated(job: Job, source: Source | None, observation: Observation) -> Calibration:
    """What the statistics were counted on."""
    described = observation.described
    if job.collecting.reuse is not None:
        described = f"the statistics in {job.collecting.reuse} ({described})"
    preprocess = source.preprocess.to_dict() if source is not None and source.preprocess else None
    note = "" if source is None else source.note
    return Calibration(described, observation.samples, source is not None and source.random, preprocess, note)


def foreseen(job: Job, source: Source | None) -> Calibration | None:
    """What they would be counted on; None where there is no data."""
    if source is None:
        return None
    return calibrated(job, source, Observation({}, None, source.length or 0, source.describe))


def advised(report: Report, calibration: Calibration, notes: Notes) -> Report:
    """The report with what makes its result untrustworthy, and what to try next."""
    fidelity, tensors, nodes = report.fidelity, report.tensors, report.nodes
    warnings = warnings_for(calibration, nodes, notes, tensors, fidelity, report.in_sample)
    suggestions = [] if fidelity is None else suggestions_for(fidelity, calibration, tensors, nodes, report.recipe)
    return replace(report, warnings=[*warnings, *report.warnings], suggestions=suggestions)
