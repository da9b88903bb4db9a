"""The installed onnxruntime, from whichever vendor.

Vendors ship builds of their own (vitisai, windowsml, gpu, openvino), which all import as `onnxruntime`. Installing the
plain one over them would break them, so Detent does not depend on any: whichever is there serves. Rooms import
`onnxruntime` from here, so that a missing, broken or old one is a message about what to install.
"""

from __future__ import annotations

from typing import Any

from detent.errors import UsageError

OLDEST = (1, 20)
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


onnxruntime = import_runtime()
