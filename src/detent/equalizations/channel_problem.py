"""The channels of a network as arrays: what every way to equalize them works on, and what it answers.

Every channel of every value has a *variable*: the logarithm of its factor. Channels that must have the same factor have
the same variable, and FIXED is that of channels that must keep theirs (`equalize.channels` finds them in a graph).

A Clip at 0 and b limits the factors of its channels:

    a min(max(x, 0), b)  =  min(max(a x, 0), a b)        for every a > 0

so a Clip computes the same function as before if all the channels that it cuts off have one factor a, and its bound
becomes a b. Which a is free to choose. Bounds are first settled for a = 1: channels that are cut keep their factor, the
others may grow until they meet the bound, with some room for values not observed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Variables = npt.NDArray[np.int64]

FIXED = -1  # the variable of channels that keep their factor. As an index it is the last one, where `pad` puts a 0.

FARTHEST = 5.0  # the logarithm of the largest factor up or down: a channel that needs more is all but dead
CEILING_ROOM = 1.25  # how much larger than all that was observed a value may be without meeting a Clip
ROWS_AT_ONCE = 1 << 20  # weights that are scaled at a time
LEAST_VARIANCE = 1e-6  # of the power: less is what rounding leaves of a constant


def pad(variables: Floats) -> Floats:
    """Return the variables with the 0 of FIXED channels at their end."""
    return np.append(variables, 0.0)


@dataclass(frozen=True, eq=False)
class ChannelMoments:
    """What each channel of a value was observed to hold: least, greatest, mean and mean square."""

    minimum: Floats
    maximum: Floats
    mean: Floats
    power: Floats

    @property
    def largest(self) -> Floats:
        """The largest magnitude of each channel."""
        return np.maximum(-self.minimum, self.maximum)

    @property
    def signal(self) -> float:
        """The variance, summed over channels; of what does not vary, as a pooled value of one sample, the power."""
        variance, power = float(np.maximum(self.power - self.mean**2, 0.0).sum()), float(self.power.sum())
        return variance if variance > LEAST_VARIANCE * power else power


@dataclass(frozen=True, eq=False)
class LayerChannels:
    """A layer: the variables of its input channels, groups x channels of a group, those of its output, its constants.

    `weight` is groups x outputs x inputs x taps of the kernel. The three `codes` tell how weight, input and bias are
    quantized: None for not at all, else the number of codes above zero if their scale is a power of two, and 0 if it is
    not. `seen` is what the input was observed to hold, and `signal` the variance of the output summed over channels.
    """

    name: str
    inputs: Variables
    outputs: Variables
    weight: npt.NDArray[np.floating]
    bias: npt.NDArray[np.floating] | None
    weight_codes: int | None = None
    input_codes: int | None = None
    bias_codes: int | None = None
    seen: ChannelMoments | None = None
    signal: float = 1.0

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is computed from the one of the same number."""
        return len(self.inputs) > 1 and self.inputs.shape[1:] == self.outputs.shape[1:] == (1,)

    def scaled_weight(self, padded: Floats) -> Floats:
        """Return the weight times the factors."""
        return np.concatenate([rows for _, rows in self.scaled_rows(padded)], axis=1)

    def scaled_rows(self, padded: Floats) -> Iterator[tuple[slice, Floats]]:
        """Yield some outputs after others, with their weights times the factors: all at once may be gigabytes."""
        outputs = self.weight.shape[1]
        some = max(1, ROWS_AT_ONCE * outputs // max(self.weight.size, 1))
        for start in range(0, max(outputs, 1), some):
            rows = slice(start, start + some)
            factors = np.exp(padded[self.outputs[:, rows]][:, :, None] - padded[self.inputs][:, None, :])
            yield rows, np.asarray(self.weight[:, rows].astype(np.float64) * factors[..., None])

    def scaled_bias(self, padded: Floats) -> Floats | None:
        """Return the bias times the factors."""
        if self.bias is None:
            return None
        return np.asarray(self.bias * np.exp(padded[self.outputs]).reshape(self.bias.shape))


@dataclass(frozen=True, eq=False)
class ClipChannels:
    """A Clip at 0 and `bound`: the variables of what it cuts off, and the largest values observed there.

    `codes` is the number of codes above zero of its result if their scale is a power of two, else 0 or None.
    """

    variables: Variables
    bound: float
    maximum: Floats
    codes: int | None = None


@dataclass(frozen=True, eq=False)
class ChannelProblem:
    """All channels of a network: the number of variables, the layers, the Clips, and the variables of every value."""

    count: int
    layers: Sequence[LayerChannels]
    clips: Sequence[ClipChannels] = ()
    values: Sequence[Variables] = ()

    def bounds(self) -> tuple[Floats, Floats]:
        """Return the least and largest logarithm of each factor with which the Clips keep their bounds."""
        low, high = np.full(self.count + 1, -FARTHEST), np.full(self.count + 1, FARTHEST)
        for clip in self.clips:
            room = np.log(clip.bound / np.maximum(clip.maximum * CEILING_ROOM, 1e-30))
            np.minimum.at(high, clip.variables, np.maximum(room, 0.0))
            cut = clip.variables[clip.maximum >= clip.bound]
            low[cut] = high[cut] = 0.0
        return low[: self.count], high[: self.count]


@dataclass(frozen=True, eq=False)
class ChannelFactors:
    """The logarithm of every factor, and of those of the Clips' bounds; and the noise that rounding was expected to add
    before and after, if that was what they were chosen by.
    """

    variables: Floats
    clips: Floats
    noise_before: float | None = None
    noise_after: float | None = None

    @classmethod
    def unchanged(cls, count: int, clips: int) -> ChannelFactors:
        """Return factors of 1."""
        return cls(np.zeros(count), np.zeros(clips))


class Equalizer:
    """A way to equalize channels. With `absorb`, what a channel holds at least is first added by the layers behind.

    `needs_moments`: layers are looked at with what their inputs and outputs were observed to hold; otherwise samples
    only tell what Clips allow. `by_layers`: layer by layer, not all channels at once.
    """

    needs_moments: ClassVar[bool] = True
    by_layers: ClassVar[bool] = False
    through_pools: bool = True

    absorb: bool

    @property
    def name(self) -> str:
        """The name that users choose it by."""
        return type(self).__name__

    def solve(self, problem: ChannelProblem) -> ChannelFactors:
        """Choose the factors."""
        raise NotImplementedError
