"""Tools of Quark by name, which of Detent's conversions each one is, and onnxruntime's preparation.

Quark's tools spell their arguments in many ways. Here every tool takes INPUT OUTPUT, and every spelling of these as
flags: --input, --input_model, --input_model_path, and the same for the output. A tool that finds nothing to do writes
the model as it is. In a script a tool is a function, too: it takes a model and returns one.

    detent run -m quark.onnx.tools.convert_fp32_to_bf16 INPUT OUTPUT
    detent run -m onnxruntime.quantization.preprocess --input MODEL --output MODEL
    from quark.onnx.tools.convert_quant_to_float import convert_quant_to_float
"""

from __future__ import annotations

import argparse
import inspect
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import onnx
from google.protobuf.message import DecodeError
from google.protobuf.text_format import ParseError

import detent
from detent.comparison.folders import compare_folders
from detent.compat.configs import get_default_config
from detent.compat.entry_points import ModelQuantizer, move_tensors_out, shapes_of_inputs
from detent.compat.finder import original
from detent.compat.option_rows import note
from detent.compat.option_rules import pairs_setting, parse_shapes, shapes_setting
from detent.convert import convert
from detent.errors import ModelError, UsageError, check_known
from detent.graph.load import ModelLike, load
from detent.graph.save import check_output, complete_proto, save
from detent.observe.statistics_file import load_statistics
from detent.prepare import InferShapes, Pass, default_passes, prepare
from detent.qdq.reader import dequantized
from detent.report.documents import text_of
from detent.report.statistics_plots import plot_statistics
from detent.results.tensors import choices_of, view_statistics

LOG = logging.getLogger(__name__)

Arguments = argparse.Namespace


@dataclass(frozen=True)
class Tool:
    """One tool: what it does to INPUT and OUTPUT, the defaults of its flags, and positions before OUTPUT.

    A flag whose default is None has to be given. With `prints` there is no OUTPUT: the result is text.
    """

    run: Callable[[Arguments], object]
    flags: Mapping[str, Any] = field(default_factory=dict)
    positions: tuple[str, ...] = ()
    prints: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """What a function of this tool takes beside the model, in order."""
        return (*self.positions, *self.flags)


def _converts(*steps: str, positions: tuple[str, ...] = (), **flags: Any) -> Tool:
    """Make a tool of steps of `detent convert`, with the values of flags in braces."""

    def run(given: Arguments) -> object:
        settings = {name: _SETTINGS.get(name, str)(value) for name, value in vars(given).items()}
        if settings.get("format") == _EXTENDED:
            recipe = detent.find_recipe("BF16").replace(format=_EXTENDED)
            return detent.quantize(given.input, given.output, None, recipe)
        return convert(given.input, given.output, [step.format(**settings) for step in steps], must_change=False)

    return Tool(run, flags, positions)


def _shaped(given: Arguments) -> None:
    """Fix the shapes of inputs, and infer those of all tensors; only the latter if none are given."""
    if given.fix_shapes:
        shapes = shapes_setting(shapes_of_inputs(_shapes(given.fix_shapes), given.input))
        convert(given.input, given.output, [f"fixed-shapes:shapes={shapes}"], must_change=False)
    else:
        quant_pre_process(given.input, given.output, skip_optimization=True)


def _quantizes(recipe: str = "", **flags: Any) -> Tool:
    """Make a tool that quantizes with random data, which formats without scales do not look at."""

    def run(given: Arguments) -> object:
        config = get_default_config(recipe or given.config)
        config.nodes_to_exclude = [name.strip() for name in getattr(given, "exclude_nodes", "").split(";") if name]
        config.subgraphs_to_exclude = parse_subgraphs(getattr(given, "exclude_subgraphs", ""))
        return ModelQuantizer(config).quantize_model(given.input, given.output)

    return Tool(run, flags)


