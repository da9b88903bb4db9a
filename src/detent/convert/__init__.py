"""Convert a model: read it, run the steps, check the result, write it; and say what changed.

`STEPS` is the table of conversions. A step is a class with its settings and its documentation; to add one, write the
class in the module of its kind and give it a name here.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from detent.convert import code_types, float_types, inputs_and_weights, quantizing_nodes
from detent.convert.step import ConversionNotes, ConversionStep
from detent.errors import ModelError, UsageError
from detent.graph.guard import try_message
from detent.graph.load import ModelLike, checker_complaint, name_of, read, stored_bytes, unzipped
from detent.graph.save import PROTOBUF_LIMIT, check_output, complete_proto, save, serialize, tensor_bytes
from detent.graph.session import Runner, check_operators
from detent.prepare.base import Change
from detent.qdq.families import EXTENDED, VITIS
from detent.qdq.functions import add_functions
from detent.settings import parse_choice

STEPS: Mapping[str, ConversionStep] = {
    "float": quantizing_nodes.ToFloat(),
    "qdq": quantizing_nodes.ToQdq(),
    "extended-qdq": quantizing_nodes.ToFamily(EXTENDED),
    "vitis-qdq": quantizing_nodes.ToFamily(VITIS),
    "fix-neuron": quantizing_nodes.ToFixNeuron(),
    "qoperator": quantizing_nodes.ToIntegerOperators(),
    "int8": code_types.ToSignedness("int8"),
    "uint8": code_types.ToSignedness("uint8", weights=False),
    "int16": code_types.ToSignedness("int16"),
    "uint16": code_types.ToSignedness("uint16", weights=False),
    "int16-bias": code_types.Int16Bias(),
    "int32-bias": code_types.Int32Bias(),
    "eight-bits": code_types.EightBits(),
    "without-qdq-between": quantizing_nodes.WithoutQdqBetween(),
    "without-output-qdq": quantizing_nodes.WithoutOutputQdq(),
    "float16": float_types.ToFloat16(),
    "float32": float_types.ToFloat32(),
    "bfloat16": float_types.ToBfloat16(),
    "bfloat16-clip": float_types.Bfloat16Clip(),
    "opset": quantizing_nodes.OpsetVersion(),
    "nhwc": inputs_and_weights.ChannelsLast(),
    "fixed-shapes": inputs_and_weights.FixedShapes(),
    "unique-initializers": inputs_and_weights.UniqueInitializers(),
    "inputs-without-initializers": inputs_and_weights.InputsWithoutInitializers(),
    "finite-weights": inputs_and_weights.FiniteWeights(),
}
ALIASES: Mapping[str, str] = {"fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}
# qdq and qoperator do not exclude each other: operators of other tools become standard Q/DQ, and then work on codes.
EXCLUSIVE = (
    ("float", "extended-qdq", "vitis-qdq", "fix-neuron", "qoperator"),
    ("qdq", "extended-qdq", "vitis-qdq", "fix-neuron"),
    ("qdq", "float"),
    ("float16", "float32"),
    ("float16", "bfloat16"),
    ("int8", "uint8"),
    ("int16", "uint16"),
)

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
        """Return plain values for JSON."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def convert(
    model: ModelLike, output: str | Path, steps: str | Sequence[str], *, must_change: bool = True
) -> Conversion:
    """Convert `model` with one or more steps, in their order, and write it to `output`.

        convert("model.onnx", "model_fp16.onnx", ["fixed-shapes:batch=1", "float16"])

    A step that finds nothing to convert is an error, unless `must_change` is False. After an error nothing is written.

    Raises:
        UsageError: Steps that do not exist, or that exclude each other.
        ModelError: A model that has nothing to convert, or a result that onnxruntime cannot load.
        OutputError: The result cannot be written.
    """
    texts = (steps,) if isinstance(steps, str) else tuple(steps)
    parsed = parse_steps(texts)
    target = Path(output)
    check_output(target, model)
    graph_model = read(_copied(model), keep_defaults=True)
    before = _summary(graph_model, stored_bytes(model))
    reading = ConversionNotes(READING)
    for name, what in unzipped(graph_model):
        reading.changed(next(value for value in graph_model.graph.outputs if value.name == name), what)
    if not any(isinstance(step, inputs_and_weights.InputsWithoutInitializers) for _, step in parsed):
        inputs_and_weights.free_initializers(graph_model, reading)  # so that steps see weights as constants
    changes, declined = reading.changes, reading.declined
    for name, step in parsed:
        graph_model, notes = _apply(graph_model, name, step, name_of(model) if must_change else None)
        changes, declined = changes + notes.changes, declined + notes.declined
    add_functions(graph_model)  # so that operators of other tools run, whatever wrote the model
    _verify(graph_model, retyped=any(step.retypes for _, step in parsed))
    size = save(graph_model, target)
    return Conversion(name_of(model), str(target), texts, before, _summary(graph_model, size), changes, declined)


