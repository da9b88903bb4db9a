"""Every option of every verb, declared once: its name, type, flag, help and default.

    class SampleOptions(TypedDict, total=False):
        limit: Annotated[int | None, Flag("Read at most N samples.", minimum=1, metavar="N", panel=DATA)]

    def quantize(model: ..., **options: Unpack[QuantizeOptions]) -> Report: ...

The Python call takes these names as keywords, which editors complete and type checkers check. `detent.cli` makes the
flags of a command from the same class. `settled` gives a verb all of its options, with defaults for those not given.
So a new option is a line here, and a line where it is used. Values may be written as text,
as on the command line, or as Python values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, TypeVar, get_type_hints

from typing_extensions import TypedDict

from detent.errors import nearest
from detent.option_types import check_type

PathText = str | PathLike[str]

if TYPE_CHECKING:
    from detent.equalizations.awq import Awq
    from detent.equalizations.channel_problem import Equalizer
    from detent.evaluation.dataset import LabelsLike
    from detent.evaluation.metric_file import Metric
    from detent.methods import Method
    from detent.numerics.formats import IntegerFormat
    from detent.numerics.interface import NumberFormat
    from detent.observe.preprocess import PreprocessOptions
    from detent.progress import Progress
    from detent.recipe import Recipe
    from detent.refinements import Refinement
    from detent.results.searched import StepOutcome
else:  # annotations are evaluated for the command line, which starts without the libraries behind these types
    Awq, Equalizer = NewType("Awq", object), NewType("Equalizer", object)
    Metric, Method, Recipe = NewType("Metric", object), NewType("Method", object), NewType("Recipe", object)
    IntegerFormat, NumberFormat = NewType("IntegerFormat", object), NewType("NumberFormat", object)
    PreprocessOptions, Refinement = NewType("PreprocessOptions", object), NewType("Refinement", object)
    LabelsLike = PathText | Sequence[Any] | Mapping[str, int] | None
    StepOutcome = Any
    Progress = Callable[..., None]

DATA = "Data"
CALIBRATION = "Calibration"
ACCURACY = "Accuracy"
NODES = "Which nodes"
PROPOSAL = "Proposal"

Names = str | Sequence[str]
Shapes = Mapping[str, Sequence[int]]
RecipeLike = PathText | Recipe

# What verbs take beside their options; of other arguments, such as models, a verb says itself what it takes.
ARGUMENTS: Mapping[str, Any] = {
    **dict.fromkeys(("output", "body", "tail"), PathText),
    **dict.fromkeys(("device", "target", "software", "estimate_for"), str),
    "recipe": RecipeLike,
}


@dataclass(frozen=True)
class Flag:
    """How the command line has an option.

    `name` is the flag, or several, if it is not made from the option's name. `reads` is the type of the text, if it is
    not the option's own type. `default` is that of Python and the command line alike; with `hidden`, help does not show
    it. `python` says what else the Python call takes.
    """

    help: str
    name: str | None = None
    reads: Any = None
    default: Any = None
    hidden: bool = False
    metavar: str | None = None
    panel: str | None = None
    minimum: float | None = None
    python: str = ""


@dataclass(frozen=True)
class PythonOnly:
    """Marks an option that the command line has no flag for."""

    help: str
    default: Any = None


@dataclass(frozen=True)
class OldName:
    """Marks an earlier spelling of an option, which stays accepted in Python."""

    of: str


# Flags as help lists them, each under the title of its panel; and those that may be given several times.
data_flag = partial(Flag, panel=DATA)
accuracy_flag = partial(Flag, panel=ACCURACY)
calibration_flag = partial(Flag, panel=CALIBRATION)
node_flag = partial(Flag, panel=NODES)
proposal_flag = partial(Flag, panel=PROPOSAL)
names_flag = partial(Flag, reads=list[str], default=())
node_names_flag = partial(names_flag, panel=NODES)

# Every command that prints a result has it; the Python calls do not, since they print nothing.
VERBOSE = Flag("Print every table, not only the summary.", "--verbose", default=False)

TRUST = Flag("Skip the trial load of the model file in a separate process.", "--trust", default=False)


class ShapeOptions(TypedDict, total=False):
    """Shapes to fix."""

    fix_shape: Annotated[
        Shapes | Names | None,
        Flag(
            "Make a dynamic shape fixed: input=1,3,224,224.",
            reads=list[str],
            metavar="INPUT=DIMS",
            python='or {"input": (1, 3, 224, 224)}',
        ),
    ]
    fix_shapes: Annotated[Shapes | None, OldName("fix_shape")]


class LimitOptions(TypedDict, total=False):
    """How many samples are read."""

    limit: Annotated[int | None, data_flag("Read at most N samples, including those held out.", minimum=1, metavar="N")]


class HoldOutOptions(TypedDict, total=False):
    """How many of the samples that are read are held out."""

    hold_out: Annotated[
        int | Literal["beyond"] | None,
        data_flag(
            "Hold out N samples to judge the result by; 0 calibrates on all. Default: an eighth, at most 64.",
            reads=int | None,
            minimum=0,
            metavar="N",
            python='or "beyond": none of those that the limit allows, but some of the others',
        ),
    ]


class SeedOptions(TypedDict, total=False):
    """How samples are chosen."""

    seed: Annotated[int | None, data_flag("Pick the samples at random with this seed. Default: evenly spaced.")]


class BatchOptions(TypedDict, total=False):
    """How many samples are run together."""

    batch: Annotated[int | None, data_flag("Samples per inference.", minimum=1)]


class ImageOptions(TypedDict, total=False):
    """How images become arrays. What is not given is guessed from the model's input, and reported."""

    preprocess: Annotated[
        PreprocessOptions | Mapping[str, Any] | PathText | None,
        data_flag(
            "JSON file with size, mean, std, order, ... instead of flags.",
            reads=Path,
            python="or a dictionary of these, or PreprocessOptions",
        ),
    ]
    size: Annotated[int | tuple[int, int] | str | None, data_flag("Image size: 224 or H,W.", reads=str, metavar="SIZE")]
    resize: Annotated[int | None, data_flag("Resize the short side to this before the center crop.")]
    mean: Annotated[
        float | Sequence[float] | str | None, data_flag("One number or R,G,B, on 0..255.", reads=str, metavar="NUMBERS")
    ]
    std: Annotated[
        float | Sequence[float] | str | None, data_flag("One number or R,G,B, on 0..255.", reads=str, metavar="NUMBERS")
    ]
    order: Annotated[str | None, data_flag("RGB, BGR or GRAY.", metavar="ORDER")]
    layout: Annotated[str | None, data_flag("NCHW or NHWC.", metavar="LAYOUT")]
    resample: Annotated[str | None, data_flag("bilinear, bicubic, nearest, ...", metavar="FILTER")]
    fit: Annotated[str | None, data_flag("crop, letterbox (whole image, padded) or stretch.", metavar="HOW")]
    pad: Annotated[int | None, data_flag("Gray level of the letterbox padding, 0 to 255.", metavar="LEVEL")]


