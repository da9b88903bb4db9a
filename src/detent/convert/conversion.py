"""Convert a model: read it, run the steps, check the result, write it; and say what changed."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from detent.convert.inputs_and_weights import InputsWithoutInitializers, free_initializers
from detent.convert.step import ConversionNotes, ConversionStep
from detent.convert.steps import parse_steps
from detent.errors import ModelError, UsageError
from detent.graph.light import light_proto
from detent.graph.load import ModelLike, name_of, read, stored_bytes
from detent.graph.save import check_output, save
from detent.graph.session import Runner
from detent.prepare.base import Change
from detent.qdq.functions import add_functions

READING = "reading"


@dataclass(frozen=True)
class ModelSummary:
    """A model in figures."""

    operators: dict[str, int]
    opset: dict[str, int]
    constants: dict[str, int]
    bytes: int


@dataclass(frozen=True)
class Conversion:
    """What a conversion did. `changes` and `declined` name the step in `by`."""

    source: str
    output: str
    steps: tuple[str, ...]
    before: ModelSummary
    after: ModelSummary
    changes: list[Change]
    declined: list[Change]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """The whole of it as JSON."""
        return json.dumps(self.to_dict(), indent=2)


def convert(model: ModelLike, output: str | Path, steps: str | Sequence[str]) -> Conversion:
    """Convert `model` with one or more steps, in their order, and write it to `output`.

        convert("model.onnx", "model_fp16.onnx", ["fixed-shapes:batch=1", "float16"])

    Raises:
        DetentError: UsageError for steps that mean nothing, ModelError for a model that has nothing to convert or a
            result that onnxruntime cannot load, OutputError; nothing is written then.
    """
    texts = (steps,) if isinstance(steps, str) else tuple(steps)
    parsed = parse_steps(texts)
    target = Path(output)
    check_output(target, model)
    graph_model = read(_own(model), keep_defaults=True)
    before = _summary(graph_model, stored_bytes(model))
    reading = ConversionNotes(READING)
    if not any(isinstance(step, InputsWithoutInitializers) for _, step in parsed):
        free_initializers(graph_model, reading)  # so that steps can take weights for constants
    changes, declined = reading.changes, reading.declined
    for name, step in parsed:
        graph_model, notes = _apply(graph_model, name, step, name_of(model))
        changes, declined = changes + notes.changes, declined + notes.declined
    add_functions(graph_model)  # so that operators of other tools run, whatever wrote the model
    _verify(graph_model)
    size = save(graph_model, target)
    return Conversion(name_of(model), str(target), texts, before, _summary(graph_model, size), changes, declined)


def _own(model: ModelLike) -> ModelLike:
    """The model, or a copy of a message: steps rename tensors, which would show in the caller's."""
    if not isinstance(model, onnx.ModelProto):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _apply(model: ir.Model, name: str, step: ConversionStep, where: str) -> tuple[ir.Model, ConversionNotes]:
    notes = ConversionNotes(name)
    try:
        model = step.apply(model, notes)
    except UsageError as error:
        raise UsageError(f"Step '{name}': {error}") from error
    if not notes.changes:
        reasons = "; ".join(f"'{note.node}': {note.what}" for note in notes.declined[:3])
        raise ModelError(
            f"Step '{name}' leaves {where} as it is: {step.nothing}" + (f" Looked at: {reasons}." if reasons else "")
        )
    return model, notes


def _summary(model: ir.Model, size: int) -> ModelSummary:
    operators = Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in model.graph)
    constants: Counter[str] = Counter()
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                constants[str(value.const_value.dtype)] += value.const_value.nbytes
    opset = {domain or "ai.onnx": version for domain, version in model.opset_imports.items()}
    return ModelSummary(dict(operators.most_common()), opset, dict(constants.most_common()), size)


def _verify(model: ir.Model) -> None:
    """Raise ModelError unless onnx's checker passes the model and onnxruntime loads it."""
    model.graph.sort()
    try:
        onnx.checker.check_model(light_proto(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(f"The converted model does not pass onnx's checker, so it is not written: {error}") from error
    try:
        Runner(model)
    except ModelError as error:
        raise ModelError(f"{error} That is the converted model; it is not written.") from error
