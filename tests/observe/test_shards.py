from __future__ import annotations

import pickle

import numpy as np
import pytest
from PIL import Image

from detent.errors import UsageError
from detent.observe.preprocess import PreprocessOptions
from detent.observe.shards import (
    LARGEST_SHARD,
    Counting,
    compress,
    decompress,
    divide,
    divide_samples,
    divisible,
    dump_work,
    samples_of,
)
from detent.observe.sources import input_specs, open_source
from detent.observe.statistics import TensorStatistics
from detent.observe.streams import SHARDS, ShardedSource, share
from tests.models import as_ir, conv_relu_conv, count_sample, normal
from tests.observe.shard_readers import SAMPLES, Numbers, sample

INPUTS = input_specs(as_ir(conv_relu_conv()))


def write_images(folder, count, side=300):
    for number in range(count):
        Image.fromarray(np.full((side, side, 3), number, np.uint8)).save(folder / f"{number:03}.png")


@pytest.mark.parametrize("workers", [1, 2, 7, 100])
@pytest.mark.parametrize(("total", "options"), [(1, {}), (50, {"hold_out": 4}), (1000, {}), (1000, {"limit": 77})])
def test_every_sample_is_in_one_shard_and_none_that_is_held_out(tmp_path, total, options, workers):
    np.save(tmp_path / "x.npy", np.zeros((total, 3, 8, 8), np.float32))
    source = open_source(tmp_path, INPUTS, **options)
    shards, held_out = divide(source, workers)
    whole = list(source)
    parts = [pending for shard in shards for pending in samples_of(source, shard)]
    assert [pending.index for pending in parts] == [pending.index for pending in whole if not pending.held_out]
    assert [pending.origin for pending in parts] == [pending.origin for pending in whole if not pending.held_out]
    assert [pending.index for pending in held_out] == [pending.index for pending in whole if pending.held_out]
    assert all(1 <= len(shard.groups) <= LARGEST_SHARD for shard in shards)
    assert len(shards) >= min(len(parts), 4 * workers)
    assert [shard.number for shard in shards] == list(range(len(shards)))


def test_a_shard_is_called_after_its_first_and_last_sample(tmp_path):
    write_images(tmp_path, 12, side=8)
    source = open_source(tmp_path, INPUTS, preprocess=PreprocessOptions(size=8))
    assert [shard.name for shard in divide(source, 1)[0]][:2] == ["000.png … 002.png", "003.png … 005.png"]


def test_only_paths_travel_and_no_contents(tmp_path, monkeypatch):
    images, npy, npz = (tmp_path / name for name in ("images", "npy", "npz"))
    for folder in (images, npy, npz):
        folder.mkdir()
    write_images(images, 3)
    data = normal(50, 3, 8, 8)
    np.save(npy / "x.npy", data)
    np.savez(npz / "x.npz", x=data)
    monkeypatch.chdir(tmp_path)
    for folder, preprocess in (("images", PreprocessOptions(size=8)), ("npy", None), ("npz", None)):
        source = open_source(folder, INPUTS, preprocess=preprocess)
        expected = [pending.load().feeds["x"] for pending in source]  # the archive is in memory now
        packed = pickle.dumps(divisible(source))
        assert len(packed) < 2000
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir("/")
            found = [pending.load().feeds["x"] for pending in pickle.loads(packed)]
        assert np.array_equal(found, expected)


def test_random_numbers_are_made_where_they_are_needed():
    source = open_source(None, INPUTS, seed=5)
    packed = pickle.dumps(divisible(source))
    assert len(packed) < 1500
    for here, there in zip(source, pickle.loads(packed), strict=True):
        assert np.array_equal(here.load().feeds["x"], there.load().feeds["x"])


def test_a_task_is_small(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2000, 3, 8, 8), np.float32))
    shards = divide(open_source(tmp_path, INPUTS), 2)[0]
    assert max(len(pickle.dumps(shard)) for shard in shards) < 1000


