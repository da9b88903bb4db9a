from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from detent.errors import DataError, OutputError
from detent.observe import sweep as module
from detent.observe.sources import input_specs, open_source
from detent.observe.statistics import TensorStatistics
from detent.observe.statistics_file import pack, unpack
from detent.observe.store import CALIBRATION as CHECKPOINT
from detent.observe.store import read_sealed, seal
from detent.observe.sweep import Checkpoint, sweep
from tests.models import as_ir, conv_relu_conv, normal

SITES = ["x", "r1", "y"]
COUNT = 40
HELD = {7, 15, 23, 31, 39}
IMAGES = normal(COUNT, 3, 8, 8, seed=4) * np.exp2(np.arange(COUNT, dtype=np.float32) % 7)[:, None, None, None]


class Watched:
    """A source that remembers which samples were loaded, and does something before some of them."""

    def __init__(self, source, before=None, seconds=0.0):
        self._source = source
        self._before = before or {}
        self._seconds = seconds
        self.loaded = []

    def __getattr__(self, name):
        return getattr(self._source, name)

    def __iter__(self):
        for pending in self._source:
            yield dataclasses.replace(pending, read=lambda pending=pending: self._read(pending))

    def _read(self, pending):
        time.sleep(self._seconds)
        self._before.get(pending.index, lambda: None)()
        self.loaded.append(pending.index)
        return pending.read()


def watched(data=IMAGES, before=None, seconds=0.0, **options):
    options = {"hold_out": None, **options}
    return Watched(open_source(data, input_specs(as_ir(conv_relu_conv())), **options), before, seconds)


def run(source, checkpoint=None, sites=SITES, threads=2, **options):
    return sweep(as_ir(conv_relu_conv()), sites, source, threads=threads, checkpoint=checkpoint, **options)


def fail(error):
    def raise_it():
        raise error

    return raise_it


def interrupt():
    """Ctrl-C: a signal that reaches the main thread while workers are within their samples."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def done_in(path):
    header, statistics = unpack(read_sealed(path, CHECKPOINT), "")
    return sorted(index for first, last in header["done"] for index in range(first, last + 1)), statistics


@pytest.fixture(scope="module")
def whole():
    return run(watched())


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path / "out.checkpoint", every=0.02)


def check_same(observation, whole):
    assert pack({}, observation.statistics) == pack({}, whole.statistics)
    assert observation.samples == whole.samples
    for kept in ("held_out", "first"):
        assert [each.index for each in getattr(observation, kept)] == [each.index for each in getattr(whole, kept)]


def check_holds_whole_samples(path):
    """The statistics in the checkpoint are those of exactly the samples that it lists, at every site."""
    done, statistics = done_in(path)
    alone = watched(IMAGES, hold_out=0)
    alone._source = dataclasses.replace(
        alone._source, selection=dataclasses.replace(alone._source.selection, rows=done, used=len(done))
    )
    # Sample i of the watched source is image i: with a batch of one, indices are those of the rows.
    assert pack({}, statistics) == pack({}, run(alone).statistics)
    return done


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_an_error_in_the_middle_and_the_next_sweep_goes_on(threads, whole, checkpoint):
    with pytest.raises(RuntimeError, match="broken"):
        run(watched(before={30: fail(RuntimeError("broken"))}, seconds=0.005), checkpoint, threads=threads)
    done = check_holds_whole_samples(checkpoint.path)
    assert set(range(30)) - HELD <= set(done) < set(range(COUNT)) - HELD - {30}
    again = watched()
    resumed = run(again, checkpoint, threads=threads)
    assert set(again.loaded) == set(range(COUNT)) - set(done) - HELD
    check_same(resumed, whole)
    assert resumed.notes == [
        f"Continued from the checkpoint {checkpoint.path}: {len(done)} samples were counted already."
    ]
    assert not checkpoint.path.exists()


def test_interrupted_again_and_again(whole, checkpoint):
    for _ in range(4):
        # One that is not counted yet, so that it is met however far the threads were in the round before.
        done = done_in(checkpoint.path)[0] if checkpoint.path.exists() else ()
        left = sorted(set(range(COUNT)) - HELD - set(done))
        at = left[len(left) // 3]
        with pytest.raises(RuntimeError):
            run(watched(before={at: fail(RuntimeError("broken"))}, seconds=0.003), checkpoint, threads=3)
    check_same(run(watched(), checkpoint), whole)


@pytest.fixture
def interruptible():
    """Ctrl-C raises, also where the whole run was started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("threads", [1, 3])
