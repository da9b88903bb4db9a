"""What scripts call to quantize: Quark's ModelQuantizer, and the functions of Quark, vai_q_onnx and onnxruntime.

Each function has the arguments and defaults of the original, in its order: a name that is a field of
QuantizationConfig has the default of that field, and all of them become one configuration. onnxruntime's functions do
not equalize channels, and print nothing; biases are corrected.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import make_dataclass, replace
from functools import partial
from inspect import Parameter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

import detent
from detent.comparison.folders import dump_codes
from detent.compat.configs import AnyConfig, Config, QConfig, QuantizationConfig
from detent.compat.enums import PowerOfTwoMethod, QuantType
from detent.compat.finder import original
from detent.compat.growing_histogram import counted_ranges
from detent.compat.layer_tensors import note_what_is_missing, overrides_of
from detent.compat.option_rows import note
from detent.compat.option_rules import NHWC, Request
from detent.compat.readers import RandomDataReader, ReadOnce, Repeatable, channels_first
from detent.compat.tool_names import AS_QUARK_IN_CHILDREN
from detent.compat.translate import translate
from detent.convert import parse_step
from detent.convert.step import ConversionNotes, ConversionStep
from detent.errors import DataError, DetentError, UsageError, nearest
from detent.graph.load import ModelLike, load, read
from detent.graph.runtime import onnxruntime
from detent.graph.save import check_output, save
from detent.numerics.formats import is_integer
from detent.observe.sources import input_specs, open_source
from detent.pipeline.job import make_job
from detent.qdq.functions import add_functions
from detent.recipe.recipe import DYNAMIC_OPERATORS, LAYERS

if TYPE_CHECKING:
    from detent.results.quantized import Report


# Whether scripts get the numbers of Quark, without Detent's own accuracy steps (`detent run --as-quark`).
AS_QUARK: ContextVar[bool] = ContextVar("AS_QUARK", default=AS_QUARK_IN_CHILDREN in os.environ)


class ModelQuantizer:
    """Quark's quantizer: `ModelQuantizer(config).quantize_model(model, output, reader)`."""

    def __init__(self, config: AnyConfig) -> None:
        if not isinstance(config, (Config, QConfig, QuantizationConfig)):
            raise UsageError(f"ModelQuantizer takes a Config or a QConfig, found {type(config).__name__}.")
        self.config = config

    def quantize_model(
        self,
        model_input: ModelLike,
        model_output: str | Path | None = None,
        calibration_data_reader: Any = None,
        calibration_data_path: str | Path | None = None,
        algorithms: Any = None,
    ) -> onnx.ModelProto | None:
        """Quantize `model_input` and write it to `model_output`; without one, return the model."""
        if algorithms:
            raise UsageError("algorithms: list them in QConfig(algo_config=[...]).")
        return _quantize(self.config, model_input, model_output, calibration_data_reader, calibration_data_path)


# -- functions ---------------------------------------------------------------------------------------------------------

_CONFIG_DEFAULTS = {
    name: None if isinstance(value, (list, dict)) else value for name, value in vars(QuantizationConfig()).items()
}
# Other names that a field has had.
_SAME_AS = {
    **dict.fromkeys(("use_dpu", "enable_dpu", "enable_ipu_cnn"), "enable_npu_cnn"),
    "enable_ipu_transformer": "enable_npu_transformer",
    "calibration_providers": "execution_providers",
}
_AS_OPTION = {
    "random_data_reader_input_shape": "RandomDataReaderInputShape",
    "calibration_cache_path": "SaveAndRestore",
}


def _parameters(names: str, required: tuple[str, ...], defaults: dict[str, Any]) -> list[Parameter]:
    """Return the parameters of a function from their names, which stand in its order."""
    known = {**_CONFIG_DEFAULTS, **dict.fromkeys(_SAME_AS, False), "calibration_providers": None, **defaults}
    return [
        Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=Parameter.empty if name in required else known.get(name),
            annotation=Any,
        )
        for name in names.split()
    ]


