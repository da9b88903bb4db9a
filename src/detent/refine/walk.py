"""One walk through the quantized model, all samples side by side, as the emitted file will compute it.

Nothing is computed twice from the start: at each node the activations that the quantized nodes before it give are at
hand, and those that nobody reads any more are gone. Before a segment runs, a visitor may refine the layer in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import onnx_ir as ir

from detent.graph.session import usable_cores
from detent.graph.values import constant, is_constant
from detent.observe.samples import Sample
from detent.plan.layout import Role, site_inputs
from detent.plan.plan import Plan
from detent.presets import LAYERS
from detent.refine.codes import Array, stored_constant
from detent.refine.frontier import Frontier
from detent.refine.segments import Program, divide, reads

Result = TypeVar("Result")
Visitor = Callable[[ir.Node], None]
Watcher = Callable[[str, Frontier], None]


class Settler(Protocol):
    """Who may change the parameters of values between their computation and their encoding.

    It sees them for the first `samples`.
    """

    @property
    def samples(self) -> int:
        """How many samples it looks at."""

    def __call__(self, found: Mapping[str, Sequence[Array]], rest: Sequence[ir.Node]) -> None:
        """Settle the parameters of the values in `found`, given for each sample. `rest` are the nodes to come."""


class Walk:
    """The state of a walk: the plan that is simulated, and the frontier."""

    def __init__(self, model: ir.Model, plan: Plan, origins: Sequence[str], threads: int = 0) -> None:
        self.model, self.plan = model, plan
        self.pool = ThreadPoolExecutor(threads or usable_cores())  # its threads end when nobody has the walk any more
        self.frontier = Frontier(plan, len(origins))
        self.origins = origins
        kept = {site.value for site in plan.layout.of_role(Role.ACTIVATION)}
        # A layer is refined on its inputs, so these are at hand even where they have no codes (weights alone have).
        layers = (node for node in model.graph if node.op_type in LAYERS and plan.layout.quantizes(node))
        kept |= {str(value.name) for node in layers for value in node.inputs if value is not None}
        self.segments = divide(model, kept)

    def start(self, index: int, sample: Sample) -> None:
        """Put in the inputs of one sample. An input with a default that the sample has no data for takes it."""
        for value in self.model.graph.inputs:
            name = str(value.name)
            default = None if value.const_value is None else value.const_value.numpy()
            self.frontier.put(name, index, sample.feeds.get(name, default))

    def run(self, visit: Visitor, watch: Watcher | None = None, settle: Settler | None = None) -> None:
        """Walk. `visit` is called with each node before it is computed, `watch` with each value after it is.

        `settle` is called in between, before values are encoded. Without a watcher, results that nobody reads are not
        computed.
        """
        readers = Counter(str(value.name) for segment in self.segments for value in segment.inputs)
        for number, segment in enumerate(self.segments, 1):
            for node in segment.nodes:
                visit(node)
            wanted = [value for value in segment.outputs if watch is not None or readers[str(value.name)]]
            if wanted:
                early: Sequence[Sequence[Any]] = ()
                program = self._program(segment.nodes, wanted, [str(value.name) for value in segment.inputs])
                if settle is not None:
                    early = list(self.pool.map(program, range(min(settle.samples, self.frontier.samples))))
                    rest = [node for later in self.segments[number:] for node in later.nodes]
                    names = [str(value.name) for value in wanted]
                    settle(dict(zip(names, zip(*early, strict=True), strict=True)), rest)
                self._advance(program, wanted, early)
            if watch is not None:
                for value in wanted:
                    watch(str(value.name), self.frontier)
            for value in segment.inputs:
                readers[str(value.name)] -= 1
                if not readers[str(value.name)]:
                    self.frontier.drop(str(value.name))

    def over_outputs(self, node: ir.Node, task: Callable[[int, Array], Result]) -> list[Result]:
        """`task` of each sample and the node's first result, before any activation, with its constants as they are now.

        The results themselves are not kept.
        """
        names = [str(value.name) for value in reads(node) if not is_constant(value)]
        program = self._program([node], node.outputs[:1], names)
        return self.map(lambda sample: task(sample, program(sample)[0]))

    def map(self, task: Callable[[int], Result]) -> list[Result]:
        """A task for each sample, in all threads; results in the order of the samples."""
        return list(self.pool.map(task, range(self.frontier.samples)))

    def _advance(
        self, program: Callable[[int], Sequence[Any]], wanted: Sequence[ir.Value], early: Sequence[Sequence[Any]]
    ) -> None:
        """Put the results of all samples on the frontier; those of the first ones may be known already."""

        def step(sample: int) -> None:
            results = early[sample] if sample < len(early) else program(sample)
            for value, result in zip(wanted, results, strict=True):
                self.frontier.put(str(value.name), sample, result)

        self.map(step)

    def _program(
        self, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], names: Sequence[str]
    ) -> Callable[[int], list[Any]]:
        """The nodes as a function of the sample's number, reading `names` from the frontier."""
        program = Program(self.model, nodes, outputs, self.feeds(names, 0), self.constant)
        return lambda sample: program(self.feeds(names, sample), self.origins[sample])

    def feeds(self, names: Sequence[str], sample: int) -> Mapping[str, Any]:
        """What nodes read of these values, for one sample."""
        return {name: self.frontier.get(name, sample) for name in names}

    def constant(self, node: ir.Node, index: int) -> Any:
        """What a node of the emitted model reads at a constant input: a site as it is stored, or a number as it is.

        Numbers that were refined stand in for the model's own.
        """
        value = node.inputs[index]
        array, name = constant(value), "" if value is None else str(value.name)
        site = self.plan.layout.sites.get(name)
        if array is None:
            return None
        if site is None:
            return self.plan.refined.get(name, array)
        if not self.plan.layout.quantizes(node) or index not in site_inputs(node):
            return array
        return stored_constant(self.plan.refined.get(name, array), self.plan.of(name))
