"""Models measured at their task, from files on disk to scores; mAP beside pycocotools."""

from __future__ import annotations

import contextlib
import io
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import detent
from detent.errors import DataError, ModelError, UsageError
from detent.tasks.detection import Detections
from tests.models import build, info, node

SIZE = 64


def constant_model(path, array, *, metadata=None, name="boxes"):
    """A model of one image input whose output is always the same."""
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0, 1, 2, 3], keepdims=0),
            helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
            helper.make_node("Add", ["nothing", "array"], [name]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, SIZE, SIZE))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)],
        [numpy_helper.from_array(np.float32(0), "zero"), numpy_helper.from_array(array.astype(np.float32), "array")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, metadata or {})
    onnx.save(model, path)
    return path


def detections(generator, classes=3, count=120):
    """YOLOv8's output: centers, sizes and scores of many boxes."""
    centers = generator.uniform(8, 56, (count, 2))
    sizes = generator.uniform(6, 30, (count, 2))
    scores = generator.uniform(0, 1, (count, classes)) ** 6
    return np.concatenate([centers, sizes, scores], 1).T[None]


YOLO = {"stride": "32", "task": "detect", "imgsz": f"[{SIZE}, {SIZE}]", "names": "{0: 'ant', 1: 'bee', 2: 'cow'}"}


@pytest.fixture
def detector(tmp_path):
    return constant_model(tmp_path / "float.onnx", detections(np.random.default_rng(0)), metadata=YOLO)


