"""A Clip whose bound the codes set already, as a Relu: the same codes for every input."""

from __future__ import annotations

import numpy as np
import pytest

import detent
from detent.demo.walkthrough import CALIBRATION, MODEL, PREPROCESS
from detent.devices.rewrites import SaturatingClip
from detent.graph.load import load
from tests.models import IMAGE, build, find, node, normal, plan_at, run

SAMPLES = np.stack([normal(*IMAGE[1:], seed=seed) for seed in range(8)])


def clip(low: float, high: float):
    return build(
        [node("Conv", "x w", "c"), node("Clip", "c low high", "y")],
        "y",
        {"w": normal(4, 3, 1, 1), "low": np.float32(low), "high": np.float32(high)},
    )


@pytest.mark.parametrize(
    ("low", "high", "position", "becomes"),
    [
        (0.0, 127 / 16, 4, "Relu"),
        (0.0, 127 / 16, 5, "Relu"),
        (0.0, 127 / 16, 3, "Clip"),
        (0.0, 7.0, 4, "Clip"),
        (0.0, 8.0, 4, "Relu"),
        (-1.0, 127 / 16, 4, "Clip"),
        (0.0, 6.0, 5, "Clip"),  # the device has this one
    ],
)
def test_which_clips_become_relus(low, high, position, becomes):
    model, plan = plan_at(clip(low, high), {"y": position})
    step = SaturatingClip(plan)
    step(model)
    assert find(model, "clip_y").op_type == becomes
    assert len(step.changes) == (becomes == "Relu")
    if becomes == "Relu":
        x = 40 * normal(*IMAGE)
        before, after = run(clip(low, high), {"x": x})["y"], run(model, {"x": x})["y"]
        assert (before != after).any()
        params = plan.integers("y")
        np.testing.assert_array_equal(params.encode(before), params.encode(after))


@pytest.mark.parametrize("recipe", ["A8W8", "A16W8", "U8S8_AAWS"])
def test_statistics_of_another_recipe_leave_no_clip_that_the_device_has_not(tmp_path, recipe):
    """The bounds were moved for powers of two. With float scales the largest code stands for just about the bound."""
    files = {"calibration": CALIBRATION, "preprocess": PREPROCESS}
    detent.quantize(MODEL, tmp_path / "first.onnx", **files, save_stats=tmp_path / "it.stats")
    output = tmp_path / "out.onnx"
    detent.quantize(MODEL, output, **files, recipe=recipe, stats=tmp_path / "it.stats")
    clips = [node for node in load(output).graph if node.op_type == "Clip"]
    assert {float(node.inputs[2].const_value.numpy()) for node in clips} <= {6.0}


def test_a_network_of_relu6_that_cuts(tmp_path):
    """Quantized with equalization, no Clip has a bound that the device has not, and the answers are those of float."""
    nodes, constants, before = [], {"zero": np.float32(0), "six": np.float32(6)}, "x"
    for number in range(3):
        constants[f"w{number}"] = 2 * normal(4, 3 if number == 0 else 4, 1, 1, seed=number)
        nodes += [node("Conv", f"{before} w{number}", f"c{number}"), node("Clip", f"c{number} zero six", f"k{number}")]
        before = f"k{number}"
    constants["last"] = normal(2, 4, 1, 1, seed=5)
    proto = build([*nodes, node("Conv", f"{before} last", "y")], "y", constants)
    output = tmp_path / "out.onnx"
    report = detent.quantize(proto, output, SAMPLES, "XINT8")
    written = load(output)
    kinds = {node.op_type for node in written.graph}
    assert "Relu" in kinds
    bounds = {float(node.inputs[2].const_value.numpy()) for node in written.graph if node.op_type == "Clip"}
    assert bounds <= {6.0}
    assert report.fidelity is not None and report.fidelity.outputs["y"].sqnr_db > 20
