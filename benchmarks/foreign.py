"""Models that nobody here wrote: what becomes of each, with several recipes.

    python -m benchmarks.foreign                             # the node tests of the installed onnx package
    python -m benchmarks.foreign --models FOLDER --every 5   # a fifth of the models in a folder instead
    python -m benchmarks.foreign --recipes XINT8 --only pool --list

A model takes part if it has a float input and onnxruntime runs it. What becomes of it with a recipe is one of

    ok            written, loads as a user opens it, and near float or said not to be
    refused       a DetentError
    traceback     any other exception
    signal, hang  the process ended, or did not within a minute
    unloadable    written, but plain onnxruntime with default options does not load or run it
    far           far from float on the data that it was calibrated with, and called close
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

RECIPES = ("XINT8", "A8W8", "A16W8", "BF16", "S8S8_AAWS")
LEAST_DB = {"A16W8": 20.0, "BF16": 20.0}
KINDS = ("ok", "refused", "traceback", "signal", "hang", "unloadable", "far")
FREE_SIZES = (1, 8, 64, 224)  # of dimensions that are free, until the model runs
HARMLESS = re.compile("is quantized already|no node to quantize|nothing to quantize")

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Outcome:
    model: str
    recipe: str
    kind: str
    detail: str = ""


def node_tests(folder: Path) -> None:
    """Write the node tests of the installed onnx package, each with the inputs of its first data set."""
    import onnx
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        graph = case.model.graph if case.model else None
        if graph is None or not any(each.type.tensor_type.elem_type == 1 for each in graph.input) or not case.data_sets:
            continue
        inputs = case.data_sets[0][0]
        if not all(isinstance(each, np.ndarray) and each.dtype.kind in "fiub" for each in inputs):
            continue
        onnx.save(case.model, folder / f"{case.name}.onnx")
        names = [each.name for each in graph.input]
        np.savez(folder / f"{case.name}.npz", **dict(zip(names, inputs, strict=False)))


def feeds_for(path: Path) -> Arrays | None:
    """Return one sample on which onnxruntime runs the model; None if there is none."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        stored = path.with_suffix(".npz")
        given = [dict(np.load(stored))] if stored.exists() else []
    except Exception:  # noqa: BLE001 - whatever it is, this model does not take part
        return None
    inputs = session.get_inputs()
    if not any(each.type == "tensor(float)" for each in inputs):
        return None
    for size in FREE_SIZES:
        try:
            feeds = given[0] if given else {each.name: _random(each, size) for each in inputs}
            session.run(None, feeds)
        except Exception:  # noqa: BLE001 - it may run with another size
            continue
        return feeds
    return None


def _random(value: Any, size: int) -> np.ndarray[Any, Any]:
    """Return random numbers for an input; its batch is 1, and other free dimensions have the size."""
    kinds = {"float": "f4", "double": "f8", "float16": "f2", "int64": "i8", "int32": "i4", "bool": "?", "uint8": "u1"}
    dtype = np.dtype(kinds[value.type.removeprefix("tensor(").removesuffix(")")])
    free = [1, *[size] * len(value.shape)]
    shape = [known if isinstance(known, int) and known > 0 else free[at] for at, known in enumerate(value.shape)]
    numbers = np.random.default_rng(0).standard_normal(shape)
    return numbers.astype(dtype) if dtype.kind == "f" else np.ones(shape, dtype)


