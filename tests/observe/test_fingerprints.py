from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from detent.errors import DataError
from detent.graph.load import load
from detent.observe import store as module
from detent.observe.preprocess import PreprocessOptions
from detent.observe.sources import input_specs, open_source
from detent.observe.store import Digest, fingerprint_of
from tests.models import as_ir, build, conv_relu_conv, info, node, normal, residual


def of(proto):
    return fingerprint_of(as_ir(proto))


def changed(change, make=conv_relu_conv):
    proto = make()
    change(proto)
    return of(proto)


def test_what_does_not_matter():
    def names_and_comments(proto):
        proto.doc_string, proto.producer_name, proto.graph.doc_string = "text", "someone", "text"
        proto.model_version = 7
        proto.metadata_props.add(key="author", value="someone")
        proto.graph.name = "another"
        for each in proto.graph.node:
            each.name, each.doc_string = f"renamed {each.name}", "text"

    def order(proto):
        tensors = list(proto.graph.initializer)
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(reversed(tensors))

    assert of(conv_relu_conv()) == changed(names_and_comments) == changed(order)


def test_the_order_of_independent_nodes_does_not_matter():
    nodes = [node("Relu", "x", "a"), node("Abs", "x", "b"), node("Add", "a b", "y")]
    assert of(build(nodes, "y")) == of(build([nodes[1], nodes[0], nodes[2]], "y"))


def test_everything_that_is_computed_matters():
    def one_weight(proto):
        tensor = next(each for each in proto.graph.initializer if each.name == "w2")
        array = onnx.numpy_helper.to_array(tensor).copy()
        array.reshape(-1)[-1] = np.nextafter(array.reshape(-1)[-1], np.float32(9))
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, "w2"))

    def operator(proto):
        proto.graph.node[1].op_type = "Abs"

    def attribute(proto):
        proto.graph.node[0].attribute.append(helper.make_attribute("pads", [0, 0, 0, 0]))

    def wiring(proto):
        proto.graph.node[2].input[0] = "c1"

    def input_shape(proto):
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"

    def opset(proto):
        proto.opset_import[0].version = 18

    def value_name(proto):
        proto.graph.node[0].output[0] = proto.graph.node[1].input[0] = "renamed"

    changes = (one_weight, operator, attribute, wiring, input_shape, opset, value_name)
    found = [of(conv_relu_conv()), *map(changed, changes)]
    assert len(set(found)) == len(changes) + 1


def test_attributes_of_every_kind_matter():
    def branch(value):
        constant = helper.make_tensor("c", TensorProto.FLOAT, [1], [value])
        return helper.make_graph([helper.make_node("Constant", [], ["o"], value=constant)], "g", [], [info("o", [1])])

    def conditional(yes, no):
        choice = helper.make_node("If", ["x"], ["y"], then_branch=branch(yes), else_branch=branch(no))
        return build([choice], [info("y", [1])], inputs=[info("x", [], TensorProto.BOOL)])

    assert len({of(conditional(*values)) for values in ((1, 2), (2, 1), (1, 1))}) == 3
    assert of(conditional(1, 2)) == of(conditional(1, 2))


def test_where_the_weights_are_does_not_matter(tmp_path):
    proto = residual()
    onnx.save(residual(), tmp_path / "one.onnx")
    onnx.save(
        residual(),
        tmp_path / "two.onnx",
        save_as_external_data=True,
        location="two.data",
        size_threshold=0,
    )
    assert fingerprint_of(load(tmp_path / "one.onnx")) == fingerprint_of(load(tmp_path / "two.onnx")) == of(proto)


def source_of(data, model=None, **options):
    return open_source(data, input_specs(model or as_ir(conv_relu_conv())), **options)


def test_arrays_are_known_by_their_contents():
    images = normal(20, 3, 8, 8)
    base = source_of(images).fingerprint
    other = images.copy()
    other[19, 2, 7, 7] += 1
    assert base == source_of(images.copy()).fingerprint
    different = [
        source_of(other),
        source_of(images[::-1]),
        source_of(images[:19]),
        source_of(images, hold_out=2),
        source_of(images, limit=10),
        source_of(images, limit=10, seed=1),
        source_of(images, limit=10, seed=2),
        source_of(None),
        source_of(None, seed=1),
    ]
    assert len({base, *(source.fingerprint for source in different)}) == len(different) + 1


