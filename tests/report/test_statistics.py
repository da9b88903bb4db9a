from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import UsageError
from detent.observe.statistics import Histogram, TensorStatistics
from detent.observe.statistics_file import StatisticsFile
from detent.report import documents
from detent.results.tensors import outlier_ratio, summarise, view_statistics
from tests.models import count_sample


def counted(values):
    statistics = TensorStatistics()
    count_sample(statistics, np.asarray(values, np.float32))
    return statistics


def file_of(**tensors):
    statistics = {name: counted(values) for name, values in tensors.items()}
    return StatisticsFile("m", None, "2 images from here/", 2, statistics)


FILE = file_of(conv=[1.0, -1.0], spiky=[*[0.1] * 9999, 8.0], relu=[0.0, 0.0, 0.0, 4.0], empty=[])


def choose(statistics, tensor):
    largest = statistics.histogram.largest
    return {"MinMax": (-largest, largest), f"by name {tensor}": (0.0, 1.0)}


def text_of(view, width=120):
    return documents.text_of(view, width, verbose=True)


def test_known_answers():
    relu = summarise(2, "relu", FILE.statistics["relu"], choose)
    assert (relu.number, relu.samples, relu.values, relu.minimum, relu.maximum) == (2, 1, 4, 0.0, 4.0)
    assert relu.bin_width == 2.0**-10  # the range is ±8, in 8192 bins on each side
    assert relu.near_zero == relu.zeros_at_most == 0.75
    assert relu.outlier_ratio == 1.0  # one value of four is no outlier
    assert relu.choices == {"MinMax": (-4.0, 4.0), "by name relu": (0.0, 1.0)}
    both = summarise(0, "t", counted([-1e-9, 1e-9, 0.0, 1.0, -1.0]))
    assert (both.near_zero, both.zeros_at_most) == (0.6, 0.4)


def test_one_value_in_ten_thousand_is_an_outlier():
    # The range is ±16 with bins of 2^-9; 0.1 is in bin 51, whose upper edge is 52 / 512.
    assert summarise(0, "t", FILE.statistics["spiky"]).outlier_ratio == 8.0 / (52 / 512)


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=50), st.integers(1, 2000))
def test_the_outlier_ratio_is_that_of_the_sorted_values(values, repeats):
    everything = np.repeat(np.asarray(values, np.float32), repeats)
    histogram = Histogram()
    histogram.add(everything)
    magnitudes = np.sort(np.abs(everything))
    percentile = float(magnitudes[max(0, -(-len(magnitudes) * 999 // 1000) - 1)])
    largest = float(magnitudes[-1])
    found = outlier_ratio(histogram)
    assert found >= 1.0
    # The percentile is known up to one bin: it lies in the bin whose upper edge is used.
    used = largest / found
    assert percentile <= used * (1 + 1e-12)
    assert used <= percentile + histogram.width * (1 + 1e-6)


def test_nothing_counted_and_nothing_but_zeros():
    empty = summarise(0, "t", counted([]), choose)
    assert (empty.minimum, empty.maximum, empty.values, empty.choices) == (None, None, 0, {})
    zeros = summarise(0, "t", counted([0.0, -0.0]))
    assert (zeros.near_zero, zeros.outlier_ratio) == (1.0, 1.0)


def test_order_and_patterns():
    def names(**options):
        return [tensor.name for tensor in view_statistics(FILE, **options).tensors]

    assert names() == ["conv", "spiky", "relu", "empty"]
    assert names(order="outliers") == ["spiky", "conv", "relu", "empty"]
    assert names(patterns=["re*", "conv"]) == ["conv", "relu"]
    assert [tensor.number for tensor in view_statistics(FILE, patterns=["relu"]).tensors] == [2]
    with pytest.raises(UsageError, match="--tensor 'spicy' matches no tensor of the statistics. Did you mean 'spiky'?"):
        names(patterns=["conv", "spicy"])


def test_json():
    plain = json.loads(json.dumps(view_statistics(FILE, choose).to_dict(), allow_nan=False))
    assert (plain["description"], plain["samples"], plain["of"]) == ("2 images from here/", 2, 4)
    assert plain["tensors"][2]["choices"] == {"MinMax": [-4.0, 4.0], "by name relu": [0.0, 1.0]}
    assert plain["tensors"][3]["minimum"] is None


def test_the_table():
    lines = text_of(
        view_statistics(FILE, lambda statistics, _: {"MinMax": (-1.5, 2.0), "[b]": (0.0, 1.0)})
    ).splitlines()
    assert lines[0].rstrip() == "4 tensors, counted over 2 samples: 2 images from here/"
    assert lines[1].split() == ["#", "tensor", "minimum", "maximum", "near", "zero", "outliers"]
    assert lines[3].split() == ["1", "spiky", "0.1", "8", "0.0", "%", "78.8"]
    assert lines[5].split() == ["3", "empty", "-", "-", "0.0", "%", "1.0"]
    headings = next(index for index, line in enumerate(lines) if "MinMax" in line)
    assert lines[headings].split() == ["#", "MinMax", "[b]"]
    assert lines[headings + 1].split() == ["0", "-1.5", "..", "2", "0", "..", "1"]
    assert lines[headings + 4].split() == ["3", "-", "-"]


def test_hostile_names_are_shown_and_not_obeyed():
    text = text_of(view_statistics(file_of(**{"\x1b[2J[red]x[/red]\n": [1.0]}, other=[2.0]), patterns=["*x*"]))
    assert "\x1b" not in text
    assert r"\x1b[2J[red]x[/red]\n" in text
    assert text.startswith("1 of 2 tensors, ")
    described = dataclasses.replace(FILE, description="\x1b[2J[red]")
    assert r"2 samples: \x1b[2J[red]" in text_of(view_statistics(described))


def test_no_tensors():
    assert text_of(view_statistics(file_of())).startswith("0 tensors, ")
