"""Quark's data types."""

from detent.compat.data_types import *  # noqa: F403 - all of them
