"""Every code block of the README and of the documents runs as it stands, in a folder that has what it speaks of.

A page is run from its top to its bottom, since blocks use what those before them made. What a Python block prints is
compared with the text block behind it, if there is one. A Python block that is written for another quantizer runs on
`detent run`. A TOML block is a recipe: it is read, and planned for a model of the folder. A block whose first line is
`# NAME.py` or `# NAME.toml` is also a file of that name.
"""

from __future__ import annotations

import dataclasses
import io
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from tools.command_reference import page as command_page
from tools.golden_models import detector

import detent
from detent.compat.script_runner import run_script
from detent.demo import copy_files
from detent.devices.catalog import ALIASES, DEVICES, OPTIONAL, leavable_steps
from detent.numerics import NAMED_FORMATS
from detent.recipe import Override, Recipe
from detent.recipe.recipe import OutputFormat
from tests.compat.scripts import IMAGE_SCRIPT
from tests.models import since_runtime
from tests.transformer_models import PLAIN, bert, bert_data

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(sh|python|toml|json)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# ([\w-]+\.(?:py|toml))\n")
FOREIGN = re.compile(r"^(?:import|from) (?:quark|vai_q_onnx|onnxruntime\.quantization)\b", re.MULTILINE)
SET_UP = ("make demo", "make test", 'pip install ".[cpu]"', "detent demo --files digits", "cd digits")
COMMAND = re.compile(r"(detent [^|<>&;$]*)(?:> (\S+)|(\|\|) echo [^|<>&;$]*)?")
"""A command, maybe with a file for what it prints, or with something to say where `detent check` finds fault."""
UNFIT = 6  # the exit code of `detent check` for a model that does not run on the device whole
LOADED = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?:[^\"]+)")


class Block(NamedTuple):
    """A block of a page: its language, its lines, and what it prints (None where the page does not say)."""

    language: str
    code: str
    printed: str | None


