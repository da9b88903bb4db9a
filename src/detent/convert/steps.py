"""The steps by name, and which of them exclude each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from detent.convert.bfloat16 import ToBfloat16
from detent.convert.bfloat16_clip import Bfloat16Clip
from detent.convert.finite_weights import FiniteWeights
from detent.convert.generations import ToGeneration
from detent.convert.image_layout import ChannelsLast
from detent.convert.initializers import InputsWithoutInitializers, UniqueInitializers
from detent.convert.int16_bias import Int16Bias
from detent.convert.operators import EXTENDED, VITIS
from detent.convert.opset_version import OpsetVersion
from detent.convert.precision import ToFloat16, ToFloat32
from detent.convert.qdq_between import WithoutQdqBetween
from detent.convert.signedness import ToSignedness
from detent.convert.static_shapes import FixedShapes
from detent.convert.step import Step
from detent.convert.to_fix_neuron import ToFixNeuron
from detent.convert.to_float import ToFloat
from detent.convert.to_qdq import ToQdq
from detent.convert.to_qoperator import ToQOperator
from detent.errors import UsageError
from detent.settings import parse_choice

STEPS: Mapping[str, Step] = {
    "float": ToFloat(),
    "qdq": ToQdq(),
    "extended-qdq": ToGeneration(EXTENDED),
    "vitis-qdq": ToGeneration(VITIS),
    "fix-neuron": ToFixNeuron(),
    "qoperator": ToQOperator(),
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


def parse_step(text: str) -> tuple[str, Step]:
    """A step by name, with settings after a colon: `opset:version=21`. Returns its name and the step."""
    given, colon, settings = text.partition(":")
    name = ALIASES.get(given.lower(), given.lower())
    step = parse_choice(f"{name}{colon}{settings}", STEPS, "conversion step", unsettable=("dtype", "family"))
    return name, step


def parse_steps(texts: Iterable[str]) -> list[tuple[str, Step]]:
    """Several steps; UsageError where there is none, one comes twice, or one undoes another."""
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
