"""bfloat16: the upper half of a float32, in three forms.

cast         Casts to bfloat16 and back stand behind every float value, and weights are stored in bfloat16 behind a
             Cast: every operator computes in float32 on numbers that bfloat16 holds. Half the size.
simulated    a float32 model whose weights are rounded to bfloat16. For compilers that convert the rest themselves.
pure         bfloat16 throughout, at opset 22 or newer, with Casts at inputs and outputs.

onnxruntime (1.31, CPU) runs these operators in bfloat16: Cast, CastLike, Concat, Constant, Flatten, Gather,
GatherElements, GatherND, Identity, Reshape, ScatterElements, ScatterND, Shape, Sign, Slice, Split, Squeeze, Transpose,
Unsqueeze, and If, Loop and Scan around them. All others it refuses to load; in the pure form they compute in float32
between Casts of their own, so that the file runs everywhere. Devices that compute in bfloat16 fuse those Casts away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.convert.cast_pairs import add_cast_pairs, round_weights
from detent.convert.precision import has_float
from detent.convert.retype import Retyping, prepare_types, retype
from detent.convert.step import Notes, Step
from detent.errors import UsageError
from detent.graph.opset import raise_opset
from detent.graph.values import is_standard
from detent.recipe import BFLOAT16_OPSET

FORMS = ("cast", "simulated", "pure")
_RUNS_IN_BFLOAT16 = (
    *("Cast", "CastLike", "Concat", "Constant", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "If"),
    *("Loop", "Reshape", "Scan", "ScatterElements", "ScatterND", "Shape", "Sign", "Slice", "Split", "Squeeze"),
    *("Transpose", "Unsqueeze"),
)
_CAST_OPSET = 13
"""The opset with which Cast got bfloat16."""


@dataclass(frozen=True)
class ToBfloat16(Step):
    """Round to bfloat16, in one of three forms. `keep_io` is for the pure one, whose interface may be bfloat16 too."""

    form: str = "cast"
    keep_io: bool = True
    clip: bool = False
    nothing: ClassVar[str] = "it has no float32 values that are not rounded to bfloat16 already."

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise UsageError(f"bfloat16 has no form '{self.form}'. Choose from {', '.join(FORMS)}.")
        if not self.keep_io and self.form != "pure":
            raise UsageError(f"bfloat16: keep_io=false needs form=pure; with form={self.form} all values are float32.")

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Convert all graphs of the model."""
        if self.form == "cast":
            model = raise_opset(model, _CAST_OPSET, "the model")
        if self.form == "pure":
            model = raise_opset(model, BFLOAT16_OPSET, "the model")
        prepare_types(model, notes)
        if self.form == "simulated":
            round_weights(model, notes, clip=self.clip)
        elif self.form == "cast":
            add_cast_pairs(model, notes, clip=self.clip)
        elif has_float(model):
            plan = Retyping(ir.DataType.BFLOAT16, self.keep_io, self.clip, stays=_has_no_kernel)
            retype(model, plan, notes)
        return model


def to_pure_bfloat16(model: ir.Model, constants: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Make a model of opset 22 or newer bfloat16 throughout, in place, with other numbers in some of its constants."""
    for name, array in constants.items():
        model.graph.initializers[name].const_value = ir.tensor(array, name=name)
    ToBfloat16(form="pure").apply(model, Notes("bfloat16"))


def _has_no_kernel(node: ir.Node) -> bool:
    """Whether onnxruntime cannot run the node in bfloat16."""
    return not is_standard(node, *_RUNS_IN_BFLOAT16)