class ThreadOptions(TypedDict, total=False):
    """How many threads work."""

    threads: Annotated[int, Flag("Worker threads; 0 means one per core.", default=0, minimum=0)]


class ProgressOptions(TypedDict, total=False):
    """Who hears of progress."""

    progress: Annotated[Progress | None, PythonOnly("called as progress(stage, done, total)")]


class TrustOptions(TypedDict, total=False):
    """What a model file may do to this process."""

    trust: Annotated[bool, TRUST]


class SampleOptions(LimitOptions, SeedOptions, BatchOptions, ImageOptions, total=False):
    """Which samples are read, and how."""


class ReadingOptions(SampleOptions, HoldOutOptions, ThreadOptions, ProgressOptions, TrustOptions, total=False):
    """How samples are read into a float model that is to be quantized."""

    fix_shape: Annotated[
        Shapes | Names | None,
        Flag(
            "Fix dynamic shapes: input=1,3,224,224; auto: the shape that all samples have; or none.",
            reads=list[str],
            metavar="INPUT=DIMS",
            python='or {"input": (1, 3, 224, 224)}',
        ),
    ]
    fix_shapes: Annotated[Shapes | None, OldName("fix_shape")]

    fix_input: Annotated[
        Mapping[str, float | Sequence[Any]] | Names | None,
        Flag(
            "Make an input constant, such as a mode or a sampling rate: sr=16000. The result does not have it.",
            reads=list[str],
            metavar="INPUT=VALUE",
            python='or {"sr": 16000}',
        ),
    ]
    example_inputs: Annotated[
        Any, PythonOnly("what a PyTorch module is called with: a tensor, a tuple or a dict; else the first sample")
    ]
    feedback: Annotated[
        Names,
        names_flag(
            "A state: samples are the steps of a sequence, and INPUT is what OUTPUT was in the step before. "
            "past.*=present.* stands for all of that name.",
            metavar="INPUT=OUTPUT",
        ),
    ]
    keep_batch: Annotated[
        bool, Flag("Keep a dynamic batch dimension. Default: 1 for NPUs.", "--keep-batch", default=False)
    ]