def _copied(model: ModelLike) -> ModelLike:
    """Return a copy of a model in memory, since steps rename tensors; a path as it is."""
    if not isinstance(model, onnx.ModelProto):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _apply(model: ir.Model, name: str, step: ConversionStep, where: str | None) -> tuple[ir.Model, ConversionNotes]:
    """Apply a step. If `where`, the name of the model, is given, a step that changes nothing is an error."""
    notes = ConversionNotes(name)
    try:
        model = step.apply(model, notes)
    except UsageError as error:
        raise UsageError(f"Step '{name}': {error}") from error
    if where is not None and not notes.changes:
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


def _verify(model: ir.Model, *, retyped: bool) -> None:
    """Raise ModelError unless onnx's checker passes the model and onnxruntime loads it.

    `retyped`: it computes in another type now. Some float16 models crash onnxruntime, so these are first loaded in a
    process of their own.
    """
    model.graph.sort()
    if not set(model.graph.initializers.values()) <= set(model.graph.inputs):
        model.ir_version = max(model.ir_version, 4)  # before, an initializer had to be an input as well
    complaint = checker_complaint(model)
    if complaint is not None:
        raise ModelError(f"The converted model does not pass onnx's checker, so it is not written: {complaint}")
    if retyped and tensor_bytes(model) <= PROTOBUF_LIMIT:
        try_message(serialize(complete_proto(model)), "The converted model")
    try:
        check_operators(model)
        Runner(model)
    except ModelError as error:
        raise ModelError(f"{error} That is the converted model; it is not written.") from error


def parse_step(text: str) -> tuple[str, ConversionStep]:
    """Parse a step, with settings after a colon: `opset:version=21`. Return its name and the step."""
    given, colon, settings = text.partition(":")
    name = ALIASES.get(given.lower(), given.lower())
    step = parse_choice(f"{name}{colon}{settings}", STEPS, "conversion step", unsettable=("dtype", "family"))
    return name, step


def parse_steps(texts: Iterable[str]) -> list[tuple[str, ConversionStep]]:
    """Parse several steps; UsageError if there is none, one comes twice, or one undoes another."""
    steps = [parse_step(text) for text in texts]
    names = [name for name, _ in steps]
    if not steps:
        raise UsageError(f"Give at least one step to convert with. Choose from {', '.join(STEPS)}.")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"The step '{name}' is given {names.count(name)} times. Give it once.")
    for group in EXCLUSIVE:
        both = [name for name in names if name in group]
        if len(both) > 1:
            raise UsageError(f"The steps '{both[0]}' and '{both[1]}' exclude each other. Choose one of the two.")
    if "bfloat16" in names and "float32" in names[names.index("bfloat16") :]:
        raise UsageError("The step 'float32' undoes 'bfloat16'. Give it first, for a model with float16 in it.")
    return steps
