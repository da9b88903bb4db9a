"""Seeded mutations: of bytes, of tokens, and of the messages in a model file."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import onnx
from google.protobuf.message import DecodeError, Message

NUMBERS = (0, 1, -1, 2, 7, 127, 255, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63))
TOKENS = (
    *(b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"nan", b"inf", b"-1", b"1e999", b"9" * 40, b"[" * 3000, b"{" * 50),
    *(b'"', b"'", b",", b"\n", b"\r", b"=", b"null", b"true", b"[]", b"{}", b"\\u0000", b"../", b"a" * 5000),
    *(b"(" * 300, b"'''", b"#", b"\xd8\x00", b"0x", b"1_000", b"1979-05-27"),
)
TEXTS = ("", "x", "\0", "../../x", "é" * 300, "ai.onnx", "com.microsoft", "Conv", "Loop", "If", "QuantizeLinear")


def mutate(data: bytes, rng: random.Random, *, model: bool = False) -> bytes:
    """Return the data with one to four changes."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = (_change_message if model and rng.random() < 0.8 else _change_bytes)(data, rng)
    return data


def _change_bytes(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((0, 1, 1, 2, 4, 16, 200)))
    kind = rng.randrange(5)
    if kind == 0:
        return data[:start] + bytes(rng.randrange(256) for _ in range(end - start or 1)) + data[end:]
    if kind == 1:
        return data[:start] + data[end:]
    if kind == 2:
        return data[:start]
    if kind == 3:
        return data[:end] + data[start:]
    return data[:start] + rng.choice(TOKENS) + data[end:]


def _change_message(data: bytes, rng: random.Random) -> bytes:
    """Change one field, anywhere in the message."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        return _change_bytes(data, rng)
    message: Message = proto
    while True:
        fields = message.ListFields()
        if not fields:
            break
        field, value = rng.choice(fields)
        inner = list(value) if _is_repeated(value) else [value]
        messages = [each for each in inner if isinstance(each, Message)]
        if messages and rng.random() < 0.85:
            message = rng.choice(messages)
            continue
        _change_field(message, field.name, value, rng)
        break
    try:
        return proto.SerializeToString()
    except ValueError:  # a text that is no text
        return data


def _is_repeated(value: Any) -> bool:
    return hasattr(value, "append") or hasattr(value, "add")


def _change_field(message: Message, name: str, value: Any, rng: random.Random) -> None:
    if _is_repeated(value):
        _change_list(value, rng)
    elif rng.random() < 0.2 or isinstance(value, Message):
        message.ClearField(name)
    elif isinstance(value, bool):
        setattr(message, name, not value)
    elif isinstance(value, int):
        _assign(message, name, rng.choice(NUMBERS), value)
    elif isinstance(value, float):
        setattr(message, name, rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e30)))
    elif isinstance(value, str):
        setattr(message, name, rng.choice(TEXTS))
    elif isinstance(value, bytes):
        with suppress(ValueError):  # a text that is no UTF-8 comes as bytes, and takes only text
            setattr(message, name, _change_bytes(value, rng))


def _assign(message: Message, name: str, number: int, before: int) -> None:
    try:
        setattr(message, name, number)
    except ValueError:  # 32 bits, or an enumeration
        setattr(message, name, before ^ 1)


def _change_list(values: Any, rng: random.Random) -> None:
    items = list(values)
    kind = rng.randrange(3)
    at = rng.randrange(len(items))
    if kind == 0:
        del values[at]
    elif kind == 1:
        values.append(items[at])
    else:
        order = rng.sample(items, len(items))
        number = isinstance(items[0], int) and not isinstance(items[0], bool)
        order[at] = rng.choice(NUMBERS[:6]) if number else order[at]
        del values[:]
        values.extend(order)
