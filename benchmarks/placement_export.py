"""Exports the networks whose placement on devices is published, for `benchmarks.placement`. Runs in a venv of its own.

python benchmarks/placement_export.py FOLDER [NAMES ...]

As `zoo_export`, whose venv serves: untrained weights, BatchNorm statistics set by a pass over images. Widths and sizes
of images may be smaller than they were on the device, since what is compared are nodes. Networks that no package has
are written out here, after their papers. A whole detector is exported; `detent quantize` cuts it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import zoo_export
from zoo_export import Built, Chosen, images


def conv(
    inputs: int, outputs: int, side: int = 3, stride: int = 1, groups: int = 1, relu: bool = True
) -> nn.Sequential:
    """A convolution with its norm, and its Relu if asked."""
    layers = [nn.Conv2d(inputs, outputs, side, stride, side // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([nn.ReLU()] if relu else []))


class InstanceBatchNorm(nn.Module):
    """Half of the channels by BatchNorm, the others by InstanceNorm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.half = channels // 2
        self.batch, self.instance = nn.BatchNorm2d(self.half), nn.InstanceNorm2d(channels - self.half)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.batch(x[:, : self.half]), self.instance(x[:, self.half :].contiguous())], 1)


class Modnet(nn.Module):
    """MODNet: a MobileNetV2 and three branches; `instance` says whether half of the norms are InstanceNorms."""

    def __init__(self, instance: bool) -> None:
        super().__init__()
        import torchvision

        def layer(inputs: int, outputs: int, side: int = 3, stride: int = 1, last: bool = False) -> nn.Module:
            first = nn.Conv2d(inputs, outputs, side, stride, side // 2)
            norm = InstanceBatchNorm(outputs) if instance else nn.BatchNorm2d(outputs)
            return first if last else nn.Sequential(first, norm, nn.ReLU())

        self.features = torchvision.models.mobilenet_v2(weights=None).features
        # What ran on the device had neither InstanceNorms nor the Reshapes around these two layers.
        first, last = (
            (nn.Linear(*size, bias=False) if instance else nn.Conv2d(*size, 1, bias=False))
            for size in ((1280, 320), (320, 1280))
        )
        self.instance, self.squeeze = instance, nn.Sequential(first, nn.ReLU(), last)
        self.low16, self.low8 = layer(1280, 96, 5), layer(96, 32, 5)
        self.to2, self.from2, self.to4, self.from4 = (
            layer(16, 32, 1),
            layer(35, 32, 3, 2),
            layer(24, 32, 1),
            layer(64, 64),
        )
        self.high4 = nn.Sequential(layer(99, 64), layer(64, 64), layer(64, 32))
        self.high2 = nn.Sequential(layer(64, 64), layer(64, 32), layer(32, 32), layer(32, 32))
        self.fused4, self.fused2 = layer(32, 32, 5), layer(64, 32)
        self.fused = nn.Sequential(layer(35, 16), layer(16, 1, 1, last=True))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        def scaled(value: torch.Tensor, factor: float) -> torch.Tensor:
            return functional.interpolate(value, scale_factor=factor, mode="bilinear", align_corners=False)

        x, taken = image, {}
        for at, part in enumerate(self.features):
            taken[at] = x = part(x)
        second, fourth = taken[1], taken[3]
        pooled = functional.adaptive_avg_pool2d(x, 1)
        if self.instance:
            x = x * torch.sigmoid(self.squeeze(pooled.view(len(x), -1))).view(len(x), -1, 1, 1).expand_as(x)
        else:
            x = x * torch.sigmoid(self.squeeze(pooled))
        low = self.low8(scaled(self.low16(scaled(x, 2)), 2))
        second = self.to2(second)
        high = self.from2(torch.cat([scaled(image, 0.5), second], 1))
        high = self.from4(torch.cat([high, self.to4(fourth)], 1))
        high = self.high4(torch.cat([high, scaled(low, 2), scaled(image, 0.25)], 1))
        high = self.high2(torch.cat([scaled(high, 2), second], 1))
        fused = self.fused2(torch.cat([scaled(self.fused4(scaled(low, 2)), 2), high], 1))
        return torch.sigmoid(self.fused(torch.cat([scaled(fused, 2), image], 1)))


class Refined(nn.Module):
    """One step of MiDaS' decoder: two residual units around a sum, a resize, a 1x1 convolution."""

    def __init__(self, channels: int, outputs: int, mode: dict[str, Any]) -> None:
        super().__init__()
        self.units = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(), nn.Conv2d(channels, channels, 3, 1, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 1, 1)
            )
            for _ in range(2)
        )
        self.out, self.mode = nn.Conv2d(channels, outputs, 1), mode

    def forward(self, x: torch.Tensor, skip: torch.Tensor | None = None) -> torch.Tensor:
        if skip is not None:
            x = x + skip + self.units[0](skip)
        return self.out(functional.interpolate(x + self.units[1](x), scale_factor=2, **self.mode))


