"""The store: the one container of Detent's own files, and the life of a checkpoint in one.

    magic (16 bytes)  version (4)  length of the body (8)  SHA-256 of all the rest (32)  body (zlib)

This envelope is the same in every version, so a file from a newer Detent is not mistaken for a damaged one. Nothing of
the body is interpreted before the checksum held, and no body is ever unpickled. Statistics, the checkpoints of
calibration and refinement, and the record of tuning are such files; each knows its own body.

A file belongs to what it was computed from, and is found again by fingerprints of models and data: short texts that
differ when anything differs that changes what is counted. Statistics are valid only for the model that they were
counted with, and a file name says nothing about that. So the contents are hashed: operators, attributes, connections
and constants; not metadata, doc strings, or the order in which nodes are listed. Values keep their names in the hash,
because statistics are found by them.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from detent.errors import DataError, OutputError

if TYPE_CHECKING:
    import onnx_ir as ir  # reading data does not load onnx

WHOLE_FILE_LIMIT = 1 << 26  # files up to this many bytes are hashed whole

PAGE = 1 << 12  # bytes that are read at once
# Of a larger file, one page of each stride is hashed, so an exchange of that many bytes is always noticed.
PAGE_STRIDE = 1 << 16


class Digest:
    """A hash over a sequence of items. Each goes in with its kind and length, so no two sequences can look the same."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    @property
    def text(self) -> str:
        return self._hash.hexdigest()

    def add(self, *items: str | int | float | None) -> None:
        for item in items:
            encoded = repr(item).encode("utf-8", "backslashreplace")
            self._hash.update(b"v%d:" % len(encoded) + encoded)

    def add_plain(self, value: object) -> None:
        """Add nested lists and dicts of plain values; the order of keys does not matter."""
        self.add(json.dumps(value, sort_keys=True))

    def add_array(self, array: np.ndarray[Any, Any]) -> None:
        """Add an array: type, shape and contents. A contiguous one is not copied."""
        self.add("array", array.dtype.str if array.dtype.kind != "V" else array.dtype.name, *array.shape)
        if array.dtype.hasobject:
            self.add(*(repr(item) for item in array.reshape(-1)))
        else:
            self._hash.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def add_file(self, path: Path) -> None:
        """Add a file's size and contents (of a large one: a page of every stride, and the end). Not its name."""
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.add("file", size)
                if size <= WHOLE_FILE_LIMIT:
                    self._hash.update(file.read())
                    return
                for start in (*range(0, size - PAGE, PAGE_STRIDE), size - PAGE):
                    file.seek(start)
                    self._hash.update(file.read(PAGE))
        except OSError as error:
            raise DataError(f"{path}: this file cannot be read ({error.strerror or error}).") from error


def fingerprint_of(model: ir.Model) -> str:
    """Return the fingerprint of a model. One tensor after the other is read; none is copied."""
    digest = Digest()
    digest.add_plain(dict(model.opset_imports))
    _add_graph(digest, model.graph)
    for key in sorted(model.functions):
        function = model.functions[key]
        digest.add(*key, len(function.attributes))
        digest.add_plain(dict(function.opset_imports))
        for name in sorted(function.attributes):
            _add_attribute(digest, function.attributes[name])
        _add_body(digest, function)
    return digest.text


def _add_graph(digest: Digest, graph: ir.Graph) -> None:
    digest.add(len(graph.inputs), len(graph.initializers))
    for value in graph.inputs:
        digest.add(value.name, str(value.dtype), str(value.shape))
    for name in sorted(graph.initializers):
        digest.add(name)
        _add_tensor(digest, graph.initializers[name].const_value)
    _add_body(digest, graph)


def _add_body(digest: Digest, graph: ir.Graph | ir.Function) -> None:
    """Add the nodes, in an order that does not depend on how they were listed."""
    _add_values(digest, graph.inputs)
    _add_values(digest, graph.outputs)
    digest.add(len(graph))
    for node in sorted(graph, key=lambda node: [str(value.name) for value in node.outputs]):
        digest.add(node.domain, node.op_type, node.overload, len(node.attributes))
        _add_values(digest, node.inputs)
        _add_values(digest, node.outputs)
        for name in sorted(node.attributes):
            _add_attribute(digest, node.attributes[name])


def _add_values(digest: Digest, values: Sequence[ir.Value | None]) -> None:
    digest.add(len(values), *(None if value is None else value.name for value in values))


def _add_attribute(digest: Digest, attribute: ir.Attr) -> None:
    digest.add(attribute.name, str(attribute.type), attribute.ref_attr_name)
    if attribute.is_ref() or attribute.value is None:
        return
    add = _ATTRIBUTE_PARTS.get(attribute.type.name)
    if add is None:
        digest.add(repr(attribute.value))
        return
    several = attribute.type.name in ("TENSORS", "GRAPHS")
    parts: Sequence[Any] = attribute.value if several else (attribute.value,)
    digest.add(len(parts))
    for part in parts:
        add(digest, part)


def _add_tensor(digest: Digest, tensor: ir.TensorProtocol | None) -> None:
    if tensor is None:
        digest.add(None)
    else:
        digest.add(str(tensor.dtype))
        digest.add_array(tensor.numpy())


_ATTRIBUTE_PARTS: Mapping[str, Callable[[Digest, Any], None]] = {
    "TENSOR": _add_tensor,
    "TENSORS": _add_tensor,
    "GRAPH": _add_graph,
    "GRAPHS": _add_graph,
}


T = TypeVar("T")

MOST_BYTES = 1 << 30  # no body may unpack to more than this: a small file could otherwise ask for all memory

_FIELDS = struct.Struct("<16sIQ")
_CHECKSUM = hashlib.sha256().digest_size
_FRONT = _FIELDS.size + _CHECKSUM


