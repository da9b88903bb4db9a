"""Doubtful calibration data is found before it is used."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from PIL import Image

import detent
from detent.errors import DataError
from detent.evaluation.data_check import first_batch_norm, question_data, settled, unlike_training
from detent.evaluation.normalisation import IMAGENET
from detent.pipeline.job import make_job
from detent.pipeline.observed import _is_as_declared
from detent.pipeline.prepared import Stopwatch, prepare_model
from detent.progress import silent
from detent.tasks import BY_LAYOUT, BY_SHAPE, Task
from detent.tasks.purpose import Purpose
from tests.models import as_ir, build, info, node, normal

CLASSIFY = Purpose(Task.CLASSIFY, "by test")
SIDE = 32


def photographs(count=16, seed=0):
    """Smooth images of 0..1, each brightest in another place, so that a model can tell them apart."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    found = []
    for _ in range(count):
        planes = [
            0.5 + 0.5 * np.sin(2 * np.pi * (a * rows + b * columns) + c) for a, b, c in rng.uniform(-1, 1, (3, 3))
        ]
        found.append(np.array(planes, np.float32)[None])
    return found


def answer(feeds):
    """Tell images of about -2..2 apart, as a classifier with ten classes would."""
    image = feeds["x"]
    weights = np.random.default_rng(1).standard_normal((10, image.size)).astype(np.float32)
    scores = weights @ image.reshape(-1) / 4
    # Beyond the range of training one class wins whatever the image shows.
    scores[3] += 1e3 * max(0.0, float(np.abs(image).max()) - 3.0)
    return {"logits": scores[None]}


def asked(images, task=CLASSIFY):
    return " ".join(question_data([{"x": image} for image in images], task, answer))


def test_what_the_file_says_of_normalisation_is_not_doubted():
    """Images of another kind than those of training get poor answers, and may get better ones from a wrong range."""
    raw = [{"x": 255 * image} for image in photographs()]
    assert any("The normalisation" in each for each in question_data(raw, CLASSIFY, answer))
    found = question_data(raw, CLASSIFY, answer, declared=True)
    assert found and not any("The normalisation" in each for each in found)


def grades(feeds):
    """Return three numbers of which the first is always the largest."""
    return {"y": np.array([[4.0, 3.0 + np.tanh(feeds["x"].mean()) / 2, 2.0]])}


@pytest.mark.parametrize("by_shape", [True, False])
def test_numbers_may_be_no_classes(by_shape):
    """Three grades of a sample look like a classifier that sees nothing."""
    purpose = Purpose(Task.CLASSIFY, "'y' [?, 3] is a row of scores for each sample" + BY_SHAPE * by_shape)
    small = [{"x": image[:, :, :8, :8]} for image in photographs()]  # too small to be taken for images
    found = question_data(small, purpose, grades)
    assert any("the same class (0)" in each for each in found)
    assert any("--task regress" in each for each in found) == by_shape


@pytest.mark.parametrize(
    ("rows", "by_shape", "task"),
    [
        ([[4.0, 3.0 + at / 8, 2.0] for at in range(8)], True, Task.REGRESS),
        ([[4.0, 3.0 + at / 8, 2.0] for at in range(8)], False, Task.CLASSIFY),  # a Softmax is behind them, say
        ([[4.0, 3.0 + at / 8, -2.0] for at in range(8)], True, Task.CLASSIFY),  # scores are on both sides of 0
        ([[9.0, 1.0, 1.0 + at / 8] for at in range(8)], True, Task.CLASSIFY),  # one of them is far ahead
        (9.0 * np.eye(3)[np.arange(8) % 3] + 8.0, True, Task.CLASSIFY),  # they tell the samples apart
        ([[0.4, 0.35, 0.25]] * 8, True, Task.CLASSIFY),  # shares
        ([[4.0, 3.0, 2.0]] * 3, True, Task.CLASSIFY),  # too few to tell
    ],
)
def test_ratings_are_no_classes(rows, by_shape, task):
    purpose = Purpose(Task.CLASSIFY, "'y' [?, 3] is a row of scores" + BY_SHAPE * by_shape)
    found = settled(purpose, lambda at: {"y": np.array([rows[at]])}, len(rows))
    assert found.task is task
    assert found == purpose if task is Task.CLASSIFY else "ratings" in found.why


