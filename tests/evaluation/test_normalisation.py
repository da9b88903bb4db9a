"""The float model's answers tell whether images are normalised as in training."""

from __future__ import annotations

import numpy as np
import pytest

from detent.evaluation.data_check import question_data
from detent.evaluation.normalisation import (
    CENTRED,
    IMAGENET,
    NORMALISATIONS,
    RAW,
    SIGNED,
    UNIT,
    ImageSamples,
    Rivals,
    recognised,
    told_apart,
)
from detent.tasks import Task
from detent.tasks.purpose import Purpose
from tests.evaluation.test_data_check import CLASSIFY, SIDE, photographs

CLASSES = 40


def asked(way, answer, task=CLASSIFY, count=32):
    """Return what is said of images under a normalisation."""
    return question_data([{"x": way.apply(image, 1)} for image in photographs(count)], task, answer)


def trained_on(way, blur=2.0, gain=12.0):
    """Return a classifier that knows 40 photographs: sharpest under `way`, and less so the more their contrast is off.

    Its scores grow with the pixels, as those of networks do.
    """
    known = np.array([image.reshape(-1) for image in photographs(CLASSES)])
    known = known - known.mean(1, keepdims=True)
    known /= np.linalg.norm(known, axis=1, keepdims=True)
    usual = float(np.mean([way.apply(image, 1).std() for image in photographs(CLASSES)]))

    def answer(feeds):
        flat = feeds["x"].reshape(-1)
        off = abs(np.log(float(flat.std()) / usual))
        likeness = known @ (flat - flat.mean()) / np.linalg.norm(flat - flat.mean())
        haze = np.random.default_rng(int(1e4 * float(np.abs(flat - flat.mean()).mean()))).standard_normal(CLASSES)
        return {"logits": ((1 + np.log1p(flat.std())) * (gain * likeness + blur * off * haze))[None]}

    return answer


@pytest.mark.parametrize("way", NORMALISATIONS, ids=lambda way: way.name)
def test_what_is_done_to_pixels_can_be_undone_and_recognised(way):
    images = photographs(4)
    done = [way.apply(image, 1) for image in images]
    assert recognised(done) is way
    for image, values in zip(images, done, strict=True):
        np.testing.assert_allclose(way.undo(values, 1), image, atol=1e-5)
    np.testing.assert_array_equal(way.apply(images[0].transpose(0, 2, 3, 1), 3).transpose(0, 3, 1, 2), done[0])


def test_values_of_no_usual_normalisation_are_not_recognised():
    assert recognised([np.array([-5.0, 5.0])]) is None
    assert recognised([np.array([0.0, 3.0])]) is None


def test_channels_in_the_other_order():
    image = photographs(1)[0]
    np.testing.assert_array_equal(UNIT.swapped.apply(image, 1), image[:, ::-1])
    np.testing.assert_allclose(CENTRED.apply(image, 1)[:, 0], 255 * image[:, 2] - 103.94, rtol=1e-5)


def test_information():
    assert told_apart(np.eye(4)) == pytest.approx(np.log(4))
    assert told_apart(np.full((4, 4), 0.25)) == 0.0
    assert told_apart(np.array([[1.0, 0.0]] * 4)) == 0.0


def test_data_as_in_training_is_not_questioned():
    assert asked(IMAGENET, trained_on(IMAGENET)) == []
    assert asked(UNIT, trained_on(UNIT)) == []


def test_larger_scores_alone_prove_nothing():
    """A classifier that answers the same with all pixels, only louder with larger ones."""

    def louder(feeds):
        flat = feeds["x"].reshape(-1) - feeds["x"].mean()
        weights = np.random.default_rng(1).standard_normal((CLASSES, flat.size)).astype(np.float32)
        return {"logits": (weights @ flat / 2)[None]}

    assert asked(UNIT, louder) == []


def test_pixels_of_0_to_1_instead_of_imagenets():
    (found,) = asked(UNIT, trained_on(IMAGENET))
    assert "the data is 0..1" in found
    assert "stand out more" in found
    assert IMAGENET.flags in found


def test_few_samples_prove_no_small_difference():
    found = " ".join(asked(UNIT, trained_on(IMAGENET), count=8))
    assert "stand out more" not in found


