"""A device as one frozen value, which quantizing and checking read, and the generations of Ryzen AI devices.

Confidence of a fact, the strongest first: measured (on a device, by a third party), log (of the vendor's own runs),
documented, staff (said in a thread), user (reported, not checked), inferred (here, from the others).

| who reads it | what it reads                                                                              |
| ------------ | ------------------------------------------------------------------------------------------ |
| quantize     | `types` and `shifts` (which recipes fit), the three kinds of rewrites, `constraints`       |
| check        | `operators`, `likely`, `refused`, `types`, `shifts`, `constraints`, `recipe`               |

The values themselves are in `catalog`. A rule that only some devices have is a field here, never a test of a name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import onnx
import onnx_ir as ir

from detent.devices.constraints import ALIGN_POOL, UNCONSTRAINED, Constraints, Violation
from detent.devices.rewrites import Substitution
from detent.errors import UsageError, check_known
from detent.graph.message import all_graphs
from detent.numerics.codec import DeviceRounding
from detent.numerics.formats import is_integer
from detent.numerics.interface import NumberFormat
from detent.plan.operators import DEVICE_CLIPS
from detent.plan.plan import Plan
from detent.prepare import Pass
from detent.prepare.base import OperatorPass
from detent.recipe import Recipe
from detent.recipe.recipe import DEFAULT

ROUNDING_KEY = "detent.rounding"  # where a file says which rounding it was quantized for, if not half-even

Confidence = Literal["measured", "log", "documented", "staff", "user", "inferred"]


@dataclass(frozen=True)
class Fact:
    """One thing that is known about a device."""

    about: str
    what: str
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class CostModel:
    """Milliseconds of one inference: base + per_gmac * GMAC + per_node * nodes in the EP's report + per_cut * cuts.

    `error` is the largest relative error on the networks that it was fitted to, or an estimate of it without a fit.
    """

    base: float
    per_gmac: float
    per_node: float
    per_cut: float
    error: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A generation of devices.

    `flows` are its ways of running a model, by their names in `catalog`; the first is the default.
    `left` are operators that run on the CPU, with the reason; `left_shifted` are those that do so only in models with
    power-of-two scales. `taken` are operators that run on the device although the published list lacks them.
    `left_behind_depthwise` names, for each recipe, the activations with which a depthwise Conv runs on the CPU;
    `logged_with` is the software with which this and `miscompiles_depthwise` were seen. `whole`: one node that is not
    taken may keep all others off the device. `rounding` says how its shifts round. `target` is the compiler, the value
    of the session option of that name.
    """

    name: str
    chips: str
    target: str
    rounding: DeviceRounding
    flows: tuple[str, ...]
    facts: tuple[Fact, ...]
    whole: bool = False
    left: Mapping[str, str]
    left_shifted: Mapping[str, str]
    taken: Mapping[str, str] = field(default_factory=dict)
    left_behind_depthwise: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    miscompiles_depthwise: bool = False
    logged_with: str = ""
    cost: CostModel
    needs_overlay: bool = False
    last_software: str = "1.8"


PROBES = "ryzen-ai-xdna1-quantization, docs/BENCHMARKS.md"
LOGS = "RyzenAI-SW, CNN-examples/quark_quantization/models/*.log"
PAGES = "Ryzen AI documentation"
HALO_PROBES = "onnxsim, pull requests 1401, 1404 and 1423"
THREADS = "RyzenAI-SW issues"

_NORM = "norms were seen on the CPU on every generation"
# Operators that the published lists have, and that devices were seen to leave to the CPU.
LEFT_BY_ALL = {
    "LayerNormalization": _NORM,
    "InstanceNormalization": _NORM,
    "GroupNormalization": _NORM,
    "Softmax": "a Softmax was seen on the CPU on every generation",
    "Einsum": "an Einsum was seen on the CPU on every generation",
}

_PHOENIX_COST = CostModel(
    1.43, 0.57, 0.0031, 1.8, 0.18, "fit to ten networks measured on Phoenix (ResNet, YOLOv8, MobileNetV2, ...)"
)
_STRIX_COST = CostModel(
    1.43, 0.57, 0.0031, 1.8, 0.5, "Phoenix's fit; of Strix only ResNet50 is published, 5.24 ms as on Phoenix"
)

