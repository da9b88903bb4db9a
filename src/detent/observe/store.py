"""The envelope of Detent's own binary files: what kind of file it is, which version, whether all of it is there.

    magic (16 bytes)  version (4)  length of the body (8)  SHA-256 of all the rest (32)  body (zlib)

The envelope is the same in every version, so a file from a newer Detent can be told from a damaged one. Nothing of the
body is interpreted before the checksum held.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from detent.errors import DataError, OutputError

MOST_BYTES = 1 << 30
"""No body may unpack to more than this: a small file could otherwise ask for all memory."""

_FIELDS = struct.Struct("<16sIQ")
_CHECKSUM = hashlib.sha256().digest_size
_FRONT = _FIELDS.size + _CHECKSUM


@dataclass(frozen=True)
class FileKind:
    """A kind of file: its name in messages, the 16 bytes that it begins with, and the version written today."""

    noun: str
    magic: bytes
    version: int


class NotThisKindError(DataError):
    """The file is something else altogether: not to be read, and not to be overwritten."""


def seal(kind: FileKind, body: bytes, level: int = 6) -> bytes:
    """A file's bytes: the same for the same body. `level` is zlib's."""
    if len(body) > MOST_BYTES:
        raise OutputError(
            f"The {kind.noun} would hold {len(body):,} bytes, more than the {MOST_BYTES:,} that are read back. "
            "Observe fewer tensors."
        )
    packed = zlib.compress(body, level)
    fields = _FIELDS.pack(kind.magic, kind.version, len(packed))
    return fields + hashlib.sha256(fields + packed).digest() + packed


def read_sealed(path: Path, kind: FileKind) -> bytes:
    """The body of a file. Raises DataError that says whether it is missing, foreign, cut short, damaged or newer."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise DataError(f"There is no file {path}.") from None
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from error
    return unseal(data, kind, str(path))


def unseal(data: bytes, kind: FileKind, where: str) -> bytes:
    """The body within a file's bytes; `where` names the file in messages."""
    magic = data[: len(kind.magic)]
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
    if not stream.eof or stream.unused_data:
        raise DataError(f"{where} is refused: its contents do not end where they should, or are beyond 1 GB.")
    return body