def _function(
    name: str,
    names: str,
    required: tuple[str, ...] = ("model_input", "model_output"),
    defaults: dict[str, Any] | None = None,
    **fixed: Any,
) -> Callable[..., onnx.ModelProto | None]:
    """Make a function that quantizes with these arguments; `fixed` are fields that it has no argument for."""
    signature = inspect.Signature(_parameters(names, required, defaults or {}))

    def function(*args: Any, **kwargs: Any) -> onnx.ModelProto | None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}() {error}") from None  # as Python words it, with the name that the script calls
        bound.apply_defaults()
        given = dict(bound.arguments)
        sources = [given.pop(each, None) for each in ("calibration_data_reader", "calibration_data_path")]
        model, output = given.pop("model_input"), given.pop("model_output")
        return _quantize(_config_of(given, fixed), model, output, *sources)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Quantize `model_input` as {name} of another tool does, with its arguments."
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _config_of(given: dict[str, Any], fixed: dict[str, Any]) -> QuantizationConfig:
    """Return the configuration that arguments amount to; None leaves a field as it is."""
    options = dict(given.pop("extra_options", None) or {})
    options |= {_AS_OPTION[name]: value for name, value in given.items() if name in _AS_OPTION and value}
    named = {name: value for name, value in given.items() if name in _CONFIG_DEFAULTS and value is not None}
    # After the fields themselves: a flag that is set under any of its names is set.
    named |= {_SAME_AS[name]: value for name, value in given.items() if name in _SAME_AS and value}
    if fixed.get("use_dynamic_quant") and named.pop("activation_type", QuantType.QUInt8) != QuantType.QUInt8:
        note("activation_type: dynamic operators take QUInt8, and no other type.")
    lists = {name: list(value) for name, value in named.items() if isinstance(value, tuple)}
    return QuantizationConfig(**{**fixed, **named, **lists}, extra_options=options)


_CHOICE = "op_types_to_quantize per_channel reduce_range"
_NODES = "nodes_to_quantize nodes_to_exclude"
_TYPES = "activation_type weight_type"

quark_quantize_static = _function(
    "quantize_static",
    "model_input model_output calibration_data_reader calibration_data_path quant_format calibrate_method input_nodes "
    "output_nodes op_types_to_quantize extra_op_types_to_quantize per_channel reduce_range activation_type weight_type "
    "nodes_to_quantize nodes_to_exclude subgraphs_to_exclude optimize_model use_external_data_format "
    "execution_providers enable_dpu enable_npu_cnn enable_npu_transformer specific_tensor_precision "
    "convert_fp16_to_fp32 convert_nchw_to_nhwc debug_mode crypto_mode include_cle include_sq include_rotation "
    "include_fast_ft include_auto_mp print_summary extra_options",
    required=("model_input",),
)
quark_quantize_dynamic = _function(
    "quantize_dynamic",
    f"model_input model_output {_CHOICE} weight_type {_NODES} subgraphs_to_exclude use_external_data_format debug_mode "
    "crypto_mode extra_options",
    required=("model_input",),
    use_dynamic_quant=True,
    include_cle=False,
)
vai_quantize_static = _function(
    "quantize_static",
    "model_input model_output calibration_data_reader quant_format calibrate_method input_nodes output_nodes "
    "op_types_to_quantize random_data_reader_input_shape per_channel reduce_range activation_type weight_type "
    "nodes_to_quantize nodes_to_exclude subgraphs_to_exclude optimize_model use_external_data_format "
    "execution_providers use_dpu enable_dpu enable_ipu_cnn enable_npu_cnn enable_ipu_transformer "
    "enable_npu_transformer convert_fp16_to_fp32 convert_nchw_to_nhwc debug_mode include_cle include_sq "
    "include_fast_ft include_auto_mp print_summary extra_options",
    defaults={
        "calibrate_method": PowerOfTwoMethod.MinMSE,
        "include_cle": False,
    },
)
quantize_static = _function(
    "quantize_static",
    f"model_input model_output calibration_data_reader quant_format {_CHOICE} {_TYPES} {_NODES} "
    "use_external_data_format calibrate_method calibration_providers extra_options calibration_cache_path "
    "optimize_model",
    include_cle=False,
    print_summary=False,
)
quantize_dynamic = _function(
    "quantize_dynamic",
    f"model_input model_output {_CHOICE} weight_type {_NODES} use_external_data_format extra_options activation_type "
    "optimize_model",
    defaults={"activation_type": QuantType.QUInt8},
    use_dynamic_quant=True,
    include_cle=False,
    print_summary=False,
)


def _record(name: str, names: str, *required: str) -> Any:
    """Make a class that keeps the arguments of a function."""
    fields = [
        (each.name, Any) if each.default is Parameter.empty else (each.name, Any, each.default)
        for each in _parameters(names, required, {})
    ]
    doc = f"The arguments of {'quantize_static' if required else 'quantize_dynamic'}, kept."
    return make_dataclass(name, fields, namespace={"__doc__": doc, "__module__": __name__})


