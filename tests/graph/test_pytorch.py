"""PyTorch models in: names of the module's own, the module untouched, files that are safe to open."""

from __future__ import annotations

import sys
from collections import namedtuple

import numpy as np
import onnxruntime
import pytest

import detent
from detent.errors import ModelError, UsageError
from detent.graph.pytorch import is_torch


def test_without_torch_nothing_is_taken_for_a_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not is_torch(object()) and is_torch("model.pt2") and not is_torch("model.onnx")
    with pytest.raises(UsageError, match="pip install torch"):
        detent.from_torch("model.pt2")


@pytest.fixture(scope="module")
def torch():
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture(scope="module")
def module(torch):
    torch.manual_seed(0)
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

        def forward(self, x):
            return torch.relu(self.bn1(self.conv1(x))) + x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.layer1, self.fc = nn.Conv2d(3, 8, 3), nn.Sequential(Block(), Block()), nn.Linear(8, 10)

        def forward(self, x):
            return {"logits": self.fc(self.layer1(self.stem(x)).mean((2, 3)))}

    return Net().train()


@pytest.fixture(scope="module")
def proto(torch, module):
    return detent.from_torch(module, torch.zeros(1, 3, 16, 16))


def test_outputs_have_the_keys_of_a_dict(torch, proto):
    assert [value.name for value in proto.graph.output] == ["logits"]

    class Two(torch.nn.Module):
        def forward(self, x):
            return {"wide": torch.relu(x), "a": torch.relu(x).sum(1)}

    exported = detent.from_torch(Two(), torch.zeros(1, 3, 4, 4))
    assert [(each.name, len(each.type.tensor_type.shape.dim)) for each in exported.graph.output] == [
        ("wide", 4),
        ("a", 3),
    ]


def test_outputs_have_the_fields_of_a_named_tuple(torch):
    fields = namedtuple("fields", ("scores", "boxes"))

    class Two(torch.nn.Module):
        def forward(self, x):
            return fields(torch.relu(x), torch.relu(x).sum(1))

    exported = detent.from_torch(Two(), torch.zeros(1, 3, 4, 4))
    assert [each.name for each in exported.graph.output] == ["scores", "boxes"]


def test_nodes_have_the_names_of_their_modules(proto):
    names = [node.name for node in proto.graph.node]
    assert {"stem", "layer1.0.conv1", "layer1.1.conv1", "fc"} <= set(names)
    assert len(set(names)) == len(names)


def test_the_module_is_as_it_was_and_computes_the_same(torch, module, proto):
    assert module.training
    x = torch.randn(1, 3, 16, 16)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    module.eval()
    np.testing.assert_allclose(found, module(x)["logits"].detach().numpy(), atol=1e-5)
    module.train()


def test_a_data_loader_says_what_the_module_takes(torch, module):
    pairs = torch.utils.data.TensorDataset(torch.randn(24, 3, 16, 16), torch.zeros(24))
    loader = torch.utils.data.DataLoader(pairs, batch_size=8)
    report = detent.quantize(module, None, loader, "A8W8", exclude="layer1.1.*")
    assert [node.node for node in report.nodes if node.node == "layer1.1.conv1" and not node.quantized]
    assert report.calibration.samples == 21


def test_arrays_say_what_the_module_takes(torch, module):
    arrays = [np.zeros((1, 3, 16, 16), np.float32) + i for i in range(4)]
    forms = (arrays, {"x": np.concatenate(arrays)}, [{"x": array} for array in arrays])
    shapes = []
    for form in forms:
        report = detent.quantize(module, None, form, "BF16")
        shapes.append([each.dim_value for each in report.model.graph.input[0].type.tensor_type.shape.dim])
    assert shapes == [[1, 3, 16, 16]] * 3


def test_exported_programs_and_scripts(torch, module, tmp_path):
    x = torch.zeros(1, 3, 16, 16)
    torch.export.save(torch.export.export(module.eval(), (x,)), tmp_path / "m.pt2")
    torch.jit.trace(module.stem, x).save(str(tmp_path / "m.pt"))  # the older exporter knows no dicts
    module.train()
    assert detent.from_torch(tmp_path / "m.pt2").graph.node
    assert detent.from_torch(tmp_path / "m.pt", shapes={"x": (1, 3, 16, 16)}).graph.node
    with pytest.raises(UsageError, match="example_inputs"):
        detent.from_torch(tmp_path / "m.pt")


def test_a_pickle_is_not_opened(torch, module, tmp_path):
    torch.save(module.state_dict(), tmp_path / "m.pt")
    with pytest.raises(ModelError, match="m.pt"):
        detent.from_torch(tmp_path / "m.pt", torch.zeros(1, 3, 16, 16))
    with pytest.raises(ModelError, match="no file"):
        detent.from_torch(tmp_path / "none.pt2")


def test_control_flow_by_data_is_named(torch, capfd):
    class Choice(torch.nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(ModelError, match=r"Choice.*test_pytorch.py, line \d+: `return x \* 2 if x.sum\(\) > 0"):
        detent.from_torch(Choice(), torch.zeros(1, 3))
    assert capfd.readouterr() == ("", "")  # torch prints its graphs


def test_what_can_be_no_model_is_named():
    with pytest.raises(UsageError, match="A int is no model"):
        detent.quantize(42, None, [])
    with pytest.raises(UsageError, match="A list is no model"):
        detent.evaluate([[1]], [])


def test_what_is_wrong_with_a_module_or_its_inputs_is_named(torch):
    class Answer:
        pass

    class Strange(torch.nn.Module):
        def forward(self, x):
            return Answer()

    conv = torch.nn.Conv2d(3, 4, 3)
    with pytest.raises(UsageError, match=r"\(1, 5, 8, 8\)"):
        detent.from_torch(conv, torch.zeros(1, 5, 8, 8))
    with pytest.raises(UsageError, match="Bilinear"):  # it takes two
        detent.from_torch(torch.nn.Bilinear(2, 2, 2), torch.zeros(1, 2))
    with pytest.raises(ModelError, match="Answer"):
        detent.from_torch(Strange(), torch.zeros(1))
    with pytest.raises(ModelError, match="meta"):
        detent.from_torch(torch.nn.Conv2d(3, 4, 3, device="meta"), torch.zeros(1, 3, 8, 8))


def test_outputs_of_an_exported_program_have_the_keys_of_its_dict(torch, module, tmp_path):
    program = torch.export.export(module.eval(), (torch.zeros(1, 3, 16, 16),))
    module.train()
    torch.export.save(program, tmp_path / "net.pt2")
    assert [value.name for value in detent.from_torch(tmp_path / "net.pt2").graph.output] == ["logits"]


def test_a_module_is_evaluated_on_its_loader(torch, module, tmp_path):
    images = torch.randn(24, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(images, torch.arange(24) % 10), batch_size=5, shuffle=True, drop_last=True
    )
    found = detent.evaluate(module, loader)
    assert found.data == "24 samples from a DataLoader, labels from the loader"
    with torch.no_grad():
        right = (module.eval()(images)["logits"].argmax(1) == torch.arange(24) % 10).float().mean()
    module.train()
    assert found.models[0].scores.accuracy() == pytest.approx(100 * float(right))
    with pytest.raises(UsageError, match="from_torch"):
        detent.evaluate(module, tmp_path)