_PHOENIX_FACTS = (
    Fact("formats", "XINT8 only; A8W8 and A16W8 run on the CPU with every node", PROBES, "measured"),
    Fact("compiler", "X1, with the overlay 4x4.xclbin", PAGES, "documented"),
    Fact("software", "1.7.1 is the last that brings an overlay; 1.8 has none", f"{THREADS} 400, 396, 389", "measured"),
    Fact("rounding", "half up at the output of a layer, the bias unrounded in the sum", PROBES, "measured"),
    Fact("rounding", "needs xlnx_enable_py3_round 0 since 1.7", f"{THREADS} 373, 376, 350", "user"),
    Fact("scales", "one power of two for each tensor; others are placed and wrong", PROBES, "measured"),
    Fact("scales", "a weight with several scales rejects the whole graph", PROBES, "measured"),
    Fact(
        "bias",
        "int8 with a scale of its own; int32 in the unit of products is wrong",
        PROBES,
        "measured",
    ),
    Fact("shifts", "0 <= weight + input - output position <= 16, or the graph runs on the CPU", PROBES, "measured"),
    Fact("Q/DQ", "those of com.microsoft reject the whole graph", PROBES, "measured"),
    Fact("batch", "1; of more, only the first sample is computed, silently", f"{THREADS} 401", "measured"),
    Fact("rank", "tensors of rank 5 run on the CPU", PROBES, "measured"),
    Fact("float", "a float tail (YOLOv8's decoding) rejects the whole graph: 0 of 965 nodes", PROBES, "measured"),
    Fact("operators", "Sigmoid becomes HardSigmoid, which is taken", PROBES, "measured"),
    Fact("operators", "ConvTranspose is taken: YOLOv6n, which has two, in one piece", PROBES, "inferred"),
    Fact("operators", "a linear Resize is taken by a factor of 2, not by 4 or 8", PROBES, "inferred"),
    Fact("operators", "attention, mid-graph Reshape and InstanceNorm rejected whole graphs", PROBES, "measured"),
    Fact("operators", "PRelu runs on the CPU, and so does a linear Resize with align_corners", PROBES, "measured"),
    Fact("opset", "17 with IR version 8 is what was measured; 17 is advised", f"{PROBES}; {PAGES}", "documented"),
    Fact("miscompile", "a large activation alive across hundreds of nodes is wrong (BiSeNetV2)", PROBES, "measured"),
    Fact("cost", "1.43 ms + 0.57 per GMAC + 0.0031 per node; 1.4 to 2.2 for each further subgraph", PROBES, "inferred"),
)
_STRIX_FACTS = (
    Fact("formats", "XINT8, A8W8 and A16W8; bfloat16 from a float32 file", LOGS, "log"),
    Fact("compiler", "X2 since 1.6 (X1 can be chosen); VAIML for bfloat16", PAGES, "documented"),
    Fact("operators", "X2 does not take XINT8's HardSigmoid: EfficientNet-B0 falls into 66 pieces", LOGS, "inferred"),
    Fact(
        "operators", "a depthwise Conv with Relu or Clip runs on the CPU in XINT8, in A8W8 with Clip", LOGS, "inferred"
    ),
    Fact("operators", "XINT8's ReduceMean runs on the CPU (ShuffleNetV2)", LOGS, "inferred"),
    Fact("operators", "Reshape and Transpose in mid-graph run on the CPU (ShuffleNetV2)", LOGS, "log"),
    Fact("operators", "norms, Softmax and data movement alone run on the CPU", HALO_PROBES, "measured"),
    Fact("operators", "attention and Gather of BERT run on the CPU", "winml-cli issue 430", "measured"),
    Fact("rounding", "half to even: a quantized Conv answered as the CPU, to the bit", HALO_PROBES, "inferred"),
    Fact("miscompile", "depthwise networks answered at random with the X2 of 1.6; not tested since", LOGS, "log"),
    Fact("miscompile", "bfloat16 with several outputs, or with trained PRelu", f"{THREADS} 369, 390", "measured"),
    Fact("crash", "a Conv without its five attributes aborts the process", HALO_PROBES, "measured"),
    Fact("crash", "LSTM, and If on data-dependent shapes, end the process", HALO_PROBES, "measured"),
    Fact("batch", "1 is documented; larger ones give an error", f"{THREADS} 309", "user"),
    Fact("opset", "17 is advised", PAGES, "documented"),
    Fact("cost", "ResNet50 in XINT8 takes 5.24 ms; no fit is known", LOGS, "log"),
)
_LEFT_BY_PHOENIX = {
    **LEFT_BY_ALL,
    "PRelu": "all PRelu of a network ran on the CPU, with the layers before them",
}
_LEFT_BY_X2 = {
    "HardSigmoid": "Strix's compiler does not take the HardSigmoid of XINT8 models",
    "ReduceMean": "Strix's compiler does not take the ReduceMean of XINT8 models",
}