_KEPT = "op_types_to_quantize nodes_to_quantize nodes_to_exclude per_channel reduce_range use_external_data_format "
StaticQuantConfig = _record(
    "StaticQuantConfig",
    f"calibration_data_reader calibrate_method quant_format {_TYPES} {_KEPT} calibration_providers extra_options",
    "calibration_data_reader",
)
DynamicQuantConfig = _record("DynamicQuantConfig", f"weight_type {_KEPT} extra_options")


def quantize(model_input: ModelLike, model_output: str | Path, quant_config: Any) -> None:
    """Quantize with the arguments in a StaticQuantConfig or a DynamicQuantConfig."""
    # By name: onnxruntime's own functions make its own classes of these names.
    functions = {"StaticQuantConfig": quantize_static, "DynamicQuantConfig": quantize_dynamic}
    if type(quant_config).__name__ not in functions:
        raise UsageError(
            f"quantize takes a StaticQuantConfig or a DynamicQuantConfig, not {type(quant_config).__name__}."
        )
    functions[type(quant_config).__name__](model_input, model_output, **vars(quant_config))


def dump_model(
    model_input: ModelLike,
    dump_data_reader: Any = None,
    random_data_reader_input_shape: Any = None,
    dump_float: bool = False,
    output_dir: str | Path = "./dump_results",
) -> None:
    """Run the quantized model on the reader's first sample (random numbers without one) and write its values."""
    reader = dump_data_reader or RandomDataReader(model_input, random_data_reader_input_shape)
    feeds = reader.get_next()
    if feeds is None:
        raise DataError("dump_model: the data reader has no sample to run the model on.")
    dump_codes(model_input, dict(feeds), Path(output_dir), floats=dump_float, overwrite=True)


def get_library_path(device: str = "CPU", lib: str = "custom_ops") -> str:  # noqa: ARG001 - it is the same for all
    """Return what `register_custom_ops_library` takes without effect: what Detent writes needs no library."""
    return str(Path(__file__))


# -- the work ----------------------------------------------------------------------------------------------------------


def _quantize(
    config: AnyConfig, model: ModelLike, output: str | Path | None, reader: Any, path: Any = None
) -> onnx.ModelProto | None:
    """Quantize as the configuration says, with data from a reader or a path; random numbers without either."""
    if reader is not None and path is not None:
        note(f"calibration_data_path {path} is ignored: there is a calibration_data_reader, too.")
    request = translate(config, as_quark=AS_QUARK.get())
    if left := _left_to_onnxruntime(request, model):
        return _by_onnxruntime(request, model, output, left)
    later = bool(request.conversions) or _overwrites(output, model)
    if later and output is not None:
        check_output(Path(output))  # before the work, not after it
    try:
        report = _run(request, model, None if later else output, path if reader is None else reader)
    except DetentError as error:
        raise type(error)(_in_script_words(str(error))) from error
    result = report.model
    if later and result is not None:
        result = _converted(result, request.conversions, None if output is None else Path(output))
        report = replace(report, output=None if output is None else str(output))  # it was made in memory
    if request.external_data and output is not None:
        move_tensors_out(Path(output))
    if request.summary:
        sys.stdout.write(f"{report}\n")
    return result if output is None else None


# Flags of Detent's own commands that a message may name, as what a script has for them.
_IN_A_SCRIPT = {
    **{"--calib": "calibration_data_reader", "--exclude": "nodes_to_exclude", "--include": "nodes_to_quantize"},
    **{"--from": "input_nodes", "--to": "output_nodes", "--format": "quant_format", "--recipe": "get_default_config"},
    **{"--fix-shape": "the option FixShapes", "--opset": "the option ConvertOpsetVersion", "--limit": "CalibDataSize"},
    **{"--stats": "the option SaveAndRestore", "--save-stats": "the option SaveAndRestore", "--smooth": "include_sq"},
    **{"--refine": "include_fast_ft", "--no-equalize": "include_cle=False", "--equalize": "include_cle"},
    **{"--target": "enable_npu_cnn", "--device": "enable_npu_cnn", "--providers": "execution_providers"},
    **dict.fromkeys(("--size", "--mean", "--std", "--order", "--batch"), "those of the reader"),
}


def _in_script_words(message: str) -> str:
    """Return a message that speaks of what scripts can change, not of flags that they do not have."""
    flags = r"(?<![\w-])--[a-z][a-z-]*(?: --[a-z][a-z-]*)*"
    return re.sub(flags, lambda found: _IN_A_SCRIPT.get(found[0], f"`detent quantize {found[0]}`"), message)


