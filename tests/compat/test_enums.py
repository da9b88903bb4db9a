from __future__ import annotations

import pickle

import onnxruntime.quantization as real
import pytest

from detent.compat import enums
from detent.compat.enums import (
    CalibMethod,
    CalibrationMethod,
    ExtendedCalibrationMethod,
    ExtendedQuantFormat,
    ExtendedQuantType,
    Int16Method,
    PowerOfTwoMethod,
    QuantFormat,
    QuantType,
    VitisQuantFormat,
    VitisQuantType,
)


@pytest.mark.parametrize("name", ["QInt8", "QUInt8", "QInt16", "QUInt16"])
def test_a_type_is_the_same_in_every_family(name):
    members = [family[name] for family in (QuantType, ExtendedQuantType, VitisQuantType, real.QuantType)]
    assert all(one == other and other == one for one in members for other in members)
    assert len(set(members)) == 1
    assert {members[0]: "found"}[members[-1]] == "found"


def test_methods_and_formats_are_those_of_onnxruntime():
    for ours, theirs in ((CalibrationMethod, real.CalibrationMethod), (QuantFormat, real.QuantFormat)):
        assert [member.name for member in ours] == [member.name for member in theirs]
        for member in theirs:
            assert ours[member.name] == member
            assert hash(ours[member.name]) == hash(member)
            assert ours[member.name].value == member.value


def test_what_only_has_the_same_name_differs():
    assert PowerOfTwoMethod.MinMSE != ExtendedCalibrationMethod.MinMSE
    assert CalibrationMethod.MinMax != Int16Method.MinMax
    assert CalibrationMethod.MinMax != CalibMethod.MinMax
    assert len({QuantFormat.QDQ, ExtendedQuantFormat.QDQ, VitisQuantFormat.QDQ}) == 3
    assert QuantType.QInt8 != QuantType.QUInt8
    assert QuantType.QInt8 != 0
    assert QuantType.QInt8 != "QInt8"


def test_members_are_found_by_name_print_and_pickle():
    assert QuantType.from_string("QInt8") is QuantType.QInt8
    with pytest.raises(ValueError, match="no member 'QInt9'"):
        QuantType.from_string("QInt9")
    assert str(PowerOfTwoMethod.MinMSE) == "MinMSE"
    assert repr(PowerOfTwoMethod.MinMSE) == "PowerOfTwoMethod.MinMSE"
    for kind in (kind for kind in vars(enums).values() if isinstance(kind, type) and issubclass(kind, enums.ToolEnum)):
        for member in kind:
            assert pickle.loads(pickle.dumps(member)) is member
