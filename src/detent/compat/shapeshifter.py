"""ShapeShifter's YAML files of passes, as the extra options that ask for the same.

    preprocess_passes:
      onnx_convert_split_to_slice: {convert_split_to_slice: true}
      onnx_fix_shapes: {input_output_name_shapes: {x: [1, 3, 224, 224]}}

A pass is on if the file lists it and its first setting is not false. `passes` is the older name of
`preprocess_passes`. In place of a file there may be the name of a template, which asks for what Detent does anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from detent.compat.option_rows import note
from detent.errors import UsageError, nearest

_TEMPLATES = ("xint8", "a8w8", "a16w8", "bf16", "bfp16", "general")
# What preparation and the device's rules always do.
_ALREADY = (
    *("onnx_simplify", "onnx_optimize_with_ort", "onnx_remove_input_init", "onnx_copy_bias_init"),
    *("onnx_copy_shared_init", "onnx_fold_batch_norm_after_concat", "onnx_convert_fp16_to_fp32"),
    *("onnx_fold_div_into_matmul", "onnx_xint8_simulate", "onnx_xint8_adjust", "onnx_align_scale"),
    *("onnx_adjust_bias_scale", "onnx_remove_bfloat16_cast"),
)
# Passes that an option of the same meaning switches on.
_SWITCHES = {
    "onnx_convert_bn_to_conv": "ConvertBNToConv",
    "onnx_convert_clip_to_relu": "ConvertClipToRelu",
    "onnx_convert_nchw_to_nhwc": "ConvertNCHWToNHWC",
    "onnx_convert_reduce_mean_to_global_avg_pool": "ConvertReduceMeanToGlobalAvgPool",
    "onnx_convert_split_to_slice": "ConvertSplitToSlice",
    "onnx_fold_batch_norm": "FoldBatchNorm",
    "onnx_fuse_gelu": "FuseGelu",
    "onnx_fuse_instance_norm": "FuseInstanceNorm",
    "onnx_fuse_l2_norm": "FuseL2Norm",
    "onnx_fuse_layer_norm": "FuseLayerNorm",
    "onnx_split_large_kernel_pool": "SplitLargeKernelPool",
    "onnx_insert_clip_before_bfloat16_qdq": "BF16WithClip",
    "onnx_replace_bfloat16_qdq_with_cast": "BF16QDQToCast",
}


def _shapes(settings: Mapping[str, Any]) -> dict[str, Any]:
    shapes = settings.get("input_output_name_shapes") or {}
    return {"FixShapes": ";".join(f"{name}:[{','.join(map(str, dims))}]" for name, dims in shapes.items())}


# Passes whose settings are those of an option.
_SETTINGS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "onnx_convert_opset_version": lambda it: {"ConvertOpsetVersion": it.get("target_opset_version")},
    "onnx_fix_shapes": _shapes,
    "onnx_remove_qdq_between_op_types": lambda it: {"RemoveQDQBetweenOps": it.get("remove_qdq_between_op_types")},
    "onnx_cross_layer_equalization": lambda it: {"CLESteps": it.get("cle_steps", 1)},
}
_REFUSED = ("onnx_set_node_attributes", "onnx_constrain_per_channel_weight_scale")
_KNOWN = (*_ALREADY, *_SWITCHES, *_SETTINGS, *_REFUSED)


def options_of_passes(spec: str) -> dict[str, Any]:
    """Return the options for a file of passes, or a template. UsageError, by name, for a pass that has none."""
    if spec.lower() in _TEMPLATES:
        return {}
    read = _load(Path(spec))
    groups = [read.get(name) or {} for name in ("preprocess_passes", "passes", "postprocess_passes")]
    options: dict[str, Any] = {}
    for name, settings in ((name, settings or {}) for group in groups for name, settings in group.items()):
        if name in _REFUSED or name not in _KNOWN:
            raise UsageError(f"{spec}: Detent has no pass '{name}'.{nearest(name, _KNOWN)} Take it out of the file.")
        if next(iter(settings.values()), True) is False:
            continue
        if name in _SETTINGS:
            options |= _SETTINGS[name](settings)
        elif name in _SWITCHES:
            options[_SWITCHES[name]] = True
    if read.get("preprocessed_model_path"):
        note(f"{spec}, preprocessed_model_path: the prepared model is not written.")
    return options


def _load(path: Path) -> Mapping[str, Any]:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise UsageError(f"Reading {path} needs PyYAML: pip install pyyaml.") from None
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"Cannot read the passes in {path}: {error}") from None
    if not isinstance(read, Mapping):
        raise UsageError(f"{path} lists no passes. Expected 'preprocess_passes:' with a line for each.")
    return read
