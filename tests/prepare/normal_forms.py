"""A normalization as exporters write it out: the nodes from `x` to `y`."""

from __future__ import annotations

import numpy as np

from tests.prepare.equivalence import make, node

SPELLINGS = ("pow", "mul", "reciprocal", "two centres", "constants first")


def normalization(shape, axes, scale=None, shift=None, opset=17, spelling="pow", tap=None, keepdims=1):
    """A model. `tap`: a value inside that is an output too."""
    constants = {"eps": np.array(1e-3, np.float32), "two": np.array(2, np.float32)}
    if opset >= 18:
        constants["axes"] = np.array(axes)

    def mean(source, result):
        if opset >= 18:
            return node("ReduceMean", f"{source} axes", result, keepdims=keepdims)
        return node("ReduceMean", source, result, axes=axes, keepdims=keepdims)

    again = spelling == "two centres"
    nodes = [
        mean("x", "m"),
        node("Sub", "x m", "d"),
        *([node("Sub", "x m", "e")] if again else []),
        node("Mul", "d d", "q") if spelling == "mul" else node("Pow", "d two", "q"),
        mean("q", "v"),
        node("Add", "eps v" if spelling == "constants first" else "v eps", "ve"),
        node("Sqrt", "ve", "s"),
    ]
    centred = "e" if again else "d"
    if spelling == "reciprocal":
        nodes += [node("Reciprocal", "s", "r"), node("Mul", f"r {centred}", "n0")]
    else:
        nodes += [node("Div", f"{centred} s", "n0")]
    last = "n0"
    for op, name, array in (("Mul", "scale", scale), ("Add", "shift", shift)):
        if array is not None:
            constants[name] = np.asarray(array, np.float32)
            pair = f"{name} {last}" if spelling == "constants first" else f"{last} {name}"
            last = f"n{len(nodes)}"
            nodes.append(node(op, pair, last))
    nodes[-1].output[0] = "y"
    nodes[-1].name = "last"
    return make(nodes, {"x": list(shape)}, {"y": None} | ({tap: None} if tap else {}), constants, opset)
