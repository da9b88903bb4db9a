from __future__ import annotations

import pytest

from detent.devices.catalog import DEVICES, device_of, find_device
from detent.errors import UsageError
from detent.presets import PRESETS
from detent.recipe_file import find_recipe


@pytest.mark.parametrize(
    ("name", "count"), [("npu-bf16", 78), ("npu-a16w8", 53), ("npu-a8w8", 53), ("npu-xint8", 83), ("cpu", 0)]
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
    assert (found and found.name) == device


def test_the_recipe_of_a_device_is_for_that_device():
    for device in DEVICES.values():
        if device.recipe:
            assert device_of(PRESETS[device.recipe]) is device
