"""How many samples and rows fit the memory that refinement may use.

At most a half goes to the frontier of the walk, whose largest extent is found by walking with one sample. The float
outputs at the sampled positions have one half of what is left, and the layer that is being solved the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from detent.errors import UsageError
from detent.observe.samples import PendingSample
from detent.plan.plan import Plan
from detent.refine.frontier import Frontier
from detent.refine.layers import Layer
from detent.refine.walk import Walk
from detent.refinements import BiasCorrection, GradientSearch, Refinement
from detent.settings import show_memory


@dataclass(frozen=True)
class Budget:
    """The samples to refine with, the rows to keep of each, and the bytes for one layer.

    `with_inputs`: the rows of the float input are kept too. `note` says what was cut.
    """

    samples: Sequence[PendingSample]
    rows: int
    layer_bytes: int
    with_inputs: bool = False
    note: str = ""


def make_budget(
    model: ir.Model,
    plan: Plan,
    layers: Sequence[Layer],
    refinement: Refinement,
    samples: Sequence[PendingSample],
    memory: int,
) -> Budget:
    """As many samples and rows as the refinement asks for, or as fit. UsageError where not even one sample does."""
    wanted = min(refinement.samples, len(samples))
    peak = max(_peak(model, plan, samples[0]), 1)
    if memory < 2 * peak:
        raise UsageError(
            f"Refining needs at least {show_memory(2 * peak)} of memory for this model, and may use "
            f"{memory / 2**20:.3g} MB. Give --memory {show_memory(2 * peak)} or more, or --refine none."
        )
    number = max(1, min(wanted, memory // 2 // peak))
    note = f"memory for {number} of {wanted} samples" if number < wanted else ""
    chosen = [samples[index * len(samples) // number] for index in range(number)]
    left = max(memory - number * peak, 0) // 2
    if isinstance(refinement, BiasCorrection):
        return Budget(chosen, 0, left, note=note)
    with_inputs = isinstance(refinement, GradientSearch) and refinement.quantized_share < 1.0
    width = sum(layer.channels + (layer.matrix()[:, 0].size if with_inputs else 0) for layer in layers)
    rows = max(1, min(refinement.rows, left // (4 * width * number)))
    if rows < refinement.rows:
        note = "; ".join(filter(None, (note, f"memory for {rows} of {refinement.rows} rows of each sample")))
    return Budget(chosen, rows, left, with_inputs, note)


def _peak(model: ir.Model, plan: Plan, first: PendingSample) -> int:
    """The most bytes that the frontier holds for one sample."""
    walk = Walk(model, plan, [first.origin], threads=1)
    walk.start(0, first.load())
    peak = 0

    def measure(_: str, frontier: Frontier) -> None:
        nonlocal peak
        peak = max(peak, frontier.nbytes)

    walk.run(lambda _: None, measure)
    return peak
