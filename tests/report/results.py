"""A result of each kind, small, with names that would be a script if anything took them for markup."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import detent
from detent.comparison import compare_models
from detent.comparison.folders import difference
from detent.results.compared import FolderComparison
from detent.results.evaluated import CHANGED, POINTS
from detent.results.searched import StepOutcome, Tuning

SCRIPT = "<script>window.hurt = true</script>"
IMAGE = '"><img src=x onerror="window.hurt = true">'
CLOSING = "</script></template></style><svg onload='window.hurt = true'>"
HOSTILE = (SCRIPT, IMAGE, CLOSING)


@functools.cache
def hostile_model() -> onnx.ModelProto:
    """Convolutions whose nodes, tensors and weights have hostile names, and two nodes that stay float."""
    rng = np.random.default_rng(5)
    nodes, last = [], "x"
    weights = []
    for name in (*HOSTILE, *(f"Layer{number}/conv" for number in range(14))):
        weight = (rng.standard_normal((4, 4, 3, 3)) * np.exp(rng.standard_normal((4, 1, 1, 1)))).astype(np.float32) / 6
        weights.append(numpy_helper.from_array(weight, f"{name} weight"))
        nodes.append(helper.make_node("Conv", [last, f"{name} weight"], [f"{name} c"], name=name, pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"{name} c"], [f"{name} out"], name=f"{name} relu"))
        last = f"{name} out"
    nodes.append(helper.make_node("Erf", [last], ["y" + SCRIPT], name=f"float {IMAGE}"))
    shape = [1, 4, 6, 6]
    graph = helper.make_graph(
        nodes,
        SCRIPT,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y" + SCRIPT, TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@functools.cache
def rows() -> np.ndarray:
    return np.random.default_rng(6).standard_normal((12, 4, 6, 6)).astype(np.float32)


@functools.cache
def quantization() -> detent.Report:
    return detent.quantize(hostile_model(), None, rows(), exclude="float *")


@functools.cache
def sensitivity() -> detent.SensitivityReport:
    return detent.sensitivity(hostile_model(), rows(), max_error=1e-3)


@functools.cache
def comparison():
    return compare_models(hostile_model(), quantization().model, rows()[:3])


def classifier(weights) -> onnx.ModelProto:
    """Seven class scores: the input times a number for each class."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["scores"])]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 7]) for name in ("x", "scores")]
    weight = numpy_helper.from_array(np.asarray(weights, np.float32), "w")
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def evaluation(labels=True, lost=1):
    """Of 20 samples `lost` are answered wrong by the second model."""
    scores = np.eye(7, dtype=np.float32)[np.arange(20) % 6] + np.eye(7, dtype=np.float32)[6] * 0.5
    scores[:lost, 6] = 0.9
    models = [classifier(np.ones(7)), classifier([1, 1, 1, 1, 1, 1, 1.5])]
    return detent.evaluate(models, scores, labels=(np.arange(20) % 6).tolist() if labels else None)


def named_evaluation():
    """The same with names of files, as long as they are in practice."""
    found = evaluation(lost=9)
    names = ("mobilenetv2.onnx", "mobilenetv2_int8_equalized.onnx")
    models = [dataclasses.replace(each, model=f"models/{name}") for each, name in zip(found.models, names, strict=True)]
    return dataclasses.replace(found, models=[*models, models[1]])


def folders() -> FolderComparison:
    files = [difference(name, [1.0, 2.0], [1.0, 2.0 + index]) for index, name in enumerate(HOSTILE)]
    return FolderComparison(files, "answers/float", "answers/int8")


def tuning(met: bool = True) -> Tuning:
    unit = POINTS.format(top=1)
    rungs = [
        StepOutcome("plain", "every number is rounded", 12.0, unit, (8.0, 16.0), 0.2, 3.0, 3_600_000, True),
        StepOutcome(SCRIPT, IMAGE, 0.5, unit, (-0.5, 1.5), 0.01, 9.0, 3_600_000, True),
        StepOutcome("no data", CLOSING, 2.0, CHANGED, None, None, 0.0, None, resumed=True),
    ]
    recipe = detent.find_recipe("XINT8").replace(description=CLOSING)
    limit = 1.0 if met else 0.1
    stopped = "the target is met"
    return Tuning(
        IMAGE, None, recipe, SCRIPT, rungs, limit, met, stopped, CLOSING, SCRIPT, "84.1 % top-1", 1000, 12.0, 14_000_000
    )


RESULTS = {
    "quantize": quantization,
    "sensitivity": sensitivity,
    "compare": comparison,
    "folders": folders,
    "evaluate": evaluation,
    "evaluate three": named_evaluation,
    "outputs": functools.partial(evaluation, labels=False),
    "tune": tuning,
}
