"""From a layer and the walk to its problem: the rows that the quantized model feeds it, and the targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from detent.graph.values import constant
from detent.numerics.blocks import BlockParams
from detent.numerics.floats import FloatParams
from detent.numerics.formats import QuantParams, holds_integers
from detent.numerics.interface import Params
from detent.plan.layout import bias_input
from detent.refine.choose import WeightRefinement
from detent.refine.layers import Layer, activation_of
from detent.refine.means import params_of_bias
from detent.refine.problem import Floats, LayerProblem
from detent.refine.rounders import INPUT_CHANNELS, FormatRounder, Rounder, StepRounder, shortened
from detent.refine.rounding import MOST_TURNED
from detent.refine.rows import gather, input_indices, why_no_rows
from detent.refine.targets import LayerTarget
from detent.refine.walk import Walk
from detent.refinements import AdaQuant, AdaRound

HOLD_OUT_EVERY = 5
LEAST_ROWS = 16
MOST_INPUTS_PER_ROW = 16
"""With less than one row for so many inputs, what is found fits the rows and little else, whatever the damping."""


def why_not(layer: Layer, walk: Walk, target: LayerTarget, refinement: WeightRefinement, memory: int) -> str | None:
    """Why a layer's weights cannot be chosen from its rows, or None."""
    weights = walk.plan.of(str(layer.weight.name))
    bias = bias_input(layer.node)
    if layer.bias is None and bias is not None and constant(bias) is None:
        return layer.note
    reason = _why_no_choice(weights, refinement)
    if reason is not None:
        return reason
    if _blocks_cross_groups(layer, weights):
        return "blocks of its weights hold channels of two groups"
    needed = _bytes_needed(layer)
    if needed > memory:
        return f"its second moments need {needed / 2**20:.0f} MB of memory"
    return _why_too_few(layer, target) or why_no_rows(layer)


