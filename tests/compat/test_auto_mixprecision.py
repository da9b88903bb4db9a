from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from detent.compat.algorithms import AutoMixprecisionConfig
from detent.compat.auto_mixprecision import JudgedSearch, MixedSearch, mixed_of
from detent.compat.configs import QConfig
from detent.compat.data_types import BFP16Spec, Int8, Int8Spec, Int16Spec, QLayerConfig, XInt8Spec
from detent.compat.entry_points import ModelQuantizer
from detent.compat.enums import ExtendedQuantType, VitisQuantType
from detent.compat.layer_tensors import LayerFormats
from detent.compat.option_rows import ScriptNote
from detent.errors import UsageError
from detent.numerics.blocks import BlockFloat
from detent.numerics.formats import IntegerFormat
from detent.recipe import Override
from detent.recipe.recipe import LAYERS, PRESETS
from detent.search.mixed_precision import Layers, OtherFormats
from tests.conftest import tiny_model

INT8 = QLayerConfig(Int8Spec(), Int8Spec())
USUAL = PRESETS["A16W8"]


def mixed(params):
    return mixed_of(params, USUAL)


def test_every_layer_or_those_that_are_named():
    target = QLayerConfig(Int8Spec(), BFP16Spec())
    [everywhere] = mixed({"TargetLayerConfig": target, "DualQuantNodes": True})
    int8, blocks = IntegerFormat("int8"), BlockFloat(rounding="half_away")
    assert everywhere == Override(op_types=LAYERS, activations=int8, weights=blocks)
    [convs] = mixed({"TargetLayerConfig": target, "TargetOpType": ["Conv"], "MetricThreshold": 0})
    assert convs.part.op_types == ("Conv",)
    [named] = mixed({"TargetLayerConfig": QLayerConfig(XInt8Spec(), XInt8Spec()), "IncludeLayers": ["a", "b"]})
    assert (named.part.nodes, named.part.op_types) == (("a", "b"), ())
    assert named.formats["weights"] == IntegerFormat("int8", scale="power_of_two")
    assert named.written is None
    [both] = mixed({"TargetLayerConfig": INT8, "IncludeLayers": ["a"], "DualQuantNodes": True})
    assert (both.nodes, both.activations) == (("a",), int8)
    wide = QLayerConfig(Int16Spec(), Int8Spec(), output_tensors=Int16Spec())
    [through] = mixed({"TargetLayerConfig": wide, "IncludeLayers": ["a"]})
    assert through.written == through.formats["activations"] == IntegerFormat("int16")


def test_a_specification_may_be_a_dictionary():
    blocks = QLayerConfig(*(BFP16Spec() for _ in range(2)), output_tensors=BFP16Spec())
    written = {
        "TargetLayerConfig": {name: None if each is None else each.to_dict() for name, each in vars(blocks).items()}
    }
    [found], [same] = mixed(written), mixed({"TargetLayerConfig": blocks})
    assert found == same
    assert found.written == found.formats["weights"] == BlockFloat(rounding="half_away")
    assert mixed({"TargetLayerConfig": [INT8.to_dict(), INT8.to_dict()]}) == mixed({"TargetLayerConfig": INT8})


def test_biases_are_among_what_is_changed():
    [found] = mixed({"TargetLayerConfig": QLayerConfig(Int8Spec(), Int8Spec(), bias=Int16Spec())})
    assert found.formats["biases"] == IntegerFormat("int16")


def test_older_names():
    [found] = mixed({"ActTargetQuantType": ExtendedQuantType.QInt16, "WeightTargetQuantType": VitisQuantType.QInt8})
    assert found.formats == {"activations": IntegerFormat("int16"), "weights": IntegerFormat("int8")}


def search(**params):
    [found] = mixed({"TargetLayerConfig": INT8, **params})
    return found


def test_a_threshold_asks_for_a_search():
    found = search(MetricThreshold=-30, MetricDefault="sqnr", TargetOpType=["Conv"], ExcludeLayers=["head"], DataSize=7)
    int8 = IntegerFormat("int8")
    layers = Layers(op_types=("Conv",), exclude=("head",))
    assert found == MixedSearch(OtherFormats(int8, int8), layers, "sqnr", -30.0, samples=7)
    assert search(L2Target=0.5) == search(MetricThreshold=0.5) == search(MetricThreshold=0.5, MetricDefault="l2")
    assert search(MetricThreshold=0.5).layers == Layers(op_types=LAYERS)
    assert isinstance(search(MetricThreshold=0, L2Target=None), LayerFormats)


