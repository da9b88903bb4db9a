"""Candidates against each other: the front, and the charts and tables that show it."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from detent.report.charts import DepthChart, Estimate, FrontChart, Point, front_of
from detent.report.documents import page_of
from detent.results.checked import CostEstimate
from tests.report.results import HOSTILE, named_evaluation, tuning

losses, costs = st.integers(-5, 20).map(float), st.integers(0, 20).map(float)
candidates = st.lists(st.builds(Estimate, st.just("a"), loss=losses, cost=costs), min_size=1)


@given(candidates)
def test_nothing_beats_what_is_on_the_front_and_all_else_is_beaten(some):
    front = front_of(some)
    for each in some:
        beaten = any(
            other.cost <= each.cost and other.loss <= each.loss and (other.cost, other.loss) != (each.cost, each.loss)
            for other in some
        )
        assert beaten != any((each.cost, each.loss) == (one.cost, one.loss) for one in front)


def test_the_chart_has_a_dot_an_interval_and_a_name_for_each():
    some = [Estimate(HOSTILE[0], 2.0, (1.0, 3.0), cost=4.0), Estimate("b", 0.0, marked=True, cost=8.0)]
    root = ElementTree.fromstring(FrontChart(some, "MB", "points").draw())
    dots = list(root.iter("circle"))
    assert [dot.get("cx") for dot in dots] == ["50.00%", "100.00%"]
    assert len([line for line in root.iter("line") if "whisker" in line.get("class")]) == 1
    assert [dot.find("title").text.split(":")[0] for dot in dots] == [HOSTILE[0], "b"]


def test_names_of_candidates_that_stand_close_do_not_overlap():
    some = [Estimate(f"digits_{at}", 1.0, cost=4.0 + 0.01 * at) for at in range(4)]
    root = ElementTree.fromstring(FrontChart(some, "MB", "points").draw())
    heights = sorted(int(text.get("dy")) for text in root.iter("text") if text.get("class") == "who")
    assert len(heights) == 4 and all(later - each >= 15 for each, later in pairwise(heights))


def test_models_side_by_side_have_size_time_and_accuracy():
    found = named_evaluation()
    costs = (9.0, 3.0, 4.5)
    models = [
        dataclasses.replace(each, cost=CostEstimate(cost, 0.3, ""), bytes=int(1e6 * cost))
        for each, cost in zip(found.models, costs, strict=True)
    ]
    result = dataclasses.replace(found, models=models)
    page = page_of(result)
    assert page.count('class="plot front"') == 2
    assert re.search(r'data-key="4\.5">4\.5<div[^>]*>3\.1 \.\. 5\.9', page)
    assert "estimated ms" in str(result).lower()
    assert result.to_dict()["models"][1]["estimated_milliseconds"] == 3.0
    assert "estimated_milliseconds" not in found.to_dict()["models"][1]


def test_a_tuning_has_a_front_if_its_steps_differ_in_size():
    result = tuning()
    assert 'class="plot front"' not in page_of(result)
    steps = [dataclasses.replace(result.steps[0], bytes_after=2_000_000), *result.steps[1:]]
    assert page_of(dataclasses.replace(result, steps=steps)).count('class="plot front"') == 1


def test_extremes_limits_and_places_along_the_network_are_named():
    values = [40.0, 31.0, 22.0, 8.0, 15.0, 18.0]
    points = [Point(f"l{at}", value, name=f"layer{at}") for at, value in enumerate(values)]
    root = ElementTree.fromstring(DepthChart([points], "dB", limits={20.0: "twenty", 10.0: "ten", 90.0: "out"}).draw())
    texts = [text.text for text in root.iter("text")]
    meanings = [key[0].tail for key in root.iter("span")]  # below: beside the lines they would lie over dots
    assert "layer3 8.0" in texts and "layer0 40.0" in texts and "layer5 18.0" not in texts
    assert meanings == ["twenty", "ten"] and not {"twenty", "ten", "out"} & set(texts)
    assert texts.count("layer0") == texts.count("layer5") == 1
