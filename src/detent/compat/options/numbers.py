"""Options on numbers: symmetry, biases and scales."""

from __future__ import annotations

import dataclasses
from typing import Any

from detent.compat.options.base import Option, boolean, honoured, met, refused
from detent.compat.request import Request
from detent.errors import UsageError
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat, has_power_of_two_scale


def _symmetric(name: str, role: str) -> Option:
    def apply(request: Request, value: Any) -> Request:
        fmt = request.recipe.formats[role]
        if not isinstance(fmt, IntegerFormat):
            return request  # floats and blocks are symmetric around zero, whatever is said
        if fmt.power_of_two and not boolean(name, value):
            raise UsageError(f"{name}=False: power-of-two scales have a fixed zero point. Delete it, or give MinMax.")
        return request.with_recipe(**{role: dataclasses.replace(fmt, symmetric=boolean(name, value))})

    return honoured(name, f"whether the zero point is fixed (`{role}.symmetric`)", apply)


def _quantize_bias(request: Request, value: Any) -> Request:
    return request if boolean("QuantizeBias", value) else request.with_recipe(biases=None)


def _bias_type(name: str, dtype: str) -> Option:
    def apply(request: Request, value: Any) -> Request:
        if request.recipe.biases is None:
            return request
        weights = request.recipe.weights
        if not isinstance(weights, IntegerFormat):
            if boolean(name, value):
                raise UsageError(f"{name}=True: the weights are no integers, and biases have their format. Delete it.")
            return request
        if boolean(name, value):
            return request.with_recipe(biases=IntegerFormat(dtype, scale=weights.scale))
        narrow = dataclasses.replace(weights, symmetric=True, granularity="per_tensor")
        current = request.recipe.biases
        same = isinstance(current, IntegerFormat) and current.dtype == dtype
        return request.with_recipe(biases=narrow) if same else request

    return honoured(name, f"{dtype} biases, or where False those of the weights' type (`biases`)", apply)


def _int16_scale(request: Request, value: Any) -> Request:
    if not boolean("Int16Scale", value):
        return request
    recipe = request.recipe
    if has_power_of_two_scale(recipe.activations):
        raise UsageError("Int16Scale=True: the method asks for power-of-two scales. Choose MinMax or Percentile.")
    changed = {
        role: dataclasses.replace(fmt, scale="int16")
        for role, fmt in recipe.formats.items()
        if isinstance(fmt, IntegerFormat)
    }
    return request.with_recipe(**changed)


def _power_of_two(request: Request, value: Any) -> Request:
    if boolean("UsePowerOf2Scale", value) != has_power_of_two_scale(request.recipe.activations):
        raise UsageError(
            f"UsePowerOf2Scale={value} contradicts calibrate_method, which chooses the scales: PowerOfTwoMethod.MinMSE "
            "for powers of two, CalibrationMethod.MinMax for others."
        )
    return request


def _scaled(name: str, *roles: str) -> Option:
    def apply(request: Request, value: Any) -> Request:
        formats = request.recipe.formats
        changed = {
            role: dataclasses.replace(fmt, scaled=boolean(name, value))
            for role in roles
            if isinstance(fmt := formats[role], FloatFormat)
        }
        if boolean(name, value) and not changed:
            raise UsageError(f"{name}=True is for float16 and bfloat16, and the {roles[0]} are none. Delete it.")
        return request.with_recipe(**changed)

    return honoured(name, f"small floats get a scale from the data (`{roles[0]}.scaled`)", apply)


OPTIONS: tuple[Option, ...] = (
    _symmetric("ActivationSymmetric", "activations"),
    _symmetric("WeightSymmetric", "weights"),
    honoured("QuantizeBias", "biases stay float where False (`biases`)", _quantize_bias),
    _bias_type("Int32Bias", "int32"),
    _bias_type("Int16Bias", "int16"),
    met("AdjustBiasScale", "a 32-bit bias always has the scale of its layer's products", (True,), "Delete the option."),
    met(
        "AdjustWeightScaleForInt32Bias",
        "weights always get a scale at which the bias does not overflow",
        (True,),
        "Delete the option.",
    ),
    met(
        "QDQDisableWeightAdjustForInt32Bias", "weights always get a scale at which the bias does not overflow", (False,)
    ),
    honoured("Int16Scale", "scales are a 16-bit integer over a power of two (`scale`)", _int16_scale),
    honoured("UsePowerOf2Scale", "must say the same as calibrate_method", _power_of_two),
    refused("QuantizeFP16", "half-precision models are computed in float32", "Delete the option."),
    met("UseFP32Scale", "scales are float32", (True,), "Delete the option."),
    _scaled("ActivationScaled", "activations"),
    _scaled("WeightScaled", "weights", "biases"),
    refused("UseUnsignedReLU", "all activations have one type (Quark reads the option and does nothing)", "Delete it."),
)