def test_bounds_on_the_power_of_the_error():
    assert search(MetricThreshold=-30, MetricDefault="sqnr").bound(5.0) == pytest.approx(1e-3)
    assert search(MetricThreshold=3.0).bound(36.0) == 0.25
    assert search(MetricThreshold=3.0).bound(0.0) == math.inf
    assert search(MetricThreshold=0.2, MetricDefault="cosine").bound(1.0) == pytest.approx(0.36)


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.99))
def test_an_error_below_the_bound_keeps_the_metric_below_the_threshold(seed, share):
    rng = np.random.default_rng(seed)
    y, e = rng.standard_normal((2, 5, 4))
    for metric, threshold in (("l2", 0.7), ("cosine", 0.1)):
        bound = search(MetricThreshold=threshold, MetricDefault=metric).bound(np.square(y).sum(1).mean())
        rows = [(y, e)] if metric == "l2" else [(each[None], other[None]) for each, other in zip(y, e, strict=True)]
        for signal, noise in rows:
            scaled = noise * np.sqrt(share * bound * np.square(signal).sum() / np.square(noise).sum())
            found = signal + scaled
            if metric == "l2":
                assert np.linalg.norm(scaled, axis=1).mean() <= threshold
            else:
                cosine = (signal * found).sum() / np.linalg.norm(signal) / np.linalg.norm(found)
                assert 1 - cosine <= threshold + 1e-12


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"MetricThreshold": "low"}, "MetricThreshold='low'"),
        ({"MetricThreshold": 30, "MetricDefault": "sqnr"}, "below 0, such as -30"),
        ({"MetricThreshold": 1.5, "MetricDefault": "cosine"}, "between 0 and 1"),
        ({"MetricThreshold": -1}, "above 0"),
        ({"MetricThreshold": 0.5, "MetricDefault": "cosin"}, "Did you mean 'cosine'"),
        ({"MetricThreshold": 0.5, "L2Target": 0.1}, "Give one"),
        ({"MetricThreshold": 0.5, "TargetLayerConfig": QLayerConfig(Int8Spec(), BFP16Spec())}, "weights of the target"),
        ({"Top1AccTarget": 0.1}, "Top1AccTarget has no EvaluateFunction"),
        ({"TargetLayerConfg": None}, "no key 'TargetLayerConfg'. Did you mean 'TargetLayerConfig'"),
        ({"TargetLayerConfig": None}, "TargetLayerConfig is None"),
        ({"TargetQuantType": ExtendedQuantType.QInt16}, "Give one"),
        ({"TargetLayerConfig": QLayerConfig(Int8Spec(), output_tensors=Int16Spec())}, "output_tensors"),
    ],
)
def test_what_cannot_be_had_is_named(params, message):
    with pytest.raises(UsageError, match=message):
        search(**params)


def test_excluded_layers_keep_their_format():
    everywhere, kept = mixed({"TargetLayerConfig": INT8, "ExcludeLayers": ["head"]})
    assert everywhere.formats["activations"] == IntegerFormat("int8")
    assert (kept.part.nodes, kept.formats["activations"]) == (("head",), USUAL.activations)


def test_an_analysis_alone_changes_nothing():
    with pytest.warns(ScriptNote, match="leaves all layers as they are"):
        assert mixed({"TargetLayerConfig": INT8, "MetricThreshold": None}) == []


def test_metrics_that_are_no_power_of_an_error():
    outputs = [np.array([1.0, 3.0]), np.array([2.0, 2.0])]
    divergence = search(MetricThreshold=0.5, MetricDefault="kl")
    assert isinstance(divergence, JudgedSearch)
    assert divergence.difference(outputs, outputs) == pytest.approx(0)
    halves = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert divergence.difference(outputs, [outputs[1], outputs[1]]) == pytest.approx(halves / 2)
    ratio = search(MetricThreshold=-20, MetricDefault="psnr")
    assert ratio.difference(outputs[:1], [np.array([1.0, 2.0])]) == pytest.approx(-10 * math.log10(9 / 0.5))


class Reader:
    """Gives its data once."""

    def __init__(self, feeds):
        self._feeds = iter(feeds)

    def get_next(self):
        return next(self._feeds, None)


def codes_of(model):
    return {each.name: each.data_type for each in model.graph.initializer if each.name.endswith("_quantized")}


@pytest.mark.parametrize(("threshold", "narrow"), [(-10, 2), (-200, 0)])
def test_the_search_comes_before_the_quantization(threshold, narrow, samples):
    config = QConfig(
        QLayerConfig(Int16Spec(), Int16Spec()),
        algo_config=[AutoMixprecisionConfig(INT8, metric_default="sqnr", metric_threshold=threshold, data_size=3)],
        PrintSummary=False,
    )
    reader = Reader([{"x": each} for each in samples])
    with contextlib.nullcontext() if narrow else pytest.warns(UserWarning, match="no choice of layers keeps sqnr"):
        model = ModelQuantizer(config).quantize_model(tiny_model(), None, reader)
    types = codes_of(model)
    weights = [types[name] for name in ("w1_quantized", "w2_quantized")]
    assert weights.count(TensorProto.INT8) == narrow
    assert weights.count(TensorProto.INT16) == 2 - narrow


@pytest.mark.parametrize(("worst", "narrow"), [(1.0, 2), (1e-9, 0)])
def test_a_function_of_the_script_judges(worst, narrow, samples):
    """As the older tools have it: it is given the first output for each sample, and its loss has a bound."""
    seen = []

    def accuracy(answers):
        seen.append(np.array(answers))
        return -float(np.abs(seen[-1] - seen[0]).max())

    mixed = AutoMixprecisionConfig(
        act_target_quant_type=Int8, weight_target_quant_type=Int8, top1_acc_target=worst, evaluate_function=accuracy
    )
    config = QConfig(QLayerConfig(Int16Spec(), Int16Spec()), algo_config=[mixed], PrintSummary=False)
    reader = Reader([{"x": each[None]} for each in samples])
    with contextlib.nullcontext() if narrow else pytest.warns(UserWarning, match="by the script's function"):
        model = ModelQuantizer(config).quantize_model(tiny_model(), None, reader)
    assert len(seen[0]) == len(samples)
    weights = [codes_of(model)[name] for name in ("w1_quantized", "w2_quantized")]
    assert weights.count(TensorProto.INT8) == narrow
