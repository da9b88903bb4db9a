"""Write the page on options of other quantizers from the tables that apply them: python -m tools.option_page FILE"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from detent.compat.algorithms import FAST_FINETUNE
from detent.compat.auto_mixprecision import AUTO_MIXPRECISION
from detent.compat.option_rows import Option
from detent.compat.table import OPTIONS, SECTIONS

_HEAD = f"""# Options of other quantizers

A script written for AMD Quark, vai_q_onnx or onnxruntime's quantizer runs as it is:

```sh
detent run quantize.py model.onnx model_int8.onnx
```

Its `extra_options` ({len(OPTIONS)} names) are *honoured* (a field of the recipe, in brackets, or an argument of
`detent.quantize`), *met* (Detent does that anyway, or never needs it), *noted* (the file is right without it, and a
line says what is not done) or *refused* with a message that says what to do instead. None is ignored silently: an
unknown name is noted with the nearest one, and so is a value that has no effect beside the rest of the configuration.

This page is written by `python -m tools.option_page docs/options.md`.
"""

_EQUALIZATION = """`include_cle=True` alone equalizes [all layers at once](accuracy.md#equalization), which loses less.
A script that gives any CLE option (but CLEBalanceMethod), be it the default, gets the equalization of the other tools,
[layer by layer](accuracy.md#layer-by-layer); so does one that lists CLEConfig. With `include_cle=False` none is done.
"""

_NOTES = {"Accuracy": [_EQUALIZATION]}


def page() -> str:
    """Return the whole page."""
    sections: dict[str, Iterable[Option]] = {
        **SECTIONS,
        "FastFinetune, with include_fast_ft=True": FAST_FINETUNE.values(),
        "AutoMixprecision, with include_auto_mp=True": AUTO_MIXPRECISION.values(),
    }
    parts = [_HEAD]
    for title, options in sections.items():
        rows = [f"| {option.name} | {option.verdict} | {option.says} |" for option in options]
        parts.append("\n".join([f"## {title}\n", *_NOTES.get(title, ()), "| option | | |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def main(arguments: list[str]) -> None:
    """Write the page to the file that is named."""
    Path(arguments[0]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
