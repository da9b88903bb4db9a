from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from detent.errors import ModelError
from detent.graph.load import load, name_of, read, stored_bytes
from detent.graph.session import Runner
from tests.conftest import tiny_model


def run_proto(model, x):
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


def test_path_and_proto_give_the_same_graph(tiny):
    assert [node.name for node in load(tiny).graph] == [node.name for node in load(tiny_model()).graph]


def test_the_proto_is_not_modified():
    model = tiny_model(opset=12)
    for node in model.graph.node:
        node.name = ""
    before = model.SerializeToString(deterministic=True)
    load(model)
    assert model.SerializeToString(deterministic=True) == before


def test_unnamed_nodes_and_colliding_names_are_repaired():
    model = tiny_model()
    for node in model.graph.node[:2]:
        node.name = ""
    model.graph.node[2].name = "same"
    model.graph.node[0].name = "same"
    names = [node.name for node in load(model).graph]
    assert all(names)
    assert len(set(names)) == 3
    assert names == [node.name for node in load(model).graph]


def test_a_graph_out_of_order_is_sorted():
    model = tiny_model()
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    assert [node.name for node in read(model).graph] == ["first", "relu", "second"]


@pytest.mark.parametrize("opset", [9, 11, 12, 13, 16])
def test_old_opsets_are_raised_and_compute_the_same(opset, samples):
    model = tiny_model(opset=opset)
    raised = load(model)
    assert raised.opset_imports[""] == 17
    assert raised.ir_version >= 8
    assert [value.name for value in raised.graph.inputs] == ["x"]
    np.testing.assert_allclose(Runner(raised)({"x": samples})[0], run_proto(model, samples), rtol=1e-5, atol=1e-6)


def test_newer_opsets_stay():
    assert load(tiny_model(opset=21)).opset_imports[""] == 21


def test_initializers_listed_as_inputs_as_before_ir_version_4(samples):
    model = tiny_model(opset=9)
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    loaded = load(model)
    assert [value.name for value in loaded.graph.inputs] == ["x"]
    np.testing.assert_allclose(Runner(loaded)({"x": samples})[0], run_proto(model, samples), rtol=1e-5, atol=1e-6)


def test_an_opset_that_cannot_be_converted():
    model = tiny_model(opset=9)
    model.graph.node.append(helper.make_node("Upsample", ["y", "factors"], ["z"], name="up"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "factors"))
    model.graph.output[0].name = "z"
    model.graph.node.append(helper.make_node("Wobble", ["z"], ["unused"], name="w"))
    model.graph.node.append(helper.make_node("Pad", ["z"], ["unpadded"], name="p"))
    said = r"opset 9, and onnx cannot convert it to 17: .*'pads'\. Opset 9 does not have Wobble.*Export it again"
    with pytest.raises(ModelError, match=said):
        load(model)


def test_external_data_is_read(tmp_path, samples):
    path = tmp_path / "m.onnx"
    onnx.save(tiny_model(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert stored_bytes(path) == path.stat().st_size + (tmp_path / "m.data").stat().st_size
    np.testing.assert_array_equal(Runner(load(path))({"x": samples})[0], run_proto(tiny_model(), samples))


def test_external_data_in_a_proto_names_the_tensor():
    model = tiny_model()
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="m.data")
    with pytest.raises(ModelError, match=r"'w1'.*onnx.load"):
        load(model)


@pytest.mark.parametrize("location", ["/etc/passwd", "../x", "a/../../x", ""])
def test_locations_outside_the_folder(tmp_path, location):
    model = tiny_model()
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="outside the model's folder"):
        load(path)


def test_a_link_that_leads_out_of_the_folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(1000))
    (folder / "m.data").symlink_to(tmp_path / "secret")
    model = tiny_model()
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="m.data")
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"is a link to outside the model's folder.*cp -L"):
        load(folder / "m.onnx")


