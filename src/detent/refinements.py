"""The refinements by name: what a user chooses, as comparable values. How each one works is in `refine`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from detent.errors import UsageError
from detent.settings import parse_choice


def _check_share(what: str, share: float) -> None:
    if not 0.0 <= share <= 1.0:
        raise UsageError(f"{what} is {share}: it must be between 0 and 1.")


def _check_counts(choice: object, *options: str) -> None:
    for option in options:
        count = getattr(choice, option)
        if count < 1:
            raise UsageError(f"{option} of {type(choice).__name__} is {count}: it must be at least 1.")


def _check_damping(choice: object, damping: float) -> None:
    if not 0.0 <= damping < math.inf:
        raise UsageError(f"damping of {type(choice).__name__} is {damping}: it must not be negative.")


@dataclass(frozen=True)
class BiasCorrection:
    """Each layer's bias takes over what its rounded weights and inputs changed in the mean of every channel."""

    samples: int = 32

    def __post_init__(self) -> None:
        _check_counts(self, "samples")


@dataclass(frozen=True)
class Rounding:
    """Weights are rounded so that the layer's output, given its quantized input, is closest to float.

    A quadratic problem on the second moments of the input, solved exactly for kernels of few weights and else by
    coordinate descent from two starts: codes move at most `span` steps from the weight, and `damping` (a share of the
    mean second moment) keeps them near it where the data says little. With `rescale`, other scales of the weights are
    tried too: better on most layers by themselves, and not always on the whole network.
    """

    samples: int = 128
    rows: int = 64
    span: int = 2
    damping: float = 0.3
    sweeps: int = 20
    rescale: bool = False

    def __post_init__(self) -> None:
        _check_counts(self, "samples", "rows", "span", "sweeps")
        _check_damping(self, self.damping)


@dataclass(frozen=True)
class Gptq:
    """Weights are rounded one input after the other, and those that follow make up for the error (GPTQ).

    `damping` [PercDamp] is a share of the mean second moment of the inputs. The `order` is "natural" or by
    "activation" [ActOrder]: inputs with large values first. A larger `block` [BlockSize] takes fewer and larger
    products of matrices.
    """

    samples: int = 128
    rows: int = 64
    damping: float = 0.01
    block: int = 128
    order: str = "activation"

    def __post_init__(self) -> None:
        _check_counts(self, "samples", "rows", "block")
        _check_damping(self, self.damping)
        if self.order not in ("natural", "activation"):
            raise UsageError(f"order of Gptq is '{self.order}': choose natural or activation.")


@dataclass(frozen=True)
class GradientSearch:
    """What the two gradient methods have in common. Names in brackets are those of other tools' fast finetuning.

    Each layer sees `rows` output positions of each of `samples` calibration samples [DataSize]; one of `iterations`
    [NumIterations] steps of Adam takes `batch` of these rows [BatchSize, there in images], at `learning_rate`
    [LearningRate]. `learning_rate_above` [LRAdjust] is (error, rate): layers whose mean squared error with weights
    rounded to the nearest is above the first number learn at the second. `seed` [FixedSeed] fixes the batches.

    With `early_stop` [EarlyStop] a layer is done when a tenth of the iterations brought nothing. A channel keeps what
    was found only if it is better than rounding to the nearest: over the rows that were learned from or, with
    `selective_update` [SelectiveUpdate], over the last eighth of the rows, which are then not learned from.
    `output_rounded` [OutputQDQ] measures the error after the layer's output is quantized, where it is.
    `quantized_share` [DropRatio] is the share of input values that come from the quantized model while learning, the
    others come from the float model.
    """

    samples: int = 128
    rows: int = 64
    batch: int = 256
    iterations: int = 1000
    learning_rate: float = 0.1
    learning_rate_above: tuple[float, float] | None = None
    seed: int = 1705472343
    early_stop: bool = False
    selective_update: bool = False
    output_rounded: bool = False
    quantized_share: float = 1.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        _check_counts(self, "samples", "rows", "batch", "iterations")
        rates = [self.learning_rate, *(self.learning_rate_above or ())[1:]]
        if not all(0.0 < rate < math.inf for rate in rates):
            raise UsageError(f"A learning rate of {name} is {min(rates)}: it must be above 0, such as 0.1.")
        if self.seed < 0:
            raise UsageError(f"seed of {name} is {self.seed}: it must not be negative.")
        _check_share(f"quantized_share of {name}", self.quantized_share)


@dataclass(frozen=True)
class AdaRound(GradientSearch):
    """Each weight learns whether to round down or up, so that the layer's activated output is closest to float.

    The loss is the squared error, a sum over channels and mean over rows, plus `penalty` [RegParam, there 0.01] times
    what weights between two codes add up to; None weighs it for each channel by the channel's error, so that layers
    with large and with small outputs decide alike. The penalty sets in after `warm_start` [WarmStart] of the
    iterations, and its exponent goes from the first to the second of `beta` [BetaRange]: at first only weights near a
    code are held there, then all are. Biases stay as they are [UpdateBias is for AdaQuant].
    """

    penalty: float | None = None
    beta: tuple[float, float] = (20.0, 2.0)
    warm_start: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_share("warm_start of AdaRound", self.warm_start)
        if self.penalty is not None and not 0.0 <= self.penalty < math.inf:
            raise UsageError(f"penalty of AdaRound is {self.penalty}: it must not be negative.")
        if not all(1.0 <= beta < math.inf for beta in self.beta):
            raise UsageError(f"beta of AdaRound is {self.beta}: both numbers must be at least 1, such as (20, 2).")


@dataclass(frozen=True)
class AdaQuant(GradientSearch):
    """Weights, and with `update_bias` [UpdateBias] biases, move as if they were not rounded, while the error is that of
    the rounded ones. They may move by more than a step. The learning rate is in the units of the weights.
    """

    learning_rate: float = 1e-5
    update_bias: bool = True


Refinement = BiasCorrection | Rounding | Gptq | AdaRound | AdaQuant

REFINEMENTS: Mapping[str, Refinement | None] = {
    "BiasCorrection": BiasCorrection(),
    "Rounding": Rounding(),
    "Gptq": Gptq(),
    "AdaRound": AdaRound(),
    "AdaQuant": AdaQuant(),
    "none": None,
}


def parse_refinement(text: str) -> Refinement | None:
    """A refinement by name, in any case, with settings after a colon: `Rounding:rows=128`."""
    return parse_choice(text, REFINEMENTS, "refinement", unsettable=("learning_rate_above",))
