from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
from onnxruntime.quantization.quant_utils import model_has_pre_process_metadata

from detent.compat import tools
from detent.errors import ModelError, UsageError
from tests.models import build, node, normal, run


@pytest.fixture
def model(tmp_path):
    """A convolution with a BatchNormalization, and an Identity."""
    ones = np.ones(4, np.float32)
    proto = build(
        [
            node("Conv", "x w", "c"),
            node("BatchNormalization", "c ones b m ones", "n"),
            node("Identity", "n", "i"),
            node("Relu", "i", "y"),
        ],
        "y",
        {"w": normal(4, 3, 3, 3), "ones": ones, "b": normal(4, seed=1), "m": normal(4, seed=2)},
    )
    path = tmp_path / "float.onnx"
    onnx.save(proto, path)
    return path


def test_all_arguments_as_the_tutorial_lists_them(model, tmp_path):
    tools.quant_pre_process(
        str(model), str(tmp_path / "p.onnx"), False, False, False, False, 2**31 - 1, False, 0, False, False, "./", 1024
    )
    prepared = onnx.load(tmp_path / "p.onnx")
    assert [each.op_type for each in prepared.graph.node] == ["Conv", "Relu"]
    assert {value.name for value in prepared.graph.value_info}
    assert model_has_pre_process_metadata(prepared)
    feeds = {"x": normal(1, 3, 8, 8, seed=3)}
    np.testing.assert_allclose(run(prepared, feeds)["y"], run(onnx.load(model), feeds)["y"], rtol=1e-4, atol=1e-5)


def test_steps_can_be_skipped(model, tmp_path):
    output = tmp_path / "p.onnx"
    tools.quant_pre_process(input_model_path=model, output_model_path=output, skip_optimization=True)
    untouched = onnx.load(output)
    assert "BatchNormalization" in {each.op_type for each in untouched.graph.node}
    assert {"c", "n", "i"} <= {value.name for value in untouched.graph.value_info}
    tools.quant_pre_process(
        model, output, skip_optimization=True, skip_onnx_shape=True, skip_symbolic_shape=True, auto_merge=True
    )
    assert not {"c", "n", "i"} & {value.name for value in onnx.load(output).graph.value_info}


@pytest.mark.parametrize("one_file", [True, False])
def test_external_data(model, tmp_path, one_file):
    output = tmp_path / "out" / "p.onnx"
    output.parent.mkdir()
    tools.quant_pre_process(
        model,
        output,
        save_as_external_data=True,
        all_tensors_to_one_file=one_file,
        external_data_location="./" if one_file else None,
        external_data_size_threshold=100,
    )
    files = sorted(path.name for path in output.parent.iterdir())
    assert len(files) == 2
    assert ("p.onnx.data" in files) == one_file
    onnx.checker.check_model(output)


def test_external_data_is_written_again_in_place_and_elsewhere(model, tmp_path):
    whole = {"save_as_external_data": True, "all_tensors_to_one_file": True, "external_data_size_threshold": 0}
    sizes = []
    for source in (model, tmp_path / "p.onnx", tmp_path / "p.onnx"):
        tools.quant_pre_process(source, tmp_path / "p.onnx", **whole)
        sizes.append((tmp_path / "p.onnx.data").stat().st_size)
    assert len(set(sizes)) == 1
    (tmp_path / "sub").mkdir()
    tools.quant_pre_process(tmp_path / "p.onnx", tmp_path / "sub" / "q.onnx", **whole)
    for written in (tmp_path / "p.onnx", tmp_path / "sub" / "q.onnx"):
        assert {value.name for value in onnx.load(written).graph.initializer}


def test_what_was_done_is_logged(model, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        tools.quant_pre_process(model, tmp_path / "p.onnx", verbose=3)
    assert "batchnormalization_n" in caplog.text


def test_flags_stand_alone_or_have_a_value(model, tmp_path):
    paths = ["--input", str(model), "--output", str(tmp_path / "p.onnx")]
    stored = ["--save_as_external_data", "--external_data_size_threshold", "100"]
    tools.preprocess([*paths, "--auto_merge", "--skip_optimization", "True", *stored])
    assert "BatchNormalization" in {each.op_type for each in onnx.load(tmp_path / "p.onnx").graph.node}
    assert len(list(tmp_path.iterdir())) == 3
    tools.preprocess([*paths, "--skip_optimization", "False"])
    assert "BatchNormalization" not in {each.op_type for each in onnx.load(tmp_path / "p.onnx").graph.node}


def test_bad_input(tmp_path):
    with pytest.raises(ModelError, match="none.onnx"):
        tools.quant_pre_process(tmp_path / "none.onnx", tmp_path / "p.onnx")
    with pytest.raises(UsageError, match="needs input_model"):
        tools.quant_pre_process(output_model_path=tmp_path / "p.onnx")
    with pytest.raises(TypeError):
        tools.quant_pre_process("a", "b", skip_everything=True)
