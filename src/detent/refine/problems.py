"""From a layer and the walk to its problem: what memory allows, what the float model answers, and the rows.

At most a half of the memory goes to the frontier of the walk, whose largest extent is found by walking with one sample.
The float outputs at the sampled positions have one half of what is left, and the layer that is being solved the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.errors import UsageError
from detent.execute.quantized_walk import Frontier, QuantizedWalk
from detent.execute.row_product import RowProduct
from detent.graph.session import Runner
from detent.graph.values import constant
from detent.numerics.blocks import is_block
from detent.numerics.formats import holds_integers
from detent.numerics.interface import Params
from detent.observe.samples import PendingSample
from detent.plan.layout import bias_input
from detent.plan.plan import Plan
from detent.progress import Progress
from detent.refine.layers import (
    Indices,
    MatrixLayer,
    activation_of,
    float_rows,
    gather,
    input_indices,
    positions_inside,
    sample_positions,
    take_rows,
    why_no_rows,
)
from detent.refine.score_heads import ScoreLogits
from detent.refinements import Refinement
from detent.refinements.activations import Curve
from detent.refinements.layer_problem import (
    INPUT_CHANNELS,
    Floats,
    FormatRounder,
    LayerProblem,
    Rounder,
    StepRounder,
    shorten_blocks,
    why_no_steps,
)
from detent.refinements.rounding import MOST_FACTORED
from detent.settings import show_memory

# Finds the corners of the objects of each image in a model's outputs, as shares of the image's sides.
FindObjects = Callable[[Mapping[str, npt.NDArray[Any]]], Sequence[npt.NDArray[np.floating]]]

STAGE = "refine"
SPARSE = 0.8
"""Up to this share of a layer's positions, computing them alone is quicker than the whole layer."""

MULTIPLIED_AT_ONCE = 8  # samples: as many for any number of threads, so that sums are taken in the same order

SEED = 20  # any number: the same rows in every run
HOLD_OUT_EVERY = 5
LEAST_ROWS = 16  # fewer rows teach a layer nothing
# With less than one row for so many inputs, what is found fits the rows and little else, whatever the damping.
MOST_INPUTS_PER_ROW = 16


@dataclass(frozen=True)
class Budget:
    """The samples to refine with, the rows to keep of each, and the bytes for one layer.

    `with_inputs`: the rows of the float input are kept too. `note` says what was cut.
    """

    samples: Sequence[PendingSample]
    rows: int
    layer_bytes: int
    with_inputs: bool = False
    note: str = ""


