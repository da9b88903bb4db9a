"""The composite action's script: what it writes, what it comments, and when it fails."""

from __future__ import annotations

import importlib.util
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from detent.demo import CALIBRATION, MODEL

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("action_quantize", ROOT / "action" / "quantize.py")
action = importlib.util.module_from_spec(spec)
spec.loader.exec_module(action)


@pytest.fixture
def github():
    """A server that keeps comments as GitHub does."""
    comments, calls = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._answer(comments)

        def do_POST(self):
            comments.append({"id": len(comments) + 1, "body": self._body()})
            self._answer(comments[-1])

        def do_PATCH(self):
            found = next(each for each in comments if self.path.endswith(f"/comments/{each['id']}"))
            found["body"] = self._body()
            self._answer(found)

        def _body(self):
            return json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]

        def _answer(self, value):
            calls.append((self.command, self.path.split("?")[0], self.headers["Authorization"]))
            data = json.dumps(value).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", comments, calls
    server.shutdown()


@pytest.fixture
def environ(tmp_path):
    return {
        "DETENT_MODEL": str(MODEL),
        "DETENT_CALIBRATION": str(CALIBRATION),
        "DETENT_OUTPUT": str(tmp_path / "out.onnx"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_OUTPUT": str(tmp_path / "output.txt"),
    }


def test_it_quantizes_summarizes_and_replaces_its_comment(environ, github, tmp_path):
    url, comments, calls = github
    comments.append({"id": 1, "body": "something else"})
    request = {"GITHUB_API_URL": url, "GITHUB_REPOSITORY": "a/b", "DETENT_TOKEN": "t0", "DETENT_PULL_REQUEST": "7"}
    for _ in range(2):
        assert action.main({**environ, **request}) == 0
    assert [call[0] for call in calls] == ["GET", "POST", "GET", "PATCH"]
    assert {call[2] for call in calls} == {"Bearer t0"}
    assert calls[1][1] == "/repos/a/b/issues/7/comments"
    assert len(comments) == 2
    assert "Wrote " in comments[1]["body"]
    assert (tmp_path / "out.onnx").exists()
    assert (tmp_path / "out.html").exists()
    assert comments[1]["body"] in (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert re.search(r"^verdict=\w+$", (tmp_path / "output.txt").read_text(encoding="utf-8"), re.MULTILINE)


def test_what_fails_is_an_annotation(environ, capsys, tmp_path):
    assert action.main({**environ, "DETENT_MODEL": str(tmp_path / "none.onnx")}) == 1
    assert capsys.readouterr().out.startswith("::error::")
    assert action.main({**environ, "DETENT_FAIL_ON": "bad"}) == 2


class Fake:
    judgement = None

    def __str__(self):
        return "name ``` <script> ````"


def test_no_name_ends_the_fence_or_the_marker():
    text = action.comment_of(Fake(), "a --> b.onnx", "unknown")
    assert text.count("`````") == 2
    assert text.splitlines()[0] == "<!-- detent a_____b.onnx -->"


def test_the_action_hands_on_what_the_script_reads():
    declared = (ROOT / "action.yml").read_text(encoding="utf-8")
    script = (ROOT / "action" / "quantize.py").read_text(encoding="utf-8")
    assert set(re.findall(r"DETENT_\w+", script)) == set(re.findall(r"DETENT_\w+", declared))
