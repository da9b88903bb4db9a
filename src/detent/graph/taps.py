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

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from detent.errors import ModelError
from detent.graph.blocked import MOST_LANES, BlockedValue, carry_blocks, fetch_in_blocks, fetchable_in_blocks
from detent.graph.save import serialize, tensor_bytes
from detent.graph.session import DEFAULT_PROVIDERS, Feeds, Runner, exact_options, open_session, session_options

MOST_BYTES = 1 << 29  # of weights: beyond it, a second copy of them in memory costs more than the time is worth


class Taps(NamedTuple):
    """Two runners that fetch the same values. Those of `unordered` are in any order, and their shapes mean nothing."""

    ordered: Runner
    unordered: Runner


class Alike(NamedTuple):
    """Runners of several models, whose values of one name are in one order.

    `lanes`: those in blocks, which lie in memory as [N, C / lanes, H, W, lanes]. All others are in order.
    """

    runners: list[Runner]
    lanes: Mapping[str, int]


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

    It takes longer to load than Runner(exact=True), and then up to a third less for each sample.
    """
    runner, rewritten = _optimize(model, outputs, providers, exact=True)
    return runner if rewritten is None else _reload(rewritten, {}, runner.outputs, exact=True) or runner


def open_alike(
    models: Sequence[ir.Model],
    names: Sequence[str],
    outputs: Sequence[str],
    providers: Sequence[str] = DEFAULT_PROVIDERS,
) -> Alike:
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
            return Alike(ordered, {})
        found = [fetchable_in_blocks(model, outputs) for model in rewritten]
        lanes = _block_lanes()
        common = set.intersection(*(set(values) for values in found)) if lanes else set()
        blocked = [{name: values[name] for name in common} for values in found]
        runners = list(pool.map(partial(_reload, outputs=outputs, exact=True), rewritten, blocked))
    if None in runners:
        return Alike(ordered, {})
    return Alike([runner for runner in runners if runner is not None], dict.fromkeys(common, lanes))


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


def _block_lanes() -> int:
    """How many channels a block has on this CPU; 0 where that cannot be told.

    Seen in a convolution whose channels are all 1 at the first of two positions and 2 at the second.
    """
    channels = 2 * MOST_LANES
    weight = numpy_helper.from_array(np.ones((channels, 1, 1, 1), np.float32), "w")
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, size, 1, 2])
        for name, size in (("x", 1), ("y", channels))
    )
    graph = onnx.helper.make_graph([onnx.helper.make_node("Conv", ["x", "w"], ["y"])], "lanes", [x], [y], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    runner = open_taps(ir.from_proto(model), ["y"]).unordered
    values = runner({"x": np.array([[[[1, 2]]]], np.float32)})[0].reshape(-1)
    lanes = int(np.argmax(values == 2))
    blocks = np.tile(np.repeat(np.array([1, 2], np.float32), lanes), channels // max(lanes, 1))
    return lanes if isinstance(runner, UnorderedRunner) and np.array_equal(values, blocks) else 0


def _promising(model: ir.Model, providers: Sequence[str]) -> bool:
    """Whether the model may have blocked values, and is small enough to be loaded twice."""
    convolves = any(node.op_type == "Conv" for node in model.graph)
    return convolves and tuple(providers) == DEFAULT_PROVIDERS and tensor_bytes(model) <= MOST_BYTES
