"""Compiled loops that call each other, from several threads at once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from detent.numerics.compiled import _LazyLoop, another_compiles, compiled

MODULE = """
@compiled
def unrelated(x):
    return middle(x) - 1.0

@compiled
def greatest(x):
    return middle(x) + least(x)

@compiled
def middle(x):
    return 2.0 * least(x)

@compiled
def least(x):
    return x + 1.0
"""


def loops(tmp_path, name):
    """A module of its own: what one test compiles is not compiled in the next."""
    path = tmp_path / f"{name}.py"
    path.write_text(MODULE)
    names = {"compiled": compiled, "__name__": name, "__file__": str(path)}
    exec(compile(MODULE, str(path), "exec"), names)
    return names


def test_a_call_makes_the_loops_that_it_needs_and_no_others(tmp_path):
    names = loops(tmp_path, "a_few")
    assert names["middle"](3.0) == 8.0
    assert not isinstance(names["least"], _LazyLoop)
    assert isinstance(names["greatest"], _LazyLoop) and isinstance(names["unrelated"], _LazyLoop)


def test_a_name_stands_for_machine_code_only_after_those_that_it_calls(tmp_path, monkeypatch):
    """Whatever another thread calls by its name at that moment can be compiled."""
    names, seen = loops(tmp_path, "in_order"), []
    resolve = _LazyLoop._resolve

    def watched(loop):
        made = resolve(loop)
        seen.append({name for name, value in names.items() if name in NEEDS and not isinstance(value, _LazyLoop)})
        return made

    NEEDS = {"least": set(), "middle": {"least"}, "greatest": {"middle", "least"}, "unrelated": {"middle"}}
    monkeypatch.setattr(_LazyLoop, "_resolve", watched)
    assert names["greatest"](3.0) == 12.0
    assert seen
    for ready in seen:
        assert all(NEEDS[name] <= ready for name in ready)


def test_many_threads_call_first(tmp_path):
    names = loops(tmp_path, "threads")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda at: names[("greatest", "unrelated", "middle")[at % 3]](3.0), range(24)))
    assert found == [12.0, 7.0, 8.0] * 8


@pytest.mark.parametrize("damage", [b"", b"\x80\x04nonsense"])
@pytest.mark.parametrize("kind", ["*.nbi", "*.nbc"])
def test_a_damaged_cache_is_compiled_anew(tmp_path, kind, damage):
    assert loops(tmp_path, "damaged")["middle"](3.0) == 8.0
    kept = list((tmp_path / "__pycache__").glob(kind))
    assert kept
    for file in kept:
        file.write_bytes(damage)
    assert loops(tmp_path, "damaged")["middle"](3.0) == 8.0
    assert all(file.read_bytes() != damage for file in kept)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", full)
    assert loops(tmp_path, "full")["middle"](3.0) == 8.0


def test_a_loop_that_another_process_compiles_is_waited_for(tmp_path):
    names, going, there = loops(tmp_path, "elsewhere"), threading.Event(), threading.Event()

    def finished():
        going.set()
        there.wait()
        yield "elsewhere:middle\n"

    another_compiles(["elsewhere:middle"], finished())
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(names["middle"], 3.0)
        going.wait()
        time.sleep(0.05)
        assert not found.done() and isinstance(names["least"], _LazyLoop)
        there.set()
        assert found.result() == 8.0


def test_nobody_waits_for_a_process_that_ended(tmp_path):
    another_compiles(["ended:middle"], iter(()))
    assert loops(tmp_path, "ended")["middle"](3.0) == 8.0
