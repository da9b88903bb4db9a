"""Compiled loops that call each other, from several threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from detent.numerics.compiled import _LazyLoop, compiled

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