def of_points(count, axes):
    """Return the coordinates of points on a circle in eight images, one point after the other."""
    angle = np.linspace(0, 2 * np.pi, count)
    points = np.stack([np.cos(angle), 3 + np.sin(angle), 0 * angle][:axes], axis=1).reshape(-1)
    return [100 * points + normal(points.size, seed=at) for at in range(8)]


@pytest.mark.parametrize(
    ("rows", "task"),
    [
        (of_points(20, 2), Task.REGRESS),
        (of_points(20, 3), Task.REGRESS),
        (of_points(5, 2), Task.CLASSIFY),  # too few to tell
        (normal(8, 60) + normal(60, seed=1), Task.CLASSIFY),
        (np.sin(np.linspace(0, 3, 60)) + normal(8, 60) / 9, Task.CLASSIFY),  # classes in order, such as ages
    ],
)
def test_coordinates_of_points_are_no_classes(rows, task):
    purpose = Purpose(Task.CLASSIFY, "'y' [?, 60] is a row of scores" + BY_SHAPE)
    found = settled(purpose, lambda at: {"y": np.asarray(rows[at])[None]}, len(rows))
    assert found.task is task and ("coordinates" in found.why) == (task is Task.REGRESS)


@pytest.mark.parametrize(("size", "task"), [(1, Task.SEQUENCE), (16, Task.CLASSIFY)])
def test_rows_that_are_more_than_the_samples_are_those_of_steps(size, task):
    purpose = Purpose(Task.CLASSIFY, "'y' [?, 1, ?] is a row of scores" + BY_SHAPE)
    found = settled(purpose, lambda at: {"y": normal(16, 1, 40, seed=at)}, 8, size)
    assert found.task is task


def test_objects_in_one_image_are_no_samples():
    """A detector with its own suppression answers with a row for each object: in the first image they are faint."""
    faint = itertools.chain([0.1], itertools.repeat(0.9))

    def answer(_):
        count, score = 40, next(faint)
        boxes = np.tile(np.array([[8, 8, 24, 24]], np.float32), (count, 1))
        return {"boxes": boxes, "scores": np.full(count, score, np.float32), "labels": np.ones(count, np.int64)}

    samples = [{"x": image} for image in photographs()]
    assert question_data(samples, Purpose(Task.DETECT, "", image=(SIDE, SIDE)), answer, declared=True) == []


def test_states_beside_scores_are_no_steps():
    """A recurrent classifier that hands on the states of its two layers, too."""
    purpose = Purpose(Task.CLASSIFY, "'y' [1, 10] is a row of scores" + BY_SHAPE, heads={"y": "classes"})
    found = settled(purpose, lambda at: {"y": normal(1, 10, seed=at), "states": normal(2, 1, 8, seed=at)}, 8)
    assert found.task is Task.CLASSIFY


@pytest.mark.parametrize(("objects", "task"), [(True, Task.DETECT), (False, Task.REGRESS)])
def test_rows_of_six_numbers_are_objects_if_they_hold_a_class_and_a_score(objects, task):
    """A network that turns the 24 joints of a body, each by two columns of a matrix, looks the same by its shapes."""
    turned = normal(1, 24, 6)
    chosen = np.concatenate([32 * np.abs(turned[..., :4]), np.full((1, 24, 1), 0.5), np.ones((1, 24, 1))], axis=2)
    purpose = Purpose(Task.DETECT, f"{BY_LAYOUT}: 'y' [1, 24, 6]", image=(64, 64))
    found = settled(purpose, lambda _: {"y": (chosen if objects else turned).astype(np.float32)}, 8)
    assert found.task is task and ("no classes" in found.why) == (not objects)
    maps = {f"y{side}": normal(1, 3, side, side) for side in (8, 4, 2)}
    assert settled(purpose, lambda _: maps, 8).task is Task.DETECT


def test_a_model_that_rates_is_judged_by_its_ratings(tmp_path):
    """Three ratings between 2 and 4 of each sample: good data raises no doubt, and they are compared as numbers."""
    nodes = [node("Flatten", "x", "f"), node("Gemm", "f w b", "y")]
    proto = build(
        nodes, "y", {"w": normal(12, 3) / 20, "b": np.array([4.0, 3.0, 2.5], np.float32)}, [info("x", (1, 12))]
    )
    data = {"x": normal(32, 12)}
    report = detent.quantize(proto, tmp_path / "out.onnx", data, "A8W8")
    assert not [each for each in report.warnings if "tells" in each or "the same class" in each]
    assert report.fidelity.agreement.task == "regress" and report.judgement.level == "close"
    found = detent.evaluate([proto, tmp_path / "out.onnx"], data)
    assert found.models[1].scores.agreement.task == "regress"


