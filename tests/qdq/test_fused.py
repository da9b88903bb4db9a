"""Rounding as one node: the attributes that a compiler reads."""

from __future__ import annotations

import numpy as np
import pytest

from detent.numerics.blocks import BlockFloat, BlockParams, Microscaling
from detent.numerics.formats import IntegerFormat, QuantParams
from detent.qdq.builder import BlockWriter, FixNeuronWriter
from detent.qdq.families import EXTENDED, FIX_NEURON, VITIS
from tests.qdq.test_pairs import graph_writer


def attributes(one):
    return {name: attribute.value for name, attribute in one.attributes.items()}


@pytest.mark.parametrize(
    ("fmt", "name", "expected"),
    [
        (
            BlockFloat(),
            "BFPQuantizeDequantize",
            {"bfp_method": "to_bfp", "bit_width": 16, "axis": 1, "block_size": 8, "rounding_mode": 2},
        ),
        (
            BlockFloat(13, 16, 2, rounding="half_away"),
            "BFPQuantizeDequantize",
            {
                **{"bfp_method": "to_bfp_prime", "bit_width": 13, "axis": 1, "block_size": 16, "rounding_mode": 0},
                **{"sub_block_size": 2, "sub_block_shift_bits": 1},
            },
        ),
        (
            Microscaling("fp6_e3m2"),
            "MXQuantizeDequantize",
            {"element_dtype": "fp6_e3m2", "axis": 1, "block_size": 32, "rounding_mode": 2},
        ),
    ],
)
def test_block_formats(fmt, name, expected):
    stage, x = graph_writer()
    (one,) = BlockWriter(stage, EXTENDED).activation("x", x, BlockParams(fmt, 1))
    assert (one.domain, one.op_type, attributes(one)) == (EXTENDED.domain, name, expected)
    (older,) = BlockWriter(stage, VITIS).activation("x", x, BlockParams(fmt, 1))
    twin = {"BFPQuantizeDequantize": "BFPFixNeuron", "MXQuantizeDequantize": "MXFixNeuron"}[name]
    assert (older.domain, older.op_type, attributes(older)) == (VITIS.domain, twin, expected)


def test_a_constant_in_a_block_format_is_rounded_once():
    # -127.7/64 becomes -128/64 = -2, and with -2 in it the block would have a step of 1/32.
    array = np.array([[-127.7 / 64, 1 / 64]], np.float32)
    params = BlockParams(Microscaling("int8"), 1)
    assert params.snap(array)[0, 0] == -2.0 and params.snap(params.snap(array))[0, 1] != params.snap(array)[0, 1]
    stage, _ = graph_writer()
    (one,) = BlockWriter(stage, EXTENDED).constant("w", array, params)
    np.testing.assert_array_equal(one.inputs[0].const_value.numpy(), array)


@pytest.mark.parametrize(("dtype", "bits"), [("int8", "8"), ("int16", "16")])
def test_fix_neurons(dtype, bits):
    stage, x = graph_writer()
    params = QuantParams.at(IntegerFormat(dtype, scale="power_of_two"), 5)
    (one,) = FixNeuronWriter(stage).activation("x", x, params)
    assert (one.domain, one.op_type) == (FIX_NEURON.domain, FIX_NEURON.fix_neuron)
    assert attributes(one) == {"bit_width": bits, "pos": "5"}
    assert one.inputs[1].const_value.numpy() == 1 / 32
    assert one.inputs[2].const_value.numpy().dtype == np.dtype(dtype)
    (stored,) = FixNeuronWriter(stage).constant("w", np.array([0.3, -0.01], np.float32), params)
    np.testing.assert_array_equal(stored.inputs[0].const_value.numpy(), [10 / 32, 0])
