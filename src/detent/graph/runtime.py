"""The installed onnxruntime, from whichever vendor, and the memory that its sessions compute in.

Vendors ship builds of their own (vitisai, windowsml, gpu, openvino), which all import as `onnxruntime`. Installing the
plain one over them would break them, so Detent does not depend on any: whichever is there serves. Rooms import
`onnxruntime` from here, so that a missing, broken or old one is a message about what to install, when it is needed.

All sessions compute in one arena, which can be given back. An arena of its own keeps the most that its session ever
held, until the session ends, and grows by doubling. There are several sessions at a time and some take turns, so
together they kept several times what any of them needs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx

from detent.errors import UsageError

OLDEST = (1, 20)
GROWTH = 1 << 20  # bytes by which the arena grows at least; beyond that, by as many as are asked for
INSTALL = (
    "Install one: `pip install onnxruntime`, or your vendor's build (onnxruntime-vitisai, onnxruntime-windowsml, "
    "onnxruntime-gpu ...), but not two of them into one environment"
)


def import_runtime() -> Any:
    """Return the module. Raise UsageError if there is none, if it does not load, or if it is too old."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise UsageError(f"The installed onnxruntime needs {error.name}, which is missing. {INSTALL}.") from error
        raise UsageError(f"Detent computes with onnxruntime, and none is installed. {INSTALL}.") from error
    except ImportError as error:
        raise UsageError(f"The installed onnxruntime does not load: {error}. {INSTALL}.") from error
    version = getattr(onnxruntime, "__version__", None)
    if version is None:  # the folder that is left of an installation
        raise UsageError(f"The installed onnxruntime is incomplete. Uninstall it. {INSTALL}.")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UsageError(f"onnxruntime {version} is too old: Detent needs {oldest} or newer. {INSTALL}.")
    return onnxruntime


class _WhenNeeded:
    """The module, imported and checked when something of it is first asked for: lists and errors do without."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_checked(), name)


_checked = cache(import_runtime)
onnxruntime: Any = _WhenNeeded()


@cache
def runtime_errors() -> tuple[type[Exception], ...]:
    """Return what onnxruntime raises: now and then Python's own, and a dozen of its own with no common base."""
    found = vars(onnxruntime.capi.onnxruntime_pybind11_state).values()
    own = (entry for entry in found if isinstance(entry, type) and issubclass(entry, Exception))
    return UnicodeDecodeError, RuntimeError, *own  # the first, of its own message, which quotes a name in the model


@cache
def share_arena() -> bool:
    """Let sessions take their memory from one arena; return whether they can, with "session.use_env_allocators".

    They cannot if the process has given onnxruntime an allocator for all sessions already, which is not ours to use.
    """
    kind, where = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    as_requested = {"max_mem": 0, "arena_extend_strategy": 1, "initial_chunk_size_bytes": GROWTH}
    grown = {"initial_growth_chunk_size_bytes": GROWTH, "max_dead_bytes_per_chunk": GROWTH}
    try:
        onnxruntime.create_and_register_allocator(
            onnxruntime.OrtMemoryInfo("Cpu", kind, 0, where), onnxruntime.OrtArenaCfg({**as_requested, **grown})
        )
    except (RuntimeError, onnxruntime.capi.onnxruntime_pybind11_state.Fail):
        return False
    return True


def shrink_arena() -> None:
    """Give the parts of the arena that nobody uses back."""
    if share_arena():
        session, options, binding = _shrinking()
        session.run_with_iobinding(binding, options)


@cache
def _shrinking() -> tuple[Any, Any, Any]:
    """Return a session after whose run onnxruntime gives memory back; it computes in memory of its own."""
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "shrink", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.use_env_allocators", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32)))
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32)))
    run = onnxruntime.RunOptions()
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return session, run, binding
