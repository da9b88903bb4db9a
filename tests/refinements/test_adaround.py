import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.errors import UsageError
from detent.refinements import AdaQuant, AdaRound
from detent.refinements.adaround import RoundingVariables
from detent.refinements.gradient import BatchGradient, BlockSearch, _LayerSearch, batches_of, blocks_of
from detent.refinements.gradient_loops import rounding_step, soft_step
from detent.refinements.layer_problem import EVERYWHERE
from tests.refinements.layer_problems import LEAKY, NOTHING, RELU6, code_errors, layer, learn

QUICK = AdaRound(iterations=200, batch=64)


def test_rectified_sigmoid_reaches_both_ends():
    assert soft_step(np.float32(0.0)) == pytest.approx(0.5)
    assert soft_step(np.float32(1.0)) == pytest.approx(1.2 / (1 + np.exp(-1.0)) - 0.1)
    assert soft_step(np.float32(2.399)) == 1.0
    assert soft_step(np.float32(-2.399)) == 0.0
    assert soft_step(np.float32(9.0)) == 1.0
    assert soft_step(np.float32(-9.0)) == 0.0


def test_soft_weights_start_at_the_float_weights():
    problem = layer(2, 3, 5)
    variables = RoundingVariables(problem, QUICK, EVERYWHERE, np.ones_like(problem.bias))
    np.testing.assert_allclose(variables.weights, problem.weight, rtol=1e-5)
    again = [float(soft_step(alpha)) for alpha in variables.alpha.ravel()]
    np.testing.assert_allclose(again, variables.soft.ravel(), atol=1e-5)


@given(st.floats(-2.2, 2.2), st.floats(2, 20), st.floats(-2, 2))
@settings(max_examples=60, deadline=None)
def test_step_follows_the_slope_of_error_and_penalty(alpha, beta, slope):
    scale, floor, share = 0.25, 3.0, 0.3

    def loss(a):
        h = 1.2 / (1 + np.exp(-a)) - 0.1
        return slope * scale * (floor + h) + share * (1 - abs(2 * h - 1) ** beta)

    one = lambda number: np.full((1, 1, 1), number, np.float32)
    mean, square, moved, weights = one(0), one(0), one(alpha), one(0)
    soft = one(soft_step(np.float32(alpha)))
    rounding_step(
        one(slope),
        np.full((1, 1), scale),
        one(floor),
        -9,
        9,
        moved,
        soft,
        mean,
        square,
        1,
        0.01,
        np.full((1, 1), share),
        beta,
        weights,
    )
    wanted = (loss(alpha + 1e-5) - loss(alpha - 1e-5)) / 2e-5
    assert mean.item() / 0.1 == pytest.approx(wanted, rel=1e-2, abs=2e-3)
    if abs(wanted) > 1e-2:  # the first step of Adam is the rate itself, down the slope
        assert moved.item() == pytest.approx(alpha - 0.01 * np.sign(wanted), abs=1e-4)
    assert weights.item() == pytest.approx(scale * (floor + soft.item()), rel=1e-5)


def test_weight_at_the_highest_code_has_no_slope():
    one = lambda number: np.full((1, 1, 1), number, np.float32)
    for high, wanted in ((4, 0.3), (3, 0.0)):
        mean, weights = one(0), one(0)
        rounding_step(
            *(one(1), np.ones((1, 1)), one(3), -9, high, one(0), one(0.5), mean, one(0)),
            *(1, 1e-6, np.zeros((1, 1)), 2.0, weights),
        )
        assert mean.item() / 0.1 == pytest.approx(wanted, rel=1e-5)  # 1.2 / 4 is the slope of h at 0
        assert weights.item() == pytest.approx(min(3.5, high))


def test_up_where_alpha_is_not_negative():
    problem = layer(1, 1, 3)
    variables = RoundingVariables(problem, QUICK, EVERYWHERE, np.ones((1, 1)))
    variables.alpha[:] = [-0.01, 0.0, 0.01]
    floors = np.floor(problem.weight / problem.weight_scale[..., None])
    assert np.array_equal(variables.settled()[0], floors + np.array([0.0, 1.0, 1.0]))


def test_exponent_falls_along_half_a_cosine_after_the_warm_start():
    options = AdaRound(iterations=100, warm_start=0.2, beta=(20.0, 2.0))
    assert options.exponent(20) is None
    assert options.exponent(60) == pytest.approx(11.0)
    assert options.exponent(100) == pytest.approx(2.0)


