from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import OutputError
from detent.observe.statistics import TensorStatistics
from detent.report.statistics_plots import LEFT, PLOT_HEIGHT, RIGHT, WIDTH, plot_statistics, svg_of
from tests.models import count_sample

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title><script>alert(1)</script>&\"'\0\x1b\ud800]]>"


def counted(*values):
    statistics = TensorStatistics()
    count_sample(statistics, np.asarray(values, np.float32))
    return statistics


def parsed(name, statistics, choices):
    return ElementTree.fromstring(svg_of(name, statistics, choices))


def bars(root):
    return [
        tuple(float(bar.get(key)) for key in ("x", "y", "width", "height"))
        for bar in root.iter(f"{SVG}rect")
        if bar.get("class") == "bar"
    ]


def texts(root):
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def test_bars_are_where_the_values_are_and_as_high_as_the_logarithm_of_their_number():
    found = bars(parsed("t", counted(*[1.0] * 10, *[2.0] * 1000, *[3.0] * 100), {}))
    assert len(found) == 3
    places = [x for x, _, _, _ in found]
    assert places[2] - places[1] == pytest.approx(places[1] - places[0], abs=0.02)
    low, most, middle = (height for _, _, _, height in found)
    # 1000 is 3 decades, 100 is 2, 10 is 1: equal steps.
    assert most - middle == pytest.approx(middle - low, abs=0.02)
    assert most - middle > 50


def test_a_single_value_is_seen():
    found = bars(parsed("t", counted(*[0.0] * 100_000, 5.0), {}))
    assert found[-1][3] > 5


def test_ranges_are_drawn_and_labelled():
    root = parsed("t", counted(-1.0, 3.0), {"MinMax": (-1.0, 3.0), "Entropy <1>": (0.0, 2.5)})
    shown = texts(root)
    assert {"MinMax", "-1 .. 3", "Entropy <1>", "0 .. 2.5"} <= set(shown)
    thick = [line for line in root.iter(f"{SVG}line") if line.get("stroke-width") == "4"]
    thin = [line for line in root.iter(f"{SVG}line") if line.get("stroke-dasharray")]
    assert len(thick) == 2
    assert len(thin) == 3  # zero has none
    left, right = (float(thick[0].get(key)) for key in ("x1", "x2"))
    assert left < right
    zero, end = (float(thick[1].get(key)) for key in ("x1", "x2"))
    assert zero == pytest.approx(left + (right - left) / 4, abs=0.02)
    assert end == pytest.approx(left + (right - left) * 3.5 / 4, abs=0.02)
    assert len({line.get("stroke") for line in thick}) == 2


def test_hostile_names_are_text():
    root = parsed(HOSTILE, counted(1.0), {HOSTILE: (0.0, 1.0)})
    assert not list(root.iter(f"{SVG}script"))
    assert root.find(f"{SVG}title").text == r"""</title><script>alert(1)</script>&"'\x00\x1b\ud800]]>"""


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(finite, min_size=1, max_size=20), st.tuples(finite, st.just(float("inf"))))
def test_everything_stays_within_the_frame(values, choice):
    root = parsed("t", counted(*values), {"any": choice, "all": (min(values), max(values))})
    found = bars(root)
    assert found
    for x, _, width, height in found:
        assert LEFT <= x <= x + width <= WIDTH - RIGHT + 0.5
        assert 0 < height <= PLOT_HEIGHT + 0.01
    for line in root.iter(f"{SVG}line"):
        assert all(LEFT - 0.01 <= float(line.get(key)) <= WIDTH - RIGHT + 0.01 for key in ("x1", "x2"))
    ticks = [float(text.text) for text in root.iter(f"{SVG}text") if text.get("text-anchor") == "middle"]
    assert 4 <= len(ticks) <= 14
    assert ticks == sorted(set(ticks))


def test_without_values_it_says_so():
    assert "No values were counted." in texts(parsed("t", counted(), {}))


def test_files_are_unique_numbered_and_complete(tmp_path):
    statistics = {name: counted(1.0) for name in ("a/b", "a.b", "../up", "left out", HOSTILE)}
    folder = tmp_path / "new" / "plots"
    files = plot_statistics(statistics, folder, {name: {} for name in statistics if name != "left out"})
    assert [file.name for file in files[:3]] == ["000_a_b.svg", "001_a_b.svg", "002_up.svg"]
    assert files[3].name.startswith("004_title")
    assert sorted(folder.iterdir()) == files
    assert [each.name for each in tmp_path.iterdir()] == ["new"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="Cannot make the folder .*file for the plots: File exists"):
        plot_statistics({}, tmp_path / "file", {})