def _why_too_few(layer: Layer, target: LayerTarget) -> str | None:
    """Why there are not enough rows for so many inputs, and how many samples have enough; or None."""
    rows, inputs = sum(len(output.positions) for output in target.outputs), layer.matrix().shape[2]
    needed = max(LEAST_ROWS, inputs // MOST_INPUTS_PER_ROW)
    if rows >= needed:
        return None
    samples = len(target.outputs)
    enough = -(-needed * samples // max(rows, 1))
    return (
        f"{rows} rows are too few to choose weights with: for {inputs} inputs give {needed}, about {enough} samples "
        f"to learn from (there were {samples})"
    )


def _why_no_choice(params: Params, refinement: WeightRefinement) -> str | None:
    """Why a refinement cannot choose between the numbers of a format, or None. AdaQuant moves in all of them."""
    if isinstance(refinement, AdaRound):
        return why_no_steps(params)
    if isinstance(params, QuantParams) or isinstance(refinement, AdaQuant):
        return None
    return f"its weights are {params.format.label}"


def _bytes_needed(layer: Layer) -> int:
    """The memory for a layer's second moments, their copies and factors, and all that has the shape of the weights."""
    groups, channels, inputs = layer.matrix().shape
    return int(8 * groups * inputs * ((5 if inputs <= MOST_TURNED else 2) * inputs + 12 * channels))


def why_no_steps(params: Params) -> str | None:
    """Why the weights of a channel are not the multiples of one number between two limits for all, or None."""
    if not isinstance(params, QuantParams):
        return f"its weights are {params.format.label}"
    if params.block:
        return "its weights have a scale for each group"
    return "its weights have a zero point for each channel" if np.unique(params.zero_point).size > 1 else None


def weight_rounder(layer: Layer, params: Params) -> Rounder:
    """The rounder of a layer's weights."""
    if isinstance(params, FloatParams):
        return FormatRounder(params)
    shape = np.asarray(constant(layer.weight)).shape
    if isinstance(params, BlockParams):
        positions = math.prod(shape[2:])
        blocks = shortened(params.format, layer.matrix().shape[2] // positions)
        return FormatRounder(BlockParams(blocks, INPUT_CHANNELS), positions)
    assert holds_integers(params)
    scale, zero_point = (layer.as_matrix(np.broadcast_to(numbers, shape)) for numbers in params.broadcast(shape))
    return StepRounder(scale, params.format.low - zero_point, params.format.high - zero_point)


def _blocks_cross_groups(layer: Layer, params: Params) -> bool:
    """Only a ConvTranspose has the input channels of all groups on one axis."""
    if layer.node.op_type != "ConvTranspose" or layer.groups == 1 or not isinstance(params, BlockParams):
        return False
    channels: int = np.asarray(constant(layer.weight)).shape[0] // layer.groups
    return channels % params.format.block_size != 0


def build_problem(layer: Layer, walk: Walk, target: LayerTarget, most_rows: int) -> tuple[LayerProblem, LayerProblem]:
    """The problem to solve, and the same layer on samples that are held out to judge the solutions on."""
    order, held = _split(len(target.outputs))
    groups, channels, inputs = layer.matrix().shape
    outputs = [target.outputs[sample] for sample in order]
    share = min(1.0, most_rows / max(sum(len(output.positions) for output in outputs), 1))
    counts = [max(1, int(share * len(output.positions))) for output in outputs]
    ends = np.cumsum(counts)
    rows = np.empty((groups, int(ends[-1]), inputs), np.float32)

    def fill(number: int) -> None:
        output, count = outputs[number], counts[number]
        codes, scale, zero_point = walk.frontier.stored(layer.input, order[number])
        image, indices = input_indices(layer, codes.shape, output.shape, output.positions[:count])
        part = rows[:, ends[number] - count : ends[number]]
        gather(layer.maps(codes), np.float32(scale), np.float32(zero_point), image, indices, part)

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
    )
    first_held = int(ends[len(order) - held - 1]) if held else _rows_to_fit(int(ends[-1]))
    return _cut(whole, slice(0, first_held)), _cut(whole, slice(first_held, None))


def _cut(problem: LayerProblem, part: slice) -> LayerProblem:
    """The problem on some of its rows."""
    given = None if problem.float_rows is None else problem.float_rows[:, part]
    return replace(problem, rows=problem.rows[:, part], target=problem.target[part], float_rows=given)


def _without_rows(layer: Layer, walk: Walk) -> LayerProblem:
    """What is known of a layer before any data."""
    plan, weight = walk.plan, layer.matrix()
    groups, channels, inputs = weight.shape
    params, site = plan.of(str(layer.weight.name)), plan.layout.output_site(layer.node)
    bias_params = None if layer.bias is None else params_of_bias(layer, plan)
    problem = LayerProblem(
        name=layer.name,
        weight=weight,
        bias=_bias(layer, walk, groups * channels).reshape(groups, channels),
        rows=np.empty((groups, 0, inputs), np.float32),
        target=np.empty((0, groups, channels), np.float32),
        weight_scale=np.ones((groups, channels)),
        low=-np.inf,
        high=np.inf,
        bias_params=replace(bias_params, axis=-1) if isinstance(bias_params, BlockParams) else bias_params,
        activation=activation_of(layer, plan.layout),
        output=None if site is None else plan.of(site),
        output_ties="half_even" if site is None else plan.layout.ties_of(site),
        free_bias=layer.bias is not None,
    )
    if not isinstance(params, QuantParams) or why_no_steps(params) is not None:
        return replace(problem, rounder=weight_rounder(layer, params))
    zero_point = int(params.zero_point.flat[0])
    scale = params.scale.reshape(-1 if params.scale.size == 1 else (groups, channels))
    return replace(
        problem,
        weight_scale=np.broadcast_to(scale.astype(np.float64), (groups, channels)).copy(),
        low=params.format.low - zero_point,
        high=params.format.high - zero_point,
    )


def _split(samples: int) -> tuple[Sequence[int], int]:
    """The samples with those that are held out last, and how many these are: every fifth, of a few the last."""
    held = [index for index in range(samples) if index % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1]
    if not held and samples > 1:
        held = [samples - 1]
    return [index for index in range(samples) if index not in set(held)] + held, len(held)


def _rows_to_fit(rows: int) -> int:
    """Of a single sample, the last rows are held out."""
    return rows - max(1, rows // HOLD_OUT_EVERY)


def _bias(layer: Layer, walk: Walk, channels: int) -> Floats:
    """The float bias of every channel where it is free, else what the quantized model adds."""
    value = bias_input(layer.node)
    if value is None:
        return np.zeros(channels)
    array = constant(value) if layer.bias is not None else walk.constant(layer.node, 2)
    return np.broadcast_to(np.asarray(array, np.float64).reshape(-1), channels).copy()
