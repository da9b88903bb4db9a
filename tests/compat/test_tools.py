from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest

from detent.compat.finder import other_tools
from detent.compat.option_rows import ScriptNote
from detent.compat.tools import TOOLS, run_tool
from detent.errors import ModelError, UsageError
from tests.conftest import tiny_model
from tests.models import build, conv_relu_conv, node, normal, run, since_runtime

REFUSED = (
    "convert_lstm_to_customlstm",
    "convert_resize_fs_to_pof2s",
    "save_weights_hist",
)


@pytest.fixture
def quantized(tiny, tmp_path):
    import detent

    detent.quantize(tiny, tmp_path / "q.onnx", normal(8, 3, 8, 8), "A8W8")
    return tmp_path / "q.onnx"


def _types(path):
    return [each.op_type for each in onnx.load(path).graph.node]


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_is_a_module_that_can_be_run_and_imported(detent, name):
    outcome = detent("run", "-m", f"quark.onnx.tools.{name}")
    assert outcome.code == 2
    with other_tools():
        exec(f"import quark.onnx.tools.{name}\nfrom quark.onnx.tools import {name} as tool\nassert tool.main")


@pytest.mark.parametrize("spelling", [[], ["--input", "--output"], ["--input_model", "--output_model"]])
def test_paths_in_any_spelling(tiny, tmp_path, spelling):
    paths = [str(tiny), str(tmp_path / "half.onnx")]
    arguments = [part for pair in zip(spelling, paths, strict=True) for part in pair] if spelling else paths
    run_tool("convert_fp32_to_fp16", [*arguments, "--keep_io_types"])
    model = onnx.load(tmp_path / "half.onnx")
    assert {tensor.data_type for tensor in model.graph.initializer} == {onnx.TensorProto.FLOAT16}
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_shapes_are_inferred_where_none_are_given(tiny, tmp_path):
    model = onnx.load(tiny)
    del model.graph.value_info[:]
    onnx.save(model, tmp_path / "bare.onnx")
    run_tool("fix_shapes", ["--input_model_path", str(tmp_path / "bare.onnx"), "--output_model_path", str(tiny)])
    assert onnx.load(tiny).graph.value_info


def test_histograms_are_drawn(tiny, tmp_path, capsys):
    np.save(tmp_path / "data.npy", normal(8, 3, 8, 8))
    folder = tmp_path / "drawn"
    run_tool(
        "save_tensor_hist",
        ["--input_model", str(tiny), "--data_path", str(tmp_path / "data.npy"), "--output_path", str(folder)],
    )
    assert f"Drew {len(list(folder.glob('*.svg')))} tensors" in capsys.readouterr().out
    assert any("x" in each.name for each in folder.glob("*.svg"))


def test_there_and_back(tiny, tmp_path):
    half, single = tmp_path / "half.onnx", tmp_path / "single.onnx"
    run_tool("convert_fp32_to_fp16", [str(tiny), str(half)])
    assert onnx.load(half).graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    run_tool("convert_fp16_to_fp32", ["--input", str(half), "--output", str(single)])
    feeds = {"x": normal(1, 3, 8, 8, seed=2)}
    expected = run(onnx.load(tiny), feeds)["y"]
    np.testing.assert_allclose(run(onnx.load(single), feeds)["y"], expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    "form", ["with_cast", "simulate_bf16", pytest.param("bf16", marks=since_runtime(21, "opset 22"))]
)
def test_bfloat16(tiny, tmp_path, form):
    output = tmp_path / "b.onnx"
    run_tool("convert_fp32_to_bf16", ["--input", str(tiny), "--output", str(output), "--format", form])
    feeds = {"x": normal(1, 3, 8, 8, seed=2)}
    expected = run(onnx.load(tiny), feeds)["y"]
    np.testing.assert_allclose(run(onnx.load(output), feeds)["y"], expected, atol=0.02 * np.abs(expected).max())


def test_shapes_and_layout(tiny, tmp_path):
    output = tmp_path / "o.onnx"
    run_tool(
        "fix_shapes",
        ["--input_model_path", str(tiny), "--output_model_path", str(output), "--fix_shapes", "x:[2,3,8,8]"],
    )
    assert onnx.load(output).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    run_tool("convert_dynamic_to_fixed", [str(tiny), str(output), "--fix_shapes", "x:[4,3,8,8]"])
    assert onnx.load(output).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4
    with pytest.warns(ScriptNote, match="shape of y follows"):  # Quark's manual gives those of outputs, too
        run_tool("fix_shapes", [str(tiny), str(output), "--fix_shapes", "x:[3,3,8,8];y:[3,10]"])
    assert onnx.load(output).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3
    run_tool("convert_nchw_to_nhwc", [str(tiny), str(output)])
    assert onnx.load(output).graph.input[0].type.tensor_type.shape.dim[3].dim_value == 3
    run_tool("convert_opset_version", [str(tiny), "20", str(output)])
    assert onnx.load(output).opset_import[0].version == 20
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_tool("convert_opset_version", ["--input", str(tiny), "--output", str(output), "--target_opset", "19"])
    assert onnx.load(output).opset_import[0].version == 19


