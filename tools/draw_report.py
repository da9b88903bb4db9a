"""The pictures of the report in the manual: `python -m tools.draw_report docs/pictures` draws them, with Chromium."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

from PIL import Image
from tests.report.browser import Browser

import detent
from detent.demo import copy_files

SHOW = "document.querySelector('figure.network').scrollIntoView(); scrollBy(0, -110)"
OPEN = "document.querySelectorAll('.boxes > g')[9].dispatchEvent(new MouseEvent('click', {bubbles: true}))"


def main(arguments: list[str]) -> None:
    """Draw the top of the demo's page, and its network with a layer opened."""
    folder = Path(arguments[0]).absolute()
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        copy_files(Path("digits"))
        os.chdir("digits")
        report = detent.quantize("digits.onnx", "digits_xint8.onnx", "calibration", preprocess="preprocess.json")
        page = Path("report.html").absolute()
        detent.write_page(report, page)
        browser = Browser(Path("profile").absolute())
        browser.open(page, 1200, height=620)
        _keep(browser, folder / "report.png")
        browser.open(page, 1200, height=800)
        browser.run(f"{SHOW}; {OPEN}")
        _keep(browser, folder / "report-network.png")
        browser.close()


def _keep(browser: Browser, file: Path) -> None:
    """Save what is in sight, with few colors: a third of the size, and nobody sees it."""
    browser.screenshot(Path("shot.png"), whole=False)
    picture = Image.open(Path("shot.png")).convert("RGB").quantize(128)
    saved = io.BytesIO()
    picture.save(saved, "PNG", optimize=True)
    file.write_bytes(saved.getvalue())


if __name__ == "__main__":
    main(sys.argv[1:])