@pytest.mark.parametrize("magnitude", [1, 64])
@pytest.mark.parametrize("activation", [NOTHING, LEAKY])
def test_close_to_the_best_of_all_roundings(activation, magnitude):
    problem = layer(1, 16, 8, 100, activation)
    problem = replace(
        problem, rows=problem.rows * magnitude, target=problem.target * magnitude, bias=problem.bias * magnitude
    )
    floors = np.floor(problem.weight / problem.weight_scale[..., None])
    ups = itertools.product([0.0, 1.0], repeat=8)
    best = np.min([code_errors(problem, floors + np.array(up), problem.bias) for up in ups], axis=0)
    solution = learn(problem, AdaRound(iterations=600, batch=64))
    found, nearest = (code_errors(problem, codes, problem.bias) for codes in (solution.codes, problem.nearest()))
    assert found.sum() <= 1.1 * best.sum()
    assert nearest.sum() > 1.5 * best.sum()


def test_penalty_by_number_is_the_same_for_all_channels():
    problem = layer(1, 3, 6)
    errors = np.array([[1.0, 2.0, 0.0]])
    own = RoundingVariables(problem, AdaRound(), EVERYWHERE, errors)
    same = RoundingVariables(problem, AdaRound(penalty=0.25), EVERYWHERE, errors)
    np.testing.assert_allclose(own.penalty, [[10 / 6, 20 / 6, 0.0]])
    assert same.penalty.tolist() == [[0.25, 0.25, 0.25]]


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 20), st.integers(1, 40), st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_never_worse_than_nearest_and_always_next_to_the_weight(groups, channels, inputs, samples, seed):
    problem = layer(groups, channels, inputs, samples, seed=seed)
    solution = learn(problem, AdaRound(iterations=30, batch=16))
    before, after = (code_errors(problem, codes, problem.bias) for codes in (problem.nearest(), solution.codes))
    assert np.all(after <= before * (1 + 1e-4) + 1e-9)
    steps = solution.codes - np.floor(problem.weight / problem.weight_scale[..., None])
    assert np.isin(steps, [0.0, 1.0]).all()
    assert np.array_equal(solution.bias, problem.bias)


def test_every_weight_has_decided_at_the_end():
    problem = layer(1, 4, 20, 300, LEAKY)
    options = AdaRound(iterations=800)
    errors = code_errors(problem, problem.nearest(), problem.bias)
    variables = RoundingVariables(problem, options, EVERYWHERE, errors)
    batches = batches_of(problem, np.arange(300), 300, problem.rows, round_output=False)
    BlockSearch(EVERYWHERE, variables, BatchGradient(batches)).advance(range(800), np.zeros(800, np.int64), 0.1)
    assert np.isin(variables.soft, [0.0, 1.0]).all()
    assert np.array_equal(variables.soft == 1.0, variables.alpha >= 0)


def test_codes_stay_in_range():
    problem = replace(layer(1, 3, 6), low=-3, high=2)
    codes = learn(problem, QUICK).codes
    assert codes.min() >= -3
    assert codes.max() <= 2
    beyond = np.floor(problem.weight / problem.weight_scale[..., None]) >= 2
    assert np.all(codes[beyond] == 2)


@pytest.mark.parametrize("activation", [NOTHING, RELU6])
def test_same_seed_same_codes_on_any_number_of_threads(activation):
    problem = layer(1, 70, 18, 300, activation)
    codes = [learn(problem, QUICK, threads).codes for threads in (1, 1, 3)]
    assert np.array_equal(codes[0], codes[1])
    assert np.array_equal(codes[0], codes[2])


def test_another_seed_is_another_search():
    problem = layer(1, 70, 18, 300)
    assert not np.array_equal(learn(problem, QUICK).codes, learn(problem, replace(QUICK, seed=5)).codes)


@pytest.mark.parametrize("groups, channels", [(1, 1), (1, 70), (100, 1), (7, 9), (3, 40)])
def test_parts_cover_every_channel_once(groups, channels):
    seen = np.zeros((groups, channels))
    for part in blocks_of(groups, channels):
        seen[part] += 1
    assert np.all(seen == 1)


def degenerate():
    problem = layer(1, 4, 6, 50)
    yield "one row", replace(problem, rows=problem.rows[:, :1], target=problem.target[:1])
    yield "constant inputs", replace(problem, rows=np.ones_like(problem.rows))
    yield "dead inputs", replace(problem, rows=np.zeros_like(problem.rows))
    yield "dead channels", replace(problem, bias=problem.bias - 1000, target=problem.target - 1000)
    yield "zero weights", replace(problem, weight=np.zeros_like(problem.weight))


