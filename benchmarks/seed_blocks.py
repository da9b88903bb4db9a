"""Code in documents of any make: reStructuredText, Markdown, and the text of a page without markup.

A block is what a reader would copy. It is repaired only as far as a reader would without thinking: a common indentation
is taken away, also where part of the block is indented one column further, and the annotations of a signature that is
printed in the place of a call are removed.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Block:
    document: str
    line: int
    kind: Literal["python", "command"]
    text: str


def blocks_of(path: Path) -> Iterator[Block]:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [*directives(lines), *fences(lines)] or list(bare(lines))
    for line, text in sorted(found):
        if is_python(text):
            yield Block(path.name, line, "python", repaired(text))
        else:
            commands = [part.strip().removeprefix("$ ") for part in text.splitlines() if part.strip()]
            yield from (Block(path.name, line, "command", command) for command in commands)


def directives(lines: list[str]) -> Iterator[tuple[int, str]]:
    """`.. code-block:: language` and what is indented below it."""
    for index, line in enumerate(lines):
        if not re.match(r"\.\. code-block::", line):
            continue
        body = []
        for following in lines[index + 1 :]:
            if following.strip() and not following.startswith(" "):
                break
            body.append(following)
        yield index + 2, textwrap.dedent("\n".join(body)).strip("\n")


def fences(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Between lines of three backticks."""
    start = None
    for index, line in enumerate(lines):
        if not re.match(r"\s*```(?!`)\s*\w*\s*$", line):
            continue
        if start is None:
            start = index
        else:
            yield start + 2, textwrap.dedent("\n".join(lines[start + 1 : index])).strip("\n")
            start = None


def bare(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Paragraphs that happen to be Python: assignments and calls, which prose never is."""
    start = 0
    for index, line in enumerate([*lines, ""]):
        if line.strip():
            continue
        paragraph = "\n".join(lines[start:index])
        if re.search(r"\w\(", paragraph) and is_python(paragraph):
            yield start + 1, paragraph
        start = index + 1


def is_python(text: str) -> bool:
    try:
        tree = ast.parse(repaired(text))
    except SyntaxError:
        return False
    return any(not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call) for node in tree.body)


def repaired(text: str) -> str:
    try:
        ast.parse(text)
    except IndentationError as error:
        return _one_indentation(text, (error.lineno or 1) - 1)
    except SyntaxError:
        return re.sub(r"(\w+)\s*:\s*[a-z]\w*(?=\s*[=,)])", r"\1", text)
    return text


def _one_indentation(text: str, first: int) -> str:
    """The lines from `first` on are indented by as much as that one too far."""
    lines = text.splitlines()
    excess = len(lines[first]) - len(lines[first].lstrip())
    start = next(index for index, line in enumerate(lines) if len(line) - len(line.lstrip()) >= excess and line.strip())
    return "\n".join([*lines[:start], *(line[excess:] if line[:excess].isspace() else line for line in lines[start:])])
