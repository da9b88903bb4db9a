from __future__ import annotations

import os

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from detent.errors import ModelError
from detent.graph.load import files_of, load, read, unzipped
from detent.graph.session import Runner
from detent.prepare import prepare
from detent.prepare.plain_forms import InlineFunctions
from tests.conftest import tiny_model
from tests.models import info, needs_opset, node, normal, with_maps


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("threshold", [0, 100])
def test_external_data_of_any_size_and_opset_is_that_beside_the_model(tmp_path, monkeypatch, samples, opset, threshold):
    model = tiny_model(opset=opset)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": samples})[0]
    folder = tmp_path / "a folder with ünicode"
    folder.mkdir()
    path = folder / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=threshold)
    (tmp_path / "m.data").write_bytes(bytes(path.with_name("m.data").stat().st_size))  # not to be read
    monkeypatch.chdir(tmp_path)
    np.testing.assert_allclose(Runner(load(path))({"x": samples})[0], expected, rtol=1e-5, atol=1e-6)
    assert files_of(path) == [path, folder / "m.data"]


def test_small_and_large_external_data_are_read_from_anywhere(tmp_path, monkeypatch):
    """Large weights are read where they are, and those beside them in the folder of the model, not of the process."""
    rng = np.random.default_rng(0)
    weight, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 2048), 2048))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    ends = [helper.make_tensor_value_info(*each) for each in (("x", 1, [1, 64]), ("y", 1, [1, 2048]))]
    tensors = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").write_bytes(bytes(path.with_name("m.data").stat().st_size))  # not to be read
    monkeypatch.chdir(tmp_path)
    x = rng.standard_normal((1, 64)).astype(np.float32)
    np.testing.assert_allclose(Runner(load(path))({"x": x})[0], x @ weight + bias, rtol=1e-4, atol=1e-4)


def test_external_data_of_a_constant_inside_a_branch(tmp_path):
    """Where onnx converts the opset, only what is in the message comes through."""
    path = tmp_path / "m.onnx"
    array = np.arange(2048, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(array.tobytes())
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2048], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2048])]
    branch = helper.make_graph([helper.make_node("Constant", [], ["y"], value=tensor)], "b", [], out)
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    inputs = [helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph([node], "g", inputs, out)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    np.testing.assert_array_equal(Runner(load(path))({"c": np.array(True)})[0], array)


def broken(change):
    model = tiny_model()
    change(model.graph.initializer[0])
    return model


def declare(tensor, **entries):
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.dims.__setitem__(0, 2_000_000_000),
        lambda tensor: tensor.dims.__setitem__(0, -1),
        lambda tensor: tensor.dims.__setitem__(slice(0, 2), [-size for size in tensor.dims[:2]]),  # as many elements
        lambda tensor: tensor.dims.extend([2**40, 2**40]),
        lambda tensor: setattr(tensor, "data_type", 99),
        lambda tensor: setattr(tensor, "data_type", TensorProto.DOUBLE),
        lambda tensor: setattr(tensor, "raw_data", tensor.raw_data[:-1]),
        lambda tensor: declare(tensor, location="w.bin", offset="-4"),
        lambda tensor: declare(tensor, location="w.bin", offset="four"),
        lambda tensor: declare(tensor, location="w.bin", length="8"),
        lambda tensor: declare(tensor, location="w.bin", offset="9" * 30),
        lambda tensor: declare(tensor, location="w\0.bin"),
        lambda tensor: declare(tensor, location="w" * 5000),
        declare,
    ],
)
def test_a_tensor_that_is_not_what_it_declares_is_named(tmp_path, change):
    model = broken(change)
    (tmp_path / "w.bin").write_bytes(bytes(100_000))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=f"'{model.graph.initializer[0].name}'"):
        load(path)


def test_no_tensor_is_larger_than_can_be(tmp_path, monkeypatch):
    """A file with holes is as long as it says, and holds next to nothing."""
    monkeypatch.setattr("detent.graph.message.MOST_BYTES", 2**20)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**20])
    declare(tensor, location="w.bin")
    graph = helper.make_graph([], "g", [], [helper.make_tensor_value_info("w", TensorProto.FLOAT, [2**20])], [tensor])
    (tmp_path / "w.bin").touch()
    os.truncate(tmp_path / "w.bin", 2**22)
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(ModelError, match="'w'.* declares the shape"):
        load(tmp_path / "m.onnx")


def test_a_dimension_below_zero_is_not_known(samples):
    model = tiny_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    before = model.SerializeToString(deterministic=True)
    loaded = load(model)
    assert not isinstance(loaded.graph.inputs[0].shape[0], int)
    assert model.SerializeToString(deterministic=True) == before
    assert len(Runner(loaded)({"x": samples})[0]) == len(samples)


