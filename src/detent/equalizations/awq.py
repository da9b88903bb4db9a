"""AWQ: weights are rounded most finely for the input channels that matter most.

Weights W that read x may be multiplied by a factor for each channel if x is divided by it, and then they are rounded:

    x @ W  =  (x / s) @ (s * W)  ~  (x / s) @ round(s * W)          s[j] = mean|x[j]|^alpha

A weight times s[j] is rounded on about the same steps as before, so its error is s[j] times smaller. With alpha = 0
nothing changes; the larger alpha, the more the channels with large activations are favoured, until the others, which
share their scales, lose too much. So alpha is searched on a grid, by the error of the layers' outputs on rows of x. It
is taken if the error falls on other rows, too. Several layers that read one x share its factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from detent.equalizations.channel_problem import Floats
from detent.errors import UsageError

# Of the largest channel. Without a limit, a channel that is hardly used would get an extreme factor.
LEAST_SHARE = 1e-4

Rounding = Callable[[Floats], Floats]
"""Rounds a weight, with a row for each channel of the input, as it will be written."""


@dataclass(frozen=True)
class Awq:
    """Activation-aware scaling of weights' input channels, for weights of few bits.

    `steps` is the number of alphas that are tried from 0 to 1, on `rows` rows of the value; half of them confirm the
    choice. With `insert`, a Mul divides values whose producer cannot take the factors.
    """

    steps: int = 20
    rows: int = 512
    insert: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        for setting, least in (("steps", 1), ("rows", 2)):
            if getattr(self, setting) < least:
                raise UsageError(f"{setting} of Awq is {getattr(self, setting)}: it must be at least {least}.")

    @property
    def name(self) -> str:
        """The name that users choose it by."""
        return "Awq"

    def choose(
        self, learned: Floats, confirmed: Floats, layers: Sequence[tuple[Floats, Rounding]]
    ) -> tuple[Floats, float, float] | None:
        """Return the factor of each channel, and the error on the `confirmed` rows before and after.

        None if the weights are best as they are. `layers` are the weights that read the value, with their rounding.
        """
        sizes = np.abs(learned).mean(axis=0)
        if not sizes.max(initial=0.0):
            return None
        logs = np.log(np.maximum(sizes, LEAST_SHARE * sizes.max()))
        logs -= logs.mean()  # a common factor of all channels changes nothing
        tried = [np.exp(step / self.steps * logs) for step in range(self.steps + 1)]
        best = min(tried, key=lambda factors: _error(learned, layers, factors))
        before, after = (_error(confirmed, layers, factors) for factors in (tried[0], best))
        return (best, before, after) if after < before else None


def _error(rows: Floats, layers: Sequence[tuple[Floats, Rounding]], factors: Floats) -> float:
    """Return the error of the layers' outputs relative to these, over all layers."""
    total, column = 0.0, factors[:, None]
    for weight, rounded in layers:
        signal = float(np.square(rows @ weight).sum())
        noise = float(np.square(rows @ (rounded(weight * column) / column - weight)).sum())
        total += noise / signal if signal else 0.0
    return total
