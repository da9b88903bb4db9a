from __future__ import annotations

import pytest

from detent.errors import UsageError
from detent.targets import dpu
from detent.targets.shifts import constrain
from detent.targets.target import TARGETS, find_target
from tests.models import conv_relu_conv, plan_at


def test_the_npu_asks_for_rules_and_rewrites():
    npu = find_target("npu-cnn")
    assert npu.constrain is constrain
    assert set(npu.substitutions) == {dpu.RoundLeakySlope, dpu.SigmoidToHardSigmoid}
    assert set(npu.corrections) == {dpu.ScaleHardSigmoid, dpu.ScalePools, dpu.ScaleReduceMean}


def test_the_cpu_asks_for_nothing():
    cpu = find_target("cpu")
    model, plan = plan_at(conv_relu_conv(), {"x": 50, "w1": 50, "r1": -50})
    before = dict(plan.positions)
    assert cpu.constrain(model, plan) == []
    assert plan.positions == before
    assert (len(cpu.substitutions), len(cpu.corrections)) == (0, 0)


def test_names():
    assert all(target.name == name and target.description for name, target in TARGETS.items())
    with pytest.raises(UsageError, match="There is no target 'npu-cn'. Did you mean 'npu-cnn'.*[?] Known: npu-cnn, "):
        find_target("npu-cn")
