"""Exports architectures with random weights as ONNX files, for `benchmarks.zoo`. Runs in a venv of its own.

python benchmarks/zoo_export.py FOLDER [NAMES ...]

The venv needs torch, torchvision, timm, transformers, ultralytics, onnx, onnxscript and pillow; a torchvision whose own
operators do not load beside this torch will do (`pip install --no-deps torchvision timm`). Weights are seeded, and
BatchNorm statistics are set by a pass over images: else every layer's outputs would be as far from 0 mean and unit
variance as its weights happen to be, and what is measured would be that. Images are read from
DETENT_BENCH_DATA/imagenet-calib-350; beside each NAME.onnx stand its samples, NAME.npz: 32 to calibrate with and 8 to
judge by, one after the other.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

DATA = Path(os.environ.get("DETENT_BENCH_DATA", Path(__file__).parents[2] / "shared" / "data"))
SAMPLES = 40
OPSET = 17
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

try:
    import torchvision  # noqa: F401
except RuntimeError:  # its compiled operators are for another torch: the models need none of them, only the name
    for imported in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[imported]
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
except ImportError:
    pass  # then its models are not exported, and that is said

Built = tuple[nn.Module, dict[str, torch.Tensor]]
"""A module, and its inputs for all samples, by name, in the order of its parameters."""


def images(size: int) -> torch.Tensor:
    """The first images of the calibration set, cut to the middle and normalised."""
    files = sorted((DATA / "imagenet-calib-350").glob("*"))[:SAMPLES]
    found = []
    for file in files:
        picture = Image.open(file).convert("RGB")
        side = min(picture.size)
        left, top = (picture.width - side) // 2, (picture.height - side) // 2
        picture = picture.crop((left, top, left + side, top + side)).resize((size, size))
        found.append((np.asarray(picture, np.float32) / 255 - MEAN) / DEVIATION)
    return torch.from_numpy(np.stack(found).transpose(0, 3, 1, 2).astype(np.float32))


def tokens(vocabulary: int, length: int = 32) -> torch.Tensor:
    return torch.randint(1, vocabulary, (SAMPLES, length), generator=torch.Generator().manual_seed(0))


class Chosen(nn.Module):
    """A module of which one result is taken."""

    def __init__(self, module: nn.Module, choose: Callable[[Any], Any], **settings: Any) -> None:
        super().__init__()
        self.module, self.choose, self.settings = module, choose, settings

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.choose(self.module(*inputs, **self.settings))


def _timm(name: str, size: int = 224, **settings: Any) -> Built:
    import timm

    return timm.create_model(name, pretrained=False, **settings), {"image": images(size)}


def _torchvision(name: str, size: int = 224, **settings: Any) -> Built:
    import torchvision

    module = getattr(torchvision.models, name)(weights=None, **settings)
    return module, {"image": images(size)}


def _segmentation(name: str) -> Built:
    import torchvision

    module = getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None)
    return Chosen(module, lambda found: found["out"]), {"image": images(224)}


def _ultralytics(name: str) -> Built:
    from ultralytics import RTDETR, YOLO

    module = (RTDETR if "rtdetr" in name else YOLO)(f"{name}.yaml").model
    for part in module.modules():
        if hasattr(part, "export"):
            part.export, part.format = True, "onnx"
    return Chosen(module, lambda found: found[0] if isinstance(found, (list, tuple)) else found), {"image": images(320)}


def _encoder(kind: str, **settings: Any) -> Built:
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, vocab_size=500, **settings
    )
    config._attn_implementation = "eager"
    module = getattr(transformers, f"{kind}Model")(config)
    ids = tokens(500)
    mask = torch.ones_like(ids)
    mask[:, 24:] = 0
    return Chosen(module, lambda found: found[0]), {"input_ids": ids, "attention_mask": mask}


def _decoder(kind: str, **settings: Any) -> Built:
    import transformers

    config = getattr(transformers, f"{kind}Config")(vocab_size=500, **settings)
    config._attn_implementation = "eager"
    module = getattr(transformers, f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config)
    return Chosen(module, lambda found: found[0], use_cache=False), {"input_ids": tokens(500)}


def _whisper() -> Built:
    import transformers

    config = transformers.WhisperConfig(d_model=96, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=192)
    config._attn_implementation = "eager"
    module = transformers.models.whisper.modeling_whisper.WhisperEncoder(config)
    sound = torch.randn(SAMPLES, 80, 3000, generator=torch.Generator().manual_seed(0)) / 2
    return Chosen(module, lambda found: found[0]), {"sound": sound}


class Reader(nn.Module):
    """A reader of text lines: convolutions, then an LSTM or a GRU both ways."""

    def __init__(self, recurrent: type[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3, (4, 2), 1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 56))),
        )
        self.recurrent = recurrent(64, 48, bidirectional=True, batch_first=True)
        self.head = nn.Linear(96, 100)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.layers(image).squeeze(2).transpose(1, 2))[0]).log_softmax(-1)


def _chosen_googlenet() -> Built:
    import torchvision

    return torchvision.models.googlenet(weights=None, aux_logits=False, init_weights=False), {"image": images(224)}


ZOO: dict[str, Callable[[], Built]] = {
    "mobilenet_v3_small": lambda: _torchvision("mobilenet_v3_small"),
    "mobilenet_v2": lambda: _torchvision("mobilenet_v2"),
    "resnet18": lambda: _torchvision("resnet18"),
    "googlenet": _chosen_googlenet,
    "shufflenet_v2": lambda: _torchvision("shufflenet_v2_x0_5"),
    "squeezenet": lambda: _torchvision("squeezenet1_1"),
    "densenet121": lambda: _torchvision("densenet121"),
    "regnet_y": lambda: _torchvision("regnet_y_400mf"),
    "vit_b_16_small": lambda: _timm("vit_tiny_patch16_224"),
    "swin_v2_t": lambda: _torchvision("swin_v2_t", 256),
    "deeplab": lambda: _segmentation("deeplabv3_mobilenet_v3_large"),
    "lraspp": lambda: _segmentation("lraspp_mobilenet_v3_large"),
    "lcnet": lambda: _timm("lcnet_050"),
    "hardcorenas": lambda: _timm("hardcorenas_a"),
    "efficientnet_b0": lambda: _timm("efficientnet_b0"),
    "efficientnet_lite0": lambda: _timm("efficientnet_lite0"),
    "mobilenetv4": lambda: _timm("mobilenetv4_conv_small"),
    "efficientvit_b0": lambda: _timm("efficientvit_b0"),
    "efficientvit_m0": lambda: _timm("efficientvit_m0"),
    "edgenext": lambda: _timm("edgenext_xx_small", 256),
    "levit": lambda: _timm("levit_128s"),
    "mobilevit": lambda: _timm("mobilevit_xxs", 256),
    "mobilevitv2": lambda: _timm("mobilevitv2_050", 256),
    "fastvit": lambda: _timm("fastvit_t8", 256),
    "repvgg": lambda: _timm("repvgg_a0"),
    "ghostnet": lambda: _timm("ghostnet_050"),
    "convnext": lambda: _timm("convnext_atto"),
    "poolformer": lambda: _timm("poolformer_s12"),
    "deit": lambda: _timm("deit_tiny_patch16_224"),
    "mixer": lambda: _timm("mixer_s32_224"),
    "coat": lambda: _timm("coat_lite_tiny"),
    "pvt_v2": lambda: _timm("pvt_v2_b0"),
    "tinynet": lambda: _timm("tinynet_e", 106),
    "xcit": lambda: _timm("xcit_nano_12_p16_224"),
    "yolov5n": lambda: _ultralytics("yolov5n"),
    "yolov8n": lambda: _ultralytics("yolov8n"),
    "yolo11n": lambda: _ultralytics("yolo11n"),
    "yolov8n_seg": lambda: _ultralytics("yolov8n-seg"),
    "rtdetr": lambda: _ultralytics("rtdetr-resnet50"),
    "bert": lambda: _encoder("Bert"),
    "roberta": lambda: _encoder("Roberta", pad_token_id=0),
    "mpnet": lambda: _encoder("MPNet", pad_token_id=0),
    "deberta": lambda: _encoder("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "gpt2": lambda: _decoder("GPT2", n_embd=128, n_layer=2, n_head=4, n_positions=64),
    "llama": lambda: _decoder(
        "Llama", hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        num_key_value_heads=2,
    ),
    "whisper_encoder": _whisper,
    "reader_lstm": lambda: (Reader(nn.LSTM), {"image": images(112)}),
    "reader_gru": lambda: (Reader(nn.GRU), {"image": images(112)}),
}  # fmt: skip


def set_statistics(module: nn.Module, inputs: Sequence[torch.Tensor]) -> None:
    """Give every BatchNorm the mean and variance of what reaches it on the first samples."""
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the average of all passes
        norm.train()
        # Scales and shifts of 1 and 0 would make all channels alike, which no trained network's are.
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -0.5, 0.5)
    if norms:
        with torch.no_grad():
            module(*(each[: SAMPLES // 2] for each in inputs))
    module.eval()


def export(name: str, folder: Path) -> None:
    torch.manual_seed(0)
    module, feeds = ZOO[name]()
    module.eval()
    inputs = list(feeds.values())
    set_statistics(module, inputs)
    first = tuple(each[:1] for each in inputs)
    settings = {"input_names": list(feeds), "opset_version": OPSET, "do_constant_folding": True}
    try:
        torch.onnx.export(module, first, str(folder / f"{name}.onnx"), dynamo=False, **settings)
    except Exception as error:  # noqa: BLE001 (whatever the old exporter cannot do, the new one may)
        print(f"{name}: the old exporter failed ({type(error).__name__}: {str(error)[:80]})", flush=True)
        settings = {"input_names": list(feeds), "opset_version": 18}
        torch.onnx.export(module, first, str(folder / f"{name}.onnx"), dynamo=True, external_data=False, **settings)
    np.savez(folder / f"{name}.npz", **{key: value.numpy() for key, value in feeds.items()})


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or ZOO:
        if (folder / f"{name}.npz").exists():
            continue
        try:
            export(name, folder)
            print(f"{name}: exported", flush=True)
        except Exception:  # noqa: BLE001 (one architecture that a library lacks is no reason to go without the others)
            print(f"{name}: not exported: {traceback.format_exc().strip().splitlines()[-1]}", flush=True)


if __name__ == "__main__":
    main()
