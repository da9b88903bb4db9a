"""Labels of boxes, masks and pairs: what is read, and what is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from PIL import Image

from detent.errors import DataError
from detent.tasks.labels import is_pair_file, read_coco, read_masks, read_pairs, read_yolo


def yolo(tmp_path, **files):
    for name, text in files.items():
        (tmp_path / f"{name}.txt").write_text(text)
    return read_yolo(tmp_path)


def test_yolo_boxes(tmp_path):
    labels = yolo(tmp_path, a="1 0.5 0.5 0.5 0.25\n\n0 0.1 0.1 0.2 0.2\n", b="").assign(
        ["a.jpg", "b.png", "c.jpg"], "here"
    )
    truths = labels.truths("a.jpg", (100, 200), labels.classes_of(2, ()))
    assert truths.classes.tolist() == [1, 0]
    assert truths.boxes[0] == pytest.approx([50, 37.5, 150, 62.5])
    assert not len(labels.truths("b.png", (9, 9), {}).classes)
    assert not len(labels.truths("c.jpg", (9, 9), {}).classes)


def test_polygons_are_their_boxes(tmp_path):
    labels = yolo(tmp_path, a="3 0.1 0.2 0.5 0.1 0.4 0.6\n")
    assert labels.objects["a"].boxes[0] == pytest.approx([0.1, 0.1, 0.5, 0.6])
    assert "1 polygons" in labels.note


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("0 0.5 0.5 0.5", "line 1"),
        ("0 .5 .5 .5 .5\n1 320 200 50 50", "line 2: the box lies outside"),
        ("0 -0.5 0.5 0.5 0.5", "outside"),
        ("-1 0.5 0.5 0.5 0.5", "class -1"),
        ("inf 0.5 0.5 0.5 0.5", "class inf"),
        ("nan 0.5 0.5 0.5 0.5", "class nan"),
        ("1e30 0.5 0.5 0.5 0.5", "class 1e30"),
        ("0.5 0.5 0.5 0.5 0.5", "class 0.5"),
        ("cat 0.5 0.5 0.5 0.5", "expected numbers"),
        ("0 0.5 0.5 0.5 0.5 0.9", "detection with its score"),
        ("0 nan 0.5 0.5 0.5", "outside"),
    ],
)
def test_lines_that_are_no_labels(tmp_path, text, named):
    with pytest.raises(DataError, match=named) as error:
        yolo(tmp_path, a=text)
    assert "a.txt" in str(error.value)


def test_folders_without_objects(tmp_path):
    with pytest.raises(DataError, match="no labels"):
        read_yolo(tmp_path)
    with pytest.raises(DataError, match="are empty"):
        yolo(tmp_path, a="", b="\n")
    (tmp_path / "masks").mkdir()
    with pytest.raises(DataError, match="masks"):
        read_masks(tmp_path / "masks")


def test_labels_without_an_image(tmp_path):
    with pytest.raises(DataError, match=r"'z'.*not among the samples"):
        yolo(tmp_path, a="0 .5 .5 .5 .5", z="0 .5 .5 .5 .5").assign(["a.jpg"], "here")


def test_classes_beyond_the_model(tmp_path):
    labels = yolo(tmp_path, a="7 .5 .5 .5 .5").assign(["a.jpg"], "here")
    with pytest.raises(DataError, match=r"class 7.*0 to 4"):
        labels.classes_of(5, ())


def instances(**changes):
    return {
        "images": [{"id": 5, "file_name": "val/a.jpg", "width": 100, "height": 50}],
        "annotations": [{"id": 1, "image_id": 5, "category_id": 3, "bbox": [10, 10, 20, 30], "iscrowd": 1}],
        "categories": [{"id": 3, "name": "Cat"}, {"id": 9, "name": "dog"}],
    } | changes


def coco(tmp_path, content):
    (tmp_path / "labels.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return read_coco(tmp_path / "labels.json")


def test_coco_boxes(tmp_path):
    labels = coco(tmp_path, instances()).assign(["a.jpg"], "here")
    truths = labels.truths("a.jpg", (50, 100), labels.classes_of(2, ()))
    assert truths.boxes.tolist() == [[10, 10, 30, 40]]
    assert truths.classes.tolist() == [0]
    assert truths.ignored.tolist() == [True]


def test_categories_are_classes_by_name_order_or_number(tmp_path):
    labels = coco(tmp_path, instances())
    assert labels.classes_of(5, ["x", "dog", "cat", "y", "z"]) == {3: 2}
    assert labels.classes_of(2, ()) == {3: 0}
    assert labels.classes_of(91, ()) == {3: 3}
    assert labels.classes_of(0, (), by_number=True) == {3: 3}
    assert labels.classes_of(0, ()) == {3: 0}
    with pytest.raises(DataError, match=r"2 categories.*5 classes"):
        labels.classes_of(5, ())


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"images": [', "not valid JSON"),
        ("[]", "'images'"),
        (instances(categories=7), "'categories'"),
        (instances(images=[{"id": 1}], annotations=[]), "no annotations"),
        (instances(annotations=[]), "no annotations"),
        (instances(annotations=[{"id": 8, "image_id": 6, "category_id": 3, "bbox": [1, 1, 1, 1]}]), "annotation 8"),
        (instances(annotations=[{"id": 8, "image_id": 5, "category_id": 4, "bbox": [1, 1, 1, 1]}]), "category 4"),
        (instances(annotations=[{"id": 8, "image_id": 5, "category_id": 3}]), "no bbox"),
        (instances(annotations=[{"id": 8, "image_id": 5, "category_id": 3, "bbox": [90, 1, 40, 1]}]), "outside"),
        (instances(annotations=[{"id": 8, "image_id": 5, "category_id": 3, "bbox": [9, 1, -4, 1]}]), "outside"),
        (instances(annotations=[{"id": 8, "image_id": 5, "category_id": 3, "bbox": [math.nan, 1, 4, 1]}]), "no bbox"),
        (instances(annotations=[{"id": 8, "image_id": [5], "category_id": 3}]), "image_id"),
        (instances(images=[{"id": {}}]), "an image has no 'id'"),
        (instances(categories=[{"id": "x"}]), "'x'"),
    ],
)
def test_json_that_is_no_labels(tmp_path, content, named):
    with pytest.raises(DataError, match=named) as error:
        coco(tmp_path, content)
    assert "labels.json" in str(error.value)


def test_json_of_other_images(tmp_path):
    labels = coco(tmp_path, instances())
    with pytest.raises(DataError, match=r"'b.jpg'.*no label"):
        labels.assign(["a.jpg", "b.jpg"], "here")
    with pytest.raises(DataError, match=r"'val/a.jpg'"):
        labels.assign([], "here")
    with pytest.raises(DataError, match=r"a\.jpg.*100x50.*the file is 60x50"):
        labels.assign(["a.jpg"], "here").truths("a.jpg", (50, 60), {3: 0})


def test_masks(tmp_path):
    Image.fromarray(np.array([[0, 1], [255, 2]], np.uint8)).save(tmp_path / "a.png")
    labels = read_masks(tmp_path).assign(["a.jpg"], "here")
    assert labels.mask("a.jpg").tolist() == [[0, 1], [255, 2]]
    with pytest.raises(DataError, match=r"'b.jpg'.*no mask"):
        labels.assign(["a.jpg", "b.jpg"], "here")
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="not RGB colors"):
        labels.mask("a.jpg")
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    with pytest.raises(DataError, match="cannot be read"):
        labels.mask("a.jpg")


def pairs(tmp_path, **changes):
    arrays = {"first": np.arange(8).reshape(4, 2), "second": np.ones((4, 2), int), "score": np.arange(4.0)} | changes
    np.savez(tmp_path / "pairs.npz", **{name: array for name, array in arrays.items() if array is not None})
    return tmp_path / "pairs.npz"


def test_pairs(tmp_path):
    file = pairs(tmp_path)
    assert is_pair_file(file)
    found = read_pairs(file)
    assert found.samples([0, 2]).tolist() == [[0, 1], [1, 1], [4, 5], [1, 1]]
    assert found.labels([0, 2]).second.tolist() == [1, 3]
    numbered = read_pairs(pairs(tmp_path, first=np.array([0, 1, 2]), second=np.array([1, 2, 0]), score=np.arange(3.0)))
    assert numbered.labels().assign(["a", "b", "c"], "here").first.tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="sample 2"):
        numbered.labels().assign(["a", "b"], "here")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"score": None}, "'score' is missing"),
        ({"score": np.ones(4)}, "all equal"),
        ({"score": np.arange(3.0)}, "shapes"),
        ({"first": np.ones(4), "second": np.ones(4)}, "float64"),
    ],
)
def test_arrays_that_are_no_pairs(tmp_path, changes, named):
    with pytest.raises(DataError, match=named):
        read_pairs(pairs(tmp_path, **changes))
