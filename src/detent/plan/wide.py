"""16 bits for single activations of a plan in 8 bits, and the networks that need them.

A normalization layer divides by what it measures, so training does not keep the channels before it, nor the sums around
it, alike: in trained transformers a few channels of the residual stream are 10 to 1000 times as large as the others,
and one 8-bit step for all of them leaves the others nothing. No factor can be folded away there, because the sum and
the normalization read the same value. With 16 bits the step is 1/256 of that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import onnx_ir as ir

from detent.numerics.formats import IntegerFormat, is_integer
from detent.numerics.interface import NumberFormat
from detent.plan.layout import Layout, Role

# Layers that normalize each sample anew; a BatchNorm is a fixed factor.
NORMALIZATIONS = frozenset(
    (
        *("LayerNormalization", "RMSNormalization", "GroupNormalization", "SimplifiedLayerNormalization"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization"),
    )
)


def normalizes(graph: ir.Graph) -> bool:
    """Return whether a network has normalization layers, and so may have a few channels far larger than the others."""
    return any(node.op_type in NORMALIZATIONS for node in graph)


def wide_format(fmt: NumberFormat | None) -> IntegerFormat | None:
    """Return an 8-bit format of float scales with 16 bits; None for any other, which would not gain or cannot."""
    if fmt is None or not is_integer(fmt) or fmt.bits != 8 or fmt.scale != "float":
        return None
    return fmt.replace(dtype=fmt.dtype.replace("8", "16"))


def wide_candidates(model: ir.Model, layout: Layout) -> list[tuple[str, ...]]:
    """Group the activations that may get 16 bits, in graph order.

    Those of a group share their codes, so all of them do or none. A group is a leader with all values that share its
    parameters, and whatever Concats join with it.
    """
    groups = {
        site.value: {site.value}
        for site in layout.of_role(Role.ACTIVATION)
        if layout.leader(site.value) == site.value and wide_format(layout.formats[site.value]) is not None
    }
    for node in model.graph:
        if node.op_type == "Concat" and layout.quantizes(node):
            joined = {layout.leader(site) for site in layout.sites_around(node)}
            _merge(groups, joined)
    found: dict[int, tuple[str, ...]] = {}
    for group in groups.values():
        sharing = (name for name in layout.sites if layout.leader(name) in group)
        found.setdefault(id(group), tuple(sharing))
    return list(found.values())


def _merge(groups: dict[str, set[str]], joined: Iterable[str]) -> None:
    """Let the groups of all `joined` leaders be one; constants and values of other formats have none."""
    met = [groups[leader] for leader in joined if leader in groups]
    together = set[str]().union(*met)
    groups.update(dict.fromkeys(together, together))


def with_wide(layout: Layout, values: Collection[str]) -> Layout:
    """Return the layout with 16 bits for these activations."""
    wide = {name: wide_format(layout.formats[name]) for name in values}
    formats = {**layout.formats, **{name: fmt for name, fmt in wide.items() if fmt is not None}}
    return replace(layout, formats=formats, wide=layout.wide | frozenset(values))
