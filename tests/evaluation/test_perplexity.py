from __future__ import annotations

import math

import numpy as np
import pytest

from detent.errors import DataError, ModelError, UsageError
from detent.evaluation.metric_file import LabelledSample, as_metric, perplexity_of

TOKENS = np.array([[2, 0, 1, 3]])


def sample(**inputs):
    return LabelledSample("one.npz", None, None, inputs)


def test_all_words_alike_are_as_many_as_there_are():
    assert perplexity_of(np.zeros((1, 4, 5), np.float32), sample(input_ids=TOKENS)) == pytest.approx(5)


def test_a_known_answer():
    scores = np.log(np.array([[0.5, 0.25, 0.125, 0.125]] * 4, np.float32))[np.newaxis]
    expected = math.exp(-(math.log(0.5) + math.log(0.25) + math.log(0.125)) / 3)
    assert perplexity_of({"logits": scores + 7}, sample(input_ids=TOKENS)) == pytest.approx(expected)


def test_masked_tokens_are_not_asked_for():
    scores = np.log(np.array([[0.5, 0.25, 0.125, 0.125]] * 4, np.float32))[np.newaxis]
    mask = np.array([[1, 1, 0, 0]])
    assert perplexity_of(scores, sample(input_ids=TOKENS, attention_mask=mask)) == pytest.approx(2)


@pytest.mark.parametrize(
    ("scores", "inputs", "error", "message"),
    [
        (np.zeros((1, 4, 3)), {"ids": TOKENS}, DataError, "Token 3 is not one of the model's 3"),
        (np.zeros((1, 4)), {"ids": TOKENS}, ModelError, "needs an output"),
        (np.zeros((1, 4, 5)), {"x": np.zeros((1, 4), np.float32)}, ModelError, "token ids"),
        (np.zeros((1, 4, 5)), {"ids": TOKENS, "mask": np.array([[1, 0, 0, 0]])}, DataError, "no two tokens"),
    ],
)
def test_what_has_no_perplexity(scores, inputs, error, message):
    with pytest.raises(error, match=message):
        perplexity_of(scores, sample(**inputs))


def test_it_is_a_metric_by_name():
    metric = as_metric("perplexity")
    assert metric.lower_is_better
    assert metric.of_sample(np.zeros((1, 4, 5)), sample(input_ids=TOKENS)) == pytest.approx(5)
    with pytest.raises(UsageError, match="Token 3"):
        metric.of_sample(np.zeros((1, 4, 3)), sample(input_ids=TOKENS))
