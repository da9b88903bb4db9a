"""Layouts of detectors' outputs: what each reads from arrays that say the same."""

from __future__ import annotations

import numpy as np
import pytest

from detent.errors import DataError
from detent.observe.sources import anchors_of
from detent.tasks.detection import overlaps
from detent.tasks.heads import Head, recognise_head

IMAGE = (64, 96)
CELLS = 8 * 12 + 4 * 6 + 2 * 3
BOX = [10.0, 20.0, 30.0, 60.0]  # corners
CENTER = [20.0, 40.0, 20.0, 40.0]


def shapes(**arrays):
    return {name: array.shape for name, array in arrays.items()}


def only(head, outputs):
    (image,) = head.detect(outputs)
    assert len(image) == 1
    np.testing.assert_allclose(image.boxes[0], BOX, rtol=1e-5)
    return float(image.scores[0]), int(image.classes[0])


def test_columns():
    output = np.zeros((1, 4 + 3, CELLS), np.float32)
    output[0, :4, 5], output[0, 4 + 2, 5] = CENTER, 0.75
    head = recognise_head(shapes(y=output), IMAGE)
    assert head == Head("columns", ("y",), 3, IMAGE)
    assert only(head, {"y": output}) == (0.75, 2)


def test_columns_behind_the_classes_are_not_classes():
    output = np.zeros((1, 4 + 3 + 32, CELLS), np.float32)
    output[0, :4, 5], output[0, 4 + 2, 5], output[0, 7:, 5] = CENTER, 0.75, 9.0
    assert only(recognise_head(shapes(y=output), IMAGE, classes=3), {"y": output}) == (0.75, 2)


@pytest.mark.parametrize("known", [None, 1])
def test_key_points_and_masks_are_no_classes(known):
    """YOLOv8-pose without metadata: the class, then x, y and visibility of each point; and 32 mask coefficients."""
    output = np.zeros((1, 4 + 1 + 6, CELLS), np.float32)
    output[0, 5::3], output[0, 6::3], output[0, 7::3] = 31.0, 57.0, 0.9
    output[0, :4, 5], output[0, 4, 5] = CENTER, 0.75
    assert only(recognise_head(shapes(y=output), IMAGE, classes=known), {"y": output}) == (0.75, 0)
    output[0, 5:] = -0.4
    assert only(recognise_head(shapes(y=output), IMAGE, classes=known), {"y": output}) == (0.75, 0)


def test_key_points_may_come_before_the_classes():
    """YOLOv5-face: objectness, five points, the class."""
    output = np.zeros((1, CELLS, 16), np.float32)
    output[0, :, :2], output[0, :, 5:15] = 20.0, 300.0
    output[0, 5, :5], output[0, 5, 15] = [*CENTER, 0.5], 0.5
    assert only(recognise_head(shapes(y=output), IMAGE), {"y": output}) == (0.25, 10)


def test_rows_have_objectness():
    output = np.zeros((1, CELLS, 5 + 3), np.float32)
    output[0, 5] = [*CENTER, 0.5, 0.0, 0.5, 0.0]
    output[0, :, :2] += 1e-9
    head = recognise_head(shapes(y=output), IMAGE)
    assert (head.layout, head.classes) == ("rows", 3)
    output[0, :, :2] = np.maximum(output[0, :, :2], 20.0)  # centers are all over the image
    output[0, 5, :4] = CENTER
    assert only(head, {"y": output}) == (0.25, 1)


def test_rows_of_one_class_without_objectness():
    """RT-DETR by Ultralytics with one class: nothing but a box and a score."""
    output = np.zeros((1, 300, 5), np.float32)
    output[0, 5] = [*CENTER, 0.5]
    head = recognise_head(shapes(y=output), IMAGE, 1)
    assert (head.layout, head.classes) == ("rows", 1) and only(head, {"y": output}) == (0.5, 0)


def test_rows_on_the_grid_are_decoded():
    """Cell 13 of stride 8 is column 1 of row 1: (dx + 1) * 8 = 20, (dy + 1) * 8 = 40."""
    output = np.zeros((1, CELLS, 5 + 1), np.float32)
    output[0, 13] = [1.5, 4.0, np.log(20 / 8), np.log(40 / 8), 1.0, 0.5]
    head = Head("rows", ("y",), 1, IMAGE)
    assert only(head, {"y": output}) == (0.5, 0)