def _phoenix(name: str, chips: str) -> Generation:
    return Generation(
        name=name,
        chips=chips,
        target="X1",
        rounding="dpu",
        flows=("npu-xint8",),
        facts=_PHOENIX_FACTS,
        whole=True,
        left=_LEFT_BY_PHOENIX,
        left_shifted={},
        taken={"ConvTranspose": "YOLOv6n, which has two, ran on Phoenix in one piece"},
        cost=_PHOENIX_COST,
        needs_overlay=True,
        last_software="1.7",
    )


def _strix(name: str, chips: str) -> Generation:
    return Generation(
        name=name,
        chips=chips,
        target="X2",
        rounding="half-even",
        flows=("npu-xint8", "npu-a8w8", "npu-a16w8", "npu-bf16"),
        facts=_STRIX_FACTS,
        left=LEFT_BY_ALL,
        left_shifted=_LEFT_BY_X2,
        left_behind_depthwise={"XINT8": ("Relu", "Clip"), "A8W8": ("Clip",)},
        miscompiles_depthwise=True,
        logged_with="1.6",
        cost=_STRIX_COST,
    )


GENERATIONS: Mapping[str, Generation] = {
    each.name: each
    for each in (
        _phoenix("phx", "Phoenix: Ryzen 7040, 8700G; XDNA1"),
        _phoenix("hpt", "Hawk Point: Ryzen 8040; XDNA1, taken to be as Phoenix"),
        _strix("stx", "Strix Point: Ryzen AI 300; XDNA2"),
        _strix("krk", "Krackan Point: Ryzen AI 300; XDNA2, taken to be as Strix"),
        _strix("strix-halo", "Strix Halo: Ryzen AI Max; XDNA2"),
    )
}
SOFTWARE = ("1.6", "1.7", "1.8")  # the versions of Ryzen AI Software whose differences are known

