"""A torch module and its DataLoader in, a quantized ONNX file out. Needs `pip install torch onnxscript`.

python examples/from_pytorch.py
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import detent
from detent.demo import copy_files


class SmallNet(nn.Module):
    """Stands for yours: `torchvision.models.resnet18()`, `timm.create_model(...)`, whatever torch can export."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = nn.functional.avg_pool2d(x + self.body(x), 4)
        return self.head(x.flatten(1))


def digits(folder: Path) -> TensorDataset:
    """Return the labelled digits that come with Detent, as your own dataset would give them: (input, label)."""
    copy_files(folder)
    with (folder / "labelled" / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    pixels = [
        np.asarray(Image.open(folder / "labelled" / "images" / row["file"]).convert("L"), np.float32) for row in rows
    ]
    images = torch.from_numpy(np.stack(pixels)[:, None] / 127.5 - 1)
    return TensorDataset(images, torch.tensor([int(row["label"]) for row in rows]))


def train(module: nn.Module, loader: DataLoader, epochs: int) -> None:
    optimizer = torch.optim.Adam(module.parameters(), 3e-3)
    module.train()
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(images), labels).backward()
            optimizer.step()


def main(folder: Path, epochs: int = 10) -> None:
    torch.manual_seed(0)
    dataset = digits(folder / "digits")
    module = SmallNet()
    train(module, DataLoader(dataset, batch_size=25, shuffle=True), epochs)
    loader = DataLoader(dataset, batch_size=8)
    # The loader gives the samples to calibrate with, and their shape; the module itself stays as it is.
    report = detent.quantize(module, folder / "small_int8.onnx", loader)
    print(report)
    # It gives labels as well: what the file answers, beside the module.
    print(detent.evaluate([module, folder / "small_int8.onnx"], loader))
    # Reports and patterns have the module's own names.
    again = detent.quantize(module, folder / "small_head.onnx", loader, exclude="head")
    print([node.node for node in again.left_float()])


if __name__ == "__main__":
    main(Path(tempfile.mkdtemp(prefix="detent-")))
