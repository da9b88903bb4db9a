from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
import zlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import DataError, OutputError, UsageError
from detent.observe import store as sealed
from detent.observe.sources import input_specs, open_source
from detent.observe.statistics import TensorStatistics
from detent.observe.statistics_file import (
    STATISTICS,
    StatisticsFile,
    check_fits,
    load_statistics,
    pack,
    save_statistics,
    unpack,
)
from detent.observe.store import NotThisKindError, fingerprint_of, read_sealed, seal, unseal
from detent.observe.sweep import recall, sweep
from tests.models import as_ir, conv_relu_conv, count_sample, normal

HOSTILE = "../\u202e<script>&\"'\n\x1b[31m\0日本"


def counted(*samples, votes=None):
    statistics = TensorStatistics()
    for sample in samples:
        count_sample(statistics, np.asarray(sample, np.float32))
    statistics.votes = Counter(votes or {})
    return statistics


def example(**changes):
    normal = np.random.default_rng(0).standard_normal((3, 500))
    tensors = {
        "conv": counted(*normal, votes={5: 2, -3: 1}),
        HOSTILE: counted([3.4e38, -3.4e38], [1e-45]),
        "empty": counted(),
        "zeros": counted([0.0, -0.0]),
    }
    fields = {"model": "m", "data": "d", "description": "3 images", "samples": 3, "statistics": tensors}
    return StatisticsFile(**{**fields, "votes_for": "MinMSE on uint8", **changes})


def contents(statistics):
    histogram = statistics.histogram
    return (
        (histogram.exponent, histogram.total, histogram.minimum, histogram.maximum, histogram.counts.tolist()),
        dataclasses.astuple(dataclasses.replace(statistics, histogram=None)),
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.stats"


def test_what_is_saved_is_loaded(path):
    file = example()
    save_statistics(path, file)
    loaded = load_statistics(path)
    assert list(loaded.statistics) == list(file.statistics)
    for name, statistics in file.statistics.items():
        assert contents(loaded.statistics[name]) == contents(statistics)
    assert dataclasses.replace(loaded, statistics={}) == dataclasses.replace(file, statistics={})


def test_what_was_done_to_the_model_is_kept(path):
    file = example(
        factors=(0.5, -1.0),
        absorbed={"a": (0.0, 2.5), "b": ()},
        smoothed={"c": (3.0,)},
        alpha=0.5,
        equalization="CrossLayer:steps=3,absorb=true",
    )
    save_statistics(path, file)
    assert dataclasses.replace(load_statistics(path), statistics={}) == dataclasses.replace(file, statistics={})


def test_a_new_field_of_the_statistics_is_not_forgotten():
    written = {"samples", "sum_of_minima", "sum_of_maxima", "votes"}
    assert {field.name for field in dataclasses.fields(TensorStatistics)} == {"histogram", *written}


def test_equal_statistics_are_equal_bytes(path, tmp_path):
    save_statistics(path, example())
    save_statistics(tmp_path / "again", load_statistics(path))
    assert path.read_bytes() == (tmp_path / "again").read_bytes()
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_loaded_statistics_go_on_counting(path):
    samples = np.random.default_rng(1).standard_normal((4, 100)) * [[1], [1e-3], [1e5], [1]]
    save_statistics(path, example(statistics={"t": counted(*samples[:2])}, votes_for=""))
    resumed = load_statistics(path).statistics["t"]
    for sample in samples[2:]:
        count_sample(resumed, sample)
    assert contents(resumed) == contents(counted(*samples))
    other = counted(*samples[2:])
    other.merge(load_statistics(path).statistics["t"])
    assert contents(other) == contents(counted(*samples))


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.lists(finite, min_size=1, max_size=5), max_size=5))
def test_any_statistics_survive(samples):
    statistics = counted(*samples)
    header, restored = unpack(pack({"a": 1}, {"t": statistics}), "here")
    assert header == {"a": 1}
    assert contents(restored["t"]) == contents(statistics)


def test_no_tensors_at_all():
    assert unpack(pack({}, {}), "here") == ({}, {})


SMALL = seal(STATISTICS, pack({"model": "m"}, {"t": counted([1.0, -2.0, 0.5])}))


def test_cut_short_at_any_length():
    with pytest.raises(NotThisKindError, match="here is not a statistics file"):
        unseal(b"", STATISTICS, "here")
    for length in range(1, len(SMALL)):
        with pytest.raises(DataError, match=f"here is cut short: it ends after {length} "):
            unseal(SMALL[:length], STATISTICS, "here")