_FUSED_ATTENTION = frozenset(("Attention", "MultiHeadAttention", "GroupQueryAttention"))
_NORMS = ("LayerNormalization", "SkipLayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
_ATTENTION = _FUSED_ATTENTION.union(_NORMS, ("Softmax", "Einsum", "Gelu", "BiasGelu", "FastGelu", "QuickGelu", "Erf"))
_MOVES = frozenset(("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Cast", "Dropout", "Where"))
_SIGMOIDS = frozenset(("Sigmoid", "HardSigmoid", "HardSwish", "Swish"))


def check_software(software: str) -> None:
    """Raise UsageError for a version that is not known."""
    check_known("software version", software, SOFTWARE)


def recipe_for(generation: Generation, proto: onnx.ModelProto) -> tuple[str, str]:
    """Return the recipe for a float model on a generation, and why."""
    name = generation.name
    if generation.flows == ("npu-xint8",):
        return "XINT8", f"it is the only one that {name} takes"
    attention = attention_in(proto)
    if attention:
        return "A16W8", f"the model is a transformer ({', '.join(attention)}), which 8-bit activations harm"
    attending = first_attention(proto)
    if attending:
        return "A8W8", f"the model has attention ('{attending}'), which power-of-two scales harm"
    sigmoids = _SIGMOIDS & {node.op_type for graph in all_graphs(proto) for node in graph.node}
    if sigmoids:
        return "A8W8", f"{name} leaves the HardSigmoid of XINT8 to the CPU, and the model has {min(sigmoids)}"
    if generation.left_behind_depthwise and _has_depthwise(proto.graph):
        return "A8W8", f"{name} was seen to leave depthwise layers of XINT8 to the CPU, and the model has them"
    return "XINT8", f"{name} takes it, and the model has nothing that it would leave to the CPU for it"


def recipe_for_any(proto: onnx.ModelProto) -> tuple[str, str]:
    """Return the recipe for a float model if no device is named, and why; the default recipe has no reason."""
    # Devices that take XINT8 alone reject whole graphs for their attention, so they gain nothing from XINT8 here.
    attention, attending = attention_in(proto), first_attention(proto)
    if attention:
        return "A8W8", f"the model is a transformer ({', '.join(attention)}), which XINT8 harms"
    if attending:
        return "A8W8", f"the model has attention ('{attending}'), which XINT8 harms"
    count = _swishes(proto.graph)
    if count >= MANY_SWISHES:
        why = f"the model has {count} SiLU, whose Sigmoid XINT8 exchanges for HardSigmoid"
        return "A8W8", f"{why}; Phoenix and Hawk Point take XINT8 alone (--device phx)"
    return DEFAULT, ""


MANY_SWISHES = 8  # replacing the Sigmoid of fewer changes little


def _swishes(graph: onnx.GraphProto) -> int:
    """Return how many products there are of a value and its own Sigmoid."""
    sigmoids = {name: [*node.input] for node in graph.node if node.op_type == "Sigmoid" for name in node.output}
    products = (node.input for node in graph.node if node.op_type == "Mul" and len(node.input) == 2)
    return sum(sigmoids.get(one) == [other] or sigmoids.get(other) == [one] for one, other in products)


def first_attention(proto: onnx.ModelProto) -> str:
    """Return a fused attention, or a product of two activations of which one is the result of a Softmax; "" if none."""
    return next((name for graph in all_graphs(proto) if (name := _attention_of(graph))), "")


def _attention_of(graph: onnx.GraphProto | onnx.FunctionProto) -> str:
    constants = {each.name for each in getattr(graph, "initializer", ())}
    constants |= {name for node in graph.node if node.op_type == "Constant" for name in node.output}
    shares, known = set[str](), -1  # results of Softmax, moved or not
    while known < len(shares):  # nodes may be in any order
        known = len(shares)
        for node in graph.node:
            if node.op_type == "Softmax" or (node.op_type in _MOVES and not shares.isdisjoint(node.input)):
                shares.update(node.output)
    for node in graph.node:
        product = node.op_type in ("MatMul", "Einsum") and constants.isdisjoint(node.input)
        if node.op_type in _FUSED_ATTENTION or (product and not shares.isdisjoint(node.input)):
            return str(node.name or next(iter(node.output), ""))
    return ""


def attention_in(proto: onnx.ModelProto) -> list[str]:
    """Return the operators by which a model is known as a transformer; none if it is not one."""
    counts = Counter(node.op_type for graph in all_graphs(proto) for node in graph.node)
    found = sorted(_ATTENTION & counts.keys())
    return found if counts["MatMul"] + counts["Gemm"] > counts["Conv"] and len(found) > 1 else []


def _has_depthwise(graph: onnx.GraphProto) -> bool:
    channels = {each.name: each.dims[1] for each in graph.initializer if len(each.dims) == 4}
    for node in graph.node:
        groups = next((each.i for each in node.attribute if each.name == "group"), 1)
        if node.op_type == "Conv" and groups > 1 and len(node.input) > 1 and channels.get(node.input[1], 1) == 1:
            return True
    return False


@dataclass(frozen=True, kw_only=True)
class Device:
    """One way of running a model on a device, and its requirements on the model.

    `accelerated`: it is more than a CPU. `operators` are the published ones; `likely` are others, with the reason to
    expect them; `refused` are operators that do not work, with the reason; `disputed` are those that only some
    generations take, if none is named. If an accelerated device has no `operators`, nothing is known about placement,
    and no model can be checked for it.

    `types` are the number types that tensors of each role may be stored in; `wide` names the device whose types single
    activations may have instead, at its pace and with its operators. `shifts`: the device rescales by shifting, so a
    tensor has one power-of-two scale and its zero point is the middle code. `recipe` is the preset for the device.

    `preparations` rewrite the float model into operators that the device has. `substitutions` do so after calibration,
    before `constraints` move scales; `corrections` come after that. `generation` is the chip, if one is named, and
    `software` the version that runs it.
    """

    name: str
    description: str
    accelerated: bool = True
    operators: frozenset[str] = frozenset()
    likely: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    disputed: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wide: str = ""
    shifts: bool = False
    recipe: str = ""
    preparations: Sequence[type[Pass]] = ()
    substitutions: Sequence[type[Substitution]] = ()
    corrections: Sequence[type[OperatorPass]] = ()
    constraints: Constraints = UNCONSTRAINED
    generation: Generation | None = None
    software: str = ""

    @property
    def rounding(self) -> DeviceRounding:
        """How the device rounds what it shifts; as the file says where that is not known."""
        return self.generation.rounding if self.generation is not None and self.shifts else "half-even"

    @property
    def clips(self) -> Sequence[tuple[float, float]]:
        """The bounds of Clips that the device computes; a Clip with others becomes a Relu if that is exact."""
        left = {} if self.generation is None else self.generation.left_behind_depthwise
        return () if left.get(self.recipe) == ("Clip",) else DEVICE_CLIPS

    @property
    def all_or_nothing(self) -> bool:
        """Whether one node that is not taken may keep all others off the device."""
        return self.generation is not None and self.generation.whole

    @property
    def integers(self) -> bool:
        """Whether the device computes on codes, so that every tensor needs a scale."""
        return self.accelerated and "bfloat16" not in self.types.get("activations", ())

    @property
    def float_scales(self) -> bool:
        """Whether the device computes on codes whose scales are any numbers."""
        return self.integers and not self.shifts

    @property
    def checkable(self) -> bool:
        """Whether enough is known to say which nodes the device takes."""
        return bool(self.operators) or not self.accelerated

    @property
    def steps(self) -> list[str]:
        """The names of all rewrites that the device asks for."""
        return [step.step() for step in (*self.preparations, *self.substitutions, *self.corrections)]

    def takes_models_of(self, recipe: Recipe) -> bool:
        """Return whether the published operators apply to the models that a recipe makes; never for a CPU."""
        if not self.operators:
            return False
        if self.integers:
            return is_integer(recipe.activations)
        return dtype_of(recipe.activations) in self.types["activations"]

    def check(self, recipe: Recipe) -> None:
        """Raise UsageError if the recipe has scales or types that a shifting device cannot compute with."""
        if not self.shifts:
            return
        for role, part, fmt in role_formats(recipe):
            has = instead_of_shifts(fmt)
            if has is not None:
                raise UsageError(
                    f"The target {recipe.target} computes with one power-of-two scale for each tensor, and the "
                    f"{role}{part} of recipe {recipe.name} {has}. Choose a recipe with such scales, such as "
                    f"{self.recipe}, or another target, such as npu-a8w8."
                )
            if dtype_of(fmt) not in self.types[role]:
                raise UsageError(
                    f"The target {recipe.target} stores {role} as {' or '.join(self.types[role])}, and the {role}{part}"
                    f" of recipe {recipe.name} are {dtype_of(fmt)}. Choose such a type, or another target: npu-a16w8 "
                    "for activations of 16 bits (recipe A16W8), cpu for any."
                )
        if recipe.widen is not None:
            raise UsageError(
                f"The target {recipe.target} stores activations as {' or '.join(self.types['activations'])}, and "
                f"recipe {recipe.name} gives some of them 16 bits (widen): leave that out, or choose another target, "
                "such as npu-a8w8."
            )


@dataclass(frozen=True, eq=False)
class Rules:
    """The constraints of a device on one model, except those that a recipe leaves out."""

    device: Device
    model: ir.Model
    without: Collection[str] = ()

    def __call__(self, plan: Plan) -> Plan:
        """Move the parameters of a plan until the rules hold, as far as they can."""
        return self.device.constraints.constrain(self.model, plan, self.without)

    @property
    def align_pools(self) -> bool:
        """Whether the input and the result of a pool have one position."""
        return ALIGN_POOL in self.device.constraints.names and ALIGN_POOL not in self.without

    def violations(self, plan: Plan) -> list[Violation]:
        """Return the rules that do not hold, node by node."""
        return self.device.constraints.violations(self.model, plan, self.without)

    def permit(self, node: ir.Node, plan: Plan) -> bool:
        """Return whether the parameters around one node satisfy the rules."""
        return self.device.constraints.permits(node, plan, self.without)


def role_formats(recipe: Recipe) -> Iterator[tuple[str, str, NumberFormat | None]]:
    """Yield each role, a phrase for the part of the model (empty: all of it), and the format of the role there."""
    for role, override, fmt in recipe.every_format():
        yield role, "" if override is None else f" for {override.part}", fmt


def dtype_of(fmt: NumberFormat | None) -> str:
    """Return the number type that a format stores, or a word that no device has among its types."""
    if fmt is None:
        return "float"
    return "blocks" if fmt.in_blocks else fmt.dtype


def instead_of_shifts(fmt: NumberFormat | None) -> str | None:
    """Say what a format has instead of one power-of-two scale per tensor; return None if it has just that."""
    if not is_integer(fmt):
        return "stay float" if fmt is None else f"are {fmt.label}"
    if not fmt.power_of_two:
        return "have float scales" if fmt.scale == "float" else f"have {fmt.scale} scales"
    return None if fmt.granularity == "per_tensor" else "have a scale for each channel or group"
