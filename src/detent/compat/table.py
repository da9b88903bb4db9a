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

_EQUALIZATION = """`include_cle=True` alone equalizes [all layers at once](accuracy.md#equalization), which loses less.
A script that gives any CLE option (but CLEBalanceMethod), be it the default, gets the equalization of the other tools,
[layer by layer](accuracy.md#layer-by-layer); so does one that lists CLEConfig. With `include_cle=False` none is done.
"""

_NOTES = {"Accuracy": _EQUALIZATION}


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, options in SECTIONS.items():
        known = [(option.name, str(option.verdict), option.says) for option in options]
        parts.append(_section(title, known, _NOTES.get(title, "")))
    parts.append(_section("FastFinetune, with include_fast_ft=True", finetune.rows()))
    parts.append(_section("AutoMixprecision, with include_auto_mp=True", mixed.rows()))
    return "\n".join(parts)


def _section(title: str, rows: list[tuple[str, str, str]], note: str = "") -> str:
    lines = [f"| {name} | {verdict} | {says} |" for name, verdict, says in rows]
    above = [note] if note else []
    return "\n".join([f"## {title}\n", *above, "| option | | |", "|---|---|---|", *lines]) + "\n"


def main(arguments: list[str]) -> None:
    """Write the page to the file that is named."""
    Path(arguments[0]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
