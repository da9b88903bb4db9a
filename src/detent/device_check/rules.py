"""The requirements of a device on a model. Each rule yields findings about the model or one of its nodes.

on the model     opset, fixed shapes, enough to compute, quantizing operators that the compiler knows
on each node     the device has the operator, attributes are written out, neighbors fit, all data has codes
on its numbers   types, scales, zero points, the bias in the unit of the products, positions

To add a rule, write a function and name it in `MODEL_RULES`, `NODE_RULES` or `NUMBER_RULES`; the last two say for which
devices and operators it applies. A rule reads the properties of a device, never its name.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import onnx
import onnx_ir as ir

from detent.device_check.network import CheckedNetwork, is_fixed
from detent.device_check.partition import macs_of
from detent.devices.catalog import DEVICES
from detent.devices.device import LEFT_BY_ALL, ROUNDING_KEY, Device
from detent.errors import listed
from detent.graph.message import RUNTIME_DOMAINS
from detent.graph.values import input_at, is_constant, is_standard, made_by, rank, static_shape
from detent.plan.layout import bias_input
from detent.plan.operators import OPERATORS, operator_of
from detent.prepare.base import main_opset
from detent.qdq.families import DYNAMIC, FOREIGN_DOMAINS
from detent.qdq.float_network import ValueCodes
from detent.results.checked import MODEL, Finding, Level

LEAST_OPSET, ADVISED_OPSET = 10, 17
WRITTEN_OUT = ("kernel_shape", "strides", "pads", "dilations", "group")
_SHOWN_NAMES, _SHORT_NAME = 3, 10
_BODIES = ("If", "Loop", "Scan")
_LAYERS_BEFORE_LEAKY = ("Conv", "ConvTranspose", "Gemm", "Add")
_BIAS_TOLERANCE = 1e-5  # scales are float32, so a product is not exactly the bias's scale
_MIDDLE_CODES = {"uint8": (127, 128), "uint16": (32767, 32768)}
_TO_OPSET = f"`detent convert MODEL OUTPUT --to opset:version={ADVISED_OPSET}`"

_NAME_THE_DEVICE = "`detent quantize --device NAME` chooses what that one takes"

_REPLACEMENTS = {
    "HardSigmoid": "`detent quantize --recipe A8W8`, whose Sigmoid this device takes",
    "Sigmoid": "`detent quantize --device phx` writes HardSigmoid, the sigmoid of this device",
    "Split": "`detent quantize` writes Slices, where the sizes are constant",
    "ReduceMean": "with keepdims=True, `detent quantize` makes a GlobalAveragePool of one over height and width",
    "Gelu": "`detent quantize --set without=fuse_gelu` leaves it in the operators that it is made of",
    "LayerNormalization": "`detent quantize --set without=fuse_layer_norm`, if the model was exported without it",
}

ModelRule = Callable[[CheckedNetwork], Iterator[Finding]]
NodeRule = Callable[[ir.Node, CheckedNetwork], Iterator[Finding]]
DeviceProperty = Literal["accelerated", "integers", "shifts", "float_scales", "all_or_nothing"]
# A rule, the property that a device must have, and the standard operators that it applies to (none: to every node).
RuleRow = tuple[NodeRule, DeviceProperty, tuple[str, ...]]


def apply_rules(network: CheckedNetwork) -> list[Finding]:
    """Return the findings of every rule on a network."""
    if not network.device.accelerated:
        return [finding for node in network.nodes for finding in _known_to_the_runtime(node, network)]
    findings = [finding for rule in MODEL_RULES for finding in rule(network)]
    for node in network.nodes:
        found = list(_has_operator(node, network))
        if not any(finding.level == "error" for finding in found):  # else it runs on the CPU in any case
            found += _broken(NODE_RULES, node, network)
        findings += found
    findings += [*_is_large_enough(network), *_quantizing_operators_are_known(network)]
    findings += _says_what_wide_costs(network)
    findings += [finding for node in network.nodes for finding in _broken(NUMBER_RULES, node, network)]
    return [*findings, *_keeps_constraints(network)]


def _broken(rules: tuple[RuleRow, ...], node: ir.Node, network: CheckedNetwork) -> list[Finding]:
    """Return the findings of the rules that apply to this node on this device."""
    on_device = (row for row in rules if getattr(network.device, row[1]))
    applicable = (rule for rule, _, op_types in on_device if not op_types or is_standard(node, *op_types))
    return [finding for rule in applicable for finding in rule(node, network)]


def _error(node: ir.Node, what: str, why: str, fix: str) -> Finding:
    return Finding("error", str(node.name), node.op_type, what, why, fix)


def _stays(node: ir.Node, network: CheckedNetwork, what: str, why: str, fix: str) -> Finding:
    """Return an error for which some generations reject the whole model."""
    return replace(_error(node, what, why, fix), whole=network.device.all_or_nothing)


def _warning(node: ir.Node, what: str, why: str, fix: str) -> Finding:
    return Finding("warning", str(node.name), node.op_type, what, why, fix)


def of_model(level: Level, what: str, why: str, fix: str) -> Finding:
    """Return a finding about the model as a whole."""
    return Finding(level, MODEL, "", what, why, fix)


def quoted(names: Iterable[object]) -> str:
    """Quote the first few names and count the others."""
    return listed([f"'{name}'" for name in names], _SHOWN_NAMES)


# Rules on the model


def _has_opset(network: CheckedNetwork) -> Iterator[Finding]:
    opset = main_opset(network.model)
    if opset < LEAST_OPSET:
        yield of_model(
            "error", f"it has opset {opset}", f"the device's compiler starts with opset {LEAST_OPSET}", _TO_OPSET
        )
    elif opset < ADVISED_OPSET:
        yield of_model("note", f"it has opset {opset}", f"opset {ADVISED_OPSET} is advised", _TO_OPSET)


def _has_fixed_inputs(network: CheckedNetwork) -> Iterator[Finding]:
    for value in network.model.graph.inputs:
        shape = static_shape(value)
        if shape and len(shape) == 4 and None not in shape and shape[0] != 1:
            yield of_model(
                "error",
                f"input '{value.name}' has a batch of {shape[0]}",
                "the device computes one sample at a time",
                "`detent convert MODEL OUTPUT --to fixed-shapes:batch=1`, if the batch was left open in the original; "
                "else export the model again",
            )
    if network.open_inputs:
        yield of_model(
            "error",
            f"the shape of input {quoted(value.name for value in network.open_inputs)} is not fixed",
            "the device is programmed for one shape",
            _fix_of(network.open_inputs, quantized=network.quantized),
        )
    if network.open_batch:
        yield of_model(
            "error",
            f"the batch of input {quoted(value.name for value in network.open_batch)} is not fixed",
            "the device computes one sample at a time",
            "`detent convert MODEL OUTPUT --to fixed-shapes:batch=1`",
        )


def _fix_of(inputs: list[ir.Value], *, quantized: bool) -> str:
    """Return the command that fixes these inputs, and the sizes to fill in if more than the batch is open."""
    if quantized:
        step = f"fixed-shapes:shapes={'+'.join(_assignment(value, '/') for value in inputs)}"
        command = f"convert MODEL OUTPUT --to {shlex.quote(step)}"
    else:
        command = " ".join(["quantize", *(f"--fix-shape {shlex.quote(_assignment(value, ','))}" for value in inputs)])
    missing = list(dict.fromkeys(size for value in inputs for size in _sizes(value) if not size.isdigit()))
    filled = f", with your sizes instead of {' and '.join(missing)}" if missing else ""
    return f"`detent {command}`{filled}"


def _assignment(value: ir.Value, between: str) -> str:
    return f"{value.name}={between.join(_sizes(value))}"


def _sizes(value: ir.Value) -> list[str]:
    """Return the shape of an input for one sample; an open size by its name if that is short, or else as a ?."""
    if value.shape is None:
        return ["1", "..."]
    sizes = [str(size) if isinstance(size, int) else _open_size(size.value) for size in value.shape]
    return [size if at or isinstance(value.shape[0], int) else "1" for at, size in enumerate(sizes)]


def _open_size(name: str | None) -> str:
    return name if name is not None and name.isidentifier() and len(name) <= _SHORT_NAME else "?"


def _has_fixed_results(network: CheckedNetwork) -> Iterator[Finding]:
    """Find shapes that stay open although the inputs are fixed; only the first node of each chain."""
    for node in network.nodes if not network.open_inputs and not network.open_batch else ():
        unknown = [value for value in node.outputs if value.name and not is_fixed(value)]
        if unknown and all(value is None or is_fixed(value) or value.is_initializer() for value in node.inputs):
            yield _error(
                node,
                "the shape of its result is not known",
                "it depends on the data, or shape inference does not know the operator; what follows stays on the CPU",
                "end the device's part before it: `detent quantize --to NODE --exclude NODE`",
            )


def _is_made_for_rounding(network: CheckedNetwork) -> Iterator[Finding]:
    """Find files of Detent that were quantized for another rounding than the device's."""
    device, generation, model = network.device, network.device.generation, network.model
    if generation is None or not (device.shifts and network.quantized) or model.producer_name != "detent":
        return
    made, name = model.metadata_props.get(ROUNDING_KEY, "half-even"), generation.name
    fix = f"`detent quantize --device {name}` of the float model"
    if device.rounding == "dpu" and made != "dpu":
        why = f"{name} rounds ties upwards: all layers are off a little, unless weights and biases make up for it"
        yield of_model("warning", f"it was not quantized for the rounding of {name}", why, fix)
    elif device.rounding != made:
        why = f"{name} rounds them to even"
        yield of_model("warning", "it was quantized for a device that rounds ties upwards", why, fix)


