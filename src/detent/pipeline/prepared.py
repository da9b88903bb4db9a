"""The first stage: check what is asked for, load the model, rewrite it for quantization and open the data.

A prepared model must compute what the given one does. `Original` keeps the given one, to compare with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from threadpoolctl import ThreadpoolController

from detent.convert.splitting import tail_file
from detent.devices.catalog import device_of, with_steps
from detent.devices.device import Device
from detent.emit.output_formats import check_formats
from detent.emulator import check_emulable
from detent.errors import DataError, ModelError, UsageError
from detent.evaluation.data_check import first_batch_norm, unlike_training
from detent.execute.inference import map_in_order
from detent.execute.quantized_walk import Program
from detent.graph.load import MINIMUM_OPSET, files_of, lower_ir_version, name_of, raise_opset, read, unzipped
from detent.graph.save import check_output, tensor_bytes
from detent.graph.session import LARGE_MODEL, Runner, check_operators, return_memory
from detent.graph.values import constant, is_constant, is_standard, is_unused, static_shape
from detent.observe.rows import cannot_be_random
from detent.observe.samples import PendingSample, Sample, Source, shares_batch
from detent.observe.sources import Shape, input_specs, open_source
from detent.observe.store import fingerprint_of
from detent.observe.streams import FeedbackSource, initial_states, states_of
from detent.observe.sweep import Observation
from detent.option_values import fixing_of, names_of
from detent.pipeline.job import Job
from detent.plan.layout import Layout, Role, leave_float
from detent.plan.mixed import arrange, assign_formats
from detent.plan.plan import check_methods, needs_statistics
from detent.plan.postprocessing import Postprocessing, find_postprocessing
from detent.plan.select import Became, Selection, check_operator_types
from detent.prepare import FixInputs, FoldConstants, Pass, default_passes, prepare, successors
from detent.prepare.shapes import constant_inputs, is_open_batch
from detent.progress import Progress
from detent.qdq.families import DYNAMIC
from detent.recipe import Recipe
from detent.refine.refine import check_refinement
from detent.results.quantized import Notes
from detent.tasks.parts import OutputPart, output_parts
from detent.tasks.purpose import Purpose, purpose_of

QUANTIZED_OPERATORS = ("QuantizeLinear", "DequantizeLinear", *DYNAMIC)

# What draws numbers while the model runs, so that two runs differ.
RANDOM_OPERATORS = (
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"),
)

NORM_SAMPLES = 4  # samples by which the values before the first BatchNorm are compared with those of training

Shapes = Mapping[str, Sequence[int | None]]
"""Shapes of inputs; None: that dimension stays as it is."""

# How far a prepared model may be from the original: folding changes the last bits, a wrong rewrite much more.
ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE = 1e-3, 1e-2


@cache
def _blas() -> ThreadpoolController:
    """Find the libraries that compute NumPy's matrix products."""
    return ThreadpoolController()


