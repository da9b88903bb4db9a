"""Refinement: one pass over the float model for the targets, then one walk through the quantized model.

At each layer of the walk the refinement chooses the weights, if it does, and then the bias is corrected on what the
quantized model computes with them. Each layer's outcome is a `LayerChange`, applied before the walk goes on.

A method that looks at the weights alone cannot tell which scale the layer is best with, so a refinement may try others:
powers of two have the next finer and the next coarser one, if the device's rules allow it; float scales some finer
ones, at which the largest weights are cut. A bias that is counted in the unit of the products follows.

An interrupted refinement continues from its checkpoint. A layer is refined on what the layers before it give, and those
do not change any more. So its numbers, its report and its scale are all that has to be kept: a run that takes them over
computes the same bytes as one that was never interrupted. The file belongs to one identity: these models, scales,
samples and settings. Any other is ignored, and replaced.
"""

from __future__ import annotations

import dataclasses
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.errors import DataError
from detent.execute.quantized_walk import QuantizedWalk
from detent.graph.session import return_memory
from detent.graph.values import constant
from detent.numerics.formats import holds_integers
from detent.numerics.interface import Params
from detent.observe.rows import ARRAY_ERRORS
from detent.observe.samples import PendingSample
from detent.observe.store import REFINEMENT, CheckpointFile, Digest, fingerprint_of
from detent.plan.plan import Plan
from detent.progress import Progress, silent
from detent.recipe import Recipe
from detent.refine import problems
from detent.refine.layers import (
    LayerChange,
    LayerReport,
    MatrixLayer,
    adopt_scale,
    curves_of,
    find_layers,
    gates_of,
)
from detent.refine.ranges import Constrain, RangeSearch
from detent.refine.score_heads import ScoreLogits
from detent.refinements import Refinement
from detent.refinements.bias_correction import BiasShift, ChannelAnswers, find_shift
from detent.refinements.layer_problem import Floats, why_no_steps
from detent.refinements.refinement import ScaleCandidate
from detent.settings import parse_json
from detent.version import __version__


def identity_of(
    models: tuple[ir.Model, ir.Model], plan: Plan, refinement: Refinement, data: str, samples: int, memory: int
) -> str:
    """Return a text that differs when anything does that the result depends on."""
    digest = Digest()
    digest.add(__version__, repr(refinement), data, samples, memory, *map(fingerprint_of, models))
    for name in sorted(plan.params):
        params = plan.params[name]
        digest.add(name, repr(params.format))
        if holds_integers(params):
            digest.add_array(params.scale)
            digest.add_array(params.zero_point)
        else:
            digest.add(repr(params))
    digest.add(repr(sorted(plan.layout.ties.items())))
    return digest.text


@dataclass
class RefinementCheckpoint:
    """The changes of the layers that are finished, by the names of their outputs, and the file that they are kept in.

    It is written again when the last time is `every` seconds ago. `notes` collects what the user should know.
    """

    path: Path
    identity: str
    every: float = 30.0
    notes: list[str] = field(default_factory=list)
    finished: dict[str, LayerChange] = field(default_factory=dict)
    _written: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._file = CheckpointFile(self.path, REFINEMENT, "The refinement", "all layers are refined", self.notes)

    def resume(self) -> None:
        """Take over what an earlier run of the same identity finished. Raise OutputError at a foreign file."""
        identity, found = self._file.read(_unpack) or ("", {})
        if found and identity != self.identity:
            self._file.ignore("another run")
        elif found:
            self.finished = found
            self.notes.append(f"Continued from the checkpoint {self.path}: {len(found)} layers were refined already.")

    def keep(self, output: str, layer: LayerChange) -> None:
        """Keep the change of another layer."""
        self.finished[output] = layer
        if time.monotonic() - self._written >= self.every:
            self.write()

    def write(self) -> None:
        """Replace the file."""
        if self.finished:
            self._file.write(partial(_pack, self.identity, self.finished))
        self._written = time.monotonic()

    def remove(self) -> None:
        """Remove the file: all layers are done."""
        self._file.remove()


