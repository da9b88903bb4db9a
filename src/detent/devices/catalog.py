"""Which operators and number types the NPU takes, as data: one `Device` for each way of running a model on it.

The operators are those that Ryzen AI publishes for its number types (105 rows, unchanged from 1.5 to 1.8). The list is
broad and not quite consistent: it has no Relu for bfloat16, though every network has one, because there it is computed
with the layer before it. What other evidence speaks for is in `likely`, with that evidence, and counts as taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from detent.errors import UsageError, nearest
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat
from detent.recipe import Recipe

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
    # Two rows are no operators of ONNX: GroupConv is a Conv with groups, "Upsample (deprecated)" an old Resize.
    ((_BF16,), "Einsum Gather GridSample GroupConv LSTM Mod Not ScatterND Size Upsample Xor"),
)

_WITH_THE_LAYER = "it is computed with the layer before it"
_OTHER_FLOW = "bfloat16 networks that have it are known to run, though the published list leaves it out"


@dataclass(frozen=True)
class Device:
    """One way of running a model on a device, and what it asks of the model.

    `operators` are the published ones; `likely` are others, with the reason to expect them. The types of each role are
    those that tensors may be stored in. `recipe` is the one that makes such models. `shifts`: scales are powers of two,
    one for each tensor, with rules on how far apart they may be. `accelerated`: it is more than a CPU.
    """

    name: str
    description: str
    operators: frozenset[str] = frozenset()
    likely: Mapping[str, str] = field(default_factory=dict)
    activations: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    biases: tuple[str, ...] = ()
    recipe: str = ""
    shifts: bool = False

    @property
    def accelerated(self) -> bool:
        """Whether it is an NPU."""
        return bool(self.operators)

    @property
    def integers(self) -> bool:
        """Whether it computes on codes, so that every tensor needs a scale."""
        return self.accelerated and "bfloat16" not in self.activations


def _published(name: str) -> frozenset[str]:
    return frozenset(op_type for devices, listed in _PUBLISHED if name in devices for op_type in listed.split())


DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        Device(
            _XINT8,
            "Ryzen AI NPU, CNN flow: 8-bit codes, power-of-two scales",
            _published(_XINT8),
            {"HardSigmoid": "it is the sigmoid that this device has", "PRelu": _WITH_THE_LAYER},
            ("uint8", "int8"),
            ("int8",),
            ("int8", "int16", "int32"),
            "XINT8",
            shifts=True,
        ),
        Device(
            _A8W8,
            "Ryzen AI NPU, 8-bit codes with float scales",
            _published(_A8W8),
            {"PRelu": _WITH_THE_LAYER},
            ("int8", "uint8"),
            ("int8", "uint8"),
            ("int32",),
            "A8W8",
        ),
        Device(
            _A16W8,
            "Ryzen AI NPU, 16-bit activations and 8-bit weights with float scales",
            _published(_A16W8),
            {"PRelu": _WITH_THE_LAYER},
            ("int16", "uint16", "int8", "uint8"),
            ("int8", "uint8", "int16"),
            ("int32",),
            "A16W8",
        ),
        Device(
            _BF16,
            "Ryzen AI NPU, bfloat16: also takes float32 models, and rounds them itself",
            _published(_BF16),
            {
                **dict.fromkeys(("Relu", "Clip", "LeakyRelu"), _WITH_THE_LAYER),
                **dict.fromkeys(("Softmax", "LayerNormalization", "GroupNormalization"), _OTHER_FLOW),
            },
            ("bfloat16", "float32"),
            ("bfloat16", "float32"),
            ("bfloat16", "float32"),
            "BF16",
        ),
        Device("cpu", "onnxruntime on the CPU: every operator of ONNX, and of its own domains"),
    )
}


def find_device(name: str) -> Device:
    """The named device."""
    if name not in DEVICES:
        raise UsageError(
            f"There is no device '{name}' to check for.{nearest(name, DEVICES)} Known: {', '.join(DEVICES)}."
        )
    return DEVICES[name]


def device_of(recipe: Recipe) -> Device | None:
    """The device that a recipe's models are for; None where it is a CPU, or where nothing is published about it."""
    if recipe.target == "npu-cnn":
        return DEVICES[_XINT8]
    if recipe.target == "npu-float-scale" and isinstance(recipe.activations, IntegerFormat):
        return DEVICES[_A16W8 if recipe.activations.bits == 16 else _A8W8]
    is_bfloat16 = isinstance(recipe.activations, FloatFormat) and recipe.activations.dtype == "bfloat16"
    return DEVICES[_BF16] if recipe.target == "npu-bf16" and is_bfloat16 else None
