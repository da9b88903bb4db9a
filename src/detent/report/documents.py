"""The builder of the document of each result; results as text, and as a page in one self-contained file.

Names of nodes, tensors and files are untrusted text. The templates escape every text (autoescape is on), and spell out
characters that do not print. The script never turns text into markup, and the policy in the head allows no script or
style but the two whose hashes it has. So no text of a model becomes markup or a script, and nothing is fetched.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from detent.comparison.folders import Dump
from detent.comparison.inspection import Inspection
from detent.convert import Conversion
from detent.convert.splitting import Split
from detent.errors import UsageError
from detent.graph.save import write_text
from detent.recipe import Recipe
from detent.report import differences, listings
from detent.report.document import Code, Document, Facts, Figure, NoteList, Paragraph, Table
from detent.report.figures import printable_lines
from detent.report.losses import evaluation_document
from detent.report.network_view import NetworkChart
from detent.report.quantization import quantization_document
from detent.report.searches import precision_document, sensitivity_document, tuning_document
from detent.report.terminal import PlainConsole, print_document
from detent.results.checked import DeviceCheck
from detent.results.compared import Emulation, FolderComparison, ModelComparison
from detent.results.evaluated import Evaluation
from detent.results.quantized import Report
from detent.results.searched import PrecisionReport, SensitivityReport, Tuning
from detent.results.tensors import StatisticsView
from detent.version import __version__

if TYPE_CHECKING:
    import jinja2

BUILDERS: dict[type, Callable[[Any], Document]] = {
    Report: quantization_document,
    DeviceCheck: listings.check_document,
    Evaluation: evaluation_document,
    Tuning: tuning_document,
    SensitivityReport: sensitivity_document,
    PrecisionReport: precision_document,
    ModelComparison: differences.comparison_document,
    FolderComparison: differences.folders_document,
    Emulation: differences.emulation_document,
    Conversion: differences.conversion_document,
    Split: differences.split_document,
    Inspection: listings.inspection_document,
    Dump: listings.dump_document,
    StatisticsView: listings.statistics_document,
    Recipe: listings.recipe_document,
}


def document_of(result: object) -> Document:
    """Return the document of a result; a document is its own. Raise UsageError for anything else."""
    if isinstance(result, Document):
        return result
    builder = BUILDERS.get(type(result))
    if builder is None:
        raise UsageError(
            f"There is no page for {type(result).__name__}: give what quantize, evaluate, sensitivity or tune returned."
        )
    return builder(result)


def line_of(result: object, width: int = 160) -> str:
    """Return a result in one line: <Report: model.onnx -> model_int8.onnx. Close to float.>"""
    document = document_of(result)
    verdict = document.verdict.title if document.verdict is not None else next(iter(document.closing), "")
    subject = next(iter(document.headline), document.title).removesuffix(".")
    words = " ".join(". ".join(part for part in (subject, verdict) if part).split())
    return f"<{type(result).__name__}: {words if len(words) <= width else words[: width - 1] + '…'}>"


def text_of(result: object, width: int = 120, *, verbose: bool = False) -> str:
    """Return what the command line prints, as plain text."""
    text = io.StringIO()
    print_document(document_of(result), PlainConsole(file=text, width=width), verbose=verbose)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


LARGE = 1_000_000  # characters from which the contents of rows are deflated: 1,000 layers have three times as many
FEW = 12  # rows that are shown before the others are asked for

# Where a long name may be broken: behind a separator, but not within a number.
_PARTS = re.compile(r"(?<=[/_:])(?=[^/._:])|(?<=\.)(?=[^/._:\d])")

# The macro in blocks.html that draws a block.
_KINDS = {
    Paragraph: "paragraph",
    NoteList: "notes",
    Facts: "facts",
    Code: "code",
    Figure: "figure",
    Table: "table",
}


def write_page(result: object, path: str | Path) -> None:
    """Write the page of a result of quantize, evaluate, compare, sensitivity or tune, complete or not at all."""
    write_text(page_of(result), Path(path))


def page_of(result: object) -> str:
    document = document_of(result)
    drawn = ["page", *(["network"] if _has_network(document) else [])]
    style, script = ("\n".join(_own(f"{name}.{kind}") for name in drawn) for kind in ("css", "js"))
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    return (
        _templates()
        .get_template("page.html")
        .render(
            document=document,
            policy=f"{policy}; base-uri 'none'; form-action 'none'",
            style=Markup(style),
            script=Markup(script),
            version=__version__,
        )
    )


def summary_frame(result: object) -> str:
    """Return the page up to its first pictures, in a frame of its own: a notebook's styles do not touch it."""
    document = document_of(result)
    shown = [section for section in document.sections if section is not None and section.on != "terminal"]
    pictures = [at for at, section in enumerate(shown) if any(isinstance(block, Figure) for block in section.blocks)]
    summary = replace(document, sections=shown[: pictures[0] + 1 if pictures else 1])
    return str(
        Markup('<iframe srcdoc="{}" width="100%" height="480" style="border:0"></iframe>').format(page_of(summary))
    )


def _has_network(document: Document) -> bool:
    return any(
        isinstance(block, Figure) and isinstance(block.chart, NetworkChart)
        for section in document.sections
        if section is not None
        for block in section.blocks
    )


@cache
def _templates() -> jinja2.Environment:
    import jinja2  # here: only pages need it

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("detent.report"),
        autoescape=True,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters["parts"] = _PARTS.split
    templates.filters["packed"] = _packed
    templates.tests["on_page"] = lambda part: part is not None and part.on != "terminal"
    templates.globals.update(few=FEW, kind_of=lambda block: _KINDS[type(block)])
    return templates


def _packed(markup: Markup) -> Markup:
    """Return markup packed for the script if it is large. None of it is shown before a row is opened."""
    if len(markup) < LARGE:
        return markup
    packed = base64.b64encode(zlib.compress(markup.encode(), 9)).decode()
    return Markup('<template class="packed">{}</template>').format(packed)


def _finalize(value: Any) -> Any:
    """Spell out characters that do not print in every text that a template shows."""
    return printable_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _own(name: str) -> str:
    loader = _templates().loader
    assert loader is not None
    return loader.get_source(_templates(), name)[0]


def _hash(content: str) -> str:
    """Return the policy's source expression for an inline style or script of exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
