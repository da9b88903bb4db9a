"""PyTorch models in: a module, an exported program (.pt2) or TorchScript (.pt), exported with torch's own exporter.

The exporter calls nodes node_conv2d_7 and values getitem_3. Users know their layers as `layer1.0.conv1`, so nodes are
named after the module that they are from: that of their weight (a BatchNorm may have been folded into the node since),
else the innermost module whose forward computed them, and the operator if it is not alone there.

Ultralytics' YOLO objects are exported by Ultralytics.

torch is never required, and not imported unless the caller has brought something of it.
"""

from __future__ import annotations

import ast
import io
import logging
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

from detent.errors import ModelError, UsageError

EXPORTED, SCRIPTED = (".pt2",), (".pt", ".pth", ".torchscript")
SCOPES = "pkg.torch.onnx.name_scopes"
INSTALL = "`pip install torch onnxscript`"

Shapes = Mapping[str, Sequence[int]]


def is_torch(model: object) -> bool:
    """Tell whether the model is PyTorch's: a module, an exported program, or a file of one."""
    if isinstance(model, str | PathLike):
        return Path(model).suffix.lower() in EXPORTED + SCRIPTED
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module | torch.export.ExportedProgram)


def from_torch(model: Any, example_inputs: Any = None, shapes: Shapes | None = None) -> onnx.ModelProto:
    """Export a PyTorch model to ONNX, with the shapes of its example inputs. The model is not changed.

    Args:
        model: a torch.nn.Module, a torch.export.ExportedProgram, or the path of a .pt2 or TorchScript file.
        example_inputs: what the module is called with: a tensor or array, a tuple of them, or a dict by name. An
            exported program needs none.
        shapes: instead of example inputs, the shape of each input, in order.
    """
    torch = _torch()
    name = Path(model).stem if isinstance(model, str | PathLike) else type(model).__name__
    if isinstance(model, str | PathLike):
        model = _opened(torch, Path(model))
    if isinstance(model, torch.export.ExportedProgram):
        return _named(_exported(torch, model, (), {}, name, _keys_of(model)), name)
    if _is_ultralytics(model):
        return _exported_by_ultralytics(model, example_inputs, shapes)
    positional, named = _arguments(torch, example_inputs, shapes, name)
    if isinstance(model, torch.jit.ScriptModule):
        return _named(_exported(torch, model, positional, {}, name), name)
    if any(each.is_meta for each in (*model.parameters(), *model.buffers())):
        raise ModelError(f"{name} has no weights (its device is 'meta'): load them before it is quantized.")
    # A copy, since the exporter wants it on the CPU and in eval mode, and the caller's own must stay as it is.
    copied = deepcopy(model).cpu().eval()
    keys = _called(torch, copied, positional, named, name)
    return _named(_exported(torch, copied, positional, named, name, keys), name)


def _called(torch: Any, module: Any, positional: Any, named: Any, name: str) -> list[str] | None:
    """Call the module once: an error here is about the inputs or the outputs, and none of the exporter's.

    Return the keys of a dict or the fields of a named tuple of tensors: they are what its outputs are called.
    """
    try:
        with torch.no_grad():
            found = module(*positional, **named)
    except Exception as error:  # the user's own code runs here and may raise anything
        given = ", ".join(f"{tuple(each.shape)}" for each in (*positional, *named.values()))
        raise UsageError(
            f"{name} cannot be called with example inputs of shape {given}: {_first_line(error)} Give example_inputs "
            "as its forward() takes them: a tensor, a tuple, or a dict by name."
        ) from error
    if not isinstance(found, torch.Tensor | tuple | list | Mapping):
        raise ModelError(
            f"{name} returns a {type(found).__name__}, which torch cannot export. Wrap it in a module that returns a "
            "tensor, a tuple or a dict of tensors."
        )
    keys = list(found) if isinstance(found, Mapping) else getattr(found, "_fields", None)
    values = found.values() if isinstance(found, Mapping) else found
    if keys is None or not all(isinstance(each, torch.Tensor) for each in values):
        return None
    return [str(key) for key in keys]


def _keys_of(program: Any) -> list[str] | None:
    """Return the keys, if an exported program returns a dict of tensors."""
    returned = program.call_spec.out_spec
    flat = returned.type is dict and returned.num_children == returned.num_leaves
    return [str(key) for key in returned.context] if flat else None


def _torch() -> Any:
    try:
        import onnxscript  # noqa: F401  (what torch exports with)
        import torch
    except ImportError as error:
        raise UsageError(
            f"A PyTorch model needs torch and onnxscript, and {error.name} is missing: {INSTALL}."
        ) from error
    return torch


def _opened(torch: Any, path: Path) -> Any:
    if not path.is_file():
        raise ModelError(f"There is no file {path}.")
    try:
        if path.suffix.lower() in EXPORTED:
            return torch.export.load(path)
        return torch.jit.load(path, map_location="cpu")
    except (RuntimeError, ValueError, OSError, KeyError, EOFError, AssertionError, TypeError) as error:
        # Pickled modules are not opened: unpickling runs whatever code the file names.
        reason = _first_line(error).partition(". ")[0].removesuffix(".")
        raise ModelError(
            f"{path} is neither an exported program nor TorchScript ({reason}). A pickled module or a state_dict "
            "cannot be opened alone: load it in Python and give the module to detent.quantize(module, ..., "
            "example_inputs=...), save it with torch.export.save, or export it to ONNX with the tool that made it."
        ) from error


