"""What a tuned model is judged on: the user's own evaluation data, or the calibration samples that are held out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from detent.errors import UsageError
from detent.evaluation.dataset import FIND, Dataset, LabelsLike
from detent.evaluation.evaluator import Evaluator
from detent.evaluation.metric_file import Metric
from detent.graph.load import load
from detent.observe.preprocess import PreprocessOptions
from detent.observe.samples import RowSelection
from detent.observe.sources import RowSource, input_specs, open_source
from detent.pipeline.job import Job
from detent.pipeline.run import Run

FEWEST_JUDGED = 4


@dataclass(frozen=True)
class Judging:
    """How models are judged; without `data`, by their answers to calibration samples beside the float model's."""

    data: object = None
    metric: str | Path | Metric | None = None
    labels: LabelsLike = FIND
    label_offset: int = 0
    preprocess: PreprocessOptions | None = None
    limit: int | None = None


def open_judge(job: Job, judging: Judging) -> Evaluator:
    """Return what judges the models of a job: by labels or a metric, or else by the answers of the float model."""
    options = judging.preprocess or job.preprocess
    if judging.data is None and judging.limit is not None:
        raise UsageError("--eval-limit is about the data of --eval: give that too.")
    data, labels = judging.data, judging.labels
    if data is None:
        data, labels = held_out_data(job), None
    prepared = Run(job).prepared
    return Evaluator(
        job.model,
        data,
        labels=labels,
        label_offset=judging.label_offset,
        metric=judging.metric,
        preprocess=options,
        limit=judging.limit,
        batch=None if isinstance(data, Dataset) else job.options["batch"],
        threads=job.collecting.threads,
        providers=job.collecting.providers,
        emulate=job.recipe.emulated,
        purpose=(prepared.purpose, prepared.parts),
        progress=job.progress,
    )


def held_out_data(job: Job) -> Dataset:
    """Return the calibration samples that a run of the job holds out, as data to judge on."""
    if job.calibration is None:
        raise UsageError("There is nothing to judge by: give calibration data (--calib), and --eval or --metric.")
    source = open_source(
        job.calibration,
        input_specs(load(job.model)),
        preprocess=job.preprocess,
        limit=job.options["limit"],
        hold_out=job.options["hold_out"],
        seed=job.options["seed"],
        batch=job.options["batch"],
    )
    if not isinstance(source, RowSource):
        raise UsageError(
            "Models are judged on the same samples again and again, which a stream cannot give: give --eval a folder, "
            "or an array."
        )
    rows = [row for at, row in enumerate(source.selection.rows) if at in source.selection.held_out]
    if len(rows) < FEWEST_JUDGED:
        raise UsageError(
            f"Of {len(source.selection.rows)} {source.rows.noun} {source.rows.place} only {len(rows)} are held out to "
            f"judge by, which says nothing. Give more samples, hold out more of them (--hold-out {FEWEST_JUDGED}), or "
            "give --eval."
        )
    judged = replace(source, selection=RowSelection(rows, frozenset(), len(rows), 0))
    folder = Path(job.calibration) if isinstance(job.calibration, (str, Path)) else None
    return Dataset(judged, folder, None, None, None)
