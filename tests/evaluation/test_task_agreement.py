"""Answers are compared as the task reads them."""

from __future__ import annotations

import numpy as np
import pytest

from detent.evaluation.row_answers import bootstrap, probabilities
from detent.evaluation.task_agreement import (
    Purpose,
    compare_answers,
    edit_distance,
    paired_costs,
    spearman,
    summarize_answers,
)
from detent.tasks import Task


def agreed(task, expected, found, **facts):
    """Return the agreement of two arrays, or of two dictionaries of them."""
    one, other = (each if isinstance(each, dict) else {"y": each} for each in (expected, found))
    purpose = Purpose(task, "by test", **facts)
    count = len(next(iter(one.values())))
    return summarize_answers(purpose, compare_answers(purpose, one, other, count))


def test_a_change_costs_what_float_was_surer_of():
    expected = np.log(np.array([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8], [0.2, 0.6, 0.2]]) * 3)
    found = expected.copy()
    found[1] = expected[1][[1, 0, 2]]
    same = agreed(Task.CLASSIFY, expected, expected)
    assert (same.loss, same.interval[0]) == (0.0, 0.0)
    assert same.interval[1] > 0.05  # four samples prove nothing
    changed = agreed(Task.CLASSIFY, expected, found)
    assert changed.loss == pytest.approx(0.1 / 4)
    assert changed.figures["same_top1"] == 0.75
    assert "3 of 4 samples keep their top class" in changed.summary


def test_shares_are_taken_as_they_are():
    shares = np.array([[0.9, 0.1], [0.2, 0.8]])
    np.testing.assert_array_equal(probabilities(shares), shares)
    np.testing.assert_allclose(probabilities(np.log(shares)), shares)
    assert agreed(Task.CLASSIFY, shares, shares[::-1]).loss == pytest.approx((0.8 + 0.6) / 2)
    assert agreed(Task.CLASSIFY, np.array([[0.9], [0.6]]), np.array([[0.8], [0.4]])).loss == pytest.approx(0.1)


def test_more_samples_tell_more():
    rng = np.random.default_rng(0)
    few, many = rng.standard_normal((8, 10)) * 4, rng.standard_normal((200, 10)) * 4
    assert agreed(Task.CLASSIFY, few, few).interval[1] > 0.03 > agreed(Task.CLASSIFY, many, many).interval[1]


def test_a_tag_costs_what_float_was_sure_of():
    """A lost tag of 0.9 costs 0.8 and a new one of 0.2 half of 0.6, of tags that weigh 0.9 + 0.8 + 0.6."""
    expected = np.array([[0.9, 0.8, 0.1], [0.6, 0.2, 0.1]])
    found = np.array([[0.4, 0.7, 0.1], [0.55, 0.7, 0.1]])
    tags = agreed(Task.TAG, expected, found)
    assert tags.loss == pytest.approx((0.8 + 0.3) / 2.3)
    assert tags.figures == pytest.approx({"kept": 2 / 3, "new": 1 / 3, "score_shift": -0.65 / 3, "confident": 1.0})
    assert "2 of 3 tags above 0.5 are kept, 1 are new" in tags.summary
    logits = agreed(Task.TAG, *(np.log(each / (1 - each)) for each in (expected, found)))
    assert (logits.loss, logits.figures) == (pytest.approx(tags.loss), pytest.approx(tags.figures))
    assert agreed(Task.TAG, expected, expected - 0.05).loss == 0.0


def test_without_any_tag_the_best_are_compared():
    """The third of the best three moves from 0.1 to 0.05, of 0.4 + 0.2 + 0.1."""
    faint = agreed(Task.TAG, np.array([[0.4, 0.2, 0.1, 0.05]]), np.array([[0.4, 0.2, 0.1, 0.15]]))
    assert faint.loss == pytest.approx(0.05 / 0.7)
    assert faint.figures["confident"] == 0.0
    assert "2 of 3 of the 3 best tags" in faint.summary


def test_the_worst_of_several_answers_counts():
    expected = {"kind": np.array([[0.9, 0.1], [0.2, 0.8]]), "tags": np.array([[0.9, 0.1], [0.8, 0.1]])}
    heads = {"kind": "classes", "age": "number", "tags": "tags"}
    ages = np.array([[30.0], [40.0]])
    for broken, at in (("kind", 0), ("tags", 1)):
        found = dict(expected)
        found[broken] = expected[broken].copy()
        found[broken][0] = expected[broken][0][::-1]
        purpose = Purpose(Task.CLASSIFY, "by test", heads=heads)
        answers = compare_answers(purpose, {"age": ages, **expected}, {"age": ages, **found}, 2)
        summed = summarize_answers(purpose, answers)
        assert summed.summary.startswith(f"'{broken}' keeps least of 2 answers")
        assert summed.loss == pytest.approx([0.8 / 2, (0.8 + 0.4) / 1.7][at])
        costs, weights = paired_costs(purpose, answers)
        assert costs.sum() / weights.sum() == pytest.approx(summed.loss)