def try_recipe(path: Path, feeds: Arrays, recipe: str, folder: Path, *, trust: bool = False) -> Outcome:
    """Quantize one model and say what became of it."""
    import detent

    output, name = folder / "out.onnx", path.stem
    output.unlink(missing_ok=True)
    try:
        report = detent.quantize(path, output, [feeds, feeds], recipe=recipe, trust=trust)
    except detent.DetentError as error:
        return Outcome(name, recipe, "refused", f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - this is what is counted
        return Outcome(name, recipe, "traceback", traceback.format_exc(limit=-4))
    try:
        distance = _decibels(path, output, feeds)
    except Exception as error:  # noqa: BLE001 - this is what is counted
        return Outcome(name, recipe, "unloadable", str(error))
    warned = bool(report.errors) or (report.judgement is not None and report.judgement.level != "close")
    if distance < LEAST_DB.get(recipe, 10.0) and not warned:
        return Outcome(name, recipe, "far", f"{distance:.1f} dB")
    return Outcome(name, recipe, "ok")


def _decibels(path: Path, output: Path, feeds: Arrays) -> float:
    """Return the SQNR of the worst float output; both files are opened as a user opens them.

    Below all others is an output with more rows than the float one, or fewer: how many is up to the data.
    """
    import onnxruntime

    float_session = onnxruntime.InferenceSession(str(path))
    expected = float_session.run(None, feeds)
    exact = onnxruntime.SessionOptions()
    exact.add_session_config_entry("session.x64quantprecision", "1")
    onnxruntime.InferenceSession(str(output))
    found = onnxruntime.InferenceSession(str(output), exact).run(None, feeds)
    worst = np.inf
    for declared, before, after in zip(float_session.get_outputs(), expected, found, strict=True):
        if not isinstance(before, np.ndarray) or before.dtype.kind != "f" or before.size == 0:
            continue
        if before.shape != after.shape:
            if len(before.shape) != len(after.shape) or all(isinstance(size, int) for size in declared.shape):
                raise ValueError(f"shape {before.shape} became {after.shape}")
            return -np.inf
        finite = np.isfinite(before)
        noise = float(np.square(before[finite].astype(float) - after[finite]).sum())
        signal = float(np.square(before[finite].astype(float)).sum())
        worst = min(worst, np.inf if noise == 0 else 10 * np.log10(max(signal, 1e-30) / noise))
    return float(worst)


def work(pipe: Connection, recipes: Sequence[str]) -> None:
    """Answer for one model after the other until there is none."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        while (path := pipe.recv()) is not None:
            feeds = feeds_for(path)
            for recipe in recipes if feeds is not None else ():
                pipe.send(recipe)
                pipe.send(try_recipe(path, feeds, recipe, Path(folder)))
            pipe.send(None)


def outcomes(paths: Sequence[Path], recipes: Sequence[str], seconds: float = 60.0) -> Iterator[Outcome]:
    """Yield what becomes of each model with each recipe, within `seconds`. A worker that dies is replaced."""
    process, pipe = _worker(recipes)
    for path in paths:
        pipe.send(path)
        recipe = "loading"
        while True:
            if not pipe.poll(seconds):
                yield Outcome(path.stem, recipe, "hang")
                process.kill()
                process, pipe = _worker(recipes)
                break
            try:
                answer = pipe.recv()
            except EOFError:
                process.join()
                if recipe != "loading":  # else onnxruntime itself dies of the float model
                    yield Outcome(path.stem, recipe, "signal", str(process.exitcode))
                process, pipe = _worker(recipes)
                break
            if answer is None:
                break
            if isinstance(answer, str):
                recipe = answer
            else:
                yield answer
    pipe.send(None)
    process.join()


def _worker(recipes: Sequence[str]) -> tuple[Any, Connection]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(there, recipes), daemon=True)
    process.start()
    there.close()
    return process, here


def table(found: Sequence[Outcome], recipes: Sequence[str]) -> str:
    lines = [f"{'recipe':10}" + "".join(f"{kind:>12}" for kind in KINDS) + f"{'of refused: needless':>24}"]
    for recipe in recipes:
        mine = [each for each in found if each.recipe == recipe]
        counts = Counter(each.kind for each in mine)
        needless = sum(each.kind == "refused" and not HARMLESS.search(each.detail) for each in mine)
        lines.append(f"{recipe:10}" + "".join(f"{counts[kind]:12}" for kind in KINDS) + f"{needless:24}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="a folder of models, searched to its depth; default: onnx's tests")
    parser.add_argument("--cache", type=Path, help="where onnx's tests are written, and found again")
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--every", type=int, default=1, help="take each n-th model")
    parser.add_argument("--first", type=int, default=0, help="the index of the first one")
    parser.add_argument("--seconds", type=float, default=60.0, help="what takes longer hangs")
    parser.add_argument("--json", type=Path, help="write every outcome to this file, line by line")
    parser.add_argument("--list", action="store_true", help="print everything that is not ok")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.models or given.cache or Path(scratch)
        if given.models is None and not any(folder.glob("*.onnx")):
            folder.mkdir(exist_ok=True)
            node_tests(folder)
        paths = [path for path in sorted(folder.rglob("*.onnx")) if re.search(given.only, str(path))]
        found = []
        for outcome in outcomes(paths[given.first :: given.every], given.recipes, given.seconds):
            found.append(outcome)
            if given.json:
                with given.json.open("a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
            if given.list and outcome.kind != "ok":
                print(f"{outcome.model} {outcome.recipe} {outcome.kind}: {outcome.detail}")
    print(table(found, given.recipes))


if __name__ == "__main__":
    main()