MODEL_RULES: tuple[ModelRule, ...] = (_has_opset, _has_fixed_inputs, _has_fixed_results, _is_made_for_rounding)


def _is_large_enough(network: CheckedNetwork) -> Iterator[Finding]:
    if sum(is_standard(node, "Conv", "ConvTranspose") for node in network.nodes) != 1:
        return
    if network.device.all_or_nothing:
        yield of_model("note", "it has a single Conv", "Phoenix was seen to take such a model", "")
        return
    found = of_model(
        "warning",
        "it has a single Conv",
        "models with fewer than two are left to the CPU, unless minimum_num_of_conv in the EP's vaip_config.json says "
        "otherwise: starting the device would cost more",
        "`detent check` the whole model, not a part of it",
    )
    yield replace(found, whole=True)


def _quantizing_operators_are_known(network: CheckedNetwork) -> Iterator[Finding]:
    integers = network.device.integers
    foreign = Counter((each.domain, each.operator) for each in network.codes.values() if each.domain in FOREIGN_DOMAINS)
    for (domain, operator), count in foreign.items():
        wanted = "standard Q/DQ" if integers else "Casts to bfloat16, or a float32 model"
        yield of_model(
            "warning" if integers and not network.device.all_or_nothing else "error",
            f"{count} tensors are quantized with {operator} of {domain}",
            f"the device's compiler looks for {wanted}",
            "`detent convert MODEL OUTPUT --to qdq`",
        )


