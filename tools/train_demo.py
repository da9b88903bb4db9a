"""Train the demo digit classifier and write it, with its labelled images, into src/detent/demo.

Install: python -m pip install torch scikit-learn onnx onnxruntime pillow numpy
Run:     python tools/train_demo.py

A development tool: the product ships only what this writes. The network is deliberately a small relative of the
mobile networks people deploy (depthwise convolutions, ReLU6, a residual Add, a Concat, average pooling, BatchNorm left
unfolded), so quantizing the demo goes through the same steps as quantizing a real model. The images are the 8x8 digits
that come with scikit-learn, enlarged, so nothing has to be downloaded.

Every seed is fixed and training runs on one thread: the same library versions on the same kind of processor write the
same bytes. Other versions may round differently and so give slightly different weights.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

DEMO = Path(__file__).resolve().parents[1] / "src" / "detent" / "demo"
SEED = 20
SIZE = 32
CLASSES = 10
CALIBRATION_COUNT = 64
EVALUATION_COUNT = 400
EPOCHS = 40
BATCH = 64
PEAK_RATE = 4e-3
MAX_SHIFT = 2
GAIN_SPREAD = 0.6
OPSET = 17
IR_VERSION = 8
TOLERANCE = 1e-4

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """Images as [count, SIZE, SIZE] bytes, with the digit each one shows."""

    pixels: Pixels
    labels: Labels


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of the training pixels, on the 0..255 scale."""

    mean: float
    std: float

    def apply(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        """Return the [count, 1, SIZE, SIZE] float32 network input for `pixels`."""
        scaled = (pixels.astype(np.float32) - np.float32(self.mean)) / np.float32(self.std)
        return scaled[:, np.newaxis]


@dataclass
class GraphBuilder:
    """Collects ONNX nodes and initializers while the network's modules write themselves out in order."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def tensor(self, name: str, value: Tensor) -> str:
        """Store `value` as a float32 initializer, once per name, and return the name."""
        array = value.detach().numpy().astype(np.float32)
        self.initializers.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, name: str, inputs: list[str], **attributes: object) -> str:
        """Append a node and return the name of its one output."""
        output = f"{name}/output"
        self.nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        return output


class ConvUnit(nn.Module):
    """Convolution and BatchNorm, then ReLU6 unless the unit is a linear projection."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, relu6: bool = True):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(outputs)
        self.relu6 = relu6
        # Networks trained for long end up with channels of quite different ranges. A short training does not get there
        # alone, so the BatchNorm gains start out spread. How far was chosen by trying a few values: quantizing costs a
        # little accuracy, as it does for real networks, and not a lot.
        nn.init.normal_(self.bn.weight, 0.0, GAIN_SPREAD)
        with torch.no_grad():
            self.bn.weight.exp_()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the unit."""
        x = self.bn(self.conv(x))
        return functional.relu6(x) if self.relu6 else x

    def emit(self, graph: GraphBuilder, name: str, x: str) -> str:
        """Write Conv, BatchNormalization and Clip nodes; return the output's name."""
        conv, bn = self.conv, self.bn
        x = graph.node(
            "Conv",
            f"{name}/conv",
            [x, graph.tensor(f"{name}/conv/weight", conv.weight)],
            kernel_shape=list(conv.kernel_size),
            strides=list(conv.stride),
            pads=list(conv.padding) * 2,
            dilations=[1, 1],
            group=conv.groups,
        )
        statistics = {"scale": bn.weight, "bias": bn.bias, "mean": bn.running_mean, "var": bn.running_var}
        parameters = [graph.tensor(f"{name}/bn/{key}", value) for key, value in statistics.items()]
        x = graph.node("BatchNormalization", f"{name}/bn", [x, *parameters], epsilon=bn.eps)
        if not self.relu6:
            return x
        bounds = [graph.tensor("relu6/min", torch.tensor(0.0)), graph.tensor("relu6/max", torch.tensor(6.0))]
        return graph.node("Clip", f"{name}/relu6", [x, *bounds])


class InvertedResidual(nn.Module):
    """Expand with 1x1, filter with a depthwise 3x3, project with a linear 1x1; add the input where shapes allow."""

    def __init__(self, inputs: int, expanded: int, outputs: int, stride: int = 1):
        super().__init__()
        self.expand = ConvUnit(inputs, expanded, 1)
        self.depthwise = ConvUnit(expanded, expanded, 3, stride, groups=expanded)
        self.project = ConvUnit(expanded, outputs, 1, relu6=False)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y

    def emit(self, graph: GraphBuilder, name: str, x: str) -> str:
        """Write the three units and the Add; return the output's name."""
        y = self.expand.emit(graph, f"{name}/expand", x)
        y = self.depthwise.emit(graph, f"{name}/depthwise", y)
        y = self.project.emit(graph, f"{name}/project", y)
        return graph.node("Add", f"{name}/add", [x, y]) if self.residual else y


class PooledConcat(nn.Module):
    """Halve the image along two branches, a strided depthwise-separable one and an averaging one, and concatenate.

    The branches' ranges differ, which is what makes a Concat interesting to quantize.
    """

    def __init__(self, inputs: int, filtered: int, pooled: int):
        super().__init__()
        self.depthwise = ConvUnit(inputs, inputs, 3, stride=2, groups=inputs)
        self.pointwise = ConvUnit(inputs, filtered, 1)
        self.pooled = ConvUnit(inputs, pooled, 1, relu6=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both branches."""
        return torch.cat([self.pointwise(self.depthwise(x)), self.pooled(functional.avg_pool2d(x, 2))], dim=1)

    def emit(self, graph: GraphBuilder, name: str, x: str) -> str:
        """Write both branches and the Concat; return the output's name."""
        left = self.depthwise.emit(graph, f"{name}/left/depthwise", x)
        left = self.pointwise.emit(graph, f"{name}/left/pointwise", left)
        right = graph.node("AveragePool", f"{name}/right/pool", [x], kernel_shape=[2, 2], strides=[2, 2])
        right = self.pooled.emit(graph, f"{name}/right/pointwise", right)
        return graph.node("Concat", f"{name}/concat", [left, right], axis=1)


class DigitNet(nn.Module):
    """The demo network: 32x32 grey image in, ten logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleDict(
            {
                "stem": ConvUnit(1, 16, 3, stride=2),
                "block1": InvertedResidual(16, 32, 16),
                "block2": InvertedResidual(16, 48, 24, stride=2),
                "mix": PooledConcat(24, 24, 16),
                "block3": InvertedResidual(40, 96, 40),
                "head": ConvUnit(40, 64, 1),
            }
        )
        self.gemm = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        for stage in self.stages.values():
            x = stage(x)
        return self.gemm(x.mean((2, 3)))

    def emit(self, graph: GraphBuilder, x: str) -> str:
        """Write the whole network; return the name of the logits."""
        for name, stage in self.stages.items():
            x = stage.emit(graph, name, x)
        x = graph.node("GlobalAveragePool", "head/pool", [x])
        x = graph.node("Flatten", "head/flatten", [x], axis=1)
        weight = graph.tensor("head/gemm/weight", self.gemm.weight)
        bias = graph.tensor("head/gemm/bias", self.gemm.bias)
        return graph.node("Gemm", "head/gemm", [x, weight, bias], transB=1)


def load_samples() -> tuple[Samples, Samples, Samples]:
    """Return training, calibration and evaluation samples: disjoint, each with every digit in proportion."""
    digits = load_digits()
    small = np.rint(digits.images * (255.0 / 16.0)).astype(np.uint8)
    pixels = np.stack([np.asarray(Image.fromarray(s).resize((SIZE, SIZE), Image.Resampling.BILINEAR)) for s in small])
    labels = digits.target.astype(np.int64)
    rest, evaluation = train_test_split(
        np.arange(len(labels)), test_size=EVALUATION_COUNT, random_state=SEED, stratify=labels
    )
    training, calibration = train_test_split(
        rest, test_size=CALIBRATION_COUNT, random_state=SEED, stratify=labels[rest]
    )
    assert len({*training, *calibration, *evaluation}) == len(labels)
    first, second, third = (Samples(pixels[chosen], labels[chosen]) for chosen in (training, calibration, evaluation))
    return first, second, third


def augment(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each [SIZE, SIZE] image by up to MAX_SHIFT pixels over black."""
    count = len(pixels)
    padded = functional.pad(pixels, [MAX_SHIFT] * 4)
    top, left = torch.randint(0, 2 * MAX_SHIFT + 1, (2, count), generator=generator)
    rows = (top[:, None] + torch.arange(SIZE))[:, :, None]
    columns = (left[:, None] + torch.arange(SIZE))[:, None, :]
    return padded[torch.arange(count)[:, None, None], rows, columns]


def train(samples: Samples, normalisation: Normalisation) -> DigitNet:
    """Train for a fixed number of epochs and return the final network, never chosen by looking at other images."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    pixels, labels = torch.from_numpy(samples.pixels).float(), torch.from_numpy(samples.labels)
    network = DigitNet()
    steps = len(labels) // BATCH
    optimizer = torch.optim.AdamW(network.parameters(), lr=PEAK_RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=EPOCHS * steps)
    for epoch in range(1, EPOCHS + 1):
        total = 0.0
        for chosen in torch.randperm(len(labels), generator=generator)[: steps * BATCH].split(BATCH):
            images = (augment(pixels[chosen], generator) - normalisation.mean) / normalisation.std
            loss = functional.cross_entropy(network(images[:, None]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        if epoch % 10 == 0:
            print(f"epoch {epoch:3d}  training loss {total / steps:.4f}")
    return network.eval()


def build_model(network: DigitNet) -> onnx.ModelProto:
    """Return the checked ONNX form of the trained network, its BatchNorm nodes not folded."""
    graph = GraphBuilder()
    logits = network.emit(graph, "image")
    assert graph.nodes[-1].output[0] == logits
    graph.nodes[-1].output[0] = "logits"
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "digits",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, SIZE, SIZE])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])],
            list(graph.initializers.values()),
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="detent-demo",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def run_model(model: Path, inputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the logits onnxruntime computes for `inputs`."""
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"image": inputs})[0]