def blocks_of(page: Path) -> list[Block]:
    return [Block(*found.groups()) for found in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def classifier() -> onnx.ModelProto:
    """Three channels of 224x224 in, ten logits out."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["input", "w"], ["c"], name="conv", strides=[16, 16]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "v"], ["logits"], name="head/gemm"),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, 224, 224])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        [
            numpy_helper.from_array(rng.standard_normal((8, 3, 4, 4)).astype(np.float32), "w"),
            numpy_helper.from_array(rng.standard_normal((8, 10)).astype(np.float32), "v"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("readme")
    for name in ("mobilenetv2.onnx", "model.onnx"):
        onnx.save(classifier(), path / name)
    onnx.save(detector(), path / "detector.onnx")
    (path / "quantize.py").write_text(IMAGE_SCRIPT, encoding="utf-8")
    onnx.save(bert(PLAIN, layers=1), path / "bert.onnx")
    (path / "texts").mkdir()
    for index, feeds in enumerate(bert_data(12)):
        np.savez(path / "texts" / f"{index}.npz", **feeds)
    (path / "images").mkdir()
    rng = np.random.default_rng(1)
    for index in range(12):
        Image.fromarray(rng.integers(0, 256, (240, 260, 3), dtype=np.uint8)).save(path / "images" / f"{index}.png")
    for label in range(10):
        (path / "photos" / f"class {label}").mkdir(parents=True)
        Image.fromarray(rng.integers(0, 256, (240, 260, 3), dtype=np.uint8)).save(path / f"photos/class {label}/a.png")
    copy_files(path / "digits")
    _thin_out(path / "digits" / "labelled")
    return path


def _thin_out(folder):
    """Keep every fifth labelled image: pages show what all of them give, but only whether they run is tested."""
    first, *rows = (folder / "labels.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = rows[::5]
    (folder / "labels.csv").write_text("".join([first, *kept]), encoding="utf-8")
    for file in (folder / "images").iterdir():
        if not any(file.name in row for row in kept):
            file.unlink()


@pytest.fixture
def detent_command(request):
    """The command line in this process; `detent` itself is the package here."""
    return request.getfixturevalue("detent")


RUNNING = [
    pytest.param(page, marks=[since_runtime(21, "bfloat16")] if page.stem == "formats" else [], id=page.stem)
    for page in PAGES
    if blocks_of(page)
]


@pytest.mark.parametrize("page", RUNNING)
def test_page_runs(page, folder, monkeypatch, detent_command):
    with_demo = "cd digits\n" in page.read_text(encoding="utf-8")
    place, model = (folder / "digits", "digits.onnx") if with_demo else (folder, "model.onnx")
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    blocks = blocks_of(page)
    for block in blocks:
        named = NAMED.match(block.code)
        if named:
            (place / named[1]).write_text(block.code, encoding="utf-8")
    for block in blocks:
        if block.language == "toml":
            (place / "block.toml").write_text(block.code, encoding="utf-8")
            detent.quantize(place / model, recipe=place / "block.toml", dry_run=True)
        elif block.language == "json":  # the one file of settings that pages show
            (place / "prep.json").write_text(block.code, encoding="utf-8")
        elif block.language == "python":
            _run_python(block, place)
        else:
            _run_shell(block.code, place, detent_command)


def _run_python(block, place):
    """In this process, for the same reason; what starts processes itself needs one of its own."""
    if "__main__" in block.code:
        printed = _finish([sys.executable, "-c", block.code], place, block.code)
    else:
        file = place / "block.py"
        file.write_text(block.code, encoding="utf-8")
        with redirect_stdout(io.StringIO()) as out:
            run_script(file, []) if FOREIGN.search(block.code) else runpy.run_path(str(file), run_name="__main__")
        printed = out.getvalue()
    assert block.printed is None or printed == block.printed


def _run_shell(code, place, detent_command):
    for line in code.replace("\\\n", " ").strip().splitlines():
        command = line.split("  #")[0].strip()
        if not command or command in SET_UP:
            continue
        command = command.replace("--workers 2", "--workers 1")  # one process takes the same way as two
        if ours := COMMAND.fullmatch(command):  # what it imports is imported once, for all pages
            outcome = detent_command(*shlex.split(ours[1])[1:])
            assert outcome.code in ((0, UNFIT) if ours[3] else (0,)), f"{command}\n{outcome.out}\n{outcome.err}"
            if ours[2]:
                (place / ours[2]).write_text(outcome.out, encoding="utf-8")
        else:
            _finish(re.sub(r"^detent\b", f"{sys.executable} -m detent.cli", command), place, command)


def _finish(command, place, shown):
    """Run a command to its end, and return what it prints."""
    done = subprocess.run(
        command, cwd=place, check=False, timeout=120, capture_output=True, text=True, shell=isinstance(command, str)
    )
    assert done.returncode == 0, f"{shown}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_can_be_typed_in_cmd_and_powershell(page):
    """Neither takes single quotes for quotes, or a backslash at the end of a line for more to come."""
    ours = [line for block in blocks_of(page) if block.language == "sh" for line in block.code.splitlines()]
    assert not [line for line in ours if "'" in line or line.endswith("\\") or line.startswith(("cat ", "echo "))]


def test_nothing_is_left_to_fill_in():
    assert not any("@@" in page.read_text(encoding="utf-8") for page in PAGES)


def test_the_readme_opens_with_the_two_commands():
    first = blocks_of(ROOT / "README.md")[0].code
    assert first.split()[:2] == ["make", "demo"]
    assert "make test" in first


def test_every_option_that_is_named_exists():
    known = command_page()
    for page in PAGES:
        ours = re.sub(r"(python -m (?:benchmarks|fuzz)|quark-cli)[^`\n]*", "", page.read_text(encoding="utf-8"))
        for option in set(re.findall(r"--[a-z][a-z-]+", ours)):
            assert option in known, f"{option} in {page.name}"


def test_figures_that_stand_on_two_pages_are_the_same():
    readme, benchmarks = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/benchmarks.md"))
    rows = re.findall(r"^\| `(?:XINT8|A8W8|A16W8|BF16)` .*$", readme, re.MULTILINE)
    assert len(rows) == 4
    assert not [row for row in rows if row not in benchmarks]


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("recipes.md", [*leavable_steps(), *OPTIONAL]),
        (
            "recipes.md",
            [field.name for field in dataclasses.fields(Recipe) if field.name not in ("name", "description")],
        ),
        ("recipes.md", [*DEVICES, *ALIASES]),
        ("formats.md", list(NAMED_FORMATS)),
        ("formats.md", list(get_args(OutputFormat))),
        ("check.md", list(DEVICES)),
    ],
    ids=["steps", "fields", "targets", "number formats", "output formats", "devices"],
)
def test_everything_that_has_a_name_is_explained(page, names):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert not [name for name in names if f"`{name}`" not in text]


def test_every_part_of_an_override_has_an_example():
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    parts = {field.name for field in dataclasses.fields(Override)} - {"biases"}  # which are as weights
    assert not [name for name in parts if f"{name} = " not in text]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if not anchor:
            continue
        titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
        anchors = [re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles]
        assert anchor in anchors, link


def test_every_page_is_in_the_contents():
    named = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == [page.name for page in PAGES[1:]], "mkdocs.yml has the contents of the manual"


def test_every_page_is_linked_from_the_first():
    first = (ROOT / "docs" / "index.md").read_text()
    missing = {page.name for page in PAGES} - set(re.findall(r"\]\(([\w-]+\.md)", first))
    assert missing == {"README.md", "index.md"}


def test_the_manual_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="make docs installs mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    _finish(build, ROOT, "mkdocs build --strict")
    for page in (tmp_path / "site").glob("*.html"):
        assert not LOADED.findall(page.read_text(encoding="utf-8")), f"{page.name} needs the network"
