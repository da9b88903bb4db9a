"""Which operator sets and model-local functions a model needs after its operators changed names."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from detent.convert.operators import MICROSOFT
from detent.emit.functions import CONTRIB, QUARK, VITIS, add_functions

_DOMAINS = (QUARK, VITIS, CONTRIB, MICROSOFT.domain)


def settle_domains(model: ir.Model) -> None:
    """Import the quantization domains that nodes use, and only those; define what is used, drop what is not."""
    add_functions(model)
    common_passes.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    used = {node.domain for node in model.graph.all_nodes()}
    used |= {node.domain for function in model.functions.values() for node in function.all_nodes()}
    for domain in _DOMAINS:
        if domain in used:
            model.opset_imports.setdefault(domain, 1)
        else:
            model.opset_imports.pop(domain, None)


def take_out_functions(model: ir.Model) -> None:
    """Remove the functions of quantization operators, whose nodes stay."""
    for key, function in tuple(model.functions.items()):
        if function.domain in _DOMAINS:
            del model.functions[key]