def _overwrites(output: str | Path | None, model: ModelLike) -> bool:
    """Return whether the result takes the place of the float model, which other tools allow."""
    if output is None or isinstance(model, onnx.ModelProto):
        return False
    return all(Path(each).exists() for each in (output, model)) and Path(output).samefile(model)


def _converted(proto: onnx.ModelProto, steps: tuple[str | ConversionStep, ...], output: Path | None) -> onnx.ModelProto:
    """Return the quantized model after more steps, any of which may find nothing to do, and write it if asked to."""
    model = read(proto)
    for given in steps:
        step = parse_step(given)[1] if isinstance(given, str) else given
        model = step.apply(model, ConversionNotes(type(step).__name__))
    add_functions(model)
    if output is not None:
        save(model, output)
    return ir.to_proto(model)


def _run(request: Request, model: ModelLike, output: str | Path | None, data: Any) -> Report:
    data = _data(request, model, data)
    recipe, graph = request.recipe, load(model).graph
    note_what_is_missing((*(layer.part for layer in request.layers), *recipe.overrides), graph)
    options: dict[str, Any] = {
        "exclude": _excluded(request, model),
        "fix_shape": shapes_of_inputs(request.fix_shapes or {}, model) or "none",  # as other tools do
        "providers": _available(request.providers),
        **{name: getattr(request, name) for name in ("include", "start", "end", "limit", "threads")},
        "postprocessing": request.postprocessing,
        "keep_batch": True,  # as other tools do
        "hold_out": "beyond",  # other tools calibrate with every sample
        "resume": not hasattr(data, "get_next"),  # a reader may give other samples next time
    }
    layers = overrides_of(request.layers, recipe, graph, dual=request.dual)
    recipe = recipe.replace(
        operators=_known(recipe.operators),
        more_operators=_known(recipe.more_operators),
        overrides=(*layers, *recipe.overrides),
    )
    if request.search is not None:
        # A reader gives its data once, and a search needs it more often.
        data = _loaded(data, model) if hasattr(data, "get_next") else data
        job = make_job(model, data, recipe, **options)

        def make(recipe: detent.Recipe) -> onnx.ModelProto:
            made = detent.quantize(model, None, data, recipe, **options).model
            assert made is not None, "returned, because it is not written"
            return made

        recipe = request.search.run(job, make, data if isinstance(data, list) else _loaded(data, model))
    if request.counted is not None:
        samples = _loaded(data, model)[: request.limit]
        # Streams, as the reader is one: what is done with a list depends on its length.
        again, data = (ReadOnce(partial(next, iter(samples), None)) for _ in range(2))
        counted = counted_ranges(make_job(model, again, recipe, **options), samples, *request.counted)
        recipe = recipe.replace(overrides=(*counted, *recipe.overrides))
    kept = request.statistics
    known = kept is not None and kept.exists()
    options |= {"stats" if known else "save_stats": kept}
    return detent.quantize(model, output, data, recipe, **options)


def shapes_of_inputs(shapes: Mapping[str, Sequence[int]], model: ModelLike) -> dict[str, Sequence[int]]:
    """Return the shapes without those of outputs, which other tools are given, too: they follow from the inputs."""
    left = {str(value.name) for value in load(model).graph.outputs}.intersection(shapes) if shapes else ()
    if left:
        note(f"The shape of {', '.join(left)} follows from those of the inputs.")
    return {name: dims for name, dims in shapes.items() if name not in left}


def _known(op_types: tuple[str, ...]) -> tuple[str, ...]:
    """Return the types that ONNX has: the other tools' lists name operators of onnxruntime's own, too."""
    known = {schema.name for schema in onnx.defs.get_all_schemas()} if op_types else set()
    left = [each for each in op_types if each not in known]
    if left and len(left) < len(op_types):
        note(f"op_types_to_quantize: ONNX has no {', '.join(left)}: such nodes stay float.")
        return tuple(each for each in op_types if each in known)
    return op_types


def _loaded(data: Any, model: ModelLike) -> list[Any]:
    """Return all samples of a reader, of files, or of random numbers where there is no data."""
    if hasattr(data, "get_next"):
        return list(iter(data.get_next, None))
    return [pending.load().feeds for pending in open_source(data, input_specs(load(model)))]


