"""File names for tensors: the harmless part of a tensor's name, and never the same for two of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONGEST = 180  # file systems end at 255 bytes, and endings follow


def file_stems(names: Sequence[str]) -> list[str]:
    """A file name without ending for each name; where two would be alike, the later one is numbered."""
    used: set[str] = set()
    stems = []
    for name in names:
        base = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".")[:_LONGEST] or "_"
        stem, number = base, 1
        while stem.lower() in used:  # some file systems do not tell A from a
            number += 1
            stem = f"{base}_{number}"
        used.add(stem.lower())
        stems.append(stem)
    return stems
