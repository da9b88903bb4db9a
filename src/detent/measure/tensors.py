"""Two models on the same samples, tensor against tensor: the outputs, and every value that has the same name in both.

With x the value in the first model, y in the second and e their difference, for each sample:

    cosine = sum x*y / sqrt(sum x^2 * sum y^2)      L1 = mean |e|      L2 = mean e^2
    SQNR   = 10 log10(sum x^2 / sum e^2)            PSNR = 10 log10(max |x|^2 / L2)

What is kept are five numbers for each sample and tensor, never the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from detent.errors import ModelError
from detent.graph.load import read
from detent.graph.session import DEFAULT_PROVIDERS
from detent.graph.taps import open_alike
from detent.measure.candidate import AnyModel, Candidate, model_name
from detent.measure.dataset import Batch, open_dataset
from detent.measure.fidelity import Sums
from detent.measure.in_order import in_order
from detent.measure.rescaled import is_rescaled
from detent.observe.inputs import input_specs
from detent.observe.preprocess import PreprocessOptions
from detent.observe.samples import Array
from detent.progress import Progress, silent
from detent.recipe import FUSED_ACTIVATIONS

STAGE = "compare"
MEASURES = ("sqnr_db", "psnr_db", "cosine", "l1", "l2")
HIGHER_IS_BETTER = ("sqnr_db", "psnr_db", "cosine")


@dataclass(frozen=True, eq=False)
class TensorDifference:
    """One tensor on all samples: `values` has a row for each measure (see MEASURES) and a column for each sample.

    `rescaled`: its channels are at other scales in the second model, as equalization leaves them, and the layers behind
    take that back. Then the measures tell how far the scales are apart, and not how large the error is.
    """

    name: str
    is_output: bool
    samples: Sequence[str]
    values: np.ndarray[Any, np.dtype[np.float64]]
    rescaled: bool = False

    def mean(self, measure: str) -> float:
        """The mean over the samples; infinite decibels (equal tensors) make it infinite."""
        return float(self.values[MEASURES.index(measure)].mean())

    def worst(self, measure: str) -> float:
        """The value of the sample on which it is worst."""
        values = self.values[MEASURES.index(measure)]
        return float(values.min() if measure in HIGHER_IS_BETTER else values.max())

    def worst_samples(self, count: int = 3) -> list[str]:
        """The samples of the least SQNR, the worst first."""
        order = np.argsort(self.values[MEASURES.index("sqnr_db")], kind="stable")
        return [self.samples[at] for at in order[:count].tolist()]


@dataclass(frozen=True)
class ModelComparison:
    """All tensors of one name in both models, in the order of the first. `skipped` have other shapes or types."""

    before: str
    after: str
    data: str
    note: str
    tensors: Sequence[TensorDifference]
    skipped: Sequence[str]

    def worst_first(self) -> list[TensorDifference]:
        """The tensors by their mean SQNR."""
        return sorted(self.tensors, key=lambda tensor: tensor.mean("sqnr_db"))

    def rescaled(self) -> list[TensorDifference]:
        """The tensors whose channels are at other scales."""
        return [tensor for tensor in self.tensors if tensor.rescaled]

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        return {
            "before": self.before,
            "after": self.after,
            "data": self.data,
            "tensors": [
                {
                    "name": tensor.name,
                    "is_output": tensor.is_output,
                    "rescaled": tensor.rescaled,
                    **{name: {"mean": tensor.mean(name), "worst": tensor.worst(name)} for name in MEASURES},
                    "worst_samples": tensor.worst_samples(),
                }
                for tensor in self.tensors
            ],
            "skipped": list(self.skipped),
        }


def compare_models(
    before: AnyModel,
    after: AnyModel,
    data: Any,
    *,
    preprocess: PreprocessOptions | None = None,
    limit: int | None = None,
    batch: int | None = None,
    threads: int = 0,
    providers: Sequence[str] = DEFAULT_PROVIDERS,
    inner: bool = False,
    progress: Progress = silent,
) -> ModelComparison:
    """Run both models on all samples. Raises a DetentError where they do not take or give the same.

    `inner`: also what a layer gives to the activation function behind it, which is seldom asked for and takes as long
    as all the rest.
    """
    graphs = [model if isinstance(model, ir.Model) else read(model) for model in (before, after)]
    models = [model_name(model) for model in (before, after)]
    shared = _shared(graphs[0], graphs[1], inner=inner)
    one_model = graphs[0] is graphs[1]
    runners = open_alike(graphs[:1] if one_model else graphs, models, shared, providers) * (1 + one_model)
    first, second = (
        Candidate(graph, name=name, runner=runner) for graph, name, runner in zip(graphs, models, runners, strict=True)
    )
    second.check_like(first)
    if not shared:
        raise ModelError(f"{first.name} and {second.name} have no tensor of the same name: nothing can be compared.")
    ends = set.intersection(*({str(value.name) for value in graph.graph.outputs} for graph in graphs))
    dataset = open_dataset(data, input_specs(graphs[0]), labels=None, preprocess=preprocess, limit=limit, batch=batch)

    def look(numbered: tuple[int, Batch]) -> tuple[dict[str, Array | None], set[str]]:
        number, item = numbered
        sample = item.pending.load()
        expected, given = first(sample), second(sample)
        differences = _differences(expected, given, len(item.names))
        # Factors are the same on all samples: one batch shows them.
        comparable = [] if number else [name for name, values in differences.items() if values is not None]
        return differences, {name for name in comparable if is_rescaled(expected[name], given[name])}

    names: list[str] = []
    rescaled: set[str] = set()
    found: dict[str, list[Array]] = {name: [] for name in shared}
    skipped: set[str] = set()
    progress(STAGE, 0, dataset.batches)
    for (number, item), (differences, other_scales) in in_order(look, enumerate(dataset), threads):
        names += item.names
        rescaled |= other_scales
        for name, values in differences.items():
            if values is None:
                skipped.add(name)
            else:
                found[name].append(values)
        progress(STAGE, number + 1, dataset.batches)
    tensors = [
        TensorDifference(name, name in ends, names, np.concatenate(parts, 1), name in rescaled - ends)
        for name, parts in found.items()
        if name not in skipped
    ]
    return ModelComparison(
        first.name, second.name, dataset.described, dataset.note, tensors, [name for name in shared if name in skipped]
    )


def _shared(one: ir.Model, other: ir.Model, *, inner: bool) -> list[str]:
    """The tensors that nodes of both models give under one name, in the order of the first."""
    theirs = {value.name: value for node in other.graph for value in node.outputs}
    return [
        str(value.name)
        for node in one.graph
        for value in node.outputs
        if value.name
        and value.name in theirs
        and not isinstance(value.type, (ir.SequenceType, ir.OptionalType))
        and (inner or not (_is_inside(value) and _is_inside(theirs[value.name])))
    ]


def _is_inside(value: ir.Value) -> bool:
    """Whether nothing but one activation function reads it: devices and runtimes compute both at one go."""
    readers = value.consumers()
    return len(readers) == 1 and readers[0].op_type in FUSED_ACTIVATIONS and not value.is_graph_output()


def _differences(expected: Mapping[str, Array], found: Mapping[str, Array], size: int) -> dict[str, Array | None]:
    """The measures of each tensor, a column for each sample; None where there is nothing to compare."""
    result: dict[str, Array | None] = {}
    for name, x in expected.items():
        y = found[name]
        comparable = x.shape == y.shape and x.size > 0 and x.dtype.kind == y.dtype.kind == "f"
        if not comparable or (size > 1 and x.shape[:1] != (size,)):
            result[name] = None
            continue
        rows = [(x, y)] if size == 1 else [(x[at], y[at]) for at in range(size)]
        result[name] = np.array([_measures(*row) for row in rows], np.float64).T
    return result


def _measures(x: Array, y: Array) -> tuple[float, ...]:
    sums = Sums.of(x, y)
    closeness = sums.closeness()
    l1, l2 = sums.distance / sums.elements, sums.noise / sums.elements
    return closeness.sqnr_db, closeness.psnr_db, closeness.cosine, l1, l2
