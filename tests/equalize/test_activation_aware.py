from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import detent
from detent import find_preset
from detent.equalizations import Awq
from detent.equalize.activation_aware import AwqSmoother
from detent.errors import UsageError
from detent.graph.session import Runner
from detent.pipeline.judged import JudgedOutputs
from detent.recipe.file import from_plain, to_plain, with_settings
from tests.equalize.test_smooth_quant import NORM, PARAMETERS, X, inputs, pending
from tests.models import as_ir, build, find, node, normal, run
from tests.transformer_models import Style, bert, bert_data, vit, vit_data

OUTLYING = vit(Style(mask=0.0, outliers=40.0))
SMALL = with_settings(find_preset("MATMUL_NBITS"), ["weights.granularity=per_group:16"])


def to_four_bits(_name):
    return lambda numbers: np.rint(numbers * (7 / np.abs(numbers).max())) * (np.abs(numbers).max() / 7)


def test_the_model_stays_the_same_and_layers_that_share_a_value_share_factors():
    layers = [node("MatMul", "n w", "y"), node("Gemm", "m u", "t", transB=1), node("Reshape", "n s", "m")]
    constants = PARAMETERS | {"u": normal(3, 4, seed=5), "s": np.array([6, 4])}
    proto = build([NORM, layers[0], layers[2], layers[1]], "y t", constants, [X])
    feeds = inputs(2, 3, 4, count=6)
    model = as_ir(proto)
    done = AwqSmoother(insert=True).smooth(model, pending(*feeds), to_four_bits)
    assert set(done.factors) <= {"n", "m"}
    assert done.factors
    for sample in feeds:
        want, got = run(proto, sample), run(ir.to_proto(model), sample)
        for name, array in want.items():
            np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-4)
    again = as_ir(proto)
    AwqSmoother(insert=True).smooth_again(again, done.factors)
    assert ir.to_proto(again) == ir.to_proto(model)


def test_weights_that_stay_float_are_left_alone_and_said_so():
    proto = build([NORM, node("MatMul", "n w", "y")], "y", PARAMETERS, [X])
    model = as_ir(proto)
    done = AwqSmoother().smooth(model, pending(*inputs(2, 3, 4)), lambda name: None)
    assert done.declined == {"matmul_y": "its weights are not rounded"}
    np.testing.assert_array_equal(find(model, "matmul_y").inputs[1].const_value.numpy(), PARAMETERS["w"])


def test_one_sample_is_enough_to_learn_and_to_confirm():
    proto = build([NORM, node("MatMul", "n w", "y")], "y", PARAMETERS, [X])
    done = AwqSmoother().smooth(as_ir(proto), pending(*inputs(2, 3, 4, count=1)), to_four_bits)
    assert done.layers or done.declined


def closeness(report):
    return report.fidelity.outputs["logits"].sqnr_db


def test_four_bit_weights_of_a_transformer_are_closer_with_it(tmp_path):
    data = vit_data(24)
    plain = detent.quantize(OUTLYING, tmp_path / "plain.onnx", data, SMALL)
    scaled = detent.quantize(OUTLYING, tmp_path / "awq.onnx", data, SMALL.replace(smooth=Awq()))
    assert closeness(scaled) > closeness(plain) + 1
    assert scaled.smoothing.layers
    assert scaled.smoothing.inserted == 0
    assert "smooth" in to_plain(scaled.recipe)
    both = detent.quantize(OUTLYING, tmp_path / "both.onnx", data, SMALL, smooth="Awq", refine="Gptq")
    assert closeness(both) > closeness(plain)


def test_a_mul_is_put_in_on_request_only(tmp_path):
    style = Style(outliers=40.0)
    folded, inserted = (
        detent.quantize(bert(style), tmp_path / f"{at}.onnx", bert_data(16), SMALL, smooth=smooth)
        for at, smooth in enumerate(("Awq", "Awq:insert=true"))
    )
    assert folded.smoothing is None or folded.smoothing.inserted == 0
    assert inserted.smoothing.inserted > 0
    assert len(inserted.smoothing.layers) > len(folded.smoothing.layers if folded.smoothing else ())
    assert {each.op_type for each in inserted.nodes if "/smooth" in each.node} == {"Mul"}
    assert Runner(detent.graph.load.load(tmp_path / "1.onnx"))(bert_data(1)[0])


def test_it_is_taken_back_where_the_answers_get_worse(tmp_path, monkeypatch):
    monkeypatch.setattr(JudgedOutputs, "error", lambda self, model, plan, seen=[]: (seen.append(1), -len(seen))[1])
    report = detent.quantize(OUTLYING, tmp_path / "out.onnx", vit_data(16), SMALL, smooth="Awq")
    assert report.smoothing is None
    assert [each for each in report.remarks if "Awq was taken back" in each]
    monkeypatch.undo()
    plain = detent.quantize(OUTLYING, tmp_path / "plain.onnx", vit_data(16), SMALL)
    assert closeness(report) == closeness(plain)


def test_without_data_it_is_left_out_and_said_so(tmp_path):
    report = detent.quantize(OUTLYING, tmp_path / "out.onnx", None, SMALL, smooth="Awq")
    assert [each for each in report.remarks if "Awq was left out: it needs data" in each]
    assert report.smoothing is None


def test_statistics_remember_what_they_were_smoothed_by(tmp_path):
    recipe = find_preset("A8W8").replace(smooth=Awq(steps=5), widen=None)
    kept = tmp_path / "kept.stats"
    first = detent.quantize(OUTLYING, tmp_path / "1.onnx", vit_data(16), recipe, save_stats=kept)
    second = detent.quantize(OUTLYING, tmp_path / "2.onnx", vit_data(16), recipe, stats=kept)
    assert (tmp_path / "1.onnx").read_bytes() == (tmp_path / "2.onnx").read_bytes()
    assert (first.smoothing is None) == (second.smoothing is None or not second.smoothing.layers)
    if first.smoothing is not None:
        with pytest.raises(UsageError, match="after smoothing by Awq:steps=5"):
            detent.quantize(OUTLYING, tmp_path / "3.onnx", vit_data(16), recipe.replace(smooth=0.5), stats=kept)


def test_recipes_have_it_as_text_and_as_a_table():
    recipe = find_preset("MATMUL_NBITS").replace(smooth=Awq(rows=64))
    assert from_plain(to_plain(recipe) | {"base": "MATMUL_NBITS"}) == recipe
    assert with_settings(recipe, ["smooth.steps=5"]).smooth == Awq(steps=5, rows=64)
    assert with_settings(recipe, ["smooth=0.25"]).smooth == 0.25
    assert with_settings(recipe, ["smooth=none"]).smooth is None
    with pytest.raises(UsageError, match="alpha of SmoothQuant"):
        with_settings(recipe, ["smooth=2"])
    with pytest.raises(UsageError, match="no field 'alpha'"):
        with_settings(recipe, ["smooth.alpha=5"])
