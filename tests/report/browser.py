"""A headless Chromium for tests, driven over the DevTools protocol through a pipe: no package beside Python is needed.

Messages are JSON with a zero byte behind each. The browser reads them from its file descriptor 3 and writes to 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--remote-debugging-pipe"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)

PATIENCE = 60  # seconds; a busy machine takes some to start it

# Both pipes go out of the way first: either may be 3 or 4 already.
LAUNCH = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for found in map(shutil.which, names) if found), None)


class Browser:
    """One browser with one page. `problems` are what the page complained about on its console, or threw."""

    def __init__(self, profile: Path):
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._read, write = os.pipe()
        read, self._write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(read), str(write), find_browser(), *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._rest, self._number, self._session, self._loaded = b"", 0, None, False
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def close(self):
        self._process.terminate()
        self._process.wait(20)
        os.close(self._read)
        os.close(self._write)

    def open(self, file: Path, width: int = 1280, dark: bool = False, height: int = 900, media: str = ""):
        """Load a file at a width, in light or dark mode; `media` is "print" for how it looks on paper."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", media=media, features=scheme)
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 640}
        self._call("Emulation.setDeviceMetricsOverride", **metrics)
        self.problems, self.requests, self._loaded = [], [], False
        self._call("Page.navigate", url=file.as_uri())
        while not self._loaded:
            self._receive()

    def run(self, script: str):
        """The value of an expression on the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector: str):
        """A click with the mouse in the middle of an element."""
        quoted = json.dumps(selector)
        self.run(f"document.querySelector({quoted}).scrollIntoView({{block: 'center'}})")
        box = self.run(f"document.querySelector({quoted}).getBoundingClientRect().toJSON()")
        at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, **at)

    def type(self, selector: str, text: str):
        """Type into a field."""
        self.click(selector)
        self._call("Input.insertText", text=text)

    def screenshot(self, file: Path, whole: bool = True):
        """The page as PNG."""
        data = self._call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(data))

    def pdf(self) -> bytes:
        """The page as it is printed on A4, whose sides are given in inches."""
        made = self._call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        return base64.b64decode(made["data"])

    def _call(self, method: str, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _receive(self):
        while b"\0" not in self._rest:
            assert select.select([self._read], [], [], PATIENCE)[0], "the browser does not answer"
            more = os.read(self._read, 1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        answer = json.loads(message)
        self._note(answer.get("method"), answer.get("params", {}))
        return answer

    def _note(self, event: str | None, about: dict):
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event in ("Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
            self.problems.append(json.dumps(about))
        elif event == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.problems.append(about["entry"]["text"])
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(about["args"]))
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