@pytest.mark.parametrize("opset", [11, 16])
def test_the_standard_domain_by_its_long_name(opset, samples):
    model = tiny_model(opset=opset)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": samples})[0]
    model.opset_import[0].domain = "ai.onnx"
    for each in model.graph.node:
        each.domain = "ai.onnx"
    loaded = load(model)
    assert dict(loaded.opset_imports) == {"": 17}
    np.testing.assert_allclose(Runner(loaded)({"x": samples})[0], expected, rtol=1e-5, atol=1e-6)


def test_operators_that_onnxruntime_brings_along_need_no_import():
    node = helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "g", values[:1], values[1:]),
        opset_imports=[helper.make_opsetid("", 12)],
        ir_version=8,
    )
    assert load(model).opset_imports["com.microsoft"] == 1


def test_a_graph_without_a_name_and_ir_version_3(samples):
    model = tiny_model(opset=9)
    model.ir_version, model.graph.name = 3, ""
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    loaded = read(model)
    assert loaded.graph.name
    assert len(Runner(loaded)({"x": samples})[0]) == len(samples)


def test_maps_sparse_weights_and_names_twice_are_model_errors():
    value = helper.make_value_info(
        "m", helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, []))
    )
    with_map, sparse, twice = tiny_model(), tiny_model(), tiny_model()
    with_map.graph.output.append(value)
    values = numpy_helper.from_array(np.ones(1, np.float32), "thin")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "thin_indices")
    sparse.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    twice.graph.node[1].output[0] = twice.graph.node[0].output[0]
    for model, named in ((with_map, "'m'"), (sparse, "'thin'"), (twice, f"'{twice.graph.node[0].output[0]}'")):
        with pytest.raises(ModelError, match=named):
            load(model)


def test_an_input_that_is_declared_twice(samples):
    """onnxruntime takes one with a default, and refuses one without."""
    weight, twice = tiny_model(), tiny_model()
    tensor = weight.graph.initializer[0]
    value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
    weight.graph.input.extend([value, value])
    for options in ({}, {"keep_defaults": True}):
        assert len(Runner(read(weight, **options))({"x": samples})[0]) == len(samples)
    twice.graph.input.append(twice.graph.input[0])
    with pytest.raises(ModelError, match="'x'"):
        load(twice)


def test_an_input_without_a_name_is_a_model_error():
    model = tiny_model()
    model.graph.input.append(helper.make_tensor_value_info("", TensorProto.FLOAT, [1]))
    with pytest.raises(ModelError, match="input without a name"):
        load(model)


@pytest.mark.parametrize("in_function", [False, True])
def test_an_input_that_an_operator_needs_and_does_not_get_is_named(in_function):
    model = tiny_model()
    if in_function:  # whose parameters have the same name, so that the first is nowhere
        node = model.graph.node[0]
        body = helper.make_node("Conv", ["a", "w"], ["b"], pads=[1, 1, 1, 1])
        opsets = [helper.make_opsetid("", 17)]
        model.functions.append(helper.make_function("my", "Twice", ["a", "w", "w"], ["b"], [body], opsets))
        node.op_type, node.domain = "Twice", "my"
        del node.input[2:], node.attribute[:]
        model.opset_import.append(helper.make_opsetid("my", 1))
        with pytest.raises(ModelError, match="Conv.*no input 'W'"):
            prepare(load(model), [InlineFunctions()])
        return
    model.graph.node[0].input[1] = ""
    with pytest.raises(ModelError, match="'first'.*Conv.*no input 'W'"):
        load(model)


def test_an_old_resize_may_leave_its_regions_out():
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest")]
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 8, 8])
    graph = helper.make_graph(nodes, "g", [x], [y], [scales])
    assert load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6))


def test_functions_of_another_version_than_an_old_model_are_a_model_error():
    model = tiny_model(opset=12)
    body = helper.make_node("Relu", ["a"], ["b"])
    model.functions.append(helper.make_function("my", "F", ["a"], ["b"], [body], [helper.make_opsetid("", 17)]))
    model.graph.node[1].op_type, model.graph.node[1].domain = "F", "my"
    model.opset_import.append(helper.make_opsetid("my", 1))
    with pytest.raises(ModelError, match="functions.*cannot be inlined"):
        load(model)


def test_an_opset_of_the_future_says_which_are_known():
    model = tiny_model()
    model.opset_import[0].version = 4000
    with pytest.raises(ModelError, match=str(onnx.defs.onnx_opset_version())):
        load(model)


@pytest.mark.parametrize("version", [0, -1, 2**31, 2**63 - 1])
def test_an_opset_that_there_cannot_be_is_a_model_error(version):
    model = tiny_model()
    model.opset_import[0].version = version
    with pytest.raises(ModelError, match=str(version)):
        load(model)


