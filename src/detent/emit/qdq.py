"""QDQ: every site becomes QuantizeLinear and DequantizeLinear of the standard operator set.

An activation x becomes x -> QuantizeLinear -> DequantizeLinear -> its readers. A graph output keeps its name: the node
before it is renamed. A weight or bias becomes its integer codes behind a DequantizeLinear alone, encoded from float
here, with the final position. A graph input or a weight that is a graph output too goes out as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from detent.errors import UsageError
from detent.graph.names import Names
from detent.graph.values import add_initializer, constant
from detent.numerics.formats import QuantParams
from detent.plan.layout import Role, site_inputs
from detent.plan.plan import Plan
from detent.recipe import Recipe

SIXTEEN_BITS = 16
CODE_TYPES = ("int8", "uint8", "int16", "uint16")
BIAS_TYPES = (*CODE_TYPES, "int32")


def check_formats(recipe: Recipe) -> None:
    """Raise UsageError where a recipe asks for numbers that cannot be written."""
    roles = (
        ("activations", recipe.activations, CODE_TYPES),
        ("weights", recipe.weights, CODE_TYPES),
        ("biases", recipe.biases, BIAS_TYPES),
    )
    for role, fmt, types in roles:
        where = f"The {role} of recipe {recipe.name}"
        if fmt.dtype not in types:
            raise UsageError(
                f"{where} are {fmt.dtype}, which cannot be written as codes. Choose from {', '.join(types)}."
            )
        if fmt.per_channel and role != "weights":
            raise UsageError(f"{where} are per_channel: only weights have a scale for each output channel.")
        if fmt.power_of_two and not fmt.symmetric:
            raise UsageError(
                f"{where} have power_of_two scales and symmetric=False: with those the zero point is always the middle "
                "code. Choose one of the two."
            )


def emit_qdq(model: ir.Model, plan: Plan) -> Mapping[str, str]:
    """Quantize `model` in place as planned. Returns, for each activation site, the name of its dequantized value."""
    emitter = _Emitter(model, plan)
    values = {str(value.name): value for value in _values(model.graph)}
    dequantized: dict[str, str] = {}
    for site in plan.layout.sites.values():
        if site.role is Role.ACTIVATION:
            dequantized[site.value] = emitter.activation(values[site.value])
        else:
            emitter.constant(values[site.value])
    if any(node.domain == "com.microsoft" for node in model.graph):
        model.graph.opset_imports["com.microsoft"] = 1
    model.graph.sort()
    return dequantized


def _values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]


def _redirect(value: ir.Value, result: ir.Value) -> None:
    """Let every node that reads `value`, those in the bodies of an If or Loop included, read `result`."""
    for node, index in tuple(value.uses()):
        node.replace_input_with(index, result)


class _Emitter:
    def __init__(self, model: ir.Model, plan: Plan) -> None:
        self._graph = model.graph
        self._plan = plan
        self._names = Names(model)
        self._order = {node: index for index, node in enumerate(model.graph)}
        self._first = next(iter(model.graph))

    def activation(self, value: ir.Value) -> str:
        """Insert the pair behind an activation; the name of what its readers now read."""
        name = str(value.name)
        params = self._plan.of(name)
        scale, zero_point = self._parameters(name, params)
        quantize = ir.node(
            "QuantizeLinear",
            [value, scale, zero_point],
            domain=_domain(params),
            name=self._names.fresh(f"{name}_QuantizeLinear"),
        )
        codes = quantize.outputs[0]
        codes.type, codes.shape = ir.TensorType(zero_point.dtype or ir.DataType.UINT8), value.shape
        dequantize, result = self._dequantize(name, codes, scale, zero_point, value, params)
        if value.is_graph_output() and not value.is_graph_input():
            value.replace_all_uses_with(result, replace_graph_outputs=True)
            value.name, result.name = self._names.fresh(f"{name}_QuantizeLinear_Input"), name
        else:
            _redirect(value, result)
        quantize.replace_input_with(0, value)
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(self._first, [quantize, dequantize])
        else:
            self._graph.insert_after(producer, [quantize, dequantize])
        codes.name = self._names.fresh(f"{name}_QuantizeLinear_Output")
        return str(result.name)

    def constant(self, value: ir.Value) -> None:
        """Replace a float constant by its codes behind a DequantizeLinear."""
        name, array = str(value.name), constant(value)
        assert array is not None, f"site '{name}' is no constant"
        params = self._plan.of(name)
        encoded = params.encode(self._plan.refined.get(name, array)).astype(params.format.dtype)
        codes = add_initializer(self._graph, self._names.fresh(f"{name}_quantized"), encoded)
        scale, zero_point = self._parameters(name, params)
        dequantize, result = self._dequantize(name, codes, scale, zero_point, value, params)
        readers = [(node, index) for node, index in value.uses() if self._reads_codes(node, index)]
        self._graph.insert_before(min((node for node, _ in readers), key=self._order.__getitem__), [dequantize])
        for node, index in readers:
            node.replace_input_with(index, result)
        if not value.is_graph_output() and not value.uses():
            del self._graph.initializers[name]

    def _reads_codes(self, node: ir.Node, index: int) -> bool:
        """Whether a reader of a constant reads it as data; a bound of a Clip, or the body of an If, does not."""
        in_main_graph = node.graph is self._graph
        return in_main_graph and self._plan.layout.quantizes(node) and index in site_inputs(node)

    def _dequantize(
        self,
        name: str,
        codes: ir.Value,
        scale: ir.Value,
        zero_point: ir.Value,
        like: ir.Value,
        params: QuantParams,
    ) -> tuple[ir.Node, ir.Value]:
        node = ir.node(
            "DequantizeLinear",
            [codes, scale, zero_point],
            {} if params.axis is None else {"axis": params.axis % len(like.shape or (0,))},
            domain=_domain(params),
            name=self._names.fresh(f"{name}_DequantizeLinear"),
        )
        result = node.outputs[0]
        result.type, result.shape = like.type, like.shape
        result.name = self._names.fresh(f"{name}_DequantizeLinear_Output")
        return node, result

    def _parameters(self, name: str, params: QuantParams) -> tuple[ir.Value, ir.Value]:
        """The scale and zero point of a site as initializers: scalars, or one number per channel."""
        scale, zero_point = params.scale.astype(np.float32), params.zero_point.astype(params.format.dtype)
        return (
            add_initializer(self._graph, self._names.fresh(f"{name}_scale"), scale),
            add_initializer(self._graph, self._names.fresh(f"{name}_zero_point"), zero_point),
        )


def _domain(params: QuantParams) -> str:
    """The standard operators hold 16-bit codes from opset 21 on; before it, onnxruntime's twins of them do."""
    return "com.microsoft" if params.format.bits == SIXTEEN_BITS else ""