@pytest.fixture
def cache(tmp_path):
    """A cache of downloads: what has names are links to what is called by its hash, a model and its data."""
    named, hashed = tmp_path / "snapshots/1", tmp_path / "blobs"
    named.mkdir(parents=True)
    hashed.mkdir()
    onnx.save(tiny_model(), hashed / "aaaa", save_as_external_data=True, location="m.data", size_threshold=0)
    (hashed / "m.data").rename(hashed / "bbbb")
    (tmp_path / "secret").write_bytes(bytes(5000))
    (named / "m.onnx").symlink_to("../../blobs/aaaa")
    (named / "m.data").symlink_to("../../blobs/bbbb")
    return named


def test_links_in_a_cache_of_downloads_are_followed(cache, samples, monkeypatch):
    size = sum(file.stat().st_size for file in (cache.parents[1] / "blobs").iterdir())
    expected = run_proto(tiny_model(), samples)
    assert stored_bytes(cache / "m.onnx") == size
    np.testing.assert_array_equal(Runner(load(cache / "m.onnx"))({"x": samples})[0], expected)
    monkeypatch.chdir(cache)
    np.testing.assert_array_equal(Runner(load("m.onnx"))({"x": samples})[0], expected)
    (cache.parent / "current").symlink_to("1", target_is_directory=True)
    np.testing.assert_array_equal(Runner(load(cache.parent / "current/m.onnx"))({"x": samples})[0], expected)


def test_a_link_may_not_lead_to_where_the_model_is_not(cache):
    (cache / "m.data").unlink()
    (cache / "m.data").symlink_to("../../secret")
    with pytest.raises(ModelError, match=r"'m.data', which is a link to outside the model's folder"):
        load(cache / "m.onnx")
    (cache / "m.data").unlink()
    (cache / "m.data").symlink_to("../../blobs/bbbb")
    (cache / "m.onnx").unlink()
    (cache / "m.onnx").write_bytes((cache.parents[1] / "blobs/aaaa").read_bytes())  # the model itself is no link
    with pytest.raises(ModelError, match=r"'m.data', which is a link to outside the model's folder"):
        load(cache / "m.onnx")


def test_a_model_that_is_a_link_is_no_reason_to_read_beside_its_folder(cache):
    (cache / "sub").symlink_to("../../blobs", target_is_directory=True)
    (cache.parent / "2").mkdir()
    (cache.parent / "2/m.data").symlink_to("../../blobs/bbbb")
    blobs = cache.parents[1] / "blobs"
    for location in ("../../blobs/bbbb", "../2/m.data", str(cache / "../2/m.data"), str(blobs / "bbbb"), "sub/bbbb"):
        model = onnx.load(blobs / "aaaa", load_external_data=False)
        for tensor in model.graph.initializer:
            next(entry for entry in tensor.external_data if entry.key == "location").value = location
        (blobs / "aaaa").write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match="outside the model's folder"):
            load(cache / "m.onnx")


def resize_model(op, mode, scales, opset):
    attributes = {"mode": mode} if op == "Resize" or opset >= 9 else {"mode": mode, "scales": scales}
    inputs = ["x"] if "scales" in attributes else ["x", "scales"]
    return helper.make_model(
        helper.make_graph(
            [helper.make_node(op, inputs, ["y"], name="up", **attributes)],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 8, 8])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [] if len(inputs) == 1 else [numpy_helper.from_array(np.array(scales, np.float32), "scales")],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=6,
    )


