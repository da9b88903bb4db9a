"""Options on what the NPU asks for."""

from __future__ import annotations

from detent.compat.options.base import Option, all_of, field, met, refused, switch
from detent.compat.steps import CONCAT_RULE, SHIFT_RULES, device_rewrites

_LEAVE_FLOAT = "Leave such nodes float with nodes_to_exclude."


_REWRITES = all_of("SimulateDPU", device_rewrites(), "False leaves out all rewrites into the device's own operators")
_RULES_SAY = "False leaves out all rules on positions"

OPTIONS: tuple[Option, ...] = (
    _REWRITES,
    switch("ConvertLeakyReluToDPUVersion", "round_leaky_slope"),
    switch("ConvertSigmoidToHardSigmoid", "sigmoid_to_hard_sigmoid"),
    switch("ConvertHardSigmoidToDPUVersion", "scale_hard_sigmoid"),
    switch("ConvertAvgPoolToDPUVersion", "scale_pools"),
    switch("ConvertReduceMeanToDPUVersion", "scale_reduce_mean"),
    switch("ConvertClipToDPUVersion", "whole_clip"),
    refused("ConvertSoftmaxToDPUVersion", "the device's Softmax is not simulated", _LEAVE_FLOAT),
    refused("ConvertInstanceNormToDPUVersion", "the device's InstanceNormalization is not simulated", _LEAVE_FLOAT),
    all_of("NPULimitationCheck", SHIFT_RULES, _RULES_SAY),
    all_of("IPULimitationCheck", SHIFT_RULES, _RULES_SAY),
    met("MaxLoopNum", "rules are applied until all of them hold, however many rounds that takes"),
    switch("AdjustShiftCut", "shift_cut"),
    switch("AdjustShiftBias", "shift_bias"),
    switch("AdjustShiftRead", "shift_read"),
    switch("AdjustShiftWrite", "shift_write"),
    switch("AdjustHardSigmoid", "hard_sigmoid"),
    switch("AdjustShiftSwish", "shift_swish"),
    switch("AlignConcat", CONCAT_RULE),
    switch("AlignPool", "align_pool"),
    switch("AlignPad", "align_pad"),
    switch("AlignSlice", "align_slice"),
    met("AlignTranspose", "a Transpose always shares the scale of its input"),
    met("AlignReshape", "a Reshape always shares the scale of its input"),
    field("AlignEltwiseQuantType", "constants beside activations have the type of these", "constants_as_activations"),
)
