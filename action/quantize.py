"""What action.yml runs: quantize, write the page, and say in the job's summary and the pull request what it cost.

Everything comes from the environment. A comment that an earlier run left on the same pull request, about the same
model, is replaced.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import detent

ORDER = ("close", "unclear", "unknown", "worse", "broken")
SIGNS = {"close": "✅", "unclear": "❔", "unknown": "❔", "worse": "⚠️", "broken": "❌"}


def main(environ: Mapping[str, str]) -> int:
    """Return the exit code: 1 if the verdict is as bad as the one to fail on."""
    limit = environ.get("DETENT_FAIL_ON") or "broken"
    if limit not in (*ORDER, "never"):
        print(f"fail-on is {limit}: choose from {', '.join(ORDER)} or never.", file=sys.stderr)
        return 2
    output = Path(environ.get("DETENT_OUTPUT") or "quantized.onnx")
    page = output.with_suffix(".html")
    try:
        report = detent.quantize(
            environ["DETENT_MODEL"],
            output,
            environ["DETENT_CALIBRATION"],
            environ.get("DETENT_RECIPE") or "XINT8",
            device=environ.get("DETENT_DEVICE") or None,
        )
    except detent.DetentError as error:
        print(f"::error::{str(error).splitlines()[0]}")
        return 1
    detent.write_page(report, page)
    verdict = "unknown" if report.judgement is None else report.judgement.level
    text = comment_of(report, environ["DETENT_MODEL"], verdict)
    append(environ.get("GITHUB_STEP_SUMMARY"), text)
    append(environ.get("GITHUB_OUTPUT"), f"verdict={verdict}\npage={page}\n")
    if environ.get("DETENT_TOKEN") and environ.get("DETENT_PULL_REQUEST"):
        post(environ, text)
    return int(limit != "never" and ORDER.index(verdict) >= ORDER.index(limit))


def comment_of(report: Any, model: str, verdict: str) -> str:
    """Return the comment. Names of a model are anybody's text: they stand in a fence that none of them can close."""
    printed = str(report)
    ticks = max((len(found) for found in re.findall("`+", printed)), default=0)
    fence = "`" * max(ticks + 1, 3)
    title = "not measured" if report.judgement is None else report.judgement.title
    return f"{marker(model)}\n### {SIGNS[verdict]} Detent: {title}\n\n{fence}text\n{printed}\n{fence}\n"


def marker(model: str) -> str:
    """Return what tells the comment about this model from others. It must not end early."""
    return f"<!-- detent {re.sub(r'[^A-Za-z0-9._/]', '_', model)} -->"


def append(file: str | None, text: str) -> None:
    """Add to one of the files that a workflow's step hands on."""
    if file:
        with Path(file).open("a", encoding="utf-8") as opened:
            opened.write(text)


def post(environ: Mapping[str, str], text: str) -> None:
    """Write the comment, or replace the one of an earlier run."""
    root = f"{environ.get('GITHUB_API_URL', 'https://api.github.com')}/repos/{environ['GITHUB_REPOSITORY']}/issues"
    comments = f"{root}/{environ['DETENT_PULL_REQUEST']}/comments"
    first = marker(environ["DETENT_MODEL"])
    earlier = [each for each in call(environ, f"{comments}?per_page=100") if each["body"].startswith(first)]
    if earlier:
        call(environ, f"{root}/comments/{earlier[0]['id']}", "PATCH", text)
    else:
        call(environ, comments, "POST", text)


def call(environ: Mapping[str, str], url: str, method: str = "GET", body: str | None = None) -> Any:
    """Ask GitHub, and return what it answers."""
    data = None if body is None else json.dumps({"body": body}).encode()
    headers = {"Authorization": f"Bearer {environ['DETENT_TOKEN']}", "Accept": "application/vnd.github+json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=60) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main(os.environ))