# Rules on single nodes


def _known_to_the_runtime(node: ir.Node, network: CheckedNetwork) -> Iterator[Finding]:
    """Find operators that neither onnxruntime on a CPU nor a function of the file defines."""
    functions = {(function.domain, function.name) for function in network.model.functions.values()}
    standard = node.domain in ("", "ai.onnx")
    known = node.domain in RUNTIME_DOMAINS or (node.domain, node.op_type) in functions
    if not known and not (standard and onnx.defs.has(node.op_type)):
        yield _error(
            node,
            f"onnxruntime does not know {node.op_type if standard else f'{node.domain}::{node.op_type}'}",
            "no function in the file defines it",
            "`detent convert MODEL OUTPUT --to qdq` (of quantizing operators), or load the library that has it",
        )


def _has_operator(node: ir.Node, network: CheckedNetwork) -> Iterator[Finding]:
    device, op_type, written = network.device, node.op_type, network.written.get(str(node.name))
    if written is not None:
        if written.domain != "" or written.name not in device.operators:
            yield _error(
                node,
                f"it is written as {written.name}, an operator on codes",
                f"{device.name} is given {op_type} between Q/DQ pairs",
                f"`detent quantize --recipe {device.recipe} --format qdq` of the float model",
            )
    elif op_type in _BODIES and node.domain == "":
        yield _error(
            node,
            "it chooses what to compute at run time",
            "control flow stays on the CPU, with all inside",
            "export the model without it, or leave it at the end: `--exclude NODE`",
        )
    elif node.domain != "":
        yield _error(
            node,
            f"it is an operator of domain {node.domain}",
            f"{device.name} has operators of ONNX only",
            "leave it on the CPU (`detent quantize --exclude NODE`), or export the model with operators of ONNX",
        )
    elif (other_form := _other_form(node, network)) is not None:
        yield _error(
            node,
            "the device has this operator in another form",
            other_form,
            "let it run on the CPU (`detent quantize --exclude NODE`), or export it as Sigmoid, which becomes the one "
            "that the device has",
        )
    elif op_type in device.disputed:
        yield _warning(node, f"not every generation takes {op_type}", device.disputed[op_type], _NAME_THE_DEVICE)
    elif op_type in device.likely and op_type not in device.operators and op_type not in device.refused:
        what = f"{op_type} is not in the list for {device.name}, but expected"
        yield Finding("note", str(node.name), op_type, what, device.likely[op_type], "")
    elif op_type not in device.operators or op_type in device.refused:
        why, fix = _why_and_fix(node, network)
        found = _error(node, "the device does not have this operator", why, fix)
        yield replace(found, whole=device.all_or_nothing and op_type in LEFT_BY_ALL)


