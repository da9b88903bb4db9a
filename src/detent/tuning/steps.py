"""The steps of tuning, from the cheapest to the most expensive, and why each may help.

The first step is the recipe as it is. The next ones cost nothing on the device: the same operators and number formats,
with better numbers in them; only a SiLU of two gates (`devices.two_gates`) takes more time there. Each changes one
thing in the best recipe so far, and works on weights, on activations or on both; a kind that causes little of the error
is not worth the time. The last steps relax the constraint: the layers whose rounding hurts most get weights of 8 bits
instead of 4, activations of 16 bits, or stay float.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from detent.devices.two_gates import SiluToTwoGates
from detent.errors import UsageError
from detent.methods import MinMSE
from detent.numerics.formats import is_integer
from detent.plan.layout import Layout
from detent.plan.plan import check_methods
from detent.recipe import Recipe
from detent.refine.refine import check_refinement
from detent.refinements import AdaQuant, AdaRound, QuickRounding, Refinement, Rounding
from detent.results.searched import Proposal, Sensitivity, Way
from detent.search import propose

_SLOW = ("AdaRound", "AdaQuant")

# Of the output error: how much the layers that stay quantized may leave, step after step.
SHARES = (0.5, 0.25, 0.1, 0.03)


Kind = Literal["weights", "activations"]

BLAMELESS = 0.05  # a kind with a smaller share of the error is left as it is: removing all of it would gain 0.2 dB


@dataclass(frozen=True)
class Blame:
    """The errors at the outputs if all weights alone are quantized, and if all activations alone are.

    `hardened`: a Sigmoid became a HardSigmoid, which is part of the error of either.
    """

    weights: float
    activations: float
    hardened: bool = False

    def share(self, kind: Kind) -> float:
        """Return the part of the error that a kind makes; noise powers add."""
        whole = self.weights + self.activations
        if not 0.0 < whole < math.inf:
            return 0.5
        return (self.weights if kind == "weights" else self.activations) / whole

    def blames(self, kind: Kind | None) -> bool:
        """Return whether it is worth the time to work on a kind; None is both."""
        return kind is None or self.share(kind) >= BLAMELESS


@dataclass(frozen=True)
class TuningStep:
    """One way to quantize: its name, what it does in a sentence, and the recipe."""

    name: str
    what: str
    recipe: Recipe


@dataclass(frozen=True)
class Ingredient:
    """A change to a recipe. `changes` are fields of the recipe; `kind` is what it works on.

    `undoes` says that it removes a step that usually helps.
    """

    name: str
    what: str
    changes: dict[str, object]
    kind: Kind | None = None
    undoes: bool = False

    def added_to(self, recipe: Recipe) -> TuningStep | None:
        """Return the step that adds it; None if the recipe cannot have it, or has it already."""
        changed = recipe.replace(**self.changes)
        if changed == recipe or not _possible(changed):
            return None
        return TuningStep(self.name, self.what, changed)


def ingredients(base: Recipe) -> tuple[Ingredient, ...]:
    """Return the changes to try, in order. A refinement of the base recipe keeps its settings."""
    own = {type(base.refinement): base.refinement} if base.refinement is not None else {}

    def refined(name: str, what: str, usual: Refinement, kind: Kind | None = "weights") -> Ingredient:
        return Ingredient(name, what, {"refinement": own.get(type(usual), usual)}, kind)

    return (
        refined("quick rounding", "biases are corrected, and weights make up for each other", QuickRounding(), None),
        Ingredient("equalization", "channels of unequal range are brought in line first", {"equalize": True})
        if base.equalize is None
        else Ingredient("no equalization", "channels keep their ranges", {"equalize": False}, undoes=True),
        Ingredient(
            "MinMSE", "outliers are clipped where that makes the rest finer", {"method": MinMSE()}, "activations"
        ),
        Ingredient(
            "range search",
            "activations get the scales that the output asks for",
            {"search_ranges": True},
            "activations",
        ),
        refined("rounding", "weights are rounded so that each layer's output is right", Rounding()),
        refined("AdaRound", "gradient steps decide for every weight whether to round it up or down", AdaRound()),
        refined("AdaQuant", "weights and biases follow the gradient through the rounding", AdaQuant()),
    )


def _two_gates(base: Recipe) -> Ingredient:
    what = "each SiLU is computed by two HardSigmoids, which takes more time on the device"
    return Ingredient("two gates", what, {"also": (*base.also, SiluToTwoGates.step())}, "activations")


def worth_trying(base: Recipe, blame: Blame) -> list[Ingredient]:
    """Return the changes that may help: first those to the kind that causes most of the error, then the rest.

    Changes that remove a step of the recipe come after those that add one.
    """
    leading: Kind = "weights" if blame.weights >= blame.activations else "activations"
    gates = [_two_gates(base)] if blame.hardened else []
    tried = [each for each in (*gates, *ingredients(base)) if blame.blames(each.kind)]
    # Learning by gradients takes minutes where the others take seconds, so it stays last.
    return sorted(tried, key=lambda each: (each.name in _SLOW, each.undoes, each.kind not in (None, leading)))


def ways_up(recipe: Recipe) -> tuple[Way, ...]:
    """Return the ways in which a recipe can relax its constraint.

    Weights of 4 bits can have 8. Devices with power-of-two scales have 8 bits only; others take activations of 16.
    """
    fmt, weights = recipe.activations, recipe.weights
    narrow: tuple[Way, ...] = ("w8",) if is_integer(weights) and weights.bits == 4 else ()
    if not is_integer(fmt):
        return () if fmt is None and weights is None else (*narrow, "exclude")
    only = fmt.power_of_two or fmt.bits > 8 or recipe.format != "qdq"
    return (*narrow, "exclude") if only else (*narrow, "a16", "exclude")


def exception_stages(recipe: Recipe) -> tuple[tuple[Way, ...], ...]:
    """Return the ways in the order in which they are tried. Each stage starts from the best recipe before it.

    Wider weights come before all else, and are kept where they help: they stay integers, and cost only size.
    """
    ways = ways_up(recipe)
    return (("w8",), ways[1:]) if "w8" in ways else (ways,)


def exceptions(recipe: Recipe, layout: Layout, found: Sensitivity, ways: Sequence[Way]) -> Iterator[TuningStep]:
    """Yield the last steps, which spare more and more layers, the worst first, but never all of them."""
    seen = {recipe}
    for way in ways:
        for share in SHARES:
            proposal = propose(found, layout, recipe, found.total * share, way)
            if proposal.recipe in seen or proposal.operations == 1.0:
                continue
            seen.add(proposal.recipe)
            yield TuningStep(*_named(proposal), proposal.recipe)


def _named(proposal: Proposal) -> tuple[str, str]:
    """Return the name of a step, and what it does."""
    if proposal.way == "a16":
        return f"A16 x{len(proposal.tensors)}", "the activations that hurt most get 16 bits"
    if proposal.way == "w8":
        return f"W8 x{len(proposal.nodes)}", "the weights that hurt most get 8 bits"
    return f"float x{len(proposal.nodes)}", "the layers that hurt most stay float"


def _possible(recipe: Recipe) -> bool:
    """Return whether the recipe's formats allow what it asks for."""
    if recipe.dynamic and (recipe.equalize is not None or recipe.search_ranges):
        return False
    try:
        check_refinement(recipe)
        check_methods(recipe)
    except UsageError:
        return False
    return recipe.refinement is None or recipe.weights is not None
