"""What a model answers, saved sample by sample (see `answers`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detent.graph.session import DEFAULT_PROVIDERS
from detent.measure.answers import Answers, new_folder
from detent.measure.candidate import AnyModel, Candidate, rows_of
from detent.measure.dataset import Batch, open_dataset
from detent.measure.in_order import in_order
from detent.observe.preprocess import PreprocessOptions
from detent.observe.samples import Array
from detent.progress import Progress, silent

STAGE = "infer"


def save_outputs(
    model: AnyModel,
    data: Any,
    out: Path,
    *,
    preprocess: PreprocessOptions | None = None,
    limit: int | None = None,
    batch: int | None = None,
    threads: int = 0,
    providers: Sequence[str] = DEFAULT_PROVIDERS,
    progress: Progress = silent,
) -> list[Path]:
    """Run the model on all samples; returns the files that were written below `out`.

    The folder is there when all of it is, or not at all.
    """
    candidate = Candidate(model, providers)
    dataset = open_dataset(data, candidate.inputs, labels=None, preprocess=preprocess, limit=limit, batch=batch)

    def look(item: Batch) -> dict[str, Array]:
        return candidate(item.pending.load())

    files: list[str] = []
    with new_folder(out) as folder:
        answers = Answers(folder)
        progress(STAGE, 0, dataset.batches)
        for done, (item, outputs) in enumerate(in_order(look, dataset, threads), 1):
            for at, name in enumerate(item.names):
                files += answers.save(rows_of(outputs, at, len(item.names), item.pending.origin), name)
            progress(STAGE, done, dataset.batches)
    return [out / file for file in files]