def _other_form(node: ir.Node, network: CheckedNetwork) -> str | None:
    """Say why a shifting device cannot compute this HardSigmoid, which it has with one slope only."""
    declines = operator_of(node).declines if network.device.shifts and node.op_type == "HardSigmoid" else None
    return None if declines is None else declines(node)


def _why_and_fix(node: ir.Node, network: CheckedNetwork) -> tuple[str, str]:
    device, op_type = network.device, node.op_type
    if op_type in DYNAMIC:
        fix = f"quantize the float model with `detent quantize --recipe {device.recipe} --calib DATA`"
        return "scales that are found at run time are for CPUs", fix
    unlisted = f"{op_type} is not among the operators that are published for {device.name}"
    otherwise = "let it run on the CPU (`detent quantize --exclude NODE`), or replace it before the export"
    return device.refused.get(op_type, unlisted), _REPLACEMENTS.get(op_type, otherwise)


def _writes_attributes_out(node: ir.Node, network: CheckedNetwork) -> Iterator[Finding]:
    """Find missing attributes, which only Phoenix's compiler was seen to do without."""
    if network.device.all_or_nothing:
        return
    missing = [name for name in WRITTEN_OUT if name not in node.attributes]
    automatic = (node.attributes.get_string("auto_pad", "NOTSET") or "NOTSET") != "NOTSET"
    if missing or automatic:
        found = _error(
            node,
            f"it relies on the default of {', '.join(missing)}" if missing else "its padding is automatic",
            "the device's compiler ends the process where these are not written out",
            "`detent quantize` of the float model writes them out",
        )
        yield replace(found, crashes=True)


def _rounds_its_size_down(node: ir.Node, _network: CheckedNetwork) -> Iterator[Finding]:
    if node.attributes.get_int("ceil_mode", 0) != 0:
        yield _warning(
            node,
            "it rounds its output size up (ceil_mode)",
            "the device's compiler has been seen to compute another size",
            "export it with ceil_mode 0 and a Pad, or `detent quantize --exclude NODE`",
        )


def _has_leaky_slope(node: ir.Node, _network: CheckedNetwork) -> Iterator[Finding]:
    slope = node.attributes.get_float("alpha", 0.01)
    if slope != round(256 * slope) / 256:
        what, written = f"its slope is {slope:g}", f"{round(256 * slope)}/256"
        why = f"the device computes with {written}, so its results differ from those of the file"
        yield _warning(node, what, why, f"`detent quantize` of the float model writes {written}")
    source, layer = input_at(node, 0), made_by(input_at(node, 0))
    if layer is None or layer.op_type not in _LAYERS_BEFORE_LEAKY or (source and len(source.uses()) > 1):
        yield _warning(
            node,
            "no layer stands right before it",
            "the device computes a LeakyRelu together with a layer; alone it divides the graph",
            "put it behind a Conv in the model; `detent quantize` cannot move it",
        )


