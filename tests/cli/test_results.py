from __future__ import annotations

import json

import pytest

from detent.cli.console import PageOptions, PrintOptions, ResultOptions, check_file
from detent.errors import OutputError
from detent.report.document import Document, Paragraph, Section
from detent.report.documents import BUILDERS


class Result:
    def to_json(self):
        return '{"a": 1}'

    def save(self, path):
        path.write_text(self.to_json())


def test_a_result_is_shown_or_printed_as_json(capsys, tmp_path, monkeypatch):
    closing = [Section("Table", blocks=[Paragraph("long", on="verbose")])]
    document = Document("result", "", (), sections=closing, closing=["shown", "next"])
    monkeypatch.setitem(BUILDERS, Result, lambda _: document)
    file = tmp_path / "report.json"
    ResultOptions().tell(Result())
    assert capsys.readouterr().out == "shown\nnext\n"
    ResultOptions(report=file, page=PageOptions(printing=PrintOptions(verbose=True))).tell(Result())
    assert capsys.readouterr().out.splitlines() == ["long", f"shown Also wrote {file}.", "next"]
    ResultOptions(report=file, page=PageOptions(printing=PrintOptions(json=True))).tell(Result())
    assert json.loads(capsys.readouterr().out) == json.loads(file.read_text()) == {"a": 1}


def test_no_file_takes_the_place_of_another(tmp_path):
    model = tmp_path / "m.onnx"
    model.write_bytes(b"model")
    with pytest.raises(OutputError, match="overwrite"):
        ResultOptions(report=model).check(model, None)
    with pytest.raises(OutputError, match="overwrite"):
        ResultOptions(report=tmp_path / "r", page=PageOptions(html=tmp_path / "r")).check(model)
    ResultOptions(report=tmp_path / "r.json", page=PageOptions(html=tmp_path / "r.html")).check(model)
    check_file(None, model)
