"""What exporters say about images: read from metadata and from files beside the model, and obeyed."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from detent.errors import UsageError
from detent.graph.load import load, read
from detent.observe.exporters import class_names, declared_images
from detent.observe.images import geometry, image_size
from detent.observe.preprocess import PreprocessOptions, guess_preprocess
from detent.observe.sources import input_specs, open_source

YOLO = {"stride": "32", "task": "detect", "imgsz": "[64, 32]", "names": "{0: 'person', 1: 'car'}"}


def model_of(metadata, shape=(1, 3, 64, 32), rank=3):
    """A model of one image input with these metadata."""
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["y"])] if rank == 2 else [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    helper.set_model_props(model, metadata)
    return model


def recipe_of(model, **given):
    return guess_preprocess(input_specs(load(model))[0], PreprocessOptions(**given))


def test_ultralytics_detectors_letterbox():
    recipe, note = recipe_of(model_of(YOLO))
    assert (recipe.fit, recipe.pad, recipe.size) == ("letterbox", 114, (64, 32))
    assert (recipe.mean, recipe.std, recipe.order) == ((0.0,), (255.0,), "RGB")
    assert "Guessed" not in note
    assert "Ultralytics, task detect" in note
    declared = declared_images(load(model_of(YOLO)))
    assert (declared.names, declared.task) == (("person", "car"), "detect")


def test_ultralytics_classifiers_crop():
    recipe, note = recipe_of(model_of(YOLO | {"task": "classify"}, rank=2))
    assert (recipe.fit, recipe.std) == ("crop", (255.0,))
    assert "Guessed" not in note


def test_dynamic_size_is_that_of_the_export():
    recipe, _ = recipe_of(model_of(YOLO, shape=(1, 3, None, None)))
    assert recipe.size == (64, 32)


def test_yolov5_has_no_task():
    metadata = {key: YOLO[key] for key in ("stride", "names")}
    assert recipe_of(model_of(metadata))[0].fit == "letterbox"
    assert recipe_of(model_of(metadata, rank=2))[0].mean == (123.675, 116.28, 103.53)


def test_the_user_has_the_last_word():
    recipe, _ = recipe_of(model_of(YOLO), fit="stretch", mean=(1.0,))
    assert (recipe.fit, recipe.mean, recipe.std) == ("stretch", (1.0,), (255.0,))
    assert recipe_of(model_of(YOLO), resize=80)[0].fit == "crop"
    assert recipe_of(model_of(YOLO), pad=0)[0].pad == 0


@pytest.mark.parametrize("names", ["", "x", "{1: 'a'}", "[" * 10_000, "{0: 'a', 2: 'b'}", "7"])
def test_names_that_are_none(names):
    assert class_names(names) == ()


def test_metadata_of_onnx():
    recipe, note = recipe_of(model_of({"image.bitmappixelformat": "Bgr8", "Image.NominalPixelRange": "Normalized_1_1"}))
    assert (recipe.order, recipe.mean, recipe.std) == ("BGR", (127.5,), (127.5,))
    assert "Guessed" not in note


def beside(tmp_path, name, config, folder=""):
    (tmp_path / folder).mkdir(exist_ok=True)
    path = tmp_path / folder / "model.onnx"
    onnx.save(model_of({}, shape=(1, 3, 224, 224)), path)
    (tmp_path / name).write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@pytest.mark.parametrize("folder", ["", "onnx"])
def test_hugging_face(tmp_path, folder):
    config = {
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
        "size": {"shortest_edge": 256},
        "do_normalize": True,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
        "rescale_factor": 0.00392156862745098,
        "resample": 3,
    }
    recipe, note = recipe_of(beside(tmp_path, "preprocessor_config.json", config, folder))
    assert recipe.mean == pytest.approx((123.675, 116.28, 103.53))
    assert (recipe.fit, recipe.resize, recipe.resample) == ("crop", 256, "bicubic")
    assert "preprocessor_config.json" in note


def test_hugging_face_without_crop_stretches(tmp_path):
    config = {"size": {"height": 224, "width": 224}, "do_normalize": False, "do_rescale": True, "resample": 2}
    recipe, _ = recipe_of(beside(tmp_path, "preprocessor_config.json", config))
    assert (recipe.fit, recipe.mean, recipe.std) == ("stretch", (0.0,), (255.0,))


def test_timm(tmp_path):
    config = {"pretrained_cfg": {"input_size": [3, 224, 224], "crop_pct": 0.875, "interpolation": "bicubic"}}
    config["pretrained_cfg"] |= {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
    recipe, _ = recipe_of(beside(tmp_path, "config.json", config))
    assert (recipe.resize, recipe.mean, recipe.resample) == (256, (127.5, 127.5, 127.5), "bicubic")


@pytest.mark.parametrize(
    "config",
    ["{", "[]", {"image_mean": "x"}, {"image_mean": [1, 2], "image_std": [1, 2]}, {"rescale_factor": 0, "size": 3}],
)
def test_files_that_say_nothing_leave_a_guess(tmp_path, config):
    _, note = recipe_of(beside(tmp_path, "preprocessor_config.json", config))
    assert note.startswith("Guessed mean and std")


def test_the_folder_outlives_loading(tmp_path):
    path = beside(tmp_path, "preprocessor_config.json", {"rescale_factor": 1 / 255, "do_normalize": False})
    assert declared_images(load(path)) is not None
    assert declared_images(read(path)) is not None


@pytest.mark.parametrize(
    ("image", "size", "fit", "resized", "offset"),
    [
        ((480, 640), (640, 640), "letterbox", (480, 640), (80, 0)),
        ((427, 640), (640, 640), "letterbox", (427, 640), (106, 0)),
        ((1000, 333), (640, 640), "letterbox", (640, 213), (0, 213)),
        ((100, 50), (64, 64), "stretch", (64, 64), (0, 0)),
        ((100, 50), (64, 64), "crop", (128, 64), (-32, 0)),
        ((1, 10_000), (64, 64), "letterbox", (1, 64), (31, 0)),
    ],
)
def test_geometry(image, size, fit, resized, offset):
    placed = geometry(image, size, fit=fit)
    assert (placed.resized, placed.offset) == (resized, offset)
    whole = np.array([[offset[1], offset[0], offset[1] + resized[1], offset[0] + resized[0]]], np.float32)
    assert placed.to_image(whole) == pytest.approx(np.array([[0, 0, image[1], image[0]]]), rel=1e-6)


def test_letterboxed_pixels(tmp_path):
    Image.new("RGB", (40, 20), (255, 0, 0)).save(tmp_path / "red.png")
    source = open_source(tmp_path, input_specs(load(model_of(YOLO, shape=(1, 3, 32, 32)))))
    pixels = next(iter(source)).load().feeds["x"][0]
    assert np.allclose(pixels[:, :8], 114 / 255)
    assert np.allclose(pixels[:, 24:], 114 / 255)
    assert np.allclose(pixels[0, 8:24], 1.0)
    assert np.allclose(pixels[1:, 8:24], 0.0)


def test_letterboxed_grey(tmp_path):
    Image.new("L", (40, 20), 200).save(tmp_path / "grey.png")
    source = open_source(
        tmp_path,
        input_specs(load(model_of({}, shape=(1, 1, 32, 32)))),
        preprocess=PreprocessOptions(fit="letterbox", pad=7),
    )
    pixels = next(iter(source)).load().feeds["x"][0, 0] * 255
    assert pixels[0, 0] == pytest.approx(7)
    assert pixels[16, 16] == pytest.approx(200)


def test_size_of_a_turned_image(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(tmp_path / "turned.jpg", exif=exif)
    assert image_size(tmp_path / "turned.jpg") == (40, 20)


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"fit": "letterbox", "resize": 64}, "--resize"),
        ({"fit": "crop", "pad": 3}, "--pad"),
        ({"fit": "squash"}, "--fit"),
        ({"fit": "letterbox", "pad": 256}, "--pad"),
        ({"fit": "letterbox", "pad": True}, "--pad"),
    ],
)
def test_fits_that_contradict(given, flag):
    with pytest.raises(UsageError, match=flag):
        recipe_of(model_of({}), **given)


def test_json_keeps_the_fit(tmp_path):
    recipe, _ = recipe_of(model_of(YOLO))
    (tmp_path / "options.json").write_text(json.dumps(recipe.to_dict()))
    assert recipe_of(model_of({}), file=tmp_path / "options.json")[0] == recipe
    assert "fit" not in recipe_of(model_of({}))[0].to_dict()


def saved(model, folder, name, **settings):
    """The model as a file, and settings beside it under its own name."""
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    (folder / f"{name}.json").write_text(json.dumps(settings), encoding="utf-8")
    return path


@pytest.mark.parametrize("opset", [13, 17])
def test_a_file_of_your_own_under_the_models_name_is_obeyed(tmp_path, opset):
    """A model that is converted to another opset still knows where it came from."""
    model = model_of({})
    model.opset_import[0].version = opset
    recipe, note = recipe_of(saved(model, tmp_path, "net", mean=[103.5, 116, 123.5], std=1, order="BGR", layout="NHWC"))
    assert (recipe.mean, recipe.std, recipe.order, recipe.layout) == ((103.5, 116.0, 123.5), (1.0,), "BGR", "NCHW")
    assert "net.json" in note
    assert "Guessed" not in note


def test_a_file_of_your_own_comes_before_the_exporters_words_which_still_name_classes(tmp_path):
    path = saved(model_of(YOLO), tmp_path, "net", mean=7, std=9, fit="stretch")
    recipe, _ = recipe_of(path)
    assert (recipe.mean, recipe.fit) == ((7.0,), "stretch")
    assert declared_images(load(path)).names == ("person", "car")
    assert recipe_of(path, mean=(0.0,))[0].mean == (0.0,)


@pytest.mark.parametrize(
    "settings", [{"mean": 7, "labels": ["a"]}, {"size": 32}, {"mean": "x"}, {"std": 0.2}, {"std": 0}]
)
def test_a_file_with_the_models_name_and_another_purpose_is_passed_over(tmp_path, settings):
    assert "Guessed mean and std" in recipe_of(saved(model_of({}), tmp_path, "net", **settings))[1]


FIRST_NODES = [
    ([("Sub", 127.5), ("Mul", 1 / 128)], "0..255", ((0.0,), (1.0,))),
    ([("Div", 255.0)], "0..255", ((0.0,), (1.0,))),
    ([("Div", 255.0), ("Sub", [0.485, 0.456, 0.406]), ("Div", [0.229, 0.224, 0.225])], "0..255", ((0.0,), (1.0,))),
    ([("Sub", [0.485, 0.456, 0.406]), ("Div", [0.229, 0.224, 0.225])], "0..1", ((0.0,), (255.0,))),
    ([("Mul", 2.0), ("Sub", 1.0)], "0..1", ((0.0,), (255.0,))),
    ([("Mul", 255.0)], "0..1", ((0.0,), (255.0,))),
    ([("Mul", 2.0)], None, None),
    ([("Add", 0.1)], None, None),
    ([("Mul", -1.0), ("Add", 127.5)], None, None),
    ([("Div", 0.0)], None, None),
]


def normalising(steps, *, fork=False):
    """A model whose first nodes compute these steps with constants; with `fork`, another node reads the input too."""
    nodes, weights, value = [], [], "x"
    for at, (kind, number) in enumerate(steps):
        array = np.asarray(number, np.float32).reshape(1, -1, 1, 1)
        weights.append(onnx.numpy_helper.from_array(array, f"c{at}"))
        nodes.append(helper.make_node(kind, [value, f"c{at}"], [f"v{at}"]))
        value = f"v{at}"
    nodes.append(helper.make_node("Add", [value, "x"], ["y"]) if fork else helper.make_node("Relu", [value], ["y"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=[helper.make_opsetid("", 17)]
    )


@pytest.mark.parametrize(("steps", "taken", "statistics"), FIRST_NODES)
def test_first_nodes_that_normalise_say_which_pixels_they_take(steps, taken, statistics):
    declared = declared_images(load(normalising(steps)))
    if taken is None:
        assert declared is None
        return
    recipe, note = recipe_of(normalising(steps))
    assert (recipe.mean, recipe.std) == statistics
    assert f"its first nodes normalise {taken}" in note
    assert "Guessed" not in note


def test_first_nodes_that_others_go_around_say_nothing():
    assert declared_images(load(normalising([("Sub", 127.5), ("Mul", 1 / 128)], fork=True))) is None


def test_metadata_comes_before_first_nodes():
    model = normalising([("Sub", 127.5), ("Mul", 1 / 128)])
    helper.set_model_props(model, {"Image.NominalPixelRange": "Normalized_0_1"})
    assert declared_images(load(model)).settings["std"] == (255.0,)


def test_flags_come_before_first_nodes():
    recipe, _ = recipe_of(normalising([("Div", 255.0)]), mean=1.0, std=2.0)
    assert (recipe.mean, recipe.std) == ((1.0,), (2.0,))