def test_malformed_nodes_are_found_whatever_the_opset():
    model = tiny_model()
    model.opset_import[0].version = 4000
    assert read(model)
    del model.graph.node[0].input[1:]
    with pytest.raises(ModelError, match="'first'"):
        read(model)


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "taken", "made", "what"),
    [
        ("Loop", "count _ x x", "y", "i on v", "on v", "3 inputs and 2 outputs, not 4 and 2"),
        ("Loop", "count _ x", "y", "i on v", "on v v", "3 inputs and 3 outputs, not 3 and 2"),
        ("Loop", "count _ x", "y", "i", "", "1 inputs and 0 outputs, not 3 and 2"),
        ("Loop", "count _ _", "y", "i on v", "on v", "a loop variable without a first value"),
        ("If", "on", "y", "", "", "0 inputs and 0 outputs, not 0 and 1"),
    ],
)
def test_graphs_that_do_not_fit_the_node_that_holds_them_are_found(op_type, inputs, outputs, taken, made, what):
    scalars = {"i": info("i", [], TensorProto.INT64), "on": info("on", [], TensorProto.BOOL)}
    ends = [[scalars.get(name, info(name, [3])) for name in side.split()] for side in (taken, made)]
    held = {name: helper.make_graph([], name, *ends) for name in BODIES[op_type]}
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in (("count", 2), ("on", True))]
    holder = node(op_type, inputs, outputs, name="holder", **held)
    with pytest.raises(ModelError, match=f"'holder'.*{what}"):
        load(helper.make_model(helper.make_graph([holder], "g", [info("x", [3])], [info("y", [3])], constants)))


BODIES = {"Loop": ["body"], "If": ["then_branch", "else_branch"]}


def test_a_file_of_external_data_whose_name_is_no_text_is_not_there(tmp_path):
    path, model = tmp_path / "m.onnx", tiny_model()
    onnx.save(model, path, save_as_external_data=True, location="elsewhere", size_threshold=0)
    model = onnx.load(path, load_external_data=False)
    path.write_bytes(model.SerializeToString().replace(b"elsewhere", b"els\xffwhere"))
    with pytest.raises(ModelError, match="els.*xffwhere"):
        read(path)


