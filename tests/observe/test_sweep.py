from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

from detent.errors import DataError, UsageError
from detent.observe.samples import PendingSample, Sample
from detent.observe.sources import input_specs, open_source
from detent.observe.statistics import Histogram
from detent.observe.sweep import IN_SAMPLE_KEPT, STAGE, SiteCounter, sweep, taps_of
from tests.models import as_ir, build, conv_relu_conv, info, node, normal, values_of

SITES = ["x", "r1", "y"]


def source_of(model, data, **options):
    return open_source(data, input_specs(model), **options)


def contents(observation):
    return {
        name: (h.exponent, h.total, h.minimum, h.maximum, h.counts.tolist())
        for name, h in ((name, each.histogram) for name, each in observation.statistics.items())
    }


def counted_by_hand(proto, sites, samples):
    histograms = {name: Histogram() for name in sites}
    for sample in samples:
        for name, array in values_of(proto, sites, {"x": sample[None]}).items():
            histograms[name].add(array)
    return histograms


@pytest.fixture(scope="module")
def images():
    return normal(20, 3, 8, 8, seed=4) * np.exp2(np.arange(20, dtype=np.float32) - 10)[:, None, None, None]


@pytest.mark.parametrize("threads", [1, 2, 4, 0])
def test_the_result_is_that_of_counting_one_by_one(threads, images):
    proto = conv_relu_conv()
    model = as_ir(proto)
    seen = sweep(model, SITES, source_of(model, images), threads=threads)
    expected = counted_by_hand(proto, SITES, images)
    assert seen.samples == 20
    assert list(seen.statistics) and set(seen.statistics) == set(SITES)
    for name, histogram in expected.items():
        got = seen.statistics[name].histogram
        assert got.total == histogram.total
        # Fused and plain kernels may differ in the last bit of a float, which moves a value by at most one bin.
        assert got.minimum == pytest.approx(histogram.minimum, rel=1e-5)
        assert got.maximum == pytest.approx(histogram.maximum, rel=1e-5)
        assert np.abs(np.cumsum(got.counts - histogram.counts)).max() <= histogram.total // 200
    assert seen.statistics["x"].histogram.counts.tolist() == expected["x"].counts.tolist()


def test_threads_and_order_do_not_matter(images):
    model = as_ir(conv_relu_conv())
    results = [contents(sweep(model, SITES, source_of(model, images), threads=threads)) for threads in (1, 2, 4)]
    results.append(contents(sweep(model, SITES, source_of(model, images[::-1]), threads=3)))
    results.append(contents(sweep(model, list(reversed(SITES)), source_of(model, list(images[:, None])), threads=2)))
    assert all(result == results[0] for result in results[1:])


def test_the_graph_is_left_as_it_was(images):
    model = as_ir(conv_relu_conv())
    sweep(model, SITES, source_of(model, images[:2]))
    assert [value.name for value in model.graph.outputs] == ["y"]


def test_only_a_graph_input_is_observed(images):
    model = as_ir(conv_relu_conv())
    seen = sweep(model, ["x"], source_of(model, images))
    assert list(seen.statistics) == ["x"]
    assert seen.statistics["x"].histogram.total == images.size
    assert seen.statistics["x"].histogram.maximum == images.max()
    assert seen.statistics["x"].histogram.minimum == images.min()


@pytest.mark.parametrize("threads", [1, 3])
def test_held_out_samples_are_not_counted(threads):
    # Every eighth sample is held out: number 7 and number 15. They alone hold huge values.
    images = np.zeros((20, 3, 8, 8), np.float32) + np.arange(20, dtype=np.float32)[:, None, None, None] / 100
    images[[7, 15]] = 1000.0
    model = as_ir(conv_relu_conv())
    seen = sweep(model, ["x"], source_of(model, images, hold_out=None), threads=threads)
    assert seen.samples == 18
    assert seen.statistics["x"].histogram.maximum == np.float32(0.19)
    assert seen.statistics["x"].histogram.total == 18 * 192
    assert not seen.in_sample
    assert [pending.index for pending in seen.measured_on] == [7, 15]
    assert all(pending.load().feeds["x"].max() == 1000 for pending in seen.measured_on)


