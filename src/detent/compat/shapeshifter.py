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
from detent.compat.option_rules import NHWC, pairs_setting, shapes_setting
from detent.convert import parse_step
from detent.convert.step import ConversionNotes
from detent.devices.rewrites import ClipToRelu
from detent.errors import UsageError, nearest
from detent.graph.load import load
from detent.graph.save import check_output, save
from detent.prepare import default_passes, prepare
from detent.settings import read_text

Settings = Mapping[str, Any]

_TEMPLATES = ("xint8", "a8w8", "a16w8", "bf16", "bfp16", "general")


def _shapes(settings: Settings) -> Mapping[str, Any]:
    return settings.get("input_output_name_shapes") or {}


@dataclass(frozen=True)
class PassRow:
    """What becomes of a pass: an extra option while a model is quantized, and steps where the pass is run alone.

    Without an `option`, quantizing does it anyway. `value` reads that of the option from the settings. Alone, a pass is
    steps of preparation, or with `convert` a step of `detent convert`; one that is neither cannot be run alone.
    """

    option: str = ""
    value: Callable[[Settings], Any] = lambda _: True
    prepare: str = ""
    convert: Callable[[Settings], str] | None = None


_PASSES: dict[str, PassRow] = {
    "onnx_adjust_bias_scale": PassRow(),
    "onnx_align_scale": PassRow(),
    "onnx_convert_bn_to_conv": PassRow("ConvertBNToConv", prepare="batch_norm_to_conv"),
    "onnx_convert_clip_to_relu": PassRow("ConvertClipToRelu", prepare="clip_to_relu"),
    "onnx_convert_fp16_to_fp32": PassRow(prepare="half_to_float"),
    "onnx_convert_nchw_to_nhwc": PassRow("ConvertNCHWToNHWC", convert=lambda _: NHWC),
    "onnx_convert_opset_version": PassRow(
        "ConvertOpsetVersion",
        lambda it: it.get("target_opset_version"),
        convert=lambda it: f"opset:version={it.get('target_opset_version')}",
    ),
    "onnx_convert_reduce_mean_to_global_avg_pool": PassRow(
        "ConvertReduceMeanToGlobalAvgPool", prepare="reduce_mean_to_pool"
    ),
    "onnx_convert_split_to_slice": PassRow("ConvertSplitToSlice", prepare="split_to_slice"),
    "onnx_copy_bias_init": PassRow(prepare="separate_initializers"),
    "onnx_copy_shared_init": PassRow(prepare="separate_initializers"),
    "onnx_cross_layer_equalization": PassRow("CLESteps", lambda it: it.get("cle_steps", 1)),
    "onnx_fix_shapes": PassRow(
        "FixShapes",
        lambda it: ";".join(f"{name}:[{','.join(map(str, dims))}]" for name, dims in _shapes(it).items()),
        convert=lambda it: f"fixed-shapes:shapes={shapes_setting(_shapes(it))}",
    ),
    "onnx_fold_batch_norm": PassRow("FoldBatchNorm", prepare="fold_batch_norm"),
    "onnx_fold_batch_norm_after_concat": PassRow(prepare="fold_batch_norm"),
    "onnx_fold_div_into_matmul": PassRow(prepare="fold_affine"),
    "onnx_fuse_gelu": PassRow("FuseGelu", prepare="fuse_gelu"),
    "onnx_fuse_instance_norm": PassRow("FuseInstanceNorm", prepare="fuse_instance_norm"),
    "onnx_fuse_l2_norm": PassRow("FuseL2Norm", prepare="fuse_l2_norm"),
    "onnx_fuse_layer_norm": PassRow("FuseLayerNorm", prepare="fuse_layer_norm"),
    "onnx_insert_clip_before_bfloat16_qdq": PassRow("BF16WithClip", convert=lambda _: "bfloat16-clip"),
    "onnx_optimize_with_ort": PassRow(prepare="fold_constants remove_identity"),
    "onnx_remove_bfloat16_cast": PassRow(convert=lambda _: "float"),
    "onnx_remove_input_init": PassRow(convert=lambda _: "inputs-without-initializers"),
    "onnx_remove_qdq_between_op_types": PassRow(
        "RemoveQDQBetweenOps",
        lambda it: it.get("remove_qdq_between_op_types"),
        convert=lambda it: f"without-qdq-between:pairs={pairs_setting(it.get('remove_qdq_between_op_types') or ())}",
    ),
    "onnx_replace_bfloat16_qdq_with_cast": PassRow("BF16QDQToCast"),
    "onnx_simplify": PassRow(prepare="fold_constants remove_identity"),
    "onnx_split_large_kernel_pool": PassRow("SplitLargeKernelPool", prepare="split_global_pool"),
    "onnx_xint8_adjust": PassRow(),
    "onnx_xint8_simulate": PassRow(),
}


def options_of_passes(spec: str) -> dict[str, Any]:
    """Return the options for a file of passes, or a template. UsageError, by name, for a pass that has none."""
    if spec.lower() in _TEMPLATES:
        return {}
    read = _load(Path(spec))
    options: dict[str, Any] = {}
    for name, settings in _wanted(read, spec):
        row = _PASSES[name]
        options |= {row.option: row.value(settings)} if row.option else {}
    if read.get("preprocessed_model_path"):
        note(f"{spec}, preprocessed_model_path: the prepared model is not written.")
    return options


def _wanted(read: Mapping[str, Any], spec: str) -> Iterator[tuple[str, Settings]]:
    """Yield the passes that are on, with their settings; UsageError, by name, for one that Detent does not have."""
    groups = [read.get(name) or {} for name in ("preprocess_passes", "passes", "postprocess_passes")]
    for name, settings in ((name, settings or {}) for group in groups for name, settings in group.items()):
        if name not in _PASSES:
            raise UsageError(f"{spec}: Detent has no pass '{name}'.{nearest(name, _PASSES)} Take it out of the file.")
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


def _run(model: ir.Model, name: str, settings: Settings, path: str) -> ir.Model:
    row = _PASSES[name]
    if row.convert is not None:
        return parse_step(row.convert(settings))[1].apply(model, ConversionNotes(name))
    if not row.prepare:
        raise UsageError(f"{path}: '{name}' is part of quantizing a model. Give the file as ShapeShifterYaml instead.")
    passes = {each.step(): each for each in (*default_passes(), ClipToRelu())}
    prepare(model, [passes[step] for step in ("infer_shapes", *row.prepare.split())])
    return model


def _load(path: Path) -> Mapping[str, Any]:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise UsageError(f"Reading {path} needs PyYAML: pip install pyyaml.") from None
    try:
        read = yaml.safe_load(read_text(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"Cannot read the passes in {path}: {error}") from None
    if not isinstance(read, Mapping):
        raise UsageError(f"{path} lists no passes. Expected 'preprocess_passes:' with a line for each.")
    return read
