"""ShapeShifter's YAML files of passes, as the extra options that ask for the same.

    preprocess_passes:
      onnx_convert_split_to_slice: {convert_split_to_slice: true}
      onnx_fix_shapes: {input_output_name_shapes: {x: [1, 3, 224, 224]}}

A pass is on if the file lists it and its first setting is not false. `passes` is the older name of
`preprocess_passes`. In place of a file there may be the name of a template, which asks for what Detent does anyway.

A file that names a model and where to write it can be run alone (`quark-cli shapeshifter FILE`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx_ir as ir
from onnx import ModelProto

from detent.compat.option_rows import note
from detent.convert import parse_step
from detent.convert.step import ConversionNotes
from detent.devices.rewrites import ClipToRelu
from detent.errors import UsageError, nearest
from detent.graph.load import load
from detent.graph.save import check_output, save
from detent.prepare import default_passes, prepare

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
# Passes over a model that is not quantized, as steps of preparation.
_ALONE: dict[str, str] = {
    **dict.fromkeys(("onnx_simplify", "onnx_optimize_with_ort"), "fold_constants remove_identity"),
    **dict.fromkeys(("onnx_copy_shared_init", "onnx_copy_bias_init"), "separate_initializers"),
    **dict.fromkeys(("onnx_fold_batch_norm", "onnx_fold_batch_norm_after_concat"), "fold_batch_norm"),
    "onnx_fold_div_into_matmul": "fold_affine",
    "onnx_convert_fp16_to_fp32": "half_to_float",
    "onnx_convert_bn_to_conv": "batch_norm_to_conv",
    "onnx_convert_clip_to_relu": "clip_to_relu",
    "onnx_convert_reduce_mean_to_global_avg_pool": "reduce_mean_to_pool",
    "onnx_convert_split_to_slice": "split_to_slice",
    "onnx_split_large_kernel_pool": "split_global_pool",
    **{f"onnx_{name}": name for name in ("fuse_gelu", "fuse_instance_norm", "fuse_l2_norm", "fuse_layer_norm")},
}


def _fixed(settings: Mapping[str, Any]) -> str:
    shapes = settings.get("input_output_name_shapes") or {}
    return "fixed-shapes:shapes=" + "+".join(f"{name}={'/'.join(map(str, dims))}" for name, dims in shapes.items())


def _between(settings: Mapping[str, Any]) -> str:
    return "without-qdq-between:pairs=" + "+".join(map("/".join, settings.get("remove_qdq_between_op_types") or ()))


# Passes as steps of `detent convert`.
_STEPS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "onnx_convert_nchw_to_nhwc": lambda _: "nhwc",
    "onnx_convert_opset_version": lambda it: f"opset:version={it.get('target_opset_version')}",
    "onnx_fix_shapes": _fixed,
    "onnx_insert_clip_before_bfloat16_qdq": lambda _: "bfloat16-clip",
    "onnx_remove_bfloat16_cast": lambda _: "float",
    "onnx_remove_input_init": lambda _: "inputs-without-initializers",
    "onnx_remove_qdq_between_op_types": _between,
}
_REFUSED = ("onnx_set_node_attributes", "onnx_constrain_per_channel_weight_scale")
_KNOWN = (*_ALREADY, *_SWITCHES, *_SETTINGS, *_REFUSED)


def options_of_passes(spec: str) -> dict[str, Any]:
    """Return the options for a file of passes, or a template. UsageError, by name, for a pass that has none."""
    if spec.lower() in _TEMPLATES:
        return {}
    read = _load(Path(spec))
    options: dict[str, Any] = {}
    for name, settings in _wanted(read, spec):
        if name in _SETTINGS:
            options |= _SETTINGS[name](settings)
        elif name in _SWITCHES:
            options[_SWITCHES[name]] = True
    if read.get("preprocessed_model_path"):
        note(f"{spec}, preprocessed_model_path: the prepared model is not written.")
    return options


def _wanted(read: Mapping[str, Any], spec: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the passes that are on, with their settings; UsageError, by name, for one that Detent has not."""
    groups = [read.get(name) or {} for name in ("preprocess_passes", "passes", "postprocess_passes")]
    for name, settings in ((name, settings or {}) for group in groups for name, settings in group.items()):
        if name in _REFUSED or name not in _KNOWN:
            raise UsageError(f"{spec}: Detent has no pass '{name}'.{nearest(name, _KNOWN)} Take it out of the file.")
        if next(iter(settings.values()), True) is not False:
            yield name, settings


@dataclass
class RunConfig:
    """What a file says, as a value. Of a model's configuration only `input_model_path` counts."""

    passes: Mapping[str, Any]
    input_model_config: Any = None
    output_model_path: str | Path | None = None


def shapeshifter(run_config: Any, model: ModelProto | None = None) -> ModelProto | None:
    """Run passes, given as a RunConfig, a dictionary or a file, on a model in memory, or on the one that is named."""
    if isinstance(run_config, (str, Path)):
        read = _load(Path(run_config))
    else:
        read = run_config if isinstance(run_config, Mapping) else vars(run_config)
        source = read.get("input_model_config")
        named = source if isinstance(source, Mapping) else vars(source or SimpleNamespace())
        read = {**read, "input_model_config": named}
    if model is None:
        _run_file(read, "The configuration")
        return None
    made = load(model)
    for name, settings in _wanted(read, "The configuration"):
        made = _run(made, name, settings, "The configuration")
    return ir.to_proto(made)


def ONNXModelConfig(**fields: Any) -> SimpleNamespace:  # noqa: N802 - as scripts call it
    """Return the configuration of a model."""
    return SimpleNamespace(**fields)


ModelConfig = ONNXModelConfig


def run_passes(path: Path) -> None:
    """Run the passes of a file, in its order, on the model that it names, and write the result."""
    _run_file(_load(path), str(path))


def _run_file(read: Mapping[str, Any], path: str) -> None:
    source = (read.get("input_model_config") or read).get("input_model_path")
    if not source or not read.get("output_model_path"):
        raise UsageError(f"{path} needs input_model_path and output_model_path beside its passes.")
    output = Path(read["output_model_path"])
    check_output(output, source)
    model = load(source)
    for name, settings in _wanted(read, path):
        model = _run(model, name, settings, path)
    save(model, output)


def _run(model: ir.Model, name: str, settings: Mapping[str, Any], path: str) -> ir.Model:
    if name in _STEPS:
        return parse_step(_STEPS[name](settings))[1].apply(model, ConversionNotes(name))
    if name not in _ALONE:
        raise UsageError(f"{path}: '{name}' is part of quantizing a model. Give the file as ShapeShifterYaml instead.")
    passes = {each.step(): each for each in (*default_passes(), ClipToRelu())}
    prepare(model, [passes[step] for step in ("infer_shapes", *_ALONE[name].split())])
    return model


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
