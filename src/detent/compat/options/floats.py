"""Options on bfloat16, block floating point, microscaling and language models."""

from __future__ import annotations

import dataclasses
from typing import Any

from detent.compat.formats import block_float, microscaling
from detent.compat.options import gptq
from detent.compat.options.base import Option, boolean, honoured, met, refused
from detent.compat.request import Request
from detent.errors import UsageError
from detent.numerics.blocks import BlockFloat, Microscaling
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat


def _floats_of(request: Request, name: str) -> dict[str, FloatFormat]:
    found = {role: fmt for role, fmt in request.recipe.formats.items() if isinstance(fmt, FloatFormat)}
    if not found:
        raise UsageError(f"{name}=True is for float16 and bfloat16, and this configuration has neither. Delete it.")
    return found


def _clip(request: Request, value: Any) -> Request:
    if not boolean("BF16WithClip", value):
        return request
    floats = _floats_of(request, "BF16WithClip")
    return request.with_recipe(**{role: dataclasses.replace(fmt, clip=True) for role, fmt in floats.items()})


def _cast(request: Request, value: Any) -> Request:
    if boolean("BF16QDQToCast", value):
        _floats_of(request, "BF16QDQToCast")
        return request.with_recipe(format="cast")
    return request.with_recipe(format="extended-qdq") if request.recipe.format == "cast" else request


def _blocks(name: str, kind: type[BlockFloat] | type[Microscaling], parse: Any) -> Option:
    def apply(request: Request, value: Any) -> Request:
        chosen = parse(value or {})
        roles = [role for role, fmt in request.recipe.formats.items() if isinstance(fmt, kind)]
        if not roles:
            raise UsageError(f"{name}: no tensor of this configuration has that format. Delete it.")
        return request.with_recipe(**dict.fromkeys(roles, chosen))

    return honoured(name, "the sizes and rounding of the blocks (`activations`, `weights`, `biases`)", apply)


_NBITS = {"Algorithm": "DEFAULT", "GroupSize": 128, "Symmetric": True, "Bits": 4, "AccuracyLevel": 0}


def _few_bits(request: Request, value: Any) -> Request:
    """UseMatMulNBits: with its parameters unsaid, 4 bits in groups of 128."""
    return _in_groups(request, {}) if boolean("UseMatMulNBits", value) else request


def _few_bits_params(request: Request, value: Any) -> Request:
    weights = request.recipe.weights
    if not (isinstance(weights, IntegerFormat) and weights.group_size):
        raise UsageError("The option MatMulNBitsParams has no effect without UseMatMulNBits=True. Give both.")
    return _in_groups(request, value)


def _in_groups(request: Request, value: Any) -> Request:
    unknown = set(value or {}) - set(_NBITS)
    if unknown:
        raise UsageError(f"MatMulNBitsParams has no {', '.join(sorted(unknown))}. It has {', '.join(_NBITS)}.")
    params = {**_NBITS, **(value or {})}
    if params["Algorithm"] != "DEFAULT":
        raise UsageError(f"MatMulNBitsParams: Algorithm {params['Algorithm']!r} is not part of Detent. Delete it.")
    if params["Bits"] != 4:
        raise UsageError(f"MatMulNBitsParams: Bits {params['Bits']}: there are weights of 4 bits. Give 4, or A8W8.")
    if params["AccuracyLevel"] not in (0, 1):
        raise UsageError("MatMulNBitsParams: AccuracyLevel is 0 or 1: activations stay float32. Delete it.")
    dtype, symmetric = ("int4", True) if params["Symmetric"] else ("uint4", False)
    return request.with_recipe(
        activations=None,
        weights=IntegerFormat(dtype, symmetric, granularity=f"per_group:{params['GroupSize']}"),
        biases=None,
        operators=("MatMul", "Gemm"),
        equalize=None,
        refinement=None,
        opset=21,
        products_of_activations=False,
    )


OPTIONS: tuple[Option, ...] = (
    honoured("BF16WithClip", "numbers past the largest one become it, not infinity (`clip`)", _clip),
    honoured("BF16QDQToCast", "pairs of Cast around every value, or where False of custom operators (`format`)", _cast),
    refused(
        "EnableVaimlBF16",
        "it is a float32 model with rounded weights",
        "`detent convert MODEL OUTPUT --to bfloat16:form=simulated` writes it.",
    ),
    met("RefineBlockAxis", "blocks always lie along the axis that is summed over", (True,), "Delete the option."),
    _blocks("BFPAttributes", BlockFloat, block_float),
    _blocks("MXAttributes", Microscaling, microscaling),
    honoured("UseMatMulNBits", "weights of 4 bits in groups, activations float (recipe MATMUL_NBITS)", _few_bits),
    honoured("MatMulNBitsParams", "GroupSize and Symmetric of these", _few_bits_params),
    *gptq.OPTIONS,
)
