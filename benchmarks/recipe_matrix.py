"""Every recipe on the demo model, mobilenetv2 and a transformer: does it run, how large is the file, what is lost.

python -m benchmarks.recipe_matrix [--recipes ...] [--models demo mobilenetv2 transformer] [--write docs/recipes.md]

Every result passes onnx's checker (or `quantize` would have refused to write it), is loaded in plain onnxruntime from
its file and run there. Fine-tuned recipes learn for fewer iterations than they say, so that the table takes minutes.
Written into a page, the recipes and models that were run replace their cells; all others stay.
"""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from tests.transformer_models import bert, bert_data

import detent
from benchmarks.common import CALIBRATION, chosen
from detent.recipe import Recipe
from detent.recipe.recipe import PRESETS
from detent.refinements import AdaQuant, AdaRound

START, END = "<!-- matrix -->", "<!-- end of matrix -->"
DEMO = Path(detent.__file__).parent / "demo"


@dataclass(frozen=True)
class Subject:
    """A model to quantize, and its data."""

    name: str
    model: Any
    calibration: Any
    options: Mapping[str, Any]


def subjects(folder: Path) -> dict[str, Subject]:
    """The models by name; each is a file, so that sizes can be compared."""
    (case,) = chosen(["mobilenetv2"])
    block = folder / "transformer.onnx"
    onnx.save(bert(), block)
    demo = {"preprocess": DEMO / "preprocess.json"}
    return {
        "demo": Subject("demo", DEMO / "digits.onnx", DEMO / "calibration", demo),
        "mobilenetv2": Subject("mobilenetv2", case.path, CALIBRATION, {"preprocess": case.options, "limit": 24}),
        "transformer": Subject("transformer", block, bert_data(48), {}),
    }


def shortened(recipe: Recipe, iterations: int) -> Recipe:
    """The recipe with at most so many iterations of fine-tuning."""
    refinement = recipe.refinement
    if isinstance(refinement, AdaRound | AdaQuant):
        return recipe.replace(refinement=dataclasses.replace(refinement, iterations=iterations))
    return recipe


def outcome(subject: Subject, recipe: Recipe, folder: Path) -> str:
    """SQNR and size of one recipe on one model; or what went wrong."""
    output = folder / "out.onnx"
    try:
        report = detent.quantize(subject.model, output, subject.calibration, recipe, resume=False, **subject.options)
    except detent.DetentError as error:
        return f"refused: {error}"
    onnx.checker.check_model(str(output))
    onnxruntime.InferenceSession(str(output), providers=["CPUExecutionProvider"])
    worst = min(each.sqnr_db for each in report.fidelity.outputs.values())
    ratio = report.bytes_after / report.bytes_before
    return f"{worst:.1f} dB, {ratio:.2f}x"


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", nargs="*", default=list(PRESETS))
    parser.add_argument("--models", nargs="*", default=["demo", "mobilenetv2", "transformer"])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--write", type=Path, help="a page to write the table into, between two marks")
    options = parser.parse_args()
    rows: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        folder = Path(name)
        known = subjects(folder)
        for recipe in (shortened(PRESETS[each], options.iterations) for each in options.recipes):
            rows[recipe.name] = {model: outcome(known[model], recipe, folder) for model in options.models}
            print(recipe.name, *rows[recipe.name].values(), sep=" | ", flush=True)
    if options.write:
        write(options.write, rows)


def write(page: Path, rows: Mapping[str, Mapping[str, str]]) -> None:
    """Put the cells into the table between the marks of a page."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    table, _, after = rest.partition(END)
    known = cells(table)
    merged = {recipe: {**known.get(recipe, {}), **rows.get(recipe, {})} for recipe in PRESETS}
    models = list(dict.fromkeys(model for row in merged.values() for model in row))
    lines = [["recipe", *models], ["---"] * (1 + len(models))]
    lines += [[recipe, *(row.get(model, "") for model in models)] for recipe, row in merged.items()]
    written = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    page.write_text(f"{before}{START}\n{written}\n{END}{after}", encoding="utf-8")


def cells(table: str) -> dict[str, dict[str, str]]:
    """What a table has, by recipe and model."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()]
    header = lines[0][1:] if lines else []
    return {line[0]: dict(zip(header, line[1:], strict=True)) for line in lines[2:]}


if __name__ == "__main__":
    main()