@needs_opset(23)
def test_types_that_only_the_converter_knows_are_a_model_error():
    """An output that is a sequence of maps, which the file does not say."""
    node = helper.make_node("ZipMap", ["x"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    same = helper.make_node("Identity", ["maps"], ["y"])
    x, maps = helper.make_tensor_value_info("x", 1, [1, 2]), helper.make_empty_tensor_value_info("y")
    opsets = [helper.make_opsetid("", 11), helper.make_opsetid("ai.onnx.ml", 1)]
    with pytest.raises(ModelError, match="opset 17"):
        load(helper.make_model(helper.make_graph([node, same], "zipmap", [x], [maps]), opset_imports=opsets))


@pytest.mark.parametrize("classes", [["cat", "dög", "eel"], [7, -1, 3]])
def test_an_output_that_is_a_map_is_the_tensor_that_it_is_made_of(tmp_path, classes):
    proto, x = with_maps(classes), normal(1, 3, 8, 8)
    before = proto.SerializeToString()
    maps = onnxruntime.InferenceSession(before).run(None, {"x": x})[0]
    onnx.save(proto, tmp_path / "m.onnx")
    for model in (load(proto), load(tmp_path / "m.onnx")):
        found = Runner(model)({"x": x})[0]
        np.testing.assert_array_equal(found, [[row[each] for each in classes] for row in maps])
        assert model.graph.outputs[0].shape[1] == len(classes)
        assert [name for name, _ in unzipped(model)] == ["y"]
        assert next(unzipped(model))[1].endswith(f"in this order: {', '.join(map(str, classes))}")
    assert proto.SerializeToString() == before


def test_of_many_classes_the_first_and_the_last_are_told():
    assert next(unzipped(load(with_maps(range(100)))))[1].endswith("in this order: 0, 1, 2, 3, ..., 99")


def test_a_value_that_comes_from_nowhere_is_named():
    reads, answers = tiny_model(), tiny_model()
    reads.graph.node[0].input[0] = "nowhere"
    answers.graph.output[0].name = "nothing"
    for model, named in ((reads, "'nowhere'"), (answers, "'nothing'")):
        with pytest.raises(ModelError, match=named):
            load(model)


def test_an_inner_graph_whose_output_comes_from_nowhere_is_named():
    then = helper.make_graph([], "then", [], [helper.make_tensor_value_info("nothing", 1, [1])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=then)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph([node], "outer", [condition], [helper.make_tensor_value_info("y", 1, [1])])
    with pytest.raises(ModelError, match="'then'.*'nothing'"):
        read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def test_bytes_that_are_no_text_are_spelled_out(tmp_path):
    """onnxruntime runs such files; exporters with names in another encoding write them."""
    proto = tiny_model()
    proto.opset_import.append(helper.make_opsetid("unused", 1))
    data = proto.SerializeToString().replace(b"\x02c1", b"\x02\xde1").replace(b"second", b"sec\xffnd")
    data = data.replace(b"unused", b"unus\xf8d")
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    assert onnxruntime.InferenceSession(str(path))
    model = load(path)
    assert {node.name for node in model.graph} == {"first", "relu", "sec\\xffnd"}
    assert model.graph.node(0).outputs[0].name == "\\xde1"
    assert "unus\\xf8d" in model.opset_imports
    assert onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (bytes(5000), "zeros"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", "git lfs pull"),
        (b"<!DOCTYPE html>\n<html><title>404</title></html>", "download"),
        (b'{"error": "Repository not found"}', "JSON"),
        (b"PK\x03\x04\x14\0\0\0" * 9, "zip archive"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "gunzip"),
        (b"\x1c\0\0\0TFL3" + bytes(90), "TensorFlow Lite"),
        (b"\x1c\0\0\0ORTM" + bytes(90), "onnxruntime's own format"),
        (b"\x30\0\0\0\0\0\0\0" + b'{"w":{"dtype":"F32","shape":[1]}}', "safetensors"),
        (b"\x80\x04\x95\x10\0\0\0\0\0\0\0}.", "pickle"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"GGUF\x03\0\0\0", "GGUF"),
    ],
)
def test_a_file_of_another_kind_is_called_by_its_name(tmp_path, content, said):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=said):
        read(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="pipe"):
        read(tmp_path / "m.onnx")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.parametrize("device", [False, True])
def test_external_data_that_is_a_pipe_or_a_device_is_not_opened(tmp_path, device):
    onnx.save(tiny_model(), tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    (tmp_path / "w").unlink()
    if device:
        (tmp_path / "w").symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / "w")
    with pytest.raises(ModelError, match="link to outside" if device else "which is a pipe"):
        read(tmp_path / "m.onnx")


def test_external_data_that_is_a_pointer_or_has_another_case(tmp_path):
    model = tiny_model()
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="Weights.bin", size_threshold=0)
    (tmp_path / "Weights.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ModelError, match="git lfs pull"):
        read(tmp_path / "m.onnx")
    (tmp_path / "Weights.bin").rename(tmp_path / "weights.bin")
    if not (tmp_path / "Weights.bin").exists():
        with pytest.raises(ModelError, match="Rename 'weights.bin'"):
            read(tmp_path / "m.onnx")


def _function(name: str, *calls: str) -> onnx.FunctionProto:
    """A function that calls others one after the other, or Relu."""
    values = ["a", *(f"v{index}" for index in range(1, len(calls))), "b"]
    nodes = [
        helper.make_node(call, [values[index]], [values[index + 1]], domain="" if call == "Relu" else "my")
        for index, call in enumerate(calls)
    ]
    return helper.make_function("my", name, ["a"], ["b"], nodes, [helper.make_opsetid(each, 17) for each in ("", "my")])


def test_functions_that_grow_into_billions_of_nodes_are_refused_at_once(tmp_path):
    doubling = [_function("F0", "Relu")] + [_function(f"F{i}", f"F{i - 1}", f"F{i - 1}") for i in range(1, 30)]
    for functions, call, said in (
        (doubling, "F29", "536,870,912 nodes"),
        ([_function(f"F{i}", f"F{i + 1}") for i in range(3000)], "F0", "too deeply"),
    ):
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
        graph = helper.make_graph([helper.make_node(call, ["x"], ["y"], domain="my")], "g", ends[:1], ends[1:])
        opsets = [helper.make_opsetid(each, 17) for each in ("", "my")]
        onnx.save(helper.make_model(graph, opset_imports=opsets, functions=functions), tmp_path / "m.onnx")
        with pytest.raises(ModelError, match=said):
            read(tmp_path / "m.onnx")


def test_standard_operators_of_no_version_and_sparse_constants_are_named():
    model = tiny_model()
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(ModelError, match="'first'.*which version"):
        read(model)
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("i", TensorProto.INT64, [1], [1]),
        [3],
    )
    model = tiny_model()
    model.graph.node.append(helper.make_node("Constant", [], ["s"], "holds", sparse_value=sparse))
    with pytest.raises(ModelError, match=r"'holds' .*sparse"):
        read(model)
