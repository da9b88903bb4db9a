"""GPTQ: weights are rounded in turn, and those that follow make up for the error on the layer's quantized input.

The error is that against the float weights on the same input, as in the original; what the input itself lost is not
made up for, but in the mean of every channel. `Rounding` does that, and GPTQ is one of its starts.
"""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np

from detent.refine.in_turn import natural_order, order_by_activation, round_in_turn
from detent.refine.moments import Moments
from detent.refine.problem import LayerProblem, Solution
from detent.refinements import Gptq

_ORDERS = {"natural": natural_order, "activation": order_by_activation}


def gptq(problem: LayerProblem, moments: Moments, settings: Gptq, pool: Executor) -> Solution | None:
    """The solution; None where the damped second moments cannot be inverted."""
    error = moments.to_weights(problem.weight, settings.damping)
    order = _ORDERS[settings.order](error.second)
    try:
        steps = round_in_turn(problem.weight, error.second, problem.grid(), order, pool, settings.block)
    except np.linalg.LinAlgError:
        return None
    codes = problem.codes_of_steps(steps)
    return Solution(codes, moments.bias(problem, codes), "gptq")
