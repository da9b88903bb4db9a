"""Every code block of the README and of the documents runs as it stands, in a folder that has what it speaks of.

What a Python block prints is compared with the text block behind it, if there is one. A TOML block is a recipe: it is
read, and planned for a model of the folder.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import detent
from detent.numerics.named import NAMED_FORMATS
from detent.recipe import OutputFormat, Override, Recipe
from detent.targets.optional import OPTIONAL, leavable_steps
from detent.targets.support import DEVICES
from detent.targets.target import TARGETS
from tests.compat.scripts import IMAGE_SCRIPT
from tests.transformer_models import PLAIN, bert, bert_data

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(sh|python|toml)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
BLOCKS = [
    pytest.param(*found.groups(), id=f"{page.stem}-{number}")
    for page in PAGES
    for number, found in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8")), 1)
]
SET_UP = ("make demo", "make test", "pip install .")


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
            numpy_helper.from_array(rng.standard_normal((8, 3, 16, 16)).astype(np.float32), "w"),
            numpy_helper.from_array(rng.standard_normal((8, 10)).astype(np.float32), "v"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("readme")
    for name in ("mobilenetv2.onnx", "model.onnx"):
        onnx.save(classifier(), path / name)
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
    for block in BLOCKS:
        named = re.match(r"# (\w+\.py)\n", block.values[1])  # a file that another block uses
        if named:
            (path / named[1]).write_text(block.values[1], encoding="utf-8")
    return path


@pytest.mark.parametrize(("language", "code", "printed"), BLOCKS)
def test_block_runs(language, code, printed, folder):
    if language == "toml":
        (folder / "block.toml").write_text(code, encoding="utf-8")
        detent.quantize(folder / "model.onnx", recipe=folder / "block.toml", dry_run=True)
        return
    if language == "python":
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, check=True, timeout=120, stdout=subprocess.PIPE, text=True
        )
        assert printed is None or done.stdout == printed
        return
    for line in code.strip().splitlines():
        command = line.split("  #")[0].strip()
        if command in SET_UP:
            continue
        runnable = re.sub(r"^detent\b", f"{sys.executable} -m detent.cli", command)
        subprocess.run(runnable, shell=True, cwd=folder, check=True, timeout=120, capture_output=True)


def test_nothing_is_left_to_fill_in():
    assert not any("@@" in page.read_text(encoding="utf-8") for page in PAGES)


def test_the_readme_opens_with_the_two_commands():
    first = BLOCKS[0].values[1]
    assert first.split()[:2] == ["make", "demo"]
    assert "make test" in first


def test_every_option_that_is_named_exists():
    commands = (
        *("quantize", "stats", "inspect", "convert", "recipes", "evaluate", "compare", "infer", "check"),
        *("sensitivity", "mix", "tune", "emulate", "dump"),
    )
    known = "".join(_help(command) for command in commands)
    for page in PAGES:
        for option in set(re.findall(r"--[a-z][a-z-]+", page.read_text(encoding="utf-8"))):
            assert option in known, f"{option} in {page.name}"


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("recipes.md", [*leavable_steps(), *OPTIONAL]),
        (
            "recipes.md",
            [field.name for field in dataclasses.fields(Recipe) if field.name not in ("name", "description")],
        ),
        ("recipes.md", list(TARGETS)),
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
        titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
        anchors = [re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles]
        assert not anchor or anchor in anchors, link


def _help(command):
    return subprocess.run(
        [sys.executable, "-m", "detent.cli", command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "200", "PATH": "", "HOME": str(Path.home())},
    ).stdout