def test_what_is_final_is_taken_as_it_is():
    output = np.zeros((1, 20, 6), np.float32)
    output[0, 3] = [*BOX, 0.5, 7]
    head = recognise_head(shapes(y=output), IMAGE)
    assert head.layout == "final" and only(head, {"y": output}) == (0.5, 7)


def test_scores_beside_boxes_are_no_rows_of_both():
    """RT-DETR and YOLO-NAS, whose scores have as many columns as YOLOv5's rows; YOLOv9, which has two heads."""
    for found in ({"logits": (1, 300, 80), "boxes": (1, 300, 4)}, {"boxes": (1, 8400, 4), "logits": (1, 8400, 80)}):
        assert recognise_head(found, (640, 640)) == Head("pair", ("boxes", "logits"), 80, (640, 640))
    two = recognise_head({"main": (1, 84, 8400), "other": (1, 84, 8400)}, (640, 640))
    assert two == Head("columns", ("main",), 80, (640, 640))


@pytest.mark.parametrize("grids", [(896,), (512, 384)])
def test_boxes_with_key_points_lie_beside_anchors(grids):
    """BlazeFace: a box and six key points relative to anchors that only the code around the model knows."""
    grid_shapes = {f"{kind}{count}": (1, count, size) for count in grids for kind, size in (("b", 16), ("s", 1))}
    head = recognise_head(grid_shapes, (128, 128))
    assert (head.layout, head.outputs, head.classes) == ("pair", tuple(grid_shapes), 1)
    outputs = {name: np.full(shape, -9.0 if shape[2] == 1 else 5.0, np.float32) for name, shape in grid_shapes.items()}
    outputs[head.outputs[1]][0, [3, 4]] = 2.0
    found = head.detect(outputs, 0.5)[0]
    assert len(found) == 2 and overlaps(found.boxes[:1], found.boxes[1:])[0, 0] == 0.0  # neighbours stay apart
    np.testing.assert_allclose(found.boxes[:, 2:] - found.boxes[:, :2], 5.0)
    assert not head.has_places(outputs)


@pytest.mark.parametrize(("boxes_last", "scores_last"), [(False, True), (True, True)])
def test_positions_of_a_pair_may_come_last(boxes_last, scores_last):
    boxes, scores = np.zeros((1, 200, 4), np.float32), np.zeros((1, 200, 3), np.float32)
    boxes[0], scores[0, 7, 2] = [1, 1, 2, 2], 0.5
    boxes[0, 7] = BOX
    outputs = {
        "b": boxes.swapaxes(1, 2) if boxes_last else boxes,
        "s": scores.swapaxes(1, 2) if scores_last else scores,
    }
    head = recognise_head(shapes(**outputs), IMAGE)
    assert (head.layout, head.classes) == ("pair", 3) and only(head, outputs) == (0.5, 2)
    assert head.has_places(outputs)


@pytest.mark.parametrize("shares", [False, True])
def test_what_a_network_has_chosen_itself(shares):
    """The same two objects as PaddleDetection, YOLOv7, MMDetection, TensorFlow and others write them after an NMS."""
    box = np.array(BOX) / ([96, 64, 96, 64] if shares else 1)
    rows = [(0.5, 7, box), (0.25, 1, box * 0.5)]
    nothing = np.zeros(5, np.float32)
    chosen = {
        "paddle": {"y": np.array([[kind, score, *each] for score, kind, each in rows], np.float32), "n": np.array([2])},
        "yolov7": {"y": np.array([[0, *each, kind, score] for score, kind, each in rows], np.float32)},
        "mmdet": {
            "dets": np.array([[[*each, score] for score, _, each in rows] + [nothing]], np.float32),
            "labels": np.array([[kind for _, kind, _ in rows] + [0]]),
        },
        "tensorflow": {
            "detection_boxes": np.array([[each[[1, 0, 3, 2]] for _, _, each in rows] + [nothing[:4]]], np.float32),
            "detection_classes": np.array([[kind for _, kind, _ in rows] + [0]], np.float32),
            "detection_scores": np.array([[score for score, _, _ in rows] + [0]], np.float32),
            "num_detections": np.array([2], np.float32),
        },
    }
    for tool, outputs in chosen.items():
        head = recognise_head(shapes(**outputs), IMAGE)
        found = head.detect(outputs)[0]
        assert (found.scores.tolist(), found.classes.tolist()) == ([0.5, 0.25], [7, 1]), tool
        np.testing.assert_allclose(found.boxes, [BOX, np.array(BOX) / 2], rtol=1e-5, err_msg=tool)


