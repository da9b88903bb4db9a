"""Float-to-float rewrites that leave a model's function as it is and its graph easier to quantize.

One pass is one class. `default_passes` lists them in the order in which they help each other, `prepare`
runs a list and returns what was done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from detent.prepare.affine import BatchNormToConv, FoldAffine, FoldBatchNorm, MatMulToGemm, NormalizeGemm
from detent.prepare.base import Change, Pass, Successor
from detent.prepare.bodies import BothBranches
from detent.prepare.constants import FoldConstants, RemoveIdentity, SeparateInitializers
from detent.prepare.norms import FuseInstanceNorm, FuseL2Norm, FuseLayerNorm
from detent.prepare.plain_forms import HalfToFloat, InlineFunctions, WriteAttributes
from detent.prepare.replaced_operators import (
    EinsumToMatMul,
    GatherToSlice,
    KeepMeanDims,
    MergeClips,
    ReduceMeanToPool,
    SetHardSigmoidSlope,
    SplitGlobalPool,
    SplitToSlice,
    SumToAdd,
)
from detent.prepare.shapes import FixBatch, FixInputs, FixShapes, InferShapes
from detent.prepare.subgraphs import FuseGelu, FuseHardSwish
from detent.prepare.take_apart import TakeApart
from detent.prepare.transposes import CancelTransposes

__all__ = [
    "LEAVABLE",
    "BothBranches",
    "FixBatch",
    "FixInputs",
    "FixShapes",
    "FoldConstants",
    "InferShapes",
    "KeepMeanDims",
    "Pass",
    "ReduceMeanToPool",
    "default_passes",
    "prepare",
    "successors",
]


# The passes that a recipe may do without; the others are what everything else stands on.
LEAVABLE: tuple[type[Pass], ...] = (
    RemoveIdentity,
    TakeApart,
    EinsumToMatMul,
    SumToAdd,
    CancelTransposes,
    MergeClips,
    FuseLayerNorm,
    FuseInstanceNorm,
    FuseL2Norm,
    FuseGelu,
    FuseHardSwish,
    SetHardSigmoidSlope,
    MatMulToGemm,
    FoldAffine,
    FoldBatchNorm,
    BatchNormToConv,
    SeparateInitializers,
    SplitToSlice,
    GatherToSlice,
    KeepMeanDims,
    ReduceMeanToPool,
    SplitGlobalPool,
    WriteAttributes,
)


def default_passes(
    fix_shapes: Mapping[str, Sequence[int | None]] | None = None,
    for_target: Iterable[Pass] | None = None,
    without: Collection[str] = (),
    also: Collection[str] = (),
    *,
    fix_batch: bool = False,
) -> list[Pass]:
    """Return all passes, in order. `for_target` are the rewrites that a device asks for; by default all.

    `without` are names of steps (`Pass.step`) that are left out, `also` those of steps on request. `fix_batch`: an open
    batch becomes 1.

    Functions and half types go first, since they hide nodes and constants from the rest. Shapes come before constants,
    because the shape of a static value is one. Operators that were written as subgraphs are found before anything folds
    parts of them away. FoldAffine stands on both sides of FoldBatchNorm, for chains that mix
    the two. Rewrites into other operators follow when nothing is left to fold.
    """
    passes = [
        InlineFunctions(),
        HalfToFloat(),
        FixShapes(fix_shapes) if fix_shapes else InferShapes(),
        *([FixBatch()] if fix_batch else []),
        TakeApart(),
        EinsumToMatMul(),
        SumToAdd(),
        FoldConstants(),
        *((BothBranches(), FoldConstants()) if BothBranches.step() in also else ()),
        RemoveIdentity(),
        InferShapes(),
        CancelTransposes(),
        MergeClips(),
        FuseInstanceNorm(),
        FuseLayerNorm(),
        FuseL2Norm(),
        FuseGelu(),
        FuseHardSwish(),
        SetHardSigmoidSlope(),
        MatMulToGemm(),
        FoldAffine(),
        FoldBatchNorm(),
        FoldAffine(),
        BatchNormToConv(),
        NormalizeGemm(),
        SeparateInitializers(),
        *(
            (SplitToSlice(), GatherToSlice(), KeepMeanDims(), ReduceMeanToPool(), SplitGlobalPool())
            if for_target is None
            else for_target
        ),
        WriteAttributes(),
    ]
    return [each for each in passes if each.step() not in without]


def prepare(model: ir.Model, passes: Iterable[Pass]) -> list[Change]:
    """Run passes over a model in place, in order, and return what they changed. What they declined is in each pass."""
    changes: list[Change] = []
    for step in passes:
        step(model)
        changes.extend(step.changes)
    return changes


def successors(names: Iterable[str], graph: ir.Graph, passes: Sequence[Pass]) -> dict[str, Successor]:
    """Return what became of nodes, by the names that they had before these passes ran on `graph`.

    A node that is still there under its name is left out, unless others came to it.
    """
    present = {str(node.name) for node in graph}
    later: dict[str, Successor] = {}  # of the names at some moment; walked from the end to the beginning
    for step in reversed(passes):
        for old, new in reversed(step.moved):
            parts = [later.get(name, Successor((name,))) for name in new.nodes]
            nodes = dict.fromkeys(name for part in parts for name in part.nodes)
            later[old] = Successor(tuple(nodes), new.merged or any(part.merged for part in parts))
    found: dict[str, Successor] = {}
    for name in names:
        if name in later:
            left = tuple(each for each in later[name].nodes if each in present)
            found[name] = Successor(left, later[name].merged)
        elif name not in present:
            found[name] = Successor(())
    return found
