"""Operators between two layers, through the recipes that users choose.

Each file loads, is near float, and says why a node stays float.
"""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import detent
from tests.models import info, node, normal, run

RECIPES = ("A8W8", "A16W8", "XINT8", "BF16", "S8S8_AAWS", "MATMUL_NBITS")
MICROSOFT = "com.microsoft"
N, T, C = 1, 6, 16


def scalar(value):
    return np.array(value, np.float32)


def whole(*values):
    return np.array(values, np.int64)


def fused(op, inputs, outputs, **attributes):
    return node(op, inputs, outputs, domain=MICROSOFT, **attributes)


def heads(value):
    return [
        node("Reshape", f"{value} split", f"{value}_s"),
        node("Transpose", f"{value}_s", f"{value}_h", perm=[0, 2, 1, 3]),
    ]


HEADS = {"split": whole(1, T, 4, 4), "merge": whole(1, T, C)}
MERGE = [node("Transpose", "mixed", "mixed_t", perm=[0, 2, 1, 3]), node("Reshape", "mixed_t merge", "b")]
SCALE, BIAS = 1 + normal(C, seed=7) / 4, normal(C, seed=8) / 4
CACHES = {
    "cos": np.cos(np.arange(T)[:, None] / np.arange(1, 3)),
    "sin": np.sin(np.arange(T)[:, None] / np.arange(1, 3)),
}
CACHES = {name: np.float32(each) for name, each in CACHES.items()}
SQUARE = normal(C, C, seed=9) / 4
RECURRENT = {"merge": whole(T, 1, C)}


def recurrent(op, gates, **attributes):
    """A node both ways over T steps; `a` becomes [T, N, C], the result [T, N, C] again."""
    lengths = attributes.pop("lengths", "_")
    constants = {
        "w_r": normal(2, gates * 8, C, seed=10) / 4,
        "r_r": normal(2, gates * 8, 8, seed=11) / 3,
        "b_r": normal(2, 2 * gates * 8, seed=12) / 9,
    }
    constants |= {"merge": whole(T, N, C), "back": whole(N, T, C)}
    constants |= {"lengths": np.full(N, T - 1, np.int32)} if lengths != "_" else {}
    nodes = [
        node("Transpose", "a", "a_t", perm=[1, 0, 2]),
        node(op, f"a_t w_r r_r b_r {lengths}", "r_y", hidden_size=8, direction="bidirectional", **attributes),
        node("Transpose", "r_y", "r_t", perm=[0, 2, 1, 3]),
        node("Reshape", "r_t merge", "r_m"),
        node("Transpose", "r_m", "b", perm=[1, 0, 2]),
    ]
    return nodes, constants, 17


OPERATORS = {
    # what stands between the values `a` and `b`, its constants, and the operator set
    "HardSwish": ([node("HardSwish", "a", "b")], {}, 17),
    "Expand": ([node("ReduceMean", "a", "m", axes=[1]), node("Expand", "m e", "b")], {"e": whole(N, T, C)}, 17),
    "Pow": ([node("Pow", "a p", "b")], {"p": scalar(2)}, 17),
    "Sqrt": ([node("Relu", "a", "r"), node("Sqrt", "r", "b")], {}, 17),
    "ReduceSum": ([node("ReduceSum", "a x1", "m"), node("Add", "m a", "b")], {"x1": whole(1)}, 17),
    "ReduceMax": ([node("ReduceMax", "a", "m", axes=[1]), node("Add", "m a", "b")], {}, 17),
    "Neg": ([node("Neg", "a", "b")], {}, 17),
    "Reciprocal": (
        [node("Sigmoid", "a", "s"), node("Add", "s one", "t"), node("Reciprocal", "t", "b")],
        {"one": scalar(1)},
        17,
    ),
    "LogSoftmax": ([node("LogSoftmax", "a", "b", axis=-1)], {}, 17),
    "Einsum": ([node("Einsum", "a sq", "b", equation="ntc,cd->ntd")], {"sq": SQUARE}, 17),
    "Einsum of attention": (
        [
            *heads("a"),
            node("Einsum", "a_h a_h", "s", equation="bhqd,bhkd->bhqk"),
            node("Softmax", "s", "p", axis=-1),
            node("Einsum", "p a_h", "mixed", equation="bhqk,bhkd->bhqd"),
            *MERGE,
        ],
        HEADS,
        17,
    ),
    "GroupNormalization": (
        [
            node("Transpose", "a", "t", perm=[0, 2, 1]),
            node("GroupNormalization", "t g h", "u", num_groups=4),
            node("Transpose", "u", "b", perm=[0, 2, 1]),
        ],
        {"g": SCALE, "h": BIAS},
        21,
    ),
    "RMSNormalization": ([node("RMSNormalization", "a g", "b", axis=-1)], {"g": SCALE}, 23),
    "RotaryEmbedding": (
        [*heads("a"), node("RotaryEmbedding", "a_h cos sin ids", "mixed"), *MERGE],
        HEADS | CACHES | {"ids": whole(range(T))},
        23,
    ),
    "Attention": ([node("Attention", "a a a", "b", q_num_heads=4, kv_num_heads=4)], {}, 23),
    "Attention, causal": ([node("Attention", "a a a", "b", q_num_heads=4, kv_num_heads=4, is_causal=1)], {}, 24),
    "Microsoft Gelu": ([fused("Gelu", "a", "b")], {}, 17),
    "FastGelu": ([fused("FastGelu", "a h", "b")], {"h": BIAS}, 17),
    "QuickGelu": ([fused("QuickGelu", "a", "b", alpha=1.702)], {}, 17),
    "BiasGelu": ([fused("BiasGelu", "a h", "b")], {"h": BIAS}, 17),
    "SkipLayerNormalization": (
        [fused("SkipLayerNormalization", "a x g h", "b", epsilon=1e-5)],
        {"g": SCALE, "h": BIAS},
        17,
    ),
    "SkipSimplifiedLayerNormalization": (
        [fused("SkipSimplifiedLayerNormalization", "a x g", "b", epsilon=1e-5)],
        {"g": SCALE},
        17,
    ),
    "Microsoft Attention": (
        [fused("Attention", "a qkv qkv_b", "b", num_heads=4)],
        {"qkv": normal(C, 3 * C, seed=9) / 4, "qkv_b": normal(3 * C, seed=3) / 9},
        17,
    ),
    "MultiHeadAttention": ([fused("MultiHeadAttention", "a a a", "b", num_heads=4)], {}, 17),
    "GroupQueryAttention": (
        [
            node("MatMul", "a kw", "k"),
            node("MatMul", "a vw", "v"),
            fused("GroupQueryAttention", "a k v past_k past_v seq total", "b key value", num_heads=2, kv_num_heads=1),
        ],
        {
            "kw": normal(C, 8, seed=4) / 4,
            "vw": normal(C, 8, seed=5) / 4,
            "past_k": np.zeros((1, 1, 0, 8), np.float32),
            "past_v": np.zeros((1, 1, 0, 8), np.float32),
            "seq": np.full((1, 1), T - 1, np.int32),
            "total": np.array(T, np.int32),
        },
        17,
    ),
    "Microsoft RotaryEmbedding": (
        [fused("RotaryEmbedding", "a ids cos sin", "b", num_heads=4)],
        CACHES | {"ids": whole(range(T)).reshape(1, T)},
        17,
    ),
    "MatMulNBits": (
        [fused("MatMulNBits", "a packed scales", "b", K=C, N=C, bits=4, block_size=16)],
        {
            "packed": np.random.default_rng(3).integers(0, 256, (C, 1, 8), np.uint8),
            "scales": np.full(C, 0.05, np.float32),
        },
        17,
    ),
    "LSTM": recurrent("LSTM", 4),
    "GRU": recurrent("GRU", 3, linear_before_reset=1),
    "LSTM with lengths": recurrent("LSTM", 4, lengths="lengths"),
    "GRU with lengths": recurrent("GRU", 3, lengths="lengths"),
}


