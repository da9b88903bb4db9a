"""Small layers to refine, and their error written down plainly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from detent.numerics.formats import IntegerFormat, QuantParams
from detent.refinements.activations import Activation
from detent.refinements.gradient import GradientSearch
from detent.refinements.layer_problem import Floats, LayerProblem, Solution

NOTHING = Activation()
RELU6 = Activation(0.0, 6.0)
CAPPED = Activation(0.0, 0.5)
LEAKY = Activation(0.0, np.inf, 0.125)
BIAS = QuantParams.at(IntegerFormat("int32", scale="power_of_two"), 20)
UINT4 = IntegerFormat("uint4", symmetric=False)


def layer(
    groups: int = 1,
    channels: int = 4,
    inputs: int = 6,
    samples: int = 200,
    activation: Activation = RELU6,
    seed: int = 0,
    step: float = 0.125,
    output: QuantParams | None = None,
) -> LayerProblem:
    """Correlated positive inputs, rounded to sixteenths for the quantized model, and coarse weights."""
    random = np.random.default_rng(seed)
    common = random.normal(size=(groups, samples, 1))
    rows = np.abs(common + random.normal(size=(groups, samples, inputs)))
    weight = random.normal(size=(groups, channels, inputs)) / np.sqrt(inputs)
    bias = random.normal(size=(groups, channels))
    target = (rows @ weight.swapaxes(1, 2) + bias[:, None]).transpose(1, 0, 2)
    return LayerProblem(
        name="conv",
        weight=weight,
        bias=bias,
        rows=(np.rint(rows * 16) / 16).astype(np.float32),
        target=target.astype(np.float32),
        weight_scale=np.full((groups, channels), step),
        low=-127,
        high=127,
        bias_params=BIAS,
        activation=activation,
        output=output,
    )


def activated(activation: Activation, values: Floats) -> Floats:
    """The activation in double precision."""
    below = activation.slope * values if activation.slope else np.full_like(values, activation.low)
    return np.where(values < activation.low, below, np.minimum(values, activation.high))


def errors(problem: LayerProblem, weights: Floats, bias: Floats, rows: slice = slice(None)) -> Floats:
    """Each channel's mean squared error, for real weights and biases."""
    sums = (problem.rows[:, rows].astype(np.float64) @ weights.swapaxes(1, 2) + bias[:, None]).transpose(1, 0, 2)
    wanted = activated(problem.activation, problem.target[rows].astype(np.float64))
    return np.square(activated(problem.activation, sums) - wanted).mean(axis=0)


def code_errors(problem: LayerProblem, codes: Floats, bias: Floats, rows: slice = slice(None)) -> Floats:
    """The same for codes and a bias that is stored."""
    weights = codes * problem.weight_scale[..., None]
    return errors(problem, weights, BIAS.snap(bias) if problem.free_bias else bias, rows)


def learn(problem: LayerProblem, options: GradientSearch, threads: int = 2) -> Solution:
    """What a gradient method finds, in so many threads."""
    with ThreadPoolExecutor(threads) as pool:
        return options.learn(problem, pool)
