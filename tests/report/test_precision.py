from __future__ import annotations

from detent.numerics.formats import IntegerFormat
from detent.recipe.file import find_recipe
from detent.report.searches import SHOWN
from detent.results.searched import FormatOption, PrecisionReport, PrecisionSearch

A8W8 = find_recipe("A8W8")
INT4, INT8, INT16 = (IntegerFormat(dtype) for dtype in ("int4", "int8", "int16"))


def report(choice, *, error=0.001, reached=True, **wish):
    bits = sum(option.bits for option in choice.values())
    numbers = sum(option.bits // option.format.bits for option in choice.values())
    found = PrecisionSearch(A8W8, "weights", choice, {INT8: 1e-4, INT4: 0.1}, error, bits / numbers, reached, 3)
    return PrecisionReport("model.onnx", A8W8, found, **wish)


TWO = {"first": FormatOption(INT4, 4000, 0.01), "second\n": FormatOption(INT8, 8000, 0.0)}


def test_the_table():
    lines = str(report(TWO, mean_bits=6.0)).splitlines()
    assert lines[0] == "model.onnx, A8W8: the format of each layer's weights"
    assert lines[2].split() == ["first", "int4", "1,000", "-20.0"]
    assert lines[3].split() == ["second\\n", "int8", "1,000", "-inf"]
    assert lines[6].split() == ["all", "int4", "4", "1", "kB", "-10.0"]
    assert lines[7].split() == ["all", "int8", "8", "2", "kB", "-40.0"]
    assert lines[8].split() == ["mixed:", "1", "int4,", "1", "int8", "6.00", "1.5", "kB", "-30.0"]
    assert lines[9] == "Measured on 3 samples, nothing refined."
    assert lines[10] == "Weights take 500 bytes less than with A8W8 (25.0 %)."


def test_more_than_before_and_as_much():
    assert "take 1 kB more than with A8W8 (100.0 %)" in str(
        report({"a": FormatOption(INT16, 16000, 0.1)}, mean_bits=16.0)
    )
    assert "take as much as with A8W8" in str(report({"a": FormatOption(INT8, 8000, 0.1)}, mean_bits=8.0))


def test_what_was_missed_is_said():
    said = " ".join(str(report(TWO, reached=False, max_error=1e-5)).split())
    assert "-50.0 dB cannot be reached by choosing from int4, int8: the best is -30.0 dB." in said


def test_plain_values():
    plain = report(TWO, max_error=0.01).to_dict()
    assert (plain["bits"], plain["bits_before"], plain["mean_bits"]) == (12000, 16000, 6.0)
    assert [each["numbers"] for each in plain["formats"]] == [1000, 1000]
    assert plain["formats"][1]["error_db"] is None
    assert list(plain["uniform"]) == ["int4", "int8"]
    assert plain["recipe"]["name"] == "A8W8"


def test_many_layers():
    many = {f"layer{index}": FormatOption(INT4, 400, 0.01) for index in range(SHOWN + 2)}
    assert "and 2 more" in str(report(many, mean_bits=4.0))
    assert f"layer{SHOWN + 1} " in report(many, mean_bits=4.0).to_text(verbose=True)


def test_the_recipe_that_was_written_is_the_next_to_use(tmp_path):
    file = tmp_path / "mixed.toml"
    written = report(TWO, mean_bits=6.0).with_file(file)
    assert find_recipe(file) == A8W8
    assert (
        str(written).splitlines()[-1].endswith(f"Next: detent quantize model.onnx OUTPUT --calib DATA --recipe {file}")
    )
