"""Ctrl-C while a command keeps something for the next time."""

from __future__ import annotations


class InterruptedWithWordsError(Exception):
    """Ctrl-C, with something to say about what is left."""
