"""The wheel and the sdist: what is in them, and that a wheel alone is enough."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytest.importorskip("setuptools", minversion="70.1", reason="setuptools is not installed, or builds no wheels")

ROOT = Path(__file__).parents[2]
BUILD = """
import sys
from setuptools import build_meta
out = sys.argv[1]  # which setuptools changes
build_meta.build_wheel(out)
build_meta.build_sdist(out)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Both, built from a copy of the tree: nothing is left in it."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(out)], cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def test_a_wheel_has_everything_that_is_read_at_run_time(packages):
    names = set(zipfile.ZipFile(packages[0]).namelist())
    tree = ROOT / "src" / "detent"
    ours = {
        f"detent/{file.relative_to(tree).as_posix()}"
        for file in tree.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert ours <= names
    others = {name for name in names - ours if not re.match(r"detent-[\d.]+\.dist-info/", name)}
    assert others == set()


def test_the_metadata_names_extras_and_the_command(packages):
    archive = zipfile.ZipFile(packages[0])
    read = {name.rpartition("/")[2]: archive.read(name).decode() for name in archive.namelist() if "dist-info" in name}
    metadata = read["METADATA"]
    assert {"cpu", "torch", "distributed"} <= set(re.findall(r"^Provides-Extra: (\w+)", metadata, re.MULTILINE))
    # A vendor's build must not be replaced: onnxruntime is never required.
    required = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", metadata, re.MULTILINE)
    assert "numpy" in required
    assert not {"onnxruntime", "torch", "pandas", "scipy", "opencv-python"} & set(required)
    assert "detent = detent.__main__:main" in read["entry_points.txt"]
    assert "Root-Is-Purelib: true" in read["WHEEL"]


def test_an_sdist_has_the_source(packages):
    with tarfile.open(packages[1]) as archive:
        names = archive.getnames()
    assert any(name.endswith("src/detent/report/templates/page.html") for name in names)
    assert any(name.endswith("pyproject.toml") for name in names)


def test_an_installed_wheel_runs_and_says_what_is_missing(packages, tmp_path):
    install = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path / "site"), str(packages[0])]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, capture_output=True)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.modules['onnxruntime'] = None\n"
        "import detent\nfrom pathlib import Path\nMODEL = Path(detent.__file__).parent / 'demo' / 'digits.onnx'\n"
        "assert detent.__file__.startswith(sys.argv[1]), detent.__file__\n"
        "try: detent.quantize(MODEL, trust=True)\n"
        "except detent.UsageError as error: print(error)\n"
    )
    site = str(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-c", script, site], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "onnxruntime" in done.stdout and "pip install" in done.stdout, done.stderr[-2000:]
    command = next((tmp_path / "site" / "bin").glob("detent*"))
    run = f"import sys, runpy; sys.path.insert(0, {site!r}); runpy.run_path({str(command)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", run, "--version"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


LOADED = """
import contextlib, importlib, pkgutil, sys
sys.modules['onnxruntime'] = None
import detent
for found in pkgutil.walk_packages(detent.__path__, 'detent.', onerror=str):
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(found.name)
print(' '.join({name.partition('.')[0] for name, module in sys.modules.items() if module}))
"""


def test_what_a_wheel_without_extras_loads_is_what_it_requires(packages):
    """A package that only an extra brings would be there on our machines, and missing on a user's."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = {
        canonicalize_name(owner)
        for module, owners in importlib.metadata.packages_distributions().items()
        if module in done.stdout.split()
        for owner in owners
    }
    archive = zipfile.ZipFile(packages[0])
    metadata = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    found: set[str] = set()
    open_ = re.findall(r"^Requires-Dist: (.*)", metadata, re.MULTILINE)
    while open_:
        requirement = Requirement(open_.pop())
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            open_ += importlib.metadata.requires(name) or []
    assert "numpy" in loaded
    assert loaded - {"detent", "setuptools", "pip"} <= found


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        (["recipes"], 0, "XINT8"),
        (["devices"], 0, "npu-xint8"),
        (["demo", "{out}"], 2, "pip install onnxruntime"),
        (["quantize", "{model}", "{out}", "--calib", "{model}"], 2, "pip install onnxruntime"),
        (["check", "{model}"], 0, "npu-xint8"),
        (["run", "{script}"], 2, "pip install onnxruntime"),
    ],
)
def test_commands_without_onnxruntime_work_or_name_it(tmp_path, command, code, told):
    """In one process with nothing loaded before, as the console script starts: even to print an error loads modules."""
    script = tmp_path / "script.py"
    script.write_text("from quark.onnx import ModelQuantizer\n")
    model = ROOT / "src" / "detent" / "demo" / "digits.onnx"
    words = [word.format(out=tmp_path / "out.onnx", model=model, script=script) for word in command]
    start = "import sys; sys.modules['onnxruntime'] = None; from detent.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", start, *words], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr[-2000:]
    assert told in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
