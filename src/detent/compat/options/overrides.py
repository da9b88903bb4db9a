"""onnxruntime's tensor overrides, {tensor: [{"quant_type": ..., "symmetric": ..., ...}]}, as those of a recipe."""

from __future__ import annotations

from typing import Any

from detent.compat.formats import format_of
from detent.compat.options.base import names
from detent.compat.request import Request
from detent.errors import UsageError, nearest
from detent.numerics.formats import IntegerFormat
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
        usual = request.recipe.activations
        symmetric = not isinstance(usual, IntegerFormat) or usual.symmetric
        chosen = format_of(
            quant_type, symmetric=symmetric, scale=usual.scale if isinstance(usual, IntegerFormat) else "float"
        )
        part = names("MixedPrecisionTensor", tensors)
        request = request.with_override(Override(tensors=part, activations=chosen, weights=chosen))
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
    chosen = None
    if "quant_type" in entry or "symmetric" in entry:
        usual = request.recipe.activations
        symmetric = entry.get("symmetric", isinstance(usual, IntegerFormat) and usual.symmetric)
        chosen = format_of(entry["quant_type"], symmetric=symmetric) if "quant_type" in entry else usual
        if isinstance(chosen, IntegerFormat):
            chosen = IntegerFormat(chosen.dtype, symmetric, chosen.scale, chosen.granularity)
    found = (float(entry["rmin"]), float(entry["rmax"])) if "rmin" in entry else None
    return Override(tensors=(tensor,), activations=chosen, weights=chosen, range=found)