@pytest.mark.parametrize(("op", "opset"), [("Upsample", 7), ("Upsample", 9), ("Resize", 10)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("factor", [2.0, 1.5, 3.0, 0.75, 0.5])
def test_old_resizing_keeps_its_meaning(op, opset, mode, factor):
    if op == "Upsample" and factor < 1:
        factor = 4.0
    model = resize_model(op, mode, [1.0, 1.0, factor, factor], opset)
    x = np.random.default_rng(0).standard_normal((1, 2, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(Runner(load(model))({"x": x})[0], run_proto(model, x), atol=1e-6)


def test_functions_of_an_old_opset_are_kept(samples):
    model = tiny_model(opset=15)
    body = helper.make_function(
        "local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 15)]
    )
    model.functions.append(body)
    model.graph.node[1].CopyFrom(helper.make_node("Twice", ["c1"], ["r1"], name="twice", domain="local"))
    model.opset_import.append(helper.make_opsetid("local", 1))
    np.testing.assert_allclose(Runner(load(model))({"x": samples})[0], run_proto(model, samples), rtol=1e-5, atol=1e-5)


def test_a_hardmax_that_changed_its_meaning_is_refused():
    model = tiny_model(opset=11)
    model.graph.node[1].CopyFrom(helper.make_node("Hardmax", ["c1"], ["r1"], name="hard", axis=1))
    model.graph.value_info.append(helper.make_tensor_value_info("c1", TensorProto.FLOAT, ["N", 4, 8, 8]))
    with pytest.raises(ModelError, match="'hard'.*Hardmax"):
        load(model)


def add_node(model, tensor):
    model.graph.node.append(helper.make_node("Constant", [], ["k"], name="k", value=tensor))


def add_node_of_several(model, tensor):
    node = helper.make_node("Keep", [], ["k"], name="k", domain="com.example")
    node.attribute.append(helper.make_attribute("values", [tensor]))
    model.graph.node.append(node)


def add_body(model, tensor):
    body = helper.make_graph([], "body", [], [helper.make_tensor_value_info("t", TensorProto.FLOAT, [4])], [tensor])
    model.graph.node.append(helper.make_node("If", ["c"], ["k"], then_branch=body, else_branch=body))


def add_function(model, tensor):
    nodes = [helper.make_node("Constant", [], ["k"], value=tensor)]
    model.functions.append(
        helper.make_function("com.example", "F", [], ["k"], nodes, [helper.make_opsetid("", 17)], [])
    )


@pytest.mark.parametrize("add", [add_node, add_node_of_several, add_body, add_function])
def test_external_data_is_checked_wherever_a_model_holds_tensors(tmp_path, add):
    model = tiny_model()
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../secret")
    add(model, tensor)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="outside the model's folder"):
        load(path)


def test_a_hardmax_that_means_what_it_does_today_is_kept():
    for opset, axis in ((13, 1), (11, 3), (11, -1)):
        model = tiny_model(opset=opset)
        model.graph.node[1].CopyFrom(helper.make_node("Hardmax", ["c1"], ["r1"], name="hard", axis=axis))
        model.graph.value_info.append(helper.make_tensor_value_info("c1", TensorProto.FLOAT, ["N", 4, 8, 8]))
        assert load(model).opset_imports[""] == 17


def test_a_node_that_its_operator_does_not_take_is_named():
    for spoil, said in (
        (lambda node: node.input.pop(), "1 inputs"),
        (lambda node: node.attribute.append(helper.make_attribute("group", "two")), "'group' of type STRING"),
        (lambda node: node.attribute.append(onnx.AttributeProto(name="since", i=3)), "'since' without a type"),
        (
            lambda node: node.attribute.append(onnx.AttributeProto(name="hollow", type="TENSOR")),
            "'hollow' whose tensor",
        ),
        (lambda node: (node.ClearField("op_type"), node.ClearField("domain")), "no operator type"),
    ):
        model = tiny_model()
        spoil(model.graph.node[2])
        with pytest.raises(ModelError, match=f"'second'.*{said}"):
            load(model)


@pytest.mark.parametrize(("op_type", "opset"), [("Relu", 17), ("SequenceLength", 17), ("SequenceLength", 9)])
def test_a_node_with_more_outputs_than_its_operator_makes_is_named(op_type, opset):
    model = tiny_model(opset=opset)
    model.graph.node.append(helper.make_node(op_type, ["x"], ["one", "two"], "many"))
    with pytest.raises(ModelError, match="'many'.*2 outputs"):
        load(model)


def test_a_node_without_outputs_is_named():
    model = tiny_model()
    model.graph.node.append(helper.make_node("Relu", ["x"], [], "idle", domain="some.domain"))
    with pytest.raises(ModelError, match="'idle'.*no outputs"):
        load(model)


def test_a_model_without_a_file_is_called_by_the_class_of_its_module():
    proto = tiny_model()
    assert name_of(proto) == "the given model"
    proto.producer_name, proto.graph.name = "pytorch", "ResNet"
    assert name_of(proto) == "the given ResNet"
    proto.graph.name = "main_graph"  # as exporters call every graph
    assert name_of(proto) == "the given model"
    assert name_of("m.onnx") == "m.onnx"
