"""Range search: the scale of each activation is the one with which the network's own output is closest to float.

Calibration chooses a scale by the error of the tensor itself. What matters is what that error does further on: clipping
a tail may be fatal in one layer and go unnoticed in another. So, on a walk through the quantized model, whenever a
value was computed and before it is encoded, the *rest of the network* runs in float on the value as each candidate
scale would round it, and

    error(scale) = sum over outputs of  |rest(round(x, scale)) - y|^2 / |y|^2,        y: what the float model answers

decides. What came before is quantized as it will be, with the scales that were settled there. A candidate must be
better than the present scale on the average of the samples by twice its standard error: otherwise the choice would
follow the noise of a few images.

With power-of-two scales candidates are the neighbouring positions, as far as the target's rules allow them: a candidate
that would move another activation, or the weight of a layer that is settled already, is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.execute.quantized_walk import Program, QuantizedWalk
from detent.graph.session import Runner
from detent.graph.values import constant, is_constant, read_values
from detent.numerics.formats import Array, QuantParams, holds_integers
from detent.observe.samples import PendingSample
from detent.plan.layout import Role
from detent.plan.plan import Plan

RULE = "range search"
FACTORS = (0.6, 0.75, 0.88, 1.15)  # of a float scale: below 1 more is clipped and the rest is finer

MOST_BITS = 8  # with more, a range that clips nothing is fine enough

STANDARD_ERRORS = 2.0  # a gain below this may be chance

SAMPLES = 32  # how many are looked at: each runs the rest of the network several times for each activation

Constrain = Callable[[Plan], Plan]  # moves the parameters of a plan until the target's rules hold

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RangeSearch:
    """Chooses the scales on a walk (a `ParameterSearch`). `expected` are the float outputs of the first samples."""

    walk: QuantizedWalk
    constrain: Constrain
    expected: Sequence[Mapping[str, Array]]

    @classmethod
    def on(
        cls, walk: QuantizedWalk, reference: ir.Model, constrain: Constrain, samples: Sequence[PendingSample]
    ) -> RangeSearch:
        """Return a search on a walk over `samples`, against the outputs of `reference`."""
        runner = Runner(reference)

        def answer(pending: PendingSample) -> Mapping[str, Array]:
            sample = pending.load()
            return dict(zip(runner.outputs, runner(sample.feeds, sample.origin), strict=True))

        return cls(walk, constrain, list(walk.pool.map(answer, samples[:SAMPLES])))

    @property
    def samples(self) -> int:
        """How many samples it looks at."""
        return len(self.expected)

    def __call__(self, found: Mapping[str, Sequence[Array]], rest: Sequence[ir.Node]) -> None:
        """Settle the scales of the values that were found, one after another."""
        for name in found:
            candidates = self._candidates(name, rest)
            if candidates:
                self._settle(name, found, rest, candidates)

    def _candidates(self, name: str, rest: Sequence[ir.Node]) -> list[QuantParams]:
        """Other parameters that the value may have, the target's rules considered."""
        plan = self.walk.plan
        site = plan.layout.sites.get(name)
        if site is None or site.role is not Role.ACTIVATION or plan.layout.leader(name) != name or not rest:
            return []
        # An output that is clipped is wrong for the user, however small the mean error.
        if any(value.name == name for value in self.walk.model.graph.outputs):
            return []
        params = plan.of(name)
        if not holds_integers(params) or params.format.bits > MOST_BITS or params.axis is not None:
            return []
        free = {str(value.name) for node in rest for value in node.inputs if value is not None and is_constant(value)}
        return [each for each in _neighbours(params) if self._permitted(name, each, free)]

    def _permitted(self, name: str, params: QuantParams, free: set[str]) -> bool:
        """Tell whether the rules leave all as it is but the value itself and constants of layers to come."""
        plan = self.walk.plan
        trial = self.constrain(dataclasses.replace(plan, params={**plan.params, name: params}))
        moved = {key for key, each in trial.params.items() if each is not plan.params[key]}
        return trial.params[name] is params and moved - {name} <= free

    def _settle(
        self,
        name: str,
        found: Mapping[str, Sequence[Array]],
        rest: Sequence[ir.Node],
        candidates: Sequence[QuantParams],
    ) -> None:
        present = self.walk.plan.integers(name)
        continuation = _Continuation(self.walk, name, found, rest, self.expected)
        errors = [continuation.errors(params) for params in (present, *candidates)]
        # The present scale stands first, so that it wins a tie.
        best = min(range(len(errors)), key=lambda index: errors[index].mean())
        if best and is_better(errors[best], errors[0]):
            plan = self.walk.plan
            plan = plan.with_params(name, candidates[best - 1], RULE, plan.layout.sites[name].node)
            self.walk.plan = self.constrain(plan)