def _pack(identity: str, finished: Mapping[str, LayerChange]) -> bytes:
    """Return a JSON header, and one array after the other in the order that it lists them in."""
    layers: list[dict[str, object]] = []
    arrays: list[npt.NDArray[np.floating]] = []
    for output, layer in finished.items():
        layers.append(
            {
                "output": output,
                "report": dataclasses.asdict(layer.report),
                "refined": list(layer.refined),
                "scaled": layer.scale is not None,
            }
        )
        arrays += [*layer.refined.values(), *([] if layer.scale is None else [layer.scale])]
    header = json.dumps({"identity": identity, "layers": layers}).encode()
    body = io.BytesIO()
    np.savez(body, np.frombuffer(header, np.uint8), *arrays)
    return body.getvalue()


# What reading a forged or torn file raises; too few arrays are the last.
_DAMAGED: tuple[type[Exception], ...] = (*ARRAY_ERRORS, StopIteration)


def _unpack(body: bytes, where: str) -> tuple[str, dict[str, LayerChange]]:
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as file:
            arrays = iter([file[f"arr_{number}"] for number in range(len(file.files))])
            header = parse_json(next(arrays).tobytes())
            found = {}
            for layer in header["layers"]:
                refined = {str(name): next(arrays) for name in layer["refined"]}
                scale = next(arrays) if layer["scaled"] else None
                found[str(layer["output"])] = LayerChange(LayerReport(**layer["report"]), refined, scale)
            return str(header["identity"]), found
    except _DAMAGED as error:
        raise DataError(f"{where} is damaged: {error}.") from error


MEMORY = 2 << 30  # the bytes that refinement may use by default

RETURNING = 16  # layers after which what their targets took goes back to the system, which takes some milliseconds

# Other scales to try. Scales of other kinds stay as they are.
SCALE_FACTORS = {"power_of_two": (0.5, 2.0), "float": (0.9, 0.8)}

Permits = Callable[[ir.Node, Plan], bool]  # whether the device can compute a node with the parameters of a plan


def check_refinement(recipe: Recipe) -> None:
    """Raise UsageError if the refinement cannot work on the recipe's formats."""
    if recipe.refinement is not None:
        weights = [recipe.weights, *(override.weights for override in recipe.overrides if override.weights)]
        activations = [recipe.activations, *(override.activations for override in recipe.overrides)]
        recipe.refinement.check_formats(recipe.name, weights, activations)


def refine(
    model: ir.Model,
    reference: ir.Model,
    plan: Plan,
    refinement: Refinement,
    samples: Sequence[PendingSample],
    *,
    constrain: Constrain | None = None,
    threads: int = 0,
    memory: int = MEMORY,
    permits: Permits = lambda *_: True,
    checkpoint: RefinementCheckpoint | None = None,
    find_objects: problems.FindObjects | None = None,
    logits: ScoreLogits | None = None,
    progress: Progress = silent,
) -> tuple[Plan, list[LayerReport]]:
    """Refine the weights and biases of every layer. Return the plan with them, and what became of each layer.

    `model` is the float graph as it will be quantized; `reference` computes the targets and has values of the same
    names. Positions are final, except with `constrain`, which keeps the rules of the target: then the scales of
    activations are searched for on the same walk. `permits` tells which scales of weights the device can compute with.
    About `memory` bytes are used at most: with less, fewer samples and rows are. A `checkpoint` has the layers that an
    interrupted run finished. `find_objects` tells where in a detector's images layers should be right; `logits` takes
    what the heads of its scores answer in both models.
    """
    if not samples:
        raise DataError("There are no samples to refine with. Give calibration data.")
    layers, reports = find_layers(model, plan.layout)
    if not layers:
        return plan, reports
    budget = problems.make_budget(model, plan, list(layers.values()), refinement, samples, memory)
    watched = set() if logits is None else logits.names
    walk = QuantizedWalk(model, plan, [sample.origin for sample in budget.samples], threads, watched)
    targets = problems.float_targets(reference, list(layers.values()), budget, walk, progress, find_objects, logits)
    nodes = {str(node.name): node for node in reference.graph}
    refiner = LayerRefiner(walk, refinement, budget, permits, nodes)
    done, total = len(budget.samples), len(budget.samples) + len(layers)

    def visit(node: ir.Node) -> None:
        nonlocal done
        if (layer := layers.get(node)) is not None:
            reports.append(_refine_or_resume(layer, targets.pop(layer.output), refiner, checkpoint))
            if len(targets) % RETURNING == 0:  # the memory of those that are popped
                return_memory(collect=False)
            done += 1
            progress(problems.STAGE, done, total)

    search = None if constrain is None else RangeSearch.on(walk, reference, constrain, budget.samples)
    # Ranges are searched for in all values; else the walk ends with the inputs of the last layer.
    wanted = watched | {str(value.name) for node in layers for value in node.inputs if value is not None}
    try:
        walk.run(visit, None if logits is None else logits.find, search, wanted if search is None else None)
    # Hours of AdaRound would be lost otherwise; the same command goes on from here.
    except KeyboardInterrupt:
        if checkpoint is not None:
            checkpoint.write()
        raise
    if checkpoint is not None:
        checkpoint.remove()
    return walk.plan, reports


