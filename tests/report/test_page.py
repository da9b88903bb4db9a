"""What the pages say, and that nothing of a model becomes markup. How they behave is for test_browser."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import detent
from detent.errors import OutputError, UsageError
from detent.evaluation.metric_file import Metric
from detent.plan.plan import Move
from detent.report import documents
from detent.report.documents import page_of, write_page
from detent.report.quantization import RULES
from detent.results.searched import Sensitivity, SensitivityReport
from detent.results.tensors import Closeness, TaskAgreement
from tests.conftest import tiny_model
from tests.models import XINT8
from tests.report import results
from tests.report.results import CLOSING, IMAGE, RESULTS, SCRIPT
from tests.search.test_proposal import layer

ROOT = Path(detent.__file__).parents[2]
RULE = re.compile(r'"((?:align|shift|hard|zero)[a-z ]*)"(?:, str\(|, n|\))')
ALLOWED = """
    html head meta link title style body header main footer section details summary div p span strong
    h1 h2 h3 ul li dl dt dd table thead tbody tr th td button input template figure figcaption
    bdi wbr pre code noscript script svg rect line circle text path polyline g aside
"""
CLOSED_LATE = {"meta", "link", "input", "wbr"}


class Reader(HTMLParser):
    """The elements and attributes of a page, and its text; elements must be closed in order."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.stack, self.text = [], [], [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in CLOSED_LATE:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module", params=list(RESULTS))
def page(request):
    return page_of(RESULTS[request.param]())


def test_a_page_is_made_of_our_elements_only(page):
    reader = Reader(page)
    assert set(reader.tags) <= set(ALLOWED.split())
    assert not reader.stack
    assert reader.tags.count("script") == reader.tags.count("style") == 1
    assert not [name for name, _ in reader.attributes if name.startswith("on") or name in ("style", "srcset", "action")]
    assert [value for name, value in reader.attributes if name in ("href", "src")] == ["data:,"]


