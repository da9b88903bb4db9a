"""Rules on numbers: types of codes, scales, zero points, biases in the unit of their products, and positions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from detent.device_check.network import Subject
from detent.graph.values import is_standard
from detent.numerics.formats import IntegerFormat, QuantParams
from detent.numerics.interface import Params
from detent.plan.layout import Decision, Layout, Role, Site, bias_input
from detent.plan.operators import operator_of
from detent.plan.plan import Plan
from detent.qdq.float_network import ValueCodes
from detent.results.checked import MODEL, Finding

_ROLES = {"activations": Role.ACTIVATION, "weights": Role.WEIGHT, "biases": Role.BIAS}
_BIAS_TOLERANCE = 1e-5
_OWN_DOMAINS = ("com.amd.quark", "com.vai.quantize", "ai.onnx.contrib")


def check_numbers(subject: Subject) -> Iterator[Finding]:
    """What the codes of a quantized model show."""
    if not subject.device.accelerated:
        return
    yield from _check_domains(subject)
    for node in subject.nodes:
        yield from _check_types(node, subject)
        if subject.device.shifts:
            yield from _check_shifted(node, subject)
        elif subject.device.integers:
            yield from _check_symmetry(node, subject)
            yield from _check_product(node, subject)
            yield from _check_concat(node, subject)
    if subject.device.shifts:
        yield from _check_positions(subject)


def _check_types(node: ir.Node, subject: Subject) -> Iterator[Finding]:
    wrong = {
        (role, codes.dtype) for role, _, codes in subject.roles(node) if codes.dtype not in subject.device.types[role]
    }
    for role, dtype in sorted(wrong):
        yield _finding(
            "error",
            node,
            f"its {_called(role)} {'in blocks' if dtype == 'blocks' else dtype}",
            f"{subject.device.name} has {' or '.join(subject.device.types[role])} there",
            f"`detent quantize --recipe {subject.device.recipe}` of the float model",
        )


def _check_domains(subject: Subject) -> Iterator[Finding]:
    """Quantizing operators that only other tools know."""
    foreign = Counter(
        (codes.domain, codes.operator) for codes in subject.codes.values() if codes.domain in _OWN_DOMAINS
    )
    for (domain, operator), count in foreign.items():
        integers = subject.device.integers
        wanted = "standard Q/DQ" if integers else "Casts to bfloat16, or a float32 model"
        yield Finding(
            "warning" if integers else "error",
            MODEL,
            "",
            f"{count} tensors are quantized with {operator} of {domain}",
            f"the device's compiler looks for {wanted}",
            "`detent convert MODEL OUTPUT --to qdq`",
        )


def _check_shifted(node: ir.Node, subject: Subject) -> Iterator[Finding]:
    """One power-of-two scale for each tensor, with the middle code for zero."""
    again = f"`detent quantize --recipe {subject.device.recipe}` of the float model"
    said = set()
    for role, _, codes in subject.roles(node):
        if codes.linear is None or codes.dtype not in subject.device.types[role]:
            continue
        middle = 128 if codes.dtype == "uint8" else 0
        if not codes.per_tensor:
            what, why = f"its {_called(role)} scaled per channel", "the device shifts whole tensors"
        elif codes.position is None:
            what, why = (
                f"its {_called(role)} scaled by a number that is no power of two",
                "the device scales by shifting",
            )
        elif int(codes.zero_points[0]) != middle:
            what, why = f"its {_called(role)} centred on code {codes.zero_points[0]}", f"the device's zero is {middle}"
        else:
            continue
        if what not in said:
            said.add(what)
            yield _finding("error", node, what, why, again)


def _check_symmetry(node: ir.Node, subject: Subject) -> Iterator[Finding]:
    """Zero points other than the middle cost the device a correction for every product."""
    for role in dict.fromkeys(
        role for role, _, codes in subject.roles(node) if codes.linear is not None and not _is_centred(codes)
    ):
        yield _finding(
            "warning",
            node,
            f"its {_called(role)} not symmetric (the zero point is not the middle code)",
            "the device's own recipes are symmetric; other models may run more slowly, or on the CPU",
            f"`detent quantize --recipe {subject.device.recipe}` of the float model",
        )


def _is_centred(codes: ValueCodes) -> bool:
    middle = {"uint8": (127, 128), "uint16": (32767, 32768)}.get(codes.dtype, (0,))
    return bool(np.isin(codes.zero_points, middle).all())


def _check_product(node: ir.Node, subject: Subject) -> Iterator[Finding]:
    """A 32-bit bias is added to the products, and so is counted in their unit: input scale times weight scale."""
    bias = bias_input(node)
    if bias is None or len(node.inputs) < 2 or node.inputs[0] is None or node.inputs[1] is None:
        return
    held = [subject.codes.get(str(value.name)) for value in (node.inputs[0], node.inputs[1], bias)]
    scales = [codes.linear.scale.reshape(-1) for codes in held if codes is not None and codes.linear is not None]
    if len(scales) != 3 or held[2] is None or held[2].dtype != "int32":
        return
    source, weight, added = (scale.astype(np.float64) for scale in scales)
    if added.size not in (1, weight.size) or not np.allclose(source * weight, added, rtol=_BIAS_TOLERANCE, atol=0.0):
        yield _finding(
            "error",
            node,
            "the scale of its bias is not that of its input times that of its weights",
            "the device adds the bias to the products as it is",
            f"`detent quantize --recipe {subject.device.recipe}` of the float model",
        )


def _check_concat(node: ir.Node, subject: Subject) -> Iterator[Finding]:
    if not is_standard(node, "Concat"):
        return
    around = [codes for role, _, codes in subject.roles(node) if role == "activations"]
    if any(not around[0].same_as(codes) for codes in around[1:]):
        yield _finding(
            "warning",
            node,
            "what it joins has several scales",
            "the device copies codes: it has to rescale",
            "`detent quantize --target npu-a8w8` gives them one scale",
        )


def _check_positions(subject: Subject) -> Iterator[Finding]:
    for violation in subject.device.constraints.violations(subject.model, plan_of(subject)):
        move = violation.move
        yield Finding(
            "error",
            violation.node,
            violation.op_type,
            f"it breaks the rule '{move.rule}': position {move.before:g} of '{move.value}' should be {move.after:g}",
            "the device's shifters do not reach that far, or it copies codes that have different units",
            "`detent quantize --target npu-xint8` keeps every rule",
        )


def plan_of(subject: Subject) -> Plan:
    """A plan with the positions that a file has; nodes with a tensor that has none are left out of it."""
    decisions: dict[str, Decision] = {}
    sites: dict[str, Site] = {}
    params: dict[str, Params] = {}
    for node in subject.nodes:
        roles = list(subject.roles(node))
        declines = operator_of(node).declines
        shifted = bool(roles) and all(codes.position is not None for _, _, codes in roles)
        shifted = shifted and (declines is None or declines(node) is None)
        decisions[str(node.name)] = Decision(str(node.name), node.op_type, shifted, "read from the file")
        for role, value, codes in roles:
            name = str(value.name)
            if codes.position is not None and name not in sites:
                sites[name] = Site(name, _ROLES[role], str(node.name))
                params[name] = QuantParams.at(IntegerFormat(codes.dtype, scale="power_of_two"), codes.position)
    return Plan(Layout(sites=sites, decisions=decisions), params)


def _called(role: str) -> str:
    return "bias is" if role == "biases" else f"{role} are"


def _finding(level: str, node: ir.Node, what: str, why: str, fix: str) -> Finding:
    return Finding(level, str(node.name), node.op_type, what, why, fix)  # type: ignore[arg-type]
