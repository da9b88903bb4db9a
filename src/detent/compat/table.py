"""The option table: what becomes of every option that other quantizers have, a row each.

The translation applies it, and the manual shows it: `python -m detent.compat.table docs/options.md` writes the page.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detent.compat import auto_mixprecision, finetune
from detent.compat import option_rules as rules
from detent.compat.option_kinds import (
    CONCAT_RULE,
    SHIFT_RULES,
    Option,
    Request,
    all_of,
    boolean,
    device_rewrites,
    field,
    honoured,
    listing,
    met,
    names,
    refused,
    setting,
    switch,
    whole,
)
from detent.errors import UsageError, nearest

_NO_OVERFLOW = "weights always get a scale at which the bias does not overflow"
_BY_NAME = "Leave single preparations out by their own options, or with Recipe(without=...)."
_NO_YAML = "passes are chosen by name, not in a YAML file"
_SEPARATED = "what layers share is always separated where they need different codes"
_PAIRS = "Leave single nodes float with nodes_to_exclude, or give Recipe(overrides=...)."
_WHOLE_NODES = "a node is quantized or left float, with its outputs"
_OWN_PAIR = "every reader of an activation has a pair of its own"
_LEAVE_FLOAT = "Leave such nodes float with nodes_to_exclude."
_RULES_SAY = "False leaves out all rules on positions"
_BLOCKS_SAY = "the sizes and rounding of the blocks (`activations`, `weights`, `biases`)"
_CROSS_LAYER = "`{}` of `CrossLayer` (`equalize`), with include_cle=True"
_ROTATION = "rotations are for language models"
_SMOOTH_INSTEAD = "Give include_sq=True: SmoothQuant."
_ENCRYPTION = "temporary files are not encrypted. Point TMPDIR at an encrypted disk"


def _fused(name: str, op_type: str) -> Option:
    says = f"whether a layer computes a {op_type} behind it before it rounds (`fuse`)"
    return honoured(name, says, rules.fused(op_type))


def _bias_type(name: str, dtype: str) -> Option:
    says = f"{dtype} biases, or where False those of the weights' type (`biases`)"
    return honoured(name, says, rules.bias_type(dtype))


def _symmetric(name: str, role: str) -> Option:
    return honoured(name, f"whether the zero point is fixed (`{role}.symmetric`)", rules.symmetric(role))


def _scaled(name: str, *roles: str) -> Option:
    return honoured(name, f"small floats get a scale from the data (`{roles[0]}.scaled`)", rules.scaled(*roles))


def _cross_layer(name: str, key: str, read: Any = rules.real) -> Option:
    return honoured(name, _CROSS_LAYER.format(key), rules.cross_layer(key, read))


SECTIONS: dict[str, tuple[Option, ...]] = {
    "Numbers": (
        _symmetric("ActivationSymmetric", "activations"),
        _symmetric("WeightSymmetric", "weights"),
        honoured("QuantizeBias", "biases stay float where False (`biases`)", rules.quantize_bias),
        _bias_type("Int32Bias", "int32"),
        _bias_type("Int16Bias", "int16"),
        met("AdjustBiasScale", "a 32-bit bias always has the scale of its layer's products", (True,)),
        met("AdjustWeightScaleForInt32Bias", _NO_OVERFLOW, (True,)),
        met("QDQDisableWeightAdjustForInt32Bias", _NO_OVERFLOW, (False,)),
        honoured("Int16Scale", "scales are a 16-bit integer over a power of two (`scale`)", rules.int16_scale),
        honoured("UsePowerOf2Scale", "must say the same as calibrate_method", rules.power_of_two),
        refused("QuantizeFP16", "half-precision models are computed in float32"),
        met("UseFP32Scale", "scales are float32", (True,)),
        _scaled("ActivationScaled", "activations"),
        _scaled("WeightScaled", "weights", "biases"),
        refused(
            "UseUnsignedReLU", "all activations have one type (Quark reads the option and does nothing)", "Delete it."
        ),
    ),
    "The float model": (
        refused("ShapeShifterYaml", _NO_YAML, _BY_NAME),
        refused("PreprocessYAML", _NO_YAML, _BY_NAME),
        refused("SkipPreprocess", "the plan needs a prepared model", _BY_NAME),
        met("OptimizeModel", "onnxruntime's optimizer is never run on the model; Detent's preparations are its own"),
        all_of(
            "SimplifyModel",
            ("remove_identity", "mat_mul_to_gemm"),
            "False leaves out `remove_identity` and `mat_mul_to_gemm`; constants are folded in any case, never by "
            "onnxslim",
        ),
        refused("SimplifyModelOptions", "they are onnxslim's, which Detent does not use"),
        met("ConvertFP16ToFP32", "half-precision models are always computed in float32"),
        honoured(
            "ConvertNCHWToNHWC",
            "the result takes images channels last (`nhwc` of `detent convert`); data is given as the float model "
            "takes it",
            rules.channels_last,
        ),
        honoured("ConvertOpsetVersion", "the least operator set of the result (`opset`)", rules.opset),
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
        met(
            "ReplaceClip6Relu",
            "channels are equalized through Clip as well as through Relu, so nothing needs replacing",
        ),
        met("RemoveInputInit", "initializers are always taken out of the inputs", (True,)),
        met("CopySharedInit", _SEPARATED),
        met("CopyBiasInit", _SEPARATED),
        honoured("FixShapes", "dynamic inputs get these shapes (`fix_shapes`)", rules.fix_shapes),
        refused("EnableSubgraph", "graphs inside If and Loop stay float", "Inline the graph."),
    ),
    "Which nodes": (
        field("OpTypesToQuantize", "only these operators are quantized", "operators", names),
        field("ExtraOpTypesToQuantize", "these operators are quantized too", "more_operators", names),
        field("QuantizeAllOpTypes", "every operator with float data is quantized", "all_operators"),
        listing("NodesToQuantize", "only these nodes are quantized", "include"),
        listing("InputNodes", "quantization starts at these nodes", "start"),
        listing("OutputNodes", "quantization ends at these nodes", "end"),
        honoured(
            "WeightsOnly", "activations stay float, and 32-bit biases with them (`activations`)", rules.weights_only
        ),
        honoured(
            "MatMulConstBOnly",
            "products of two activations stay float (`products_of_activations`)",
            rules.only_with_weights,
        ),
        honoured(
            "MixedPrecisionTensor",
            "formats of single tensors (`overrides`), with specific_tensor_precision=True",
            rules.tensors_by_type,
        ),
        refused(
            "SpecificTensorPrecision", "it is a field of the configuration", "Give specific_tensor_precision=True."
        ),
        refused("NodesWithMixedPrecision", "it is Quark's own bookkeeping"),
    ),
    "Where Q/DQ pairs go": (
        field("AddQDQPairToWeight", "weights stay float behind a pair of nodes", "weight_pairs"),
        met(
            "ForceQuantizeNoInputCheck",
            "every node of the chosen types is quantized, whether its input already is or not",
            (True,),
            "Leave nodes float with nodes_to_exclude.",
        ),
        field("DedicatedQDQPair", _OWN_PAIR, "dedicated_pairs"),
        field("DedicateDQNode", _OWN_PAIR, "dedicated_pairs"),
        refused(
            "EnableDualQuantNodePairs", "a value between two formats has one pair per format already", "Delete it."
        ),
        refused("OpTypesToExcludeOutputQuantization", _WHOLE_NODES, _PAIRS),
        refused("NodesToExcludeOutputQuantization", _WHOLE_NODES, _PAIRS),
        refused("QDQOpTypePerChannelSupportToAxis", "the axis is that of the operator's output channels", "Delete it."),
        _fused("RemoveQDQConvClip", "Clip"),
        _fused("RemoveQDQConvRelu", "Relu"),
        _fused("RemoveQDQConvLeakyRelu", "LeakyRelu"),
        _fused("RemoveQDQConvPRelu", "PRelu"),
        _fused("RemoveQDQConvGelu", "Gelu"),
        honoured(
            "RemoveQDQMulAdd",
            "no pairs between Mul and Add (`without-qdq-between` of `detent convert`)",
            rules.between_mul_and_add,
        ),
        honoured(
            "RemoveQDQBetweenOps",
            "no pairs between these operators (`without-qdq-between` of `detent convert`)",
            rules.between,
        ),
        refused("RemoveQDQInstanceNorm", "only layers compute the activation function behind them", _PAIRS),
        refused("RemoveFusedQDQ", "block formats round what a layer hands to its activation function", "Delete it."),
        met("QDQKeepRemovableActivations", "activation functions always stay in the file"),
        met(
            "UseQDQContribOps",
            "16-bit types are written in com.microsoft's operators where ONNX's are too old for them",
        ),
        met("UseQDQVitisCustomOps", "the operators follow from quant_format"),
    ),
    "Calibration": (
        honoured("CalibDataSize", "at most so many samples (`limit`), where anything is calibrated", rules.limit),
        honoured("CalibTensorRangeSymmetric", "must say the same as ActivationSymmetric", rules.range_symmetric),
        honoured(
            "CalibMovingAverage", "the mean of each sample's range (`MinMax.moving_average`)", rules.moving_average
        ),
        met(
            "CalibMovingAverageConstant",
            "all samples count alike: the constant acts only between parts of the data",
        ),
        honoured("MinMSEModePof2Scale", "All, MostCommon or Percentile (`MinMSE.mode`)", rules.min_mse_mode),
        honoured("MinMSEMode", "the older name of MinMSEModePof2Scale", rules.min_mse_mode),
        honoured("Percentile", "the percentage (`Percentile.percentile`)", rules.percentile),
        honoured("CalibPercentile", "onnxruntime's name of Percentile", rules.percentile),
        met("CalibMaxIntermediateOutputs", "memory never grows with the calibration set"),
        refused(
            "CalibStridedMinMax", "ranges are those of all samples", "Give CalibMovingAverage=True for their mean."
        ),
        refused(
            "MinimumRealRange", "ranges are those that were observed", "Give TensorQuantOverrides with rmin and rmax."
        ),
        setting("LWPMetric", "mae or mse", "LayerwisePercentile", "metric"),
        setting("PercentileCandidates", "the percentages to choose from", "LayerwisePercentile", "candidates"),
        met(
            "LWPUseHistogram",
            "candidates are compared on the histogram",
            (True,),
            "Raw data is not kept: delete the option.",
        ),
        honoured("WeightCalibrateMethod", "the method for weights (`weight_method`)", rules.weight_method),
        honoured("MinMSEModeFloatScale", "All or Percentile (`weight_method`)", rules.weight_mode),
        honoured("NumBins", "`Entropy.bins`; other methods have 16384 bins, and MinMSE the exact answer", rules.bins),
        setting("NumQuantizedBins", "the groups of bins", "Entropy", "quantized_bins"),
        setting("Scenario", "same or p3", "Distribution", "scenario"),
        honoured("CalibWorkerNum", "worker threads (`threads`)", rules.worker_threads),
        met("CalibOptimizeMem", "memory never grows with the calibration set, and nothing is written to disk"),
        refused("CalibPassthroughOpTypes", "what only moves data shares its input's scale already"),
        honoured("UseRandomData", "data is not looked at, random numbers are used", rules.always_random),
        honoured("RandomDataReaderInputShape", "shapes of random data", rules.random_data("shapes")),
        honoured("RandomDataReaderInputDataRange", "ranges of random data", rules.random_data("ranges")),
        refused(
            "SaveTensorHistFig", "figures are drawn from saved statistics", "`detent stats FILE --plot DIR` draws them."
        ),
        honoured("TensorQuantOverrides", "formats and ranges of single tensors (`overrides`)", rules.tensor_overrides),
        honoured(
            "SaveAndRestore", "statistics are kept in this file, and used again where it exists", rules.statistics_file
        ),
        honoured("TensorsRangeFile", "the older name of SaveAndRestore", rules.statistics_file),
        refused(
            "QuantizationPreference",
            "it sets memory, workers and early stopping of Quark's calibration",
            "Choose a recipe: XINT8 for speed, A16W8 for accuracy.",
        ),
    ),
    "The device": (
        all_of("SimulateDPU", device_rewrites(), "False leaves out all rewrites into the device's own operators"),
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
        field(
            "AlignEltwiseQuantType", "constants beside activations have the type of these", "constants_as_activations"
        ),
    ),
    "bfloat16, blocks, language models": (
        honoured("BF16WithClip", "numbers past the largest one become it, not infinity (`clip`)", rules.clip_floats),
        honoured(
            "BF16QDQToCast",
            "pairs of Cast around every value, or where False of custom operators (`format`)",
            rules.with_casts,
        ),
        refused(
            "EnableVaimlBF16",
            "it is a float32 model with rounded weights",
            "`detent convert MODEL OUTPUT --to bfloat16:form=simulated` writes it.",
        ),
        met("RefineBlockAxis", "blocks always lie along the axis that is summed over", (True,)),
        honoured("BFPAttributes", _BLOCKS_SAY, rules.blocks("block_float")),
        honoured("MXAttributes", _BLOCKS_SAY, rules.blocks("microscaling")),
        honoured(
            "UseMatMulNBits", "weights of 4 bits in groups, activations float (recipe MATMUL_NBITS)", rules.few_bits
        ),
        honoured("MatMulNBitsParams", "GroupSize and Symmetric of these", rules.few_bits_params),
        honoured("UseGPTQ", "weights rounded in turn, in every layer (`refinement=Gptq()`)", rules.use_gptq),
        honoured(
            "GPTQParams",
            "PercDamp, BlockSize and ActOrder of these; GroupSize and PerChannel are the weights' scales",
            rules.gptq_params,
        ),
    ),
    "Accuracy": (
        _cross_layer("CLESteps", "steps", whole),
        met("CLEBalanceMethod", "the largest weights are balanced: no tool has another method"),
        _cross_layer("CLEWeightThreshold", "threshold"),
        _cross_layer("CLEScaleAppendBias", "append_bias", boolean),
        honoured(
            "CLEScaleUseThreshold",
            "False: `threshold=0` of `CrossLayer` (`equalize`)",
            rules.cross_layer_threshold,
        ),
        _cross_layer("CLETotalLayerDiffThreshold", "converged"),
        honoured(
            "SmoothAlpha",
            "the alpha of SmoothQuant (`smooth`), with include_sq=True",
            lambda request, name, value: request.with_recipe(smooth=rules.real(name, value)),
        ),
        honoured("SmoothQuant", "onnxruntime's switch for SmoothQuant (`smooth`)", rules.smooth_switch),
        honoured("SmoothQuantAlpha", "onnxruntime's name of SmoothAlpha, with SmoothQuant=True", rules.smooth_alpha),
        met("SmoothQuantFolding", "factors are folded into the layer before where there is one"),
        honoured("BiasCorrection", "on unless said otherwise (`refinement`)", rules.bias_correction),
        honoured("FastFinetune", "AdaRound or AdaQuant (`refinement`), with include_fast_ft=True", rules.finetune),
        honoured(
            "AutoMixprecision",
            "another format in every layer, or in those that a search finds (`overrides`), with include_auto_mp=True",
            rules.mixed_precision,
        ),
        refused("RMatrixDim", _ROTATION, _SMOOTH_INSTEAD, (4096, None)),
        refused("UseRandomHad", _ROTATION, _SMOOTH_INSTEAD),
        refused("RConfigPath", _ROTATION, _SMOOTH_INSTEAD),
    ),
    "Runtime": (
        honoured("ExecutionProviders", "onnxruntime's providers to calibrate on (`providers`)", rules.providers),
        met(
            "DefaultTensorType",
            "types are inferred; where they cannot be, the node stays float and the report says so",
        ),
        met("TmpDir", "temporary files are deleted at once, and stand where the environment variable TMPDIR says"),
        refused(
            "UserCustomOpLibPath", "only operators that plain onnxruntime has can be run", "Replace them by functions."
        ),
        refused("CryptoMode", _ENCRYPTION),
        refused("EncryptionAlgorithm", _ENCRYPTION),
        refused(
            "DebugMode", "intermediate models are not written", "`detent quantize --report FILE` says what was done."
        ),
        honoured("PrintSummary", "whether the report is printed", rules.summary),
        met(
            "IgnoreWarnings", "warnings of other libraries are left as the script has them; Detent's are in its report"
        ),
        met("EvalMetrics", "what quantization cost is always measured and reported"),
        refused(
            "EvalDataReader", "it is measured on calibration samples that are held out", "Use `detent run` evaluate."
        ),
        met("FillAllValueInfo", "types and shapes are written as far as they are known"),
        honoured("EnableNPUCnn", "the same as enable_npu_cnn (`target`)", rules.device),
    ),
}
"""In the order in which they are applied, whatever order a script gives them in."""

OPTIONS: dict[str, Option] = {option.name: option for section in SECTIONS.values() for option in section}


def apply_options(request: Request, options: Mapping[str, Any]) -> Request:
    """Return the request with all options applied. Raises UsageError for the first that is unknown or refused."""
    for name in options:
        if name not in OPTIONS:
            raise UsageError(f"There is no option '{name}'.{nearest(name, OPTIONS)} docs/options.md lists them all.")
    for name, option in OPTIONS.items():
        if name in options:
            request = option.apply(request, options[name])
    return request


_HEAD = f"""# Options of other quantizers

