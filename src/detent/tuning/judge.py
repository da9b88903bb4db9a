"""What a tuned model is judged on: the user's own evaluation data, or calibration samples that are kept out of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
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
from detent.pipeline.prepared import HELD_OUT

KEPT_OUT = 4
"""Without data to judge on, one in so many calibration samples is kept out for it, where no --limit leaves any."""

MOST_KEPT_OUT = 256
FEWEST_JUDGED = 8


@dataclass(frozen=True)
class Judging:
    """How models are judged; without `data`, by their answers to calibration samples beside the float model's."""

    data: object = None
    metric: str | Path | Metric | None = None
    labels: LabelsLike = FIND
    label_offset: int = 0
    preprocess: PreprocessOptions | None = None
    limit: int | None = None


def open_judge(job: Job, judging: Judging) -> tuple[Job, Evaluator]:
    """The evaluator, and the job that leaves its samples alone."""
    options = judging.preprocess or job.preprocess
    if judging.data is None and judging.limit is not None:
        raise UsageError("--eval-limit is about the data of --eval: give that too.")
    data, labels = judging.data, judging.labels
    if data is None:
        job, data = keep_out(job)
        labels = None
    evaluator = Evaluator(
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
        progress=job.progress,
    )
    return job, evaluator


def keep_out(job: Job) -> tuple[Job, Dataset]:
    """Calibration samples to judge on, and the job that does not calibrate with them."""
    specs = input_specs(load(job.model))
    open_rows = partial(
        open_source,
        job.calibration,
        specs,
        preprocess=job.preprocess,
        seed=job.options["seed"],
        batch=job.options["batch"],
    )
    if job.calibration is None:
        raise UsageError("There is nothing to judge by: give calibration data (--calib), and --eval or --metric.")
    limit = job.options["limit"]
    source = open_rows(limit=limit, reserve=HELD_OUT if limit else 0)
    if not isinstance(source, RowSource):
        raise UsageError(
            "Models are judged on the same samples again and again, which a stream cannot give: give --eval a folder, "
            "or an array."
        )
    total = len(source.rows)
    if limit is None or limit >= total:
        limit = max(1, total - total // KEPT_OUT)
        job = job.with_options(limit=limit)
        source = open_rows(limit=limit, reserve=HELD_OUT)
        assert isinstance(source, RowSource)
    rows = _left_over(source)
    if len(rows) < FEWEST_JUDGED:
        raise UsageError(
            f"Of {total} {source.rows.noun} {source.rows.place} only {len(rows)} are left to judge by, which says "
            f"nothing. Give --eval, or at least {KEPT_OUT * FEWEST_JUDGED} samples."
        )
    judged = replace(source, selection=RowSelection(rows, frozenset(), len(rows), 0))
    folder = Path(job.calibration) if isinstance(job.calibration, (str, Path)) else None
    return job, Dataset(judged, folder, None, None, None)


def _left_over(source: RowSource) -> list[int]:
    """Rows that are not calibrated with, evenly spaced where there are many."""
    used = {row for at, row in enumerate(source.selection.rows) if at not in source.selection.held_out}
    left = [row for row in range(len(source.rows)) if row not in used]
    size = source.batch if source.whole else 1
    number = min(len(left), MOST_KEPT_OUT) // size * size
    return [left[at * len(left) // number] for at in range(number)] if number else []