def test_scores_beyond_those_of_training():
    def enormous(feeds):
        flat = feeds["x"].reshape(-1)
        weights = np.random.default_rng(1).standard_normal((CLASSES, flat.size)).astype(np.float32)
        return {"logits": (weights @ (flat - flat.mean()))[None] / 10}

    (found,) = asked(RAW, enormous)
    assert "above the others" in found


def test_boxes_that_are_all_certain_or_better_with_other_pixels():
    detector = Purpose(Task.DETECT, "", classes=2, image=(SIDE, SIDE))

    def boxes(best):
        made = np.zeros((1, 6, 84), np.float32)
        made[0, 0] = np.arange(84) * 10.0
        made[0, 1:4] = 4.0
        made[0, 4, :20] = best
        return {"y": made}

    (found,) = asked(RAW, lambda _: boxes(1.0), detector)
    assert "certain of ten boxes" in found
    (found,) = asked(IMAGENET, lambda feeds: boxes(0.9 if feeds["x"].min() >= 0 else 0.5), detector)
    assert UNIT.flags in found
    assert asked(IMAGENET, lambda feeds: boxes(0.5 if feeds["x"].min() >= 0 else 0.6), detector) == []
    # Pixels that are far too large make a network nearly certain of everything, everywhere.
    (found,) = asked(UNIT, lambda feeds: boxes(0.985 if feeds["x"].max() > 20 else 0.15), detector)
    assert "detects nothing" in found and "--mean" not in found


def test_a_detector_that_finds_nothing_gets_more_samples():
    """The first photographs hold no object, so they say nothing about normalisations."""
    detector = Purpose(Task.DETECT, "", classes=1, image=(SIDE, SIDE))
    seen = [CENTRED.apply(image, 1) for image in photographs(32)]

    def answer(feeds):
        made = np.zeros((1, 5, 84), np.float32)
        made[0, 0], made[0, 1:4], made[0, 4] = np.arange(84) * 10.0, 4.0, 0.002
        if any(np.allclose(feeds["x"], each, atol=1e-2) for each in seen):
            made[0, 4, :20] = 0.8 if any(np.allclose(feeds["x"], each, atol=1e-2) for each in seen[4:]) else 0.003
        return {"y": made}

    (found,) = asked(IMAGENET, answer, detector)
    assert CENTRED.flags in found


@pytest.mark.parametrize(("classes", "doubts"), [(1, 0), (2, 1)])
def test_larger_inputs_alone_do_not_raise_a_doubt_about_one_class(classes, doubts):
    """A detector of faces finds hardly any in photographs; ImageNet's deviation makes its inputs twice as large."""
    detector = Purpose(Task.DETECT, "", classes=classes, image=(SIDE, SIDE))

    def answer(feeds):
        made = np.zeros((1, 4 + classes, 84), np.float32)
        made[0, 0], made[0, 1:4] = np.arange(84) * 10.0, 4.0
        made[0, 4, :20] = 0.6 if feeds["x"].min() < -1.5 else 0.3
        return {"y": made}

    assert len(asked(SIGNED, answer, detector)) == doubts


def test_other_ways_are_tried_on_few_samples():
    asked_for = []
    rows = [{"x": IMAGENET.apply(image, 1)} for image in photographs(32)]
    knowing = trained_on(IMAGENET)

    def answer(feeds):
        asked_for.append(feeds)
        return knowing(feeds)

    first = [knowing(row) for row in rows[:8]]
    samples = ImageSamples(CLASSIFY, rows.__getitem__, len(rows), "x", 1, answer, lambda at: answer(rows[at]))
    rivals = Rivals(samples, IMAGENET, first)
    assert rivals.best() is None
    assert [each.way for each in rivals.others] == [UNIT, SIGNED]
    assert len(asked_for) == 3 * 6


def test_grey_images_are_not_advised_what_is_for_colours():
    """A mean for each of three channels, and their order, say nothing of one channel."""
    grey = [{"x": UNIT.apply(image[:, :1], 1)} for image in photographs(32)]
    samples = ImageSamples(
        CLASSIFY, grey.__getitem__, 32, "x", 1, trained_on_grey, lambda at: trained_on_grey(grey[at])
    )
    rivals = Rivals(samples, UNIT, [trained_on_grey(each) for each in grey[:8]])
    assert {trial.way.name for trial in rivals.others} <= {SIGNED.name, RAW.name}
    assert not rivals.coloured


def trained_on_grey(feeds):
    """The same answer to everything, so that all ways are tried."""
    return {"logits": np.eye(1, CLASSES)}
