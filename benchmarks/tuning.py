"""What `detent tune` reaches: the ladder is judged on calibration images that it does not calibrate with, and the model
that it takes on 1,000 labelled images that it never saw, in exact arithmetic, paired image by image.

python -m benchmarks.tuning [--models ...] [--recipes XINT8 ...] [--max-drop 0] [--budget 10m]
"""

from __future__ import annotations

import detent
from benchmarks.common import CALIBRATION, EVALUATION, arguments, chosen, print_table
from detent.results.searched import StepOutcome


def main() -> None:
    parser = arguments("The loss of what tune takes.", samples=128)
    parser.add_argument("--recipes", nargs="*", default=["XINT8"])
    parser.add_argument("--max-drop", type=float, default=0.0, help="percent of answers that may change")
    parser.add_argument("--budget", default="10m")
    options = parser.parse_args()
    rows = []
    for case in (case for case in chosen(options.models) if case.labelled):
        for recipe in options.recipes:
            tuning = detent.tune(
                case.path,
                None,
                CALIBRATION,
                recipe,
                max_drop=options.max_drop,
                budget=options.budget,
                limit=options.samples,
                preprocess=case.options,
                told=tell,
            )
            evaluation = detent.evaluate([case.path, tuning.model], EVALUATION, preprocess=case.options)
            loss = evaluation.models[1].loss
            assert loss is not None
            low, high = loss.interval or (float("nan"), float("nan"))
            row = (case.name, recipe, tuning.taken, f"{loss.points:.1f}", f"{low:.1f} .. {high:.1f}")
            rows.append((*row, f"{tuning.outcome.loss:.1f}", f"{tuning.seconds:.0f}"))
            print(*rows[-1], flush=True)
    print_table(("model", "recipe", "taken", "loss", "95 % interval", "answers changed %", "seconds"), rows)


def tell(outcome: StepOutcome) -> None:
    kept = "+" if outcome.kept else "-"
    error = "" if outcome.output_error is None else f"{outcome.output_error:.4f}"
    print(" ", kept, outcome.name, f"{outcome.loss:.2f}", error, f"{outcome.seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
