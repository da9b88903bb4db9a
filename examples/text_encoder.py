"""Quantize a sentence encoder. Any iterable of `{input: array}` is calibration data: here, what a tokenizer gives.

python examples/text_encoder.py encoder.onnx sentences.txt tokenizer-folder/
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import detent

Tokenizer = Callable[[str], dict[str, np.ndarray]]


class Sentences:
    """A line of a file is a sample. It is read again for every pass over the data, so it may be of any size."""

    def __init__(self, file: Path, tokenize: Tokenizer) -> None:
        self.file, self.tokenize = file, tokenize

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        with self.file.open(encoding="utf-8") as lines:
            for line in lines:
                yield self.tokenize(line.strip())


def hugging_face(folder: str, length: int = 64) -> Tokenizer:
    from transformers import AutoTokenizer  # type: ignore[import-not-found]

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda text: dict(
        tokenizer(text, padding="max_length", truncation=True, max_length=length, return_tensors="np")
    )


def main(model: str, sentences: str, tokenize: Tokenizer) -> None:
    data = Sentences(Path(sentences), tokenize)
    output = Path(model).with_name(f"{Path(model).stem}_a16w8.onnx")
    report = detent.quantize(model, output, data, "A16W8", smooth=0.5)
    print(report)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(f"Give a model, a file of sentences and a tokenizer:\n{(__doc__ or '').splitlines()[-1]}")
    main(sys.argv[1], sys.argv[2], hugging_face(sys.argv[3]))
