"""Top-1 accuracy on labelled images, image by image, so that two models can be compared on the same ones."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.errors import DataError
from detent.graph.session import Runner, usable_cores
from detent.observe.preprocess import Preprocess


@dataclass(frozen=True)
class LabelledImage:
    """An image and the index of its class."""

    file: Path
    label: int


def read_labels(folder: Path) -> list[LabelledImage]:
    """The rows of `labels.csv` (file,label) in `folder`, with the files below its `images`."""
    table = folder / "labels.csv"
    try:
        with table.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        return [LabelledImage(folder / "images" / row["file"], int(row["label"])) for row in rows]
    except OSError as error:
        raise DataError(f"Cannot read {table}: {error.strerror}.") from error
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{table} must have the columns file,label with a whole number as label: {error}.") from error


def correct_top1(model: ir.Model, images: Sequence[LabelledImage], preprocess: Preprocess) -> npt.NDArray[np.bool_]:
    """For each image, whether the model's largest score is that of its label. Integer kernels are not used."""
    runner = Runner(model, exact=True)
    name = str(model.graph.inputs[0].name)

    def is_correct(image: LabelledImage) -> bool:
        scores = runner({name: preprocess.load(image.file)[np.newaxis]}, str(image.file))[0]
        return int(scores.argmax(-1).reshape(-1)[0]) == image.label

    with ThreadPoolExecutor(usable_cores()) as pool:
        return np.array(list(pool.map(is_correct, images)), bool)
