from __future__ import annotations

import numpy as np
import onnx
import onnxruntime

from tests.models import normal


def test_onnx_ptq(detent, tiny, tmp_path):
    for index, sample in enumerate(normal(4, 3, 8, 8)):
        np.save(tmp_path / f"{index}.npy", sample[None])
    output = tmp_path / "q" / "out.onnx"
    output.parent.mkdir()
    model = ["--input_model_path", tiny, "--output_model_path", output, "--calib_data_path", tmp_path]
    more = ["--config", "A8W8", "--exclude_nodes", "second", "--calib_method", "MinMax", "--device", "cpu"]
    outcome = detent("run", "quark-cli", "onnx-ptq", *model, *more)
    assert outcome.code == 0, outcome.err
    assert "Note: quark-cli onnx-ptq: --device cpu is passed over." in outcome.err
    onnxruntime.InferenceSession(output)
    convolutions = [each for each in onnx.load(output).graph.node if each.op_type == "Conv"]
    assert [each.name for each in convolutions if each.input[1].endswith("w2")] == ["second"]


def test_other_commands_say_what_to_do(detent):
    for name, word in (("onnx-autosearch", "detent tune"), ("onnx-ptqq", "onnx-ptq"), ("export-onnx", "Export")):
        outcome = detent("run", "quark-cli", name)
        assert outcome.code == 2
        assert word in outcome.err