def parse_subgraphs(text: str) -> list[tuple[list[str], list[str]]]:
    """Read `[a, b], [c]; [d], [e]`: parts of the model by the nodes that they begin and end with."""
    found = []
    for part in filter(None, (each.strip() for each in text.split(";"))):
        sides = [[name.strip() for name in side.split(",")] for side in re.findall(r"\[(.*?)\]", part)]
        if len(sides) != 2:
            raise UsageError(f"--exclude_subgraphs '{part}': expected [first, ...], [last, ...].")
        found.append((sides[0], sides[1]))
    return found


def _listed(given: Arguments) -> None:
    """Print the names and the number of layers with 8-bit activations, then of those with 16-bit ones."""
    layers: dict[int, list[str]] = {8: [], 16: []}
    for node in load(given.input).graph:
        read = (
            dequantized(node.inputs[0].producer()) if node.op_type in _LAYERS and node.inputs[0] is not None else None
        )
        dtype = None if read is None or read.params is None else read.params.dtype
        if dtype is not None and dtype.kind in "iu" and 8 * dtype.itemsize in layers:
            layers[8 * dtype.itemsize].append(str(node.name))
    for bits, names in layers.items():
        sys.stdout.write("\n".join([f"int{bits} activation node names:", *names, ""]))
    for bits, names in layers.items():
        sys.stdout.write(f"int{bits} activation node count: {len(names)}\n")


def _drawn(given: Arguments) -> None:
    """Draw the histogram of every activation on the data, and what each method would choose."""
    plain = detent.find_recipe("INT8_CNN_DEFAULT").replace(equalize=None, refinement=None)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "statistics"
        detent.quantize(given.input, None, given.data_path, plain, save_stats=kept, hold_out=0, keep_batch=True)
        loaded = load_statistics(kept)
    choices = {each.name: each.choices for each in view_statistics(loaded, choices_of).tensors}
    files = plot_statistics(loaded.statistics, Path(given.output_path), choices)
    sys.stdout.write(f"Drew {len(files)} tensors into {given.output_path}.\n")


def _refused(instead: str) -> Tool:
    def run(given: Arguments) -> NoReturn:
        raise UsageError(f"This tool has no counterpart in Detent ({given.input}). {instead}")

    return Tool(run)


def _saves(read: str | None, written: str | None) -> Tool:
    """Make a tool that changes the format of the file."""

    def run(given: Arguments) -> None:
        check_output(Path(given.output), given.input)
        try:
            model = onnx.load(given.input, format=read)
        except (OSError, ValueError, DecodeError, ParseError) as error:
            raise ModelError(f"Cannot read {given.input}: {error}") from error
        onnx.save(model, given.output, format=written)

    return Tool(run)


def _form(name: str) -> str:
    check_known("--format", name, _FORMS)
    return _FORMS[name]


def _shapes(text: str) -> dict[str, list[int]]:
    try:
        return parse_shapes(text) or {}
    except UsageError as error:
        raise UsageError(f"--fix_shapes {text}: {error}") from None


def _pairs(value: str | Sequence[Sequence[str]]) -> str:
    """Read `Conv,Relu;Mul,Add`, or pairs in a list."""
    pairs = [pair.split(",") for pair in value.split(";") if pair.strip()] if isinstance(value, str) else value
    return pairs_setting([name.strip() for name in pair] for pair in pairs)


_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_EXTENDED: Final = "extended-qdq"
_FORMS = {
    **{"with_cast": "cast", "simulate_bf16": "simulated", "bf16": "pure"},
    **dict.fromkeys(("vitisqdq", "customqdq"), _EXTENDED),
}
# How the values of flags are spelled in the settings of steps.
_SETTINGS: dict[str, Callable[[Any], str]] = {
    "format": _form,
    "between_ops": _pairs,
    "keep_io_types": lambda value: str(value).lower(),
    "reverse_conversion": lambda text: "extended-qdq" if text.lower() in ("true", "1") else "vitis-qdq",
}

_HISTOGRAMS = "`detent quantize --save-stats FILE` and `detent stats FILE --plot DIR` draw every tensor."