class RunningOptions(
    LimitOptions, BatchOptions, ImageOptions, ThreadOptions, ProgressOptions, TrustOptions, total=False
):
    """How finished models are run on samples."""

    providers: Annotated[Names, names_flag("onnxruntime execution providers.", metavar="PROVIDER")]
    provider_options: Annotated[Names, names_flag("Options of the first provider.", metavar="KEY=VALUE")]
    tail: Annotated[
        PathText | None,
        Flag("Second part of a split model; it continues the models that end where it begins.", reads=Path),
    ]


class SplitOptions(ShapeOptions, TrustOptions, total=False):
    """Options of `split`."""

    at: Annotated[
        Names,
        names_flag(
            "Cut at this tensor; may be repeated. Default: where a detector's post-processing starts.", metavar="TENSOR"
        ),
    ]


class SettingOptions(TypedDict, total=False):
    """Changes of any field of the recipe."""

    set: Annotated[
        Names, names_flag("Change a field of the recipe: weights.granularity=per_channel.", metavar="FIELD=VALUE")
    ]


class RoundingOptions(TypedDict, total=False):
    """How the device rounds."""

    rounding: Annotated[
        str | None,
        accuracy_flag("How the device rounds ties: half-even, as in the file, or dpu, upwards.", metavar="NAME"),
    ]


class DeviceOptions(TypedDict, total=False):
    """What the result is for."""

    device: Annotated[
        str | None,
        Flag(
            "phx, hpt, stx, krk, strix-halo or cpu (`detent devices`); or a flow: npu-xint8, npu-a8w8, npu-a16w8, "
            "npu-vaiml, npu-bf16. Default: what all of them accept.",
            "--device --target",
            metavar="NAME",
        ),
    ]
    target: Annotated[str | None, OldName("device")]


class RecipeOptions(DeviceOptions, SettingOptions, total=False):
    """Fields of the recipe that have a flag of their own."""

    method: Annotated[
        Method | str | None, Flag("Calibration method: MinMSE, Percentile:percentile=99.99, ...", reads=str)
    ]
    activations: Annotated[
        NumberFormat | str | None, Flag("Format of activations: int8, uint16, bfloat16, ...", reads=str)
    ]
    format: Annotated[str | None, Flag("Output format: qdq, qoperator, extended-qdq, vitis-qdq, ...")]
    opset: Annotated[int | None, Flag("Lowest opset of the result.")]
    equalize: Annotated[
        Equalizer | str | bool | None,
        accuracy_flag(
            "Equalize channels first, across all layers at once.", "--equalize/--no-equalize", reads=bool | None
        ),
    ]
    equalize_with: Annotated[
        str | None,
        accuracy_flag(
            "Equalization method: GlobalEqualization, CrossLayer (or CrossLayer:steps=3), or none.", metavar="NAME"
        ),
    ]
    smooth: Annotated[
        Awq | float | str | None,
        accuracy_flag(
            "SmoothQuant with this alpha, for transformers; or Awq (or Awq:rows=1024), for 4-bit weights.",
            reads=str,
            metavar="ALPHA",
        ),
    ]
    widen: Annotated[
        float | None,
        accuracy_flag(
            "Give the activations that cost most 16 bits, until the 8-bit ones together reach this SQNR.",
            metavar="DB",
        ),
    ]
    search_ranges: Annotated[
        bool | None,
        accuracy_flag("Choose activation scales by the error at the output.", "--search-ranges/--no-search-ranges"),
    ]
    refine: Annotated[
        Refinement | str | None,
        accuracy_flag(
            "QuickRounding, BiasCorrection, Rounding (or Rounding:rows=128), Gptq, AdaRound, AdaQuant, or none.",
            reads=str,
            metavar="NAME",
        ),
    ]
    no_bias_correction: Annotated[
        bool, accuracy_flag("Leave biases alone; same as --refine none.", "--no-bias-correction", default=False)
    ]