def test_without_held_out_samples_the_first_ones_measure(images):
    model = as_ir(conv_relu_conv())
    seen = sweep(model, ["x"], source_of(model, images), threads=2)
    assert seen.in_sample
    assert [pending.index for pending in seen.measured_on] == list(range(IN_SAMPLE_KEPT))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_reader_that_raises_in_the_middle(threads, images):
    asked = []

    def reader():
        for index, image in enumerate(images):
            asked.append(index)
            if index == 5:
                raise OSError("the cable fell out")
            yield image

    model = as_ir(conv_relu_conv())
    with pytest.raises(DataError, match="item 5 of the iterable: .*OSError: the cable fell out"):
        sweep(model, SITES, source_of(model, reader()), threads=threads)
    assert asked == list(range(6))
    assert threading.active_count() == 1 or not any("ThreadPool" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize("threads", [1, 4])
def test_a_sample_that_does_not_fit_stops_the_sweep(threads, images):
    items = [*images[:3], np.zeros((3, 4, 4), np.float32), *images]
    model = as_ir(conv_relu_conv())
    with pytest.raises(DataError, match=r"item 3 of the iterable: input 'x' expects shape .* found \[1, 3, 4, 4\]"):
        sweep(model, SITES, source_of(model, items), threads=threads)


VECTOR = (info("x", ("n", 4)),)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(
    ("nodes", "bad", "tensor"),
    [
        ([node("Log", "x", "logs"), node("Relu", "logs", "y")], -1.0, "logs"),
        ([node("Div", "one x", "ratios"), node("Relu", "ratios", "y")], 0.0, "ratios"),
    ],
)
def test_nan_and_infinity_name_the_sample_and_the_tensor(nodes, bad, tensor, threads):
    model = as_ir(build(nodes, "y", {"one": np.ones(1, np.float32)} if tensor == "ratios" else {}, inputs=VECTOR))
    data = np.ones((9, 4), np.float32)
    data[6, 2] = bad
    with pytest.raises(DataError, match=rf"array\[6\] .*NaN or infinity in tensor '{tensor}'"):
        sweep(model, [tensor], source_of(model, data), threads=threads)
    # Where nobody asks for that tensor, nothing is wrong with the sample.
    assert sweep(model, ["x"], source_of(model, data)).samples == 9


def test_progress_goes_from_nothing_to_everything(images):
    calls = []
    model = as_ir(conv_relu_conv())
    sweep(model, ["x"], source_of(model, images, hold_out=None), progress=lambda *call: calls.append(call), threads=3)
    assert [done for _, done, _ in calls] == list(range(21))
    assert {(stage, total) for stage, _, total in calls} == {(STAGE, 20)}


class _Forgetful:
    """A source that makes every sample on demand and knows how many are alive."""

    random, repeatable, preprocess, note, describe = False, True, None, "", "a test"

    def __init__(self, length, held_out=frozenset()):
        self.length = length
        self.held_out = held_out
        self.alive = 0
        self.most_alive = 0
        self._lock = threading.Lock()

    def __iter__(self):
        for index in range(self.length):
            yield PendingSample(index, f"sample {index}", index in self.held_out, lambda index=index: self._read(index))

    def _read(self, index):
        array = np.full((1, 3, 8, 8), float(index), np.float32)
        with self._lock:
            self.alive += 1
            self.most_alive = max(self.most_alive, self.alive)
        weakref.finalize(array, self._gone)
        return {"x": array}

    def _gone(self):
        with self._lock:
            self.alive -= 1


@pytest.mark.parametrize("threads", [1, 2])
def test_samples_are_not_kept(threads):
    source = _Forgetful(100)
    model = as_ir(conv_relu_conv())
    seen = sweep(model, SITES, source, threads=threads)
    assert seen.samples == 100
    assert source.most_alive <= 2 * threads  # the one at hand, and the last one until its name is bound again
    assert source.alive == 0
    assert len(seen.first) == IN_SAMPLE_KEPT


def test_everything_held_out_is_an_error():
    model = as_ir(conv_relu_conv())
    with pytest.raises(DataError, match="nothing to calibrate with in a test: every sample was held out"):
        sweep(model, SITES, _Forgetful(3, frozenset(range(3))))


def test_more_threads_than_samples(images):
    model = as_ir(conv_relu_conv())
    assert contents(sweep(model, SITES, source_of(model, images[:1]), threads=8)) == contents(
        sweep(model, SITES, source_of(model, images[:1]), threads=1)
    )


def network():
    """Two convolutions of 32 channels, so that onnxruntime computes in its own layout, and a residual."""
    return as_ir(
        build(
            [
                node("Conv", "x w1 b1", "c1", pads=[1, 1, 1, 1]),
                node("Relu", "c1", "r1"),
                node("Conv", "r1 w2 b2", "c2", pads=[1, 1, 1, 1]),
                node("Add", "c2 r1", "s"),
                node("Log", "s", "logs"),
                node("GlobalAveragePool", "s", "y"),
            ],
            "y",
            {
                "w1": normal(32, 3, 3, 3) / 4,
                "b1": normal(32, seed=1) / 8,
                "w2": normal(32, 32, 3, 3, seed=2) / 16,
                "b2": normal(32, seed=3) / 8,
            },
            inputs=[info("x", ("n", 3, 10, 10))],
        )
    )


TENSORS = ["x", "r1", "c2", "s", "y"]


def counted(runner, sites, batches):
    counter = SiteCounter(runner, sites)
    for index, batch in enumerate(batches):
        counter.count(Sample(index, f"batch {index}", {"x": batch}))
    return {
        name: (each.histogram.exponent, each.histogram.counts.tolist(), each.mean_extremes, each.samples)
        for name, each in counter.statistics.items()
    }


def test_both_runners_give_the_same_statistics():
    taps = taps_of(network(), TENSORS)
    batches = [normal(size, 3, 10, 10, seed=size) * size for size in (1, 2, 1, 5)]
    assert counted(taps.unordered, TENSORS, batches) == counted(taps.ordered, TENSORS, batches)


def test_outputs_come_first_and_inputs_are_not_fetched():
    taps = taps_of(network(), TENSORS)
    assert taps.ordered.outputs == taps.unordered.outputs == ["y", "r1", "c2", "s"]


def test_the_error_names_the_tensor_by_its_own_name():
    model = network()
    sites = ["s", "logs"]  # of negative numbers: NaN
    counter = SiteCounter(taps_of(model, sites).unordered, sites)
    with pytest.raises(DataError, match="On cat.jpg .* NaN or infinity in tensor 'logs'"):
        counter.count(Sample(0, "cat.jpg", {"x": np.full((1, 3, 10, 10), -9, np.float32)}))


def test_providers_reach_the_session():
    with pytest.raises(UsageError, match="no provider 'NPU'"):
        taps_of(network(), TENSORS, ["NPU"])