def _has_codes_around(node: ir.Node, network: CheckedNetwork) -> Iterator[Finding]:
    """Check that all float data of a node has codes, on a device that computes on codes."""
    bare = list(network.uncoded(node)) if network.coded else []
    if not bare:
        return
    again, reason = f"`detent quantize --recipe {network.device.recipe}`", network.reasons.get(str(node.name))
    if reason is not None:
        asked = f"`detent quantize --set more_operators={node.op_type}` asks for it"
        fix = asked if node.op_type not in OPERATORS else "change the node before the export, or let it run on the CPU"
        yield _stays(node, network, f"it {'was left' if network.quantized else 'will stay'} float", reason, fix)
    elif not network.quantized:
        yield _error(
            node,
            "it will read or make values that stay float",
            "a node beside it stays float",
            "mend that one, or let this one run on the CPU too (`detent quantize --exclude NODE`)",
        )
    elif not any(True for _ in network.roles(node)) and all(role != "constant" for role, _ in bare):
        yield _stays(
            node,
            network,
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


_MID_GRAPH = "in mid-graph it was seen on the CPU on every generation"


def _keeps_its_layout(node: ir.Node, network: CheckedNetwork) -> Iterator[Finding]:
    """Find data movement in mid-graph. Flattening for a last layer is taken: its result has two axes."""
    if node.op_type == "Transpose" or (rank(node.outputs[0]) or 0) > 2:
        yield _stays(node, network, "it only moves data", _MID_GRAPH, "export the model without it, or end before it")


def _multiplies_by_weights(node: ir.Node, network: CheckedNetwork) -> Iterator[Finding]:
    """Find products of two activations, as in attention."""
    if not any(map(is_constant, node.inputs)):
        why = "attention was seen on the CPU on every generation"
        fix = "the recipe BF16 on Strix; or leave attention out of the model"
        yield _stays(node, network, "it multiplies two activations", why, fix)


def _has_rank(node: ir.Node, network: CheckedNetwork) -> Iterator[Finding]:
    ranks = [rank(value) or 0 for value in (*node.inputs, *node.outputs) if value is not None]
    if max(ranks, default=0) > 4:
        why = "tensors of five axes were always seen on the CPU"
        yield _stays(node, network, "it has a tensor of five axes or more", why, "export it with four axes at most")
    elif is_standard(node, "Conv", "ConvTranspose") and rank(node.inputs[0]) == 3:
        why = "the device's convolutions are those of images, with four axes"
        yield _error(node, "it is a convolution over one axis", why, "export it as a Conv of height 1")


def _is_depthwise(node: ir.Node | None) -> bool:
    groups = 1 if node is None or not is_standard(node, "Conv") else node.attributes.get_int("group", 1)
    dims = None if node is None or groups == 1 else static_shape(node.inputs[0])
    return dims is not None and len(dims) > 1 and dims[1] == groups


def _is_trusted(node: ir.Node, network: CheckedNetwork) -> Iterator[Finding]:
    """Find layers that are known to be compiled wrongly."""
    generation = network.device.generation
    if generation is not None and generation.miscompiles_depthwise and _is_depthwise(node):
        yield _warning(
            node,
            "it is depthwise",
            f"with software {generation.logged_with} networks with depthwise layers answered at random; newer ones "
            "were not tested",
            "compare the answers on the device: `detent deploy` writes a program that does",
        )


def _takes_depthwise(node: ir.Node, network: CheckedNetwork) -> Iterator[Finding]:
    """Find depthwise layers that the compiler was seen to leave to the CPU, with the activation computed with them."""
    device, generation = network.device, network.device.generation
    left = () if generation is None else generation.left_behind_depthwise.get(device.recipe, ())
    if not left or generation is None or device.software not in ("", generation.logged_with):
        return
    result = node.outputs[0] if is_standard(node, "Conv") else input_at(node, 0)
    readers = [] if result is None or str(result.name) in network.coded else [use.node for use in result.uses()]
    if result is None or len(readers) != 1 or node not in (*readers, result.producer()):
        return
    if is_standard(readers[0], *left) and _is_depthwise(result.producer()):
        yield _error(
            node,
            f"it is depthwise, with {readers[0].op_type}",
            f"software {generation.logged_with} was seen to leave these to the CPU; newer ones were not tested",
            f"`detent quantize --device {device.name}`, which chooses A8W8 and writes Relu for Clip",
        )


_FACTORS = (2.0, 0.5)


def _resizes(node: ir.Node, _network: CheckedNetwork) -> Iterator[Finding]:
    """Find the interpolation that Phoenix leaves to the CPU."""
    mode, where = (node.attributes.get_string(name, "") for name in ("mode", "coordinate_transformation_mode"))
    shapes = [static_shape(value) or [] for value in (node.inputs[0], node.outputs[0])]
    sizes = list(zip(*(shape[2:] for shape in shapes), strict=False))
    factors = {after / before for before, after in sizes if before and after}
    if mode == "linear" and (where == "align_corners" or not factors.issubset(_FACTORS)):
        by = "between aligned corners" if where == "align_corners" else "by a factor other than 2"
        why = "Phoenix was seen to leave this interpolation to the CPU, one cut for each"
        yield _error(node, f"it interpolates {by}", why, "export it with mode nearest, if accuracy allows")


NODE_RULES: tuple[RuleRow, ...] = (
    (_writes_attributes_out, "accelerated", ("Conv", "ConvTranspose")),
    (_rounds_its_size_down, "shifts", ("MaxPool", "AveragePool")),
    (_has_leaky_slope, "shifts", ("LeakyRelu",)),
    (_keeps_its_layout, "integers", ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze")),
    (_multiplies_by_weights, "integers", ("MatMul",)),
    (_has_rank, "integers", ()),
    (_is_trusted, "accelerated", ("Conv",)),
    (_takes_depthwise, "accelerated", ()),
    (_resizes, "all_or_nothing", ("Resize",)),
    (_has_codes_around, "integers", ()),
)


# Rules on the numbers of quantized models


def _requantize(network: CheckedNetwork) -> str:
    return f"`detent quantize --recipe {network.device.recipe}` of the float model"


def _subject_of(role: str) -> str:
    return "its bias is" if role == "biases" else f"its {role} are"


def _has_types(node: ir.Node, network: CheckedNetwork) -> Iterator[Finding]:
    types, wide = network.device.types, _wide_device(network)
    for role, dtype in sorted({(role, each.dtype) for role, _, each in network.roles(node)}):
        if wide is not None and role == "activations" and dtype in wide.types[role] and dtype not in types[role]:
            missing = node.op_type not in wide.operators and node.op_type not in wide.likely
            if missing and node.op_type in network.device.operators:  # otherwise `_has_operator` has reported it
                yield _error(
                    node,
                    f"{_subject_of(role)} {dtype}",
                    f"single tensors are computed as {wide.name} does, which does not have {node.op_type}",
                    "`detent quantize --set widen=none` keeps 8 bits, or let it run on the CPU (`--exclude NODE`)",
                )
        elif dtype not in types[role]:
            what = f"{_subject_of(role)} {'in blocks' if dtype == 'blocks' else dtype}"
            yield _error(
                node, what, f"{network.device.name} has {' or '.join(types[role])} there", _requantize(network)
            )


def _wide_device(network: CheckedNetwork) -> Device | None:
    """Return the device whose types single tensors may have; None if there is none, or no tensor has 8 bits."""
    mixed = bool(network.activation_types.intersection(network.device.types.get("activations", ())))
    return DEVICES[network.device.wide] if network.device.wide and mixed else None


def _says_what_wide_costs(network: CheckedNetwork) -> Iterator[Finding]:
    """Count the activations with more bits than the device's own, and say what they cost."""
    wide, own = _wide_device(network), network.device.types.get("activations", ())
    if wide is None:
        return
    tensors: dict[str, bool] = {}
    macs = {True: 0, False: 0}
    for node in network.nodes:
        held = [(value, codes.dtype not in own) for role, value, codes in network.roles(node) if role == "activations"]
        tensors |= {str(value.name): is_wide for value, is_wide in held}
        read = any(is_wide for value, is_wide in held if value in node.inputs)
        macs[read] += macs_of(node) or 0
    count = sum(tensors.values())
    if count:
        share = (
            f" and {100 * macs[True] / sum(macs.values()):.0f} % of the multiplications" if any(macs.values()) else ""
        )
        yield of_model(
            "note",
            f"{count} of {len(tensors)} activations have 16 bits",
            f"they take twice the memory, and the nodes that read them{share} run at the pace of {wide.name}, about "
            f"half that of {network.device.name}",
            "`detent quantize --set widen=none` keeps 8 bits throughout",
        )


def _has_shifted_scales(node: ir.Node, network: CheckedNetwork) -> Iterator[Finding]:
    """Check for one power-of-two scale per tensor, with the middle code as zero point."""
    found: dict[str, str] = {}
    for role, _, codes in network.roles(node):
        if codes.linear is None or codes.dtype not in network.device.types[role]:
            continue
        middle = 128 if codes.dtype == "uint8" else 0
        if not codes.per_tensor:
            found.setdefault(f"{_subject_of(role)} scaled per channel", "the device shifts whole tensors")
        elif codes.position is None:
            what = f"{_subject_of(role)} scaled by a number that is not a power of two"
            found.setdefault(what, "the device scales by shifting")
        elif int(codes.zero_points[0]) != middle:
            what = f"{_subject_of(role)} centred on code {codes.zero_points[0]}"
            found.setdefault(what, f"the device's zero is {middle}")
    yield from (_stays(node, network, what, why, _requantize(network)) for what, why in found.items())


def _is_symmetric(node: ir.Node, network: CheckedNetwork) -> Iterator[Finding]:
    """Find zero points other than the middle code, which cost the device a correction for every product."""
    lopsided = [role for role, _, codes in network.roles(node) if codes.linear is not None and not _is_centred(codes)]
    for role in dict.fromkeys(lopsided):
        yield _warning(
            node,
            f"{_subject_of(role)} not symmetric (the zero point is not the middle code)",
            "the device's own recipes are symmetric; other models may run more slowly, or on the CPU",
            _requantize(network),
        )


def _is_centred(codes: ValueCodes) -> bool:
    return bool(np.isin(codes.zero_points, _MIDDLE_CODES.get(codes.dtype, (0,))).all())


def _has_bias_in_products(node: ir.Node, network: CheckedNetwork) -> Iterator[Finding]:
    """Check that a 32-bit bias counts in the unit of the products that it is added to: input scale * weight scale."""
    bias = bias_input(node)
    if bias is None or None in node.inputs[:2]:
        return
    held = [network.codes.get(str(value.name)) for value in (*node.inputs[:2], bias) if value is not None]
    scales = [codes.linear.scale.reshape(-1) for codes in held if codes is not None and codes.linear is not None]
    if len(scales) != 3 or held[-1] is None or held[-1].dtype != "int32":
        return
    source, weight, added = (scale.astype(np.float64) for scale in scales)
    if added.size not in (1, weight.size) or not np.allclose(source * weight, added, rtol=_BIAS_TOLERANCE, atol=0.0):
        yield _error(
            node,
            "the scale of its bias is not that of its input times that of its weights",
            "the device adds the bias to the products as it is",
            _requantize(network),
        )


def _joins_one_scale(node: ir.Node, network: CheckedNetwork) -> Iterator[Finding]:
    around = [codes for role, _, codes in network.roles(node) if role == "activations"]
    if any(not around[0].same_as(codes) for codes in around[1:]):
        yield _warning(
            node,
            "what it joins has several scales",
            "the device copies codes: it has to rescale",
            "`detent quantize --target npu-a8w8` gives them one scale",
        )


def _has_finite_scales(node: ir.Node, network: CheckedNetwork) -> Iterator[Finding]:
    """Find scales that make every value infinite or not a number."""
    for role, _, codes in network.roles(node):
        scale = None if codes.linear is None else codes.linear.scale
        if scale is not None and not (np.isfinite(scale) & (np.asarray(scale) > 0)).all():
            why = "it is zero, infinite or not a number, and so is what the model answers"
            yield _error(node, f"{_subject_of(role)} scaled by no positive number", why, _requantize(network))


NUMBER_RULES: tuple[RuleRow, ...] = (
    (_has_finite_scales, "accelerated", ()),
    (_has_types, "accelerated", ()),
    (_has_shifted_scales, "shifts", ()),
    (_is_symmetric, "float_scales", ()),
    (_has_bias_in_products, "float_scales", ()),
    (_joins_one_scale, "float_scales", ("Concat",)),
)


def _keeps_constraints(network: CheckedNetwork) -> Iterator[Finding]:
    constraints = network.device.constraints
    for violation in constraints.violations(network.model, network.plan()) if network.device.shifts else ():
        move = violation.move
        yield Finding(
            "error",
            violation.node,
            violation.op_type,
            f"it breaks the rule '{move.rule}': position {move.before:g} of '{move.value}' should be {move.after:g}",
            "the device's shifters do not reach that far, or it copies codes that have different units",
            "`detent quantize --target npu-xint8` keeps every rule",
        )