TOOLS: Mapping[str, Tool] = {
    "convert_a8w8_npu_to_a8w8_cpu": _converts("int32-bias"),
    "convert_bias_int32_to_int16": _converts("int16-bias"),
    "convert_custom_ops": _converts("{reverse_conversion}", reverse_conversion="False"),
    "convert_customqdq_to_qdq": _converts("qdq"),
    "convert_dynamic_to_fixed": Tool(_shaped, {"fix_shapes": None}),
    "convert_fp16_to_bf16": _converts("float32", "bfloat16:form={format}", format="with_cast"),
    "convert_fp16_to_bfp16": _quantizes("BFP16"),
    "convert_fp16_to_fp32": _converts("float32"),
    "convert_fp32_to_bf16": _converts("bfloat16:form={format}", format="with_cast"),
    "convert_fp32_to_bfp16": _quantizes("BFP16"),
    "convert_fp32_to_fp16": _converts(
        "float16:keep_io={keep_io_types}", keep_io_types=False, disable_shape_infer=False, not_simplify=False
    ),
    "convert_lstm_to_customlstm": _refused("There is no custom LSTM: the standard one runs everywhere, in float."),
    "convert_nchw_to_nhwc": _converts("nhwc"),
    "convert_onnx_to_onnxtxt": _saves(None, "textproto"),
    "convert_onnxtxt_to_onnx": _saves("textproto", None),
    "convert_opset_version": _converts("opset:version={target_opset}", positions=("target_opset",)),
    "convert_qdq_to_qop": _converts("qoperator"),
    "convert_quant_to_float": _converts("float"),
    "convert_resize_fs_to_pof2s": _refused("Quantize with the recipe XINT8, whose scales are powers of two."),
    "convert_s8s8_to_u8s8": _converts("uint8"),
    "convert_shared_initializer_to_unique": _converts("unique-initializers", op_types=""),
    "convert_u16s8_to_s16s8": _converts("int16"),
    "convert_u16u8_to_u8u8": _converts("eight-bits"),
    "fix_shapes": Tool(_shaped, {"fix_shapes": ""}),
    "insert_clip_bfloat16_qdq": _converts("bfloat16-clip"),
    "float16": _converts("float32"),
    "print_a16w8_a8w8_nodes": Tool(_listed, prints=True),
    "random_quantize": _quantizes(config="XINT8", exclude_nodes="", exclude_subgraphs=""),
    "remove_bf16_cast": _converts("float"),
    "remove_initializer_from_input": _converts("inputs-without-initializers"),
    "remove_qdq": _converts("float"),
    "remove_qdq_between_ops": _converts("without-qdq-between:pairs={between_ops}", between_ops=None),
    "remove_qdq_mul_add": _converts("without-qdq-between:pairs=Mul/Add"),
    "replace_bfloat16_qdq_cast": _converts("float", "bfloat16:form=cast"),
    "replace_inf_weights": _converts("finite-weights:value={replace_inf_value}", replace_inf_value=10000.0),
    "save_tensor_hist": Tool(_drawn, {"data_path": None, "output_path": "."}, prints=True),
    "save_weights_hist": _refused(_HISTOGRAMS),
}


# By tool: names of functions that do its work, beside its own, `convert` and `main`.
FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "convert_customqdq_to_qdq": ("custom_ops_infer_shapes",),
    "fix_shapes": ("fix_input_and_output_shapes",),
    "convert_dynamic_to_fixed": ("convert_dynamic_to_fix", "fix_shapes"),
    "float16": ("convert_float16_to_float", "convert_float_to_float16=convert_fp32_to_fp16"),
    "print_a16w8_a8w8_nodes": ("a16w8_a8w8_nodes",),
    "replace_inf_weights": ("replace_inf_in_onnx_weights",),
}


def functions_of(name: str) -> dict[str, Callable[..., Any]]:
    """Return what a script can import from the module of a tool."""
    command = partial(run_tool, name)
    parts = [each.partition("=") for each in ("convert", name, *FUNCTIONS.get(name, ()))]
    named = {function: partial(_on_model, tool or name) for function, _, tool in parts}
    return {**named, "main": command, "run_main": command}