def test_a_flipped_bit_anywhere_is_noticed():
    for at in range(8 * len(SMALL)):
        damaged = bytearray(SMALL)
        damaged[at // 8] ^= 1 << (at % 8)
        with pytest.raises(DataError, match="not a statistics file|damaged|cut short"):
            unseal(bytes(damaged), STATISTICS, "here")


def test_bytes_beyond_the_end_are_noticed():
    with pytest.raises(DataError, match="damaged"):
        unseal(SMALL + b"\0", STATISTICS, "here")


@pytest.mark.parametrize("contents", [b"", b"ONNX", b"\x89PNG\r\n\x1a\n" + bytes(100), bytes(1000)])
def test_another_file(contents, path):
    path.write_bytes(contents)
    with pytest.raises(NotThisKindError, match="model.stats is not a statistics file"):
        load_statistics(path)


def test_a_newer_version(path):
    newer = dataclasses.replace(STATISTICS, version=STATISTICS.version + 1)
    path.write_bytes(seal(newer, b"a layout that nobody knows yet"))
    with pytest.raises(DataError, match=r"format 3; .*up to 2\)"):
        load_statistics(path)


def test_the_format_before_noted_no_equalization(path):
    save_statistics(path, example(factors=(0.5,)))
    header, statistics = unpack(read_sealed(path, STATISTICS), "here")
    del header["equalization"]
    path.write_bytes(seal(dataclasses.replace(STATISTICS, version=1), pack(header, statistics)))
    assert load_statistics(path).equalization is None


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(DataError, match="There is no file .*nothing"):
        load_statistics(tmp_path / "nothing")
    with pytest.raises(DataError, match="Cannot read .*directory"):
        load_statistics(tmp_path)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(OutputError, match="Cannot write "):
        save_statistics(tmp_path / "nowhere" / "x", example())


def test_a_bomb_is_not_unpacked(monkeypatch):
    monkeypatch.setattr(sealed, "MOST_BYTES", 10_000)
    with pytest.raises(OutputError, match="would hold 10,001 bytes"):
        seal(STATISTICS, bytes(10_001))
    packed = zlib.compress(bytes(10_001))
    fields = struct.pack("<16sIQ", STATISTICS.magic, 1, len(packed))
    with pytest.raises(DataError, match="beyond 1 GB"):
        unseal(fields + hashlib.sha256(fields + packed).digest() + packed, STATISTICS, "here")


def body(**changes):
    """The bytes of one tensor, 3 values in 2 samples, with some fields of its entry changed."""
    packed = pack({}, {"t": counted([1.0, -2.0], [0.5], votes={4: 2})})
    length = struct.unpack_from("<I", packed)[0]
    header = json.loads(packed[4 : 4 + length])
    header["tensors"][0].update(changes)
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text + packed[4 + length :]


def test_the_entry_as_it_was_is_fine():
    assert unpack(body(), "here")[1]["t"].samples == 2


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3},
        {"samples": -1},
        {"samples": 0},
        {"samples": 4},
        {"samples": True},
        {"samples": 2.0},
        {"samples": "2"},
        {"sum_of_minima": 1 << 400},
        {"sum_of_minima": None},
        {"sum_of_maxima": -(1 << 152)},
        {"votes": None},
        {"votes": [[4, 3]]},
        {"votes": [[4, 0]]},
        {"votes": [[4, 1], [4, 1]]},
        {"votes": [[4]]},
        {"votes": [[5000, 1]]},
        {"exponent": -101},
        {"exponent": 129},
        {"exponent": 3},
        {"extremes": [0, 0]},
        {"extremes": [0x7F800000, 0]},
        {"extremes": [-1, 0]},
        {"extremes": [1 << 32, 0]},
        {"extremes": []},
        {"bins": 2},
        {"bins": 4},
        {"bins": -1},
        {"bins": 1 << 40},
    ],
    ids=str,
)
def test_a_field_that_cannot_be(change):
    with pytest.raises(DataError, match="here is refused: "):
        unpack(body(**change), "here")