@pytest.mark.parametrize("shape", [(2, 16, 24), (3, 24, 16), (5, 20, 20)])
def test_maps_are_read_whichever_way_their_channels_lie(shape):
    """Non-square maps with channels last, too: else their rows would be taken for classes."""
    first, second = np.random.default_rng(2).standard_normal((2, 1, *shape))
    planes, lasts = (
        agreed(Task.SEGMENT, first, second),
        agreed(Task.SEGMENT, *(each.transpose(0, 2, 3, 1) for each in (first, second))),
    )
    assert planes.figures == pytest.approx(lasts.figures)


def peaks(*places, side=64, height=0.8):
    """Return maps [1, n, side, side] that are 0 but for a blob at each place."""
    rows, columns = np.mgrid[:side, :side]
    blobs = [np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / 8) for y, x in places]
    return height * np.array([blobs])


def test_maps_of_key_points_are_judged_by_their_peaks():
    """Where nothing is, any map may be the highest: pixels and regions say nothing."""
    noise = 0.01 * np.random.default_rng(0).standard_normal((1, 3, 64, 64))
    places = ((10, 10), (30, 40), (50, 20))
    same = agreed(Task.SEGMENT, peaks(*places), peaks(*places, height=0.6) + noise)
    assert same.loss == 0.0 and "3 of 3 peaks of the maps stay in place" in same.summary
    assert same.figures["height_shift"] == pytest.approx(-0.25, abs=0.05)
    moved = agreed(Task.SEGMENT, peaks(*places), peaks((10, 11), (30, 60), (50, 20)))
    assert moved.loss == pytest.approx(1 / 3)
    classes = np.random.default_rng(1).standard_normal((1, 3, 64, 64))
    assert "pixels keep their class" in agreed(Task.SEGMENT, classes, classes).summary


def test_numbers_are_compared_with_how_much_they_differ():
    """An answer of 40 to everyone is off by little of 40 +- 4, and by all of how much people differ."""
    ages = 40.0 + 4.0 * np.array([[-1.0], [1.0], [-1.0], [1.0]])
    always = agreed(Task.REGRESS, ages, np.full_like(ages, 40.0))
    assert always.figures["relative_error"] == pytest.approx(0.1, abs=0.01)
    assert always.figures["error_of_spread"] == pytest.approx(1.0)
    assert agreed(Task.REGRESS, ages, ages + 0.4).figures["error_of_spread"] == pytest.approx(0.1)
    assert agreed(Task.REGRESS, np.full_like(ages, 40.0), ages).figures["still"] == 1.0
    assert "error_of_spread" not in agreed(Task.REGRESS, ages[:3], ages[:3]).figures
    lengths = [compare_answers(Purpose(Task.REGRESS, ""), *({"y": np.ones((1, n))},) * 2, 1) for n in (3, 4, 3, 4)]
    summed = summarize_answers(Purpose(Task.REGRESS, ""), [answer for each in lengths for answer in each])
    assert "error_of_spread" not in summed.figures and summed.samples == 4