@pytest.mark.parametrize(("others", "classes"), [(32, 80), (51, 1)])
def test_masks_or_key_points_may_follow_objects_that_were_chosen(others, classes):
    """YOLO26 gives corners, score and class of each object, then coefficients of its mask or its key points."""
    output = np.zeros((1, 300, 6 + others), np.float32)
    output[0, 0, :6], output[0, 1, :6] = [*BOX, 0.5, classes - 1], [*(np.array(BOX) / 2), 0.0, 0]
    output[0, :, 6:] = -3.5
    assert only(recognise_head(shapes(y=output), IMAGE, classes), {"y": output}) == (0.5, classes - 1)


def test_rows_may_have_no_objectness():
    """RT-DETR by Ultralytics gives centers and sizes as shares, and a score of each class."""
    output = np.zeros((1, 300, 4 + 80), np.float32)
    output[0, 5, :4], output[0, 5, 14] = np.array(CENTER) / [96, 64, 96, 64], 0.5
    head = recognise_head(shapes(y=output), IMAGE, classes=80)
    assert head.layout == "rows" and only(head, {"y": output}) == (0.5, 10)


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("centers", [False, True])
def test_pairs(logits, centers):
    boxes = np.tile(np.array([40, 40, 2, 2] if centers else [1, 1, 2, 2], np.float32), (1, 50, 1)) / [96, 64, 96, 64]
    scores = np.full((1, 50, 4), -9.0 if logits else 0.0, np.float32)
    boxes[0, 5], scores[0, 5, 3] = np.array(CENTER if centers else BOX) / [96, 64, 96, 64], 0.0 if logits else 0.5
    head = recognise_head(shapes(boxes=boxes, scores=scores), IMAGE)
    assert head == Head("pair", ("boxes", "scores"), 4, IMAGE)
    score, kind = only(head, {"boxes": boxes, "scores": scores})
    assert kind == 3 and score == pytest.approx(0.5)


@pytest.mark.parametrize("background", [0, 3])
@pytest.mark.parametrize("logits", [False, True])
def test_what_most_positions_are_certain_of_is_no_object(background, logits):
    """SSD and its like have a first class for nothing, DETR a last one; a Softmax shares 1 among all."""
    boxes = np.tile(np.array([1, 1, 2, 2], np.float32), (1, 50, 1)) / [96, 64, 96, 64]
    scores = np.full((1, 50, 4), 0.001, np.float32)
    scores[0, :, background] = 0.997
    boxes[0, 5], scores[0, 5] = np.array(BOX) / [96, 64, 96, 64], 0.1
    scores[0, 5, 2] = 0.7
    outputs = {"boxes": boxes, "scores": np.log(scores) + 7.0 if logits else scores}
    image = recognise_head(shapes(**outputs), IMAGE).detect(outputs, least=0.2)[0]
    np.testing.assert_allclose(image.boxes, [BOX], rtol=1e-5)
    np.testing.assert_allclose(image.scores, [0.7], rtol=1e-5)
    assert image.classes.tolist() == [2]  # the number of its column, as labels have it


def test_offsets_from_anchors_overlap_as_the_boxes_do():
    """Moved by 0.1 x 2.5 = a quarter of the anchor's width: 0.75 of 1.25 is shared, whatever the anchor."""
    first = np.random.default_rng(0).normal(size=(1, 600, 4)).astype(np.float32)
    first[0, 300] = 0.0
    second = first.copy()
    second[0, 300, 0] = 2.5
    scores = np.zeros((1, 600, 2), np.float32)
    scores[..., 0], scores[0, [10, 300], 1] = 1.0, 0.5
    head = recognise_head({"loc": (1, 600, 4), "conf": (1, 600, 2)}, IMAGE)
    one, other = (head.detect({"loc": each, "conf": scores}, least=0.2)[0] for each in (first, second))
    np.testing.assert_allclose(np.diag(overlaps(one.boxes, other.boxes)), [1.0, 0.6], rtol=1e-3)
    assert overlaps(one.boxes, other.boxes)[0, 1] == 0.0
    assert not head.has_places({"loc": first})
    assert head.has_places({"loc": np.abs(first)}) and Head("rows", ("y",), 1, IMAGE).has_places({})


