from __future__ import annotations

import json


def test_recipes_are_listed(detent):
    listed = detent("recipes").out
    assert all(name in listed for name in ("XINT8", "A8W8", "BF16_MIXED_MXINT8", "UINT8_DYNAMIC_QUANT"))
    assert "_CONFIG" in listed and "--set" in listed
    assert json.loads(detent("recipes", "--json").out)["A16W8"]["activations"]["type"] == "int16"


def test_one_recipe(detent, tmp_path):
    shown = detent("recipes", "a8w8").out
    assert shown.startswith("A8W8: ") and all(
        step in shown for step in ("equalize channels", "calibrate with MinMSE", "QuickRounding")
    )
    assert json.loads(detent("recipes", "A8W8", "--json").out)["target"] == "npu-float-scale"
    text = detent("recipes", "A8W8", "--set", "weights.granularity=per_channel", "--toml").out
    (tmp_path / "mine.toml").write_text(text)
    assert detent("recipes", tmp_path / "mine.toml", "--toml").out == text
    assert 'granularity = "per_channel"' in text