class _Continuation:
    """What follows a value, in float, for any parameters of the value."""

    def __init__(
        self,
        walk: QuantizedWalk,
        name: str,
        found: Mapping[str, Sequence[Array]],
        rest: Sequence[ir.Node],
        expected: Sequence[Mapping[str, Array]],
    ) -> None:
        made = {value for node in rest for value in node.outputs}
        read = dict.fromkeys(value for node in rest for value in read_values(node))
        self._inputs = [str(value.name) for value in read if value not in made and not is_constant(value)]
        self._outputs = [value for value in walk.model.graph.outputs if value in made]
        self._walk, self._name, self._found, self._expected = walk, name, found, expected
        self._program = Program(walk.model, rest, self._outputs, self._feeds(0, found[name][0]), _float_constant)

    def errors(self, params: QuantParams) -> Floats:
        """Return the error at the outputs for each sample."""

        ties = self._walk.plan.layout.ties_of(self._name)

        def run(sample: int) -> float:
            value = self._found[self._name][sample]
            rounded = params.rounded(value, ties)
            results = self._program(self._feeds(sample, rounded), self._walk.origins[sample])
            wanted = self._expected[sample]
            pairs = zip(self._outputs, results, strict=True)
            return sum(relative_error(result, wanted[str(output.name)]) for output, result in pairs)

        return np.array(list(self._walk.pool.map(run, range(len(self._expected)))))

    def _feeds(self, sample: int, value: Array) -> dict[str, Array]:
        feeds = {}
        for name in self._inputs:
            if name == self._name:
                feeds[name] = value
            elif name in self._found:  # computed beside it, and not settled yet
                feeds[name] = self._found[name][sample]
            else:
                feeds[name] = self._walk.frontier.get(name, sample)
        return feeds


def is_better(candidate: Floats, present: Floats) -> bool:
    """Tell whether errors of the same samples are less, by more than their differences scatter."""
    gains = present - candidate
    error = gains.std(ddof=1) / np.sqrt(gains.size) if gains.size > 1 else np.inf
    return bool(gains.mean() > STANDARD_ERRORS * error)


def relative_error(found: Array, wanted: Array) -> float:
    """Return the squared error relative to the square of what is wanted; 0 where it is not a number."""
    if not np.issubdtype(wanted.dtype, np.floating):
        return 0.0
    power = float(np.square(wanted, dtype=np.float64).sum())
    if np.shape(found) != np.shape(wanted):
        return 1.0  # rows that depend on the data: which belongs to which is not known, so all counts as error
    return float(np.square(np.asarray(found, np.float64) - wanted).sum()) / (power or 1.0)


def _neighbours(params: QuantParams) -> list[QuantParams]:
    """Return parameters with a somewhat larger or smaller range."""
    fmt = params.format
    if fmt.power_of_two:
        return [QuantParams.at(fmt, params.position + step) for step in (1, -1)]
    low, high = params.span
    return [fmt.fit(low * factor, high * factor) for factor in FACTORS]


def _float_constant(node: ir.Node, index: int) -> Array | None:
    return constant(node.inputs[index])


def search_ranges(
    model: ir.Model,
    reference: ir.Model,
    plan: Plan,
    constrain: Constrain,
    samples: Sequence[PendingSample],
    threads: int = 0,
) -> Plan:
    """Settle the scales of all activations on a walk of its own: for a plan whose weights are not refined."""
    chosen = samples[:SAMPLES]
    walk = QuantizedWalk(model, plan, [sample.origin for sample in chosen], threads)
    for index, pending in enumerate(chosen):
        walk.start(index, pending.load())
    walk.run(lambda _: None, search=RangeSearch.on(walk, reference, constrain, chosen))
    return walk.plan