def _arguments(torch: Any, inputs: Any, shapes: Shapes | None, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if inputs is None and shapes:
        return tuple(torch.zeros(tuple(shape)) for shape in shapes.values()), {}
    if inputs is None:
        raise UsageError(
            f"{name} does not say the shapes of its inputs. Give example_inputs=torch.zeros(1, 3, 224, 224), a tuple, "
            "or a dict by name; on the command line, --fix-shape input=1,3,224,224."
        )
    if isinstance(inputs, Mapping):
        return (), {key: _tensor(torch, value) for key, value in inputs.items()}
    return tuple(_tensor(torch, each) for each in (inputs if isinstance(inputs, list | tuple) else (inputs,))), {}


def _tensor(torch: Any, value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else torch.as_tensor(value)


def _exported(
    torch: Any, model: Any, positional: Any, named: Any, name: str, outputs: list[str] | None = None
) -> onnx.ModelProto:
    try:
        with _quiet():
            if isinstance(model, torch.jit.ScriptModule):  # the newer exporter takes Python code only
                file = io.BytesIO()
                torch.onnx.export(model, positional, file, dynamo=False, verbose=False)
                return onnx.load_from_string(file.getvalue())
            program = torch.onnx.export(
                model, positional, kwargs=named or None, output_names=outputs, dynamo=True, verbose=False
            )
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # the outer messages list steps; the first cause says what is wrong
            cause = cause.__cause__
        raise ModelError(
            f"torch cannot export {name}: {_first_line(cause)}{_user_code(cause)} Control flow that depends on data, "
            "and code that leaves torch, cannot be exported: see torch.export's documentation, or give the part of "
            "the model that has none."
        ) from error
    proto: onnx.ModelProto = program.model_proto
    return proto


def _is_ultralytics(model: Any) -> bool:
    """Tell whether this is the YOLO object of Ultralytics: a handle around the module, which cannot be exported."""
    return type(model).__module__.partition(".")[0] == "ultralytics" and callable(getattr(model, "export", None))


def _exported_by_ultralytics(model: Any, inputs: Any, shapes: Shapes | None) -> onnx.ModelProto:
    """Let Ultralytics export: its file has one output, and metadata that say how images are prepared."""
    first = inputs[0] if isinstance(inputs, list | tuple) else inputs
    shape = next(iter(shapes.values())) if shapes else getattr(first, "shape", (1, 3, 640, 640))
    copied = deepcopy(model)
    with TemporaryDirectory() as folder:
        # The exporter writes beside the file that the weights are from.
        copied.model.pt_path = str(Path(folder, f"{Path(str(model.model_name)).stem}.pt"))
        with _quiet():  # it would tell of a file in that folder
            path = copied.export(
                format="onnx", imgsz=list(shape[-2:]), batch=1, simplify=False, device="cpu", verbose=False
            )
        return onnx.load(path)


def _first_line(error: BaseException) -> str:
    line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return line if line.endswith((".", "!", "?")) else f"{line}."


def _user_code(error: BaseException) -> str:
    """Return the user's line that the exporter could not follow, where its message ends with it."""
    found = re.search(r'The following call raised this error:\n\s*File "(.+)", line (\d+).*\n\s*(.+)', str(error))
    return f" It is about {found[1]}, line {found[2]}: `{found[3]}`." if found else ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter logs, warns of and prints, which is of its own working, off the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # its loggers have levels of their own
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _named(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Name nodes after their modules, and inner values after their nodes."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    wanted = [_module_of(node, weights) for node in proto.graph.node]
    alone = Counter(wanted)
    kept = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    renamed: dict[str, str] = {}
    used: Counter[str] = Counter()
    for node, module in zip(proto.graph.node, wanted, strict=True):
        base = module if module and alone[module] == 1 else f"{module}/{node.op_type}".lstrip("/")
        used[base] += 1
        node.name = base if used[base] == 1 else f"{base}_{used[base] - 1}"
        for at, output in enumerate(node.output):
            if output and output not in kept:
                renamed[output] = f"{node.name}/output" if at == 0 else f"{node.name}/output_{at}"
    _rename(proto.graph, renamed)
    proto.graph.name = proto.graph.name if proto.graph.name not in ("", "main_graph") else name
    return proto


def _rename(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    """Give values other names, also where bodies of If and Loop use them."""
    for node in graph.node:
        for names in (node.input, node.output):
            for at, each in enumerate(names):
                names[at] = renamed.get(each, each)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                _rename(body, renamed)
    for value in graph.value_info:
        value.name = renamed.get(value.name, value.name)


def _module_of(node: onnx.NodeProto, weights: set[str]) -> str:
    for value in node.input:
        if value in weights and value.endswith(".weight"):
            return str(value).removesuffix(".weight")
    scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")
    try:
        path = ast.literal_eval(scopes)[:-1] if scopes else []
    except (ValueError, SyntaxError):
        path = []
    return f"{path[-1]}" if path else ""
