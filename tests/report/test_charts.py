from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detent.report.charts import (
    Axis,
    ChannelChart,
    DepthChart,
    Estimate,
    HistogramChart,
    IntervalChart,
    Point,
    round_step,
)
from detent.results.tensors import ActivationHistogram, ChannelSizes


def drawn(chart):
    return ElementTree.fromstring(chart.draw())


def share(value):
    assert value.endswith("%")
    return float(value[:-1]) / 100


@pytest.mark.parametrize(("least", "step"), [(1, 1), (1.1, 2), (2.1, 5), (7, 10), (0.03, 0.05), (100, 100)])
def test_steps_are_round(least, step):
    assert round_step(least) == pytest.approx(step)


@example([5e-324])
@given(st.lists(st.floats(-1e30, 1e30), min_size=1))
def test_an_axis_has_room_for_everything(values):
    axis = Axis.over([*values, math.inf, -math.inf, math.nan])
    little = 1e-6 * (axis.high - axis.low)
    assert little > 0
    assert axis.low - little <= min(values) <= max(values) <= axis.high + little
    assert 2 <= len(axis.ticks) <= 9
    assert all(0 <= axis.along(value) <= 1 for value in values)


def test_dots_are_where_their_values_are():
    root = drawn(DepthChart([[Point("a", 0.0), None, Point("<b>", 10.0, "layer-3"), Point("c", 5.0)]], "dB"))
    dots = list(root.iter("circle"))
    assert [share(dot.get("cx")) for dot in dots] == pytest.approx([0, 2 / 3, 1], abs=1e-4)
    assert [share(dot.get("cy")) for dot in dots] == pytest.approx([1, 0, 0.5])
    assert dots[1].find("title").text == "<b>"
    assert dots[1].get("data-opens") == "layer-3"
    assert len(root.find(".//polyline").get("points").split()) == 3


def test_values_without_end_are_at_the_edge():
    root = drawn(DepthChart([[Point("a", 10.0), Point("b", 20.0), Point("c", math.inf), Point("d", -math.inf)]], "dB"))
    assert [share(dot.get("cy")) for dot in root.iter("circle")] == pytest.approx([1, 0, 0, 1])


def columns(root, style):
    """Where each column begins, its top and where it ends: columns side by side share an outline."""
    path = root.find(f".//path[@class='{style}']")
    found = []
    for outline in [] if path is None else OUTLINE.findall(path.get("d")):
        start = float(outline[0])
        for top, end in COLUMN.findall(outline[1]):
            found.append((start, float(top), float(end)))
            start = float(end)
    return found


OUTLINE = re.compile(r"M([\d.]+) 100((?:V[\d.]+H[\d.]+)+)V100z")
COLUMN = re.compile(r"V([\d.]+)H([\d.]+)")


def test_what_lies_outside_of_the_codes_is_drawn_apart():
    shown = ActivationHistogram(((0.0, 1.0, 1000), (1.0, 2.0, 10), (2.0, 3.0, 1)), (-2.0, 2.0), 1011)
    root = drawn(HistogramChart(shown, "label"))
    inside, outside = columns(root, "bars"), columns(root, "bars out")
    assert (len(inside), len(outside)) == (2, 1)
    assert inside[0][1] < inside[1][1] < outside[0][1] < 100  # heights go by the logarithm, and one value is seen
    ends = [share(line.get("x1")) for line in root.iter("line") if line.get("class") == "range"]
    assert ends[1] == pytest.approx(inside[1][2] / 100, abs=1e-4)
    assert "clipped" in "".join(root.itertext())


def test_blocks_have_no_ends():
    root = drawn(HistogramChart(ActivationHistogram(((0.0, 0.0, 4),), None, 4), "label"))
    assert not [line for line in root.iter("line") if line.get("class") == "range"]
    assert "clipped" not in "".join(root.itertext())


def test_channels_are_two_curves_on_a_logarithmic_axis():
    sizes = ChannelSizes(3, (10.0, 1.0, 0.1), (1.0, 1.0, 1.0), 10.0, 1.0)
    before, after = drawn(ChannelChart(sizes, "label")).iter("polyline")
    assert before.get("points") == "0.00,0.00 50.00,50.00 100.00,100.00"
    assert after.get("points") == "0.00,50.00 50.00,50.00 100.00,50.00"


def test_channels_that_are_zero_can_be_drawn():
    assert "zero" in ChannelChart(ChannelSizes(2, (0.0, 0.0), (0.0, 0.0), math.inf, math.inf), "label").draw()
    drawn(ChannelChart(ChannelSizes(2, (1.0, 0.0), (1.0, 0.0), 2.0, 2.0), "label"))


def test_losses_stand_on_one_axis_with_their_limit():
    root = drawn(IntervalChart([Estimate("a", 2.0, (0.0, 4.0)), Estimate("b", 4.0, None, marked=True)], 1.0, "points"))
    dots = [share(dot.get("cx")) for dot in root.iter("circle")]
    assert dots == pytest.approx([0.5, 1.0])
    whiskers = [line for line in root.iter("line") if line.get("class").startswith("whisker")]
    assert [(share(line.get("x1")), share(line.get("x2"))) for line in whiskers] == [(0.0, 1.0)]
    limits = {line.get("x1") for line in root.iter("line") if line.get("class") == "range"}
    assert [share(limit) for limit in limits] == pytest.approx([0.25])
