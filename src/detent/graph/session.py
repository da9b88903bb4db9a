"""Running a model in onnxruntime, with any of its values fetched, and errors that a user can act on."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from detent.errors import DataError, ModelError, UsageError, listed, nearest
from detent.graph.message import RUNTIME_DOMAINS
from detent.graph.runtime import onnxruntime, runtime_errors, share_arena, shrink_arena
from detent.graph.save import PROTOBUF_LIMIT, serialize, tensor_bytes

DEFAULT_PROVIDERS = ("CPUExecutionProvider",)

Feeds = Mapping[str, npt.NDArray[Any]]

# Bytes that memory must have grown by since the last look for what nobody refers to, which takes a tenth of a second
# and, in a process with many objects, several.
WORTH_COLLECTING = 64 << 20

LARGE_MODEL = 32 << 20
_LARGE_MODEL = Lock()

HUGE_MODEL = 256 << 20
"""Bytes of weights from which on no copy of them is kept that only saves time."""

_C_LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None

BY_REFERENCE = 1 << 16
"""Bytes of a tensor from which on sessions read it where it is."""

_REFERRED = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT8, ir.DataType.UINT8)

_TYPES = {
    "tensor(float)": ir.DataType.FLOAT,
    "tensor(int64)": ir.DataType.INT64,
    "tensor(int32)": ir.DataType.INT32,
    "tensor(bool)": ir.DataType.BOOL,
}

EXPERIMENTAL = ("SimplifiedLayerNormalization",)
"""What onnxruntime has in the standard domain, and ONNX has not."""

CONTAINER = Path("/sys/fs/cgroup")
"""Where Linux says what a container may use; the second version of that interface, and of memory the first as well."""


def usable_cores() -> int:
    """Return the cores that this process may use, and no more than the time that its container has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _container_says("cpu.max").partition(" ")
    if quota.isdecimal() and period.isdecimal() and int(period):
        return max(1, min(cores, -(-int(quota) // int(period))))
    return cores


def memory_limit() -> int | None:
    """Return the bytes that the container may use; None if there is no limit."""
    limits = [_container_says(name) for name in ("memory.max", "memory/memory.limit_in_bytes")]
    return min((int(limit) for limit in limits if limit.isdecimal()), default=None)


def _container_says(name: str) -> str:
    try:
        return (CONTAINER / name).read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


_resident_after: list[int] = [0]  # bytes in memory after the last look


def return_memory(*, collect: bool = True) -> None:
    """Give free memory back to the system if there is more of it in use than last time.

    Graphs are circles that wait for Python's collector, and what sessions and arrays left is kept by onnxruntime and by
    the allocator of Linux. Elsewhere it does nothing.
    """
    trim = getattr(_C_LIBRARY, "malloc_trim", None)
    if trim is None:
        return
    resident = _resident()
    if resident < _resident_after[0] + WORTH_COLLECTING:
        _resident_after[0] = min(resident, _resident_after[0])
        return
    if collect:
        gc.collect()
    shrink_arena()
    trim(0)
    _resident_after[0] = _resident()


def _resident() -> int:
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def session_options() -> onnxruntime.SessionOptions:
    """Return options of a quiet session with one thread to a run."""
    options = onnxruntime.SessionOptions()
    if share_arena():
        options.add_session_config_entry("session.use_env_allocators", "1")
    options.log_severity_level = 4  # what matters comes back as an exception
    options.intra_op_num_threads = 1
    # Else weights go to an arena that doubles its size each time it is full.
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    return options


def segment_options() -> onnxruntime.SessionOptions:
    """Return options for one of the many sessions that a model is cut into.

    Each arena would keep the most that its session ever held: together all values of a model, several times over.
    """
    options = session_options()
    options.enable_cpu_mem_arena = False
    return options


def exact_options() -> onnxruntime.SessionOptions:
    """Turn integer kernels off as well: they saturate on some CPUs, and then compute something other than the model."""
    options = session_options()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def open_session(
    source: bytes | str, options: onnxruntime.SessionOptions, providers: Sequence[str] = DEFAULT_PROVIDERS
) -> onnxruntime.InferenceSession:
    """Return a session on these execution providers. What they cannot compute, onnxruntime computes on the CPU."""
    check_providers(providers)
    named = [_provider(each) for each in providers]
    try:
        # Without the fallback: it would print to the terminal and go on with the CPU alone.
        session = onnxruntime.InferenceSession(source, options, providers=named, enable_fallback=0)
    except runtime_errors() as error:
        raise ModelError(f"onnxruntime cannot load the model: {first_line(str(error))}") from error
    missing = [name for name, _ in named if name not in session.get_providers()]
    if missing:
        raise UsageError(
            f"onnxruntime could not start the provider {missing[0]}: its driver or a library that it needs is not "
            "installed. Install it, or calibrate on CPUExecutionProvider."
        )
    return session


def _provider(text: str) -> tuple[str, dict[str, str]]:
    """Return the name and the options of a provider that is written NAME or NAME:KEY=VALUE,KEY=VALUE."""
    name, _, given = text.partition(":")
    pairs = [pair.partition("=") for pair in given.split(",") if pair]
    for key, equals, value in pairs:
        if not key or not equals:
            raise UsageError(f"Provider {name} has the option '{key}{equals}{value}': expected KEY=VALUE.")
    return name, {key: value for key, _, value in pairs}


def check_providers(names: Sequence[str]) -> None:
    """Raise UsageError, listing the available ones, for an execution provider that is not in this onnxruntime."""
    available = onnxruntime.get_available_providers()
    for name, _ in map(_provider, names):
        if name not in available:
            raise UsageError(
                f"This onnxruntime has no provider '{name}'.{nearest(name, available)} It has: {', '.join(available)}."
            )
    if not names:
        raise UsageError(f"No execution provider is given. Give one or more of: {', '.join(available)}.")


_fallbacks: list[str] = []  # of this process, as a log is: what fails is the machine, or the form of a model


def tell_fallback(why: str) -> None:
    """Keep what `take_fallbacks` returns: a model is computed in another form than it would be elsewhere."""
    _fallbacks.append(
        f"{why}, so values were summed up in another order: the file may differ in single codes from others."
    )


def take_fallbacks() -> list[str]:
    """Return what to tell if a model had to be computed in another form since this was last asked."""
    told = _fallbacks[:1]
    _fallbacks.clear()
    return told


def run_session(
    session: onnxruntime.InferenceSession, names: Sequence[str], feeds: Feeds, origin: str
) -> list[npt.NDArray[Any]]:
    """Return outputs of a session. Raise DataError, which names the sample, if it cannot compute them."""
    try:
        results: list[npt.NDArray[Any]] = session.run(list(names), dict(feeds))
    except runtime_errors() as error:
        said = first_line(str(error))
        raise DataError(f"onnxruntime could not run the model on {origin}: {said} {_advice(said)}") from error
    return [as_array(name, result) for name, result in zip(names, results, strict=True)]


_PAST_THE_TABLE = re.compile(r"indices element out of data bounds, idx=-?\d+ .* \[-\d+,(\d+)\]")


def _advice(said: str) -> str:
    """Return what to look at after an error of onnxruntime."""
    found = _PAST_THE_TABLE.search(said)
    if found is None:
        return "Check the shape of the input (for images: --size)."
    return (
        f"The table that is read there has {int(found[1]) + 1} entries. If they are of tokens, the sample's ids are of "
        "another vocabulary: use the tokenizer of this model. If they are of positions, the sample is longer than the "
        "model can read: truncate it."
    )


def as_array(name: str, result: Any) -> npt.NDArray[Any]:
    """Return an output as an array; of a sequence of tensors, one row of all its numbers."""
    if hasattr(result, "dtype"):
        return np.asarray(result)
    if isinstance(result, list) and result and all(isinstance(each, np.ndarray) for each in result):
        return np.concatenate([each.reshape(1, -1) for each in result], axis=1)
    raise ModelError(
        f"Output '{name}' is a map, or a sequence without tensors, which cannot be compared. Export the model with "
        "tensors for outputs."
    )


class Runner:
    """A model that is ready to run and fetches `outputs` (by default the model's own).

    A run takes one thread, that of the caller; any number of threads may run it at the same time. That uses the cores
    better than threads inside one inference do, and what it computes does not depend on their number.
    """

    def __init__(
        self,
        model: ir.Model,
        outputs: Sequence[str] | None = None,
        *,
        exact: bool = False,
        providers: Sequence[str] = DEFAULT_PROVIDERS,
        optimized: Path | None = None,
    ) -> None:
        """Load `model`. `exact`: no integer kernels.

        `providers` are execution providers in the order of preference. `optimized` is where to write the model as
        onnxruntime rewrote it for this CPU, with its large weights in a file beside it.
        """
        options = exact_options() if exact else session_options()
        huge = _bytes_as_floats(model) >= HUGE_MODEL
        if huge:
            # Weights would be copied into the order in which products read them.
            options.add_session_config_entry("session.disable_prepacking", "1")
        if optimized is not None:
            options.optimized_model_filepath = str(optimized)
            # Beside it, because within the file each weight would be in memory several times while it is written.
            entry = "session.optimized_model_external_initializers"
            options.add_session_config_entry(f"{entry}_file_name", f"{optimized.name}.data")
            options.add_session_config_entry(f"{entry}_min_size_in_bytes", str(BY_REFERENCE))
        self.outputs = [str(value.name) for value in model.graph.outputs] if outputs is None else list(outputs)
        self._exact, self._providers, self._lock = exact, providers, Lock()
        self._weights = _large_weights(model)
        self._shared = _shareable(model, self._weights) if huge else set()
        # Two large models at a time would take twice the memory, most of which is needed only to load them.
        turn = _LARGE_MODEL if tensor_bytes(model) >= LARGE_MODEL else nullcontext()
        with turn, _fetchable(model, self.outputs), _loadable(model, self._weights) as source:
            self._in_use = with_weights(options, self._weights, self._shared)
            self._session = open_session(source, options, providers)
            # Until a run has shown that onnxruntime's optimizer left the model whole. A temporary file is gone by then.
            self._source = source if isinstance(source, bytes) else None
            if turn is _LARGE_MODEL:
                return_memory(collect=False)

    def __call__(
        self, feeds: Feeds, origin: str = "the given input", outputs: Sequence[str] | None = None
    ) -> list[npt.NDArray[Any]]:
        """Return the outputs (or some of them) for one set of inputs. `origin` names the sample in an error."""
        session = self._session
        try:
            results = run_session(session, outputs or self.outputs, feeds, origin)
        except DataError as error:
            if not self._unoptimized(session):
                raise
            results = Runner.__call__(self, feeds, origin, outputs)
            tell_fallback(f"onnxruntime failed on its optimized form of the model ({error})")
        self._source = None
        return results

    def parts(
        self, feeds: Feeds, origin: str = "the given input", outputs: Sequence[str] | None = None
    ) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield the outputs by name, some after others: what was yielded before may be given up by then."""
        yield dict(zip(outputs or self.outputs, self(feeds, origin, outputs), strict=True))

    @property
    def types(self) -> dict[str, tuple[ir.DataType, list[int | str | None]]]:
        """The type and shape of each output that is a tensor, as onnxruntime infers them, which knows its operators."""
        found = {each.name: (_TYPES.get(each.type), each.shape) for each in self._session.get_outputs()}
        return {name: (dtype, shape) for name, (dtype, shape) in found.items() if dtype is not None}

    def _unoptimized(self, failed: onnxruntime.InferenceSession) -> bool:
        """Replace a session whose first run failed by one of the model as it is; return whether there is another one.

        onnxruntime lays convolutions out in blocks of channels, and for some models, where values between them are
        fetched, it leaves nodes that read one layout as the other.
        """
        with self._lock:  # several threads may have failed at once
            if self._session is failed and self._source is not None:
                options = exact_options() if self._exact else session_options()
                options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
                self._in_use = with_weights(options, self._weights, self._shared)
                self._session, self._source = open_session(self._source, options, self._providers), None
            return self._session is not failed


def _bytes_as_floats(model: ir.Model) -> int:
    """Return the bytes of weights as they are computed with: codes become floats when a session is made."""
    tensors = (value.const_value for value in model.graph.initializers.values())
    return sum(4 * tensor.size for tensor in tensors if tensor is not None)


def foreign_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes whose operators onnxruntime cannot know."""
    functions = {(function.domain, function.name) for function in model.functions.values()}
    for node in model.graph.all_nodes():
        standard = node.domain in ("", "ai.onnx")
        known = node.domain in RUNTIME_DOMAINS or (node.domain, node.op_type) in functions
        if not (known or (standard and (onnx.defs.has(node.op_type) or node.op_type in EXPERIMENTAL))):
            yield node


def operator_of(node: ir.Node) -> str:
    """Return the operator of a node as messages name it."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def check_operators(model: ir.Model) -> None:
    """Raise ModelError, naming the first node, where operators are such as onnxruntime cannot know."""
    if not (foreign := list(foreign_nodes(model))):
        return
    node, operators = foreign[0], list(dict.fromkeys(map(operator_of, foreign)))
    computed = [f"--at '{value.name}'" for value in node.inputs if value is not None and value.producer() is not None]
    how = f": `detent split MODEL BODY TAIL {' '.join(computed)}`" if computed and node.graph is model.graph else ""
    more = f", nor {listed(operators[1:], 5)}" if operators[1:] else ""
    if any(operator.startswith("TFL_") for operator in operators):
        more += ". TFL_... is what tf2onnx could not convert of a .tflite file: convert the SavedModel that it is from"
    raise ModelError(
        f"Node '{node.name}' uses the operator {operators[0]}, which onnxruntime does not know{more}. "
        f"Replace it, or cut the model before it{how}."
    )


# What onnxruntime says, and how that reads better.
_REWORDED = (
    (r"^'utf-8' codec can't decode .*", "its error message cannot be decoded. A text in the model is not UTF-8"),
    (r"\[ONNXRuntimeError\] : (?:\d+ : \w+ : )?", ""),
    (r"^Non-zero .* running (\S+) node\. Name:'(.*?)' Status Message: ", r"node '\2' (\1): "),
    (r"/\S+\.(?:cc|h):\d+ [^()]*\([^()]*\) (?:const )?", ""),
    (
        r"^.*Opset (\d+) is under development.* till opset (\d+).*$",
        r"it has opset \1, and this onnxruntime knows up to \2. Install a newer one, or export the model with opset \2",
    ),
    (
        r"^.*Unsupported model IR version: (\d+), max supported IR version: (\d+).*$",
        r"it has IR version \1, and this onnxruntime knows up to \2. Install a newer one, or save the model with an "
        "older onnx",
    ),
    (
        r"^.*?(?:Fatal error: |No Op registered for )(\S+?)(?:\(-?\d+\) is not a registered.*| with domain_version.*)$",
        r"it does not know the operator \1. Replace it, or cut the model before it",
    ),
    (
        r"^.*Could not find an implementation for (\w+)\((\d+)\) node with name '(.*)'.*$",
        r"it cannot compute node '\3' (\1 of opset \2) in its data type, or no longer. Export the model in float32, "
        "with opset 17 or newer",
    ),
)


def first_line(message: str) -> str:
    """Return the line of onnxruntime's message that says something; codes, places in its source and a stack go."""
    line = message.strip().splitlines()[0]
    for pattern, words in _REWORDED:
        line = re.sub(pattern, words, line)
    return line if line.endswith((".", "!", "?")) else f"{line}."


@contextmanager
def _fetchable(model: ir.Model, names: Sequence[str]) -> Iterator[None]:
    """Make the named values graph outputs within the block."""
    present = {value.name for value in model.graph.outputs}
    wanted = {name for name in names if name not in present}
    values = [value for node in model.graph for value in node.outputs if value.name in wanted]
    before = list(model.graph.outputs)
    model.graph.outputs.extend(values)
    try:
        yield
    finally:
        model.graph.outputs.clear()
        model.graph.outputs.extend(before)


def _large_weights(model: ir.Model) -> dict[str, npt.NDArray[Any]]:
    """Return the initializers that sessions read where they are, by name.

    Within a message each would be in memory four times while a session is made: as a tensor, in the message, in its
    bytes, and in what onnxruntime makes of them.
    """
    return {
        name: np.ascontiguousarray(value.const_value.numpy())
        for name, value in model.graph.initializers.items()
        if isinstance(value.const_value, ir.Tensor | ir.ExternalTensor)
        and value.const_value.nbytes >= BY_REFERENCE
        and value.const_value.dtype in _REFERRED
    }


_WEIGHT_INPUTS = (("Gemm", 1), ("MatMul", 1), ("Gather", 0))


def read_as_they_are(nodes: Iterable[tuple[str, Sequence[str]]]) -> set[str]:
    """Return the names that onnxruntime hands to kernels as they are, however it rewrites the graph.

    `nodes` are operators with the names of their inputs. The optimizer transposes some constants and keeps their names,
    those of Add and Mul for example. It does not do so to the weights of these operators.
    """
    uses = [(name, (operator, at) in _WEIGHT_INPUTS) for operator, names in nodes for at, name in enumerate(names)]
    return {name for name, as_weight in uses if as_weight} - {name for name, as_weight in uses if not as_weight}


def _shareable(model: ir.Model, names: Collection[str]) -> set[str]:
    """Return those of the initializers that sessions can share; none that a graph inside a node may read."""
    if len(list(model.graphs())) > 1:
        return set()
    nodes = (
        (node.op_type, ["" if value is None else str(value.name) for value in node.inputs]) for node in model.graph
    )
    return read_as_they_are(nodes) & set(names)


def with_weights(
    options: onnxruntime.SessionOptions, weights: Mapping[str, npt.NDArray[Any]], shared: Collection[str] = ()
) -> list[onnxruntime.OrtValue]:
    """Let a session read these initializers from memory; return what has to live for as long as the session does.

    The session makes a copy of each, but for the `shared` ones, which it takes for what the initializers of these names
    are when all rewrites of the graph are done.
    """
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in weights.items()}
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    for name in shared:
        options.add_initializer(name, values[name])
    return list(values.values())


def initializers(
    arrays: Mapping[str, npt.NDArray[Any]],
) -> tuple[list[onnx.TensorProto], dict[str, npt.NDArray[np.float32]]]:
    """Return arrays as initializers for a message, and those of them that it only names: see `with_weights`."""
    large = {
        name: np.ascontiguousarray(array)
        for name, array in arrays.items()
        if array.dtype == np.float32 and array.nbytes >= BY_REFERENCE
    }
    tensors = []
    for name, array in arrays.items():
        if name not in large:
            tensors.append(onnx.numpy_helper.from_array(array, name))
            continue
        tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=array.shape)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "in-memory"), ("offset", "0"), ("length", str(array.nbytes))):
            tensor.external_data.add(key=key, value=value)
        tensors.append(tensor)
    return tensors, large