def _available(providers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the providers that this onnxruntime has; a script may name those of another machine."""
    present = onnxruntime.get_available_providers()
    missing = [each for each in providers if each not in present]
    if missing:
        note(f"execution_providers: this onnxruntime has no {', '.join(missing)}; the CPU is used.")
    return tuple(each for each in providers if each in present)


def _data(request: Request, model: ModelLike, data: Any) -> Any:
    """Return the given data; without any random numbers, in the ranges that were asked for."""
    if NHWC in request.conversions and hasattr(data, "get_next"):
        inputs, get_next = input_specs(load(model)), data.get_next
        return ReadOnce(lambda: channels_first(get_next(), inputs))
    if data is not None:
        own = Repeatable in type(data).__mro__ or not callable(getattr(data, "get_next", None))
        return data if own else ReadOnce(data.get_next)
    open_shapes = any(None in spec.shape[1:] for spec in input_specs(load(model)))
    if not request.is_calibrated or not (open_shapes or request.random_shapes or request.random_ranges):
        return None  # nothing to calibrate; or detent.quantize makes random numbers itself, and warns
    warnings.warn("Calibrated with random data: the accuracy of this model is not real.", stacklevel=2)
    return RandomDataReader(model, request.random_shapes, request.random_ranges)


def _excluded(request: Request, model: ModelLike) -> tuple[str, ...]:
    """Return the nodes to leave float: those that are named, and those that regular expressions match.

    The other tools ignore a name that the model does not have, so it is a note here and not an error.
    """
    if not (request.exclude or request.patterns):
        return ()
    names = [str(node.name) for node in load(model).graph]
    found: dict[str, None] = {}
    for given in (*request.exclude, *request.patterns):
        as_regex = given in request.patterns
        hits = [name for name in names if (re.match(given, name) if as_regex else name == given)]
        if not hits:
            note(f"nodes_to_exclude: the model has no node '{given}'.{'' if as_regex else nearest(given, names)}")
        found.update(dict.fromkeys(hits))
    return tuple(found)


_RECURRENT = ("LSTM", "Attention", "EmbedLayerNormalization")  # onnxruntime has dynamic operators for these


def _left_to_onnxruntime(request: Request, model: ModelLike) -> str:
    """Return what a script wants quantized and Detent would leave float; empty if nothing."""
    if not (request.subgraphs or request.recipe.dynamic):
        return ""
    graph = load(model).graph
    nodes = list(graph.all_nodes())
    if request.subgraphs and any(node.graph is not graph and node.op_type in LAYERS for node in nodes):
        return "EnableSubgraph=True: layers inside If, Loop or Scan"
    operators = request.recipe.operators
    wanted = _RECURRENT if operators == DYNAMIC_OPERATORS else set(_RECURRENT).intersection(operators)
    if any(node.op_type in LAYERS for node in nodes):
        # Of the others the layers inside are quantized; an LSTM would stay float, and most of some models is one.
        wanted, nodes = {"LSTM"}.intersection(wanted), list(graph)
    found = next((node.op_type for node in nodes if node.op_type in wanted), "")
    return f"quantize_dynamic: layers that are {found}" if found else ""


def _by_onnxruntime(request: Request, model: ModelLike, output: str | Path | None, left: str) -> onnx.ModelProto | None:
    """Leave a model to onnxruntime's own quantizer. UsageError unless it is for dynamic operators."""
    if not request.recipe.dynamic:
        raise UsageError(
            f"{left} stay float here. Delete the option, export the model without control flow, or quantize it with "
            "dynamic operators."
        )
    note(f"{left} are quantized by onnxruntime's own quantizer.")
    own = original("onnxruntime.quantization")
    weights = request.recipe.weights
    assert is_integer(weights), "dynamic operators have integer weights"
    usual = request.recipe.operators == DYNAMIC_OPERATORS
    with TemporaryDirectory() as folder:
        written = Path(folder, "model.onnx") if output is None else Path(output)
        own.quantize_dynamic(
            model,
            written,
            op_types_to_quantize=[] if usual else list(request.recipe.operators),
            per_channel=weights.per_channel,
            weight_type=own.QuantType[f"Q{'U' if weights.dtype.startswith('u') else ''}Int8"],
            nodes_to_quantize=list(request.include),
            nodes_to_exclude=list(_excluded(request, model)),
            use_external_data_format=request.external_data,
            extra_options={"EnableSubgraph": True, "WeightSymmetric": weights.symmetric, "MatMulConstBOnly": True},
        )
        return onnx.load(written) if output is None else None


def move_tensors_out(path: Path) -> None:
    """Put the tensors into a file beside the model, as use_external_data_format asks for."""
    proto = onnx.load(path)
    (path.parent / f"{path.name}.data").unlink(missing_ok=True)  # onnx would add to what an earlier run left
    onnx.save_model(proto, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=1024)