_SPELLINGS = {
    "input": ("input", "input_model", "input_model_path"),
    "output": (
        *("output", "output_model", "output_model_path", "quantized_model", "quantized_model_path", "quant_model"),
        "quant_model_path",
    ),
}


def _on_model(name: str, model: Any, *values: Any, **named: Any) -> Any:
    """Do a tool's work on a model, and return the result, or write it if a file is named.

    `model` may be the arguments of the command line, as argparse gives them.
    """
    tool = TOOLS[name]
    given: dict[str, Any] = {**tool.flags, **named}
    if isinstance(model, Arguments):
        given |= vars(model)
        model, output = (next((given[each] for each in names if each in given), None) for names in _SPELLINGS.values())
    else:
        files = [each for each in values if isinstance(each, (str, Path)) and str(each).endswith(".onnx")]
        output = next((given.pop(each) for each in _SPELLINGS["output"] if each in given), next(iter(files), None))
        output = given.pop("float_model", output)
        given |= zip(tool.parameters, [each for each in values if each not in files], strict=False)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "model.onnx" if output is None else Path(output)
        tool.run(Arguments(**{**given, "input": model, "output": written}))
        made = onnx.load(written) if output is None and not tool.prints else None
    return (made, made is not None) if name == "convert_bias_int32_to_int16" else made


def run_tool(name: str, arguments: Sequence[str] | None = None) -> None:
    """Run a tool on its command line."""
    tool = TOOLS[name]
    names = ("input", *tool.positions) if tool.prints else ("input", *tool.positions, "output")
    usage = " ".join(map(str.upper, names))
    parser = argparse.ArgumentParser(f"quark.onnx.tools.{name}")
    parser.add_argument("positions", nargs="*", metavar=usage)
    for side, spellings in {**_SPELLINGS, **{name: (name,) for name in tool.positions}}.items():
        parser.add_argument(*(f"--{each}" for each in spellings), dest=side)
    for flag, default in {**tool.flags, "save_as_external_data": False, "all_tensors_to_one_file": False}.items():
        if default is False:
            parser.add_argument(f"--{flag}", action="store_true")
        else:
            kind = str if default is None else type(default)
            parser.add_argument(f"--{flag}", type=kind, default=default, required=default is None)
    given, unknown = parser.parse_known_args(None if arguments is None else list(arguments))
    if unknown:
        note(f"{name}: {' '.join(unknown)} is ignored, as the original tool does.")
    # What came as a flag is not among the positions.
    wanted = [each for each in names if getattr(given, each, None) is None]
    if len(given.positions) != len(wanted):
        raise UsageError(f"{name} needs {usage}; {len(given.positions)} of {len(wanted)} were given.")
    vars(given).update(zip(wanted, given.positions, strict=True))
    tool.run(given)
    if given.save_as_external_data:
        move_tensors_out(Path(given.output))


def evaluate(arguments: Sequence[str] | None = None) -> None:
    """Compare two folders of results: print the mean and the worst of each measure over all files.

    Quark's manual gives the folders by flags, its program takes them in order: both work.
    """
    parser = argparse.ArgumentParser("quark.onnx.tools.evaluate", description="Compare two folders of results.")
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--baseline_results_folder", type=Path)
    parser.add_argument("--quantized_results_folder", type=Path)
    given = parser.parse_args(arguments)
    positions = iter(given.folders)
    baseline: Path | None = given.baseline_results_folder or next(positions, None)
    quantized: Path | None = given.quantized_results_folder or next(positions, None)
    if baseline is None or quantized is None or next(positions, None) is not None:
        raise UsageError(
            "evaluate compares two folders. Usage: evaluate BASELINE QUANTIZED, or "
            "--baseline_results_folder BASELINE --quantized_results_folder QUANTIZED."
        )
    sys.stdout.write(f"{text_of(compare_folders(baseline, quantized))}\n")