def pitches(samples=4, frames=6):
    """Return a pitch and a confidence for each frame; float is sure of every other one, and differs there by 10."""
    rng = np.random.default_rng(0)
    sure = np.tile([0.9, 0.2], (samples, frames // 2))
    return {"pitch": 200.0 + 10.0 * rng.choice([-1.0, 1.0], (samples, frames)), "sure": sure}


def test_numbers_that_float_is_not_sure_of_say_nothing():
    expected = pitches()
    octave = expected["pitch"] * np.where(expected["sure"] > 0.5, 1.0, 2.0)  # wrong where there is no pitch
    facts = {"confidences": {"pitch": "sure"}}
    kept = agreed(Task.REGRESS, expected, expected | {"pitch": octave}, **facts)
    assert kept.figures["relative_error"] == kept.figures["error_of_spread"] == 0.0
    assert kept.summary.startswith("of the 50 % of the numbers that float is sure of, ")
    assert agreed(Task.REGRESS, expected, expected | {"pitch": octave}).figures["relative_error"] > 0.5
    still = np.where(expected["sure"] > 0.5, 200.0, expected["pitch"])
    lost = agreed(Task.REGRESS, expected, expected | {"pitch": still}, **facts)
    assert lost.figures["error_of_spread"] >= 1.0
    # What frames without a pitch differ by is no spread that an error may hide in.
    noise = np.where(expected["sure"] > 0.5, expected["pitch"], 1e4 * np.eye(4, 6))
    one, other = (
        agreed(Task.REGRESS, {**expected, "pitch": each}, {**expected, "pitch": each + 5.0}, **facts)
        for each in (expected["pitch"], noise)
    )
    assert one.figures["error_of_spread"] == other.figures["error_of_spread"] > 0.4


def test_a_model_that_is_sure_of_nothing_tells_nothing():
    expected = pitches() | {"sure": np.full((4, 6), 0.1)}
    found = agreed(Task.REGRESS, expected, expected, confidences={"pitch": "sure"})
    assert found.figures["unsure"] == 1.0 and found.summary == "the float model is sure of nothing in these samples"


def steps(text, classes=5, sure=0.9):
    """Return the scores of one sequence: a row of shares for each class in `text`, [1, steps, classes]."""
    return np.array([[[sure if at == each else (1 - sure) / (classes - 1) for at in range(classes)] for each in text]])


def test_a_text_is_read_from_its_steps():
    """CTC: blanks (0) say nothing, repeated classes are one, and when a class is said does not count."""
    expected = steps([0, 1, 1, 0, 1, 0, 2, 3, 0, 0])  # 1 1 2 3
    later = steps([0, 0, 1, 0, 1, 0, 2, 2, 3, 0])
    assert agreed(Task.SEQUENCE, expected, later).figures == {"kept": 1.0, "classes": 4.0, "changed": 0.0}
    assert agreed(Task.SEQUENCE, expected, later).loss == 0.0
    lost = agreed(Task.SEQUENCE, expected, steps([0, 1, 1, 1, 1, 0, 2, 3, 0, 0]))  # 1 2 3
    assert lost.figures == {"kept": 0.0, "classes": 4.0, "changed": 0.25}
    assert lost.loss == pytest.approx((0.9 - 0.1 / 4) / 4)
    assert "0 of 1 sequences are kept whole, 1 of their 4 classes change" in lost.summary


def test_blanks_at_the_end_alone_do_not_divide_repeated_classes():
    expected, found = steps([1, 1, 2, 0, 0, 0]), steps([1, 2, 2, 0, 0, 0])
    assert agreed(Task.SEQUENCE, expected, found).figures == {"kept": 0.0, "classes": 3.0, "changed": 1 / 3}


def test_labels_of_tokens_are_compared_step_by_step():
    """Among those that are not the label of other words (0) in both."""
    expected, found = steps([0, 1, 2, 2, 0, 0]), steps([0, 1, 2, 0, 0, 0])
    assert agreed(Task.SEQUENCE, expected, found, tokens=True).figures == {
        "kept": 0.0,
        "classes": 3.0,
        "changed": 1 / 3,
    }
    assert agreed(Task.SEQUENCE, expected, found).figures["kept"] == 1.0  # as text they say the same: 1 2


def test_steps_may_come_first():
    expected, found = (np.swapaxes(steps(each), 0, 1) for each in ([0, 1, 0, 2, 0], [0, 1, 0, 3, 0]))
    answers = compare_answers(Purpose(Task.SEQUENCE, "by test"), {"y": expected}, {"y": found}, 1)
    assert [each.numbers["edits"] for each in answers] == [1]


def test_a_text_of_blanks_tells_nothing():
    assert agreed(Task.SEQUENCE, steps([0] * 8), steps([0] * 8)).loss is None


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [([], [], 0), ([1, 2], [], 2), ([1, 2, 3], [1, 3], 1), ([1, 2, 3], [2, 3, 4], 2), ([1, 2], [2, 1], 2)],
)
def test_edit_distance(one, other, distance):
    assert edit_distance(one, other) == edit_distance(other, one) == distance


def test_the_same_vectors_agree_without_any_length():
    zeros, others = {"y": np.zeros((4, 8))}, {"y": np.eye(4, 8)}
    assert agreed(Task.EMBED, zeros, zeros).figures == {"cosine": 1.0, "worst_cosine": 1.0, "ranking": 1.0}
    assert (
        agreed(Task.EMBED, zeros, others).figures["cosine"]
        == agreed(Task.EMBED, others, zeros).figures["cosine"]
        == 0.0
    )


def test_an_output_that_passes_an_input_on_is_not_read():
    same, vectors = np.eye(4), np.random.default_rng(0).standard_normal((4, 8))
    outputs = [{"same": same, "y": vectors}, {"same": same, "y": -vectors}]
    assert agreed(Task.EMBED, *outputs).figures["cosine"] == 1.0
    assert agreed(Task.EMBED, *outputs, passed_on=frozenset({"same"})).figures["cosine"] == -1.0


def detections(boxes, anchors=100):
    """Return an output of layout `columns` with two classes: (center x, center y, width, height, scores)."""
    found = np.zeros((1, 6, anchors), np.float32)
    for at, box in enumerate(boxes):
        found[0, :, at] = box
    return found


def test_detections_are_matched():
    first = detections([(20, 20, 10, 10, 0.9, 0), (50, 50, 20, 20, 0, 0.6), (80, 20, 8, 8, 0.3, 0)])
    facts = {"classes": 2, "image": (128, 128)}
    same = agreed(Task.DETECT, first, first, **facts)
    assert same.loss == pytest.approx(0.0, abs=1e-6)
    assert (same.figures["kept"], same.figures["new"], same.figures["score_shift"]) == (1.0, 0.0, 0.0)
    second = detections([(20, 20, 10, 10, 0.8, 0), (50, 50, 20, 20, 0.6, 0), (80, 20, 8, 8, 0.2, 0)])
    other = agreed(Task.DETECT, first, second, **facts)
    assert other.figures["kept"] == pytest.approx(2 / 3)  # the second has another class
    assert other.figures["new"] == pytest.approx(1 / 3)
    assert other.figures["score_shift"] == pytest.approx(-0.1)
    assert other.loss > 0.2
    none = agreed(Task.DETECT, first, detections([]), **facts)
    assert none.figures["kept"] == 0.0
    assert none.loss == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("width", "share"),
    [
        (10.0, 0.0),
        (9.2, (0.17 - 0.15) / 0.5),  # 0.08 from float's box: 0.17 is the hypotenuse of 0.08 and 0.15
        (6.4, (0.39 - 0.15) / 0.5),  # 0.36, and 0.39
    ],
)
def test_what_boxes_that_moved_cost(width, share):
    """Errors that know nothing of each other add up by their squares, so a small one hardly counts."""
    first = detections([(20, 20, 10, 10, 0.9, 0)])
    moved = agreed(Task.DETECT, first, detections([(20, 20, width, 10, 0.9, 0)]), classes=2, image=(128, 128))
    assert moved.figures["overlap"] == pytest.approx(width / 10.0)
    assert moved.loss == pytest.approx(share / 2, abs=1e-6)


