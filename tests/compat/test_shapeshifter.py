from __future__ import annotations

import pytest

from detent.compat.configs import QuantizationConfig
from detent.compat.option_rows import ScriptNote
from detent.compat.shapeshifter import options_of_passes
from detent.compat.translate import translate
from detent.errors import UsageError

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