def test_ctrl_c(threads, whole, checkpoint):
    with pytest.raises(KeyboardInterrupt):
        run(watched(before={20: interrupt}, seconds=0.002), checkpoint, threads=threads)
    done = check_holds_whole_samples(checkpoint.path)
    assert set(range(20)) - HELD <= set(done)  # nothing that was finished is lost
    check_same(run(watched(), checkpoint), whole)


def test_a_sample_that_fails_after_some_of_it_was_counted_is_not_half_counted(whole, checkpoint, monkeypatch):
    note = TensorStatistics.note
    calls = []

    def fail_once(self, *arguments):
        calls.append(self)
        if len(calls) == 25 * len(SITES) - 1:
            raise MemoryError
        return note(self, *arguments)

    monkeypatch.setattr(TensorStatistics, "note", fail_once)
    with pytest.raises(MemoryError):
        run(watched(seconds=0.005), checkpoint, threads=1)
    monkeypatch.undo()
    assert 0 < len(check_holds_whole_samples(checkpoint.path)) < 25
    check_same(run(watched(), checkpoint), whole)


def test_nothing_is_left_and_nothing_said_where_all_went_well(whole, checkpoint, tmp_path):
    observation = run(watched(seconds=0.002), checkpoint)
    check_same(observation, whole)
    assert observation.notes == []
    assert list(tmp_path.iterdir()) == []


def test_a_failure_before_the_first_sample_leaves_nothing(checkpoint, tmp_path):
    with pytest.raises(RuntimeError):
        run(watched(before={0: fail(RuntimeError("broken"))}), checkpoint, threads=1)
    assert list(tmp_path.iterdir()) == []


def test_a_quick_sweep_reads_no_file_for_its_identity(checkpoint, monkeypatch):
    monkeypatch.setattr(module, "fingerprint_of", fail(AssertionError))
    run(watched(), dataclasses.replace(checkpoint, every=60))


def left_by(checkpoint, source=None, **options):
    source = source or watched(before={30: fail(RuntimeError("broken"))})
    with pytest.raises(RuntimeError, match="broken"):
        run(source, checkpoint, threads=1, **options)
    assert checkpoint.path.exists()


def test_every_sample_was_counted_but_not_the_end_reached(whole, checkpoint):
    left_by(checkpoint, watched(before={COUNT - 2: fail(RuntimeError("broken"))}))
    again = watched()
    check_same(run(again, checkpoint), whole)


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        (lambda: watched(IMAGES[::-1]), {}, "other data"),
        (lambda: watched(limit=30), {}, "other data"),
        (watched, {"sites": ["x", "r1"]}, "other tensors"),
        (watched, {"sites": SITES[::-1]}, "other tensors"),
        (lambda: watched(list(IMAGES)), {}, "another run, and a stream cannot be continued"),
    ],
)
def test_a_checkpoint_of_something_else_is_ignored_and_replaced(source, options, reason, checkpoint):
    left_by(checkpoint)
    rarely = dataclasses.replace(checkpoint, every=1000.0)  # a slow run would try to write, and say that it cannot
    observation = run(source(), rarely, **options)
    assert observation.notes == [
        f"The checkpoint {checkpoint.path} is of {reason}: it is ignored, and all samples are counted."
    ]
    assert pack({}, observation.statistics) == pack({}, run(source(), **options).statistics)
    assert not checkpoint.path.exists()


def test_a_checkpoint_of_another_model_is_ignored(checkpoint):
    left_by(checkpoint)
    model = conv_relu_conv()
    model.graph.node[1].op_type = "Abs"
    observation = sweep(as_ir(model), SITES, watched(), checkpoint=checkpoint)
    assert observation.samples == COUNT - len(HELD)
    assert "of another model" in observation.notes[0]


def test_a_checkpoint_of_other_votes_is_ignored(checkpoint):
    checkpoint = dataclasses.replace(checkpoint, votes_for="MinMSE on uint8")
    left_by(checkpoint, vote=lambda histogram: 1)
    observation = run(watched(), dataclasses.replace(checkpoint, votes_for="MinMSE on int8"), vote=lambda _: 2)
    assert "of another method" in observation.notes[0]
    assert observation.statistics["x"].votes == {2: COUNT - len(HELD)}