@contextmanager
def _loadable(model: ir.Model, weights: Mapping[str, npt.NDArray[Any]]) -> Iterator[bytes | str]:
    """Give the model as onnxruntime takes it: bytes, or past 2 GB a temporary file with its weights beside it.

    Of `weights`, only the names and shapes.
    """
    if tensor_bytes(model) - sum(array.nbytes for array in weights.values()) <= PROTOBUF_LIMIT:
        _take_in(model, weights)
        with _named_only(model, weights):
            source = serialize(ir.to_proto(model))
        yield source
        return
    # On Windows a session keeps the weights mapped, and a mapped file cannot be removed.
    with tempfile.TemporaryDirectory(prefix="detent-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.onnx"
        ir.save(model, path, external_data="model.onnx.data")
        yield str(path)


def _take_in(model: ir.Model, but: Collection[str]) -> None:
    """Read what lies in other files. Bytes have no folder: onnxruntime would look for them in that of the process."""
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if isinstance(value.const_value, ir.ExternalTensor) and (graph is not model.graph or name not in but):
                value.const_value = ir.Tensor(value.const_value.numpy().copy(), name=name)


@contextmanager
def _named_only(model: ir.Model, names: Collection[str]) -> Iterator[None]:
    """Let initializers stand for tensors in another file, which is never read, within the block."""
    values = [model.graph.initializers[name] for name in names]
    before = [value.const_value for value in values]
    for value, tensor in zip(values, before, strict=True):
        assert tensor is not None, f"'{value.name}' has a value"
        value.const_value = ir.ExternalTensor(
            "in-memory", 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=str(value.name)
        )
    try:
        yield
    finally:
        for value, tensor in zip(values, before, strict=True):
            value.const_value = tensor