@pytest.mark.parametrize("activation", [NOTHING, RELU6])
@pytest.mark.parametrize("name", [name for name, _ in degenerate()])
def test_degenerate_layers(name, activation):
    problem = replace(dict(degenerate())[name], activation=activation)
    solution = learn(problem, AdaRound(iterations=30, selective_update=True))
    assert np.isfinite(solution.codes).all()
    before, after = (code_errors(problem, codes, problem.bias).sum() for codes in (problem.nearest(), solution.codes))
    assert after <= before + 1e-6 or name == "one row"


def test_selective_update_keeps_only_channels_that_are_better_on_held_out_rows():
    problem = layer(1, 40, 30, 64)
    held_out = slice(56, 64)
    plain, selective = (learn(problem, replace(QUICK, selective_update=kept)) for kept in (False, True))
    nearest = code_errors(problem, problem.nearest(), problem.bias, held_out)
    found = code_errors(problem, selective.codes, problem.bias, held_out)
    reverted = (selective.codes == problem.nearest()).all(axis=2)
    assert 0 < reverted.sum() < 40
    assert np.all(found[~reverted] < nearest[~reverted])
    assert not np.array_equal(plain.codes, selective.codes)


def test_share_of_float_inputs():
    problem = layer(1, 4, 18, 200)
    float_rows = problem.rows
    noisy = replace(problem, rows=np.zeros_like(problem.rows), float_rows=float_rows)
    for share in (0.0, 0.25, 1.0):
        mean = mean_input(noisy, replace(QUICK, quantized_share=share))
        assert mean == pytest.approx((1 - share) * float_rows.mean(), rel=0.1)
    assert np.isfinite(learn(noisy, replace(QUICK, quantized_share=0.5)).codes).all()
    with pytest.raises(UsageError, match="quantized_share is 0.5, but for 'conv'"):
        learn(problem, replace(QUICK, quantized_share=0.5))


def mean_input(problem, options):
    batches = _LayerSearch(problem, options, ThreadPoolExecutor(1))._mixed()
    return batches.by_input.sum() / batches.counts.sum() / problem.weight.shape[2]


def steps_made(monkeypatch, problem, options):
    made = []
    advance = BlockSearch.advance
    monkeypatch.setattr(
        BlockSearch, "advance", lambda run, steps, *rest: made.append(steps) or advance(run, steps, *rest)
    )
    learn(problem, options)
    monkeypatch.undo()
    return sum(map(len, made))


def test_early_stop_waits_for_the_warm_start_and_for_a_window_without_progress(monkeypatch):
    problem = layer()
    stuck = AdaRound(iterations=100, learning_rate=1e-12, beta=(2.0, 2.0), early_stop=True)
    assert steps_made(monkeypatch, problem, stuck) == 40
    assert steps_made(monkeypatch, problem, replace(stuck, warm_start=0.5)) == 70
    assert steps_made(monkeypatch, problem, replace(stuck, early_stop=False)) == 100
    assert steps_made(monkeypatch, problem, AdaRound(iterations=100, early_stop=True)) > 40


def test_layers_with_a_larger_error_learn_at_another_rate():
    problem = layer(1, 8, 30, 100)
    error = code_errors(problem, problem.nearest(), problem.bias).mean()
    plain, slow = learn(problem, QUICK).codes, learn(problem, replace(QUICK, learning_rate=1e-6)).codes
    assert not np.array_equal(plain, slow)
    for bound, wanted in ((0.9 * error, slow), (1.1 * error, plain)):
        found = learn(problem, replace(QUICK, learning_rate_above=(bound, 1e-6))).codes
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch": 0}, "batch of AdaRound is 0: it must be at least 1"),
        ({"learning_rate": 0.0}, "A learning rate of AdaRound is 0.0"),
        ({"learning_rate_above": (1.0, -1.0)}, "A learning rate of AdaRound is -1.0"),
        ({"quantized_share": 1.5}, "quantized_share of AdaRound is 1.5: it must be between 0 and 1"),
        ({"warm_start": -1.0}, "warm_start of AdaRound"),
        ({"penalty": -1.0}, "penalty of AdaRound"),
        ({"beta": (20.0, 0.5)}, "beta of AdaRound"),
        ({"seed": -1}, "seed of AdaRound"),
    ],
)
def test_options_that_mean_nothing(options, message):
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        AdaRound(**options)
    assert AdaQuant().learning_rate == 1e-5