def make_budget(
    model: ir.Model,
    plan: Plan,
    layers: Sequence[MatrixLayer],
    refinement: Refinement,
    samples: Sequence[PendingSample],
    memory: int,
) -> Budget:
    """Choose as many samples and rows as the refinement asks for, or as fit. UsageError if not even one sample does."""
    wanted = min(refinement.samples, len(samples))
    peak = max(_peak(model, plan, samples[0]), 1)
    if memory < 2 * peak:
        raise UsageError(
            f"Refining needs at least {show_memory(2 * peak)} of memory for this model, and may use "
            f"{memory / 2**20:.3g} MB. Give --memory {show_memory(2 * peak)} or more, or --refine none."
        )
    number = max(1, min(wanted, memory // 2 // peak))
    note = f"memory for {number} of {wanted} samples" if number < wanted else ""
    chosen = [samples[index * len(samples) // number] for index in range(number)]
    left = max(memory - number * peak, 0) // 2
    wanted_rows, with_inputs = refinement.rows_per_sample, refinement.needs_float_inputs
    width = sum(layer.channels + (layer.groups * layer.shape[2] if with_inputs else 0) for layer in layers)
    rows = max(1, min(wanted_rows, left // (4 * width * number)))
    if rows < wanted_rows:
        note = "; ".join(filter(None, (note, f"memory for {rows} of {wanted_rows} rows of each sample")))
    return Budget(chosen, rows, left, with_inputs, note)


def _peak(model: ir.Model, plan: Plan, first: PendingSample) -> int:
    """Return the most bytes that the frontier holds for one sample."""
    walk, sample = QuantizedWalk(model, plan, [first.origin], threads=1), first.load()
    expected = walk.expected_bytes(sample.feeds)
    if expected is not None:
        return expected
    walk.start(0, sample)
    peak = 0

    def measure(_: str, frontier: Frontier) -> None:
        nonlocal peak
        peak = max(peak, frontier.nbytes)

    walk.run(lambda _: None, measure)
    return peak


@dataclass(frozen=True, eq=False)
class SampledOutput:
    """A layer's float output of one sample: its shape, and its channels at some positions, before the activation.

    `inputs` are the rows of the float input (groups, positions, inputs), if they were asked for.
    """

    shape: tuple[int, ...]
    positions: Indices
    rows: npt.NDArray[np.float32]
    inputs: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, eq=False)
class LayerTarget:
    """What a layer should answer. `outputs` has an entry for each sample."""

    outputs: Sequence[SampledOutput]


def float_targets(
    reference: ir.Model,
    layers: Sequence[MatrixLayer],
    budget: Budget,
    walk: QuantizedWalk,
    progress: Progress,
    find_objects: FindObjects | None = None,
    logits: ScoreLogits | None = None,
) -> dict[str, LayerTarget]:
    """Run the float model once for each sample, and return the targets by the names of the layers' outputs.

    The samples' inputs go to the start of the walk, so that each is decoded once. Where objects are found in the
    model's outputs, half of the rows are taken there: nearly all of an image of a detector is background.
    """
    samples, with_inputs = budget.samples, budget.with_inputs
    given = {str(value.name) for value in reference.graph.inputs}
    read = [layer.input for layer in layers if layer.input not in given] if with_inputs else []
    ends = [] if find_objects is None else [str(value.name) for value in reference.graph.outputs]
    runner = Runner(reference, list(dict.fromkeys([*(layer.output for layer in layers), *read, *ends])))
    total = len(samples) + len(layers)
    progress(STAGE, 0, total)

    def run(index: int) -> list[SampledOutput]:
        sample = samples[index].load()
        walk.start(index, sample)
        found = []
        values = dict(sample.feeds) | dict(zip(runner.outputs, runner(sample.feeds, sample.origin), strict=True))
        if logits is not None:
            logits.expect(index, values)
        boxes = [] if find_objects is None else find_objects({name: values[name] for name in ends})
        for number, layer in enumerate(layers):
            output = values[layer.output]
            maps = layer.maps(output)
            hot = positions_inside(boxes, output.shape) if layer.convolves else None
            positions = sample_positions(maps.shape[0] * maps.shape[2], budget.rows, [SEED, number, index], hot)
            inputs = float_rows(layer, values[layer.input], output.shape, positions) if with_inputs else None
            found.append(SampledOutput(output.shape, positions, take_rows(maps, positions), inputs))
        return found

    collected = []
    for done, found in enumerate(walk.pool.map(run, range(len(samples))), 1):
        collected.append(found)
        progress(STAGE, done, total)
    columns = zip(*collected, strict=True)
    return {layer.output: LayerTarget(column) for layer, column in zip(layers, columns, strict=True)}


def bias_params_of(layer: MatrixLayer, plan: Plan) -> Params | None:
    """Return how the bias of a layer is stored; None if it stays float."""
    assert layer.bias is not None, f"layer '{layer.name}' has no bias of its own"
    name = str(layer.bias.name)
    return plan.of(name) if name in plan.layout.sites else None


def why_not(layer: MatrixLayer, plan: Plan, target: LayerTarget, refinement: Refinement, memory: int) -> str | None:
    """Say why a layer's weights cannot be chosen from its rows, or return None."""
    weights = plan.of(str(layer.weight.name))
    bias = bias_input(layer.node)
    if layer.bias is None and bias is not None and constant(bias) is None:
        return layer.note
    reason = refinement.why_not(weights)
    if reason is not None:
        return reason
    if _blocks_cross_groups(layer, weights):
        return "blocks of its weights hold channels of two groups"
    needed = _bytes_needed(layer)
    if needed > memory:
        return f"its second moments need {needed / 2**20:.0f} MB of memory"
    return _why_too_few(layer, target) or why_no_rows(layer)


def _why_too_few(layer: MatrixLayer, target: LayerTarget) -> str | None:
    """Say why there are not enough rows for so many inputs, and how many samples have enough; or return None."""
    rows, inputs = sum(len(output.positions) for output in target.outputs), layer.shape[2]
    needed = max(LEAST_ROWS, inputs // MOST_INPUTS_PER_ROW)
    if rows >= needed:
        return None
    samples = len(target.outputs)
    enough = -(-needed * samples // max(rows, 1))
    return (
        f"{rows} rows are too few to choose weights with: for {inputs} inputs give {needed}, about {enough} samples "
        f"to learn from (there were {samples})"
    )


def _bytes_needed(layer: MatrixLayer) -> int:
    """Return the memory for a layer's second moments, their copies and factors, and all in the shape of the weights."""
    groups, channels, inputs = layer.shape
    return int(8 * groups * inputs * ((5 if inputs <= MOST_FACTORED else 2) * inputs + 12 * channels))


def weight_rounder(layer: MatrixLayer, params: Params) -> Rounder:
    """Return the rounder of a layer's weights."""
    shape = np.asarray(constant(layer.weight)).shape
    if holds_integers(params):
        scale, zero_point = (layer.as_matrix(np.broadcast_to(numbers, shape)) for numbers in params.broadcast(shape))
        low, high = params.format.low - zero_point, params.format.high - zero_point
        return StepRounder(scale, low, high, params.format.bits)
    fmt = params.format
    if not is_block(fmt):
        return FormatRounder(params)
    positions = math.prod(shape[2:])
    blocks = shorten_blocks(fmt, layer.shape[2] // positions)
    return FormatRounder(blocks.along(INPUT_CHANNELS), positions)


def _blocks_cross_groups(layer: MatrixLayer, params: Params) -> bool:
    """Tell whether blocks mix groups: only a ConvTranspose has the input channels of all groups on one axis."""
    fmt = params.format
    if layer.node.op_type != "ConvTranspose" or layer.groups == 1 or not is_block(fmt):
        return False
    channels: int = np.asarray(constant(layer.weight)).shape[0] // layer.groups
    return channels % fmt.block_size != 0


def build_problem(
    layer: MatrixLayer,
    walk: QuantizedWalk,
    target: LayerTarget,
    most_rows: int,
    gates: tuple[Curve, Curve] | None = None,
) -> tuple[LayerProblem, LayerProblem]:
    """Return the problem to solve, and the same layer on samples that are held out to judge the solutions on.

    `gates` are those behind the layer in the float model and in the quantized one, if there are any.
    """
    order, held = _split(len(target.outputs))
    groups, channels, inputs = layer.shape
    outputs = [target.outputs[sample] for sample in order]
    share = min(1.0, most_rows / max(sum(len(output.positions) for output in outputs), 1))
    counts = [max(1, int(share * len(output.positions))) for output in outputs]
    ends = np.cumsum(counts)
    rows = np.empty((groups, int(ends[-1]), inputs), np.float32)
    seen = _seen_by(layer, walk, target.outputs)

    def fill(number: int) -> None:
        image, indices = seen[order[number]]
        count = counts[number]
        _fill_rows(layer, walk, order[number], (image[:count], indices[:count]), rows, int(ends[number]) - count)

    walk.map(fill)
    wanted = np.concatenate([output.rows[:count] for output, count in zip(outputs, counts, strict=True)])
    given = [
        output.inputs[:, :count] for output, count in zip(outputs, counts, strict=True) if output.inputs is not None
    ]
    whole = replace(
        _without_rows(layer, walk),
        rows=rows,
        target=wanted.reshape(-1, groups, channels),
        float_rows=np.concatenate(given, axis=1) if given else None,
        gates=gates,
    )
    first_held = int(ends[len(order) - held - 1]) if held else _rows_to_fit(int(ends[-1]))
    return _cut(whole, slice(0, first_held)), _cut(whole, slice(first_held, None))


def _fill_rows(
    layer: MatrixLayer,
    walk: QuantizedWalk,
    sample: int,
    seen: tuple[Indices, Indices],
    rows: npt.NDArray[np.float32],
    first: int,
) -> None:
    """Decode what positions of a layer's output see of its input into rows (groups, positions, inputs) from `first`."""
    codes, scale, zero_point = walk.frontier.stored(layer.input, sample)
    gather(layer.maps(codes), np.float32(scale), np.float32(zero_point), *seen, rows, first)


def quantized_answers(layer: MatrixLayer, walk: QuantizedWalk, target: LayerTarget) -> list[npt.NDArray[np.float32]]:
    """Return what the quantized layer computes at the positions of its targets, before the activation, by sample.

    Only these positions are computed, if there are many others.
    """
    outputs, node = target.outputs, layer.node
    bias = walk.constant(node, 2) if len(node.inputs) > 2 else None
    whole = sum(math.prod(output.shape) for output in outputs) // layer.channels
    few = sum(len(output.positions) for output in outputs) <= SPARSE * whole
    if not few or why_no_rows(layer) is not None or (bias is None and len(node.inputs) > 2):
        return walk.over_outputs(node, lambda sample, output: take_rows(layer.maps(output), outputs[sample].positions))
    matrix = layer.as_matrix(walk.constant(node, 1)).astype(np.float32)
    added = np.float32(0.0) if bias is None else np.asarray(bias, np.float32).reshape(-1)
    multiply, seen = RowProduct(matrix), _seen_by(layer, walk, outputs)

    def answer(first: int) -> list[npt.NDArray[np.float32]]:
        part = range(first, min(first + MULTIPLIED_AT_ONCE, len(outputs)))
        ends = np.cumsum([0, *(len(outputs[sample].positions) for sample in part)])
        rows = np.empty((layer.groups, int(ends[-1]), layer.shape[2]), np.float32)
        for sample, start in zip(part, ends.tolist(), strict=False):
            _fill_rows(layer, walk, sample, seen[sample], rows, start)
        return np.split(np.asarray(multiply(rows) + added, np.float32), ends[1:-1])

    shares = walk.pool.map(answer, range(0, len(outputs), MULTIPLIED_AT_ONCE))
    return [answers for share in shares for answers in share]


def _seen_by(
    layer: MatrixLayer, walk: QuantizedWalk, outputs: Sequence[SampledOutput]
) -> list[tuple[Indices, Indices]]:
    """Return what of a layer's input the positions of each sample see, as `input_indices` does for one of them."""
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for sample, output in enumerate(outputs):
        alike.setdefault((walk.frontier.shape(layer.input, sample), output.shape), []).append(sample)
    seen: list[tuple[Indices, Indices]] = [(np.empty(0, np.int64),) * 2] * len(outputs)
    for (source, result), samples in alike.items():
        positions = [outputs[sample].positions for sample in samples]
        image, indices = input_indices(layer, source, result, np.concatenate(positions))
        ends = np.cumsum([0, *map(len, positions)])
        for sample, start, end in zip(samples, ends, ends[1:], strict=False):
            seen[sample] = image[start:end], indices[start:end]
    return seen


def _cut(problem: LayerProblem, part: slice) -> LayerProblem:
    """Return the problem on some of its rows."""
    given = None if problem.float_rows is None else problem.float_rows[:, part]
    return replace(problem, rows=problem.rows[:, part], target=problem.target[part], float_rows=given)


def _without_rows(layer: MatrixLayer, walk: QuantizedWalk) -> LayerProblem:
    """Return what is known of a layer before any data."""
    plan, weight = walk.plan, layer.matrix()
    groups, channels, inputs = weight.shape
    params, site = plan.of(str(layer.weight.name)), plan.layout.output_site(layer.node)
    bias_params = None if layer.bias is None else bias_params_of(layer, plan)
    if bias_params is not None and bias_params.format.in_blocks:
        bias_params = bias_params.format.along(-1)  # the problem has all biases on one axis
    problem = LayerProblem(
        name=layer.name,
        weight=weight,
        bias=_bias(layer, walk, groups * channels).reshape(groups, channels),
        rows=np.empty((groups, 0, inputs), np.float32),
        target=np.empty((0, groups, channels), np.float32),
        weight_scale=np.ones((groups, channels)),
        low=-np.inf,
        high=np.inf,
        bias_params=bias_params,
        activation=activation_of(layer, plan.layout),
        output=None if site is None else plan.of(site),
        output_ties="half_even" if site is None else plan.layout.ties_of(site),
        free_bias=layer.bias is not None,
    )
    if not holds_integers(params) or why_no_steps(params) is not None:
        return replace(problem, rounder=weight_rounder(layer, params))
    zero_point = int(params.zero_point.flat[0])
    scale = params.scale.reshape(-1 if params.scale.size == 1 else (groups, channels))
    return replace(
        problem,
        weight_scale=np.broadcast_to(scale.astype(np.float64), (groups, channels)).copy(),
        low=params.format.low - zero_point,
        high=params.format.high - zero_point,
        bits=params.format.bits,
    )


def _split(samples: int) -> tuple[Sequence[int], int]:
    """Return the samples with those held out last, and how many these are: every fifth, of a few the last."""
    held = [index for index in range(samples) if index % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1]
    if not held and samples > 1:
        held = [samples - 1]
    return [index for index in range(samples) if index not in set(held)] + held, len(held)


def _rows_to_fit(rows: int) -> int:
    """Return how many rows of a single sample to learn from: the last ones are held out."""
    return rows - max(1, rows // HOLD_OUT_EVERY)


def _bias(layer: MatrixLayer, walk: QuantizedWalk, channels: int) -> Floats:
    """Return the float bias of every channel if it is free, else what the quantized model adds."""
    value = bias_input(layer.node)
    if value is None:
        return np.zeros(channels)
    array = constant(value) if layer.bias is not None else walk.constant(layer.node, 2)
    return np.broadcast_to(np.asarray(array, np.float64).reshape(-1), channels).copy()