def model_of(name):
    """Two layers with the operator between them; onnxruntime's operators have no shapes that onnx infers."""
    nodes, constants, opset = OPERATORS[name]
    before = [node("MatMul", "x w1", "a0"), node("Add", "a0 b1", "a")]
    after = [node("MatMul", "b w2", "y")]
    constants = {
        "w1": normal(C, C, seed=1) / 4,
        "b1": normal(C, seed=2) / 4,
        "w2": normal(C, 8, seed=3) / 4,
    } | constants
    tensors = [numpy_helper.from_array(np.asarray(array), key) for key, array in constants.items()]
    inputs, outputs = [info("x", (N, T, C))], [info("y", (N, T, 8))]
    graph = helper.make_graph([*before, *nodes, *after], "small", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def decibels(wanted, got):
    wanted, noise = wanted.astype(np.float64), wanted.astype(np.float64) - got
    return round(float(10 * np.log10(np.square(wanted).sum() / max(np.square(noise).sum(), 1e-30))), 1)


SAMPLES = [{"x": normal(N, T, C, seed=20 + at)} for at in range(16)]

LEAST = {"A8W8": 28, "A16W8": 36, "XINT8": 20, "BF16": 40, "S8S8_AAWS": 27, "MATMUL_NBITS": 12}

# What stays float in A8W8, where anything does, and a word of the reason.
LEFT = {
    "SkipSimplifiedLayerNormalization": ({"Mul", "ReduceMean", "Add", "Sqrt", "Div"}, "norm by the root of a mean"),
    "Microsoft RotaryEmbedding": ({"RotaryEmbedding"}, "which no recipe quantizes"),
    "GroupQueryAttention": ({"GroupQueryAttention"}, "which no recipe quantizes"),
    "MatMulNBits": ({"MatMulNBits"}, "codes already"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_between_two_layers(name, tmp_path):
    if OPERATORS[name][2] > onnx.defs.onnx_opset_version():
        pytest.skip("this onnx does not know the operator yet")
    proto, found = model_of(name), {}
    floats = [run(proto, sample)["y"] for sample in SAMPLES[:4]]
    for recipe in RECIPES:
        path = tmp_path / f"{recipe}.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = detent.quantize(proto, path, SAMPLES, recipe)
        written = onnx.load(path)
        got = [run(written, sample)["y"] for sample in SAMPLES[:4]]
        found[recipe] = decibels(np.stack(floats), np.stack(got))
        left = report.left_float()
        assert all(each.reason for each in left)
        if recipe == "A8W8":
            types, reason = LEFT.get(name, (set(), ""))
            assert {each.op_type for each in left} == types
            assert all(reason in each.reason for each in left)
    assert all(found[recipe] >= least for recipe, least in LEAST.items()), found