def test_without_confident_detections_the_best_are_compared():
    first = detections([(20, 20, 10, 10, 0.1, 0), (50, 50, 20, 20, 0, 0.05)])
    found = agreed(Task.DETECT, first, first, classes=2, image=(128, 128))
    assert found.figures["confident"] == 0.0
    assert found.figures["kept"] == 1.0
    empty = agreed(Task.DETECT, detections([]), detections([]), classes=2, image=(128, 128))
    assert empty.loss is None


def test_pixels_and_regions():
    first = np.zeros((1, 3, 16, 16), np.float32)
    first[:, 0] = 5.0
    first[:, 1, :8] = 9.0
    second = first.copy()
    second[:, 1, 6:8] = 0.0
    found = agreed(Task.SEGMENT, first, second)
    assert found.figures["same_pixels"] == pytest.approx(1 - 2 / 16)
    assert found.figures["overlap"] == pytest.approx((6 / 8 + 8 / 10) / 2)
    assert agreed(Task.SEGMENT, first, first).loss == 0.0
    maps = first.argmax(1)
    assert agreed(Task.SEGMENT, maps, maps).figures["same_pixels"] == 1.0


def test_a_mask_is_judged_by_what_it_marks():
    """A quarter of the object is lost: the background, 31 of 32 of the image, would hide that."""
    first = np.zeros((1, 1, 16, 16), np.float32)
    first[0, 0, :4, :2] = 1.0
    second = first.copy()
    second[0, 0, 3, :2] = 0.0
    assert agreed(Task.SEGMENT, first, second).figures["overlap"] == pytest.approx(3 / 4)
    assert agreed(Task.SEGMENT, second, first).figures["overlap"] == pytest.approx(3 / 4)
    nothing = np.zeros_like(first)
    assert agreed(Task.SEGMENT, nothing, nothing).figures["overlap"] == 1.0
    assert agreed(Task.SEGMENT, nothing, first).figures["overlap"] == 0.0


