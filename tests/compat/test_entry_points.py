from __future__ import annotations

import inspect
import warnings

import numpy as np
import onnx
import onnxruntime.quantization as real
import pytest

import detent
from detent.compat.configs import Config, QuantizationConfig, get_default_config
from detent.compat.entry_points import (
    DynamicQuantConfig,
    ModelQuantizer,
    StaticQuantConfig,
    quantize,
    quantize_dynamic,
    quantize_static,
    vai_quantize_static,
)
from detent.compat.entry_points import quark_quantize_dynamic as quark_dynamic
from detent.compat.entry_points import quark_quantize_static as quark_static
from detent.compat.enums import CalibrationMethod, PowerOfTwoMethod, QuantFormat, QuantType, VitisQuantFormat
from detent.compat.option_rows import ScriptNote
from detent.errors import DetentError, ModelError, UsageError
from tests.conftest import tiny_model
from tests.models import build, info, node, run, since_runtime


class Reader:
    def __init__(self, samples):
        self.samples = iter([{"x": sample[np.newaxis]} for sample in samples])

    def get_next(self):
        return next(self.samples, None)


def _quiet(preset="XINT8", **changes):
    config = get_default_config(preset)
    config.print_summary = False
    for name, value in changes.items():
        setattr(config, name, value)
    return Config(config)


