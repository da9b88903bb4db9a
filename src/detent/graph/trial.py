"""Let native code see an untrusted model for the first time; run as a script, in a process of its own (see guard.py).

It imports onnxruntime and the compiled part of onnx alone, to start quickly. What it prints is the step that it is at.
A trial ignores exceptions: the process that asked for it meets them again, and turns them into messages. Only how this
process ends counts.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

OUT_OF_MEMORY = 77  # the exit code of a trial that asked for more memory than it may have

PARENT_DEATH_SIGNAL = 1  # Linux's number of what is asked of it
_MEMORY_WORDS = ("bad_alloc", "bad allocation", "Failed to allocate", "Available memory", "std::length_error")
LIGHT = 4096  # bytes; onnx's functions do not need to see larger constants


def compiled_onnx() -> tuple[Any, Any]:
    """Return onnx's message of a model and its C++, without the Python around them: a third of the time to start."""
    found = importlib.util.find_spec("onnx")
    package = types.ModuleType("onnx")
    package.__path__ = list(found.submodule_search_locations or ()) if found is not None else []
    sys.modules["onnx"] = package
    from onnx import onnx_cpp2py_export, onnx_ml_pb2

    return onnx_ml_pb2.ModelProto, onnx_cpp2py_export


def limit(more: int, seconds: float) -> None:
    """Allow this process so many bytes beyond what it has, and seconds of processor time, if the system can do that."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), resource.getrlimit(resource.RLIMIT_CPU)[1]))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        wanted = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (wanted, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (ImportError, OSError, ValueError):
        return  # Windows has neither, macOS no limit of memory


def end_with(parent: int) -> None:
    """Let this process end when the one that asked for the trial is killed, where the system can do that: Linux."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, 9)
        if os.getppid() != parent:  # it was killed before
            os._exit(0)


def light(proto: Any) -> bytes:
    """Return the message with large initializers as inputs."""
    graph = proto.graph
    known = {value.name for value in graph.input}
    large = [tensor for tensor in graph.initializer if len(tensor.raw_data) > LIGHT or tensor.external_data]
    for tensor in large:
        if tensor.name not in known:
            value = graph.input.add(name=tensor.name)
            value.type.tensor_type.elem_type = tensor.data_type
            for size in tensor.dims:
                value.type.tensor_type.shape.dim.add(dim_value=size)
    names = {tensor.name for tensor in large}
    kept = [tensor for tensor in graph.initializer if tensor.name not in names]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    data: bytes = proto.SerializeToString()
    return data


def is_refused(proto: Any, folder: Path) -> bool:
    """Return whether a tensor declares more than its bytes hold, or has them elsewhere than in a file below the folder.

    The asking process refuses such a model without native code, which would open pipes, devices and what lies outside.
    """
    pending = [proto.graph, *proto.functions]
    while pending:
        graph = pending.pop()
        tensors = [*getattr(graph, "initializer", ())]
        for node in graph.node:
            for attribute in node.attribute:
                tensors += [attribute.t] if attribute.HasField("t") else []
                pending += [attribute.g] if attribute.HasField("g") else []
        for tensor in tensors:
            # At most 4 elements share a byte.
            if not tensor.external_data and math.prod(tensor.dims) > 4 * tensor.ByteSize():
                return True
            for entry in tensor.external_data:
                file = Path(os.path.normpath(folder / entry.value))
                if entry.key == "location" and not (file.is_relative_to(folder) and file.is_file()):
                    return True
    return False


def loops(graph: Any) -> bool:
    """Tell whether a graph has a Loop, which may never end."""
    inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return any(node.op_type == "Loop" for node in graph.node) or any(map(loops, inner))


def run_once(session: Any) -> None:
    """Run a model on zeros; an open size is 1."""
    import numpy as np

    kinds = {"tensor(float)": "float32", "tensor(double)": "float64"}
    feeds = {}
    for each in session.get_inputs():
        name = each.type.removeprefix("tensor(").removesuffix(")")
        shape = [size if isinstance(size, int) and size > 0 else 1 for size in each.shape]
        feeds[each.name] = np.zeros(shape, kinds.get(each.type, name))
    session.run(None, feeds)


def attempt(step: str, function: Callable[[], object]) -> None:
    """Name a step, and do it. Exit if it wants too much memory."""
    sys.stdout.write(f"{step}\n")
    sys.stdout.flush()
    try:
        function()
    except MemoryError:
        sys.exit(OUT_OF_MEMORY)
    except Exception as error:  # noqa: BLE001 - of any kind: it is worded where it is met again
        if any(word in str(error) for word in _MEMORY_WORDS):
            sys.exit(OUT_OF_MEMORY)


def main(path: str, opset: int, memory: int, seconds: float) -> None:
    """Convert the opset of a model, infer its shapes and open a session on it; run it where that may never end."""
    import onnxruntime

    ModelProto, native = compiled_onnx()

    limit(memory, seconds)
    proto = ModelProto()
    proto.ParseFromString(Path(path).read_bytes())
    version = max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=opset)
    if is_refused(proto, Path(path).absolute().parent):
        return
    message, endless = light(proto), loops(proto.graph)
    del proto
    if version < opset:
        attempt(f"converting it to opset {opset}", lambda: native.version_converter.convert_version(message, opset))
    attempt("inferring its shapes", lambda: native.shape_inference.infer_shapes(message, False, False, True))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    sessions: list[Any] = []
    attempt(
        "loading it in onnxruntime",
        lambda: sessions.append(onnxruntime.InferenceSession(path, options, providers=providers)),
    )
    if sessions and endless:
        attempt("running it, because it has a Loop", lambda: run_once(sessions[0]))


if __name__ == "__main__":
    import json

    given = json.loads(sys.argv[1])
    sys.path[:] = given["path"]  # as the asking process has it; a script's own folder is not to be searched
    end_with(given["parent"])
    try:
        main(given["model"], given["opset"], given["memory"], given["seconds"])
    except MemoryError:
        sys.exit(OUT_OF_MEMORY)
    except Exception:  # noqa: BLE001 - see above
        sys.exit(0)
