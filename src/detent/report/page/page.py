"""A result as one file of HTML that needs no other: style, script and pictures are in it, and it fetches nothing.

Names of nodes, tensors and files are anybody's text. They are escaped where markup is made (html.py), the script never
turns text into markup, and the policy in the head lets no other script or style run than the two whose hashes it has.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path

from detent.errors import UsageError
from detent.graph.save import write_text
from detent.report.page.comparison import comparison, folders
from detent.report.page.evaluation import evaluation
from detent.report.page.html import Markup, joined, tag
from detent.report.page.parts import Contents, body_of
from detent.report.page.quantization import quantization
from detent.report.page.sensitivity import sensitivity
from detent.report.page.tuning import tuning
from detent.results.compared import FolderComparison, ModelComparison
from detent.results.evaluated import Evaluation
from detent.results.quantized import Report
from detent.results.searched import SensitivityReport, Tuning
from detent.version import __version__

Result = Report | Evaluation | ModelComparison | FolderComparison | SensitivityReport | Tuning


def write_page(result: Result, path: str | Path) -> None:
    """Write the page of a result, complete or not at all: of quantize, evaluate, compare, sensitivity or tune."""
    write_text(page_of(result), Path(path))


def page_of(result: Result) -> str:
    """The page as text."""
    return _document(_contents(result))


def _contents(result: Result) -> Contents:
    if isinstance(result, Report):
        return quantization(result)
    if isinstance(result, Evaluation):
        return evaluation(result)
    if isinstance(result, ModelComparison):
        return comparison(result)
    if isinstance(result, FolderComparison):
        return folders(result)
    if isinstance(result, SensitivityReport):
        return sensitivity(result)
    if isinstance(result, Tuning):
        return tuning(result)
    raise UsageError(
        f"There is no page for {type(result).__name__}: give what quantize, evaluate, sensitivity or tune returned."
    )


def _document(contents: Contents) -> str:
    style, script = _own("page.css"), _own("page.js")
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    policy += "; base-uri 'none'; form-action 'none'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{contents.title}: {contents.kind}"),
        tag("style", Markup(style)),
    )
    scripted = tag("noscript", "Sorting, searching and opening rows need JavaScript. ")
    foot = tag("footer", scripted, f"Made by Detent {__version__}. This page is complete: it fetches nothing.")
    body = tag("body", joined((body_of(contents), foot)), tag("script", Markup(script)))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _own(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    """What lets an inline style or script of exactly this text in."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