def test_quantized_models(quantized, tmp_path):
    output = tmp_path / "o.onnx"
    run_tool("convert_quant_to_float", [str(quantized), str(output)])
    assert _types(output) == ["Conv", "Relu", "Conv"]
    run_tool("convert_s8s8_to_u8s8", [str(quantized), str(output)])
    zero_points = {tensor.data_type for tensor in onnx.load(output).graph.initializer}
    assert onnx.TensorProto.UINT8 in zero_points
    run_tool("convert_custom_ops", ["--input_model", str(quantized), "--output_model", str(output)])
    assert "VitisQuantizeLinear" in _types(output)
    run_tool("convert_custom_ops", [str(output), str(tmp_path / "e.onnx"), "--reverse_conversion", "True"])
    assert "ExtendedQuantizeLinear" in _types(tmp_path / "e.onnx")
    run_tool("convert_customqdq_to_qdq", [str(output), str(tmp_path / "q2.onnx")])
    assert "QuantizeLinear" in _types(tmp_path / "q2.onnx")


def test_pairs_are_removed_between_operators(tmp_path):
    import detent

    model = build(
        [node("Mul", "x c", "m"), node("Add", "m c", "a"), node("Conv", "a w", "y")],
        "y",
        {"c": np.float32(1.5), "w": normal(4, 3, 3, 3)},
    )
    detent.quantize(model, tmp_path / "q.onnx", normal(4, 3, 8, 8), "S8S8_AAWS", exclude=[])
    before = _types(tmp_path / "q.onnx").count("QuantizeLinear")
    for name, more in (("remove_qdq_mul_add", []), ("remove_qdq_between_ops", ["--between_ops", "Conv,Relu;Mul,Add"])):
        run_tool(name, ["--input_model", str(tmp_path / "q.onnx"), "--output_model", str(tmp_path / "o.onnx"), *more])
        assert _types(tmp_path / "o.onnx").count("QuantizeLinear") == before - 1


def test_quantizing_tools(tiny, tmp_path):
    with pytest.warns(UserWarning, match="random"):
        run_tool(
            "random_quantize", [str(tiny), str(tmp_path / "o.onnx"), "--config", "A8W8", "--exclude_nodes", "second"]
        )
    assert "QuantizeLinear" in _types(tmp_path / "o.onnx")
    run_tool("convert_fp32_to_bfp16", [str(tiny), str(tmp_path / "b.onnx")])
    assert "BFPQuantizeDequantize" in _types(tmp_path / "b.onnx")


def test_text_and_back(tiny, tmp_path):
    run_tool("convert_onnx_to_onnxtxt", ["--input_model", str(tiny), "--output_model", str(tmp_path / "m.txt")])
    assert 'op_type: "Conv"' in (tmp_path / "m.txt").read_text()
    run_tool("convert_onnxtxt_to_onnx", [str(tmp_path / "m.txt"), str(tmp_path / "o.onnx")])
    assert onnx.load(tmp_path / "o.onnx") == onnx.load(tiny)
    (tmp_path / "bad.txt").write_text("no model")
    for path in ("bad.txt", "none.txt"):
        with pytest.raises(ModelError, match=path):
            run_tool("convert_onnxtxt_to_onnx", [str(tmp_path / path), str(tmp_path / "o.onnx")])


def test_weights(tmp_path):
    model = tiny_model(b1=np.array([np.inf, 1, 2, 3], np.float32))
    onnx.save(model, tmp_path / "inf.onnx")
    run_tool("replace_inf_weights", [str(tmp_path / "inf.onnx"), str(tmp_path / "o.onnx"), "--replace_inf_value", "7"])
    stored = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(tmp_path / "o.onnx").graph.initializer
    }
    assert stored["b1"].tolist() == [7, 1, 2, 3]


def test_external_data(tmp_path):
    shapes = {"w1": (64, 3, 3, 3), "b1": (64,), "w2": (2, 64, 1, 1)}
    onnx.save(tiny_model(**{name: normal(*shape) for name, shape in shapes.items()}), tmp_path / "w.onnx")
    run_tool("convert_fp32_to_fp16", [str(tmp_path / "w.onnx"), str(tmp_path / "o.onnx"), "--save_as_external_data"])
    assert (tmp_path / "o.onnx.data").exists()


@pytest.mark.parametrize("name", REFUSED)
def test_what_there_is_not_says_what_to_do(name):
    with pytest.raises(UsageError, match=r"no counterpart.*\. \S"):
        run_tool(name, ["a.onnx", "b.onnx"])


def test_bad_arguments(tiny, tmp_path):
    with pytest.raises(UsageError, match="needs INPUT OUTPUT; 1 of 2"):
        run_tool("convert_quant_to_float", [str(tiny)])
    with pytest.raises(UsageError, match="no --format 'f'"):
        run_tool("convert_fp32_to_bf16", ["--input", str(tiny), "--output", "b", "--format", "f"])
    with pytest.raises(UsageError, match="--fix_shapes x=1"):
        run_tool("fix_shapes", [str(tiny), str(tmp_path / "o.onnx"), "--fix_shapes", "x=1"])


@pytest.mark.parametrize(
    ("activations", "counts"), [("int8", (2, 0)), ("int16", (0, 2)), ("int32", (0, 0)), ("bfloat16", (0, 0))]
)
def test_layers_are_listed_by_the_width_of_what_they_read(tmp_path, capsys, activations, counts):
    path, data = tmp_path / "m.onnx", normal(8, 3, 8, 8, seed=2)
    settings = [f"activations={activations}", "biases=float", "format=extended-qdq"]
    import detent

    detent.quantize(conv_relu_conv(), path, {"x": data}, "A8W8", set=settings)
    capsys.readouterr()
    run_tool("print_a16w8_a8w8_nodes", ["--input", str(path)])
    lines = capsys.readouterr().out.splitlines()
    assert tuple(int(line.rpartition(" ")[2]) for line in lines if " count: " in line) == counts
