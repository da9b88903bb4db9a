"""How often wrong normalisation is found, and right one questioned, over draws of labelled photographs.

python -m benchmarks.data_questions [--models mobilenetv2 ...] [--images 128] [--draws 200]

Each answer of the float model is computed once and remembered, since draws share images.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.common import EVALUATION, Case, chosen, print_table
from benchmarks.verdicts import _treated_images
from detent.evaluation.data_check import question_data
from detent.graph.load import load
from detent.graph.session import Runner
from detent.observe.sources import input_specs, open_source
from detent.pipeline.prepared import purpose_of

TREATMENTS = ("good", "unit", "signed", "imagenet", "raw", "bgr")
DRAWN = 32


def main() -> None:
    """Print the shares, in percent."""
    parser = argparse.ArgumentParser(description="How often the check of the data is right.")
    models = ["mobilenetv2", "squeezenet11", "efficientnet_lite0", "cifar_resnet20"]
    parser.add_argument("--models", nargs="*", default=models)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--draws", type=int, default=200)
    options = parser.parse_args()
    rows = [(case.name, *shares(case, options.images, options.draws)) for case in chosen(options.models)]
    print_table(("model", *TREATMENTS), rows)


def shares(case: Case, images: int, draws: int) -> list[str]:
    """Return the share of draws that are questioned, for each treatment."""
    model = load(case.path)
    specs, purpose, runner = input_specs(model), purpose_of(model, None), Runner(model)
    source = open_source(EVALUATION / "images", specs, preprocess=case.options, limit=images, hold_out=0)
    right = np.concatenate([pending.load().feeds[specs[0].name] for pending in source])
    assert source.preprocess is not None, "these are images"
    known: dict[bytes, dict[str, Any]] = {}

    def answer(feeds: Any) -> dict[str, Any]:
        key = feeds[specs[0].name].tobytes()[::97]
        if key not in known:
            known[key] = dict(zip(runner.outputs, runner(feeds), strict=True))
        return known[key]

    found = []
    for treatment in TREATMENTS:
        treated = _treated_images(right, source.preprocess, treatment)
        rng, questioned = np.random.default_rng(7), 0
        for _ in range(draws):
            rows = [{specs[0].name: treated[at : at + 1]} for at in rng.choice(len(treated), DRAWN, replace=False)]
            questioned += bool(question_data(rows, purpose, answer))
        found.append(f"{100 * questioned / draws:.0f}")
    return found


if __name__ == "__main__":
    main()
