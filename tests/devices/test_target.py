from __future__ import annotations

import pytest

from detent.devices import rewrites as dpu
from detent.devices.constraints import constrain
from detent.devices.device import TARGETS, find_target
from detent.errors import UsageError
from detent.numerics.formats import IntegerFormat
from detent.presets import PRESETS
from detent.recipe import Override
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


def shifted(dtype):
    return IntegerFormat(dtype, scale="power_of_two")


TAKEN = {"activations": {"int8", "uint8"}, "weights": {"int8"}, "biases": {"int8", "int16", "int32"}}
DTYPES = ("int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32")


@pytest.mark.parametrize("role", TAKEN)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_shifting_device_stores_few_types(role, dtype):
    recipe = PRESETS["XINT8"].replace(**{role: shifted(dtype)})
    part = PRESETS["XINT8"].replace(overrides=(Override(nodes=("head/*",), **{role: shifted(dtype)}),))
    for target in TARGETS.values():
        if target.name != "npu-cnn" or dtype in TAKEN[role]:
            target.check(recipe)
            target.check(part)
    if dtype not in TAKEN[role]:
        with pytest.raises(UsageError, match=f"npu-cnn stores {role} .*, and the {role} of recipe XINT8 are {dtype}"):
            TARGETS["npu-cnn"].check(recipe)
        with pytest.raises(UsageError, match=rf"{role} for head/\* of recipe XINT8 are {dtype}.*npu-float-scale.*cpu"):
            TARGETS["npu-cnn"].check(part)


def test_names():
    assert all(target.name == name and target.description for name, target in TARGETS.items())
    with pytest.raises(UsageError, match="There is no target 'npu-cn'. Did you mean 'npu-cnn'.*[?] Known: npu-cnn, "):
        find_target("npu-cn")
