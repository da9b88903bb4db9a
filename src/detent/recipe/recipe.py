"""A recipe: everything that decides how a model is quantized, as one comparable, printable value."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from detent.equalizations import GlobalEqualization, equalization_of
from detent.equalizations.channel_problem import Equalizer
from detent.errors import UsageError, nearest
from detent.methods import Method, MinMax, MinMSE, NonOverflow
from detent.numerics.codec import DeviceRounding, check_device_rounding
from detent.numerics.formats import IntegerFormat, has_power_of_two_scale
from detent.numerics.interface import NumberFormat
from detent.refinements import BiasCorrection, Refinement

POWER_OF_TWO_INT8 = IntegerFormat("int8", scale="power_of_two")
POWER_OF_TWO_UINT8 = IntegerFormat("uint8", scale="power_of_two")

EQUALIZING_SAMPLES = 32  # enough to see what each channel holds

WIDENING_SAMPLES = 4  # errors of single tensors are much the same on any sample; these tell which are large

MOST_DECIBELS = 100.0  # 16 bits reach no more

# How codes are written into the file: see docs/formats.md.
OutputFormat = Literal["qdq", "qoperator", "extended-qdq", "vitis-qdq", "fix-neuron", "cast", "bfloat16"]

BFLOAT16_OPSET = 22  # from here on the standard operators have bfloat16 throughout

FUSED_ACTIVATIONS = ("Relu", "LeakyRelu", "PRelu", "Clip")
FUSABLE_ACTIVATIONS = (*FUSED_ACTIVATIONS, "Gelu")


@dataclass(frozen=True)
class Override:
    """Other numbers for a part of the model: mixed precision by hand.

    The part is every node that matches one of the `nodes` patterns, is of one of the `op_types`, or lies between the
    first and the second group of nodes in `between`. They take the formats that are given here, or stay float with
    `leave_float`. Where two parts meet, the value between them is converted. `tensors` are single values by name (or
    pattern), which may have a format, and a `range` that replaces the observed one. Of several overrides that fit,
    the last one that says something wins; what one leaves float stays so.
    """

    nodes: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    between: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    tensors: tuple[str, ...] = ()
    leave_float: bool = False
    activations: NumberFormat | None = None
    weights: NumberFormat | None = None
    biases: NumberFormat | None = None
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not (self.nodes or self.op_types or any(self.between) or self.tensors):
            raise UsageError("An override names no part of the model. Give nodes, op_types, between or tensors.")
        says = (self.activations, self.weights, self.biases, self.range)
        if self.leave_float == any(each is not None for each in says):
            raise UsageError(f"The override of {self.part} must give formats, or say leave_float, and not both.")
        if self.range is not None and not (self.tensors and -math.inf < self.range[0] < self.range[1] < math.inf):
            raise UsageError(f"The override of {self.part}: a range is two rising numbers, for `tensors`.")
        if self.leave_float and self.tensors:
            raise UsageError(f"The override of {self.part}: nodes are left float, tensors are not. Name the nodes.")

    @property
    def part(self) -> str:
        """What it is about, for messages."""
        starts, ends = self.between
        inside = (
            [f"{', '.join(starts) or 'the inputs'} to {', '.join(ends) or 'the outputs'}"] if any(self.between) else []
        )
        return "; ".join((*self.nodes, *self.op_types, *inside, *self.tensors))


@dataclass(frozen=True)
class Recipe:
    """How a model is quantized: the format of each role, the calibration method and the device it is for.

    A role without a format stays float. `method` is that of the activations. Weights take it too where scales are
    powers of two, else the whole range (their elements are all known), unless there is a `weight_method`. The model's
    outputs take the whole range too, unless `clip_outputs`: the largest scores are those that decide, and must stay
    apart. Biases of 32 bits take the product of their layer's input and weight scales; narrower ones have a scale of
    their own. With `dynamic`, activations get their scales while the model runs, and nothing is calibrated.

    `equalize` rescales channels before anything is quantized, unless it is None; `smooth` moves outliers of activations
    into the weights behind them (SmoothQuant, the number is its alpha); the `refinement` chooses weights and biases
    afterwards. With `search_ranges` the scales of activations are those that the network's output asks for.

    `widen` is for networks with normalization layers, in which a few channels are many times as large as the others: it
    is the SQNR in dB at the outputs that 8-bit activations together must keep. Those that cost most get 16 bits until
    they do. Activations that have more than 8 bits already have nothing to gain.

    `rounding` is how the device rounds activations: "half-even", as the file says, or "dpu", ties upwards. All that is
    chosen by what it does is then judged with that rounding; the file itself has no field for it.

    `format` is how codes are written, `opset` the least operator set of the result. `weight_pairs` keeps weights in
    float behind a pair of nodes, `dedicated_pairs` gives every reader of an activation a pair of its own.

    `operators` are the types to quantize (none: all that Detent knows how to), `more_operators` are added to these, and
    `all_operators` adds every other one with float data. Products of two activations can be left out, and constants
    that are added to activations or multiplied with them can have the format of these, which is finer in some recipes.
    `fuse` are the activation functions that a layer computes before it rounds. `without` names preparations, rewrites
    and rules of the target that are left out, and `also` those that are done only on request.
    """

    name: str
    description: str
    activations: NumberFormat | None = POWER_OF_TWO_UINT8
    weights: NumberFormat | None = POWER_OF_TWO_INT8
    biases: NumberFormat | None = POWER_OF_TWO_INT8
    method: Method = MinMSE()  # noqa: RUF009  (frozen: one instance serves all)
    weight_method: Method | None = None
    clip_outputs: bool = False
    dynamic: bool = False
    target: str = "npu-cnn"
    equalize: Equalizer | None = GlobalEqualization()  # noqa: RUF009
    smooth: float | None = None
    widen: float | None = None
    search_ranges: bool = False
    refinement: Refinement | None = BiasCorrection()  # noqa: RUF009
    rounding: DeviceRounding = "half-even"
    format: OutputFormat = "qdq"
    opset: int | None = None
    weight_pairs: bool = False
    dedicated_pairs: bool = False
    operators: tuple[str, ...] = ()
    more_operators: tuple[str, ...] = ()
    all_operators: bool = False
    products_of_activations: bool = True
    constants_as_activations: bool = False
    fuse: tuple[str, ...] = FUSED_ACTIVATIONS
    without: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    overrides: tuple[Override, ...] = ()

    def __post_init__(self) -> None:
        if self.format not in get_args(OutputFormat):
            known = get_args(OutputFormat)
            raise UsageError(f"format is '{self.format}'.{nearest(self.format, known)} Choose from {', '.join(known)}.")
        check_device_rounding(self.rounding)
        for op_type in self.fuse:
            if op_type not in FUSABLE_ACTIVATIONS:
                raise UsageError(f"fuse has '{op_type}'. Choose from {', '.join(FUSABLE_ACTIVATIONS)}.")
        if self.smooth is not None and not 0.0 <= self.smooth <= 1.0:
            raise UsageError(f"smooth is {self.smooth}: the alpha of SmoothQuant is between 0 and 1, such as 0.5.")
        if self.widen is not None and not 0.0 < self.widen <= MOST_DECIBELS:
            raise UsageError(f"widen is {self.widen}: an SQNR in dB above 0 and up to {MOST_DECIBELS:g}, such as 20.")

    @property
    def formats(self) -> dict[str, NumberFormat | None]:
        """The format of each role."""
        return {"activations": self.activations, "weights": self.weights, "biases": self.biases}

    @property
    def learns(self) -> bool:
        """Whether anything is chosen by what it does to the answers of the model."""
        return self.refinement is not None or self.search_ranges

    @property
    def emulated(self) -> DeviceRounding | None:
        """The rounding to emulate where a result is judged; None where onnxruntime computes what the device does."""
        return None if self.rounding == "half-even" else self.rounding

    @property
    def least_opset(self) -> int:
        """The operator set that the model is raised to: what was asked for, or what the output format needs."""
        return max(self.opset or 0, BFLOAT16_OPSET if self.format == "bfloat16" else 0)

    @property
    def method_of_weights(self) -> Method:
        """The method that weights, and biases with a scale of their own, are quantized with."""
        if self.weight_method is not None:
            return self.weight_method
        return self.method if has_power_of_two_scale(self.weights) else MinMax()

    @property
    def method_of_outputs(self) -> Method:
        """The method that the model's outputs are quantized with."""
        if self.clip_outputs:
            return self.method
        return NonOverflow() if has_power_of_two_scale(self.activations) else MinMax()

    def replace(self, **changes: Any) -> Recipe:
        """The same recipe with some fields changed. An unknown field is an error that names the nearest known one.

        `equalize` may be True or False, too.
        """
        known = [field.name for field in dataclasses.fields(self)]
        for key in changes:
            if key not in known:
                raise UsageError(f"A recipe has no field '{key}'.{nearest(key, known)} Fields: {', '.join(known)}.")
        if isinstance(switch := changes.get("equalize"), bool):
            changes["equalize"] = equalization_of(switch)
        return dataclasses.replace(self, **changes)
