"""SmoothQuant: channels that are much larger than the others hand some of their size to the weights that read them.

    x @ W  =  (x / s) @ (s * W)          s[j] = max|x[j]|^alpha / max|W[j]|^(1 - alpha)

With alpha = 1/2 both become equally large, and both are rounded equally well. Several layers that read one x (query,
key and value behind one normalization) share its factors, from the largest of their rows. Only the ratios of factors
matter, so their geometric mean is made 1; a channel that is zero in x or in W has the factor 1.

Rounding x costs each output (step of x)^2 / 12 times the sum of squares of its column, and rounding W costs it (step of
W)^2 / 12 times the power of x; a step is the largest magnitude over the number of codes. Where the factors do not lower
the sum of both, as beside activations of 16 bits, the layers are left as they are.

What takes the division of x in: `input_channels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from detent.equalizations.channel_problem import ChannelMoments, Floats
from detent.equalize.input_channels import Editor, Group, Smoother, Smoothing, apply_all, groups_of, rows_of
from detent.equalize.moments import observe_channels
from detent.errors import UsageError
from detent.observe.samples import PendingSample

# Of the largest channel: a smaller one counts as this much, or what calibration hardly saw would be scaled up.
LEAST_SHARE = 1e-3


@dataclass(frozen=True)
class SmoothQuant(Smoother):
    """Hands the size of large channels to the weights that read them.

    `alpha` is from 0 (weights only become smaller) to 1 (activations only).
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        """Check the settings."""
        if not 0.0 <= self.alpha <= 1.0:
            raise UsageError(
                f"alpha of SmoothQuant is {self.alpha:g}: it must be from 0 (weights only) to 1 (activations only)."
            )

    def smooth(
        self,
        model: ir.Model,
        samples: Sequence[PendingSample],
        threads: int = 0,
        *,
        bits: tuple[int, int] = (8, 8),
    ) -> Smoothing:
        """Smooth every layer of `model` that gains by it, in place. `bits` are those of activations and of weights."""
        groups = groups_of(model.graph)
        if not groups or not samples:
            return Smoothing()
        editor = Editor(model, self.insert)
        idle = {str(group.source.name): reason for group in groups if (reason := editor.why_not(group)) is not None}
        possible = [group for group in groups if str(group.source.name) not in idle]
        # Only what can be divided is observed: most networks have a last layer, and few another that could be.
        names = [str(group.source.name) for group in possible]
        moments = observe_channels(model, names, samples, threads, last=True) if names else {}
        factors: dict[str, Floats] = {}
        for group in possible:
            name = str(group.source.name)
            if name not in moments or not np.isfinite(moments[name].power).all():
                continue  # the sweep will name what is not finite
            found = _factors(moments[name].largest, _row_sizes(group.layers), self.alpha)
            # The usual formula always smooths. It may cost the weights more than it gains the activations.
            if _noise(group, moments[name], found, bits) < _noise(group, moments[name], np.ones_like(found), bits):
                factors[name] = found
            else:
                idle[name] = f"'{name}' and the weights that read it are not rounded better with it"
        return apply_all(model, groups, factors, idle, self.insert)


def _row_sizes(layers: Sequence[ir.Node]) -> Floats:
    """Return the largest magnitude in each row of the layers' weights."""
    largest: Floats = np.max([np.abs(rows_of(node)).max(axis=1, initial=0.0) for node in layers], axis=0)
    return largest


def _noise(group: Group, moments: ChannelMoments, factors: Floats, bits: tuple[int, int]) -> float:
    """Return what rounding a value and its weights adds to the layers' outputs, relative to these, over all layers."""
    codes, weight_codes = 2.0 ** bits[0], 2.0 ** bits[1]
    step = float((moments.largest / factors).max()) / codes
    total = 0.0
    for node in group.layers:
        rows = rows_of(node)
        scaled = rows * factors[:, None]
        weight_step = float(np.abs(scaled).max(initial=0.0)) / weight_codes
        noise = step**2 * (scaled**2).sum() + weight_step**2 * rows.shape[1] * (moments.power / factors**2).sum()
        signal = float((moments.power[:, None] * rows**2).sum())
        total += float(noise) / signal if signal else 0.0
    return total


def _factors(activations: Floats, weights: Floats, alpha: float) -> Floats:
    """Return the factor of each channel, from the largest magnitudes in the value and in the weights."""
    live = (activations > 0) & (weights > 0) & np.isfinite(weights)
    factors = np.ones_like(activations)
    if live.any():
        wanted = alpha * np.log(_floored(activations[live])) - (1 - alpha) * np.log(_floored(weights[live]))
        # A common factor of all channels changes nothing but the scale; without it, factors stay around 1.
        factors[live] = np.exp(wanted - wanted.mean())
    return factors


def _floored(magnitudes: Floats) -> Floats:
    # A channel that is almost dead would get a factor that makes its noise the largest of all.
    floored: Floats = np.maximum(magnitudes, LEAST_SHARE * magnitudes.max())
    return floored