A script written for AMD Quark, vai_q_onnx or onnxruntime's quantizer runs as it is:

```sh
detent run quantize.py model.onnx model_int8.onnx
```

Its `extra_options` ({len(OPTIONS)} names) are *honoured* (a field of the recipe, in brackets, or an argument of
`detent.quantize`), *met* (Detent does that anyway, or never needs it) or *refused* with a message that says what to do
instead. None is ignored: an unknown name is an error, and so is a value that asks for something else than what is done.

This page is written by `python -m detent.compat.table docs/options.md`.
"""

_EQUALIZATION = """`include_cle=True` alone equalizes [all layers at once](accuracy.md#equalization), which loses less.
A script that gives any CLE option (but CLEBalanceMethod), be it the default, gets the equalization of the other tools,
[layer by layer](accuracy.md#layer-by-layer); so does one that lists CLEConfig. With `include_cle=False` none is done.
"""

_NOTES = {"Accuracy": _EQUALIZATION}


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, options in SECTIONS.items():
        known = [(option.name, str(option.verdict), option.says) for option in options]
        parts.append(_section(title, known, _NOTES.get(title, "")))
    parts.append(_section("FastFinetune, with include_fast_ft=True", finetune.rows()))
    parts.append(_section("AutoMixprecision, with include_auto_mp=True", auto_mixprecision.rows()))
    return "\n".join(parts)


def _section(title: str, rows: list[tuple[str, str, str]], note: str = "") -> str:
    lines = [f"| {name} | {verdict} | {says} |" for name, verdict, says in rows]
    above = [note] if note else []
    return "\n".join([f"## {title}\n", *above, "| option | | |", "|---|---|---|", *lines]) + "\n"


def main(arguments: list[str]) -> None:
    """Write the page to the file that is named."""
    Path(arguments[0]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
