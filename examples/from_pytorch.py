"""A torch module and its DataLoader in, a quantized ONNX file out. Needs `pip install torch onnxscript`.

python examples/from_pytorch.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import detent


class SmallNet(nn.Module):
    """Stands for yours: `torchvision.models.resnet18()`, `timm.create_model(...)`, whatever torch can export."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head((x + self.body(x)).mean((2, 3)))


def main(folder: Path) -> None:
    torch.manual_seed(0)
    images, labels = torch.rand(64, 3, 32, 32), torch.randint(10, (64,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=8)
    module = SmallNet()
    report = detent.quantize(module, folder / "small_int8.onnx", loader)
    print(report)
    # Reports and patterns have the module's own names.
    again = detent.quantize(module, folder / "small_head.onnx", loader, exclude="head")
    print([node.node for node in again.left_float()])


if __name__ == "__main__":
    main(Path(tempfile.mkdtemp(prefix="detent-")))
