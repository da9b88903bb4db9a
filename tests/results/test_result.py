"""What every result can do: one line in a notebook, a frame with its summary, a table."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import detent
from tests.conftest import tiny_model


@pytest.fixture(scope="module")
def report():
    return detent.quantize(tiny_model(), None, None)


def test_a_result_is_one_line(report):
    for result in (report, report.device):
        assert "\n" not in repr(result) and len(repr(result)) < 200
        assert repr(result).startswith(f"<{type(result).__name__}: ")


def test_a_notebook_shows_the_summary_in_a_frame_of_its_own(report):
    html = report._repr_html_()
    assert html.startswith("<iframe") and html.count("<") == 2, "the page is escaped: no markup of it leaks out"
    assert "svg" in html


def test_tensors_as_a_table(report, monkeypatch):
    made = []
    frame = SimpleNamespace(set_index=lambda name: (name, made))
    pandas = SimpleNamespace(DataFrame=lambda rows=(): made.extend(rows) or frame)
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert report.to_frame() == ("name", made)
    assert [row["name"] for row in made] == [tensor.name for tensor in report.tensors]
    assert all("sqnr_db" in row for row, tensor in zip(made, report.tensors, strict=True) if tensor.closeness)


def test_without_pandas_it_says_so(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(detent.UsageError, match="pandas"):
        report.to_frame()
