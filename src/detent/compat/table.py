"""The option table: what becomes of every option that other quantizers have, a row each.

`translate` applies it, and `tools/option_page.py` writes the page of the manual from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from detent.compat import option_rules as rules
from detent.compat.option_rows import (
    Option,
    Reader,
    apply_rows,
    as_given,
    boolean,
    count,
    honoured,
    met,
    names,
    note,
    noted,
    number,
    refused,
    table_of,
    unchanged,
    whole,
)
from detent.compat.option_rules import ROLES, Request
from detent.devices.catalog import find_device
from detent.devices.constraints import CONCATS, SHIFTS
from detent.errors import UsageError, nearest

_SUBGRAPHS = (
    "layers inside If and Loop: with dynamic operators onnxruntime's own quantizer does them, QOperator is refused, "
    "and in Q/DQ models they stay float, as there"
)
_NO_OVERFLOW = "weights always get a scale at which the bias does not overflow"
_SEPARATED = "what layers share is always separated where they need different codes"
_PASSES = "each pass of the file is the option of the same meaning; others are refused by name"
_OUTPUTS = "outputs of these get pairs only where the next layer needs them (`without-output-qdq` of `detent convert`)"
_PAIRS_STAY = "pairs stay where they are"
_OWN_PAIR = "every reader of an activation has a pair of its own"
_RULES_SAY = "False leaves out all rules on positions"
_BLOCKS_SAY = "the sizes and rounding of the blocks (`activations`, `weights`, `biases`)"
_ZERO_POINT = "whether the zero point is fixed"
_OR_WEIGHTS = "or for False those of the weights' type (`biases`)"
_SCALED = "small floats get a scale from the data (`{}.scaled`)"
_FUSED = "whether a layer computes a {} behind it before it rounds (`fuse`)"
_CHANNELS_LAST = "the result takes images channels last (`nhwc` of `detent convert`); data may have them first or last"
_SIMPLIFY = ("remove_identity", "mat_mul_to_gemm")
_TENSORS = "formats of single tensors (`overrides`)"
_BETWEEN = "`without-qdq-between` of `detent convert`"
_WEIGHT_SCALES = "GroupSize and PerChannel are the weights' scales"
_OTHER_FORMAT = "another format in every layer, or in those that a search finds (`overrides`)"
_CNN = find_device("npu-xint8")
# What makes the file answer as the CNN device does, rounding aside.
_REWRITES = tuple(each.step() for each in (*_CNN.substitutions, *_CNN.corrections))
_ENCRYPTION = "temporary files are not encrypted. Point TMPDIR at an encrypted disk"


def _flag(name: str, says: str, rule: Callable[..., Request], **settings: Any) -> Option:
    """Make a row for an option that is True or False."""
    return honoured(name, says, partial(rule, **settings), boolean)


def _when(name: str, says: str, change: Callable[[Request], Request], on: bool = True) -> Option:
    """Make a row for an option that changes the request for one of True and False."""
    return _flag(name, says, lambda request, value: change(request) if value is on else request)


def _field(name: str, says: str, field: str, read: Reader = boolean) -> Option:
    """Make a row for an option that is one field of the recipe."""
    return honoured(name, f"{says} (`{field}`)", lambda request, value: request.with_recipe(**{field: value}), read)


def _beside(name: str, says: str, field: str, read: Reader = boolean) -> Option:
    """Make a row for an option that is one field of the request."""
    return honoured(name, says, lambda request, value: request.replace(**{field: value}), read)


def _listing(name: str, says: str, where: str) -> Option:
    """Make a row for nodes that are added to a list of the request."""

    def rule(request: Request, nodes: tuple[str, ...]) -> Request:
        return request.replace(**{where: (*getattr(request, where), *nodes)})

    return honoured(name, f"{says} (`{where}`)", rule, names)


def _setting(name: str, says: str, method: str, key: str, read: Reader = as_given) -> Option:
    """Make a row for a setting of one calibration method, and of no other."""
    return honoured(name, says, lambda request, value: request.with_method(method, **{key: value}), read)


def _recipe(**changes: Any) -> Callable[[Request], Request]:
    return lambda request: request.with_recipe(**changes)


def _switch(name: str, *steps: str) -> Option:
    """Make a row for steps of preparation or rules of a target: done for True, left out for False."""
    listed = ", ".join(f"`{step}`" for step in steps)
    return _flag(name, f"{listed}: done for True, left out for False", rules.switch, steps=steps)


def _all_of(name: str, steps: tuple[str, ...], says: str) -> Option:
    """Make a row for many steps: True leaves each as it is, False leaves all out."""
    return _when(name, says, lambda request: rules.switch(request, False, steps), on=False)


def _cross_layer(name: str, key: str, read: Reader = number) -> Option:
    says = f"`{key}` of `CrossLayer` (`equalize`), with include_cle=True"
    return honoured(name, says, lambda request, value: rules.equalized(request, **{key: value}), read)


def _path(value: Any) -> Path | None:
    return Path(value) if value else None


def _without_threshold(request: Request, wanted: bool) -> Request:
    return rules.equalized(request) if wanted else rules.equalized(request, threshold=0.0)


# In the order in which they are applied, whatever order a script gives them in.
SECTIONS: dict[str, tuple[Option, ...]] = {
    "Numbers": (
        _flag("ActivationSymmetric", f"{_ZERO_POINT} (`activations.symmetric`)", rules.symmetric, role="activations"),
        _flag("WeightSymmetric", f"{_ZERO_POINT} (`weights.symmetric`)", rules.symmetric, role="weights"),
        _when("QuantizeBias", "biases stay float for False (`biases`)", _recipe(biases=None), on=False),
        _flag("Int32Bias", f"int32 biases, {_OR_WEIGHTS}", rules.bias_type, dtype="int32"),
        _flag("Int16Bias", f"int16 biases, {_OR_WEIGHTS}", rules.bias_type, dtype="int16"),
        met("AdjustBiasScale", "a 32-bit bias always has the scale of its layer's products", (True,)),
        met("AdjustWeightScaleForInt32Bias", _NO_OVERFLOW, (True,)),
        met("QDQDisableWeightAdjustForInt32Bias", _NO_OVERFLOW, (False,)),
        _when("Int16Scale", "scales are a 16-bit integer over a power of two (`scale`)", rules.int16_scale),
        _flag("UsePowerOf2Scale", "must say the same as calibrate_method", rules.power_of_two),
        noted("QuantizeFP16", "half-precision models are computed in float32"),
        met("UseFP32Scale", "scales are float32", (True,)),
        _flag("ActivationScaled", _SCALED.format("activations"), rules.float_setting, key="scaled", roles=ROLES[:1]),
        _flag("WeightScaled", _SCALED.format("weights"), rules.float_setting, key="scaled", roles=ROLES[1:]),
        noted("UseUnsignedReLU", "all activations have one type (Quark reads the option and does nothing, too)"),
    ),
    "The float model": (
        # `translate` has read the file, since its passes are options of their own.
        honoured("ShapeShifterYaml", _PASSES, unchanged),
        honoured("PreprocessYAML", "the older name of ShapeShifterYaml", unchanged),
        noted("SkipPreprocess", "the model is prepared all the same, which does not change what it computes"),
        met("OptimizeModel", "onnxruntime's optimizer is never run on the model; Detent's preparations are its own"),
        _all_of("SimplifyModel", _SIMPLIFY, "False leaves out `remove_identity` and `mat_mul_to_gemm`"),
        noted("SimplifyModelOptions", "they are onnxslim's, which Detent does not use"),
        met("ConvertFP16ToFP32", "half-precision models are always computed in float32"),
        _beside(
            "ConvertNCHWToNHWC", _CHANNELS_LAST, "conversions", lambda value: (rules.NHWC,) if boolean(value) else ()
        ),
        _field("ConvertOpsetVersion", "the least operator set of the result", "opset", count),
        _switch("ConvertBNToConv", "batch_norm_to_conv"),
        _switch("ConvertReduceMeanToGlobalAvgPool", "reduce_mean_to_pool"),
        _switch("SplitLargeKernelPool", "split_global_pool"),
        _switch("ConvertSplitToSlice", "split_to_slice"),
        _switch("ConvertClipToRelu", "clip_to_relu"),
        _switch("FuseInstanceNorm", "fuse_instance_norm"),
        _switch("FuseL2Norm", "fuse_l2_norm"),
        _switch("FuseGelu", "fuse_gelu"),
        _switch("FuseLayerNorm", "fuse_layer_norm"),
        _switch("FoldBatchNorm", "fold_batch_norm"),
        met("FoldRelu", "a Relu is computed by the layer before it, whatever this says; it stays in the file"),
        met("ReplaceClip6Relu", "channels are equalized through Clip as well, so nothing needs replacing"),
        met("RemoveInputInit", "initializers are always taken out of the inputs", (True,)),
        met("CopySharedInit", _SEPARATED),
        met("CopyBiasInit", _SEPARATED),
        _beside("FixShapes", "dynamic inputs get these shapes (`fix_shapes`)", "fix_shapes", rules.parse_shapes),
        _flag("EnableSubgraph", _SUBGRAPHS, rules.subgraphs),
    ),
    "Which nodes": (
        _field("OpTypesToQuantize", "only these operators are quantized", "operators", names),
        _field("ExtraOpTypesToQuantize", "these operators are quantized too", "more_operators", names),
        _field("QuantizeAllOpTypes", "every operator with float data is quantized", "all_operators"),
        _listing("NodesToQuantize", "only these nodes are quantized", "include"),
        _listing("InputNodes", "quantization starts at these nodes", "start"),
        _listing("OutputNodes", "quantization ends at these nodes", "end"),
        _when("WeightsOnly", "activations and 32-bit biases stay float (`activations`)", rules.weights_only),
        _field(
            "MatMulConstBOnly",
            "products of two activations stay float",
            "products_of_activations",
            lambda it: not boolean(it),
        ),
        honoured("MixedPrecisionTensor", f"{_TENSORS}, with specific_tensor_precision=True", rules.tensors_by_type),
        met("SpecificTensorPrecision", "MixedPrecisionTensor says which tensors"),
        met("NodesWithMixedPrecision", "it is Quark's own bookkeeping"),
    ),
    "Where Q/DQ pairs go": (
        _field("AddQDQPairToWeight", "weights stay float behind a pair of nodes", "weight_pairs"),
        met("ForceQuantizeNoInputCheck", "what only moves data has the codes of its input in any case"),
        _field("DedicatedQDQPair", _OWN_PAIR, "dedicated_pairs"),
        _field("DedicateDQNode", _OWN_PAIR, "dedicated_pairs"),
        _beside("EnableDualQuantNodePairs", "whether a tensor between two formats has a pair for each", "dual"),
        honoured("OpTypesToExcludeOutputQuantization", _OUTPUTS, partial(rules.bare_outputs, key="op_types"), names),
        honoured("NodesToExcludeOutputQuantization", _OUTPUTS, partial(rules.bare_outputs, key="nodes"), names),
        noted("QDQOpTypePerChannelSupportToAxis", "the axis is that of the operator's output channels"),
        *(
            _flag(f"RemoveQDQConv{op_type}", _FUSED.format(op_type), rules.fused, op_type=op_type)
            for op_type in ("Clip", "Relu", "LeakyRelu", "PRelu", "Gelu")
        ),
        _when(
            "RemoveQDQMulAdd", f"none between Mul and Add ({_BETWEEN})", lambda it: rules.between(it, [("Mul", "Add")])
        ),
        honoured("RemoveQDQBetweenOps", f"no pairs between these operators ({_BETWEEN})", rules.between),
        noted("RemoveQDQInstanceNorm", f"only layers compute the activation function behind them: {_PAIRS_STAY}"),
        noted("RemoveFusedQDQ", f"block formats round what a layer hands to its activation function: {_PAIRS_STAY}"),
        met("QDQKeepRemovableActivations", "activation functions always stay in the file"),
        met("UseQDQContribOps", "16-bit types are written in com.microsoft's operators where ONNX's are too old"),
        met("UseQDQVitisCustomOps", "the operators follow from quant_format"),
    ),
    "Calibration": (
        honoured("CalibDataSize", "the most samples (`limit`), where any are calibrated with", rules.limit, count),
        _flag("CalibTensorRangeSymmetric", "must say the same as ActivationSymmetric", rules.range_symmetric),
        _when(
            "CalibMovingAverage",
            "the mean of samples' ranges",
            lambda it: it.with_method("MinMax", moving_average=True),
        ),
        met("CalibMovingAverageConstant", "all samples count alike: it acts only between parts of the data"),
        _setting("MinMSEModePof2Scale", "All, MostCommon or Percentile", "MinMSE", "mode"),
        _setting("MinMSEMode", "the older name of MinMSEModePof2Scale", "MinMSE", "mode"),
        honoured("Percentile", "the percentage (`Percentile.percentile`)", rules.percentile, number),
        honoured("CalibPercentile", "onnxruntime's name of Percentile", rules.percentile, number),
        met("CalibMaxIntermediateOutputs", "memory never grows with the calibration set"),
        noted("CalibStridedMinMax", "ranges are those of all samples"),
        noted("MinimumRealRange", "ranges are as observed"),
        _setting("LWPMetric", "mae or mse", "LayerwisePercentile", "metric"),
        _setting("PercentileCandidates", "the percentages to choose from", "LayerwisePercentile", "candidates", tuple),
        met("LWPUseHistogram", "candidates are compared on the histogram; raw data is not kept", (True,)),
        honoured("WeightCalibrateMethod", "the method for weights (`weight_method`)", rules.weight_method),
        honoured("MinMSEModeFloatScale", "All or Percentile (`weight_method`)", rules.weight_mode),
        honoured("NumBins", "`Entropy.bins`; other methods have 16384 bins, MinMSE needs none", rules.bins, count),
        _setting("NumQuantizedBins", "the groups of bins", "Entropy", "quantized_bins"),
        _setting("Scenario", "same or p3", "Distribution", "scenario"),
        _beside("CalibWorkerNum", "worker threads", "threads", lambda it: whole(it) if whole(it) > 1 else 0),
        met("CalibOptimizeMem", "memory never grows with the calibration set, and nothing is written to disk"),
        met("CalibPassthroughOpTypes", "what only moves data shares its input's scale already"),
        met("UseRandomData", "random numbers are used where a script gives no data, and only there"),
        _beside("RandomDataReaderInputShape", "shapes of random data", "random_shapes", lambda it: it or None),
        _beside("RandomDataReaderInputDataRange", "ranges of random data", "random_ranges", lambda it: it or None),
        noted("SaveTensorHistFig", "figures are drawn from saved statistics, by `detent stats FILE --plot DIR`"),
        honoured("TensorQuantOverrides", "formats and ranges of single tensors (`overrides`)", rules.tensor_overrides),
        _beside("SaveAndRestore", "statistics are kept in this file, and used again", "statistics", _path),
        _beside("TensorsRangeFile", "the older name of SaveAndRestore", "statistics", _path),
        noted("QuantizationPreference", "it sets Quark's own calibration, and the configuration says what to do"),
    ),
    "The device": (
        _all_of("SimulateDPU", _REWRITES, "False leaves out all rewrites into the device's own operators"),
        _switch("ConvertLeakyReluToDPUVersion", "round_leaky_slope"),
        _switch("ConvertSigmoidToHardSigmoid", "sigmoid_to_hard_sigmoid"),
        _switch("ConvertHardSigmoidToDPUVersion", "scale_hard_sigmoid"),
        _switch("ConvertAvgPoolToDPUVersion", "scale_pools"),
        _switch("ConvertReduceMeanToDPUVersion", "scale_reduce_mean"),
        _switch("ConvertClipToDPUVersion", "whole_clip"),
        noted("ConvertSoftmaxToDPUVersion", "the device's Softmax is not simulated: the exact one stays"),
        noted("ConvertInstanceNormToDPUVersion", "the device's InstanceNormalization is not simulated: it stays exact"),
        _all_of("NPULimitationCheck", SHIFTS.names, _RULES_SAY),
        _all_of("IPULimitationCheck", SHIFTS.names, _RULES_SAY),
        met("MaxLoopNum", "rules are applied until all of them hold, however many rounds that takes"),
        _switch("AdjustShiftCut", "shift_cut"),
        _switch("AdjustShiftBias", "shift_bias"),
        _switch("AdjustShiftRead", "shift_read"),
        _switch("AdjustShiftWrite", "shift_write"),
        _switch("AdjustHardSigmoid", "hard_sigmoid"),
        _switch("AdjustShiftSwish", "shift_swish"),
        _switch("AlignConcat", *CONCATS.names),
        _switch("AlignPool", "align_pool"),
        _switch("AlignPad", "align_pad"),
        _switch("AlignSlice", "align_slice"),
        met("AlignTranspose", "a Transpose always shares the scale of its input"),
        met("AlignReshape", "a Reshape always shares the scale of its input"),
        _field("AlignEltwiseQuantType", "constants have the type of activations", "constants_as_activations"),
    ),
    "bfloat16, blocks, language models": (
        _flag("BF16WithClip", "numbers past the largest become it (`clip`)", rules.float_setting, key="clip"),
        _flag("BF16QDQToCast", "pairs of Cast, or for False of custom operators (`format`)", rules.with_casts),
        _when("EnableVaimlBF16", "a float32 model with bfloat16 weights (`bfloat16:form=simulated`)", rules.simulated),
        met("RefineBlockAxis", "blocks always lie along the axis that is summed over", (True,)),
        honoured("BFPAttributes", _BLOCKS_SAY, partial(rules.blocks, kind="block_float")),
        honoured("MXAttributes", _BLOCKS_SAY, partial(rules.blocks, kind="microscaling")),
        _when("UseMatMulNBits", "4-bit weights in groups, float activations (recipe MATMUL_NBITS)", rules.few_bits),
        honoured("MatMulNBitsParams", "GroupSize, Symmetric and Algorithm of these", rules.few_bits_params),
        _when("UseGPTQ", "weights rounded in turn, in every layer (`refinement=Gptq()`)", rules.gptq),
        honoured("GPTQParams", f"PercDamp, BlockSize and ActOrder of these; {_WEIGHT_SCALES}", rules.gptq_params),
    ),
    "Accuracy": (
        _cross_layer("CLESteps", "steps", whole),
        met("CLEBalanceMethod", "the largest weights are balanced: no tool has another method"),
        _cross_layer("CLEWeightThreshold", "threshold"),
        _cross_layer("CLEScaleAppendBias", "append_bias", boolean),
        _flag("CLEScaleUseThreshold", "False: `threshold=0` of `CrossLayer` (`equalize`)", _without_threshold),
        _cross_layer("CLETotalLayerDiffThreshold", "converged"),
        _field("SmoothAlpha", "the alpha of SmoothQuant, with include_sq=True", "smooth", number),
        _when("SmoothQuant", "onnxruntime's switch for SmoothQuant (`smooth`)", _recipe(smooth=0.5)),
        honoured("SmoothQuantAlpha", "its name of SmoothAlpha, with SmoothQuant=True", rules.smooth_alpha, number),
        met("SmoothQuantFolding", "factors are folded into the layer before where there is one"),
        _flag("BiasCorrection", "on unless said otherwise (`refinement`)", rules.bias_correction),
        honoured("FastFinetune", "AdaRound or AdaQuant (`refinement`), with include_fast_ft=True", rules.finetune),
        honoured("AutoMixprecision", f"{_OTHER_FORMAT}, with include_auto_mp=True", rules.mixed_precision),
        met("RMatrixDim", "a rotation has the size of the residual stream, whatever this says"),
        met("UseRandomHad", "the signs of a rotation are random, and the same in every run"),
        met("RConfigPath", "include_rotation=True finds what computes and reads the residual stream in the graph"),
    ),
    "Runtime": (
        _beside("ExecutionProviders", "onnxruntime's providers to calibrate on (`providers`)", "providers", names),
        met("DefaultTensorType", "types are inferred; where they cannot be, the node stays float: see the report"),
        met("TmpDir", "temporary files are deleted at once, and stand where the environment variable TMPDIR says"),
        noted("UserCustomOpLibPath", "no library is loaded: operators of others have to be functions of the model"),
        refused("CryptoMode", _ENCRYPTION),
        met("EncryptionAlgorithm", "CryptoMode decides"),
        noted("DebugMode", "intermediate models are not written: the report says what was done"),
        _beside("PrintSummary", "whether the report is printed", "summary"),
        met("IgnoreWarnings", "warnings of other libraries are left as they are; Detent's are in its report"),
        met("EvalMetrics", "what quantization cost is always measured and reported"),
        noted("EvalDataReader", "what quantization cost is measured on the calibration data"),
        met("FillAllValueInfo", "types and shapes are written as far as they are known"),
        # Taken for the field before anything else, because much depends on it: here its value is only checked.
        _flag("EnableNPUCnn", "the same as enable_npu_cnn (`target`)", unchanged),
    ),
}

OPTIONS = table_of(option for section in SECTIONS.values() for option in section)


def apply_options(request: Request, options: Mapping[str, Any]) -> Request:
    """Return the request with all options applied; UsageError for the first that is refused.

    An unknown one is noted: the other tools ignore it, and versions differ in what they know.
    """
    for name in options:
        if name not in OPTIONS:
            note(f"There is no option '{name}'.{nearest(name, OPTIONS)} It is ignored.")
    known = {name: value for name, value in options.items() if name in OPTIONS and value is not None}  # None: not set
    try:
        changed: Request = apply_rows(OPTIONS, request, known)
    except UsageError as error:
        raise UsageError(f"The option {error}") from None
    return changed