def test_votes_continue(checkpoint):
    checkpoint = dataclasses.replace(checkpoint, votes_for="MinMSE on uint8")
    left_by(checkpoint, vote=lambda histogram: histogram.exponent)
    observation = run(watched(), checkpoint, vote=lambda histogram: histogram.exponent)
    assert "Continued" in observation.notes[0]
    assert observation.statistics["x"].votes.total() == COUNT - len(HELD)
    with pytest.raises(ValueError, match="votes are checkpointed under the name"):
        run(watched(), dataclasses.replace(checkpoint, votes_for=""), vote=lambda histogram: 1)


def test_a_damaged_checkpoint_is_ignored(whole, checkpoint):
    left_by(checkpoint)
    checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:-1])
    observation = run(watched(), checkpoint)
    check_same(observation, whole)
    assert "cannot be used, so all samples are counted. " in observation.notes[0]
    assert "cut short" in observation.notes[0]


@pytest.mark.parametrize("ranges", [None, 3, [], [3], [[1]], [[5, 2]], [[0, 3], [3, 4]], [[-2, 1]], [[0, 1 << 40]]])
def test_an_impossible_list_of_samples_is_ignored(ranges, whole, checkpoint):
    left_by(checkpoint)
    header, statistics = unpack(read_sealed(checkpoint.path, CHECKPOINT), "")
    checkpoint.path.write_bytes(seal(CHECKPOINT, pack({**header, "done": ranges}, statistics)))
    observation = run(watched(), checkpoint)
    check_same(observation, whole)
    assert "is of no sample: it is ignored" in observation.notes[0]


def test_a_file_of_the_user_is_not_overwritten(checkpoint):
    checkpoint.path.write_text("my thesis")
    with pytest.raises(OutputError, match="is not a checkpoint"):
        run(watched(), checkpoint)
    assert checkpoint.path.read_text() == "my thesis"


def test_a_folder_that_cannot_be_written_does_not_stop_the_sweep(whole, tmp_path):
    checkpoint = Checkpoint(tmp_path / "nowhere" / "x", every=0.01)
    observation = run(watched(seconds=0.03), checkpoint)
    check_same(observation, whole)
    assert len(observation.notes) == 1
    assert "Calibration could not have been continued after an interruption. Cannot write" in observation.notes[0]


def test_a_failing_checkpoint_does_not_hide_the_error(tmp_path):
    with pytest.raises(RuntimeError, match="broken"):
        run(watched(before={30: fail(RuntimeError("broken"))}), Checkpoint(tmp_path / "nowhere" / "x"))


def test_streams_are_not_continued_and_it_says_so(checkpoint):
    observation = run(watched(list(IMAGES), seconds=0.03), checkpoint)
    assert observation.notes == [
        "Calibration could not have been continued after an interruption. A stream may give other samples, or another "
        "order, the next time. Give files or arrays instead."
    ]
    assert not checkpoint.path.exists()


def test_a_stream_with_a_name_is_continued(whole, checkpoint):
    checkpoint = dataclasses.replace(checkpoint, data="my images")
    with pytest.raises(RuntimeError, match="broken"):
        run(watched((image for image in IMAGES), before={30: fail(RuntimeError("broken"))}), checkpoint, threads=1)
    again = watched(image for image in IMAGES)
    check_same(run(again, checkpoint, threads=1), whole)
    assert again.loaded == [index for index in range(30, COUNT) if index not in HELD]


VICTIM = """
    from pathlib import Path
    from tests.observe.test_sweep_checkpoint import Checkpoint, run, watched
    run(watched({data!r}, seconds=0.02), Checkpoint(Path({path!r}), every=0.05))
"""


def test_a_process_that_is_killed(whole, tmp_path):
    data, checkpoint = tmp_path / "data.npy", Checkpoint(tmp_path / "out.checkpoint")
    np.save(data, IMAGES)
    code = textwrap.dedent(VICTIM.format(data=str(data), path=str(checkpoint.path)))
    with subprocess.Popen([sys.executable, "-c", code]) as victim:
        while not checkpoint.path.exists():
            assert victim.poll() is None
            time.sleep(0.005)
        victim.kill()
    assert victim.returncode == -signal.SIGKILL
    done = check_holds_whole_samples(checkpoint.path)
    again = watched(str(data))
    check_same(run(again, checkpoint), whole)
    assert len(again.loaded) == COUNT - len(HELD) - len(done)


def test_data_that_must_be_mended_leaves_nothing_to_continue(tmp_path):
    rarely = Checkpoint(tmp_path / "out.checkpoint", every=1000.0)
    with pytest.raises(DataError, match="not an image"):
        run(watched(before={30: fail(DataError("not an image"))}), rarely, threads=1)
    assert not rarely.path.exists()
