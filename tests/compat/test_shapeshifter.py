from __future__ import annotations

import numpy as np
import onnx
import pytest

from detent.compat.configs import QuantizationConfig
from detent.compat.option_rows import ScriptNote
from detent.compat.shapeshifter import options_of_passes
from detent.compat.translate import translate
from detent.errors import UsageError
from tests.models import build, info, node, normal, run

pytest.importorskip("yaml")

FILE = """
preprocessed_model_path: prepared.onnx
preprocess_passes:
  onnx_convert_opset_version: {target_opset_version: 18}
  onnx_simplify: {simplify: true}
  onnx_fuse_gelu: {fuse_gelu: false}
  onnx_fix_shapes: {input_output_name_shapes: {x: [1, 3, 8, 8]}}
postprocess_passes:
  onnx_remove_qdq_between_op_types: {remove_qdq_between_op_types: [[Conv, Relu]]}
"""


@pytest.fixture
def write(tmp_path):
    def to_file(text):
        path = tmp_path / "passes.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return to_file


def test_passes_are_the_options_of_the_same_meaning(write):
    with pytest.warns(ScriptNote, match="preprocessed_model_path"):
        found = options_of_passes(write(FILE))
    assert found == {
        "ConvertOpsetVersion": 18,
        "FixShapes": "x:[1,3,8,8]",
        "RemoveQDQBetweenOps": [["Conv", "Relu"]],
    }


@pytest.mark.parametrize("name", ["ShapeShifterYaml", "PreprocessYAML"])
def test_a_script_names_the_file(write, name):
    path = write("passes:\n  onnx_convert_opset_version: {target_opset_version: 18}\n")
    assert translate(QuantizationConfig(extra_options={name: path})).recipe.opset == 18
    given = {name: path, "ConvertOpsetVersion": 19}
    assert translate(QuantizationConfig(extra_options=given)).recipe.opset == 19


def test_a_template_asks_for_what_is_done_anyway():
    plain = translate(QuantizationConfig())
    assert translate(QuantizationConfig(extra_options={"ShapeShifterYaml": "xint8"})) == plain


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("passes: {onnx_fuse_gelo: {}}", "onnx_fuse_gelo.*onnx_fuse_gelu"),
        ("passes: {onnx_set_node_attributes: {}}", "onnx_set_node_attributes"),
        ("- a list", "lists no passes"),
        ("a: [", "passes.yaml"),
    ],
)
def test_what_cannot_be_had_is_named(write, text, named):
    with pytest.raises(UsageError, match=named):
        options_of_passes(write(text))


ALONE = """
input_model_config: {{model_type: onnx, input_model_path: {0}}}
output_model_path: {1}
passes:
  onnx_fold_batch_norm: {{fold_batch_norm: true}}
  onnx_convert_opset_version: {{target_opset_version: 19}}
  onnx_fuse_gelu: {{fuse_gelu: false}}
"""


def test_a_file_of_passes_runs_alone(detent, write, tmp_path):
    channels = {name: normal(4) ** 2 + 0.1 for name in ("scale", "bias", "mean", "var")}
    nodes = [node("Conv", "x w", "c"), node("BatchNormalization", "c scale bias mean var", "y")]
    float_model = build(nodes, "y", {"w": normal(4, 3, 1, 1), **channels}, [info("x", (1, 3, 8, 8))], opset=17)
    onnx.save(float_model, tmp_path / "m.onnx")
    outcome = detent(
        "run", "quark-cli", "shapeshifter", write(ALONE.format(tmp_path / "m.onnx", tmp_path / "out.onnx"))
    )
    assert outcome.code == 0, outcome.err
    made = onnx.load(tmp_path / "out.onnx")
    assert [each.op_type for each in made.graph.node] == ["Conv"]
    assert made.opset_import[0].version == 19
    sample = {"x": normal(1, 3, 8, 8)}
    np.testing.assert_allclose(run(made, sample)["y"], run(float_model, sample)["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("passes: {}", "input_model_path"),
        ("{input_model_path: a.onnx, output_model_path: b.onnx, passes: {onnx_xint8_adjust: {}}}", "ShapeShifterYaml"),
        ("{input_model_path: a.onnx, output_model_path: b.onnx, passes: {onnx_simplifi: {}}}", "onnx_simplify"),
    ],
)
def test_what_cannot_run_alone_is_named(detent, write, tiny, tmp_path, monkeypatch, text, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.onnx").write_bytes(tiny.read_bytes())
    outcome = detent("run", "quark-cli", "onnx-adapter", write(text))
    assert outcome.code == 2
    assert named in outcome.err
