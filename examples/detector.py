"""Quantize a detector such as YOLOv8. What decodes boxes and scores is found, and becomes a file for the CPU.

python examples/detector.py yolov8n.onnx images/
"""

from __future__ import annotations

import sys
from pathlib import Path

import detent


def main(arguments: list[str]) -> None:
    if len(arguments) != 2:
        sys.exit(f"Give a model and a folder of images:\n{(__doc__ or '').splitlines()[-1]}")
    model, images = arguments
    body, tail = (Path(model).with_name(f"{Path(model).stem}_{part}.onnx") for part in ("body", "tail"))
    # Letterboxing and scaling are taken from the file's metadata, which Ultralytics' exporter writes.
    parts = detent.split(model, body, tail)
    print(parts)
    quantized = body.with_name(f"{body.stem}_int8.onnx")
    report = detent.quantize(body, quantized, images)  # with SiLU inside it is A8W8; device="phx" makes it XINT8
    print(report)
    # Both parts as one model again: what the quantized body and the float tail answer together.
    print(detent.evaluate([model, quantized], images, tail=tail, no_labels=True))


if __name__ == "__main__":
    main(sys.argv[1:])