@pytest.mark.parametrize("indices", [False, True])
def test_a_background_does_not_hide_what_is_lost_of_a_small_object(indices):
    """Of 16 images one has an object, and half of that is lost. Fifteen images of nothing tell nothing."""
    first = np.zeros((16, 2, 16, 16), np.float32)
    first[:, 0] = 1.0
    first[3, 1, :4, :4] = 2.0
    second = first.copy()
    second[3, 1, :2, :4] = 0.0
    found = agreed(Task.SEGMENT, *((each.argmax(1) if indices else each) for each in (first, second)))
    assert found.figures["overlap"] == pytest.approx(1 / 2)
    assert found.loss == pytest.approx(1 / 4)
    assert found.figures["same_pixels"] == pytest.approx(1 - 8 / (16 * 256))
    gone = np.where(first == 2.0, 0.0, first)
    assert agreed(Task.SEGMENT, gone, gone).loss == 0.0
    assert agreed(Task.SEGMENT, gone, first).figures["overlap"] == pytest.approx(15 / 16)  # something new


def test_vectors_keep_their_ranking():
    rng = np.random.default_rng(0)
    first = rng.standard_normal((12, 32)).astype(np.float32)
    near, far = first + 0.01 * rng.standard_normal(first.shape), rng.standard_normal(first.shape)
    assert agreed(Task.EMBED, first, near).loss < 0.01
    assert agreed(Task.EMBED, first, far).loss > 0.5
    assert agreed(Task.EMBED, first[:2], near[:2]).loss is None  # two vectors have one similarity
    tokens = rng.standard_normal((5, 7, 32)).astype(np.float32)
    assert agreed(Task.EMBED, tokens, tokens).figures["cosine"] == pytest.approx(1.0)


def test_images_and_numbers():
    first = np.linspace(0, 1, 2 * 3 * 64).reshape(2, 3, 8, 8)
    assert agreed(Task.IMAGE, first, first + 0.001).figures["psnr_db"] > 40
    assert agreed(Task.IMAGE, first, first).figures["psnr_db"] == 100.0
    assert agreed(Task.REGRESS, first, first * 0.9).figures["relative_error"] == pytest.approx(0.1)


def test_outputs_of_another_kind_have_no_answers():
    odd = {"y": np.zeros((1, 7), np.float32)}
    for task in (Task.DETECT, Task.SEGMENT, Task.IMAGE):
        assert compare_answers(Purpose(task, ""), odd, odd, 1) == []
    assert summarize_answers(Purpose(Task.DETECT, ""), []) is None


def test_statistics():
    assert bootstrap(np.array([0.0, 1.0, 0.0, 1.0]))[0] == 0.5
    low, high = bootstrap(np.array([0.0, 1.0] * 50))[1]
    assert 0.35 < low < 0.5 < high < 0.65
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 9.0])) == pytest.approx(1.0)
    assert spearman(np.array([1.0, 2.0, 3.0]), np.ones(3)) == 0.0
    numbers = np.random.default_rng(0).standard_normal(66)
    assert spearman(numbers, numbers**3) == 1.0  # to the last bit


def test_a_number_without_an_axis_is_that_of_its_sample():
    """Each sample is an inference of its own: 1, 2, 3, 4, each a half too large."""
    purpose = Purpose(Task.REGRESS, "")
    answers = []
    for number in (1.0, 2.0, 3.0, 4.0):
        answers += compare_answers(purpose, {"y": np.float32(number)}, {"y": np.float32(number + 0.5)}, 1)
    found = summarize_answers(purpose, answers * 2)
    assert found is not None and found.figures["error_of_spread"] == pytest.approx(0.5 / np.std([1, 2, 3, 4]))


def test_vectors_of_other_lengths_have_no_ranking() -> None:
    """A user may call the numbers of each token a vector: each is compared with float's, not with the others."""
    purpose = Purpose(Task.EMBED, "by test")
    rows = [{"y": np.arange(1.0, length)[None]} for length in (3, 4, 5, 6)]
    found = summarize_answers(purpose, [each for row in rows for each in compare_answers(purpose, row, row, 1)])
    assert found is not None and found.figures["cosine"] == pytest.approx(1.0) and "ranking" not in found.figures
