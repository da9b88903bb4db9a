"""onnxruntime's tensor overrides, {tensor: [{"quant_type": ..., "symmetric": ..., ...}]}, as those of a recipe."""

from __future__ import annotations

import dataclasses
from typing import Any

from detent.compat.formats import format_of
from detent.compat.options.base import names
from detent.compat.request import Request
from detent.errors import UsageError, nearest
from detent.numerics.formats import IntegerFormat
from detent.numerics.interface import NumberFormat
from detent.recipe import Override

_KNOWN = ("quant_type", "symmetric", "rmin", "rmax")


def tensor_overrides(request: Request, value: Any) -> Request:
    """One override for each tensor."""
    for tensor, entries in (value or {}).items():
        if len(entries) != 1:
            raise UsageError(f"TensorQuantOverrides of '{tensor}': one entry for each tensor, not {len(entries)}.")
        request = request.with_override(_override(request, tensor, entries[0]))
    return request


def tensors_by_type(request: Request, value: Any) -> Request:
    """MixedPrecisionTensor, an older way to say it: {type: [tensor, ...]}."""
    for quant_type, tensors in (value or {}).items():
        part = names("MixedPrecisionTensor", tensors)
        request = request.with_override(_of_tensors(request, part, {"quant_type": quant_type}))
    return request


def _override(request: Request, tensor: str, entry: dict[str, Any]) -> Override:
    for key in entry:
        if key not in _KNOWN:
            raise UsageError(
                f"TensorQuantOverrides of '{tensor}' has '{key}'.{nearest(key, _KNOWN)} Detent knows "
                f"{', '.join(_KNOWN)}."
            )
    if ("rmin" in entry) != ("rmax" in entry):
        raise UsageError(f"TensorQuantOverrides of '{tensor}' has one of rmin and rmax. Give both.")
    return _of_tensors(request, (tensor,), entry)


def _of_tensors(request: Request, tensors: tuple[str, ...], entry: dict[str, Any]) -> Override:
    return Override(
        tensors=tensors,
        activations=_changed(request.recipe.activations, entry),
        weights=_changed(request.recipe.weights, entry),
        range=(float(entry["rmin"]), float(entry["rmax"])) if "rmin" in entry else None,
    )


def _changed(usual: NumberFormat | None, entry: dict[str, Any]) -> NumberFormat | None:
    """The format that an entry asks for: what it leaves unsaid is as in the rest of the model."""
    if "quant_type" not in entry and "symmetric" not in entry:
        return None
    symmetric = entry.get("symmetric", usual.symmetric if isinstance(usual, IntegerFormat) else False)
    chosen = format_of(entry["quant_type"], symmetric=symmetric) if "quant_type" in entry else usual
    if isinstance(usual, IntegerFormat) and isinstance(chosen, IntegerFormat):
        return dataclasses.replace(usual, dtype=chosen.dtype, symmetric=symmetric)
    return chosen
