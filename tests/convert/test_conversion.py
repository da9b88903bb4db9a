"""`convert` itself and the command: steps by name, errors, and what is written."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from detent.convert import STEPS, convert, parse_step
from detent.errors import ModelError, OutputError, UsageError
from tests.convert.forms import converted, ops, pair, quantized
from tests.models import conv_relu_conv, normal, run


@pytest.fixture
def quantized_file(tmp_path):
    path = tmp_path / "int8.onnx"
    onnx.save(quantized(conv_relu_conv()), path)
    return path


def test_several_steps_in_their_order(tmp_path, quantized_file):
    out = tmp_path / "out.onnx"
    done = convert(quantized_file, out, ["float", "nhwc", "float16"])
    result = onnx.load(out)
    assert ops(result) == ["Cast", "Transpose", "Conv", "Relu", "Conv", "Cast"]
    assert done.steps == ("float", "nhwc", "float16")
    assert done.after.bytes == out.stat().st_size
    assert done.before.bytes == quantized_file.stat().st_size
    assert list(dict.fromkeys(change.by for change in done.changes)) == ["float", "nhwc", "float16"]
    assert json.loads(done.to_json())["after"]["operators"]["Conv"] == 2


def test_one_step_as_text(tmp_path, quantized_file):
    convert(str(quantized_file), str(tmp_path / "out.onnx"), "float")
    assert (tmp_path / "out.onnx").exists()


def test_the_same_bytes_every_time(tmp_path, quantized_file):
    for step in ("float", "int8", "extended-qdq", "fix-neuron"):
        files = [tmp_path / f"{step}{turn}.onnx" for turn in range(2)]
        for file in files:
            convert(quantized_file, file, step)
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "at least one step"),
        (["flaot"], "There is no conversion step 'flaot'. Did you mean 'float'"),
        (["opset:versoin=3"], "no setting 'versoin'. Did you mean 'version'"),
        (["int8:dtype=uint8"], "no setting 'dtype'"),
        (["opset:version=new"], "expected a number"),
        (["float", "float"], "'float' is given 2 times"),
        (["int8", "uint8"], "'int8' and 'uint8' exclude each other"),
        (["fp16", "bf16"], "'float16' and 'bfloat16' exclude each other"),
        (["qdq", "fix-neuron"], "exclude each other"),
    ],
)
def test_steps_that_mean_nothing(tmp_path, quantized_file, steps, message):
    with pytest.raises(UsageError, match=message):
        convert(quantized_file, tmp_path / "out.onnx", steps)
    assert not (tmp_path / "out.onnx").exists()


def test_an_unknown_step_lists_all(tmp_path, quantized_file):
    with pytest.raises(UsageError) as caught:
        convert(quantized_file, tmp_path / "out.onnx", "something")
    assert all(name in str(caught.value) for name in STEPS)


@pytest.mark.parametrize(("alias", "name"), [("fp16", "float16"), ("FP32", "float32"), ("bf16:form=pure", "bfloat16")])
def test_aliases(alias, name):
    assert parse_step(alias)[0] == name


def test_a_step_after_which_nothing_is_left_for_the_next(tmp_path, quantized_file):
    with pytest.raises(ModelError, match="Step 'int8' leaves .* as it is"):
        convert(quantized_file, tmp_path / "out.onnx", ["float", "int8"])
    assert sorted(tmp_path.iterdir()) == [quantized_file]


def test_an_output_that_cannot_be(tmp_path, quantized_file):
    with pytest.raises(OutputError, match="would overwrite"):
        convert(quantized_file, quantized_file, "float")
    with pytest.raises(OutputError, match="does not exist"):
        convert(quantized_file, tmp_path / "no" / "out.onnx", "float")


def test_a_result_that_onnxruntime_cannot_load_is_not_written(tmp_path):
    proto = pair("int8", 0)
    proto.graph.node.add(op_type="Unheard", domain="nobody", input=["y"], output=["u"], name="unheard")
    proto.opset_import.add(domain="nobody", version=1)
    proto.graph.output[0].name = "u"
    with pytest.raises(ModelError, match="is not written"):
        convert(proto, tmp_path / "out.onnx", "float")
    assert not list(tmp_path.iterdir())


def test_operators_of_other_tools_get_their_functions(tmp_path):
    """A file as the other tools write it, which needs their library to run."""
    proto, _ = converted(quantized(conv_relu_conv()), "extended-qdq")
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.functions[:]
    convert(bare, tmp_path / "out.onnx", "nhwc")
    result = onnx.load(tmp_path / "out.onnx")
    assert {function.name for function in result.functions} == {"ExtendedQuantizeLinear", "ExtendedDequantizeLinear"}


def test_the_command(detent, tmp_path, quantized_file):
    out = tmp_path / "out.onnx"
    outcome = detent("convert", quantized_file, out, "--to", "float", "--to", "opset:version=21")
    assert outcome.code == 0, outcome.err
    for word in ("before", "after", "QuantizeLinear", "opset ai.onnx", "constant stored as FLOAT (4 times)", "bytes"):
        assert word in outcome.out
    x = {"x": normal(1, 3, 8, 8)}
    assert np.isfinite(run(onnx.load(out), x)["y"]).all()


def test_the_command_says_what_it_left(detent, tmp_path):
    path = tmp_path / "a8w8.onnx"
    onnx.save(quantized(conv_relu_conv(), "A8W8"), path)
    outcome = detent("convert", path, tmp_path / "out.onnx", "--to", "fix-neuron")
    assert "'b1_DequantizeLinear': FixNeuron has no codes of type int32" in outcome.out


def test_json_is_json_and_nothing_else(detent, tmp_path, quantized_file):
    outcome = detent("convert", quantized_file, tmp_path / "out.onnx", "--to", "int8", "--json")
    plain = json.loads(outcome.out)
    assert plain["steps"] == ["int8"]
    assert {change["by"] for change in plain["changes"]} == {"int8"}


def test_exit_codes(detent, tmp_path, quantized_file):
    out = tmp_path / "out.onnx"
    assert detent("convert", quantized_file, out).code == UsageError.exit_code
    assert detent("convert", quantized_file, out, "--to", "flaot").code == UsageError.exit_code
    assert detent("convert", quantized_file, out, "--to", "float32").code == ModelError.exit_code
    assert detent("convert", tmp_path / "none.onnx", out, "--to", "float").code == ModelError.exit_code
    assert not out.exists()
