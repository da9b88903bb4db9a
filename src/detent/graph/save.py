"""Writing a model: complete or not at all, and the same bytes for the same model.

A file is written under a temporary name in the same folder, flushed to the disk and renamed. Past 2 GB (the limit of
a protobuf message) the weights go into `<name>.data` beside it; then the old model is removed before the new data
takes its name, so that at no moment a model refers to data that is not its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import secrets
import shutil
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import onnx
import onnx_ir as ir

from detent.errors import OutputError
from detent.graph.file_kinds import DATA_KINDS

PROTOBUF_LIMIT = 2**31 - 2**24  # a protobuf message ends at 2 GiB; keep room for everything but the tensors

# Seconds to wait before trying again to take a name that another process holds.
WAITS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8) if sys.platform == "win32" else ()


def tensor_bytes(model: ir.Model) -> int:
    """Return the bytes of all initializers, those of nested graphs included."""
    return sum(
        value.const_value.nbytes
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    )


def check_output(output: Path, *inputs: object) -> None:
    """Refuse, before any work is done, an output that could not be written or that would destroy one of `inputs`."""
    try:
        if output.is_dir():
            raise OutputError(f"The output {output} is a folder. Give the name of a file in it, or another one.")
        if output.exists() and not output.is_file():
            raise OutputError(f"The output {output} is a device or a pipe. Give a file name.")
        for other in inputs:
            if isinstance(other, str | Path) and _same_file(output, Path(other)):
                also = "a file that this command reads or writes" if Path(other) == output else str(other)
                raise OutputError(f"The output {output} would overwrite {also}. Give another name.")
        if output.exists() and (kind := DATA_KINDS.get(output.suffix.lower())):
            raise OutputError(f"The output {output} would overwrite {kind[0]}. Give another name. {kind[1]}")
        if not output.parent.is_dir():
            is_file = output.parent.exists()
            wrong, remedy = ("is a file", "Give another name.") if is_file else ("does not exist", "Create it first.")
            raise OutputError(f"The folder {output.parent} of the output {wrong}. {remedy}")
        with scratch_folder(output.resolve()):
            pass
    except OSError as error:
        raise OutputError(f"Cannot write {output}: {error.strerror}. Give another output.") from error
    except RuntimeError:  # of resolve(), before Python 3.13
        raise OutputError(f"Cannot write {output}: it is a link to itself. Give another output.") from None


def _same_file(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))


def save(model: ir.Model, path: Path) -> int:
    """Write `model` to `path`, complete or not at all; returns the bytes written. A link is followed, not replaced."""
    return save_together([(model, path)])[0]


def save_together(models: Sequence[tuple[ir.Model, Path]]) -> list[int]:
    """Write several models, all of them complete or none; returns the bytes of each."""
    sizes: list[int] = []
    with ExitStack() as stack:
        staged: list[tuple[Path, list[Path]]] = []
        for model, given in models:
            path = given.resolve()
            with output_errors(path):
                files = _stage(model, path, stack.enter_context(scratch_folder(path)))
                sizes.append(sum(file.stat().st_size for file in files))
            staged.append((path, files))
        moved: list[tuple[Path, Path | None]] = []
        for number, (path, files) in enumerate(staged):
            with output_errors(path):
                try:
                    _move(files, path, moved, keep=number + 1 < len(staged))
                except (OSError, KeyboardInterrupt):
                    for place, before in reversed(moved):
                        place.unlink(missing_ok=True)
                        if before is not None:
                            replace_file(before, place)
                    raise
    return sizes


def _stage(model: ir.Model, path: Path, folder: Path) -> list[Path]:
    """Write a model into a folder beside its place; returns its files, the model itself last."""
    temporary = folder / path.name
    if tensor_bytes(model) > PROTOBUF_LIMIT:
        ir.save(model, temporary, external_data=f"{path.name}.data")
    else:
        temporary.write_bytes(serialize(complete_proto(model)))
    written = sorted(folder.iterdir(), key=lambda file: file == temporary)
    for file in written:
        _flush(file)
    return written


def _move(files: Sequence[Path], path: Path, moved: list[tuple[Path, Path | None]], *, keep: bool) -> None:
    """Put files into their places; add these to `moved`, with what was there before if that is to be kept for now."""
    if len(files) > 1 and not keep:
        path.unlink(missing_ok=True)
    for file in files:
        place = path.parent / file.name
        before = file.with_name(f"{file.name}.before")
        try:
            if keep:
                replace_file(place, before)
                moved.append((place, before))  # at once: if the next step fails, what was there goes back
        except FileNotFoundError:
            pass  # there is none, or another process that writes the same files has just moved it
        replace_file(file, place)
        if (place, before) not in moved:
            moved.append((place, None))


def write_text(text: str, path: Path) -> None:
    """Write a text file, complete or not at all."""
    write_bytes(text.encode(), path)


def write_bytes(data: bytes, path: Path) -> None:
    """Write a file, complete or not at all. A link is followed, not replaced."""
    path = path.resolve()
    with output_errors(path), scratch_folder(path) as folder:
        temporary = folder / path.name
        temporary.write_bytes(data)
        _flush(temporary)
        replace_file(temporary, path)


def complete_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the model as one message that needs no other file. Only for models below PROTOBUF_LIMIT."""
    return ir.to_proto(ir.external_data.load_to_model(model))


