"""The conversion steps by name, and which of them exclude each other. Each class documents its step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from detent.convert.between_families import OpsetVersion, ToFixNeuron, ToGeneration, ToIntegerOperators, ToQdq
from detent.convert.bfloat16 import Bfloat16Clip, ToBfloat16
from detent.convert.code_types import Int16Bias, ToSignedness
from detent.convert.inputs_and_weights import (
    ChannelsLast,
    FiniteWeights,
    FixedShapes,
    InputsWithoutInitializers,
    UniqueInitializers,
)
from detent.convert.precision import ToFloat16, ToFloat32
from detent.convert.step import ConversionStep
from detent.convert.to_float import ToFloat, WithoutQdqBetween
from detent.errors import UsageError
from detent.qdq.families import EXTENDED, VITIS
from detent.settings import parse_choice

STEPS: Mapping[str, ConversionStep] = {
    "float": ToFloat(),
    "qdq": ToQdq(),
    "extended-qdq": ToGeneration(EXTENDED),
    "vitis-qdq": ToGeneration(VITIS),
    "fix-neuron": ToFixNeuron(),
    "qoperator": ToIntegerOperators(),
    "int8": ToSignedness("int8"),
    "uint8": ToSignedness("uint8", weights=False),
    "int16": ToSignedness("int16"),
    "uint16": ToSignedness("uint16", weights=False),
    "int16-bias": Int16Bias(),
    "without-qdq-between": WithoutQdqBetween(),
    "float16": ToFloat16(),
    "float32": ToFloat32(),
    "bfloat16": ToBfloat16(),
    "bfloat16-clip": Bfloat16Clip(),
    "opset": OpsetVersion(),
    "nhwc": ChannelsLast(),
    "fixed-shapes": FixedShapes(),
    "unique-initializers": UniqueInitializers(),
    "inputs-without-initializers": InputsWithoutInitializers(),
    "finite-weights": FiniteWeights(),
}
ALIASES: Mapping[str, str] = {"fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}
# Not qdq and qoperator: what another tool wrote becomes standard first, and operators on codes then.
EXCLUSIVE = (
    ("float", "extended-qdq", "vitis-qdq", "fix-neuron", "qoperator"),
    ("qdq", "extended-qdq", "vitis-qdq", "fix-neuron"),
    ("qdq", "float"),
    ("float16", "float32", "bfloat16"),
    ("int8", "uint8"),
    ("int16", "uint16"),
)


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
    return steps
