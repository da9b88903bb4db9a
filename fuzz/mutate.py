"""Seeded mutations: of bytes, of tokens, and of the messages in a model file."""

from __future__ import annotations

import random
import struct
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
FLOATS = (0.0, -0.0, -1.0, 1e-45, 65504.0, 1e30, 3.4e38, float("nan"), float("inf"), float("-inf"))
OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas()})
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
    if proto.graph.node and rng.random() < 0.15:
        _rewire(proto.graph, rng)
        return bytes(proto.SerializeToString())
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


def _rewire(graph: onnx.GraphProto, rng: random.Random) -> None:
    """Let a node, or the graph, read or write another value of the graph."""
    values = (*graph.input, *graph.output, *graph.initializer)
    names = [value.name for value in values] + [name for node in graph.node for name in (*node.input, *node.output)]
    node = rng.choice(graph.node)
    ends = [each for each in (node.input, node.output) if each]
    with suppress(TypeError, ValueError):  # a name that is no text
        if ends and rng.random() < 0.8:
            end = rng.choice(ends)
            end[rng.randrange(len(end))] = rng.choice(names)
        elif values:
            rng.choice(values).name = rng.choice(names)


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
        setattr(message, name, rng.choice(FLOATS))
    elif isinstance(value, str):
        setattr(message, name, rng.choice(OPERATORS if name == "op_type" and rng.random() < 0.8 else TEXTS))
    elif isinstance(value, bytes):
        with suppress(ValueError):  # a text that is no UTF-8 comes as bytes, and takes only text
            setattr(message, name, _change_numbers(value, rng) if name == "raw_data" else _change_bytes(value, rng))


def _change_numbers(data: bytes, rng: random.Random) -> bytes:
    """Change the numbers of a tensor, or how many there are."""
    if len(data) < 4 or rng.random() < 0.3:
        return _change_bytes(data, rng)
    start = 4 * rng.randrange(len(data) // 4)
    number = struct.pack("<f", rng.choice(FLOATS)) if rng.random() < 0.5 else struct.pack("<i", rng.choice(NUMBERS[:7]))
    return data[:start] + number + data[start + 4 :]


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
        with suppress(ValueError):  # texts that are no UTF-8
            values.extend(order)