def test_lists():
    outputs = {"boxes": np.array([BOX], np.float32), "labels": np.array([4]), "scores": np.array([0.5], np.float32)}
    head = recognise_head(shapes(**outputs), IMAGE)
    assert head.layout == "lists" and only(head, outputs) == (0.5, 4)
    with pytest.raises(DataError, match="1, 1 and 2"):
        head.detect(outputs | {"labels": np.array([4, 4])})


def test_no_objects():
    outputs = {
        "boxes": np.zeros((0, 4), np.float32),
        "labels": np.zeros(0, np.int64),
        "scores": np.zeros(0, np.float32),
    }
    assert not len(recognise_head(shapes(**outputs), IMAGE).detect(outputs)[0])
    assert not len(Head("columns", ("y",), 3, IMAGE).detect({"y": np.zeros((1, 7, 0), np.float32)})[0])


def test_scores_beside_the_best_class_are_no_boxes():
    assert recognise_head({"scores": (1, 5), "best": (1,)}, IMAGE) is None


@pytest.mark.parametrize("shape", [(1, 1000), (1, 3, 64, 64), (8, 128, 384, 2)])
def test_other_outputs_are_no_detections(shape):
    assert recognise_head({"y": shape}, IMAGE) is None


def test_cells_of_an_image():
    assert anchors_of((640, 640))[8400] == (8, 16, 32)
    assert anchors_of((416, 416))[3549] == (8, 16, 32)


def grids(columns, batch=(1,), anchors=1, fill=0.0):
    """Outputs of three grids, one for each number of columns."""
    cells = (8 * 12, 4 * 6, 2 * 3)
    return {
        f"{kind}{level}": np.full((*batch, count * anchors, kind), fill, np.float32)
        for kind in columns
        for level, count in enumerate(cells)
    }


def test_distances_of_each_grid_in_strides():
    """Cell 7 of stride 16 is column 1 of row 1, so its centre is (24, 24)."""
    outputs = grids((1, 4, 10), batch=(), anchors=2)
    outputs["11"][14], outputs["41"][14] = 0.75, np.array([14.0, 4.0, 6.0, 36.0]) / 16
    head = recognise_head(shapes(**outputs), IMAGE)
    assert head == Head("levels", ("10", "40", "11", "41", "12", "42"), 1, IMAGE)
    assert only(head, outputs) == (0.75, 0)


def test_distributions_of_distances_in_each_grid():
    """All mass of a side is on one bin; logits of classes become probabilities."""
    outputs = grids((3, 32), fill=-20.0)
    outputs["31"][0, 7, 2] = 0.0
    sides = outputs["321"].reshape(1, 24, 4, 8)
    for side, distance in enumerate(np.array([14.0, 4.0, 6.0, 36.0]) / 16):
        low = int(distance)
        sides[0, 7, side, low], sides[0, 7, side, low + 1] = (
            np.log(low + 1 - distance + 1e-12),
            np.log(distance - low + 1e-12),
        )
    head = recognise_head(shapes(**outputs), IMAGE)
    assert (head.layout, head.classes) == ("levels", 3)
    assert only(head, outputs) == (0.5, 2)


@pytest.mark.parametrize(("grids_of", "cell", "sides"), [(3, 7, (14, 4, 6, 36)), (4, 13, (6, 12, 14, 28))])
def test_distances_behind_scores_in_one_output(grids_of, cell, sides):
    """NanoDet: column 1, row 1 of stride 16 has its center at 24, 24; NanoDet-Plus: of row 2 the corner is 16, 32."""
    cells = CELLS + (2 if grids_of == 4 else 0)
    random = np.random.default_rng(0)
    output = np.concatenate([np.zeros((1, cells, 5)), random.normal(0, 3, (1, cells, 32))], axis=2).astype(np.float32)
    output[0, 96 + cell, 3] = 0.75
    bins = output[0, 96 + cell, 5:].reshape(4, 8)
    bins[:] = -30.0
    for side, distance in enumerate(np.array(sides) / 16):
        low = int(distance)
        bins[side, low], bins[side, low + 1] = np.log(low + 1 - distance + 1e-12), np.log(distance - low + 1e-12)
    head = recognise_head(shapes(y=output), IMAGE)
    assert only(head, {"y": output}) == (0.75, 3)


def test_offsets_of_anchors_are_no_distances():
    outputs = grids((3, 4), fill=-0.5)
    with pytest.raises(ValueError, match="distances"):
        recognise_head(shapes(**outputs), IMAGE).dense(outputs)
    assert recognise_head(shapes(**grids((32, 64))), IMAGE) is None  # either may be the boxes