def _left_float(model):
    """The convolutions whose weights are not dequantized."""
    dequantized = {node.output[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    return {node.name for node in model.graph.node if node.op_type == "Conv" and node.input[1] not in dequantized}


def test_without_an_output_the_model_is_returned(samples):
    model = tiny_model()
    before = model.SerializeToString()
    quantized = ModelQuantizer(_quiet()).quantize_model(model, None, Reader(samples))
    assert isinstance(quantized, onnx.ModelProto)
    assert model.SerializeToString() == before
    onnx.checker.check_model(quantized)


def test_with_an_output_nothing_is_returned(tiny, tmp_path, samples):
    done = ModelQuantizer(_quiet()).quantize_model(tiny, tmp_path / "out.onnx", calibration_data_reader=Reader(samples))
    assert done is None
    assert (tmp_path / "out.onnx").is_file()


def test_data_from_a_folder(tiny, tmp_path, samples):
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "all.npy", samples)
    ModelQuantizer(_quiet()).quantize_model(tiny, tmp_path / "a.onnx", calibration_data_path=str(tmp_path / "data"))
    assert (tmp_path / "a.onnx").is_file()


def test_without_data_it_is_random_and_says_so(tiny, tmp_path):
    with pytest.warns(UserWarning, match="random data"):
        ModelQuantizer(_quiet()).quantize_model(tiny, tmp_path / "a.onnx")
    options = {"RandomDataReaderInputDataRange": {"x": [-1, 1]}, "ActivationSymmetric": True}
    with pytest.warns(UserWarning, match="random data"):
        ModelQuantizer(_quiet(extra_options=options)).quantize_model(tiny, tmp_path / "b.onnx")


def test_nodes_are_excluded_by_name_expression_and_part(samples):
    for changes in (
        {"nodes_to_exclude": ["second"]},
        {"nodes_to_exclude": ["^sec.*"]},
        {"subgraphs_to_exclude": [(["second"], ["second"])]},
        {"output_nodes": ["relu"]},
    ):
        model = ModelQuantizer(_quiet(**changes)).quantize_model(tiny_model(), None, Reader(samples))
        assert _left_float(model) == {"second"}, changes
    model = ModelQuantizer(_quiet(input_nodes=["second"])).quantize_model(tiny_model(), None, Reader(samples))
    assert _left_float(model) == {"first"}
    for pattern in ("third", "^third.*"):
        with pytest.warns(ScriptNote, match="third"):
            quantizer = ModelQuantizer(_quiet(nodes_to_exclude=[pattern, "second"]))
            assert _left_float(quantizer.quantize_model(tiny_model(), None, Reader(samples))) == {"second"}


def test_external_data(tmp_path, samples):
    rng = np.random.default_rng(1)
    shapes = {"w1": (64, 3, 3, 3), "b1": (64,), "w2": (2, 64, 1, 1)}
    wide = tiny_model(**{name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})
    data = tmp_path / "out.onnx.data"
    sizes = []
    for external in (False, True, True):
        config = _quiet(use_external_data_format=external)
        ModelQuantizer(config).quantize_model(wide, tmp_path / "out.onnx", Reader(samples))
        assert data.exists() == external
        onnx.checker.check_model(tmp_path / "out.onnx")
        sizes.append(data.stat().st_size if external else 0)
    assert sizes[1] == sizes[2]  # what is written again does not grow


def test_channels_last(tiny, tmp_path, samples):
    plain, turned = tmp_path / "plain.onnx", tmp_path / "turned.onnx"
    ModelQuantizer(_quiet()).quantize_model(tiny, plain, Reader(samples))
    ModelQuantizer(_quiet(convert_nchw_to_nhwc=True)).quantize_model(tiny, turned, Reader(samples))
    expected = run(onnx.load(plain), {"x": samples[:1]})["y"]
    found = run(onnx.load(turned), {"x": samples[:1].transpose(0, 2, 3, 1)})["y"]
    np.testing.assert_array_equal(found, expected)
    returned = ModelQuantizer(_quiet(convert_nchw_to_nhwc=True)).quantize_model(tiny, None, Reader(samples))
    assert returned == onnx.load(turned)


def test_the_result_may_take_the_place_of_the_model(tiny, tmp_path, samples):
    ModelQuantizer(_quiet()).quantize_model(tiny, tmp_path / "other.onnx", Reader(samples))
    ModelQuantizer(_quiet()).quantize_model(tiny, tiny, Reader(samples))
    feeds = {"x": samples[:1]}
    np.testing.assert_array_equal(run(onnx.load(tiny), feeds)["y"], run(onnx.load(tmp_path / "other.onnx"), feeds)["y"])


def test_pairs_between_operators_are_removed(samples):
    model = build(
        [node("Mul", "x c", "m"), node("Add", "m c", "a"), node("Relu", "a", "y")], "y", {"c": np.float32(1.5)}
    )
    counts = []
    for options in ({}, {"RemoveQDQMulAdd": True}, {"RemoveQDQBetweenOps": [("Conv", "Conv")]}):
        config = _quiet("S8S8_AAWS", extra_options=options)
        quantized = ModelQuantizer(config).quantize_model(model, None, Reader(samples))
        counts.append(sum(each.op_type == "QuantizeLinear" for each in quantized.graph.node))
    assert counts == [counts[0], counts[0] - 1, counts[0]]


def test_statistics_are_kept_and_used_again(tiny, tmp_path, samples):
    options = {"SaveAndRestore": str(tmp_path / "ranges.stats"), "ActivationSymmetric": True}
    first = ModelQuantizer(_quiet(extra_options=options)).quantize_model(tiny, None, Reader(samples))
    assert (tmp_path / "ranges.stats").is_file()
    again = ModelQuantizer(_quiet(extra_options=options)).quantize_model(tiny, None, Reader(samples))
    assert first == again


def test_arguments_that_mean_nothing(tiny):
    with pytest.raises(UsageError, match="found str"):
        ModelQuantizer("XINT8")
    with pytest.raises(UsageError, match="algo_config"):
        ModelQuantizer(_quiet()).quantize_model(tiny, algorithms=["cle"])


@pytest.mark.parametrize("kind", ["a reader", "a folder"])
def test_every_sample_calibrates(tiny, samples, tmp_path, kind):
    """The eighth sample, which is judged by, has the largest value of all."""
    many = np.concatenate([samples, samples])[:16]
    many[7, 0, 0, 0] = 100.0
    for index, sample in enumerate(many):
        np.save(tmp_path / f"{index:02}.npy", sample[np.newaxis])
    given = {"calibration_data_reader": Reader(many)} if kind == "a reader" else {"calibration_data_path": tmp_path}
    made = ModelQuantizer(_quiet("S8S8_AAWS", calibrate_method=CalibrationMethod.MinMax)).quantize_model(tiny, **given)
    read = next(node for node in made.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "x")
    scale = {each.name: onnx.numpy_helper.to_array(each) for each in made.graph.initializer}[read.input[1]]
    assert scale == pytest.approx((100.0 - min(0, float(many.min()))) / 255, rel=1e-5)


@pytest.mark.parametrize("kind", ["a reader", "a folder"])
def test_a_reader_leaves_no_checkpoint_and_no_warning_of_one(tiny, samples, tmp_path, monkeypatch, kind):
    np.save(tmp_path / "0.npy", samples)
    given = Reader(samples) if kind == "a reader" else None
    asked = {}
    made = detent.quantize
    monkeypatch.setattr(detent, "quantize", lambda *args, **options: asked.update(options) or made(*args, **options))
    ModelQuantizer(_quiet("XINT8")).quantize_model(tiny, None, given, None if given else tmp_path)
    assert asked["resume"] == (kind == "a folder")


def test_messages_speak_of_what_a_script_can_change():
    """An input without a shape cannot be run, for which a command would be given a flag."""
    model = build(
        [node("Reshape", "x shape", "y")], "y", {"shape": np.array([7, 11])}, [info("x", (1, 3, "height", 8))]
    )
    with pytest.raises(DetentError) as raised:
        ModelQuantizer(_quiet("S8S8_AAWS")).quantize_model(model)
    assert "of the reader" in str(raised.value)
    assert "--" not in str(raised.value)


def test_a_reader_whose_rewind_does_not_work_is_read_once(tiny, samples):
    class Broken(Reader):
        def rewind(self):
            self.samples = None  # as readers have it whose get_next() does not start again

    made = [ModelQuantizer(_quiet()).quantize_model(tiny, None, kind(samples)) for kind in (Reader, Broken)]
    assert made[0] == made[1]


def test_data_of_the_script_calibrates_whatever_the_preset_says_of_random_data(tiny, samples):
    """VINT8 says UseRandomData, which is for scripts without data."""
    config = get_default_config("VINT8")
    config.print_summary = False
    found = []
    for scale in (1, 64):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            warnings.simplefilter("ignore", ScriptNote)
            made = ModelQuantizer(Config(config)).quantize_model(tiny, None, Reader(scale * samples), "not there")
        read = next(node for node in made.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "x")
        found.append({each.name: onnx.numpy_helper.to_array(each) for each in made.graph.initializer}[read.input[1]])
    assert found[1] == 64 * found[0]
    with pytest.warns(ScriptNote, match="not there is ignored"):
        ModelQuantizer(_quiet()).quantize_model(tiny, None, Reader(samples), "not there")


def test_what_is_not_calibrated_does_not_warn_of_random_data(tiny, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantize_dynamic(tiny, tmp_path / "a.onnx")


def test_the_functions_take_their_arguments_by_position_and_by_name(tiny, tmp_path, samples):
    outputs = [tmp_path / f"{index}.onnx" for index in range(4)]
    vai_quantize_static(
        str(tiny), str(outputs[0]), Reader(samples), QuantFormat.QDQ, PowerOfTwoMethod.MinMSE, print_summary=False
    )
    vai_quantize_static(
        model_input=str(tiny),
        model_output=str(outputs[1]),
        calibration_data_reader=Reader(samples),
        quant_format=QuantFormat.QDQ,
        calibrate_method=PowerOfTwoMethod.MinMSE,
        print_summary=False,
    )
    quark_static(
        str(tiny),
        str(outputs[2]),
        Reader(samples),
        calibrate_method=PowerOfTwoMethod.MinMSE,
        include_cle=False,
        print_summary=False,
    )
    assert outputs[0].read_bytes() == outputs[1].read_bytes() == outputs[2].read_bytes()


@pytest.mark.parametrize("flag", ["use_dpu", "enable_dpu", "enable_ipu_cnn", "enable_npu_cnn"])
def test_the_npu_flag_under_all_its_names(tiny, tmp_path, samples, flag, capsys):
    vai_quantize_static(tiny, tmp_path / "out.onnx", Reader(samples), QuantFormat.QDQ, **{flag: True})
    assert "for npu-xint8" in capsys.readouterr().out


def test_vai_q_onnx_writes_standard_pairs_unless_told_otherwise(tiny, tmp_path, samples):
    vai_quantize_static(tiny, tmp_path / "out.onnx", Reader(samples), print_summary=False)
    assert {node.domain for node in onnx.load(tmp_path / "out.onnx").graph.node} == {""}
    vai_quantize_static(tiny, tmp_path / "out.onnx", Reader(samples), VitisQuantFormat.FixNeuron, print_summary=False)
    assert "FixNeuron" in {node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node}
    vai_quantize_static(tiny, tmp_path / "out.onnx", Reader(samples), VitisQuantFormat.QDQ, print_summary=False)
    assert "VitisQuantizeLinear" in {node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node}


def test_a_model_that_is_not_there_is_named_whether_or_not_the_output_exists(tmp_path, samples):
    for _ in range(2):
        with pytest.raises(ModelError, match="none.onnx"):
            quantize_static(tmp_path / "none.onnx", tmp_path / "out.onnx", Reader(samples))
        (tmp_path / "out.onnx").touch()


def test_all_samples_that_calibrate_are_looked_at(tiny, samples, capsys):
    """Every eighth is judged by, too."""
    ModelQuantizer(get_default_config("XINT8")).quantize_model(onnx.load(tiny), None, Reader(samples[:8]))
    assert "Only 8 different samples" in capsys.readouterr().out


def test_float8_has_the_scales_that_distribution_chooses(tiny, tmp_path, samples):
    """The only calibration that onnxruntime has for these types."""
    small = QuantType.QFLOAT8E4M3FN
    written, method = tmp_path / "out.onnx", CalibrationMethod.Distribution
    quantize_static(tiny, written, Reader(samples), activation_type=small, weight_type=small, calibrate_method=method)
    made = onnx.load(written)
    assert onnx.TensorProto.FLOAT8E4M3FN in {each.data_type for each in made.graph.initializer}
    expected = run(onnx.load(tiny), {"x": samples[:1]})["y"]
    np.testing.assert_allclose(run(made, {"x": samples[:1]})["y"], expected, atol=0.2 * np.abs(expected).max())


def test_onnxruntimes_functions(tiny, tmp_path, samples):
    quantize_static(tiny, tmp_path / "a.onnx", Reader(samples), per_channel=True, weight_type=QuantType.QInt8)
    quantize(tiny, tmp_path / "b.onnx", StaticQuantConfig(Reader(samples), per_channel=True))
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    quantize_dynamic(tiny, tmp_path / "c.onnx")
    quantize(tiny, tmp_path / "d.onnx", DynamicQuantConfig())
    quark_dynamic(str(tiny), str(tmp_path / "e.onnx"))
    assert (tmp_path / "c.onnx").read_bytes() == (tmp_path / "d.onnx").read_bytes()
    with pytest.raises(UsageError, match="not QuantizationConfig"):
        quantize(tiny, tmp_path / "f.onnx", QuantizationConfig())


@since_runtime(21, "calibration_providers")
@pytest.mark.parametrize("ours", [quantize_static, quantize_dynamic, StaticQuantConfig, DynamicQuantConfig])
def test_functions_have_the_signature_of_onnxruntimes(ours):
    """Up to arguments at the end, which a version of onnxruntime may not have yet."""
    wanted = list(inspect.signature(getattr(real, ours.__name__)).parameters.values())
    found = list(inspect.signature(ours).parameters.values())[: len(wanted)]
    assert [each.name for each in found] == [each.name for each in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert (one.default == other.default) or (one.name == "calibration_data_reader")


def test_functions_have_the_signature_of_the_other_tools():
    for function in (quark_static, vai_quantize_static):
        names = list(inspect.signature(function).parameters)
        assert names[:3] == ["model_input", "model_output", "calibration_data_reader"]
        assert names[-3:] == ["include_auto_mp", "print_summary", "extra_options"]
    defaults = {each.name: each.default for each in inspect.signature(vai_quantize_static).parameters.values()}
    assert defaults["calibrate_method"] == PowerOfTwoMethod.MinMSE
    assert (defaults["include_cle"], defaults["use_dpu"], defaults["optimize_model"]) == (False, False, True)
    with pytest.raises(TypeError, match="quantize_static.*'model'"):
        quark_static("m.onnx", model="m.onnx")