@pytest.fixture
def photos(tmp_path):
    """Images of several shapes, and COCO's labels for them, with crowds."""
    generator = np.random.default_rng(1)
    folder = tmp_path / "photos" / "images"
    folder.mkdir(parents=True)
    content = {"images": [], "annotations": [], "categories": [{"id": at, "name": f"c{at}"} for at in (4, 7, 9)]}
    for at in range(10):
        height, width = (int(each) for each in generator.integers(40, 120, 2))
        Image.fromarray(generator.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(folder / f"{at}.png")
        content["images"].append({"id": at, "file_name": f"{at}.png", "width": width, "height": height})
        for _ in range(int(generator.integers(0, 9))):
            x, y = generator.uniform(0, 0.7, 2) * (width, height)
            box = [float(x), float(y), float(width * 0.28), float(height * 0.3)]
            annotation = {"id": len(content["annotations"]) + 1, "image_id": at, "bbox": box, "area": box[2] * box[3]}
            annotation |= {"category_id": int(generator.choice([4, 7, 9])), "iscrowd": int(generator.uniform() < 0.2)}
            content["annotations"].append(annotation)
    (tmp_path / "photos" / "annotations.json").write_text(json.dumps(content))
    return tmp_path / "photos"


def as_yolo(photos):
    """Write the labels that are no crowds in YOLO's form instead."""
    content = json.loads((photos / "annotations.json").read_text())
    (photos / "annotations.json").unlink()
    (photos / "labels").mkdir()
    for image in content["images"]:
        lines = []
        for each in content["annotations"]:
            x, y, w, h = (value / image[("width", "height")[at % 2]] for at, value in enumerate(each["bbox"]))
            if each["image_id"] == image["id"] and not each["iscrowd"]:
                lines.append(f"{(4, 7, 9).index(each['category_id'])} {x + w / 2} {y + h / 2} {w} {h}")
        if lines:
            (photos / "labels" / f"{image['id']}.txt").write_text("\n".join(lines))
    return photos


def pycocotools_map(photos, model):
    """Return mAP50-95 and mAP50 by pycocotools, of boxes that are mapped back here once more."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    from detent.tasks.heads import Head

    content = json.loads((photos / "annotations.json").read_text())
    array = numpy_helper.to_array(next(each for each in onnx.load(model).graph.initializer if each.name == "array"))
    found: Detections = Head("columns", ("boxes",), 3, (SIZE, SIZE)).detect({"boxes": array})[0]
    rows = []
    for image in content["images"]:
        height, width = image["height"], image["width"]
        ratio = min(SIZE / width, SIZE / height)
        inner = round(width * ratio), round(height * ratio)
        left, top = (SIZE - inner[0]) // 2, (SIZE - inner[1]) // 2
        for box, score, kind in zip(found.boxes, found.scores, found.classes, strict=True):
            x1, x2 = (min(max((x - left) * width / inner[0], 0), width) for x in box[[0, 2]])
            y1, y2 = (min(max((y - top) * height / inner[1], 0), height) for y in box[[1, 3]])
            rows.append([image["id"], x1, y1, x2 - x1, y2 - y1, score, (4, 7, 9)[kind]])
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = content
        truth.createIndex()
        judged = COCOeval(truth, truth.loadRes(np.array(rows, np.float64)), "bbox")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    return 100 * judged.stats[0], 100 * judged.stats[1]


def test_map_agrees_with_pycocotools(photos, detector):
    pytest.importorskip("pycocotools")
    scores = detent.evaluate(detector, photos).models[0].scores
    expected = pycocotools_map(photos, detector)
    assert [figure.value for figure in scores.figures] == pytest.approx(expected, abs=0.05)
    assert 0 < expected[0] < expected[1]


def test_losses_are_paired(photos, detector, tmp_path):
    worse = numpy_helper.to_array(onnx.load(detector).graph.initializer[1]).copy()
    worse[:, :2] += 6
    other = constant_model(tmp_path / "worse.onnx", worse, metadata=YOLO)
    result = detent.evaluate([detector, other, detector], photos)
    lost, same = result.models[1].loss, result.models[2].loss
    assert lost.points == pytest.approx(
        result.models[0].scores.figures[0].value - result.models[1].scores.figures[0].value
    )
    assert lost.interval[0] < lost.points < lost.interval[1]
    assert (same.points, same.interval, same.p_value) == (0.0, (0.0, 0.0), 1.0)
    values = json.loads(result.to_json())["models"][1]
    assert set(values) >= {"mAP50-95", "mAP50", "loss", "loss_mAP50", "samples"}
    assert "points of mAP50-95" in str(result)
    assert "changed samples of" in str(result)
    assert result.models[1].scores.changed(result.models[0].scores)


def test_yolo_labels_of_a_folder(photos, detector):
    result = detent.evaluate(detector, as_yolo(photos), task="detect")
    assert "labels/ (YOLO)" in result.data
    assert result.models[0].scores.figures[0].value > 0
    explicit = detent.evaluate(detector, photos / "images", labels=photos / "labels")
    assert explicit.models[0].scores.figures[0].value == result.models[0].scores.figures[0].value


def test_the_page_shows_figures(photos, detector, tmp_path):
    from detent.report.documents import page_of

    page = page_of(detent.evaluate([detector, detector], photos))
    assert "mAP50-95" in page


def test_nothing_found(photos, detector, tmp_path):
    array = detections(np.random.default_rng(0))
    array[:, 4:] = 0
    silent = constant_model(tmp_path / "silent.onnx", array, metadata=YOLO)
    result = detent.evaluate([detector, silent], photos)
    assert result.models[1].scores.figures[0].value == 0.0
    assert "finds nothing" in str(result)
    with pytest.raises(DataError, match=r"silent\.onnx finds nothing"):
        detent.evaluate(silent, photos)


def test_outputs_of_no_rows(photos, tmp_path, detector):
    none = constant_model(tmp_path / "none.onnx", np.zeros((1, 0, 6)), metadata=YOLO)
    with pytest.raises(DataError, match=r"none\.onnx finds nothing"):
        detent.evaluate(none, photos)


def test_labels_that_do_not_fit(photos, detector, tmp_path):
    classifier = constant_model(tmp_path / "classes.onnx", np.ones((1, 10)))
    with pytest.raises(ModelError, match="no output looks like detections"):
        detent.evaluate(classifier, photos)
    with pytest.raises(UsageError, match="--task detect"):
        detent.evaluate(classifier, photos, task="detect")
    with pytest.raises(UsageError, match="--task nonsense|'nonsense'"):
        detent.evaluate(detector, photos, task="nonsense")
    with pytest.raises(UsageError, match="--label-offset"):
        detent.evaluate(detector, photos, label_offset=1)
    as_yolo(photos)
    (photos / "labels" / "0.txt").write_text("80 0.5 0.5 0.1 0.1")
    with pytest.raises(DataError, match=r"class 80.*0 to 2"):
        detent.evaluate(detector, photos)
    with pytest.raises(UsageError, match=r"--task classify|has labels to detect"):
        detent.evaluate(detector, photos, task="regress")


def test_images_without_objects(photos, detector):
    as_yolo(photos)
    labelled = {file.stem for file in (photos / "labels").iterdir()}
    for image in (photos / "images").iterdir():
        if image.stem in labelled:
            image.rename(image.parent / image.name)
    (photos / "images" / "0.png").rename(photos / "images" / "zz.png")
    with contextlib.suppress(FileNotFoundError):
        (photos / "labels" / "0.txt").unlink()
    assert detent.evaluate(detector, photos).samples == 10


def tagger(path, table):
    """A model that answers sample k, an input of k, with row k of a table, between 0 and 1."""
    nodes = [node("Flatten", "x", "f"), node("Cast", "f", "k", to=7), node("Squeeze", "k axis", "s")]
    nodes += [node("Gather", "table s", "y")]
    made = build(nodes, "y", {"table": table.astype(np.float32), "axis": np.array([1])}, [info("x", ("n", 1))])
    onnx.save(made, path)
    return path


def test_tags(tmp_path):
    """AP of tag 0: its samples come first and third of three; of tag 1: first and second. F1: 3 are common."""
    samples = np.arange(3, dtype=np.float32)[:, None]
    scores = np.array([[0.9, 0.6, 0.0], [0.8, 0.7, 0.0], [0.1, 0.2, 0.0]])
    first = tagger(tmp_path / "first.onnx", scores)
    second = tagger(tmp_path / "second.onnx", np.where(scores > 0.85, 0.0, scores))
    np.save(tmp_path / "x.npy", samples)
    labels = tmp_path / "tags.csv"
    labels.write_text("file,a,b,c\nx.npy[0],1,1,0\nx.npy[1],0,1,0\nx.npy[2],1,0,0\n")
    result = detent.evaluate([first, second], tmp_path / "x.npy", labels=labels)
    precision, f1 = result.models[0].scores.figures
    assert precision.value == pytest.approx(100 * ((1 + 2 / 3) / 2 + 1) / 2)
    assert f1.value == pytest.approx(100 * 2 * 3 / (4 + 4))
    assert result.models[1].loss.points == pytest.approx(precision.value - 100 * ((1 / 2 + 2 / 3) / 2 + 1) / 2)
    assert result.models[1].losses[1].points == pytest.approx(f1.value - 100 * 2 * 2 / (3 + 4))
    labels.write_text("file,a,b\nx.npy[0],1,1\nx.npy[1],0,1\nx.npy[2],1,0\n")
    with pytest.raises(DataError, match="2 columns of tags, but the model has 3"):
        detent.evaluate(first, tmp_path / "x.npy", labels=labels)
    with pytest.raises(UsageError, match="has labels to tag"):
        detent.evaluate(first, tmp_path / "x.npy", labels=labels, task="classify")


def test_masks(tmp_path):
    answer = np.zeros((1, 3, SIZE, SIZE))
    answer[:, 1, :, SIZE // 2 :] = 1
    model = constant_model(tmp_path / "maps.onnx", answer - 0.01 * np.arange(3)[None, :, None, None], name="maps")
    (tmp_path / "d" / "images").mkdir(parents=True)
    (tmp_path / "d" / "masks").mkdir()
    truth = np.zeros((40, 80), np.uint8)
    truth[:, 40:] = 1
    truth[:10] = 255
    for at in range(3):
        Image.new("RGB", (80, 40)).save(tmp_path / "d" / "images" / f"{at}.png")
        Image.fromarray(truth).save(tmp_path / "d" / "masks" / f"{at}.png")
    exact = detent.evaluate(model, tmp_path / "d", fit="stretch").models[0].scores
    assert [figure.value for figure in exact.figures] == [100.0, 100.0]
    assert detent.evaluate(model, tmp_path / "d", fit="letterbox").models[0].scores.figures[0].value == 100.0
    Image.fromarray(np.where(truth == 1, 7, truth).astype(np.uint8)).save(tmp_path / "d" / "masks" / "1.png")
    with pytest.raises(DataError, match=r"1\.png has the class 7"):
        detent.evaluate(model, tmp_path / "d", fit="stretch")
    Image.fromarray(truth[:20]).save(tmp_path / "d" / "masks" / "1.png")
    with pytest.raises(DataError, match=r"1\.png is 80x20"):
        detent.evaluate(model, tmp_path / "d", fit="stretch")


def encoder(path):
    """A model of tokens: a table of vectors."""
    table = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["vectors"]),
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
            helper.make_node("Mul", ["vectors", "column"], ["last_hidden_state"]),
        ],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ("n", 6)) for name in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ("n", 6, 8))],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([2]), "last")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path, table


def test_pairs(tmp_path):
    model, table = encoder(tmp_path / "text.onnx")
    generator = np.random.default_rng(5)
    first, second = generator.integers(1, 50, (2, 20, 6))
    first[:, 4:] = 0
    vectors = [[row[row != 0] for row in each] for each in (first, second)]
    means = [np.stack([table[row].mean(0) for row in each]) for each in vectors]
    means = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in means]
    np.savez(tmp_path / "pairs.npz", first=first, second=second, score=(means[0] * means[1]).sum(1))
    scores = detent.evaluate(model, tmp_path / "pairs.npz").models[0].scores
    assert (scores.figures[0].name, scores.figures[0].value) == ("Spearman", pytest.approx(100))
    limited = detent.evaluate([model, model], tmp_path / "pairs.npz", limit=5, task="embed")
    assert len(limited.models[0].scores.names) == 5
    assert limited.models[1].loss.points == 0.0
    with pytest.raises(UsageError, match="give it as the data"):
        detent.evaluate(model, {"input_ids": first, "attention_mask": first}, labels=tmp_path / "pairs.npz")


def test_tune_judges_by_the_task(photos, detector):
    tuning = detent.tune(detector, None, photos / "images", "A8W8", evaluation=photos, max_drop=100.0, limit=4)
    assert "mAP50-95" in tuning.to_json()