def serialize(proto: onnx.ModelProto) -> bytes:
    """Return the model's bytes, with maps in a fixed order."""
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Make a folder on the same file system as `path`, gone afterwards whatever happens.

    Except if this process is killed: then the next one that writes to `path` removes it.
    """
    _remove_orphans(path)
    # Named before it exists, so that it can be found again.
    folder = path.parent / f".{path.name}.{_HOST}-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        folder.mkdir()  # with no mode: on Windows 0o700 would lock out the services that scan new files
        yield folder
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        except KeyboardInterrupt:  # the second Ctrl-C is ignored, so this goes through
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _host() -> str:
    """Return a mark of what numbers processes: a machine, or a container of it. Folders may be shared between them."""
    marks = [platform.node()]
    with suppress(OSError):  # where there is no Linux
        marks += [Path("/proc/sys/kernel/random/boot_id").read_text(), str(Path("/proc/self/ns/pid").stat().st_ino)]
    return f"{zlib.crc32(' '.join(marks).encode()):08x}"


_HOST = _host()


def _remove_orphans(path: Path) -> None:
    """Remove the scratch folders of processes of this machine that wrote to `path` and have ended."""
    start = f".{path.name}.{_HOST}-"
    try:
        names = [entry.name for entry in os.scandir(path.parent) if entry.name.startswith(start)]
    except OSError:
        return  # making the folder says what is wrong
    for name in names:
        number = name.removeprefix(start).partition("-")[0]
        if number.isdecimal() and _has_ended(int(number)):
            shutil.rmtree(path.parent / name, ignore_errors=True)


_MAY_ASK, _NO_SUCH_PROCESS = 0x1000, 87  # Windows' numbers: of the right to ask after a process, and of an answer


def _has_ended(process: int) -> bool:
    """Tell whether no process has this number."""
    if sys.platform == "win32":  # os.kill would end it
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        handle = kernel.OpenProcess(_MAY_ASK, False, process)
        if handle:
            kernel.CloseHandle(handle)
        return not handle and ctypes.get_last_error() == _NO_SUCH_PROCESS
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False  # somebody else's
    return False


@contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn what goes wrong with files in the block into an OutputError that names `path`."""
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
        raise OutputError(f"Cannot write {path}: {reason}. No part of it was left behind.") from error


def replace_file(source: Path, place: Path) -> None:
    """Rename a file, onto another if there is one.

    On Windows a name that a virus scanner, an indexer or a viewer has open cannot be replaced. They let go within a
    moment, so try for a second or two.
    """
    for wait in WAITS:
        try:
            source.replace(place)
        except PermissionError:
            time.sleep(wait)
        else:
            return
    source.replace(place)


def _flush(file: Path) -> None:
    with file.open("r+b") as handle:  # Windows flushes only what is open for writing
        os.fsync(handle.fileno())