def test_a_result_is_small():
    statistics = TensorStatistics()
    count_sample(statistics, normal(10_000))
    compressed = compress({"t": statistics, "empty": TensorStatistics()})
    assert len(compressed) < 20_000 < len(pickle.dumps(statistics)) / 5
    restored = decompress(compressed, "shard 0")
    assert restored["t"].histogram.counts.tolist() == statistics.histogram.counts.tolist()
    assert restored["empty"].samples == 0


DATA = normal(4, 3, 8, 8)


@pytest.mark.parametrize("data", [DATA, {"x": DATA}, DATA.astype(np.float16)], ids=["array", "dict", "half"])
def test_arrays_in_memory_are_refused(data):
    with pytest.raises(UsageError, match="4 samples from .*in memory"):
        divisible(open_source(data, INPUTS))


def test_a_memory_map_is_an_array(tmp_path):
    np.save(tmp_path / "x.npy", DATA)
    with pytest.raises(UsageError, match="give the path"):
        divisible(open_source(np.load(tmp_path / "x.npy", mmap_mode="r"), INPUTS))


@pytest.mark.parametrize("data", [list(DATA), iter(DATA), (one for one in DATA)], ids=["list", "iterator", "generator"])
def test_streams_are_refused(data):
    with pytest.raises(UsageError, match="a stream is in this process only"):
        divisible(open_source(data, INPUTS))


def test_a_reader_that_cannot_be_pickled():
    class Local(Numbers):
        pass

    source = divisible(open_source(Local(), INPUTS))
    with pytest.raises(UsageError, match="shards of a Local: .*pickled"):
        dump_work(Counting(("x",), source, None))


def test_the_shards_of_a_reader_are_all_its_samples_once():
    source = open_source(Numbers(), INPUTS)
    assert isinstance(source, ShardedSource)
    whole = list(source)
    assert len({pending.index for pending in whole}) == len(whole) == SAMPLES
    parts = [pending for shard in divide(source, 3)[0] for pending in samples_of(source, shard)]
    assert [pending.index for pending in parts] == [pending.index for pending in whole]
    found = sorted(float(pending.load().feeds["x"].sum()) for pending in parts)
    assert found == sorted(float(sample(number).sum()) for number in range(SAMPLES))


def test_a_limit_and_what_is_held_out_are_divided_over_the_shards():
    pending = list(open_source(Numbers(), INPUTS, limit=40, hold_out=16))
    assert sum(not one.held_out for one in pending) == 24
    assert sum(one.held_out for one in pending) == 16
    unlimited = list(open_source(Numbers(), INPUTS, hold_out=16))
    assert [one.index // SHARDS for one in unlimited if one.held_out] == [7] * 16


@pytest.mark.parametrize("total", [0, 1, 15, 16, 17, 1000])
def test_shares_add_up(total):
    shares = [share(total, index) for index in range(SHARDS)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("data", ["file", "reader"])
def test_some_samples_in_any_order(tmp_path, data, workers):
    np.save(tmp_path / "x.npy", normal(60, 3, 8, 8))
    source = open_source(Numbers(60) if data == "reader" else tmp_path, INPUTS, hold_out=4)
    samples = [pending for pending in source if not pending.held_out][40::-3]
    shards = divide_samples(source, samples, workers)
    assert [shard.number for shard in shards] == list(range(len(shards)))
    parts = [pending for shard in shards for pending in samples_of(source, shard)]
    assert [(one.index, one.origin) for one in parts] == [(one.index, one.origin) for one in samples]
    for one, other in zip(parts, samples, strict=True):
        assert np.array_equal(one.load().feeds["x"], other.load().feeds["x"])
    assert shards[-1].name.endswith(samples[-1].origin)


def test_some_shards_may_be_empty():
    assert len(list(open_source(Numbers(3), INPUTS, hold_out=2))) == 3


def test_an_error_names_the_shard_and_the_item():
    pending = list(open_source(Numbers(40), input_specs(as_ir(conv_relu_conv()))))
    assert pending[-1].origin == "item 1 of the reader's shard 15"


class OtherShard:
    """A data set of a library, whose shard() means something else."""

    def shard(self, num_shards, index):
        raise AssertionError

    def __iter__(self):
        return iter(DATA)


def test_the_shard_method_of_a_library_is_not_taken_for_ours():
    assert len(list(open_source(OtherShard(), INPUTS))) == 4