class MemoryOptions(TypedDict, total=False):
    """What refinement may use."""

    memory: Annotated[
        int | str | None,
        accuracy_flag(
            "Memory that --refine may use. Default: 2GB.", reads=str, metavar="AMOUNT", python="or a number of bytes"
        ),
    ]


class NodeOptions(TypedDict, total=False):
    """Which nodes are quantized, by name. Patterns have * and ? as in file names."""

    include: Annotated[Names, node_names_flag("Quantize only nodes that match.", metavar="PATTERN")]
    exclude: Annotated[Names, node_names_flag("Leave nodes that match in float.", metavar="PATTERN")]
    op_types: Annotated[Names, node_names_flag("Quantize only these operators.", metavar="TYPE")]
    start: Annotated[Names, node_names_flag("Quantize only what follows NODE.", "--from", metavar="NODE")]
    end: Annotated[Names, node_names_flag("Quantize only what leads to NODE.", "--to", metavar="NODE")]
    postprocessing: Annotated[
        Literal["auto", "keep", "float", "cut"],
        node_flag(
            "A detector's box and score decoding: float if detected (auto), quantized (keep), always float, or in a "
            "separate file, OUTPUT_tail.onnx (cut).",
            default="auto",
        ),
    ]


class PostprocessingOptions(TypedDict, total=False):
    """What becomes of the decoding at the end of a detector, if there is one."""

    postprocessing: Annotated[
        Literal["auto", "keep", "float"],
        node_flag(
            "A detector's box and score decoding: float if detected (auto), quantized (keep), or always float.",
            default="auto",
        ),
    ]


class WorkerOptions(TypedDict, total=False):
    """On which workers statistics are counted."""

    workers: Annotated[int | None, calibration_flag("Calibrate in N processes.", minimum=1, metavar="N")]
    dask: Annotated[str | None, calibration_flag("Calibrate on a Dask cluster.", metavar="ADDRESS")]
    executor: Annotated[Any, PythonOnly("a concurrent.futures.Executor or a dask Client to count on")]


class MeasuringWorkerOptions(TypedDict, total=False):
    """On which workers statistics are counted and layers measured."""

    workers: Annotated[int | None, calibration_flag("Calibrate and measure in N processes.", minimum=1, metavar="N")]
    dask: Annotated[str | None, calibration_flag("Calibrate and measure on a Dask cluster.", metavar="ADDRESS")]
    executor: Annotated[Any, PythonOnly("a concurrent.futures.Executor or a dask Client to count and measure on")]


class StatisticsOptions(TypedDict, total=False):
    """Where statistics are known from."""

    stats: Annotated[PathText | None, calibration_flag("Use saved statistics instead of calibrating.", reads=Path)]


class TaskOptions(TypedDict, total=False):
    """What the model is for."""

    task: Annotated[
        Literal["classify", "tag", "sequence", "detect", "segment", "embed", "regress", "image"] | None,
        Flag("The model's task, by which the result is judged. Default: detected."),
    ]


class StrictOptions(TypedDict, total=False):
    """What is done about doubtful data."""

    strict: Annotated[
        bool, data_flag("Stop if the calibration data looks wrong, instead of warning.", "--strict", default=False)
    ]


class QuantizeOptions(
    TaskOptions,
    StrictOptions,
    RecipeOptions,
    RoundingOptions,
    MemoryOptions,
    NodeOptions,
    ReadingOptions,
    WorkerOptions,
    StatisticsOptions,
    total=False,
):
    """Options of `quantize`."""

    providers: Annotated[
        Names, calibration_flag("onnxruntime execution providers.", reads=list[str], default=(), metavar="PROVIDER")
    ]
    save_stats: Annotated[
        PathText | None, calibration_flag("Save the calibration statistics to this file.", reads=Path)
    ]
    resume: Annotated[bool, calibration_flag("Continue an interrupted run.", "--resume/--no-resume", default=True)]
    try_advice: Annotated[
        bool,
        PythonOnly(
            "if the result is bad, measure what may help, for up to twice the run's time; the command does",
            False,
        ),
    ]
    dry_run: Annotated[
        bool, Flag("Show what would be done; run nothing and write nothing.", "--dry-run", default=False)
    ]


