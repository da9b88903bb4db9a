"""The command line with labels of boxes: one message and its exit code for each thing that is wrong."""

from __future__ import annotations

import json

import pytest

from tests.evaluation.test_task_measures import as_yolo, detector, photos  # noqa: F401  (fixtures)


def broken(folder, what):
    """Break the labels in one way; return what else the command is given."""
    if what == "truncated":
        text = (folder / "annotations.json").read_text()
        (folder / "annotations.json").write_text(text[: len(text) // 2])
        return []
    if what == "another image":
        (folder / "images" / "3.png").rename(folder / "images" / "three.png")
        return []
    as_yolo(folder)
    if what == "empty folder":
        for file in (folder / "labels").iterdir():
            file.unlink()
    if what == "empty files":
        for file in (folder / "labels").iterdir():
            file.write_text("")
    if what == "outside":
        next((folder / "labels").iterdir()).write_text("0 300 20 10 10")
    if what == "class":
        next((folder / "labels").iterdir()).write_text("3 .5 .5 .1 .1")
    if what == "task":
        return ["--task", "classify"]
    if what == "unknown task":
        return ["--task", "detekt"]
    if what == "no folder":
        return ["--labels", folder / "nowhere"]
    return []


@pytest.mark.parametrize(
    ("what", "code", "named"),
    [
        ("truncated", 4, "annotations.json"),
        ("another image", 4, "three.png"),
        ("empty folder", 4, "labels"),
        ("empty files", 4, "labels"),
        ("outside", 4, ".txt, line 1"),
        ("class", 4, "box 1, has the class 3"),
        ("task", 2, "--task classify"),
        ("unknown task", 2, "detekt"),
        ("no folder", 4, "nowhere"),
    ],
)
def test_labels_that_are_wrong(detent, photos, detector, what, code, named):  # noqa: F811
    outcome = detent("evaluate", detector, "--data", photos, *broken(photos, what))
    assert (outcome.code, named in outcome.err.replace("\n", "")) == (code, True), outcome.err


@pytest.mark.parametrize("name", ["instances_val2017.json", "annotations/instances_val2017.json"])
def test_labels_under_the_names_of_coco(detent, photos, detector, name):  # noqa: F811
    (photos / name).parent.mkdir(exist_ok=True)
    (photos / "annotations.json").rename(photos / name)
    outcome = detent("evaluate", detector, "--data", photos)
    assert f"labels from {name.rpartition('/')[2]} (COCO)" in outcome.out.replace("\n", " "), outcome.err
    (photos / "instances_train2017.json").write_text("{}")
    outcome = detent("evaluate", detector, "--data", photos)
    assert outcome.code == 4
    assert "--labels FILE" in outcome.err.replace("\n", " ")


def test_images_without_a_label_file_are_told(detent, photos, detector):  # noqa: F811
    as_yolo(photos)
    next((photos / "labels").iterdir()).unlink()
    outcome = detent("evaluate", detector, "--data", photos)
    assert outcome.code == 0, outcome.err
    assert "of 10 images have no label file" in " ".join(outcome.out.split())


def test_detection_in_json_and_text(detent, photos, detector, tmp_path):  # noqa: F811
    page = tmp_path / "page.html"
    outcome = detent("evaluate", detector, detector, "--data", photos, "--task", "detect", "--json", "--html", page)
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)["models"]
    assert found[1]["loss"]["points"] == 0.0
    assert found[0]["task"] == "detect"
    assert "mAP50-95" in page.read_text()
    text = detent("evaluate", detector, detector, "--data", photos)
    assert "mAP50-95" in text.out
    assert "Ultralytics" in text.out
