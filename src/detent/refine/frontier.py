"""What the quantized model holds between two nodes: for every value that is still read, all samples, as codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from detent.numerics.formats import QuantParams
from detent.numerics.loops import decode_activation, encode_activation
from detent.plan.layout import Role
from detent.plan.plan import Plan
from detent.refine.codes import Array


class Frontier:
    """Values by name, each with an entry for every sample. A site of integers is kept as its codes.

    A site in another format is kept rounded to it, and anything else as it is.
    """

    def __init__(self, plan: Plan, samples: int) -> None:
        self._plan = plan
        self._sites = {site.value for site in plan.layout.of_role(Role.ACTIVATION)}
        self._params: dict[str, QuantParams] = {}  # of the values that are held as codes
        self._held: dict[str, list[Any]] = {}
        self.samples = samples

    def put(self, name: str, sample: int, result: Any) -> None:
        """Keep the value of one sample; it is encoded where it is a site, with the plan's parameters of this moment."""
        entries = self._held.setdefault(name, [None] * self.samples)
        if name not in self._sites:
            entries[sample] = result
            return
        params = self._plan.of(name)
        if isinstance(params, QuantParams):
            entries[sample] = encode_activation(
                result, self._params.setdefault(name, params), self._plan.layout.ties_of(name)
            )
        else:
            entries[sample] = params.snap(result)

    def get(self, name: str, sample: int) -> Any:
        """What a node reads."""
        entry, params = self._held[name][sample], self._params.get(name)
        return entry if params is None else decode_activation(entry, params)

    def stored(self, name: str, sample: int) -> tuple[Array, float, float]:
        """The codes, their scale and zero point; 1 and 0 for a value that has none."""
        entry, params = self._held[name][sample], self._params.get(name)
        return (entry, 1.0, 0.0) if params is None else (entry, float(params.scale), float(params.zero_point))

    @property
    def names(self) -> list[str]:
        """The values that are held."""
        return list(self._held)

    @property
    def nbytes(self) -> int:
        """The memory of all values that are arrays."""
        return sum(
            entry.nbytes for entries in self._held.values() for entry in entries if isinstance(entry, np.ndarray)
        )

    def drop(self, name: str) -> None:
        """Forget a value that nobody reads any more."""
        self._held.pop(name, None)
        self._params.pop(name, None)