def _refine_or_resume(
    layer: MatrixLayer, target: problems.LayerTarget, refiner: LayerRefiner, checkpoint: RefinementCheckpoint | None
) -> LayerReport:
    """Refine a layer, or apply the change that an earlier run made of it."""
    known = None if checkpoint is None else checkpoint.finished.get(layer.output)
    if known is not None:
        refiner.walk.plan = known.apply(layer, refiner.walk.plan)
        return known.report
    change = refiner.refine(layer, target)
    if checkpoint is not None:
        checkpoint.keep(layer.output, change)
    return change.report


@dataclass(frozen=True, eq=False)
class LayerRefiner:
    """Refines one layer after another, in the order of the walk."""

    walk: QuantizedWalk
    refinement: Refinement
    budget: problems.Budget
    permits: Permits
    reference: Mapping[str, ir.Node]

    def refine(self, layer: MatrixLayer, target: problems.LayerTarget) -> LayerChange:
        """Choose the layer's weights, if the refinement does, then its bias. The walk's plan has the change then."""
        before = self.walk.plan.of(str(layer.weight.name))
        report = (
            self._choose_weights(layer, target) if self.refinement.chooses_weights else self._bias_only(layer, target)
        )
        return LayerChange.since(before, layer, self.walk.plan, report)

    def _choose_weights(self, layer: MatrixLayer, target: problems.LayerTarget) -> LayerReport:
        plan = self.walk.plan
        reason = problems.why_not(layer, plan, target, self.refinement, self.budget.layer_bytes)
        if reason is not None:
            return self._bias_only(layer, target, reason)
        row_bytes = 4 * layer.groups * layer.shape[2]
        most_rows = self.budget.layer_bytes // 2 // row_bytes  # half of it: rows are copied when they are centered
        gates = gates_of(layer, plan.layout, self.reference)
        problem, held_out = problems.build_problem(layer, self.walk, target, most_rows, gates)
        scales = scale_candidates(layer, plan, self.permits) if self.refinement.tries_scales else []
        choice = self.refinement.choose(problem, held_out, self.walk.pool, scales)
        if choice.solution is None:
            return self._bias_only(layer, target, choice.reason, choice.before)
        if choice.scale is not None:
            plan = adopt_scale(choice.scale.weights, layer, plan)
            problem = choice.scale.of(problem)
        weights = layer.tensor(choice.solution.codes * problem.weight_scale[..., None])
        plan = plan.with_refined({str(layer.weight.name): weights})
        self.walk.plan, note = with_bias(layer, plan, choice.solution.bias)
        if choice.matches_means:
            # Made for the rows of this layer before its activation; what is left after it is corrected on top.
            note = self._correct_bias(layer, target)[1] or note
        return _report(layer, choice.solution.method, choice.before, choice.after, note, self.budget.note)

    def _bias_only(
        self, layer: MatrixLayer, target: problems.LayerTarget, note: str = "", error: float | None = None
    ) -> LayerReport:
        found, saturated = self._correct_bias(layer, target)
        method = "as it was" if layer.bias is None else "bias correction"
        before, after = (found.before, found.after) if error is None else (error, error)
        return _report(layer, method, before, after, note, found.reason, saturated, self.budget.note)

    def _correct_bias(self, layer: MatrixLayer, target: problems.LayerTarget) -> tuple[BiasShift, str]:
        """Shift a layer's bias so that its answers are closest to float, and note what kept it from being so."""
        rows = [output.rows for output in target.outputs]
        answers = problems.quantized_answers(layer, self.walk, target)
        float_curve, curve = curves_of(layer, self.walk.plan.layout, self.reference)
        found = find_shift(ChannelAnswers(rows, answers, float_curve, curve))
        if layer.bias is None:
            return replace(found, after=found.before, reason=""), layer.note
        if not found.shift.any():
            return found, ""
        shifted = bias_of(layer, self.walk.plan) + found.shift
        self.walk.plan, note = with_bias(layer, self.walk.plan, shifted)
        return found, note