def test_a_detector_s_own_normalisation_is_kept(tmp_path):
    """Ultralytics' metadata say 0..1: what is detected in images of another kind says nothing about that."""
    model = build([node("Conv", "x w", "c"), node("Relu", "c", "y")], "y", {"w": normal(4, 3, 1, 1)})
    for key, value in (("stride", "32"), ("names", "{0: 'a'}"), ("task", "detect")):
        model.metadata_props.add(key=key, value=value)
    for at in range(4):
        Image.fromarray(np.full((8, 8, 3), 40 * at, np.uint8)).save(tmp_path / f"{at}.png")
    for options, declared in (({}, True), ({"std": "1"}, False)):
        prepared = prepare_model(make_job(model, tmp_path, **options), Stopwatch(silent))
        assert _is_as_declared(prepared) is declared


def test_good_data_has_no_findings():
    images = [IMAGENET.apply(image, 1) for image in photographs()]
    assert asked(images) == ""


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (photographs(1) * 16, "All 16 samples are the same"),
        ([photographs(1)[0] + 1e-4 * at for at in range(16)], "All 16 samples are the same, or nearly"),
        (photographs(4) * 4, "Only 4 of the first 16 samples differ"),
        (photographs(4), "Only 4 different samples"),
        (photographs(1), "Only one sample: ranges"),
        ([np.zeros((1, 3, SIDE, SIDE), np.float32)] * 16, "Only one sample: ranges"),
        ([np.zeros((1, 3, SIDE, SIDE), np.float32)] * 16, "16 of the first 16 samples are constant"),
        ([IMAGENET.apply(np.zeros((1, 3, SIDE, SIDE)), 1)] * 16, "16 of the first 16 samples are constant"),
        ([normal(1, 3, SIDE, SIDE, seed=at) for at in range(16)], "look like noise"),
        ([255 * image for image in photographs()], "The normalisation looks wrong: the data is 0..255"),
    ],
)
def test_doubtful_data_is_told(images, said):
    assert said in asked(images)


def test_a_few_of_a_kind_do_no_harm_beside_enough_others():
    """Squares of a board: a quarter of them empty, some pieces twice, and by chance more of these first."""
    empty, pieces = np.full((1, 3, SIDE, SIDE), 0.5, np.float32), photographs(20)
    assert asked([*pieces[:7], *[empty] * 5, *pieces[:4], *pieces[7:], *[empty] * 3]) == ""
    assert "constant" in asked([*pieces[:8], *[empty] * 8])
    assert "differ" in asked([*pieces[:11] * 2, *pieces[:10]])


def test_answers_that_tell_nothing():
    images = [{"x": image} for image in photographs()]
    same = question_data(images, CLASSIFY, lambda _: {"y": np.array([[5.0, 0.0, 0.0]], np.float32)})
    assert same == ["The float model gives all of the first 8 samples the same class (0)."]
    rng = np.random.default_rng(0)
    vague = question_data(images, CLASSIFY, lambda _: {"y": 0.01 * rng.standard_normal((1, 100)).astype(np.float32)})
    assert "hardly tells these samples apart" in vague[0]
    nothing = Purpose(Task.DETECT, "", classes=2, image=(SIDE, SIDE))
    found = question_data(images, nothing, lambda _: {"y": np.zeros((1, 6, 100), np.float32)})
    assert "detects nothing" in found[0]


def test_one_sample_that_is_told_apart_does_not_hide_that_the_others_are_not():
    """As sound gives that is a thousand times too quiet for a model of voices: but for one, all get one vector."""
    quiet = np.random.default_rng(0).standard_normal((16, 1, 40)).astype(np.float32)
    samples = [{"x": each} for each in quiet]
    vectors = np.ones((16, 8)) + 1e-4 * quiet[:, 0, :8]
    vectors[3, 0] = 5.0
    answers = {id(each["x"]): {"y": vectors[at : at + 1]} for at, each in enumerate(samples)}
    found = question_data(samples, Purpose(Task.EMBED, ""), lambda feeds: answers[id(feeds["x"])])
    assert "the same vector" in found[0]
    told = question_data(samples, Purpose(Task.EMBED, ""), lambda feeds: {"y": feeds["x"]})
    assert told == []


