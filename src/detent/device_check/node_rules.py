"""Rules on single nodes: operators that the device has, and attributes and neighbours that it asks of them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from detent.device_check.network import Subject
from detent.graph.session import RUNTIME_DOMAINS
from detent.graph.values import input_at, is_standard
from detent.plan.operators import OPERATORS, operator_of
from detent.prepare.base import int_attribute
from detent.results.checked import MODEL, Finding

WRITTEN_OUT = ("kernel_shape", "strides", "pads", "dilations", "group")
LEAKY_SLOPE = 26 / 256
_BODIES = ("If", "Loop", "Scan")
_ON_CODES = ("DynamicQuantizeLinear", "ConvInteger", "MatMulInteger")
_LAYERS_BEFORE_LEAKY = ("Conv", "ConvTranspose", "Gemm", "Add")

_REPLACEMENTS = {
    "Sigmoid": "`detent quantize --target npu-xint8` writes HardSigmoid, the sigmoid of this device",
    "Split": "`detent quantize` writes Slices, where the sizes are constant",
    "ReduceMean": "`detent quantize` writes a GlobalAveragePool if the model averages axes 2 and 3 with keepdims=1",
    "Gelu": "`detent quantize --set without=fuse_gelu` leaves it in the operators that it is made of",
    "LayerNormalization": "`detent quantize --set without=fuse_layer_norm`, if the model was exported without it",
}


def check_nodes(subject: Subject) -> Iterator[Finding]:
    """Everything that a node alone, and its neighbours, show."""
    for node in subject.nodes:
        found = list(_check_operator(node, subject))
        yield from found
        if not any(finding.level == "error" for finding in found) and subject.device.accelerated:
            yield from _check_attributes(node)
            yield from _check_pool(node, subject)
            yield from _check_leaky(node, subject)
            yield from _check_codes(node, subject)
    if subject.device.accelerated:
        yield from _check_size(subject)


def _check_operator(node: ir.Node, subject: Subject) -> Iterator[Finding]:
    device, op_type = subject.device, node.op_type
    if not device.accelerated:
        yield from _check_runtime(node, subject)
        return
    if str(node.name) in subject.written:
        yield from _check_written(node, subject)
        return
    if op_type in _BODIES and node.domain == "":
        yield _error(
            node,
            "it chooses what to compute at run time",
            "control flow stays on the CPU, with all inside",
            "export the model without it, or leave it at the end: `--exclude NODE`",
        )
        return
    if node.domain != "":
        yield _error(
            node,
            f"it is an operator of domain {node.domain}",
            f"{device.name} has operators of ONNX only",
            "leave it on the CPU (`detent quantize --exclude NODE`), or export the model with operators of ONNX",
        )
        return
    declines = operator_of(node).declines if device.shifts and op_type == "HardSigmoid" else None
    other_form = declines(node) if declines is not None else None
    if other_form is not None:
        yield _error(
            node,
            "the device has this operator in another form",
            other_form,
            "let it run on the CPU (`detent quantize --exclude NODE`), or export it as Sigmoid, which becomes the one "
            "that the device has",
        )
        return
    if op_type in device.operators:
        return
    if op_type in device.likely:
        yield Finding(
            "note",
            str(node.name),
            op_type,
            f"{op_type} is not in the list for {device.name}, but expected",
            device.likely[op_type],
            "",
        )
        return
    if op_type in device.refused:
        why = device.refused[op_type]
    elif op_type in _ON_CODES:
        why = "scales that are found at run time are for CPUs"
    else:
        why = f"{op_type} is not among the operators that are published for {device.name}"
    yield _error(node, "the device does not have this operator", why, _fix_operator(node, subject))


def _check_written(node: ir.Node, subject: Subject) -> Iterator[Finding]:
    """An operator on codes, which devices know few of."""
    written, device = subject.written[str(node.name)], subject.device
    if written.domain == "" and written.name in device.operators:
        return
    yield _error(
        node,
        f"it is written as {written.name}, an operator on codes",
        f"{device.name} is given {node.op_type} between Q/DQ pairs",
        f"`detent quantize --recipe {device.recipe} --format qdq` of the float model",
    )


def _fix_operator(node: ir.Node, subject: Subject) -> str:
    if node.op_type in _ON_CODES:
        return f"quantize the float model with `detent quantize --recipe {subject.device.recipe} --calib DATA`"
    if node.op_type in _REPLACEMENTS:
        return _REPLACEMENTS[node.op_type]
    return "let it run on the CPU (`detent quantize --exclude NODE`), or replace it before the export"


def _check_runtime(node: ir.Node, subject: Subject) -> Iterator[Finding]:
    """What onnxruntime on a CPU can know."""
    functions = {(function.domain, function.name) for function in subject.model.functions.values()}
    standard = node.domain in ("", "ai.onnx")
    known = node.domain in RUNTIME_DOMAINS or (node.domain, node.op_type) in functions
    if known or (standard and onnx.defs.has(node.op_type)):
        return
    operator = node.op_type if standard else f"{node.domain}::{node.op_type}"
    yield _error(
        node,
        f"onnxruntime does not know {operator}",
        "no function in the file defines it",
        "`detent convert MODEL OUTPUT --to qdq` (of quantizing operators), or load the library that has it",
    )


def _check_attributes(node: ir.Node) -> Iterator[Finding]:
    if not is_standard(node, "Conv", "ConvTranspose"):
        return
    missing = [name for name in WRITTEN_OUT if name not in node.attributes]
    automatic = (node.attributes.get_string("auto_pad", "NOTSET") or "NOTSET") != "NOTSET"
    if missing or automatic:
        what = f"it relies on the default of {', '.join(missing)}" if missing else "its padding is automatic"
        yield _error(
            node,
            what,
            "the device's compiler stops where these are not written out",
            "`detent quantize` writes them out",
        )


def _check_pool(node: ir.Node, subject: Subject) -> Iterator[Finding]:
    if subject.device.shifts and is_standard(node, "MaxPool", "AveragePool") and int_attribute(node, "ceil_mode", 0):
        yield Finding(
            "warning",
            str(node.name),
            node.op_type,
            "it rounds its output size up (ceil_mode)",
            "the device's compiler has been seen to compute another size",
            "export it with ceil_mode 0 and a Pad, or `detent quantize --exclude NODE`",
        )


def _check_leaky(node: ir.Node, subject: Subject) -> Iterator[Finding]:
    if not subject.device.shifts or not is_standard(node, "LeakyRelu"):
        return
    slope = node.attributes.get_float("alpha", 0.01)
    if slope != LEAKY_SLOPE:
        rounded = round(256 * slope)
        why = (
            "the device computes with 26/256, so its results differ from those of the file"
            if rounded == 26
            else "the device has one slope, 26/256; others run by themselves, or on the CPU"
        )
        fix = "`detent quantize` writes 26/256" if rounded == 26 else "train or export with a slope of 0.1"
        yield Finding("warning", str(node.name), node.op_type, f"its slope is {slope:g}", why, fix)
    source = input_at(node, 0)
    producer = None if source is None else source.producer()
    if producer is None or producer.op_type not in _LAYERS_BEFORE_LEAKY or (source and len(source.uses()) > 1):
        yield Finding(
            "warning",
            str(node.name),
            node.op_type,
            "no layer stands right before it",
            "the device computes a LeakyRelu together with a layer; alone it divides the graph",
            "put it behind a Conv in the model; `detent quantize` cannot move it",
        )


def _check_codes(node: ir.Node, subject: Subject) -> Iterator[Finding]:
    """Whether all float data of a node has codes, on a device that computes on these."""
    if not subject.device.integers or not subject.coded:
        return
    bare = list(subject.uncoded(node))
    if not bare:
        return
    again = f"`detent quantize --recipe {subject.device.recipe}`"
    reason = subject.reasons.get(str(node.name))
    if reason is not None:
        asked = f"`detent quantize --set more_operators={node.op_type}` asks for it"
        fix = asked if node.op_type not in OPERATORS else "change the node before the export, or let it run on the CPU"
        yield _error(node, "it will stay float", reason, fix)
    elif not subject.quantized:
        yield _error(
            node,
            "it will read or make values that stay float",
            "a node beside it stays float",
            "mend that one, or let this one run on the CPU too (`detent quantize --exclude NODE`)",
        )
    elif not any(True for _ in subject.roles(node)) and all(role != "constant" for role, _ in bare):
        yield _error(
            node,
            "it is float: nothing around it is quantized",
            "the device computes on codes only",
            f"{again} quantizes it; with `--set more_operators={node.op_type}` if it left it out",
        )
    else:
        roles = list(dict.fromkeys(role for role, _ in bare))
        yield _error(
            node,
            f"its {' and '.join(roles)} {'is' if len(roles) == 1 else 'are'} not quantized",
            "no Q/DQ pair stands there, nor is it computed with its neighbour as one",
            f"{again} writes all pairs that the device needs",
        )


def _check_size(subject: Subject) -> Iterator[Finding]:
    layers = sum(is_standard(node, "Conv", "ConvTranspose") for node in subject.nodes)
    if layers == 1:
        yield Finding(
            "warning",
            MODEL,
            "",
            "it has a single Conv",
            "models with fewer than two are left on the CPU: starting the device would cost more",
            "`detent check` the whole model, not a part of it",
        )


def _error(node: ir.Node, what: str, why: str, fix: str) -> Finding:
    return Finding("error", str(node.name), node.op_type, what, why, fix)
