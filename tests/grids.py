"""An independent rounding of whole tensors, in float64, of the two 8-bit formats with power-of-two scales."""

import numpy as np

from detent.numerics.formats import IntegerFormat


class Grid(IntegerFormat):
    """A format whose zero point is its middle code."""

    def encode(self, values, scale):
        levels = np.rint(np.asarray(values, np.float64) / scale)
        return (np.clip(levels, *self.levels) + self.middle).astype(self.dtype)

    def snap(self, values, scale):
        return (self.encode(values, scale).astype(np.float64) - self.middle) * scale


INT8, UINT8_ZERO_128 = (Grid(dtype, scale="power_of_two") for dtype in ("int8", "uint8"))
