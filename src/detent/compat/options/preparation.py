"""Options on the float model, before anything is quantized."""

from __future__ import annotations

import re
from typing import Any

from detent.compat.options.base import NOTHING, Option, all_of, boolean, honoured, met, refused, switch
from detent.compat.request import Request
from detent.errors import UsageError

_BY_NAME = "Leave single preparations out by their own options, or with Recipe(without=...)."


def parse_shapes(option: str, text: str) -> dict[str, list[int]]:
    """`input:[1,3,224,224];other:[1,4]`."""
    shapes: dict[str, list[int]] = {}
    for part in filter(None, re.split(r";\s*", text.strip())):
        found = re.fullmatch(r"\s*(.+?)\s*:\s*\[([\d\s,]+)\]\s*", part)
        if found is None:
            raise UsageError(f"{option} is {text!r}: expected 'input:[1,3,224,224];other:[1,4]'.")
        shapes[found[1]] = [int(dim) for dim in found[2].split(",") if dim.strip()]
    return shapes


def _fix_shapes(request: Request, value: Any) -> Request:
    return request.replace(fix_shapes=parse_shapes("The option FixShapes", str(value))) if value else request


def _opset(request: Request, value: Any) -> Request:
    if value is None:
        return request
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"The option ConvertOpsetVersion is {value!r}: it must be a number, such as 17.")
    return request.with_recipe(opset=value)


OPTIONS: tuple[Option, ...] = (
    refused("ShapeShifterYaml", "passes are chosen by name, not in a YAML file", _BY_NAME),
    refused("PreprocessYAML", "passes are chosen by name, not in a YAML file", _BY_NAME),
    refused("SkipPreprocess", "the plan needs a prepared model", _BY_NAME),
    met("OptimizeModel", "onnxruntime's optimizer is never run on the model; Detent's preparations are its own"),
    all_of(
        "SimplifyModel",
        ("remove_identity", "mat_mul_to_gemm"),
        "False leaves out `remove_identity` and `mat_mul_to_gemm`; constants are folded in any case, never by onnxslim",
    ),
    refused("SimplifyModelOptions", "they are onnxslim's, which Detent does not use", "Delete the option."),
    met("ConvertFP16ToFP32", "half-precision models are always computed in float32"),
    honoured(
        "ConvertNCHWToNHWC",
        "the result takes images channels last (`nhwc` of `detent convert`); data is given as the float model takes it",
        lambda request, value: request.replace(conversions=("nhwc",) if boolean("ConvertNCHWToNHWC", value) else ()),
    ),
    honoured("ConvertOpsetVersion", "the least operator set of the result (`opset`)", _opset),
    switch("ConvertBNToConv", "batch_norm_to_conv"),
    switch("ConvertReduceMeanToGlobalAvgPool", "reduce_mean_to_pool"),
    switch("SplitLargeKernelPool", "split_global_pool"),
    switch("ConvertSplitToSlice", "split_to_slice"),
    switch("ConvertClipToRelu", "clip_to_relu"),
    switch("FuseInstanceNorm", "fuse_instance_norm"),
    switch("FuseL2Norm", "fuse_l2_norm"),
    switch("FuseGelu", "fuse_gelu"),
    switch("FuseLayerNorm", "fuse_layer_norm"),
    switch("FoldBatchNorm", "fold_batch_norm"),
    met("FoldRelu", "a Relu is computed by the layer before it, whatever this says; it stays in the file"),
    met("ReplaceClip6Relu", "channels are equalized through Clip as well as through Relu, so nothing needs replacing"),
    met("RemoveInputInit", "initializers are always taken out of the inputs", (True,), "Delete the option."),
    met("CopySharedInit", "what layers share is always separated where they need different codes"),
    met("CopyBiasInit", "what layers share is always separated where they need different codes"),
    honoured("FixShapes", "dynamic inputs get these shapes (`fix_shapes`)", _fix_shapes),
    refused("EnableSubgraph", "graphs inside If and Loop stay float", "Inline the graph.", NOTHING),
)