@dataclass
class Stopwatch:
    """Seconds per step, and the name of each step to the observer."""

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time the block under this name. Matrix products take one thread there.

        Samples and layers are spread over all cores already, and threads of BLAS spin while they wait for work.
        """
        self.progress(name, 0, None)
        start = perf_counter()
        with _blas().limit(limits=1, user_api="blas"):
            yield
        return_memory()
        self.seconds[name] = perf_counter() - start


@dataclass(frozen=True, eq=False)
class Prepared:
    """A float model rewritten for quantization, the decision for each of its nodes, and the data.

    `job` is the one that was given, without a refinement that has no data to learn from. `fingerprint` is that of the
    model as it was given; None unless a file of statistics is read or written. `source` is None if no data is needed.
    `purpose` is what the model is for and `parts` what its outputs are joined from; both are to judge the result by.
    `tail` is the post-processing that stays float. `became` says what preparation made of the nodes that users name.
    `not_finite` are values that stay float because they hold NaN or infinity on some sample.
    The next stage rescales `model` in place: a second copy of all weights would double the memory of a run.
    """

    job: Job
    target: Device
    original: Original
    model: ir.Model
    fingerprint: str | None
    layout: Layout
    notes: Notes
    source: Source | None
    purpose: Purpose
    parts: Mapping[str, Sequence[OutputPart]]
    became: Became
    warnings: tuple[str, ...] = ()
    tail: Postprocessing | None = None
    not_finite: tuple[str, ...] = ()

    @property
    def sites(self) -> list[str]:
        """The activations to observe: those that do not share the parameters of another one."""
        return _observed_sites(self.layout)

    def without(self, values: Collection[str]) -> Prepared:
        """Leave float what computes or reads a value that holds NaN or infinity on some sample.

        Raise ModelError if nothing is left to quantize.
        """
        why = dict.fromkeys(values, "holds NaN or infinity, which no integer stands for")
        return replace(self.leaving(why), not_finite=(*self.not_finite, *values))

    def leaving(self, values: Mapping[str, str]) -> Prepared:
        """Leave float what computes or reads these values, each for its reason. Raise ModelError if nothing is left."""
        layout = self.layout
        for value, reason in values.items():
            layout = leave_float(self.model, layout, [value], reason)
        return replace(self, layout=assign_formats(self.model, layout, self.job.recipe, self.became))

    @property
    def cuts(self) -> bool:
        """Whether the post-processing becomes a file of its own: if asked for, or if the device rejects it."""
        wanted = self.job.options["postprocessing"]
        return self.tail is not None and (wanted == "cut" or (wanted == "auto" and self.target.all_or_nothing))

    @property
    def needs_statistics(self) -> bool:
        """Whether the format of any activation needs statistics."""
        return _needs_statistics(self.layout)


def prepare_model(job: Job, watch: Stopwatch) -> Prepared:
    """Check the job, load its model, rewrite it, decide which nodes are quantized, and open the data."""
    target = check_recipe(job.recipe, job.selection)
    with watch.step("load"):
        model, original = _load_float(job)
        fingerprint = fingerprint_of(model) if job.collecting.needs_identity else None
        given = model.clone() if _leaves_shapes_open(model) else model  # weights are shared until they change
        purpose = purpose_of(model, job.options["task"])
    with watch.step("prepare"):
        names = [str(node.name) for node in model.graph]
        # Folded at once: onnxruntime would take branches out of an If by itself, under names of its own.
        settling: list[Pass] = [FixInputs(job.constants), FoldConstants()] if job.constants else []
        settled = prepare(model, settling)
        for_target = [make() for make in target.preparations]
        early = fixes_batch(job, target) and not job.runs_batches
        shapes, unfixed = (job.shapes, ()) if job.shapes else _shapes_of_samples(job, model, target)
        passes = default_passes(shapes, for_target, job.recipe.without, job.recipe.also, fix_batch=early)
        notes = Notes([*settled, *prepare(model, passes)], [note for step in passes for note in step.declined])
        if given is not model:  # a fixed batch has settled sizes that the file leaves open
            purpose = purpose_of(given, job.options["task"], _output_shapes(model))
        became = successors(names, model.graph, [*settling, *passes])
        found = find_postprocessing(model.graph)
        tail = _float_tail(job, found)
        layout = arrange(model, job.selection, job.recipe, became, tail)
    job, warnings = _without_learning(job, layout)
    warnings = (*unfixed, *warnings)
    if found is not None and tail is None:
        warnings = (*warnings, found.when_quantized)
    unzips = (f"Output '{name}': {what}." for name, what in unzipped(model))
    warnings = (*warnings, *unzips, *_unsteady(model))
    source, parts = _open_data(job, model, layout), output_parts(model.graph)
    return Prepared(
        *(job, target, original, model, fingerprint, layout, notes, source, purpose, parts, became, warnings, tail)
    )


def _output_shapes(model: ir.Model) -> dict[str, Shape]:
    shapes = {str(value.name): static_shape(value) for value in model.graph.outputs}
    return {name: tuple(shape) for name, shape in shapes.items() if shape is not None}


def _leaves_shapes_open(model: ir.Model) -> bool:
    """Return whether the file leaves more open of an output than the batch."""
    shapes = _output_shapes(model)
    return len(shapes) < len(model.graph.outputs) or any(None in shape[1:] for shape in shapes.values())


def _unsteady(model: ir.Model) -> Iterator[str]:
    """Yield what to tell of nodes whose answer does not depend on the sample alone; the first of each kind."""
    nodes = list(model.graph.all_nodes())
    drawing = next((node for node in nodes if node.op_type in RANDOM_OPERATORS), None)
    if drawing is not None:
        yield f"Node '{drawing.name}' draws random numbers: no two runs are equal."
    training = next(filter(_is_training, nodes), None)
    if training is not None:
        yield (
            f"BatchNormalization '{training.name}' is in training mode and answers by the samples that come together. "
            "For inference, export the model again (model.eval())."
        )


def _is_training(node: ir.Node) -> bool:
    return is_standard(node, "BatchNormalization") and node.attributes.get_int("training_mode", 0) == 1


def _gives_statistics_out(node: ir.Node) -> bool:
    """Return whether a BatchNormalization in training mode answers in onnxruntime as it should.

    Where nothing reads the running statistics that it computes, onnxruntime writes them over those that it is given:
    over the caller's arrays, and over a constant that, being equal, other nodes read as well.
    """
    given_out = [value for value in node.outputs[1:3] if not is_unused(value)]
    return len(given_out) == 2 and not any(map(is_constant, node.inputs[3:5]))


def fixes_batch(job: Job, target: Device) -> bool:
    """Return whether an open batch becomes 1: that of a model for an NPU, which computes one sample at a time.

    That is done before anything else, because shapes that are computed from a fixed batch are constants; but last if
    calibration may run several samples at once.
    """
    return target.accelerated and not job.options["keep_batch"]


def _shapes_of_samples(job: Job, model: ir.Model, target: Device) -> tuple[Shapes | None, tuple[str, ...]]:
    """Return the shapes that all samples have, for inputs that are open in more than the batch.

    An NPU is programmed for one shape, and what computes with shapes folds away. A size of images is what the file's
    metadata or the user says, so one sample tells it. Where samples differ, also return a warning that says so.
    """
    how, specs = fixing_of(job.options["fix_shape"])[1], input_specs(model)
    open_axes = [(spec.name, axis) for spec in specs for axis, size in enumerate(spec.shape) if size is None]
    sizes = [value.shape[0] for value in model.graph.inputs if value.shape]
    # Where inputs do not share a batch, no sample is a row of it: a first axis is what its name says.
    first = not shares_batch(specs) and not all(isinstance(size, int) or is_open_batch(size) for size in sizes)
    if how == "none" or not (how or target.accelerated) or not any(axis or first for _, axis in open_axes):
        return None, ()
    source = None if job.calibration is None else _source_of(job, model)
    if source is None or not source.repeatable:
        if how:
            raise UsageError("--fix-shape auto takes shapes from samples: give --calib, and no iterator.")
        return None, ()
    if job.runs_batches or job.options["keep_batch"]:
        open_axes = [(name, axis) for name, axis in open_axes if axis]
    shapes: dict[str, list[int | None]] = {spec.name: [None] * len(spec.shape) for spec in specs}
    for pending in source.peek(1) if source.preprocess is not None else source:
        feeds = pending.load().feeds
        for name, axis in open_axes:
            known, found = shapes[name][axis], feeds[name].shape[axis]
            if known not in (None, found):
                said = f"Axis {axis} of input '{name}' is {known} in the first sample and {found} in {pending.origin}"
                if how:
                    raise DataError(f"--fix-shape auto: {said}. Pad samples to one size, or give the shape.")
                return None, (f"{said}, so it stays open. Pad samples to one size, or choose one by --fix-shape.",)
            shapes[name][axis] = found
    return {name: shape for name, shape in shapes.items() if any(shape)}, ()


def _float_tail(job: Job, found: Postprocessing | None) -> Postprocessing | None:
    """Return the post-processing, if it is to stay float. Raise UsageError if it must and cannot."""
    wanted = job.options["postprocessing"]
    if wanted == "keep":
        return None
    if job.recipe.format == "bfloat16" and wanted != "auto":
        raise UsageError(
            f"Format bfloat16 computes the whole model in bfloat16: leave --postprocessing {wanted} out, or choose "
            "format cast."
        )
    if found is None and wanted != "auto":
        raise UsageError(
            f"--postprocessing {wanted}: no post-processing of detections was recognised in {name_of(job.model)}. Name "
            "its nodes with --exclude, or cut it off with `detent split MODEL BODY TAIL --at VALUE`."
        )
    return None if job.recipe.format == "bfloat16" else found


def check_recipe(recipe: Recipe, selection: Selection) -> Device:
    """Return the target. Raise UsageError if parts of the recipe contradict each other, or the selection of nodes."""
    if recipe.format == "bfloat16" and selection != Selection():
        raise UsageError(
            "Format bfloat16 computes the whole model in bfloat16: leave --include, --exclude, --op-types, --from and "
            "--to out, or choose format cast."
        )
    target = with_steps(device_of(recipe), recipe)
    check_formats(recipe)
    check_methods(recipe)
    check_operator_types(recipe)
    check_refinement(recipe)
    target.check(recipe)
    check_emulable(recipe)
    return target


def _load_float(job: Job) -> tuple[ir.Model, Original]:
    """Load the float model, to be rewritten and as it is, and check that the files to be written can be."""
    model = read(job.model)
    # Of large models, the two share their weights until they change.
    original = Original(job, model.clone() if tensor_bytes(model) >= LARGE_MODEL else None)
    model = raise_opset(model, max(job.recipe.least_opset, MINIMUM_OPSET), name_of(job.model))
    lower_ir_version(model)
    for node in model.graph.all_nodes():
        if node.op_type in QUANTIZED_OPERATORS or node.op_type.startswith("QLinear"):
            raise ModelError(
                f"{name_of(job.model)} is quantized already (node '{node.name}' is a {node.op_type}). Give the float "
                f"model; `detent inspect` shows what is in this one{_way_back(model)}."
            )
        if _is_training(node) and not _gives_statistics_out(node):
            raise ModelError(
                f"{name_of(job.model)} was exported for training: BatchNormalization '{node.name}' is in training mode "
                "and answers by the samples that come together. Export the model for inference (model.eval())."
            )
    check_operators(model)
    if job.output is not None:
        files = [] if isinstance(job.model, onnx.ModelProto) else files_of(Path(job.model))
        check_output(job.output, *files)
        if job.options["postprocessing"] == "cut":
            check_output(tail_file(job.output), *files, job.output)
    if job.collecting.save is not None:
        check_output(job.collecting.save, job.output)
    return model, original


def _way_back(model: ir.Model) -> str:
    """Say how a quantized model becomes float again, if it can."""
    kinds = {node.op_type for node in model.graph.all_nodes()}
    if any(kind.startswith("QLinear") or kind in ("ConvInteger", "MatMulInteger") for kind in kinds):
        return ""  # they compute on codes
    remedy = "`detent convert MODEL FLOAT --to float` takes the rounding of activations out of it"
    return f", and if there is no other, {remedy}"


def _observed_sites(layout: Layout) -> list[str]:
    return [site.value for site in layout.of_role(Role.ACTIVATION) if layout.leader(site.value) == site.value]


def _needs_statistics(layout: Layout) -> bool:
    return any(needs_statistics(layout, layout.sites[name]) for name in _observed_sites(layout))


def _without_learning(job: Job, layout: Layout) -> tuple[Job, tuple[str, ...]]:
    """Leave out what learns from data if there is none and no format needs any; also return a warning that says so."""
    refinement = job.recipe.refinement
    if job.calibration is not None or not job.recipe.learns or _needs_statistics(layout):
        return job, ()
    other = "The search for ranges" if job.recipe.search_ranges else "Awq"
    name = other if refinement is None else type(refinement).__name__
    warning = f"{name} was left out: it needs data, which the rest of the recipe does not. Give some (--calib)."
    smooth = job.recipe.smooth if isinstance(job.recipe.smooth, float) else None
    return replace(job, recipe=job.recipe.replace(refinement=None, search_ranges=False, smooth=smooth)), (warning,)


def _open_data(job: Job, model: ir.Model, layout: Layout) -> Source | None:
    """Open the data; None if nothing runs, or if the statistics are known already."""
    how = job.collecting
    if (how.needs_identity or how.must_count) and not _needs_statistics(layout):
        raise UsageError(
            f"Recipe {job.recipe.name} needs no statistics of activations here: leave --stats, --save-stats, --workers "
            "and --dask out."
        )
    if job.calibration is None and (job.options["dry_run"] or how.reuse is not None):
        return None
    if job.calibration is None and not _needs_statistics(layout) and cannot_be_random(input_specs(model)):
        return None  # nothing is calibrated, and there is nothing to measure with
    return _source_of(job, model)


def _source_of(job: Job, model: ir.Model) -> Source:
    specs, states = input_specs(model), states_of(names_of(job.options["feedback"]), model)
    if states and (job.collecting.executor is not None or job.options["batch"] not in (None, 1)):
        raise UsageError("--feedback runs one step after the other: leave --workers, --dask and --batch out.")
    source = open_source(
        job.calibration,
        [spec for spec in specs if spec.name not in states],
        preprocess=job.preprocess,
        limit=job.options["limit"],
        hold_out=job.options["hold_out"],
        seed=job.options["seed"],
        batch=job.options["batch"],
        strict=job.options["strict"],
    )
    if not states:
        return source
    runner = Runner(model)

    def step(feeds: Mapping[str, npt.NDArray[Any]], origin: str) -> dict[str, npt.NDArray[Any]]:
        return dict(zip(runner.outputs, runner(feeds, origin), strict=True))

    return FeedbackSource(source, states, initial_states(model, specs, states), step)


ANSWER_BYTES = 64 << 20
"""The outputs of samples that are kept: of the largest detectors those of a few, of a classifier all."""


class Original:
    """The model as it was given, ready to run on samples of the prepared one.

    It is in memory from when it is first needed until `keep`.
    """

    def __init__(self, job: Job, model: ir.Model | None = None) -> None:
        """Begin without answers. The `model` is read when it is needed, unless it is at hand."""
        self._job, self._given = job, model
        self._answers: dict[int, dict[str, npt.NDArray[Any]]] = {}
        self._room = ANSWER_BYTES
        self._lock = Lock()
        self._opened: tuple[ir.Model, Runner] | None = None

    def open(self) -> Original:
        """Load the model now."""
        self._open()
        return self

    def _open(self) -> tuple[ir.Model, Runner]:
        with self._lock:
            if self._opened is None:
                model = read(self._job.model) if self._given is None else self._given
                lower_ir_version(model)
                self._opened = model, Runner(model)
            return self._opened

    def keep(self, samples: Sequence[PendingSample]) -> None:
        """Answer all samples that may still be asked about, and give up the model if all answers could be kept."""
        for pending, _ in map_in_order(self, samples, self._job.collecting.threads):
            if pending.index not in self._answers:  # no room: then others are answered when they are asked about
                break
        if all(pending.index in self._answers for pending in samples):
            self._opened = self._given = None

    @property
    def _model(self) -> ir.Model:
        return self._open()[0]

    @property
    def nodes(self) -> Iterable[ir.Node]:
        """All nodes, those of inner graphs and functions included."""
        functions = (node for function in self._model.functions.values() for node in function.all_nodes())
        return chain(self._model.graph.all_nodes(), functions)

    def __call__(self, pending: PendingSample) -> dict[str, npt.NDArray[Any]]:
        """Return all outputs by name. They are kept for the next one who asks, unless they are large."""
        known = self._answers.get(pending.index)
        if known is None:
            sample = pending.load()
            known = self._run(sample.feeds, sample.origin)
            size = sum(array.nbytes for array in known.values())
            if size <= self._room:
                # A copy: an array of onnxruntime's keeps the whole region of memory that it is in.
                self._answers[pending.index] = {name: array.copy() for name, array in known.items()}
                self._room -= size
        return dict(known)

    def answer(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return all outputs by name for inputs that are not samples as they come."""
        return self._run(feeds, "the calibration data")

    def _run(self, feeds: Mapping[str, npt.NDArray[Any]], origin: str) -> dict[str, npt.NDArray[Any]]:
        _, runner = self._open()
        return dict(zip(runner.outputs, runner(self._feeds(feeds), origin), strict=True))

    def _feeds(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        graph = self._model.graph
        types = {str(each.name): each.dtype.numpy() for each in graph.inputs if each.dtype is not None}
        given = {name: array.astype(types.get(name, array.dtype), copy=False) for name, array in feeds.items()}
        return {**given, **constant_inputs(graph, self._job.constants)}

    def ranks_alike(self, prepared: ir.Model, sample: Sample) -> bool:
        """Return whether a TopK of both models gets the same scores, so that only ties are decided differently."""
        present = {value.name for node in prepared.graph for value in node.outputs}
        ranked = [
            str(node.inputs[0].name)
            for node in self._model.graph
            if node.op_type == "TopK" and node.inputs[0] is not None and node.inputs[0].name in present
        ]
        # The first: what later ones choose from depends on what it chose.
        for name in ranked[:1]:
            (before,) = Runner(self._model, [name])(self._feeds(sample.feeds), sample.origin)
            (after,) = Runner(prepared, [name])(sample.feeds, sample.origin)
            return before.shape == after.shape and before.size > 0 and not _difference(before, after)
        return False

    def unlike_training(self, samples: Sequence[Mapping[str, npt.NDArray[Any]]]) -> list[str]:
        """Say whether the first BatchNorm gets other values than in training."""
        norm = first_batch_norm(self._model.graph)
        if norm is None:
            return []
        name = str(norm.conv.inputs[0].name) if norm.conv.inputs[0] is not None else ""
        fed = [{name: self._feeds(sample)[name]} for sample in samples[:NORM_SAMPLES]]
        # The one layer is run by itself: the model would compute all others as well.
        first = Program(self._model, [norm.conv], norm.conv.outputs, fed[0], _constant_input)
        said = unlike_training(norm, [first(each, "the calibration data")[0] for each in fed])
        return [] if said is None else [said]


def _constant_input(node: ir.Node, index: int) -> Any:
    return constant(node.inputs[index])


def check_preparation(
    prepared: Prepared, original: Original, samples: Sequence[PendingSample], observation: Observation
) -> list[str]:
    """Run the given model on one sample: preparing and equalizing it must not have changed its function.

    Return what to tell: where a TopK chooses among scores that are all but equal, the last bits of them decide, and
    what follows differs between two runs of one model on two machines. What goes into it must not differ.
    """
    if any(node.op_type in RANDOM_OPERATORS for node in original.nodes):
        return []  # it does not compute the same twice
    if observation.runner is None:  # without data, this was checked when the statistics were counted
        return []
    # One of the samples that equalization saw: on others, a Clip may cut where it did not before.
    pending = (samples or observation.measured_on)[0]
    sample, expected = pending.load(), original(pending)
    found = observation.runner(sample.feeds, sample.origin, list(expected))
    for (name, before), after in zip(expected.items(), found, strict=True):
        if before.dtype.kind != "f" or before.shape != after.shape or before.size == 0:
            continue
        difference = _difference(before, after)
        if difference:
            if original.ranks_alike(prepared.model, sample):
                return [
                    f"Output '{name}' depends on a TopK whose scores are nearly tied on {sample.origin}: it is ordered "
                    "differently by other versions of onnxruntime too, and figures that compare it entry by entry say "
                    "little. Judge by `detent evaluate` with labels."
                ]
            raise ModelError(
                f"Preparing {name_of(prepared.job.model)} changed what it computes: output '{name}' differs by "
                f"{difference:.3g} on {sample.origin}. This is a fault of Detent or of the opset conversion; export "
                "the model with opset 17 or newer, and please report it."
            )
    return []


def _difference(before: npt.NDArray[Any], after: npt.NDArray[Any]) -> float:
    """Return the largest difference of two tensors where the first is finite; 0 within what folding changes."""
    finite = np.isfinite(before)
    difference = float(np.abs(before[finite].astype(np.float64) - after[finite]).max(initial=0.0))
    allowed = ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * float(np.abs(before[finite]).max(initial=0.0))
    return 0.0 if difference <= allowed else difference