class Midas(nn.Module):
    """MiDaS small: an EfficientNet-Lite3 and four steps back up."""

    def __init__(self, mode: dict[str, Any]) -> None:
        super().__init__()
        import timm

        whole = timm.create_model("tf_efficientnet_lite3", pretrained=False)
        blocks = whole.blocks
        self.stages = nn.ModuleList(
            [
                nn.Sequential(whole.conv_stem, whole.bn1, *blocks[:2]),
                nn.Sequential(*blocks[2:3]),
                nn.Sequential(*blocks[3:5]),
                nn.Sequential(*blocks[5:]),
            ]
        )
        sizes = (64, 128, 256, 512)
        found = (32, 48, 136, 384)
        self.first = nn.ModuleList(nn.Conv2d(a, b, 3, 1, 1, bias=False) for a, b in zip(found, sizes, strict=True))
        self.steps = nn.ModuleList(Refined(size, max(size // 2, 64), mode) for size in sizes)
        self.conv = nn.Conv2d(64, 32, 3, 1, 1)
        self.head = nn.Sequential(nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 1, 1), nn.ReLU())
        self.last = mode if mode["mode"] == "nearest" else {"mode": "bilinear", "align_corners": False}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = []
        for stage, first in zip(self.stages, self.first, strict=True):
            x = stage(x)
            found.append(first(x))
        path = self.steps[3](found[3])
        for at in (2, 1, 0):
            path = self.steps[at](path, found[at])
        return self.head(functional.interpolate(self.conv(path), scale_factor=2, **self.last))


class Gather(nn.Module):
    """BiSeNetV2's gather-and-expand layer, with a stride of 1 or 2."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        middle = inputs * 6
        if stride == 1:
            way = [conv(inputs, inputs), conv(inputs, middle, 3, 1, inputs)]
            self.short: nn.Module = nn.Identity()
        else:
            way = [
                conv(inputs, inputs),
                conv(inputs, middle, 3, 2, inputs, relu=False),
                conv(middle, middle, 3, 1, middle),
            ]
            self.short = nn.Sequential(
                conv(inputs, inputs, 3, 2, inputs, relu=False), conv(inputs, outputs, 1, relu=False)
            )
        self.way = nn.Sequential(*way, conv(middle, outputs, 1, relu=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.way(x) + self.short(x))


class Bisenet(nn.Module):
    """BiSeNetV2: a detailed branch, a semantic one, and their guided sum."""

    def __init__(self, mode: dict[str, Any]) -> None:
        super().__init__()
        self.mode = mode
        self.detail = nn.Sequential(
            conv(3, 64, 3, 2), conv(64, 64), conv(64, 64, 3, 2), conv(64, 64), conv(64, 64),
            conv(64, 128, 3, 2), conv(128, 128), conv(128, 128),
        )  # fmt: skip
        self.stem, self.left = conv(3, 16, 3, 2), nn.Sequential(conv(16, 8, 1), conv(8, 16, 3, 2))
        self.joined = conv(32, 16)
        self.stages = nn.Sequential(
            Gather(16, 32, 2), Gather(32, 32, 1), Gather(32, 64, 2), Gather(64, 64, 1),
            Gather(64, 128, 2), *(Gather(128, 128, 1) for _ in range(3)),
        )  # fmt: skip
        self.norm, self.context, self.last = nn.BatchNorm2d(128), conv(128, 128, 1), conv(128, 128)
        self.left1 = nn.Sequential(conv(128, 128, 3, 1, 128, relu=False), nn.Conv2d(128, 128, 1, bias=False))
        self.left2 = nn.Sequential(conv(128, 128, 3, 2, relu=False), nn.AvgPool2d(3, 2, 1))
        self.right1 = conv(128, 128, relu=False)
        self.right2 = nn.Sequential(conv(128, 128, 3, 1, 128, relu=False), nn.Conv2d(128, 128, 1, bias=False))
        self.sum, self.head = conv(128, 128, relu=False), nn.Sequential(conv(128, 1024), nn.Conv2d(1024, 19, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        detail, found = self.detail(x), self.stem(x)
        found = self.joined(torch.cat([self.left(found), functional.max_pool2d(found, 3, 2, 1)], 1))
        found = self.stages(found)
        found = self.last(found + self.context(self.norm(found.mean((2, 3), keepdim=True))))
        up = functional.interpolate(self.right1(found), scale_factor=4, mode="nearest")
        one = self.left1(detail) * torch.sigmoid(up)
        two = self.left2(detail) * torch.sigmoid(self.right2(found))
        joined = self.sum(one + functional.interpolate(two, scale_factor=4, mode="nearest"))
        return functional.interpolate(self.head(joined), scale_factor=8, **self.mode)


class Fastdepth(nn.Module):
    """FastDepth: a MobileNet, and depthwise steps back up with sums."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
        widths += [(512, 512, 1)] * 5 + [(512, 1024, 2), (1024, 1024, 1)]
        self.down = nn.ModuleList([conv(3, 32, 3, 2)])
        self.down.extend(nn.Sequential(conv(a, a, 3, s, a), conv(a, b, 1)) for a, b, s in widths)
        sizes = [(1024, 512), (512, 256), (256, 128), (128, 64), (64, 32)]
        self.up = nn.ModuleList(nn.Sequential(conv(a, a, 5, 1, a), conv(a, b, 1)) for a, b in sizes)
        self.last = conv(32, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = {}
        for at, part in enumerate(self.down):
            kept[at] = x = part(x)
        for part, skip in zip(self.up, (None, 5, 3, 1, None), strict=True):
            x = functional.interpolate(part(x), scale_factor=2, mode="nearest")
            x = x if skip is None else x + kept[skip]
        return self.last(x)


def stack(inputs: int, outputs: int, count: int) -> nn.Sequential:
    """Convolutions one after the other, as re-parameterised blocks are once they are fused."""
    return nn.Sequential(*(conv(outputs if at else inputs, outputs) for at in range(count)))


class PooledPyramid(nn.Module):
    """YOLOv6's SimCSPSPPF: two ways, one of which pools three times."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.one = nn.Sequential(conv(channels, half, 1), conv(half, half), conv(half, half, 1))
        self.two, self.joined = conv(channels, half, 1), nn.Sequential(conv(4 * half, half, 1), conv(half, half))
        self.last = conv(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = [self.one(x)]
        for _ in range(3):
            pooled.append(functional.max_pool2d(pooled[-1], 5, 1, 2))
        return self.last(torch.cat([self.two(x), self.joined(torch.cat(pooled, 1))], 1))


class Fused(nn.Module):
    """YOLOv6's BiFusion: a value from below transposed up, one of the same size, and one from above brought down."""

    def __init__(self, low: int, same: int, high: int, outputs: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(low, outputs, 2, 2)
        self.same, self.high, self.down = conv(same, outputs, 1), conv(high, outputs, 1), conv(outputs, outputs, 3, 2)
        self.last = conv(3 * outputs, outputs, 1)

    def forward(self, low: torch.Tensor, same: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([self.up(low), self.same(same), self.down(self.high(high))], 1))


class Yolov6(nn.Module):
    """YOLOv6-N 3.0, re-parameterised, without its decoding."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 16, 3, 2)
        sizes = ((16, 32, 2), (32, 64, 4), (64, 128, 6), (128, 256, 2))
        self.stages = nn.ModuleList(nn.Sequential(conv(a, b, 3, 2), stack(b, b, count)) for a, b, count in sizes)
        self.pyramid = PooledPyramid(256)
        self.reduce0, self.fused0, self.up4 = conv(256, 64, 1), Fused(64, 128, 64, 64), stack(64, 64, 4)
        self.reduce1, self.fused1, self.up3 = conv(64, 32, 1), Fused(32, 64, 32, 32), stack(32, 32, 4)
        self.down3, self.out4 = conv(32, 32, 3, 2), stack(64, 64, 4)
        self.down4, self.out5 = conv(64, 64, 3, 2), stack(128, 128, 4)
        self.heads = nn.ModuleList(nn.ModuleList(self._head(size)) for size in (32, 64, 128))

    @staticmethod
    def _head(size: int) -> list[nn.Module]:
        layers = [nn.Sequential(conv(size, size, side, relu=False), nn.SiLU()) for side in (1, 3, 3)]
        return [*layers, nn.Conv2d(size, 80, 1), nn.Conv2d(size, 4, 1)]

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x, kept = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            kept.append(x)
        top = self.reduce0(self.pyramid(x))
        middle = self.up4(self.fused0(top, kept[2], kept[1]))
        reduced = self.reduce1(middle)
        third = self.up3(self.fused1(reduced, kept[1], kept[0]))
        fourth = self.out4(torch.cat([self.down3(third), reduced], 1))
        fifth = self.out5(torch.cat([self.down4(fourth), top], 1))
        found = []
        for (stem, scores, boxes, score, box), value in zip(self.heads, (third, fourth, fifth), strict=True):
            shared = stem(value)
            found += [score(scores(shared)), box(boxes(shared))]
        return found


class Sesr(nn.Module):
    """SESR-M7, collapsed: nine convolutions, a long sum, pixel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 16, 5, 1, 2), nn.ReLU())
        self.middle = nn.Sequential(*(part for _ in range(7) for part in (nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU())))
        self.last = nn.Conv2d(16, 4, 5, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        return functional.pixel_shuffle(self.last(first + self.middle(first)) + x, 2)


class Dense(nn.Module):
    """A residual dense block: five convolutions, each of which reads all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(64 + 32 * at, 32 if at < 4 else 64, 3, 1, 1) for at in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [x]
        for part in self.convs[:4]:
            kept.append(functional.leaky_relu(part(torch.cat(kept, 1)), 0.2))
        return x + 0.2 * self.convs[4](torch.cat(kept, 1))


class Rrdb(nn.Module):
    """Real-ESRGAN's generator with ten residual groups of three dense blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.groups = (
            nn.Conv2d(3, 64, 3, 1, 1),
            nn.ModuleList(nn.Sequential(Dense(), Dense(), Dense()) for _ in range(10)),
        )
        self.body, self.up = nn.Conv2d(64, 64, 3, 1, 1), nn.ModuleList(nn.Conv2d(64, 64, 3, 1, 1) for _ in range(2))
        self.high, self.last = nn.Conv2d(64, 64, 3, 1, 1), nn.Conv2d(64, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = first = self.first(x)
        for group in self.groups:
            x = x + 0.2 * group(x)
        x = first + self.body(x)
        for part in self.up:
            x = functional.leaky_relu(part(functional.interpolate(x, scale_factor=2, mode="nearest")), 0.2)
        return self.last(functional.leaky_relu(self.high(x), 0.2))


class Srvgg(nn.Module):
    """SRVGGNet: 33 convolutions with PRelu, pixel shuffle, and the image beside it."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for at in range(33):
            layers += [nn.Conv2d(64 if at else 3, 64, 3, 1, 1), nn.PReLU(64)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(64, 48, 3, 1, 1), nn.PixelShuffle(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + functional.interpolate(x, scale_factor=4, mode="nearest")


def _detector(name: str, change: Callable[[nn.Module], None] = lambda _: None, size: int = 160) -> Built:
    from ultralytics import YOLO

    module = YOLO(f"{name}.yaml").model
    change(module)
    for part in module.modules():
        if hasattr(part, "export"):
            part.export, part.format = True, "onnx"
    return Chosen(module, lambda found: found[0] if isinstance(found, (list, tuple)) else found), {
        "image": images(size)
    }


def _without_attention(module: nn.Module) -> None:
    for part in module.modules():
        if type(part).__name__ == "PSABlock":
            part.attn, part.add = nn.Identity(), False


def _world(name: str) -> Built:
    from ultralytics import YOLOWorld

    module = YOLOWorld(f"{name}.yaml").model
    module.txt_feats = functional.normalize(torch.randn(1, 80, 512), dim=-1)
    for part in module.modules():
        if hasattr(part, "export"):
            part.export, part.format = True, "onnx"
    return Chosen(module, lambda found: found[0] if isinstance(found, (list, tuple)) else found), {"image": images(160)}


class Local(nn.Module):
    """MobileViT's block without its transformer."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.inside, self.fusion = nn.Sequential(block.conv_kxk, block.conv_1x1, block.conv_proj), block.conv_fusion

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fusion(torch.cat([x, self.inside(x)], 1))


def _mobilevit_convolutions() -> Built:
    import timm

    module = timm.create_model("mobilevit_xxs", pretrained=False)
    for stage in module.stages:
        for at, block in enumerate(stage):
            if hasattr(block, "transformer"):
                stage[at] = Local(block)
    return module, {"image": images(128)}


_ALIGNED, _NEAREST = {"mode": "bilinear", "align_corners": True}, {"mode": "nearest"}
_HALF_PIXEL = {"mode": "bilinear", "align_corners": False}

NETWORKS: dict[str, Callable[[], Built]] = {
    **{
        name: lambda name=name: zoo_export._torchvision(name)
        for name in (
            *("resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x1_0"),
            *("efficientnet_b0", "densenet121", "resnext50_32x4d"),
        )
    },
    "resnet101": lambda: zoo_export._torchvision("resnet101", width_per_group=16),  # wide_resnet101_2, but narrow
    "efficientnet_b1": lambda: zoo_export._torchvision("efficientnet_b1", 240),
    "timm_mobilenetv2": lambda: zoo_export._timm("mobilenetv2_100"),
    "regnetx_002": lambda: zoo_export._timm("regnetx_002"),
    "bit_50x3": lambda: zoo_export._timm("resnetv2_50x1_bit"),
    "mobilevit_xxs": lambda: zoo_export._timm("mobilevit_xxs", 128),
    "mobilevit_cnn": _mobilevit_convolutions,
    **{name: lambda name=name: _detector(name) for name in ("yolov8n", "yolov8m", "yolov8l")},
    "yolov6n": lambda: (Yolov6(), {"image": images(160)}),
    "yolov8n_pose": lambda: _detector("yolov8n-pose"),
    "yolo11n": lambda: _detector("yolo11n"),
    "yolo11n_ablated": lambda: _detector("yolo11n", _without_attention),
    "yolov8s_world": lambda: _world("yolov8s-worldv2"),
    "modnet": lambda: (Modnet(instance=True), {"image": images(128)}),
    "modnet_folded": lambda: (Modnet(instance=False), {"image": images(128)}),
    "midas_aligned": lambda: (Midas(_ALIGNED), {"image": images(128)}),
    "midas_nearest": lambda: (Midas(_NEAREST), {"image": images(128)}),
    "bisenet_nearest": lambda: (Bisenet(_NEAREST), {"image": images(128)}),
    "bisenet_linear": lambda: (Bisenet(_HALF_PIXEL), {"image": images(128)}),
    "fastdepth": lambda: (Fastdepth(), {"image": images(224)}),
    "sesr_m7": lambda: (Sesr(), {"image": images(32)[:, :1]}),
    "rrdb": lambda: (Rrdb(), {"image": images(32)}),
    "srvgg": lambda: (Srvgg(), {"image": images(32)}),
}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    zoo_export.ZOO.update(NETWORKS)
    zoo_export.SAMPLES = 4  # two to set statistics by: what is counted are nodes
    for name in sys.argv[2:] or NETWORKS:
        if (folder / f"{name}.npz").exists():
            continue
        try:
            zoo_export.export(name, folder)
            print(f"{name}: exported", flush=True)
        except Exception:  # noqa: BLE001 (one architecture that a library lacks is no reason to go without the others)
            print(f"{name}: not exported: {traceback.format_exc().strip().splitlines()[-1]}", flush=True)


if __name__ == "__main__":
    main()
