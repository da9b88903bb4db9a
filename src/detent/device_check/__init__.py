"""Will the device take it? Every rule on every node, and where each of them would run.

    read -> find the float network and its codes (or prepare a float model) -> rules -> partition -> verdict

Nothing is run and nothing is changed: the model is read, or copied if it is in memory. `placement` compares two
recipes: nodes that are left float leave the device, and cut the rest into more subgraphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx
import onnx_ir as ir

from detent.device_check.ep_report import counted_nodes
from detent.device_check.network import (
    CheckedNetwork,
    drop_device_factors,
    is_fixed,
    is_neutral,
    laid_out,
    mended,
    quantized_later,
)
from detent.device_check.partition import macs_of, partition
from detent.device_check.rules import apply_rules, of_model, quoted
from detent.devices.catalog import DEVICES, device_of, find_device
from detent.devices.device import GENERATIONS, Device, check_software, recipe_for, recipe_for_any
from detent.errors import ModelError, UsageError
from detent.graph.load import ModelLike, load, name_of, read, read_proto, stored_bytes
from detent.graph.runtime import onnxruntime, runtime_errors
from detent.graph.save import PROTOBUF_LIMIT
from detent.graph.session import first_line
from detent.graph.values import constant, read_values
from detent.observe.sources import input_specs
from detent.plan.mixed import arrange
from detent.plan.postprocessing import find_postprocessing
from detent.plan.select import Selection
from detent.prepare import FoldConstants, InferShapes, prepare
from detent.prepare.plain_forms import InlineFunctions
from detent.qdq.float_network import read_codes
from detent.qdq.functions import take_out_functions
from detent.recipe import Recipe
from detent.recipe.file import find_recipe
from detent.results import checked

_DECODES = (
    checked.DECODES,
    "boxes and scores have no grid in common, so this part is computed in float, on the CPU",
    "nothing; `detent quantize --postprocessing cut` puts it into a file of its own",
)
_FLOAT_TAIL = "on Phoenix and Hawk Point one float tail keeps every node off the device (YOLOv8n: 0 of 965)"
_CUT = "`detent quantize --postprocessing cut` puts it into a file of its own; with --device phx it is cut by itself"


def check(model: ModelLike, target: str | None = None, software: str = "") -> checked.DeviceCheck:
    """Check a float or quantized model for a device, by name, with a version of its software if one is given.

    A float model is checked as `detent quantize` would quantize it for that device. Without a name, the NPU flow is
    chosen that fits the number types of the file.
    """
    read_model = read(model)
    proto = model if isinstance(model, onnx.ModelProto) else read_proto(Path(model))
    device = _device_for(read_model, proto, _flow_of(read_model, proto) if target is None else target, software)
    if not device.checkable:
        known = ", ".join(name for name, each in DEVICES.items() if each.checkable)
        raise UsageError(
            f"Nothing is published about the operators that {device.name} takes, so a model cannot be checked for it. "
            f"Choose from {known}."
        )
    of_file = [*_check_software(device), *_check_file(proto, stored_bytes(model))]
    return check_graph(read_model, device, name_of(model), of_file)


def _device_for(model: ir.Model, proto: onnx.ModelProto, name: str, software: str) -> Device:
    """Return the device by name; of a generation, the flow that fits this model."""
    if software:
        check_software(software)
    activations, shifted = _activations_of(model), all(_shifts_of(model))
    generation = GENERATIONS.get(name)
    if generation is None or activations or len(generation.flows) == 1:
        return replace(find_device(name, activations, shifted), software=software)
    recipe = find_recipe(recipe_for(generation, proto)[0])
    return replace(device_of(recipe.replace(target=name)), software=software)


def _flow_of(model: ir.Model, proto: onnx.ModelProto) -> str:
    """Return the NPU flow that a file is for; for a float file, that of its default recipe."""
    activations, shifts = _activations_of(model), _shifts_of(model)
    if not activations:
        return device_of(find_recipe(recipe_for_any(proto)[0])).name
    if activations == "bfloat16":
        return "npu-bf16"
    # The majority decides: a few other scales are errors that the check reports.
    if activations == "uint8" and 2 * sum(shifts) > len(shifts):
        return "npu-xint8"
    points = [node.inputs[2] for node in _quantizing(model) if len(node.inputs) > 2]
    wide = sum(point is not None and point.dtype in (ir.DataType.INT16, ir.DataType.UINT16) for point in points)
    return "npu-a16w8" if 2 * wide > len(points) else "npu-a8w8"  # npu-a8w8 may have single activations of 16 bits


def _check_software(device: Device) -> Iterator[checked.Finding]:
    generation = device.generation
    if generation is not None and generation.needs_overlay and device.software > generation.last_software:
        yield of_model(
            "error",
            f"software {device.software} brings no overlay for {device.name}",
            "without one everything runs on the CPU",
            f"install {generation.last_software} there",
        )


_WIDE = {ir.DataType.INT16: "int16", ir.DataType.UINT16: "uint16", ir.DataType.BFLOAT16: "bfloat16"}


def _activations_of(model: ir.Model) -> str:
    """Return the type of activations: one of 16 bits if the file has any, else uint8; "" for a float model."""
    kinds = {value.dtype for value in model.graph.initializers.values()}
    return next((name for kind, name in _WIDE.items() if kind in kinds), "uint8" if _quantizing(model) else "")


def _quantizing(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "QuantizeLinear" and len(node.inputs) > 1]


def _shifts_of(model: ir.Model) -> list[bool]:
    """Return for each constant scale of a QuantizeLinear whether it is a power of two."""
    scales = {node.inputs[1]: None for node in _quantizing(model)}
    arrays = (array for value in scales if (array := constant(value)) is not None)
    return [bool((np.frexp(array)[0] == 0.5).all()) for array in arrays]


def _is_training(node: onnx.NodeProto) -> bool:
    return node.op_type == "BatchNormalization" and any(
        attribute.name == "training_mode" and attribute.i == 1 for attribute in node.attribute
    )


def _check_file(proto: onnx.ModelProto, size: int) -> Iterator[checked.Finding]:
    """Find faults of a file that reading it repairs (names that are not unique, nodes out of order), and its size."""
    names = Counter(node.name for node in proto.graph.node if node.name)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        yield of_model(
            "warning",
            f"{len(twice)} names belong to several nodes ({quoted(twice)})",
            "compilers and profilers tell nodes apart by their names",
            "`detent quantize` and `detent convert` write unique names",
        )
    if not _is_in_order(proto.graph):
        yield of_model(
            "note",
            "its nodes are not in the order of computation",
            "onnxruntime puts them in order itself; onnx.checker refuses the file",
            "`detent convert` writes them in order, with any step",
        )
    training = next((node for node in proto.graph.node if _is_training(node)), None)
    if training is not None:
        yield of_model(
            "error",
            f"BatchNormalization '{training.name}' is in training mode",
            "it answers by the samples that come together, and a device computes one at a time",
            "export the model for inference (model.eval())",
        )
    if size > PROTOBUF_LIMIT:
        yield of_model(
            "warning",
            f"it is {size / 1e9:.1f} GB large",
            "a compiler that takes the model as one message cannot take more than 2 GB",
            "use a recipe with fewer bits for weights (`detent quantize --recipe XINT8`), or divide the model",
        )
    if proto.functions:
        yield of_model(
            "note",
            f"it has {len(proto.functions)} functions of its own",
            "a compiler may not look into them; this check did",
            "`detent quantize` writes their bodies in their places",
        )


def _is_in_order(graph: onnx.GraphProto) -> bool:
    known = {"", *(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)}
    known.update(tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        if not known.issuperset(node.input):
            return False
        known.update(node.output)
    return True


def check_graph(
    model: ir.Model,
    device: Device,
    source: str,
    known: Sequence[checked.Finding] = (),
    reasons: Mapping[str, str] | None = None,
) -> checked.DeviceCheck:
    """Check a model in memory, which stays as it is.

    `known` are findings that come first; `reasons` say why nodes were left float on purpose.
    """
    copy = model.clone()
    if not device.accelerated:
        network = CheckedNetwork(copy, device, (), quantized=_has_codes(copy, read_codes(copy).quantized))
        return _conclude(network, source, [*known, *apply_rules(network)])
    take_out_functions(copy)  # quantizing operators are recognized by their names, not by their bodies
    prepare(copy, [InlineFunctions()])
    if _has_open_shapes(copy):
        prepare(copy, [InferShapes()])
    reading = read_codes(copy)
    if _has_open_shapes(reading.model):  # now operators of other tools are gone; shapes that nodes compute are folded
        prepare(reading.model, [InferShapes(), FoldConstants(), InferShapes()])
    network = CheckedNetwork(
        reading.model,
        device,
        frozenset(reading.codes),
        reading.codes,
        reasons or {},
        quantized=reading.quantized,
        written=reading.written,
    )
    if device.shifts:
        drop_device_factors(network.model, network.coded)
    findings = apply_rules(network)
    if device.integers and not _has_codes(copy, reading.quantized):
        network, changes, failed = quantized_later(copy, device, source)
        if failed:
            findings += failed
        else:
            after = apply_rules(network)
            findings = [*after, *mended(findings, after, changes)]
    return _conclude(network, source, [*known, *findings], copy if network.quantized else None)


def check_prepared(model: ir.Model, device: Device, recipe: Recipe, source: str) -> checked.DeviceCheck:
    """Check a prepared float model as it will be once it is quantized with a recipe."""
    copy = model.clone()
    if device.shifts:
        drop_device_factors(copy, ())  # before the layout, of which the factors are no part
    network = laid_out(copy, device, arrange(copy, Selection(), recipe, tail=find_postprocessing(copy.graph)))
    return _conclude(network, source, apply_rules(network))


def _has_open_shapes(model: ir.Model) -> bool:
    """Return whether a shape or type is missing, or a size is open although the shapes of the inputs are fixed."""
    values = [value for node in model.graph for value in node.outputs if value.name]
    fixed = all(is_fixed(value) for value in model.graph.inputs)
    return any(value.shape is None or value.dtype is None or (fixed and not is_fixed(value)) for value in values)


def _has_codes(model: ir.Model, found: bool) -> bool:
    """Return whether a model is quantized, with Q/DQ or with operators on codes."""
    return found or any("Linear" in node.op_type or node.op_type.endswith("Integer") for node in model.graph)


def _conclude(
    network: CheckedNetwork, source: str, findings: Sequence[checked.Finding], file: ir.Model | None = None
) -> checked.DeviceCheck:
    """Place the nodes and give the verdict. `file` is the quantized model, whose Q/DQ pairs are counted too."""
    refused = {finding.node for finding in findings if finding.level == "error"}
    findings = _with_whole_rejection(network, _excuse_postprocessing(network, findings))
    on_device = {str(node.name) for node in network.nodes if str(node.name) not in refused}
    places = _places(network, on_device if network.device.accelerated else ())
    device = [place for place in places if place.subgraph is not None]
    rest = [place for place in places if place.subgraph is None]
    verdict = _verdict(findings, bool(device) or not network.device.accelerated)
    counted = None
    if file is not None and network.device.accelerated:
        taken = set() if verdict == "rejected" else {place.node for place in device}
        nodes = counted_nodes(file, taken, {place.node for place in places})
        counted = (sum(node.on_device for node in nodes), len(nodes))
    subgraphs = len({place.subgraph for place in device})
    return checked.DeviceCheck(
        target=network.device.name,
        source=source,
        quantized=network.quantized,
        recipe="" if network.quantized or not network.device.integers else network.device.recipe,
        verdict=verdict,
        subgraphs=subgraphs,
        device_nodes=len(device),
        cpu_nodes=len(rest),
        device_macs=_sum(device),
        cpu_macs=_sum(rest),
        findings=tuple(findings),
        nodes=tuple(places),
        report_nodes=counted,
        cost=_cost(network.device, _sum(device), counted, subgraphs),
        elsewhere=_elsewhere(network, device),
    )


def _elsewhere(network: CheckedNetwork, taken: Sequence[checked.NodePlace]) -> checked.Elsewhere | None:
    """Place the nodes again without the operators that only some generations take; None if the model has none."""
    disputed = sorted({place.op_type for place in taken} & network.device.disputed.keys())
    if not disputed:
        return None
    on_device = {place.node for place in taken if place.op_type not in disputed}
    left = [place for place in _places(network, on_device) if place.subgraph is not None]
    without = (name for name, each in GENERATIONS.items() if not each.left_shifted.keys().isdisjoint(disputed))
    return checked.Elsewhere(tuple(without), tuple(disputed), len(left), len({place.subgraph for place in left}))


def _cost(
    device: Device, macs: int | None, counted: tuple[int, int] | None, subgraphs: int
) -> checked.CostEstimate | None:
    """Estimate the time on the device; None if nothing runs there or nothing is known."""
    if device.generation is None or macs is None or counted is None or not counted[0]:
        return None
    model = device.generation.cost
    time = model.base + model.per_gmac * macs / 1e9 + model.per_node * counted[0] + model.per_cut * (subgraphs - 1)
    return checked.CostEstimate(time, model.error, model.source)


def _with_whole_rejection(network: CheckedNetwork, findings: list[checked.Finding]) -> list[checked.Finding]:
    """Put the most frequent cause that keeps the whole model off the device before all other findings."""
    causes = Counter(finding.what for finding in findings if finding.whole and finding.node != checked.MODEL)
    if not causes:
        return findings
    most = causes.most_common(1)[0][0]
    whole = next(finding for finding in findings if finding.whole and finding.what == most)
    summed = checked.Finding(
        "error",
        checked.MODEL,
        "",
        f"{whole.op_type} '{whole.node}' is likely to keep all of it off the device",
        f"{network.device.name} was seen to reject whole graphs for one such node: {whole.what}",
        whole.fix,
        whole=True,
    )
    return [summed, *findings]


def _excuse_postprocessing(network: CheckedNetwork, findings: Sequence[checked.Finding]) -> list[checked.Finding]:
    """Turn errors on float nodes that decode detections into notes: they are meant for the CPU."""
    found = find_postprocessing(network.model.graph)
    if found is None or not network.device.integers:
        return list(findings)
    tail_nodes = [node for node in network.model.graph if node.name in found.nodes]
    coded = set(network.coded)
    left = {str(node.name) for node in tail_nodes if coded.isdisjoint(str(value.name) for value in node.outputs)}
    refused = {each.node: each.op_type for each in findings if each.level == "error" and each.node in left}
    notes = [checked.Finding("note", name, op_type, *_DECODES) for name, op_type in refused.items()]
    others = [finding for finding in findings if finding.node not in refused]
    device = network.device
    # Strix takes a model with a float tail; Phoenix does not, and without a named generation it may be meant.
    if not refused or (device.generation is not None and not device.all_or_nothing) or not device.shifts:
        return [*others, *notes]
    level: checked.Level = "error" if device.all_or_nothing else "warning"
    tail = f"its post-processing is float: {len(left)} nodes from '{found.starts[0]}' on"
    return [of_model(level, tail, _FLOAT_TAIL, _CUT), *others, *notes]


def _verdict(findings: Sequence[checked.Finding], anything: bool) -> checked.Verdict:
    errors = [finding for finding in findings if finding.level == "error"]
    if not errors:
        return "accepted"
    return "partly" if anything and all(finding.node for finding in errors) else "rejected"


def _places(network: CheckedNetwork, on_device: Collection[str]) -> list[checked.NodePlace]:
    """Return every node with its subgraph. Identities and the like belong to the subgraph of the node before them."""
    nodes = [node for node in network.model.graph if node not in network.folded]
    placed = {*on_device, *(str(node.name) for node in nodes if is_neutral(node) and on_device)}
    order = [str(node.name) for node in nodes]
    inputs = {str(node.name): _sources(node, set(order)) for node in nodes}
    numbers: dict[str, int] = {}
    for region in partition(order, inputs, placed):
        if any(name in on_device for name in region):
            number = 1 + max(numbers.values(), default=0)
            numbers.update(dict.fromkeys(region, number))
    return [
        checked.NodePlace(str(node.name), node.op_type, numbers.get(str(node.name)), macs_of(node))
        for node in network.nodes
    ]


def _sources(node: ir.Node, known: Collection[str]) -> list[str]:
    """Return the nodes whose results a node reads, including those that the graphs inside it capture."""
    producers = (value.producer() for value in read_values(node))
    names = dict.fromkeys(str(producer.name) for producer in producers if producer is not None)
    return [name for name in names if name in known and name != str(node.name)]


def _sum(places: Sequence[checked.NodePlace]) -> int | None:
    known = [place.macs for place in places if place.macs is not None]
    return sum(known) if len(known) == len(places) else None


def placement(model: ir.Model, before: Recipe, after: Recipe, source: str) -> checked.Placement | None:
    """Compare how much of a prepared float model runs on the device with two recipes for the same device.

    They differ in what they leave float. Return None if the device computes no integers, or if nothing at all would be
    quantized: `detent quantize` refuses such a recipe.
    """
    device = device_of(before)
    if not device.integers or not device.takes_models_of(before):
        return None
    as_it_is = check_prepared(model, device, before, source)
    try:
        return checked.Placement(as_it_is, check_prepared(model, device, after, source))
    except ModelError:  # there is no node to quantize
        return None


RUNS = 20  # the fastest run counts, because other processes can only slow one down


def cpu_milliseconds(model: Path) -> float:
    """Return the time of the fastest of RUNS inferences in onnxruntime with all cores, as in an application."""
    try:
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    except runtime_errors() as error:
        raise ModelError(f"onnxruntime cannot load {model}: {first_line(str(error))}") from error
    shapes = {spec.name: ([size or 1 for size in spec.shape], spec.dtype) for spec in input_specs(load(model))}
    feeds = {name: np.ones(shape, dtype) for name, (shape, dtype) in shapes.items()}
    seconds = []
    for _ in range(RUNS):
        start = perf_counter()
        session.run(None, feeds)
        seconds.append(perf_counter() - start)
    return 1000 * min(seconds)