def test_one_of_two_classes_may_be_rare():
    images = [{"x": image} for image in photographs()]
    scores = iter(np.linspace(0.9, 0.99, 16))
    assert question_data(images, CLASSIFY, lambda _: {"y": np.array([[p := next(scores), 1 - p]], np.float32)}) == []
    found = question_data(images, CLASSIFY, lambda _: {"y": np.array([[0.9, 0.1]], np.float32)})
    assert "the same class (0)" in found[0]


def test_one_probability_on_one_side_tells_nothing():
    """A wake word that none of the samples has; and one that the tenth has."""
    images = [{"x": image} for image in photographs()]
    found = question_data(images, CLASSIFY, lambda _: {"y": np.array([[0.004]], np.float32)})
    assert found == [
        "The float model says no to all of the first 16 samples (0.004 at most). Give it some of both kinds."
    ]
    found = question_data(images, CLASSIFY, lambda _: {"y": np.array([[4.0]], np.float32)})  # a logit
    assert found == ["The float model says yes to all of the first 16 samples. Give it some of both kinds."]
    said = iter([0.0] * 9 + [0.8] * 7)
    assert question_data(images, CLASSIFY, lambda _: {"y": np.array([[next(said)]], np.float32)}) == []


def test_what_a_detector_misses_in_a_few_images_it_may_find_in_others():
    def detect(feeds):
        boxes = np.zeros((1, 6, 100), np.float32)
        boxes[0, :5, 0] = (8, 8, 4, 4, 0.9 if feeds["x"] is images[9]["x"] else 0.1)
        return {"y": boxes}

    images = [{"x": image} for image in photographs()]
    assert question_data(images, Purpose(Task.DETECT, "", classes=2, image=(SIDE, SIDE)), detect) == []


def test_samples_are_read_as_far_as_they_are_needed():
    read = set()

    class Reading(list):
        def __getitem__(self, index):
            read.add(index)
            return super().__getitem__(index)

    samples = Reading({"x": IMAGENET.apply(image, 1)} for image in photographs(32))
    assert question_data(samples, Purpose(Task.REGRESS, ""), lambda _: {"y": np.zeros((1, 3))}) == []
    assert read == set(range(16))


def test_batches_and_other_inputs_are_read():
    batch = {"x": np.concatenate(photographs(16)), "ids": np.arange(16)}
    assert question_data([batch], Purpose(Task.REGRESS, ""), lambda _: {"y": np.zeros((1, 3))}) == []
    assert question_data([], CLASSIFY, answer) == []


def normalised(mean, variance):
    """Conv and BatchNorm, which was trained on this mean and variance."""
    nodes = [
        node("Conv", "x w", "c"),
        node("BatchNormalization", "c one zero mean variance", "b"),
        node("GlobalAveragePool", "b", "p"),
        node("Flatten", "p", "y"),
    ]
    weights = {"w": np.eye(3, dtype=np.float32)[:, :, None, None], "one": np.ones(3, np.float32)}
    weights |= {
        name: np.full(3, value, np.float32) for name, value in (("zero", 0), ("mean", mean), ("variance", variance))
    }
    return build(nodes, "y", weights, [info("x", (1, 3, SIDE, SIDE))])


def test_the_first_batch_norm_knows_what_it_was_trained_on():
    norm = first_batch_norm(as_ir(normalised(0.5, 0.1)).graph)
    assert norm is not None
    assert norm.conv.op_type == "Conv"
    assert unlike_training(norm, photographs()) is None
    assert "times as far" in (unlike_training(norm, [255 * image for image in photographs()]) or "")
    assert first_batch_norm(as_ir(build([node("Relu", "x", "y")], "y")).graph) is None


def test_strict_refuses_doubtful_data(tmp_path):
    model = normalised(0.5, 0.1)
    onnx.save(model, tmp_path / "model.onnx")
    wrong = np.concatenate([255 * image for image in photographs(20)])
    report = detent.quantize(tmp_path / "model.onnx", None, wrong)
    assert "times as far from its mean" in report.warnings[0]
    assert report.judgement.level not in ("close", "unclear")
    with pytest.raises(DataError, match="times as far.*--strict"):
        detent.quantize(tmp_path / "model.onnx", None, wrong, strict=True)
    detent.quantize(tmp_path / "model.onnx", None, np.concatenate(photographs(20)), strict=True, task="regress")


