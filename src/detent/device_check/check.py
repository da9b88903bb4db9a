"""Will the device take it? Every rule on every node, and where each of them would run.

    read -> find the float network and its codes (or prepare a float model) -> rules -> partition -> verdict

Nothing is run and nothing is changed: the model is read, or copied where it is one in memory.

What another recipe changes on the device: more nodes left float are fewer on it, and divide the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from detent.device_check.model_rules import check_file, check_model
from detent.device_check.network import (
    Subject,
    drop_device_factors,
    is_fixed,
    is_neutral,
    laid_out,
    mended,
    prepared_subject,
)
from detent.device_check.node_rules import check_nodes
from detent.device_check.number_rules import check_numbers
from detent.device_check.partition import macs_of, partition
from detent.devices.catalog import DEVICES, device_of, find_device
from detent.devices.device import Device
from detent.errors import ModelError, UsageError
from detent.graph.load import ModelLike, name_of, read, read_proto, stored_bytes
from detent.plan.mixed import arrange
from detent.plan.select import Selection
from detent.prepare import FoldConstants, InferShapes, InlineFunctions, prepare
from detent.qdq.float_network import read_codes
from detent.qdq.functions import take_out_functions
from detent.recipe import Recipe
from detent.results.checked import DeviceCheck, Finding, NodePlace, Placement, Verdict


def check(model: ModelLike, target: str = "npu-xint8") -> DeviceCheck:
    """Check a float or quantized model for a device: npu-xint8, npu-a8w8, npu-a16w8, npu-bf16 or cpu."""
    proto = model if isinstance(model, onnx.ModelProto) else read_proto(Path(model))
    device = find_device(target, _activation_type(proto))
    if not device.checkable:
        known = ", ".join(name for name, each in DEVICES.items() if each.checkable)
        raise UsageError(
            f"Nothing is published about the operators that {device.name} takes, so a model cannot be checked for it. "
            f"Choose from {known}."
        )
    read_model = read(model)
    of_file = list(check_file(proto, stored_bytes(model)))
    return check_graph(read_model, device, name_of(model), of_file)


def _activation_type(proto: onnx.ModelProto) -> str:
    """Return the type of activations that decides between the devices of one alias: 16 bits, if the file has any."""
    wide = {onnx.TensorProto.INT16: "int16", onnx.TensorProto.UINT16: "uint16"}
    return next((wide[each.data_type] for each in proto.graph.initializer if each.data_type in wide), "")


def check_graph(model: ir.Model, device: Device, source: str, known: Sequence[Finding] = ()) -> DeviceCheck:
    """Check a model in memory, which stays as it is. `known` are findings that somebody has already."""
    network = model.clone()
    if not device.accelerated:
        subject = Subject(network, device, (), quantized=_has_codes(network, read_codes(network).quantized))
        return _conclude(subject, source, [*known, *_apply_rules(subject)])
    take_out_functions(network)  # of quantizing operators, which are known by their names
    prepare(network, [InlineFunctions()])
    if _has_open_shapes(network):
        prepare(network, [InferShapes()])
    reading = read_codes(network)
    if _has_open_shapes(reading.model):  # again, past operators of other tools and shapes that nodes compute
        prepare(reading.model, [InferShapes(), FoldConstants(), InferShapes()])
    subject = Subject(
        reading.model,
        device,
        frozenset(reading.codes),
        reading.codes,
        quantized=reading.quantized,
        written=reading.written,
    )
    if device.shifts:
        drop_device_factors(subject.model, subject.coded)
    findings = _apply_rules(subject)
    if device.integers and not _has_codes(network, reading.quantized):
        subject, findings = _foresee(network, device, source, findings)
    return _conclude(subject, source, [*known, *findings])


def check_prepared(model: ir.Model, device: Device, recipe: Recipe, source: str) -> DeviceCheck:
    """What a device will take of a float model that is prepared for it, once it is quantized with a recipe."""
    network = model.clone()
    if device.shifts:
        drop_device_factors(network, ())  # first, because they are written behind a layout, not before it
    subject = laid_out(network, device, arrange(network, Selection(), recipe))
    return _conclude(subject, source, _apply_rules(subject))


def _has_open_shapes(model: ir.Model) -> bool:
    """Whether a shape or type is missing, or a size is open although those of the inputs are fixed."""
    values = [value for node in model.graph for value in node.outputs if value.name]
    fixed = all(is_fixed(value) for value in model.graph.inputs)
    return any(value.shape is None or value.dtype is None or (fixed and not is_fixed(value)) for value in values)


def _has_codes(model: ir.Model, found: bool) -> bool:
    """Whether a model is quantized, be it with operators on codes."""
    return found or any("Linear" in node.op_type or node.op_type.endswith("Integer") for node in model.graph)


def _apply_rules(subject: Subject) -> list[Finding]:
    return [*check_model(subject), *check_nodes(subject), *check_numbers(subject)]


def _foresee(
    network: ir.Model, device: Device, source: str, before: Sequence[Finding]
) -> tuple[Subject, list[Finding]]:
    """The network as it will be once it is quantized, and what there is to say about it then."""
    subject, changes, failed = prepared_subject(network, device, source)
    if failed:
        return subject, [*before, *failed]
    after = _apply_rules(subject)
    return subject, [*after, *mended(before, after, changes)]


def _conclude(subject: Subject, source: str, findings: Sequence[Finding]) -> DeviceCheck:
    refused = {finding.node for finding in findings if finding.level == "error"}
    on_device = {str(node.name) for node in subject.nodes if str(node.name) not in refused}
    places = _places(subject, on_device if subject.device.accelerated else ())
    device = [place for place in places if place.subgraph is not None]
    rest = [place for place in places if place.subgraph is None]
    return DeviceCheck(
        target=subject.device.name,
        source=source,
        quantized=subject.quantized,
        recipe="" if subject.quantized or not subject.device.integers else subject.device.recipe,
        verdict=_verdict(findings, bool(device) or not subject.device.accelerated),
        subgraphs=len({place.subgraph for place in device}),
        device_nodes=len(device),
        cpu_nodes=len(rest),
        device_macs=_sum(device),
        cpu_macs=_sum(rest),
        findings=tuple(findings),
        nodes=tuple(places),
    )


def _verdict(findings: Sequence[Finding], anything: bool) -> Verdict:
    errors = [finding for finding in findings if finding.level == "error"]
    if not errors:
        return "accepted"
    return "partly" if anything and all(finding.node for finding in errors) else "rejected"


def _places(subject: Subject, on_device: Collection[str]) -> list[NodePlace]:
    """Every node with the subgraph that it is in. Nodes that compute nothing go with those before them."""
    nodes = [node for node in subject.model.graph if node not in subject.folded]
    placed = {*on_device, *(str(node.name) for node in nodes if is_neutral(node) and on_device)}
    order = [str(node.name) for node in nodes]
    inputs = {str(node.name): _sources(node, set(order)) for node in nodes}
    numbers: dict[str, int] = {}
    for region in partition(order, inputs, placed):
        if any(name in on_device for name in region.nodes):
            number = 1 + max(numbers.values(), default=0)
            numbers.update(dict.fromkeys(region.nodes, number))
    return [
        NodePlace(str(node.name), node.op_type, numbers.get(str(node.name)), macs_of(node)) for node in subject.nodes
    ]


def _sources(node: ir.Node, known: Collection[str]) -> list[str]:
    """The nodes whose results a node reads, those that the graphs inside it capture included."""
    values = [value for value in node.inputs if value is not None]
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            values += [value for inner in attribute.as_graph().all_nodes() for value in inner.inputs if value]
    producers = (value.producer() for value in values)
    names = dict.fromkeys(str(producer.name) for producer in producers if producer is not None)
    return [name for name in names if name in known and name != str(node.name)]


def _sum(places: Sequence[NodePlace]) -> int | None:
    numbers = [place.macs for place in places]
    return None if None in numbers else sum(number for number in numbers if number is not None)


def placement(model: ir.Model, before: Recipe, after: Recipe, source: str) -> Placement | None:
    """How much of a prepared float model runs on the device of its recipe.

    Both recipes are for the same device, and differ in what they leave float. None where the device computes no
    integers, or where nothing at all would be quantized: `detent quantize` refuses such a recipe.
    """
    device = device_of(before)
    if not device.integers or not device.takes_models_of(before):
        return None
    as_it_is = check_prepared(model, device, before, source)
    try:
        return Placement(as_it_is, check_prepared(model, device, after, source))
    except ModelError:  # there is no node to quantize
        return None
