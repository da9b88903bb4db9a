"""What is done at each layer of the walk."""

from __future__ import annotations

from dataclasses import dataclass

from detent.refine.budget import Budget
from detent.refine.build import build_problem, why_not
from detent.refine.choose import choose
from detent.refine.layers import Layer, LayerReport
from detent.refine.means import correct_bias, set_bias
from detent.refine.spacing import Permits, adopt, spacings
from detent.refine.targets import LayerTarget
from detent.refine.walk import Walk
from detent.refinements import BiasCorrection, Refinement, Rounding


@dataclass(frozen=True, eq=False)
class Step:
    """Refines one layer after another, in the order of the walk."""

    walk: Walk
    refinement: Refinement
    budget: Budget
    permits: Permits

    def __call__(self, layer: Layer, target: LayerTarget) -> LayerReport:
        """Choose the layer's weights, where the refinement does, then its bias; and tell."""
        if isinstance(self.refinement, BiasCorrection):
            return self._bias_only(layer, target)
        reason = why_not(layer, self.walk, target, self.refinement, self.budget.layer_bytes)
        if reason is not None:
            return self._bias_only(layer, target, reason)
        row_bytes = 4 * layer.matrix()[:, 0].size
        most_rows = self.budget.layer_bytes // 2 // row_bytes  # half of it, for they are copied when they are centred
        problem, held_out = build_problem(layer, self.walk, target, most_rows)
        tried = isinstance(self.refinement, Rounding) and self.refinement.rescale
        others = spacings(layer, self.walk.plan, self.permits) if tried else []
        choice = choose(problem, held_out, self.refinement, self.walk.pool, others)
        if choice.solution is None:
            return self._bias_only(layer, target, choice.reason, choice.before)
        if choice.spacing is not None:
            adopt(choice.spacing.weights, layer, self.walk.plan)
            problem = choice.spacing.of(problem)
        self.walk.plan.refined[str(layer.weight.name)] = layer.tensor(
            choice.solution.codes * problem.weight_scale[..., None]
        )
        if choice.matches_means:
            note = correct_bias(layer, self.walk, target.sums).note
        else:
            note = set_bias(layer, self.walk.plan, choice.solution.bias)
        return _report(layer, choice.solution.method, choice.before, choice.after, note, self.budget.note)

    def _bias_only(self, layer: Layer, target: LayerTarget, note: str = "", error: float | None = None) -> LayerReport:
        correction = correct_bias(layer, self.walk, target.sums)
        method = "as it was" if layer.bias is None else "bias correction"
        power = target.sums.power or 1.0
        before, after = (correction.before / power, correction.after / power) if error is None else (error, error)
        return _report(layer, method, before, after, note, correction.note, self.budget.note)


def _report(layer: Layer, method: str, before: float, after: float, *notes: str) -> LayerReport:
    text = "; ".join(note for note in notes if note)
    return LayerReport(layer.name, layer.node.op_type, method, before, after, text)
