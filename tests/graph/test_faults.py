"""The n-th call of the file system fails, for every n: the old output is there or the new one, and nothing else."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from detent.errors import OutputError
from detent.graph.load import load
from detent.graph.save import save, save_together, write_text
from tests.conftest import tiny_model

CALLS = ((Path, "mkdir"), (Path, "write_bytes"), (Path, "replace"), (Path, "open"), (os, "fsync"))


class Faults:
    """Lets the n-th call of the file system fail, and counts the calls."""

    def __init__(self, monkeypatch, fail_at: int, code: int) -> None:
        self.calls, self.fail_at, self.code = 0, fail_at, code
        for owner, name in CALLS:
            monkeypatch.setattr(owner, name, self._wrapped(getattr(owner, name)))

    def _wrapped(self, real):
        def call(*args, **options):
            self.calls += 1
            if self.calls == self.fail_at:
                raise OSError(self.code, os.strerror(self.code))
            return real(*args, **options)

        return call


def one(folder):
    return lambda: save(load(tiny_model()), folder / "out.onnx")


def two(folder):
    model = load(tiny_model())
    return lambda: save_together([(model, folder / "out.onnx"), (model, folder / "tail.onnx")])


def text(folder):
    return lambda: write_text("new", folder / "out.onnx")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("write", [one, two, text])
def test_whatever_call_fails_the_old_files_or_the_new_ones_are_there(tmp_path, write, existing, code):
    reference = tmp_path / "reference"
    reference.mkdir()
    write(reference)()
    wanted = {file.name: file.read_bytes() for file in reference.iterdir()}
    for fail_at in range(1, 40):
        folder = tmp_path / str(fail_at)
        folder.mkdir()
        before = dict.fromkeys(wanted, b"old") if existing else {}
        for name, data in before.items():
            (folder / name).write_bytes(data)
        job, failed = write(folder), False
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, fail_at, code)
            try:
                job()
            except OutputError:
                failed = True
        found = {file.name: file.read_bytes() for file in folder.iterdir()}
        assert found == (before if failed else wanted), (fail_at, sorted(found))
        job()  # the same command succeeds
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == wanted
        shutil.rmtree(folder)
        if faults.calls < fail_at:
            assert not failed
            break
    else:
        pytest.fail("there is no end of calls")