class JudgeOptions(TypedDict, total=False):
    """What models are judged by."""

    metric: Annotated[
        Metric | PathText | None,
        Flag(
            "A Python file with score(outputs, sample) or metric(outputs, labels); or perplexity, of token ids.",
            reads=Path,
            python="or a Metric",
        ),
    ]


class LabelOptions(TypedDict, total=False):
    """The labels of the data."""

    label_offset: Annotated[int, data_flag("Add N to every label (1001 classes: 1).", default=0)]


class TuningGoalOptions(TypedDict, total=False):
    """When tuning ends."""

    max_drop: Annotated[float, Flag("Largest loss to accept.", default=1.0, minimum=0.0)]
    budget: Annotated[str | float | None, Flag("Time limit: 90s, 10m, 1h30m.", reads=str, metavar="TIME")]


class TuneOptions(
    TuningGoalOptions,
    TaskOptions,
    JudgeOptions,
    DeviceOptions,
    SettingOptions,
    PostprocessingOptions,
    RoundingOptions,
    LabelOptions,
    ReadingOptions,
    total=False,
):
    """Options of `tune`."""

    evaluation: Annotated[Any, Flag("Labelled data to judge by. Default: part of --calib.", "--eval", reads=Path)]
    toml: Annotated[PathText | None, Flag("Where to write the winning recipe. Default: OUTPUT with .toml.", reads=Path)]
    recipe_file: Annotated[PathText | None, OldName("toml")]
    eval_limit: Annotated[int | None, data_flag("Evaluate on at most N samples.", minimum=1)]
    evaluation_limit: Annotated[int | None, OldName("eval_limit")]
    labels: Annotated[LabelsLike, PythonOnly("labels of the evaluation data, as for `evaluate`", "find")]
    providers: Annotated[Names, PythonOnly("onnxruntime's execution providers", ())]
    resume: Annotated[bool, Flag("Continue an interrupted tuning.", "--resume/--no-resume", default=True)]
    on_step: Annotated[
        Callable[[StepOutcome], None] | None, PythonOnly("called with each StepOutcome as soon as it is known")
    ]
    told: Annotated[Callable[[StepOutcome], None] | None, OldName("on_step")]


class MeasuredSampleOptions(TypedDict, total=False):
    """How many samples layers are measured on."""

    samples: Annotated[int, Flag("Measure on up to N samples.", default=32, minimum=1, metavar="N")]


class ProbingOptions(
    DeviceOptions, SettingOptions, PostprocessingOptions, MeasuredSampleOptions, ReadingOptions, total=False
):
    """How layers of a planned model are measured."""


class FormatSearchOptions(TypedDict, total=False):
    """What is searched for."""

    candidates: Annotated[
        str | Sequence[str | IntegerFormat],
        Flag("Integer formats to choose from.", reads=str, default="int4,int8", metavar="FORMATS"),
    ]
    what: Annotated[
        Literal["weights", "activations"], Flag("Choose formats of weights or of activations.", default="weights")
    ]
    max_error: Annotated[
        float | str | None,
        Flag("Fewest bits within this error: -30dB, or 0.001 of the power.", reads=str, metavar="ERROR"),
    ]
    mean_bits: Annotated[float | None, Flag("Or: least error within this many bits on average.", metavar="BITS")]


class MixOptions(FormatSearchOptions, ProbingOptions, WorkerOptions, StatisticsOptions, total=False):
    """Options of `mix`."""


class ProposalOptions(TypedDict, total=False):
    """What is proposed."""

    max_error: Annotated[
        float | str | None,
        proposal_flag(
            "Propose changes that bring the error below this: -25dB, or 0.003 of the power.", reads=str, metavar="ERROR"
        ),
    ]
    propose: Annotated[
        Literal["exclude", "a16", "w8"],
        proposal_flag("Leave layers float, use 16-bit activations, or widen 4-bit weights to 8.", default="exclude"),
    ]
    exact: Annotated[bool, Flag("Measure every layer on all samples; slow.", "--exact", default=False)]