@pytest.mark.parametrize(
    ("bins", "counts", "problem"),
    [
        ([4095, 4095, 10240], [1, 1, 1], "its bins are not in order"),
        ([4095, 10240, 9216], [1, 1, 1], "its bins are not in order"),
        ([4095, 9216, 65535], [1, 1, 1], "its bins are not in order"),
        ([4095, 9216, 10240], [1, 0, 1], "a bin has an impossible count"),
        ([4095, 9216, 10240], [1, 1 << 63, 1], "a bin has an impossible count"),
        ([4094, 9216, 10240], [1, 1, 1], "its extremes are not in its outermost bins"),
        ([4095, 9216, 10241], [1, 1, 1], "its extremes are not in its outermost bins"),
    ],
)
def test_bins_that_cannot_be(bins, counts, problem):
    # -2, 0.5 and 1 in bins of 2^-11: number 8192 - 1 - 4096, 8192 + 1024 and 8192 + 2048.
    intact = np.array([4095, 9216, 10240], "<u2").tobytes() + np.ones(3, "<u8").tobytes()
    assert body().endswith(intact)
    broken = body()[: -len(intact)] + np.array(bins, "<u2").tobytes() + np.array(counts, "<u8").tobytes()
    with pytest.raises(DataError, match=f"tensor 't': {problem}"):
        unpack(broken, "here")


@pytest.mark.parametrize(
    "garbage", [b"", b"\1\0\0\0", b"\2\0\0\0[]", b"\2\0\0\0{}", b'\x0e\0\0\0{"tensors":[1]}', b"\xff" * 40]
)
def test_garbage_in_a_whole_envelope(garbage):
    with pytest.raises(DataError, match="here is refused"):
        unpack(garbage, "here")


def test_deeply_nested_json_is_refused():
    text = b"[" * 100_000
    with pytest.raises(DataError, match="header is not JSON"):
        unpack(struct.pack("<I", len(text)) + text, "here")


@pytest.mark.parametrize(
    "change",
    [
        {"model": 1},
        {"data": 1},
        {"samples": "3"},
        {"samples": -3},
        {"votes_for": ""},
        {"description": None},
        {"absorbed": {"t": ("1",)}},
        {"absorbed": {"t": (float("inf"),)}},
        {"equalization": 3},
        {"equalization": "none", "factors": (1.0,)},
        {"equalization": "CrossLayer", "factors": None},
    ],
    ids=str,
)
def test_a_header_that_cannot_be(change, path):
    save_statistics(path, example(**change))
    with pytest.raises(DataError, match="its header is not "):
        load_statistics(path)


def test_a_sweep_is_remembered(path):
    model = as_ir(conv_relu_conv())
    source = open_source(normal(20, 3, 8, 8), input_specs(model), hold_out=None)
    swept = sweep(model, ["x", "r1", "y"], source)
    identity = fingerprint_of(model), source.fingerprint, source.describe
    save_statistics(path, StatisticsFile(*identity, swept.samples, swept.statistics))
    file = load_statistics(path)
    check_fits(file, *identity[:1], ["r1", "x"], identity[1])
    recalled = recall(model, ["r1", "x"], source, file)
    assert list(recalled.statistics) == ["r1", "x"]
    assert all(contents(each) == contents(swept.statistics[name]) for name, each in recalled.statistics.items())
    assert recalled.samples == swept.samples == 18
    assert [each.index for each in recalled.measured_on] == [each.index for each in swept.measured_on] == [7, 15]
    sample = recalled.measured_on[0].load()
    assert np.array_equal(recalled.runner(sample.feeds)[0], swept.runner(sample.feeds)[0])


def test_a_fitting_file_is_fine():
    check_fits(example(), "m", ["zeros", "conv"], "d", "MinMSE on uint8")
    check_fits(example(), "m", [])
    check_fits(example(data=None), "m", ["conv"], "another")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("other", ["conv"]), "are of another model\\. "),
        (("other", ["conv", "new"]), "another model.*; missing: 'new'"),
        (("m", ["conv", "new"]), "do not have all tensors that are needed; missing: 'new'"),
        (("m", list("abcdefg")), "missing: 'a', 'b', 'c', 'd', 'e' and 2 more"),
        (("m", ["conv"], "other"), r"counted on other data \(3 images\)"),
        (("m", ["conv"], "d", "MinMSE on int8"), "needs the votes .* for MinMSE on int8, .* hold for MinMSE on uint8"),
    ],
)
def test_what_does_not_fit_is_named(arguments, problem):
    with pytest.raises(UsageError, match=problem):
        check_fits(example(), *arguments)


def test_no_samples_and_no_votes():
    with pytest.raises(DataError, match="counted on no samples"):
        check_fits(example(samples=0), "m", ["conv"])
    with pytest.raises(UsageError, match="hold none"):
        check_fits(example(votes_for=""), "m", ["conv"], votes_for="MinMSE on int8")