# -- onnxruntime's preparation of a float model: what it folds and infers, and more ------------------------------------


def quant_pre_process(
    input_model: ModelLike | None = None,
    output_model_path: str | Path | None = None,
    skip_optimization: bool = False,
    skip_onnx_shape: bool = False,
    skip_symbolic_shape: bool = False,
    auto_merge: bool = False,  # noqa: ARG001 - a conflict leaves a dimension open, it is never an error
    int_max: int = 2**31 - 1,  # noqa: ARG001 - a bound for symbolic arithmetic, which is not done
    guess_output_rank: bool = False,
    verbose: int = 0,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    *,
    input_model_path: ModelLike | None = None,
) -> None:
    """Fold and rewrite `input_model` without changing what it computes, infer its shapes, and write it.

    `skip_optimization` leaves out the rewrites; shapes are inferred unless both kinds of inference are skipped.
    `verbose` 1 logs what was declined, 3 what was done. `input_model_path` is the older name of `input_model`.
    """
    model_input = input_model if input_model is not None else input_model_path
    if model_input is None or output_model_path is None:
        raise UsageError("quant_pre_process needs input_model and output_model_path.")
    if guess_output_rank:
        note("quant_pre_process: guess_output_rank=True: shapes are not guessed.")
    output = Path(output_model_path)
    check_output(output)
    model = load(model_input)
    passes = _passes(skip_optimization, skip_shapes=skip_onnx_shape and skip_symbolic_shape)
    changes = prepare(model, passes)
    model.metadata_props["onnx.quant.pre_process"] = "onnxruntime.quant"  # which its own functions ask for
    if verbose >= 1:
        for left in (left for step in passes for left in step.declined):
            LOG.warning("%s: %s", left.node, left.what)
    if verbose >= 3:
        for change in changes:
            LOG.info("%s: %s", change.node, change.what)
    if not save_as_external_data:
        save(model, output)
        return
    named = external_data_location if external_data_location not in (None, "", "./", ".") else None
    location = named or f"{output.name}.data"
    proto = complete_proto(model)  # its tensors may be in the very file that is written
    if all_tensors_to_one_file:
        (output.parent / location).unlink(missing_ok=True)  # onnx would add to what an earlier run left
    onnx.save_model(
        proto,
        output,
        save_as_external_data=True,
        all_tensors_to_one_file=all_tensors_to_one_file,
        location=location,
        size_threshold=external_data_size_threshold,
    )


def _passes(skip_optimization: bool, skip_shapes: bool) -> list[Pass]:
    if skip_optimization:
        return [] if skip_shapes else [InferShapes()]
    return [step for step in default_passes(None, []) if not (skip_shapes and isinstance(step, InferShapes))]


def preprocess(arguments: Sequence[str] | None = None) -> None:
    """Run `quant_pre_process` with its arguments as flags."""
    parser = argparse.ArgumentParser("onnxruntime.quantization.preprocess")
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    for each in list(inspect.signature(quant_pre_process).parameters.values())[2:-1]:
        kind = _truth if isinstance(each.default, bool) else int if isinstance(each.default, int) else str
        alone: Any = {"nargs": "?", "const": True} if kind is _truth else {}  # `--auto_merge`, or with True behind it
        parser.add_argument(f"--{each.name}", type=kind, default=each.default, **alone)
    given = vars(parser.parse_args(arguments))
    quant_pre_process(given.pop("input"), given.pop("output"), **given)


def _truth(text: str) -> bool:
    """Read True and False as words: `bool` would take any of them for True."""
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"'{text}' is neither True nor False") from None


def create_activation_matching(
    qdq_activations: Mapping[str, Any], float_activations: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Pair the activations of both models as onnxruntime does, without those that preparing added to the quantized one.

    Its `compute_activation_error` ends with a KeyError where the float model has no value of that name.
    """
    found = original("onnxruntime.quantization.qdq_loss_debug").create_activation_matching(
        qdq_activations, float_activations
    )
    return {name: values for name, values in found.items() if not float_activations or "float" in values}