@dataclass(frozen=True)
class FileKind:
    """A kind of file: its name in messages, the 16 bytes that it begins with, and the version written today."""

    noun: str
    magic: bytes
    version: int


STATISTICS = FileKind("statistics file", b"\x89DetentStats\r\n\x1a\n", 2)
CALIBRATION = FileKind("checkpoint", b"\x89DetentCkpnt\r\n\x1a\n", 1)
REFINEMENT = FileKind("checkpoint of a refinement", b"\x89DetentRefin\r\n\x1a\n", 1)
TUNING = FileKind("record of tuning", b"\x89DetentTuned\r\n\x1a\n", 1)

FAST = 1  # zlib's level for a file that is written while others work, and thrown away in the end


class NotThisKindError(DataError):
    """The file is something else altogether: not to be read, and not to be overwritten."""


def seal(kind: FileKind, body: bytes, level: int = 6) -> bytes:
    """Return a file's bytes: the same for the same body. `level` is zlib's."""
    if len(body) > MOST_BYTES:
        raise OutputError(
            f"The {kind.noun} would hold {len(body):,} bytes, more than the {MOST_BYTES:,} that are read back. "
            "Observe fewer tensors."
        )
    packed = zlib.compress(body, level)
    fields = _FIELDS.pack(kind.magic, kind.version, len(packed))
    return fields + hashlib.sha256(fields + packed).digest() + packed


def write_sealed(path: Path, kind: FileKind, body: bytes, level: int = 6) -> None:
    """Write a file, complete or not at all. Raise OutputError."""
    from detent.graph.save import write_bytes  # with it comes onnx, which readers of data do without

    write_bytes(seal(kind, body, level), path)


def read_sealed(path: Path, kind: FileKind) -> bytes:
    """Return the body of a file. Raise DataError if it is missing, foreign, cut short, damaged or newer."""
    try:
        with path.open("rb") as file:
            # One byte more than allowed, so that a file which is too large fails its checksum instead of filling the
            # memory.
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise DataError(f"There is no file {path}.") from None
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from error
    return unseal(data, kind, str(path))


def unseal(data: bytes, kind: FileKind, where: str) -> bytes:
    """Return the body within a file's bytes; `where` names the file in messages."""
    magic = data[: len(kind.magic)]
    # A file that ends within the magic bytes was cut short; anything else belongs to somebody else and must not be
    # replaced.
    if magic != kind.magic and not (data and kind.magic.startswith(data)):
        raise NotThisKindError(f"{where} is not a {kind.noun} of Detent.")
    expected = _FRONT + (_FIELDS.unpack_from(data)[2] if len(data) >= _FIELDS.size else 0)
    if len(data) < max(expected, _FRONT):
        wanted = f" of {expected:,}" if len(data) >= _FIELDS.size else ""
        raise DataError(f"{where} is cut short: it ends after {len(data):,}{wanted} bytes. Copy or make it again.")
    fields, checksum, packed = data[: _FIELDS.size], data[_FIELDS.size : _FRONT], data[_FRONT:]
    if hashlib.sha256(fields + packed).digest() != checksum:
        raise DataError(f"{where} is damaged: its checksum does not fit. Copy or make it again.")
    version = _FIELDS.unpack(fields)[1]
    if version > kind.version:
        raise DataError(
            f"{where} was written by a newer Detent (format {version}; this one reads up to {kind.version}). "
            "Update Detent, or make the file again."
        )
    return _unpack(packed, where)


def _unpack(packed: bytes, where: str) -> bytes:
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(packed, MOST_BYTES)
    except zlib.error as error:
        raise DataError(f"{where} is damaged: {error}. Copy or make it again.") from error
    # A few kB of zlib can unpack to gigabytes: stop at the limit, and take nothing that follows the stream either.
    if not stream.eof or stream.unused_data:
        raise DataError(f"{where} is refused: its contents do not end where they should, or are beyond 1 GB.")
    return body


@dataclass
class CheckpointFile:
    """The file of unfinished work: taken over by the next run, replaced as work proceeds, removed at the end.

    Trouble with it never stops the work: `notes` collects what the user should know. Only a foreign file in its place
    is an error. `work` ("Calibration") and `restart` ("all samples are counted") are parts of the notes.
    """

    path: Path
    kind: FileKind
    work: str
    restart: str
    notes: list[str] = field(default_factory=list)
    _given_up: bool = False

    def read(self, unpack: Callable[[bytes, str], T]) -> T | None:
        """Return what an earlier run left, if any. Raise OutputError if a foreign file is there."""
        if not self.path.exists():
            return None
        try:
            return unpack(read_sealed(self.path, self.kind), str(self.path))
        except NotThisKindError as error:
            raise OutputError(f"{error} It is in the way of one: move it, or give another output.") from error
        except DataError as error:
            self.notes.append(f"The checkpoint of an earlier run cannot be used, so {self.restart}. {error}")
            return None

    def ignore(self, of: str) -> None:
        """Note that what was read belongs to other work."""
        self.notes.append(f"The checkpoint {self.path} is of {of}: it is ignored, and {self.restart}.")

    def write(self, pack: Callable[[], bytes]) -> None:
        """Replace the file. If that fails, note it once and let the work go on without a checkpoint."""
        if self._given_up:
            return
        try:
            # A full disk must not end a calibration of an hour that would have succeeded.
            write_sealed(self.path, self.kind, pack(), FAST)
        except (DataError, OutputError) as error:
            self._given_up = True
            self.notes.append(f"{self.work} could not have been continued after an interruption. {error}")

    def remove(self) -> None:
        """Remove the file, of this run or one that was ignored: the work is complete."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            self.notes.append(f"Cannot remove the checkpoint {self.path}: {error.strerror}.")