def test_only_the_script_and_the_style_of_the_page_may_run(page):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1].replace("&#39;", "'")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for kind in ("script", "style"):
        own = re.search(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert rules.pop(f"{kind}-src") == f"'sha256-{digest}'"
    assert rules == {"default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    assert page.index("Content-Security-Policy") < page.index("<title>")


def test_a_page_names_no_other_place(page):
    assert not re.findall(r"https?://|url\(|@import|innerHTML|insertAdjacentHTML|document\.write|eval\(", page)


@pytest.mark.parametrize("name", ["quantize", "sensitivity", "compare", "folders", "tune"])
def test_hostile_names_are_shown_as_they_are(name):
    page = page_of(RESULTS[name]())
    text = Reader(page).text
    for hostile in (SCRIPT, IMAGE, CLOSING):
        assert hostile in text
        assert hostile not in page


def test_what_does_not_print_is_spelled_out_on_a_page():
    """An order to write from right to left, or to a terminal, in a name."""
    found = documents._templates().from_string("{{ name }}").render(name="a\u202eb\x1b[31m\nc")
    assert found == "a\\u202eb\\x1b[31m\nc"


def test_a_quantization_has_all_its_parts():
    report = dataclasses.replace(
        results.quantization(), moves=[Move(SCRIPT, 7, 5, "shift cut", IMAGE)], remarks=["Mind <this>."]
    )
    text = Reader(page_of(report)).text
    for title in (
        *("Error along the network", "Network", "Layers", "Left float", "Scales moved by rules", "Refinement"),
        *("Weights per channel", "Device npu-xint8", "Outputs", "Recipe", "Time", "Mind <this>."),
    ):
        assert title in text
    assert "shift cut" in text
    text = text[text.index("Every tensor that is rounded") :]
    worst = report.worst_tensors(1)[0]
    assert text.index(worst.name) < text.index(report.worst_tensors(2)[1].name)
    assert f"{worst.closeness.sqnr_db:.1f}" in text
    assert report.left_float()[0].reason in text


def test_every_rule_has_a_reason():
    sources = (ROOT / "src/detent/devices").glob("*.py")
    named = {rule for source in sources for rule in RULE.findall(source.read_text(encoding="utf-8"))}
    assert {"align", "shift read", "shift cut", "zero throughout"} <= named
    assert named <= set(RULES)


def test_every_rounded_tensor_has_a_row_with_a_histogram():
    report = results.quantization()
    page = page_of(report)
    activations = [tensor for tensor in report.tensors if tensor.role == "activation"]
    assert page.count("<template") == len(activations) + len(report.left_float())
    assert page.count("ends of the codes") == len(activations)
    assert page.count("before and after equalization") == 2 * len(report.pictures.channels)  # shown, and read out


def classes(loss, low, high):
    return TaskAgreement("classify", "", 16, loss, (low, high), {}, f"expected loss {loss}")


@pytest.mark.parametrize(
    ("changes", "level", "title"),
    [
        ({}, "good", "Close to float"),
        ({"agreement": classes(0.02, 0.0, 0.06)}, "plain", "Cannot tell from 3 samples"),
        ({"agreement": classes(0.1, 0.05, 0.2)}, "warn", "Worse than float"),
        ({"agreement": classes(0.5, 0.3, 0.6)}, "bad", "Broken"),
        (
            {"outputs": {"y": Closeness(0.0, 0.0, 0.0)}, "silent": {"y": 3e-6}, "agreement": classes(0.0, 0.0, 0.0)},
            "plain",
            "Cannot tell from these samples",
        ),
        ({"outputs": {"y": Closeness(0.0, 0.0, 0.0)}, "silent": {"y": 3e-6}}, "bad", "Broken"),  # numbers, no scores
        ({"outputs": {"y": Closeness(-math.inf, 0.0, 0.0)}}, "bad", "Broken"),
    ],
)
def test_verdicts_of_a_quantization(samples, changes, level, title):
    report = detent.quantize(tiny_model(), None, np.concatenate([samples, -samples]), task="regress")
    page = page_of(dataclasses.replace(report, fidelity=dataclasses.replace(report.fidelity, **changes)))
    assert f'<div class="verdict {level}"><h2>{title}</h2>' in page


def test_doubtful_data_is_the_first_thing_to_know(samples):
    report = detent.quantize(tiny_model(), None, samples[:4])
    text = Reader(page_of(report)).text
    assert "Unknown: the data is doubtful" in text
    assert report.warnings[0].startswith("Only 4 different samples")


def test_a_model_that_the_device_rejects_is_the_first_thing_to_know(samples):
    report = detent.quantize(tiny_model(), None, samples, keep_batch=True)
    page = page_of(dataclasses.replace(report, remarks=["Mind this."]))
    assert '<p class="figure bad">Not as it is</p>' in page
    text = Reader(page).text
    ready = "npu-xint8 runs nothing of it: the batch of input 'x' is not fixed"
    assert text.index("What to know") < text.index(f"Warning{ready}") < text.index("Mind this.")
    assert f"\nWarning: {ready}" in str(report)
    fixed = detent.quantize(tiny_model(), None, samples)
    assert ready not in str(fixed)
    assert "badge bad" not in page_of(fixed).replace(".badge.bad", "")


def test_what_was_not_measured_is_not_called_good(samples):
    report = detent.quantize(tiny_model(), None, samples)
    assert "<h2>Not measured</h2>" in page_of(dataclasses.replace(report, fidelity=None))
    random = dataclasses.replace(report.calibration, random=True)
    assert "<h2>Not real data</h2>" in page_of(dataclasses.replace(report, calibration=random))
    assert "<h2>Dry run</h2>" in page_of(detent.quantize(tiny_model(), dry_run=True))


@pytest.mark.parametrize("recipe", ["A16W8", "BF16", "BFP16", "MX6"])
def test_other_number_formats_have_a_page(samples, recipe):
    assert "Layers" in Reader(page_of(detent.quantize(tiny_model(), None, samples, recipe))).text


@pytest.mark.parametrize(
    ("lost", "level", "said"), [(1, "plain", "loses 5.00 points of top-1"), (9, "warn", "hardly chance")]
)
def test_verdicts_of_an_evaluation(lost, level, said):
    page = page_of(results.evaluation(lost=lost))
    assert f'<div class="verdict {level}">' in page
    assert said in Reader(page).text
    assert page.count("became wrong") == 2 * lost  # a cell, and what it is sorted by


def test_a_model_that_is_as_good_is_called_so():
    models = [results.classifier(np.ones(7))] * 2
    scores = np.eye(7, dtype=np.float32)[np.arange(1000) % 7]
    page = page_of(detent.evaluate(models, scores, labels=(np.arange(1000) % 7).tolist()))
    assert '<div class="verdict good"><h2>As good as the first</h2>' in page


def test_every_changed_answer_is_listed():
    text = Reader(page_of(results.evaluation(labels=False, lost=9))).text
    assert all(f"array[{row}]" in text for row in range(9))
    assert "array[9]" not in text
    assert "11 of 20" in text


@pytest.mark.parametrize(
    "metric",
    [Metric(SCRIPT, score=lambda outputs, _: float(outputs.max())), Metric(SCRIPT, whole=lambda all_, _: len(all_))],
)
def test_metrics_of_users_have_a_page(metric):
    models = [results.classifier(np.ones(7)), results.classifier(np.full(7, 2.0))]
    page = page_of(detent.evaluate(models, np.eye(7, dtype=np.float32), metric=metric))
    assert SCRIPT in Reader(page).text
    assert SCRIPT not in page
    assert page_of(detent.evaluate(models[:1], np.eye(7, dtype=np.float32), metric=metric))


def test_two_folders_are_named_with_the_worst_file():
    text = Reader(page_of(results.folders())).text
    assert "int8 against float" in text
    assert "answers/int8 against answers/float." in text
    assert f"The mean absolute difference. Worst: 1, in {CLOSING}." in text  # by 0, 0.5 and 1 on average
    assert "SSIM" not in text  # these are no images
    assert "The same against" not in text


def test_a_tuning_says_whether_it_reached_its_goal():
    assert '<div class="verdict good"><h2>Reached</h2>' in page_of(results.tuning())
    missed = page_of(results.tuning(met=False))
    assert '<div class="verdict warn"><h2>Not reached</h2>' in missed
    assert "A16W8" in missed


def test_errors_of_nothing_and_without_end_can_be_shown():
    for errors in ((0.0, 0.0), (math.inf, 0.1)):
        layers = tuple(dataclasses.replace(layer(f"n{at}"), weights=each) for at, each in enumerate(errors))
        found = Sensitivity(layers, (), {}, max(errors), None, 1, True)
        assert "Layers" in Reader(page_of(SensitivityReport("model.onnx", XINT8, found))).text


def test_nothing_else_has_a_page(tmp_path):
    with pytest.raises(UsageError, match="no page for dict"):
        write_page({}, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_a_page_is_written_completely_or_not_at_all(tmp_path):
    detent.write_page(results.tuning(), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page_of(results.tuning())
    with pytest.raises(OutputError):
        write_page(results.tuning(), tmp_path / "missing" / "page.html")


def test_the_command_to_type_next_is_on_the_page():
    page = page_of(results.evaluation())
    assert "Next: <code>detent " in page
    assert "Next: <code>" not in page_of(dataclasses.replace(results.quantization(), dry_run=True))