def test_streams_have_none():
    assert source_of(list(normal(3, 1, 3, 8, 8))).fingerprint is None
    assert source_of(iter(normal(3, 1, 3, 8, 8))).fingerprint is None


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for index in range(4):
        pixels = np.random.default_rng(index).integers(0, 255, (8, 8, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.bmp")  # a format in which they all have one size
    return folder


def test_image_files_are_known_by_name_contents_and_preprocessing(images, tmp_path):
    base = source_of(images).fingerprint
    moved = images.rename(tmp_path / "elsewhere")
    assert source_of(moved).fingerprint == base
    assert source_of(moved, preprocess=PreprocessOptions(mean=1.0)).fingerprint != base
    first, last = moved / "0.bmp", moved / "3.bmp"
    contents = first.read_bytes(), last.read_bytes()
    first.write_bytes(contents[1])
    assert source_of(moved).fingerprint != base
    last.write_bytes(contents[0])  # the two exchanged
    assert source_of(moved).fingerprint != base
    first.write_bytes(contents[0])
    last.write_bytes(contents[1])
    assert source_of(moved).fingerprint == base
    last.rename(moved / "4.bmp")
    assert source_of(moved).fingerprint != base


def test_only_the_files_in_use_are_read(images):
    base = source_of(images, limit=2).fingerprint  # numbers 0 and 2 of 4
    other = (images / "3.bmp").read_bytes()
    (images / "1.bmp").write_bytes(other)
    assert source_of(images, limit=2).fingerprint == base
    (images / "2.bmp").write_bytes(other)
    assert source_of(images, limit=2).fingerprint != base


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_array_files_are_known_by_their_contents(kind, tmp_path):
    def write(value):
        array = np.full((5, 3, 8, 8), value, np.float32)
        np.save(tmp_path / "a.npy", array) if kind == "npy" else np.savez(tmp_path / "a.npz", x=array)
        return source_of(tmp_path).fingerprint

    assert write(1) != write(2)
    assert write(1) == write(1)


def digest_of(*items):
    digest = Digest()
    digest.add(*items)
    return digest.text


def of_array(array):
    digest = Digest()
    digest.add_array(array)
    return digest.text


def of_file(path):
    digest = Digest()
    digest.add_file(path)
    return digest.text


def test_items_do_not_run_together():
    sequences = [
        (12,),
        (1, 2),
        ("ab",),
        ("a", "b"),
        ("", "ab"),
        ("ab", ""),
        ("a'b",),
        (1,),
        ("1",),
        (1.0,),
        (None,),
        ("None",),
        (),
    ]
    assert len({digest_of(*sequence) for sequence in sequences}) == len(sequences)


def test_any_text_is_taken():
    assert digest_of("\ud800") != digest_of("\udfff") != digest_of("é\0\n")


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8", "float16"])
def test_arrays_differ_by_type_shape_and_contents(dtype):
    array = np.arange(12).astype(dtype).reshape(3, 4)
    other = array.copy()
    other[2, 3] = 0
    assert of_array(array) == of_array(array.copy()) == of_array(np.asfortranarray(array))
    assert len({of_array(each) for each in (array, other, array.reshape(4, 3), array.astype("float64"))}) == 4


def test_arrays_of_no_axes_no_elements_and_of_texts():
    texts = np.array(["a", "b"], dtype=object)
    arrays = [np.float32(1), np.float32([1]), np.zeros((0, 3), np.float32), np.zeros((3, 0), np.float32), texts]
    assert len({of_array(np.asarray(array)) for array in arrays}) == 5


def test_the_name_of_a_file_does_not_count_and_its_contents_do(tmp_path):
    for name, contents in (("a", b"12"), ("b", b"12"), ("c", b"13"), ("d", b"")):
        (tmp_path / name).write_bytes(contents)
    assert of_file(tmp_path / "a") == of_file(tmp_path / "b")
    assert len({of_file(tmp_path / name) for name in "acd"}) == 3


def test_a_large_file_is_sampled_and_no_long_change_escapes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WHOLE_FILE_LIMIT", 1000)
    monkeypatch.setattr(module, "PAGE", 16)
    monkeypatch.setattr(module, "PAGE_STRIDE", 64)
    path = tmp_path / "large"
    contents = bytes(1001)
    path.write_bytes(contents)
    before = of_file(path)
    for start in (*range(0, 130, 5), 500, 1001 - 64):
        path.write_bytes(contents[:start] + b"\1" * 64 + contents[start + 64 :])
        assert of_file(path) != before
    path.write_bytes(contents[:-1] + b"\1")
    assert of_file(path) != before
    path.write_bytes(contents + b"\0")
    assert of_file(path) != before
    path.write_bytes(contents[:20] + b"\1" + contents[21:])  # between two pages: the price of being quick
    assert of_file(path) == before


def test_a_file_that_is_gone_is_named(tmp_path):
    with pytest.raises(DataError, match="gone.png: this file cannot be read"):
        of_file(tmp_path / "gone.png")
