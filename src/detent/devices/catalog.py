"""The devices by name, as data, and the steps that recipes may add or leave out.

To add a device, add a `Device` to `DEVICES` below. Its rules and rewrites are values too: see `constraints` and
`rewrites`.

The operators are those that Ryzen AI publishes for its number types (105 rows, unchanged from 1.5 to 1.8). The list is
broad and not quite consistent: it has no Relu for bfloat16, though every network has one, because there it is computed
with the layer before it. Operators that other evidence speaks for are in `likely`, with that evidence, and count as
taken. Operators that devices were seen to leave to the CPU are in `refused`, which wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from detent.devices import rewrites
from detent.devices.constraints import CONCATS, SHIFTS
from detent.devices.device import GENERATIONS, LEFT_BY_ALL, Device, Generation, dtype_of, instead_of_shifts
from detent.devices.two_gates import SiluToTwoGates
from detent.errors import UsageError, nearest
from detent.plan import concats, pools
from detent.prepare import LEAVABLE, BothBranches, Pass
from detent.prepare.replaced_operators import (
    GatherToSlice,
    HardSwishToHardSigmoid,
    HardSwishToRelu6,
    KeepMeanDims,
    ReduceMeanToPool,
    SplitGlobalPool,
    SplitToSlice,
)
from detent.prepare.rotation import RotateResiduals
from detent.recipe import Recipe

Step = TypeVar("Step", bound=Pass)

_BF16, _A16W8, _A8W8, _XINT8 = "npu-bf16", "npu-a16w8", "npu-a8w8", "npu-xint8"

_PUBLISHED: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (_BF16, _A16W8, _A8W8, _XINT8),
        "Add AveragePool BatchNormalization Concat Constant ConstantOfShape Conv DepthToSpace Div Expand Flatten Gemm "
        "GlobalAveragePool Identity InstanceNormalization MatMul Max MaxPool Min Mul Pad Reciprocal ReduceMax Reshape "
        "Shape Slice Sqrt Squeeze Sub Transpose Unsqueeze",
    ),
    (
        (_A16W8, _A8W8, _XINT8),
        "Clip DequantizeLinear Gelu GlobalMaxPool GroupNormalization LeakyRelu Relu Softmax Upsample",
    ),
    ((_BF16, _A8W8, _XINT8), "ReduceMean ReduceMin ReduceSum Resize"),
    ((_BF16, _A16W8, _XINT8), "Tanh Where"),
    ((_BF16, _A16W8, _A8W8), "ConvTranspose Sigmoid Sin"),
    ((_A8W8, _XINT8), "HardSwish"),
    ((_A16W8, _XINT8), "Elu TopK"),
    ((_A16W8, _A8W8), "Cos QLinearConv QuantizeLinear"),
    (
        (_BF16, _XINT8),
        "Abs And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil CumSum Equal Erf Floor "
        "Greater Less Log Neg Or Pow Round Sign Tile",
    ),
    ((_BF16, _A16W8), "Exp GatherElements Split"),
    (
        (_XINT8,),
        "Celu GreaterOrEqual LayerNormalization LessOrEqual Mish Range STFT Shrink Softsign ThresholdedRelu",
    ),
    ((_A8W8,), "HardSigmoid QLinearMatMul"),
    # Two rows are not ONNX operators: GroupConv is a Conv with groups, "Upsample (deprecated)" an old Resize.
    ((_BF16,), "Einsum Gather GridSample GroupConv LSTM Mod Not ScatterND Size Upsample Xor"),
)

_WITH_THE_LAYER = "it is computed with the layer before it"
_SEEN_WITH_IT = "networks that have it were seen to run on the device whole, though the published list leaves it out"
_OTHER_FLOW = "bfloat16 networks that have it are known to run, though the published list leaves it out"


def _published(name: str) -> frozenset[str]:
    return frozenset(op_type for devices, listed in _PUBLISHED if name in devices for op_type in listed.split())


def _types(activations: str, weights: str, biases: str) -> dict[str, tuple[str, ...]]:
    """Return the number types of each role, given as words in a row; the first is the usual one."""
    given = {"activations": activations, "weights": weights, "biases": biases}
    return {role: tuple(listed.split()) for role, listed in given.items()}


DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        Device(
            name=_XINT8,
            description="Ryzen AI NPU, CNN flow: 8-bit codes, power-of-two scales with shift and alignment rules",
            operators=_published(_XINT8),
            refused=LEFT_BY_ALL,
            likely={"HardSigmoid": "it is the sigmoid that this device has", "PRelu": _WITH_THE_LAYER},
            disputed={
                "HardSigmoid": "Phoenix does, which has no other sigmoid; Strix runs it on the CPU, one cut each",
                "ReduceMean": "Phoenix does; Strix runs it on the CPU, one cut each, and takes a GlobalAveragePool",
            },
            types=_types("uint8 int8", "int8", "int8 int16 int32"),
            shifts=True,
            recipe="XINT8",
            preparations=(SplitToSlice, GatherToSlice, KeepMeanDims, ReduceMeanToPool, SplitGlobalPool),
            substitutions=(rewrites.RoundLeakySlope, rewrites.SigmoidToHardSigmoid),
            corrections=(rewrites.ScaleHardSigmoid, rewrites.ScalePools, rewrites.ScaleReduceMean),
            constraints=SHIFTS,
        ),
        Device(
            name=_A8W8,
            description="Ryzen AI NPU, 8-bit codes with float scales: what a Concat joins has one scale",
            operators=_published(_A8W8),
            refused=LEFT_BY_ALL,
            likely={"PRelu": _WITH_THE_LAYER},
            types=_types("int8 uint8", "int8 uint8", "int32"),
            wide=_A16W8,
            recipe="A8W8",
            preparations=(SplitToSlice, GatherToSlice, KeepMeanDims, ReduceMeanToPool),
            constraints=CONCATS,
        ),
        Device(
            name=_A16W8,
            description="Ryzen AI NPU, 16-bit activations and 8-bit weights with float scales, else as npu-a8w8",
            operators=_published(_A16W8),
            refused=LEFT_BY_ALL,
            likely={"PRelu": _WITH_THE_LAYER, "HardSigmoid": _SEEN_WITH_IT},
            types=_types("int16 uint16 int8 uint8", "int8 uint8 int16", "int32"),
            recipe="A16W8",
            preparations=(SplitToSlice, GatherToSlice, KeepMeanDims, ReduceMeanToPool, HardSwishToHardSigmoid),
            constraints=CONCATS,
        ),
        Device(
            name="npu-vaiml",
            description="Ryzen AI NPU, VAIML flow: power-of-two scales without rules on their positions",
            preparations=(SplitToSlice,),
        ),
        Device(
            name=_BF16,
            description="Ryzen AI NPU, bfloat16 (float32 models are rounded on the device) and blocks: no scales",
            operators=_published(_BF16),
            likely={
                **dict.fromkeys(("Relu", "Clip", "LeakyRelu"), _WITH_THE_LAYER),
                **dict.fromkeys(("Softmax", "LayerNormalization", "GroupNormalization"), _OTHER_FLOW),
            },
            refused={"PRelu": "models of this kind with PRelu are known to be compiled wrongly"},
            types=_types("bfloat16 float32", "bfloat16 float32", "bfloat16 float32"),
            recipe="BF16",
        ),
        Device(
            name="cpu",
            description="onnxruntime on the CPU: every operator of ONNX and of its own domains, any numbers, no rules",
            accelerated=False,
        ),
    )
}

# Other names of devices. A name of several means the first whose types include that of the activations.
ALIASES: Mapping[str, tuple[str, ...]] = {"npu-cnn": (_XINT8,), "npu-float-scale": (_A8W8, _A16W8)}


def find_device(name: str, activations: str = "", shifted: bool = True) -> Device:
    """Return the named device.

    If the name stands for several ways of running a model, the type of `activations` decides, and `shifted`: whether
    their scales are powers of two.
    """
    known = [*GENERATIONS, *DEVICES, *ALIASES]
    if name not in known:
        raise UsageError(f"There is no device '{name}'.{nearest(name, known)} Known: {', '.join(known)}.")
    generation = GENERATIONS.get(name)
    flows = ALIASES.get(name, (name,)) if generation is None else generation.flows
    meant = [DEVICES[each] for each in flows]
    fitting = [device for device in meant if activations in device.types.get("activations", ())]
    if generation is None:
        return (fitting or meant)[0]
    fitting = [device for device in fitting if device.shifts == shifted or not device.integers] or fitting
    return _of_generation((fitting or meant)[0], generation)


def _of_generation(device: Device, generation: Generation) -> Device:
    """Return a way of running a model with what is known about it on one generation."""
    left = {**generation.left, **generation.left_shifted} if device.shifts else generation.left
    left = left if device.integers else {}
    return replace(
        device,
        name=generation.name,
        description=f"{generation.chips}. {device.description}",
        refused={**device.refused, **left},
        likely={**device.likely, **generation.taken},
        disputed={},
        generation=generation,
    )


def device_of(recipe: Recipe) -> Device:
    shifted = instead_of_shifts(recipe.activations) is None
    return find_device(recipe.target, dtype_of(recipe.activations), shifted)


# Rewrites that no device asks for: a recipe names them in `also`. Two gates are also taken where they help.
OPTIONAL: Mapping[str, type[rewrites.Substitution]] = {
    step.step(): step for step in (SiluToTwoGates, rewrites.ClipToRelu, rewrites.WholeClip)
}


# The same for rewrites of the float model. HardSwishToRelu6, through whose product channels can be equalized, is also
# taken where it helps.
OPTIONAL_PREPARATIONS = (RotateResiduals, HardSwishToRelu6)

# The rewrites that `quantize` tries unasked if the result is worse than float, and keeps if they bring it nearer, with
# the operators that they replace.
WHERE_IT_HELPS: Mapping[str, str] = {SiluToTwoGates.step(): "HardSigmoid", HardSwishToRelu6.step(): "HardSwish"}


def with_steps(device: Device, recipe: Recipe) -> Device:
    """Return the device with the steps that the recipe also asks for, and without those that it leaves out."""
    check_steps(recipe)
    others = list(DEVICES.values())

    def chosen(own: Sequence[type[Step]], known: Iterable[type[Step]]) -> tuple[type[Step], ...]:
        asked = {step.step(): step for step in known if step.step() in recipe.also}
        kept = {step.step(): step for step in own if step.step() not in recipe.without}
        return tuple({**kept, **asked}.values())

    def asked_first(steps: Sequence[type[rewrites.Substitution]]) -> tuple[type[rewrites.Substitution], ...]:
        """Return the steps with the optional ones first: two gates replace a Sigmoid before HardSigmoid does."""
        return tuple(sorted(steps, key=lambda step: step.step() not in OPTIONAL))

    optional = [*(step for each in others for step in each.substitutions), *OPTIONAL.values()]
    return replace(
        device,
        preparations=chosen(
            device.preparations, (*(step for each in others for step in each.preparations), *OPTIONAL_PREPARATIONS)
        ),
        substitutions=asked_first(chosen(device.substitutions, optional)),
        corrections=chosen(device.corrections, (step for each in others for step in each.corrections)),
    )


def leavable_steps() -> list[str]:
    """Return the names that `without` may hold."""
    rules = [name for device in DEVICES.values() for name in device.constraints.names]
    unasked = (*WHERE_IT_HELPS, concats.STEP, pools.STEP)
    return list(dict.fromkeys([*(step.step() for step in LEAVABLE), *_device_steps(), *unasked, *rules]))


def _device_steps() -> list[str]:
    """Return the rewrites that some device asks for."""
    return list(dict.fromkeys(step for device in DEVICES.values() for step in device.steps))


def check_steps(recipe: Recipe) -> None:
    """Raise UsageError if a recipe names an unknown step, or names one in `without` and in `also`."""
    for key, given, known in (
        ("without", recipe.without, leavable_steps()),
        (
            "also",
            recipe.also,
            [*OPTIONAL, *(step.step() for step in (BothBranches, *OPTIONAL_PREPARATIONS)), *_device_steps()],
        ),
    ):
        for name in given:
            if name not in known:
                raise UsageError(
                    f"'{key}' of recipe {recipe.name} has '{name}', which is not a step that can be left out or asked "
                    f"for.{nearest(name, known)} Known: {', '.join(known)}."
                )
    both = set(recipe.without) & set(recipe.also)
    if both:
        raise UsageError(f"Recipe {recipe.name} has '{min(both)}' in 'without' and in 'also'. Choose one of the two.")
