from __future__ import annotations

import pytest

from detent.compat.enums import ExtendedQuantType, VitisQuantType
from detent.compat.mixed import override_of
from detent.compat.specs import BFP16Spec, Int8Spec, Int16Spec, QLayerConfig, XInt8Spec
from detent.errors import UsageError
from detent.numerics.block_float import BlockFloat
from detent.numerics.formats import IntegerFormat
from detent.presets import LAYERS
from detent.recipe import Override

INT8 = QLayerConfig(Int8Spec(), Int8Spec())


def test_every_layer_or_those_that_are_named():
    target = QLayerConfig(Int8Spec(), BFP16Spec())
    everywhere = override_of({"TargetLayerConfig": target, "DualQuantNodes": True})
    int8, blocks = IntegerFormat("int8"), BlockFloat(rounding="half_away")
    assert everywhere == Override(op_types=LAYERS, activations=int8, weights=blocks)
    convs = override_of({"TargetLayerConfig": target, "TargetOpType": ["Conv"], "MetricThreshold": 0})
    assert convs.op_types == ("Conv",)
    named = override_of({"TargetLayerConfig": QLayerConfig(XInt8Spec(), XInt8Spec()), "IncludeLayers": ["a", "b"]})
    assert (named.nodes, named.op_types) == (("a", "b"), ())
    assert named.weights == IntegerFormat("int8", scale="power_of_two")


def test_biases_are_among_what_is_changed():
    found = override_of({"TargetLayerConfig": QLayerConfig(Int8Spec(), Int8Spec(), bias=Int16Spec())})
    assert found.biases == IntegerFormat("int16")


def test_older_names():
    found = override_of({"ActTargetQuantType": ExtendedQuantType.QInt16, "WeightTargetQuantType": VitisQuantType.QInt8})
    assert (found.activations, found.weights) == (IntegerFormat("int16"), IntegerFormat("int8"))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"MetricThreshold": 0.5}, "MetricThreshold=0.5 asks for a search"),
        ({"L2Target": 0.1}, "L2Target"),
        ({"ExcludeLayers": ["a"]}, "ExcludeLayers"),
        ({"TargetLayerConfg": None}, "no 'TargetLayerConfg'. Did you mean 'TargetLayerConfig'"),
        ({}, "TargetLayerConfig is None"),
        ({"TargetLayerConfig": INT8, "TargetQuantType": ExtendedQuantType.QInt16}, "Give one"),
        ({"TargetLayerConfig": QLayerConfig(Int8Spec(), output_tensors=Int16Spec())}, "output_tensors"),
    ],
)
def test_searches_are_refused_by_name(params, message):
    with pytest.raises(UsageError, match=message):
        override_of(params)