def write_images(folder: Path, samples: Samples) -> list[str]:
    """Replace the PNG files in `folder` with `samples` and return their names in order."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.png"):
        stale.unlink()
    names = [f"{index:03d}.png" for index in range(len(samples.pixels))]
    for name, pixels in zip(names, samples.pixels, strict=True):
        Image.fromarray(pixels).save(folder / name, optimize=True)
    return names


def write_labels(path: Path, names: list[str], labels: Labels) -> None:
    """Write the digit each evaluation image shows."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["file", "label"])
        writer.writerows(zip(names, labels.tolist(), strict=True))


def shipped_accuracy() -> float:
    """Return the float accuracy measured from the written files alone, the way a user of the demo would get it."""
    settings = json.loads((DEMO / "preprocess.json").read_text(encoding="utf-8"))
    with (DEMO / "labels.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    pixels = np.stack([np.asarray(Image.open(DEMO / "images" / row["file"])) for row in rows])
    inputs = Normalisation(settings["mean"][0], settings["std"][0]).apply(pixels)
    guesses = run_model(DEMO / "digits.onnx", inputs).argmax(axis=1)
    return float(np.mean(guesses == np.array([int(row["label"]) for row in rows])))


def main() -> None:
    """Train, write every demo file, and report what was written."""
    training, calibration, evaluation = load_samples()
    normalisation = Normalisation(round(float(training.pixels.mean()), 2), round(float(training.pixels.std()), 2))
    network = train(training, normalisation)

    model_path = DEMO / "digits.onnx"
    onnx.save(build_model(network), model_path)
    inputs = normalisation.apply(evaluation.pixels)
    with torch.no_grad():
        expected = network(torch.from_numpy(inputs)).numpy()
    difference = float(np.abs(run_model(model_path, inputs) - expected).max())
    assert difference < TOLERANCE, f"onnxruntime and torch differ by {difference}"

    settings = {"size": SIZE, "order": "GRAY", "mean": [normalisation.mean], "std": [normalisation.std]}
    (DEMO / "preprocess.json").write_text(json.dumps(settings) + "\n", encoding="utf-8")
    write_images(DEMO / "calibration", calibration)
    write_labels(DEMO / "labels.csv", write_images(DEMO / "images", evaluation), evaluation.labels)

    size = sum(path.stat().st_size for path in DEMO.rglob("*") if path.suffix in {".onnx", ".json", ".csv", ".png"})
    print(f"parameters           {sum(p.numel() for p in network.parameters())}")
    print(f"digits.onnx          {model_path.stat().st_size} bytes")
    print(f"all demo files       {size} bytes")
    print(f"torch / onnxruntime  {difference:.2e} largest difference")
    print(f"float accuracy       {shipped_accuracy():.2%} of {len(evaluation.labels)} evaluation images")


if __name__ == "__main__":
    main()
