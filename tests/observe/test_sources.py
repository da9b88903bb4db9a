"""Opening data of every kind, and what comes out: the number of samples, their batches and their names."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from PIL import Image

from detent.errors import DataError, ModelError, UsageError
from detent.observe.preprocess import InputSpec, PreprocessOptions, guess_preprocess
from detent.observe.sources import input_specs, open_source
from tests.models import info

RAW = PreprocessOptions(mean=0.0, std=1.0)


def spec(*shape, dtype=np.float32, name="x"):
    return InputSpec(name, np.dtype(dtype), shape)


GREY = [spec(None, 1, 2, 2)]
PAIR = [spec(None, 2)]


def save_images(folder, *names):
    for value, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2), value).save(path)


def numbers(count):
    return np.arange(count, dtype=np.float32)[:, None] * np.ones(2, np.float32)


def loaded(source):
    return [pending.load() for pending in source]


@pytest.fixture
def ten(tmp_path):
    save_images(tmp_path, *(f"{name}.png" for name in "abcdefghij"))
    return tmp_path


@pytest.mark.parametrize(
    ("source", "result", "mean"),
    [
        ([1, 3, 8, 8], [1, 3, 16, 16], 0.0),
        ([1, 3, 8, 8], [1, 3, "height", "width"], 0.0),
        ([1, 8, 8, 3], [1, 8, 8, 3], 0.0),
        ([1, 3, 8, 8], [1, 3, 12, 12], 0.0),  # twice the size without padding
        ([1, 3, 8, 8], [1, 3, 4, 4], 123.675),  # of another size: features
        ([1, 3, 8, 8], [1, 1, 8, 8], 123.675),  # a mask
        ([1, 3, 8, 8], [1, 3], 123.675),
    ],
)
def test_who_answers_with_an_image_takes_one_of_0_to_1(source, result, mean):
    graph = helper.make_graph([], "g", [info("x", source)], [info("y", result)])
    (found,) = input_specs(ir.serde.deserialize_model(helper.make_model(graph)))
    recipe, told = guess_preprocess(found)
    assert recipe.mean[0] == mean
    assert ("the usual 0..1" in told) == (mean == 0.0)


@pytest.mark.parametrize(
    ("result", "fit", "order", "std"),
    [
        ([1, 7, 84], "letterbox", "RGB", 255.0),  # YOLOv8 and later: 64 + 16 + 4 cells
        ([1, 252, 85], "letterbox", "RGB", 255.0),  # YOLOv5 and v7: three anchors to a cell
        ([1, 84, 6], "letterbox", "BGR", 1.0),  # YOLOX: one anchor to a cell, and objectness
        ([1, 30, 6], "letterbox", "RGB", 255.0),  # YOLOv10: thirty objects that it chose itself
        ([1, 84, 4], "crop", "RGB", 58.395),
        ([1, 40, 90], "crop", "RGB", 58.395),
        ([1, 85], "crop", "RGB", 58.395),
    ],
)
def test_detectors_on_grids_take_whole_images(result, fit, order, std):
    graph = helper.make_graph([], "g", [info("x", [1, 3, 64, 64])], [info("y", result)])
    (found,) = input_specs(ir.serde.deserialize_model(helper.make_model(graph)))
    recipe, told = guess_preprocess(found)
    assert (recipe.fit, recipe.order, recipe.std[0]) == (fit, order, std)
    assert told.startswith("Guessed mean, std") == (fit == "letterbox") and ("as YOLO has it" in told) == (
        std != 58.395
    )
    assert guess_preprocess(found, PreprocessOptions(resize=80))[0].fit == "crop"
    assert guess_preprocess(found, PreprocessOptions(order="RGB", fit="crop", mean=0, std=7))[0].order == "RGB"


def rows_of_scores(*, first):
    """A detector on three grids that joins scores and distances of each, the scores first or last."""
    nodes, rows = [], []
    for stride in (8, 16, 32):
        pool = helper.make_node("AveragePool", ["x"], [f"p{stride}"], kernel_shape=[stride] * 2, strides=[stride] * 2)
        shares = helper.make_node("Sigmoid", [f"p{stride}"], [f"s{stride}"])
        order = [f"s{stride}", f"p{stride}"] if first else [f"p{stride}", f"s{stride}"]
        joined = helper.make_node("Concat", order, [f"j{stride}"], axis=1)
        flat = helper.make_node("Reshape", [f"j{stride}", "shape"], [f"f{stride}"])
        nodes += [pool, shares, joined, flat]
        rows.append(f"f{stride}")
    nodes += [
        helper.make_node("Concat", rows, ["c"], axis=2),
        helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 1]),
    ]
    shape = numpy_helper.from_array(np.array([1, 6, -1]), "shape")
    graph = helper.make_graph(nodes, "g", [info("x", [1, 3, 64, 64])], [info("y", [1, 84, 6])], [shape])
    return ir.serde.deserialize_model(helper.make_model(graph))


def test_a_detector_whose_rows_start_with_scores_is_read_as_nanodet():
    (found,) = input_specs(rows_of_scores(first=True))
    recipe, told = guess_preprocess(found)
    assert (recipe.fit, recipe.order, recipe.mean) == ("stretch", "BGR", (103.53, 116.28, 123.675))
    assert "ImageNet's, as NanoDet has it" in told
    assert guess_preprocess(found, PreprocessOptions(order="RGB"))[0].mean == (123.675, 116.28, 103.53)
    assert guess_preprocess(input_specs(rows_of_scores(first=False))[0])[0].fit == "letterbox"


def test_a_detector_that_decodes_boxes_beside_its_scores_takes_what_yolo_takes():
    """YOLOv6 has an objectness of 1 between boxes in pixels and scores; YOLOX leaves boxes as its layers give them."""
    nodes = [
        helper.make_node("AveragePool", ["x"], ["p"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Sigmoid", ["p"], ["s"]),
        helper.make_node("Mul", ["p", "stride"], ["b"]),
        helper.make_node("Concat", ["b", "one", "s"], ["c"], axis=1),
        helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 1]),
    ]
    constants = [numpy_helper.from_array(np.ones(1, np.float32), name) for name in ("stride", "one")]
    graph = helper.make_graph(nodes, "g", [info("x", [1, 3, 64, 64])], [info("y", [1, 84, 85])], constants)
    recipe, _ = guess_preprocess(input_specs(ir.serde.deserialize_model(helper.make_model(graph)))[0])
    assert (recipe.fit, recipe.order, recipe.std) == ("letterbox", "RGB", (255.0,))


def test_a_folder_of_images(ten):
    source = open_source(ten, GREY, preprocess=RAW)
    samples = loaded(source)
    assert [sample.origin for sample in samples] == [f"{name}.png" for name in "abcdefghij"]
    assert [sample.feeds["x"].ravel().tolist() for sample in samples] == [[value] * 4 for value in range(10)]
    assert samples[0].feeds["x"].shape == (1, 1, 2, 2)
    assert samples[0].feeds["x"].dtype == np.float32
    assert (source.length, source.random, source.repeatable) == (10, False, True)
    assert source.describe == f"10 images from {ten}/"
    assert source.preprocess is not None and source.preprocess.order == "GRAY"
    assert source.note.startswith("Images for input 'x'")
    assert [sample.index for sample in loaded(source)] == list(range(10))


def test_path_forms(ten, monkeypatch):
    monkeypatch.chdir(ten.parent)
    for path in (ten, str(ten), Path(ten.name), f"{ten.name}/"):
        assert open_source(path, GREY).length == 10
    assert open_source(f"{ten.name}/", GREY).describe == f"10 images from {ten.name}/"
    single = open_source(ten / "c.png", GREY, preprocess=RAW)
    assert single.describe == f"1 image from {ten / 'c.png'}"
    assert loaded(single)[0].feeds["x"].max() == 2


def test_limit_spreads_over_the_files(ten):
    source = open_source(ten, GREY, limit=4)
    assert [one.origin for one in source] == ["a.png", "c.png", "f.png", "h.png"]
    assert source.describe == f"4 of 10 images from {ten}/"


def test_hold_out_with_a_limit(ten):
    source = open_source(ten, GREY, limit=6, hold_out=2)
    found = [(one.origin, one.held_out) for one in source]
    # 6 of 10, evenly spaced: 0 1 3 5 6 8, of which every third is held out
    assert found == [
        ("a.png", False),
        ("b.png", False),
        ("d.png", True),
        ("f.png", False),
        ("g.png", False),
        ("i.png", True),
    ]
    assert source.describe == f"4 of 10 images from {ten}/, 2 more held out"
    assert [sample.held_out for sample in loaded(source)] == [held for _, held in found]


def test_hold_out_without_a_limit(ten):
    source = open_source(ten, GREY, hold_out=None)
    assert [one.origin for one in source if one.held_out] == ["h.png"]
    assert source.describe == f"9 images from {ten}/, 1 more held out"


def test_seed_chooses_at_random(ten):
    chosen = [[one.origin for one in open_source(ten, GREY, limit=4, seed=seed)] for seed in (1, 1, 2, 3)]
    assert chosen[0] == chosen[1]
    assert len({tuple(one) for one in chosen}) > 1


def test_batches_of_files(ten):
    source = open_source(ten, GREY, batch=4, preprocess=RAW)
    samples = loaded(source)
    assert [sample.origin for sample in samples] == ["a.png … d.png", "e.png … h.png", "i.png … j.png"]
    assert [sample.feeds["x"].shape[0] for sample in samples] == [4, 4, 2]
    assert samples[1].feeds["x"][:, 0, 0, 0].tolist() == [4, 5, 6, 7]
    assert source.length == 3
    assert source.describe == f"10 images from {ten}/, in batches of 4"


def test_a_static_batch_drops_what_is_left_over(ten):
    source = open_source(ten, [spec(4, 1, 2, 2)])
    assert [sample.feeds["x"].shape[0] for sample in loaded(source)] == [4, 4]
    assert source.length == 2
    assert source.describe == f"8 images from {ten}/, in batches of 4 (2 left over and not used)"
    source = open_source(ten, [spec(4, 1, 2, 2)], limit=7)
    assert source.length == 1
    assert source.describe == f"4 of 10 images from {ten}/, in batches of 4 (3 left over and not used)"


def test_batches_of_nothing_are_an_error_of_the_model():
    with pytest.raises(ModelError, match=r"'x' of shape \[0, 3\]"):
        open_source(np.zeros((4, 3), np.float32), [spec(0, 3)])


def test_too_few_for_one_batch(ten):
    with pytest.raises(DataError, match="batches of 16.* 10 images from "):
        open_source(ten, [spec(16, 1, 2, 2)])
    with pytest.raises(DataError, match="batches of 4.* 3 images"):
        open_source(ten, [spec(4, 1, 2, 2)], limit=3)


def test_a_batch_that_contradicts_the_model(ten):
    with pytest.raises(UsageError, match=r"--batch 2: input 'x' of shape \[4, 1, 2, 2\] takes batches of 4 only"):
        open_source(ten, [spec(4, 1, 2, 2)], batch=2)
    assert open_source(ten, [spec(4, 1, 2, 2)], batch=4).length == 2
    with pytest.raises(UsageError, match="--batch 2: "):
        open_source(None, [spec(1, 2, name="a"), spec(4, name="b")], batch=2)


@settings(max_examples=50)
@given(
    st.integers(1, 60),
    st.none() | st.integers(1, 40),
    st.integers(0, 10),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(0, 3),
)
def test_batching_loses_and_mixes_nothing(count, limit, hold_out, batch, seed):
    data = numbers(count)
    seed = None if limit is None else seed
    hold_out = min(hold_out, min(count, limit or count) - 1)
    source = open_source(data, PAIR, limit=limit, hold_out=hold_out, batch=batch, seed=seed)
    samples = loaded(source)
    assert len(samples) == source.length
    assert [sample.index for sample in samples] == list(range(len(samples)))
    values = {held: [v for s in samples if s.held_out is held for v in s.feeds["x"][:, 0]] for held in (False, True)}
    assert not set(values[False]) & set(values[True])
    assert all(len(found) == len(set(found)) for found in values.values())
    assert len(values[True]) <= hold_out
    assert len(values[False]) + len(values[True]) == min(count, limit or count)


def test_arrays_and_dicts():
    source = open_source(numbers(3), PAIR)
    assert [(one.origin, one.load().feeds["x"].tolist()) for one in source] == [
        ("array[0]", [[0, 0]]),
        ("array[1]", [[1, 1]]),
        ("array[2]", [[2, 2]]),
    ]
    assert source.describe == "3 samples from an array"
    one = loaded(open_source(numbers(3)[1], PAIR))
    assert [(sample.origin, sample.feeds["x"].tolist()) for sample in one] == [("array", [[1, 1]])]
    two = open_source({"x": numbers(3), "y": np.arange(3)}, [*PAIR, spec(None, dtype=np.int64, name="y")], batch=2)
    assert [sample.feeds["y"].tolist() for sample in loaded(two)] == [[0, 1], [2]]
    assert two.describe == "3 samples from a dict of arrays, in batches of 2"


def test_a_tensor_is_an_array():
    class Tensor:
        def numpy(self):
            return numbers(3)

    assert open_source(Tensor(), PAIR).length == 3


def test_inputs_without_a_common_batch_axis():
    inputs = [spec(1, 2, name="a"), spec(4, name="b")]
    one = loaded(open_source({"a": np.zeros((1, 2), np.float32), "b": np.zeros(4, np.float32)}, inputs))
    assert [sample.feeds["b"].shape for sample in one] == [(4,)]
    many = loaded(open_source({"a": np.zeros((5, 2), np.float32), "b": np.zeros((5, 4), np.float32)}, inputs))
    assert [(sample.feeds["a"].shape, sample.feeds["b"].shape) for sample in many] == [((1, 2), (4,))] * 5


def test_npy_and_npz_files(tmp_path):
    np.save(tmp_path / "calib.npy", numbers(20))
    source = open_source(tmp_path / "calib.npy", PAIR, limit=2)
    assert [one.origin for one in source] == ["calib.npy[0]", "calib.npy[10]"]
    assert source.describe == f"2 of 20 samples from {tmp_path / 'calib.npy'}"
    assert loaded(source)[1].feeds["x"].tolist() == [[10, 10]]
    np.savez(tmp_path / "calib.npz", x=numbers(3))
    assert [sample.feeds["x"][0, 0] for sample in loaded(open_source(tmp_path / "calib.npz", PAIR))] == [0, 1, 2]


def test_a_complaint_names_the_sample_and_not_the_batch(tmp_path):
    data = numbers(20)
    data[17, 1] = np.nan
    np.save(tmp_path / "calib.npy", data)
    source = list(open_source(tmp_path / "calib.npy", PAIR, batch=4))
    for pending in source[:4]:
        pending.load()
    with pytest.raises(DataError, match=r"^calib\.npy\[17\]: input 'x' .*1 NaN"):
        source[4].load()


def test_files_of_different_shapes_do_not_make_a_batch(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 5), np.float32))
    np.save(tmp_path / "b.npy", np.zeros((3, 6), np.float32))
    ragged = [spec(None, 3, None)]
    assert [sample.feeds["x"].shape for sample in loaded(open_source(tmp_path, ragged))] == [(1, 3, 5), (1, 3, 6)]
    with pytest.raises(DataError, match=r"b\.npy: input 'x' .*\[1, 3, 5\].*a\.npy"):
        loaded(open_source(tmp_path, ragged, batch=2))


def test_an_unreadable_image_fails_when_it_is_loaded_and_names_itself(ten):
    whole = (ten / "c.png").read_bytes()
    at = whole.index(b"IDAT") + 4  # its header and its end are as they should be
    (ten / "c.png").write_bytes(whole[:at] + bytes(4) + whole[at + 4 :])
    pending = list(open_source(ten, GREY))
    pending[1].load()
    with pytest.raises(DataError, match=r"c\.png: this image cannot be read"):
        pending[2].load()


def test_an_empty_image_is_passed_over_unless_all_must_be_right(ten):
    (ten / "c.png").write_bytes(b"")
    assert open_source(ten, GREY).describe == f"9 images from {ten}/ (1 image skipped that cannot be read: c.png)"
    with pytest.raises(DataError, match=r"c\.png.*the file is empty"):
        open_source(ten, GREY, strict=True)


def test_images_need_one_input(ten):
    with pytest.raises(DataError, match=r"2 inputs \('x', 'y'\)"):
        open_source(ten, [*GREY, spec(1, name="y")])
    with pytest.raises(UsageError, match=r"Pass \.npy or \.npz files instead"):
        open_source(ten, [spec(None, 10)])


def test_preprocess_options_without_images():
    for data in (numbers(3), [numbers(1)], None):
        with pytest.raises(UsageError, match="--mean, --std: "):
            open_source(data, PAIR, preprocess=RAW)


def test_random_data_says_so():
    source = open_source(None, PAIR)
    assert source.random is True
    assert source.length == 8
    assert "RANDOM" in source.describe and "seed 0" in source.describe
    first, again = loaded(source), loaded(source)
    assert first[0].feeds["x"].shape == (1, 2)
    np.testing.assert_array_equal(first[5].feeds["x"], again[5].feeds["x"])
    assert not np.array_equal(first[0].feeds["x"], loaded(open_source(None, PAIR, seed=1))[0].feeds["x"])
    assert open_source(None, PAIR, limit=3).length == 3
    assert [sample.feeds["x"].shape for sample in loaded(open_source(None, [spec(4, 2)]))] == [(4, 2)] * 8
    assert open_source(numbers(2), PAIR).random is False
    assert open_source([numbers(1)], PAIR).random is False
    with pytest.raises(UsageError, match="--fix-shape"):
        open_source(None, [spec(None, 3, None, None)])


@pytest.mark.parametrize(("name", "value"), [("limit", 0), ("hold_out", -1), ("batch", 0), ("seed", -1)])
def test_numbers_out_of_range(name, value):
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} must be at least"):
        open_source(numbers(3), PAIR, **{name: value})


def test_a_model_without_inputs():
    with pytest.raises(DataError, match="no inputs"):
        open_source(None, [])


def test_threads_share_an_iterator(ten):
    shared, lock, found = iter(open_source(ten, GREY, preprocess=RAW)), threading.Lock(), []

    def work():
        while True:
            with lock:
                pending = next(shared, None)
            if pending is None:
                return
            found.append((pending.index, float(pending.load().feeds["x"].max())))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(value, float(value)) for value in range(10)]


def test_nothing_heavy_is_imported():
    code = "import sys, detent.observe.sources; print({'torch', 'PIL', 'onnx', 'numba'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [(np.zeros((4, 1, 2, 2), np.float32), {"seed": 1}, "needs --limit"), (iter([]), {"seed": 1, "limit": 2}, "stream")],
)
def test_a_seed_that_would_have_no_use(data, options, words):
    with pytest.raises(UsageError, match=words):
        open_source(data, GREY, **options)


INPUTS = [InputSpec("x", np.dtype(np.float32), (1, 2))]


def items(count):
    return [np.full((1, 2), number, np.float32) for number in range(count)]


def contents(samples):
    """Index, whether it is held out, and the number in it."""
    return [(each.index, each.held_out, float(each.load().feeds["x"][0, 0])) for each in samples]


def once(count, taken=None):
    for item in items(count):
        if taken is not None:
            taken.append(item)
        yield item


@pytest.mark.parametrize("make", [items, once, lambda count: np.concatenate(items(count))])
@pytest.mark.parametrize("options", [{}, {"hold_out": 3}, {"limit": 10, "hold_out": 4}, {"limit": 2}])
@pytest.mark.parametrize("count", [0, 1, 5, 9, 50])
def test_nothing_is_lost(make, options, count):
    whole = contents(open_source(make(20), INPUTS, **options))
    source = open_source(make(20), INPUTS, **options)
    chosen = source.peek(count)
    assert contents(chosen) == [each for each in whole if not each[1]][:count]
    assert contents(source) == whole


@pytest.mark.parametrize("make", [items, once])
def test_a_source_shorter_than_asked(make):
    source = open_source(make(3), INPUTS)
    chosen = source.peek(8)
    assert contents(chosen) == contents(source) == [(0, False, 0.0), (1, False, 1.0), (2, False, 2.0)]


def test_no_more_is_read_than_needed():
    taken = []
    source = open_source(once(20, taken), INPUTS)
    chosen = source.peek(3)
    assert (len(chosen), len(taken)) == (3, 3)
    next(iter(source))
    assert len(taken) == 3
    taken.clear()
    assert open_source(once(20, taken), INPUTS).peek(0) == []
    assert taken == []


@pytest.mark.parametrize("make", [items, once])
def test_a_second_look_sees_the_same(make):
    source = open_source(make(9), INPUTS)
    whole = contents(open_source(items(9), INPUTS))
    assert contents(source.peek(2)) == whole[:2]
    assert contents(source.peek(5)) == whole[:5]
    assert contents(source) == whole


def test_a_second_pass_is_refused_as_before():
    source = open_source(once(4), INPUTS)
    source.peek(2)
    assert len(contents(source)) == 4
    with pytest.raises(DataError, match="can be read only once"):
        list(source)


def test_errors_of_the_data_come_through():
    def broken():
        yield items(1)[0]
        raise ValueError("the disk is gone")

    with pytest.raises(DataError, match="the disk is gone"):
        open_source(broken(), INPUTS).peek(2)
    source = open_source(broken(), INPUTS)
    assert len(source.peek(1)) == 1
    with pytest.raises(DataError, match="the disk is gone"):
        list(source)


def test_an_input_whose_type_says_nothing_is_named():
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.UNDEFINED), shape=ir.Shape([1, 2]))
    model = ir.Model(ir.Graph([value], [value], nodes=[]), ir_version=8)
    with pytest.raises(ModelError, match="'x'"):
        input_specs(model)