def _report(layer: MatrixLayer, method: str, before: float, after: float, *notes: str) -> LayerReport:
    text = "; ".join(note for note in notes if note)
    return LayerReport(layer.name, layer.node.op_type, method, before, after, text)


def with_bias(layer: MatrixLayer, plan: Plan, wanted: Floats) -> tuple[Plan, str]:
    """Give a layer a bias, as far as it fits the plan's parameters, and note if it does not. A fixed one stays."""
    if layer.bias is None:
        return plan, layer.note
    name, params = str(layer.bias.name), problems.bias_params_of(layer, plan)
    # A Gemm's bias may be [1, channels].
    shaped = wanted.reshape(np.asarray(constant(layer.bias)).shape)
    saturated = 0 if params is None else int(params.clipped(shaped).sum())
    note = f"the bias of {saturated} of {shaped.size} channels saturates" if saturated else ""
    return plan.with_refined({name: _stored(shaped, params)}), note


def bias_of(layer: MatrixLayer, plan: Plan) -> Floats:
    """Return the bias of each channel as it is encoded now."""
    assert layer.bias is not None, f"layer '{layer.name}' has no bias of its own"
    name, params = str(layer.bias.name), problems.bias_params_of(layer, plan)
    own = np.asarray(constant(layer.bias), np.float32)
    return _stored(plan.refined.get(name, own), params).reshape(-1).astype(np.float64)


def _stored(biases: npt.ArrayLike, params: Params | None) -> npt.NDArray[np.float32]:
    return np.asarray(biases, np.float32) if params is None else params.stored(biases)


def scale_candidates(layer: MatrixLayer, plan: Plan, permits: Permits) -> list[ScaleCandidate]:
    """Return the scales to try beside the present one."""
    name = str(layer.weight.name)
    present = plan.of(name)
    if not holds_integers(present) or why_no_steps(present) is not None:
        return []
    groups, channels, _ = layer.shape
    found = []
    for factor in SCALE_FACTORS.get(present.format.scale, ()):
        scale = present.scale * factor
        # The file holds float32: the candidate must be the number that will be written.
        if present.format.scale == "float":
            scale = scale.astype(np.float32).astype(np.float64)
        other = replace(present, scale=scale)
        trial = replace(plan, params={**plan.params, plan.layout.leader(name): other})
        if permits(layer.node, trial):
            each = np.broadcast_to(scale.reshape(-1 if scale.size == 1 else (groups, channels)), (groups, channels))
            bias = None if layer.bias is None else problems.bias_params_of(layer, trial)
            found.append(ScaleCandidate(other, each.copy(), bias))
    return found
