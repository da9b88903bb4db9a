from __future__ import annotations

import signal
import sys
from pathlib import Path, PureWindowsPath

import numpy as np
import pytest

from detent.errors import DataError, OutputError
from detent.execute import inference
from detent.execute.inference import OutputFolder, file_stems, new_folder


def tree(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("there", [False, True])
def test_the_folder_is_there_at_the_end(tmp_path, there):
    out = tmp_path / "out"
    if there:
        out.mkdir()
    with new_folder(out) as folder:
        (folder / "a").write_text("1")
        assert not out.exists() or not any(out.iterdir())
    assert tree(tmp_path) == {"out/a": "1"}


def test_nothing_is_left_of_a_failure(tmp_path):
    with pytest.raises(KeyError), new_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("1")
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_another_run_is_not_mixed_in_unless_so_asked(tmp_path):
    out = tmp_path / "out"
    (out / "in").mkdir(parents=True)
    (out / "old").write_text("0")
    (out / "in" / "b").write_text("0")
    with pytest.raises(OutputError, match="not an empty folder"), new_folder(out):
        pass
    with new_folder(out, overwrite=True) as folder:
        (folder / "in").mkdir()
        (folder / "in" / "b").write_text("1")
        (folder / "a").write_text("1")
    assert tree(tmp_path) == {"out/old": "0", "out/in/b": "1", "out/a": "1"}
    with pytest.raises(OutputError, match="not an empty folder"), new_folder(out / "old", overwrite=True):
        pass


def test_names_are_harmless_and_differ():
    assert file_stems(["a/b", "a_b", "A/B", "../x", "", "ü"]) == ["a_b", "a_b_2", "A_B_3", "_x", "_", "__2"]


def test_no_name_is_a_device_of_windows():
    assert file_stems(["NUL", "con.weight", "aux", "console", "COM1"]) == [
        "NUL_",
        "con_.weight",
        "aux_",
        "console",
        "COM1_",
    ]


def test_a_folder_takes_the_place_of_an_empty_one_as_windows_renames(tmp_path, monkeypatch):
    replace = Path.replace

    def windows(self, target):
        if self.is_dir() and Path(target).exists():
            raise PermissionError(13, "Access is denied")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", windows)
    out = tmp_path / "out"
    out.mkdir()
    with new_folder(out) as folder:
        (folder / "a").write_text("1")
    assert (out / "a").read_text() == "1"


def test_a_number_that_is_taken():
    stems = file_stems(["x", "x_2", "x", "x"])
    assert len({stem.lower() for stem in stems}) == 4


def test_long_names_fit_into_a_file_system():
    assert all(len(stem) < 200 for stem in file_stems(["n" * 999, "n" * 998]))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of a file's size")
def test_a_disk_that_is_full_at_the_last_bytes_is_an_error_and_leaves_nothing(tmp_path):
    import resource

    values = np.arange(10, dtype=np.float32)  # 40 bytes behind a header of 128
    before, answer = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (142, before[1]))
    try:
        with pytest.raises(OutputError), new_folder(tmp_path / "out") as folder:
            OutputFolder(folder).save({"y": values}, "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, answer)
    assert not any(tmp_path.iterdir())


def test_files_of_outputs_differ_on_every_file_system(tmp_path):
    writer = OutputFolder(tmp_path)
    values = {name: np.full(1, at) for at, name in enumerate(["a/b", "a_b", "A_B"])}
    files = writer.save(values, "in/x.png")
    assert [int(np.load(tmp_path / file)[0]) for file in files] == [0, 1, 2]
    assert len({file.lower() for file in files}) == 3
    with pytest.raises(DataError, match="both be called"):
        writer.save(values, "in/X.png")


def test_names_of_files_have_slashes_on_windows_too(monkeypatch):
    monkeypatch.setattr(inference, "Path", PureWindowsPath)
    assert inference._stem("more/one.npy[3]") == "more/one_3"
