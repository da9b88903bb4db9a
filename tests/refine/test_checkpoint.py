"""A checkpoint of a refinement is a file that somebody else may have written."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest

from detent.errors import DataError
from detent.refine.refine import _unpack
from tests.observe.test_files import Trap


def test_a_checkpoint_runs_no_code(tmp_path):
    sprung = tmp_path / "sprung"
    archive = io.BytesIO()
    np.savez(archive, np.array([Trap(sprung)], object))
    for body in (archive.getvalue(), pickle.dumps(Trap(sprung))):
        with pytest.raises(DataError, match="forged is damaged"):
            _unpack(body, "forged")
    assert not sprung.exists()
