"""The end of the way: the plan in the graph, the graph in its last form, checked, loaded and saved.

Two forms are written in two steps. The first computes the same numbers in plain float operators between roundings, so
that every value on the way can be compared with float; the last is what the file holds.

| format    | first form                        | last form                                         |
| --------- | --------------------------------- | ------------------------------------------------- |
| qoperator | QuantizeLinear, DequantizeLinear  | operators on codes, within a code of the first    |
| bfloat16  | Casts to bfloat16 and back        | bfloat16 throughout, the same numbers             |
| any other | what the file holds               | the same                                          |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from detent.convert.bfloat16 import to_pure_bfloat16
from detent.emit.dynamic import emit_dynamic
from detent.emit.emitter import emit
from detent.emit.qoperator import to_qoperator
from detent.errors import ModelError, OutputError
from detent.graph.save import PROTOBUF_LIMIT, complete_proto, save, tensor_bytes
from detent.graph.session import Runner
from detent.plan.plan import Plan
from detent.prepare.base import Change
from detent.recipe import Recipe
from detent.version import __version__


@dataclass(frozen=True, eq=False)
class Written:
    """A quantized model in its first form.

    `rounded` names, for each activation site, its rounded value. `unrounded` is the float model, where the last form is
    made from that.
    """

    model: ir.Model
    rounded: Mapping[str, str]
    unrounded: ir.Model | None = None

    @property
    def warnings(self) -> list[str]:
        """What a user of the file has to know."""
        overloaded = sorted({node.op_type for node in self.model.graph if node.overload})
        if not overloaded:
            return []
        return [
            f"The file has several formats under the name {overloaded[0]}, as overloads of one function. Old versions "
            "of onnxruntime (1.23 and before) run the first for all of them: use a newer one."
        ]


def write_plan(model: ir.Model, plan: Plan, recipe: Recipe) -> Written:
    """Write the plan into the graph, and check that the result is a model that any tool will take."""
    unrounded = model.clone() if recipe.format == "bfloat16" else None
    rounded: Mapping[str, str] = {}
    if recipe.dynamic:
        emit_dynamic(model, plan)
    else:
        pairs = {"weight_pairs": recipe.weight_pairs, "dedicated_pairs": recipe.dedicated_pairs}
        rounded = emit(model, plan, recipe.format, **pairs)
    _check(model)
    return Written(model, rounded, unrounded)


def last_form(written: Written, plan: Plan, recipe: Recipe) -> tuple[ir.Model, list[Change]]:
    """The model as the file will hold it, and why nodes of it could not take that form."""
    if recipe.format == "qoperator":
        declined = to_qoperator(written.model)
        return _loaded(written.model), declined
    if written.unrounded is not None:
        to_pure_bfloat16(written.unrounded, plan.refined)
        return _loaded(written.unrounded), []
    return written.model, []


def store(model: ir.Model, output: Path | None) -> tuple[onnx.ModelProto | None, int]:
    """Save, or without an output return the model itself; and its bytes."""
    if output is not None:
        return None, save(model, output)
    if tensor_bytes(model) > PROTOBUF_LIMIT:
        raise OutputError("The quantized model is past 2 GB and cannot be one ModelProto. Give an output file.")
    proto = complete_proto(model)
    return proto, int(proto.ByteSize())


def _loaded(model: ir.Model) -> ir.Model:
    """The model, after the checker and onnxruntime took it."""
    _check(model)
    Runner(model)
    return model


def _check(model: ir.Model) -> None:
    model.producer_name, model.producer_version = "detent", __version__
    try:
        common_passes.CheckerPass(full_check=True)(model)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(f"The quantized model does not pass onnx's checker, so it is not written: {error}") from error
