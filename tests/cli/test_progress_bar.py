from __future__ import annotations

import gc
import io
import time

import pytest
from rich.console import Console

from detent.cli import console as module
from detent.cli.console import progress_bar, run
from detent.progress import silent


def test_silent_where_there_is_no_terminal():
    with progress_bar(Console(file=io.StringIO())) as progress:
        assert progress is silent
        progress("calibrate", 1, 2)


@pytest.mark.parametrize(("patience", "shown"), [(0.01, True), (60.0, False)])
def test_a_bar_only_for_stages_that_last(monkeypatch, patience, shown):
    monkeypatch.setattr(module, "PATIENCE", patience)
    stream = io.StringIO()
    with progress_bar(Console(file=stream, force_terminal=True, width=100)) as progress:
        progress("load", 0, None)
        progress("calibrate", 0, 10)
        time.sleep(0.25)
        progress("calibrate", 4, 10)
        time.sleep(0.25)
    assert ("calibrate" in stream.getvalue()) == shown
    assert ("4/10" in stream.getvalue()) == shown


def test_the_collector_rests_until_the_first_stage():
    """What is loaded before it stays for good. A command that fails while it loads leaves the collector on."""
    seen = []

    def verb(progress):
        seen.append(gc.isenabled())
        progress("load", 0, 1)
        seen.append(gc.isenabled() and gc.get_freeze_count() > 0)

    run(verb)
    with pytest.raises(ZeroDivisionError):
        run(lambda progress: 1 // 0)
    assert seen == [False, True]
    assert gc.isenabled()
