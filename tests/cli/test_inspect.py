from __future__ import annotations

from detent.demo import MODEL


def test_inspect_shows_operators_scales_and_nodes(detent, demo_arguments, tmp_path):
    plain = detent("inspect", MODEL).out
    assert "Not quantized" in plain
    assert "BatchNormalization" in plain
    detent(*demo_arguments)
    quantized = detent("inspect", tmp_path / "out.onnx", "--nodes").out
    for word in ("quantized tensor", "position", "uint8".upper(), "made by detent", "stem/conv"):
        assert word in quantized