def test_a_task_that_the_model_cannot_have_is_refused():
    with pytest.raises(detent.UsageError, match="--task detect"):
        detent.quantize(normalised(0.5, 0.1), None, np.concatenate(photographs(4)), task="detect")


def test_answers_that_are_known_are_not_computed_again():
    images = [{"x": image} for image in photographs()]
    asked = []

    def answer(feeds):
        asked.append(feeds)
        return {"y": np.array([[5.0, 0.0, 0.0]], np.float32)}

    known = {at: {"y": np.array([[0.0, 9.0, 0.0]], np.float32)} for at in range(8)}
    (said, *_) = question_data(images, CLASSIFY, answer, known=known)
    assert "the same class (1)" in said and not any(feeds is image for feeds in asked for image in images[:8])


def test_a_state_that_is_always_zero_is_named_and_does_not_hide_the_input_that_differs():
    steps = [{"x": normal(1, 8, seed=at), "h": np.zeros((1, 16), np.float32)} for at in range(16)]

    def answer(feeds):
        return {"scores": feeds["x"][:, :4], "hn": np.tanh(np.concatenate([feeds["x"], feeds["x"]], axis=1))}

    (said,) = question_data(steps, Purpose(Task.REGRESS, BY_SHAPE), answer)
    assert "Input 'h' is zero in all of the first 16 samples" in said
    assert "--feedback h=hn" in said
    fed = [step | {"h": normal(1, 16, seed=90 + at)} for at, step in enumerate(steps)]
    assert not question_data(fed, Purpose(Task.REGRESS, BY_SHAPE), answer)
    # A mask of zeros has the shape of no output.
    masked = [{"x": step["x"], "mask": np.zeros((1, 1, 1, 6), np.float32)} for step in steps]
    assert not question_data(masked, Purpose(Task.REGRESS, BY_SHAPE), answer)


def test_large_regions_with_edges_are_no_blur():
    """Such as bones and hearts: pixels far apart correlate as much as in a blurred image."""
    rows, columns = np.mgrid[0:96, 0:96] / 96
    images = [
        np.array([(np.hypot(rows - 0.5, columns - 0.5) < radius).astype(np.float32)] * 3)[None]
        for radius in np.linspace(0.3, 0.45, 16)
    ]
    assert "blurred" not in asked(images)


@pytest.mark.parametrize(("detail", "side", "told"), [(0.0, 96, True), (0.3, 96, False), (0.0, 32, False)])
def test_images_without_detail_are_told(detail, side, told):
    """A few pixels, enlarged: a network answers them alike however it is quantized. Small inputs may be smooth."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(16):
        few = np.asarray(Image.fromarray(rng.integers(0, 256, (3, 3, 3), np.uint8)).resize((side, side)), np.float32)
        texture = np.repeat(np.repeat(rng.normal(0.0, 1.0, (side // 2, side // 2, 3)), 2, 0), 2, 1)
        found.append((few / 255 + detail * texture).transpose(2, 0, 1)[None].astype(np.float32))
    assert ("blurred" in asked(found)) == told


def test_answers_that_are_no_numbers_are_told():
    samples = [{"x": normal(1, 8, seed=at)} for at in range(16)]

    def answer(feeds):
        return {"pitch": np.full((1, 4), np.nan), "rest": np.array([[np.nan, *feeds["x"][0]]])}

    (said,) = question_data(samples, Purpose(Task.REGRESS, BY_SHAPE), answer)
    assert "NaN in all of output 'pitch' on the first 8 samples" in said


@pytest.mark.parametrize("size", [0.0, 1.0])
def test_one_vector_for_all_is_told_even_if_it_is_zero(size):
    samples = [{"x": normal(1, 8, seed=at)} for at in range(16)]

    def answer(feeds):
        return {"vector": np.full((1, 8), size) + 1e-9 * size * feeds["x"]}

    (said,) = question_data(samples, Purpose(Task.EMBED, BY_SHAPE), answer)
    assert "Most samples get the same vector" in said
    assert not question_data(samples, Purpose(Task.EMBED, BY_SHAPE), lambda feeds: {"vector": feeds["x"]})
