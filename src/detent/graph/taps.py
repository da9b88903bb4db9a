"""Runners that leave values in the order in which they lie in memory, for whoever does not mind it.

onnxruntime computes convolutions in a layout of its own and puts every value that is fetched back in order. With all
values of a network fetched, that takes as long as half of the inference. A histogram does not mind the order, nor do
the sums over two tensors that are in the same one. So onnxruntime's own rewrite of the model is written to a file, its
reorders are taken out where they can be (graph/blocked.py), and the result is loaded with no further optimization.

Where that cannot be done or gains nothing, the runners are ordinary ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
from google.protobuf.message import DecodeError

from detent.errors import ModelError
from detent.graph.blocked import BlockedValue, carry_blocks, fetch_in_blocks, fetchable_in_blocks
from detent.graph.save import serialize, tensor_bytes
from detent.graph.session import DEFAULT_PROVIDERS, Feeds, Runner, exact_options, open_session, session_options

MOST_BYTES = 1 << 29  # of weights: beyond it, a second copy of them in memory costs more than the time is worth


class Taps(NamedTuple):
    """Two runners that fetch the same values. Those of `unordered` are in any order, and their shapes mean nothing."""

    ordered: Runner
    unordered: Runner


class UnorderedRunner(Runner):
    """Fetches values by the names that they have in the original, in the order in which they lie in memory."""

    def __init__(
        self,
        model: onnx.ModelProto,
        outputs: Sequence[str],
        blocked: Mapping[str, BlockedValue],
        *,
        exact: bool = False,
    ) -> None:
        """Load a model that is optimized already. `blocked`: what stands for a value, and its number of channels."""
        options = exact_options() if exact else session_options()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.outputs = list(outputs)
        self._blocked = dict(blocked)
        self._session = open_session(serialize(model), options)

    def __call__(
        self, feeds: Feeds, origin: str = "the given input", outputs: Sequence[str] | None = None
    ) -> list[npt.NDArray[Any]]:
        """The values for one set of inputs."""
        names = outputs or self.outputs
        plain = (None, 0)
        results = super().__call__(feeds, origin, [self._blocked.get(name, plain)[0] or name for name in names])
        for name, result in zip(names, results, strict=True):
            channels = self._blocked.get(name, plain)[1]
            if channels and result.shape[1] != channels:
                raise ModelError(
                    f"onnxruntime laid out tensor '{name}' with {result.shape[1]} channels instead of {channels}: this "
                    "version works in a way that Detent does not know. Please report it."
                )
        return results


def open_taps(model: ir.Model, outputs: Sequence[str], providers: Sequence[str] = DEFAULT_PROVIDERS) -> Taps:
    """Load `model` to fetch `outputs`, in order and in any order."""
    ordered, rewritten = _optimize(model, outputs, providers, exact=False)
    blocked = {} if rewritten is None else fetchable_in_blocks(rewritten, outputs)
    if rewritten is None or not blocked:
        return Taps(ordered, ordered)
    return Taps(ordered, _reload(rewritten, blocked, outputs, exact=False) or ordered)


def open_exact(
    model: ir.Model, outputs: Sequence[str] | None = None, providers: Sequence[str] = DEFAULT_PROVIDERS
) -> Runner:
    """Load a quantized `model` to fetch `outputs` in order, in exact arithmetic: for many samples.

    It takes longer to load than Runner(exact=True), and then a quarter less for each sample.
    """
    runner, rewritten = _optimize(model, outputs, providers, exact=True)
    return runner if rewritten is None else _reload(rewritten, {}, runner.outputs, exact=True) or runner


def open_alike(
    models: Sequence[ir.Model],
    names: Sequence[str],
    outputs: Sequence[str],
    providers: Sequence[str] = DEFAULT_PROVIDERS,
) -> list[Runner]:
    """Load several models to fetch `outputs` in exact arithmetic: each value in any order, but the same in all models.

    Those of one shape can be compared element by element. An error begins with the name of its model. No model may be
    given twice: they load at the same time.
    """

    def optimize(model: ir.Model, name: str) -> tuple[Runner, onnx.ModelProto | None]:
        try:
            return _optimize(model, outputs, providers, exact=True)
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from error

    with ThreadPoolExecutor(len(models)) as pool:
        loaded = list(pool.map(optimize, models, names))
        ordered = [runner for runner, _ in loaded]
        rewritten = [model for _, model in loaded if model is not None]
        if len(rewritten) < len(models):
            return ordered
        found = [fetchable_in_blocks(model, outputs) for model in rewritten]
        common = set.intersection(*(set(values) for values in found))
        blocked = [{name: values[name] for name in common} for values in found]
        runners = list(pool.map(partial(_reload, outputs=outputs, exact=True), rewritten, blocked))
    return [runner for runner in runners if runner is not None] if None not in runners else ordered


def _optimize(
    model: ir.Model, outputs: Sequence[str] | None, providers: Sequence[str], *, exact: bool
) -> tuple[Runner, onnx.ModelProto | None]:
    """An ordinary runner, and the model as onnxruntime rewrote it, with all in blocks that can be; if that may help."""
    ordinary = partial(Runner, model, outputs, exact=exact, providers=providers)
    if not _promising(model, providers):
        return ordinary(), None
    try:
        with tempfile.TemporaryDirectory(prefix="detent-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "optimized.onnx"
            runner = ordinary(optimized=path)
            rewritten = onnx.load(path)
    except (ModelError, OSError, DecodeError):
        # No room for the file, or an operator that cannot be written. If it is the model, this fails as well.
        return ordinary(), None
    carry_blocks(rewritten)
    return runner, rewritten


def _reload(
    model: onnx.ModelProto, blocked: Mapping[str, BlockedValue], outputs: Sequence[str], *, exact: bool
) -> Runner | None:
    """A runner on a rewritten model that fetches the `blocked` values as they are; None where it does not load."""
    fetch_in_blocks(model, blocked)
    try:
        return UnorderedRunner(model, outputs, blocked, exact=exact)
    except ModelError:
        return None


def _promising(model: ir.Model, providers: Sequence[str]) -> bool:
    """Whether the model may have blocked values, and is small enough to be loaded twice."""
    convolves = any(node.op_type == "Conv" for node in model.graph)
    return convolves and tuple(providers) == DEFAULT_PROVIDERS and tensor_bytes(model) <= MOST_BYTES