class SensitivityOptions(ProposalOptions, ProbingOptions, MeasuringWorkerOptions, StatisticsOptions, total=False):
    """Options of `sensitivity`."""


class LabelSourceOptions(TypedDict, total=False):
    """Where labels are from."""

    labels: Annotated[
        LabelsLike,
        data_flag(
            "Labels, if not in the folder: a file of classes, a folder of boxes (YOLO) or masks, COCO's .json, pairs.",
            reads=Path,
            default="find",
            hidden=True,
            python="or one for each sample, or {name: label}; None: compare outputs only",
        ),
    ]
    no_labels: Annotated[bool, data_flag("Ignore labels and compare outputs.", "--no-labels", default=False)]


class EvaluateOptions(DeviceOptions, JudgeOptions, LabelSourceOptions, LabelOptions, RunningOptions, total=False):
    """Options of `evaluate`."""

    task: Annotated[
        str | None,
        data_flag(
            "classify, tag, sequence, detect, segment, embed, regress or image. Default: from the labels.",
            metavar="TASK",
        ),
    ]
    emulate: Annotated[
        Literal["half-even", "dpu"] | None, Flag("Run all models but the first in integers, as the NPU does.")
    ]


class CompareOptions(RunningOptions, total=False):
    """Options of `compare`."""

    inner: Annotated[bool, Flag("Also compare values between a layer and its activation.", "--inner", default=False)]


class InferOptions(RunningOptions, total=False):
    """Options of `infer`."""


class EmulateOptions(DeviceOptions, SampleOptions, ProgressOptions, TrustOptions, total=False):
    """Options of `emulate`."""

    rounding: Annotated[
        str | None, Flag("half-even, as in the file, or dpu: ties upwards. Default: that of --device, or half-even.")
    ]


Options = TypeVar("Options", bound=Mapping[str, Any])


@cache
def declared(kind: type) -> dict[str, tuple[Any, Flag | PythonOnly | OldName]]:
    """Return, for each option of a class, its type and its Flag, PythonOnly or OldName."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: (hint.__origin__, hint.__metadata__[0]) for name, hint in hints.items()}


def settled(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """Return all options of a class: those given, under their present names, and the defaults of the others."""
    known = declared(kind)
    found: dict[str, Any] = {name: flag.default for name, (_, flag) in known.items() if not isinstance(flag, OldName)}
    for name, value in given.items():
        if name not in known:
            verb = kind.__name__.removesuffix("Options").lower()
            raise TypeError(f"{verb}() has no option '{name}'.{nearest(name, known)}")
        wanted, flag = known[name]
        check_type(name, value, wanted, _help_of(flag))
        found[flag.of if isinstance(flag, OldName) else name] = value
    return found  # type: ignore[return-value]  # it has the names that the class declares


def check_arguments(parameters: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> None:
    """Raise UsageError for an argument of a verb, as ARGUMENTS has them, of a wrong type. None is as its default."""
    for name in given.keys() & parameters.keys():
        wanted = ARGUMENTS.get(name, Any)
        check_type(name, given[name], wanted | None if parameters[name].default is None else wanted)


Verb = TypeVar("Verb", bound=Callable[..., Any])


def documented(kind: type) -> Callable[[Verb], Verb]:
    """Add what the options say to the docstring of a verb."""

    def add(verb: Verb) -> Verb:
        lines = [f"    {name}: {_help_of(each)}" for name, (_, each) in declared(kind).items()]
        # Without its indentation, which Python 3.13 takes away and earlier ones leave.
        verb.__doc__ = "\n".join([inspect.cleandoc(verb.__doc__ or ""), "", "Options:", *lines, ""])
        return verb

    return add


def _help_of(each: Flag | PythonOnly | OldName) -> str:
    if isinstance(each, OldName):
        return f"the earlier name of `{each.of}`."
    if isinstance(each, PythonOnly):
        return f"{each.help}."
    return each.help + (f" Python takes this {each.python}." if each.python else "")
