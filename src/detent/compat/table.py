"""The option table as a page of the manual: `python -m detent.compat.table docs/options.md` writes it."""

from __future__ import annotations

import sys
from pathlib import Path

from detent.compat import finetune, mixed
from detent.compat.options import OPTIONS, SECTIONS

_HEAD = f"""# Options of other quantizers

A script written for AMD Quark, vai_q_onnx or onnxruntime's quantizer runs as it is:

```sh
detent run quantize.py model.onnx model_int8.onnx
```

Its `extra_options` ({len(OPTIONS)} names) are *honoured* (a field of the recipe, in brackets, or an argument of
`detent.quantize`), *met* (Detent does that anyway, or never needs it) or *refused* with a message that says what to do
instead. None is ignored: an unknown name is an error, and so is a value that asks for something else than what is done.

This page is written by `python -m detent.compat.table docs/options.md`.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, options in SECTIONS.items():
        parts.append(_section(title, [(option.name, option.verdict, option.says) for option in options]))
    parts.append(_section("FastFinetune, with include_fast_ft=True", finetune.rows()))
    parts.append(_section("AutoMixprecision, with include_auto_mp=True", mixed.rows()))
    return "\n".join(parts)


def _section(title: str, rows: list[tuple[str, str, str]]) -> str:
    lines = [f"| {name} | {verdict} | {says} |" for name, verdict, says in rows]
    return "\n".join([f"## {title}\n", "| option | | |", "|---|---|---|", *lines]) + "\n"


def main(arguments: list[str]) -> None:
    """Write the page to the file that is named."""
    Path(arguments[0]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
