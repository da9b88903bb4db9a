"""The picture of the network: where boxes and lines are, what they are called, and which row they open."""

from __future__ import annotations

import re
import time
from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.graph.load import load
from detent.report import layered_layout
from detent.report.layer_table import layers_of
from detent.report.layered_layout import HEIGHT, WIDTH, draw_layered
from detent.report.network_view import Box, Coloring, NetworkChart, network_chart
from detent.results.tensors import NetworkNode, network_of
from tests.report.results import HOSTILE, hostile_model, quantization

ARROW = "m-3.5-5l3.5 5l3.5-5"


@st.composite
def networks(draw):
    count = draw(st.integers(1, 40))
    return [
        tuple(draw(st.lists(st.integers(0, node - 1), max_size=3, unique=True))) if node else ()
        for node in range(count)
    ]


def ends_of(line):
    """Where each arrow of a line points: the last place before it."""
    parts = line.split(ARROW)[:-1]
    return [tuple(map(float, re.findall(r"-?[\d.]+", part)[-1:])) for part in parts]


@given(networks())
@settings(max_examples=150, deadline=None)
def test_boxes_do_not_overlap_and_every_reader_has_its_arrow(sources):
    drawing = draw_layered(sources)
    for (x, y), (other_x, other_y) in combinations(drawing.places, 2):
        assert abs(x - other_x) >= WIDTH or abs(y - other_y) >= HEIGHT
    for x, y in drawing.places:
        assert -0.01 <= x - WIDTH / 2 <= x + WIDTH / 2 <= drawing.width + 0.01
        assert -0.01 <= y <= y + HEIGHT <= drawing.height + 0.01
    for source, line in enumerate(drawing.lines):
        readers = [node for node, read in enumerate(sources) if source in read]
        assert line.count(ARROW) == len(readers)
        tops = sorted(drawing.places[reader][1] for reader in readers)
        assert sorted(end[0] for end in ends_of(line)) == pytest.approx(tops, abs=0.06)


@given(networks())
@settings(max_examples=60, deadline=None)
def test_a_node_is_below_what_it_reads_or_in_a_later_column(sources):
    drawing = draw_layered(sources)
    for node, read in enumerate(sources):
        x, y = drawing.places[node]
        for source in read:
            above_x, above_y = drawing.places[source]
            assert y >= above_y + HEIGHT or x > above_x


def test_the_main_line_is_straight_and_skip_connections_run_beside_it(monkeypatch):
    monkeypatch.setattr(layered_layout, "PROPORTION", 0.01)  # one column
    # 0 -> 1 -> 2 -> 3, which also reads 0; then 4
    drawing = draw_layered([(), (0,), (1,), (2, 0), (3,)])
    assert len({x for x, _ in drawing.places}) == 1
    assert "C" in drawing.lines[0]
    assert "C" not in drawing.lines[1]


def test_what_only_a_constant_leads_to_stands_right_above_its_reader(monkeypatch):
    monkeypatch.setattr(layered_layout, "PROPORTION", 0.01)
    # 0 and 1 compute a shape; 2 is the input; 3, 4, 5, 6 a chain whose last node reads the shape
    drawing = draw_layered([(), (0,), (), (2,), (3,), (4,), (5, 1)], [2])
    heights = [y for _, y in drawing.places]
    assert heights[1] == heights[5]
    assert heights[0] == heights[4]


def test_a_deep_network_is_folded_to_the_proportions_of_a_screen():
    drawing = draw_layered([(), *((node,) for node in range(399))])
    assert 1.0 < drawing.width / drawing.height < 2.6


def test_five_thousand_nodes_are_placed_in_seconds():
    # Blocks of a transformer: a skip connection, three branches that meet, and one mask that all of them read.
    sources = [(), ()]
    while len(sources) < 5000:
        last = len(sources) - 1
        sources += [(last,), (last + 1,), (last + 1,), (last + 1, 0), (last + 2, last + 3), (last + 4, last + 5)]
        sources += [(last, last + 6)]
    began = time.process_time()
    drawing = draw_layered(sources, [0, 1])
    assert time.process_time() - began < 10
    assert len(set(drawing.places)) == len(sources)


def test_lines_too_long_for_a_picture_end_behind_their_node(monkeypatch):
    monkeypatch.setattr(layered_layout, "MOST_BENDS", 10)
    drawing = draw_layered([(), *((node,) for node in range(30)), (30, 0)])
    assert drawing.lines[0].count(ARROW) == 1
    assert "h10" in drawing.lines[0]


def test_nodes_are_read_from_the_graph_with_their_shapes():
    network = network_of(load(hostile_model()))
    assert [node.kind for node in network] == ["input", *["node"] * (len(network) - 2), "output"]
    assert all(node.sources == (at,) for at, node in enumerate(network[1:]))
    assert network[0].shape == "1×4×6×6"


def test_an_activation_function_is_in_the_box_of_its_convolution():
    report = quantization()
    layers = layers_of(report)
    chart = network_chart(report, layers)
    titles = [box.title for box in chart.boxes]
    assert titles == ["Input", *["Conv + Relu"] * 17, "Erf", "Output"]
    rows = {layer.node: layer for layer in layers}
    for box in chart.boxes[1:-2]:
        assert box.row == rows[box.name].id
        assert box.mark.endswith(" dB")
    assert "float: " in " ".join(chart.boxes[-2].about)
    assert [coloring.name for coloring in chart.colorings] == ["error", "number format", "device"]


def test_two_rows_are_never_in_one_box():
    names = ("conv", "relu", "reshape", "conv2", "relu2")
    network = [NetworkNode("in", "Input", (), kind="input")]
    network += [NetworkNode(name, name.capitalize(), (at,)) for at, name in enumerate(names)]
    from detent.report.network_view import _hosts

    assert _hosts(network, {"relu", "conv2"}) == [0, 1, 1, 1, 4, 4]
    assert _hosts(network, {"conv", "relu", "relu2"}) == [0, 1, 2, 2, 2, 5]


def test_names_stay_text():
    boxes = [Box("Conv", name, (), (0,), [name], "1 dB", "layer-1") for name in HOSTILE]
    drawn = NetworkChart(boxes, [Coloring("error", "e", {0: HOSTILE[0]})]).draw()
    root = ElementTree.fromstring(re.sub("<input[^>]*>", "", drawn))
    assert not [element.tag for element in root.iter() if element.tag in ("script", "img")]
    assert [title.text.split("\n")[0] for title in root.iter("title")] == list(HOSTILE)
