"""What the benchmarks share: where the models and images are, how they are read, and tables."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from detent.devices.catalog import find_device
from detent.evaluation.evaluator import Evaluator
from detent.graph.load import load
from detent.numerics.codec import DeviceRounding
from detent.observe.preprocess import PreprocessOptions
from detent.observe.sources import input_specs, open_source
from detent.plan.layout import Role, lay_out
from detent.plan.select import Selection
from detent.prepare import default_passes, prepare
from detent.results.evaluated import Answers

DATA = Path(os.environ.get("DETENT_BENCH_DATA", Path(__file__).parents[2] / "shared" / "data"))
"""A folder with models/, imagenet-calib-350/ and imagenet-eval-1000/."""

CALIBRATION = DATA / "imagenet-calib-350"
EVALUATION = DATA / "imagenet-eval-1000"


@dataclass(frozen=True)
class Case:
    """A model, and the one flag that it needs where its input does not settle the image size."""

    name: str
    size: tuple[int, int] | None = None
    labelled: bool = False

    @property
    def path(self) -> Path:
        return DATA / "models" / f"{self.name}.onnx"

    @property
    def options(self) -> PreprocessOptions:
        settings = self.path.with_suffix(".json")
        return PreprocessOptions(file=settings if settings.exists() else None, size=self.size)


CASES = (
    Case("mobilenetv2", labelled=True),
    Case("efficientnet_lite0", labelled=True),
    Case("squeezenet11", labelled=True),
    Case("cifar_resnet20"),
    Case("open_nsfw_resnet50thin"),
    Case("ppocrv4_det", size=(224, 224)),
    Case("ppocrv4_rec", size=(48, 320)),
)


def arguments(description: str, samples: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--models", nargs="*", default=[case.name for case in CASES], help="names, default all")
    parser.add_argument("--samples", type=int, default=samples, help="calibration images")
    return parser


def chosen(names: Iterable[str]) -> list[Case]:
    wanted = set(names)
    return [case for case in CASES if case.name in wanted]


def calibration_array(case: Case, samples: int) -> np.ndarray[Any, Any]:
    """The calibration images of a model, as one array."""
    specs = input_specs(load(case.path))
    source = open_source(CALIBRATION, specs, preprocess=case.options, limit=samples)
    return np.concatenate([pending.load().feeds[specs[0].name] for pending in source])


def prepared(case: Case, target: str = "npu-cnn") -> tuple[ir.Model, list[str]]:
    """The model as it is calibrated, and its sites."""
    model = load(case.path)
    names = [str(node.name) for node in model.graph]
    prepare(model, default_passes(None, [make() for make in find_device(target).preparations]))
    layout = lay_out(model, Selection(), folded=names)
    return model, [one.value for one in layout.of_role(Role.ACTIVATION) if layout.leader(one.value) == one.value]


def evaluator(case: Case, limit: int | None = None, emulate: DeviceRounding | None = None) -> Evaluator:
    """The labelled images as this model reads them; `limit` of them, evenly spaced.

    With `emulate`, models that are compared with it are computed in integers, with that rounding.
    """
    return Evaluator(case.path, EVALUATION, preprocess=case.options, limit=limit, emulate=emulate)


def top1_right(on: Evaluator, model: Path) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each labelled image whether the model's top answer is its label."""
    scores = on.evaluate(model)
    assert isinstance(scores, Answers), f"{EVALUATION} has labels"
    return scores.right()


def percent(right: np.ndarray[Any, np.dtype[np.bool_]]) -> str:
    return f"{100 * right.mean():.1f}"


def paired_difference(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any], sign: str = "") -> str:
    """The first less the second in percentage points, with the standard error of the pairs."""
    pairs = first.astype(float) - second
    return f"{100 * pairs.mean():{sign}.1f} ± {100 * pairs.std() / np.sqrt(len(pairs)):.1f}"


def parameters(model: ir.Model) -> dict[str, tuple[str, float]]:
    """The scale of every quantized tensor, by a name that both tools share.

    An activation goes by the float model's name; a constant by the output of the layer that reads it and the input's
    index, because tools name folded weights differently.
    """
    found: dict[str, tuple[str, float]] = {}
    for node in model.graph:
        if node.op_type != "DequantizeLinear":
            continue
        codes, scale = node.inputs[0], float(node.inputs[1].const_value.numpy().reshape(-1)[0])
        quantize = codes.producer()
        if quantize is not None:
            name = (
                str(quantize.inputs[0].name).removesuffix("_QuantizeLinear_Input").removesuffix("/before_device_factor")
            )
            found[name] = ("activation", scale)
            continue
        for use in node.outputs[0].uses():
            kind = "bias" if use.idx == 2 else "weight"
            if use.node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
                kind = "constant"
            found[f"{_result_name(use.node)}#{use.idx}"] = (kind, scale)
    return found


def _result_name(node: ir.Node) -> str:
    return str(node.outputs[0].name).removesuffix("_QuantizeLinear_Input")


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table in Markdown."""
    text = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(header), *text]) for column in range(len(header))]
    print("| " + " | ".join(cell.ljust(width) for cell, width in zip(header, widths, strict=True)) + " |")
    print("| " + " | ".join("-" * width for width in widths) + " |")
    for line in text:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")
