from __future__ import annotations

import pytest

from detent.devices import rewrites
from detent.devices.catalog import ALIASES, DEVICES, device_of, find_device
from detent.devices.constraints import SHIFTS
from detent.errors import UsageError
from detent.numerics.formats import IntegerFormat
from detent.recipe import Override
from detent.recipe.file import find_recipe
from detent.recipe.recipe import PRESETS
from tests.models import conv_relu_conv, plan_at


@pytest.mark.parametrize(
    ("name", "count"),
    [("npu-bf16", 78), ("npu-a16w8", 53), ("npu-a8w8", 53), ("npu-xint8", 83), ("cpu", 0)],
)
def test_as_many_operators_as_are_published(name, count):
    assert len(DEVICES[name].operators) == count


def test_the_whole_list():
    names = set().union(*(device.operators for device in DEVICES.values()))
    assert len(names) == 104  # of 105 rows: Upsample is in two


@pytest.mark.parametrize(
    ("op_type", "devices"),
    [
        ("Conv", {"npu-bf16", "npu-a16w8", "npu-a8w8", "npu-xint8"}),
        ("Relu", {"npu-a16w8", "npu-a8w8", "npu-xint8"}),
        ("Sigmoid", {"npu-bf16", "npu-a16w8", "npu-a8w8"}),
        ("HardSigmoid", {"npu-a8w8"}),
        ("LayerNormalization", {"npu-xint8"}),
        ("Gather", {"npu-bf16"}),
        ("Resize", {"npu-bf16", "npu-a8w8", "npu-xint8"}),
        ("SpaceToDepth", set()),
    ],
)
def test_rows(op_type, devices):
    assert {device.name for device in DEVICES.values() if op_type in device.operators} == devices


def test_what_is_likely_is_not_published_too():
    assert not [op for device in DEVICES.values() for op in device.likely if op in device.operators]


def test_an_unknown_device_gets_the_nearest_name():
    with pytest.raises(UsageError, match="Did you mean 'npu-xint8'"):
        find_device("npu-xint")


@pytest.mark.parametrize(
    ("recipe", "device"),
    [
        ("XINT8", "npu-xint8"),
        ("A8W8", "npu-a8w8"),
        ("A16W8", "npu-a16w8"),
        ("BF16", "npu-bf16"),
        ("VINT8", None),
        ("BFP16", None),
        ("FP16", None),
        ("S8S8_AAWS", None),
    ],
)
def test_the_device_of_a_recipe(recipe, device):
    found = device_of(find_recipe(recipe))
    assert (found.name if found.takes_models_of(find_recipe(recipe)) else None) == device


def test_the_recipe_of_a_device_is_for_that_device():
    for device in DEVICES.values():
        if device.recipe:
            assert device_of(PRESETS[device.recipe]) is device


def test_the_npu_asks_for_rules_and_rewrites():
    npu = find_device("npu-cnn")
    assert npu.constraints is SHIFTS
    assert set(npu.substitutions) == {rewrites.RoundLeakySlope, rewrites.SigmoidToHardSigmoid}
    assert set(npu.corrections) == {rewrites.ScaleHardSigmoid, rewrites.ScalePools, rewrites.ScaleReduceMean}


def test_the_cpu_asks_for_nothing():
    cpu = find_device("cpu")
    model, plan = plan_at(conv_relu_conv(), {"x": 50, "w1": 50, "r1": -50})
    before = dict(plan.positions)
    plan = cpu.constraints.constrain(model, plan)
    assert cpu.constraints.violations(model, plan) == []
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
    for device in DEVICES.values():
        if device.name != "npu-xint8" or dtype in TAKEN[role]:
            device.check(recipe)
            device.check(part)
    if dtype not in TAKEN[role]:
        with pytest.raises(UsageError, match=f"npu-cnn .*{role} of recipe XINT8 are {dtype}"):
            find_device("npu-cnn").check(recipe)
        with pytest.raises(UsageError, match=rf"{role} for head/\* of recipe XINT8 are {dtype}.*npu-a16w8.*cpu"):
            find_device("npu-cnn").check(part)


def test_names():
    assert all(device.name == name and device.description for name, device in DEVICES.items())
    assert not set(ALIASES) & set(DEVICES)
    assert all(name in DEVICES for names in ALIASES.values() for name in names)
    with pytest.raises(UsageError, match="'npu-cn'.*'npu-cnn'.*phx"):
        find_device("npu-cn")


@pytest.mark.parametrize(
    ("name", "recipe", "device"),
    [
        ("npu-cnn", None, "npu-xint8"),
        ("npu-float-scale", None, "npu-a8w8"),
        ("npu-float-scale", "A8W8", "npu-a8w8"),
        ("npu-float-scale", "A16W8", "npu-a16w8"),
        ("npu-float-scale", "BF16", "npu-a8w8"),
        ("npu-a16w8", "A8W8", "npu-a16w8"),
        ("npu-vaiml", None, "npu-vaiml"),
    ],
)
def test_aliases(name, recipe, device):
    assert (find_device(name) if recipe is None else device_of(PRESETS[recipe].replace(target=name))).name == device


@pytest.mark.parametrize("recipe", ["XINT8", "A8W8", "A16W8"])
def test_a_device_under_both_names_asks_for_the_same(recipe):
    old = PRESETS[recipe]
    new = old.replace(target=device_of(old).name)
    assert new.target != old.target and device_of(new) is device_of(old)
