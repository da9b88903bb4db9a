"""Models of other libraries, untrained, go in as they are; each is skipped where its library is not installed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest

import detent
from tests.conftest import tiny_model

IMAGES = np.random.default_rng(0).random((8, 3, 64, 64), np.float32)


@pytest.fixture
def torch():
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def answers_of(proto: onnx.ModelProto, *arrays: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip((each.name for each in session.get_inputs()), arrays, strict=True)))


@pytest.mark.parametrize(("library", "name"), [("timm", "resnet18"), ("timm", "vit_tiny_patch16_224")])
def test_image_models_answer_as_the_module_does(torch, library, name):
    """The export is the module's own function, and quantizing needs no more than the module and arrays."""
    made = pytest.importorskip(library, reason=f"{library} is not installed", exc_type=(ImportError, RuntimeError))
    options = {"img_size": 64} if "vit" in name else {}
    module = made.create_model(name, pretrained=False, num_classes=10, **options).eval()
    with torch.no_grad():
        wanted = module(torch.from_numpy(IMAGES[:1])).numpy()
    np.testing.assert_allclose(answers_of(detent.from_torch(module, IMAGES[:1]), IMAGES[:1])[0], wanted, atol=1e-4)
    assert detent.quantize(module, None, IMAGES, "A8W8", try_advice=False).model is not None


def test_a_loader_of_hugging_face_batches(torch):
    """Batches are dicts with labels, which a model for inference does not take."""

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.dense = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 4)

        def forward(self, input_ids, attention_mask):
            return {"logits": self.dense((self.table(input_ids) * attention_mask[..., None]).mean(1))}

    tokens = torch.randint(0, 50, (8, 6), generator=torch.Generator().manual_seed(0))
    samples = [{"input_ids": each, "attention_mask": torch.ones(6), "labels": torch.tensor(1)} for each in tokens]
    report = detent.quantize(Encoder(), None, torch.utils.data.DataLoader(samples, batch_size=2), "A8W8")
    assert report.calibration.samples + report.fidelity.samples >= 8
    assert [value.name for value in report.model.graph.input] == ["input_ids", "attention_mask"]


def test_an_encoder_of_transformers(torch):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    module = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=50, max_position_embeddings=16)).eval()
    ids = torch.randint(0, 50, (8, 1, 12), generator=torch.Generator().manual_seed(0))
    tokens = [{"input_ids": each, "attention_mask": torch.ones(1, 12, dtype=torch.long)} for each in ids]
    with torch.no_grad():
        wanted = module(**tokens[0]).last_hidden_state.numpy()
    proto = detent.from_torch(module, tokens[0])
    np.testing.assert_allclose(answers_of(proto, *(each.numpy() for each in tokens[0].values()))[0], wanted, atol=1e-4)
    assert detent.quantize(module, None, tokens, "A8W8", example_inputs=tokens[0], try_advice=False).model is not None


class Yolo:
    """Stands for Ultralytics' object: `export` writes a file beside that of the weights, and returns its path."""

    model_name = "yolo.yaml"

    def __init__(self):
        self.model = ModuleType("weights")
        self.asked = []

    def export(self, **options):
        self.asked.append(options)
        path = Path(self.model.pt_path).with_suffix(".onnx")
        proto = tiny_model()
        onnx.helper.set_model_props(proto, {"task": "detect", "imgsz": str(options["imgsz"])})
        onnx.save(proto, path)
        return str(path)

    def __deepcopy__(self, memo):
        other = Yolo()
        other.asked = self.asked
        return other


def test_a_yolo_object_is_exported_by_ultralytics(torch, monkeypatch):
    """Its metadata are kept, the size is that of the example, the object is not touched, and no file is left."""
    monkeypatch.setattr(Yolo, "__module__", "ultralytics.models.yolo.model")
    model = Yolo()
    proto = detent.from_torch(model, torch.zeros(1, 3, 64, 96))
    assert {each.key: each.value for each in proto.metadata_props}["imgsz"] == "[64, 96]"
    assert model.asked[0]["format"] == "onnx" and not hasattr(model.model, "pt_path")
    detent.from_torch(model)
    assert model.asked[1]["imgsz"] == [640, 640]


def test_a_real_yolo_is_a_detector_with_its_metadata(torch):
    ultralytics = pytest.importorskip("ultralytics", reason="Ultralytics is not installed")
    assert "ultralytics" in sys.modules
    report = detent.quantize(ultralytics.YOLO("yolov8n.yaml"), None, IMAGES, try_advice=False)
    # An untrained one finds nothing in noise, so that its detections cannot be compared.
    assert {each.key: each.value for each in report.model.metadata_props}["task"] == "detect"
    assert report.postprocessing is not None
