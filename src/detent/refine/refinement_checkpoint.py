"""What an interrupted refinement had finished, so that the next run of the same kind goes on from there.

A layer is refined on what the layers before it give, and those do not change any more. So its numbers, its report and
its scale are all that has to be kept: a run that takes them over computes the same bytes as one that was never
interrupted. The file belongs to one identity: these models, scales, samples and settings. Any other is ignored, and
replaced.
"""

from __future__ import annotations

import dataclasses
import io
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.errors import DataError
from detent.numerics.formats import holds_integers
from detent.observe.files import ARRAY_ERRORS
from detent.observe.fingerprints import Digest, fingerprint_of
from detent.observe.store import REFINEMENT, CheckpointFile
from detent.plan.plan import Plan
from detent.refine.layers import LayerChange, LayerReport
from detent.refinements import Refinement
from detent.settings import parse_json
from detent.version import __version__


def identity_of(
    models: tuple[ir.Model, ir.Model], plan: Plan, refinement: Refinement, data: str, samples: int, memory: int
) -> str:
    """Return a text that differs when anything does that the result depends on."""
    digest = Digest()
    digest.add(__version__, repr(refinement), data, samples, memory, *map(fingerprint_of, models))
    for name in sorted(plan.params):
        params = plan.params[name]
        digest.add(name, repr(params.format))
        if holds_integers(params):
            digest.add_array(params.scale)
            digest.add_array(params.zero_point)
        else:
            digest.add(repr(params))
    digest.add(repr(sorted(plan.layout.ties.items())))
    return digest.text


@dataclass
class RefinementCheckpoint:
    """The changes of the layers that are finished, by the names of their outputs, and the file that they are kept in.

    It is written again when the last time is `every` seconds ago. `notes` collects what the user should know.
    """

    path: Path
    identity: str
    every: float = 30.0
    notes: list[str] = field(default_factory=list)
    finished: dict[str, LayerChange] = field(default_factory=dict)
    _written: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._file = CheckpointFile(self.path, REFINEMENT, "The refinement", "all layers are refined", self.notes)

    def resume(self) -> None:
        """Take over what an earlier run of the same identity finished. Raise OutputError at a foreign file."""
        identity, found = self._file.read(_unpack) or ("", {})
        if found and identity != self.identity:
            self._file.ignore("another run")
        elif found:
            self.finished = found
            self.notes.append(f"Continued from the checkpoint {self.path}: {len(found)} layers were refined already.")

    def keep(self, output: str, layer: LayerChange) -> None:
        """Keep the change of another layer."""
        self.finished[output] = layer
        if time.monotonic() - self._written >= self.every:
            self.write()

    def write(self) -> None:
        """Replace the file."""
        if self.finished:
            self._file.write(partial(_pack, self.identity, self.finished))
        self._written = time.monotonic()

    def remove(self) -> None:
        """Remove the file: all layers are done."""
        self._file.remove()


def _pack(identity: str, finished: Mapping[str, LayerChange]) -> bytes:
    """Return a JSON header, and one array after the other in the order that it lists them in."""
    layers: list[dict[str, object]] = []
    arrays: list[npt.NDArray[np.floating]] = []
    for output, layer in finished.items():
        layers.append(
            {
                "output": output,
                "report": dataclasses.asdict(layer.report),
                "refined": list(layer.refined),
                "scaled": layer.scale is not None,
            }
        )
        arrays += [*layer.refined.values(), *([] if layer.scale is None else [layer.scale])]
    header = json.dumps({"identity": identity, "layers": layers}).encode()
    body = io.BytesIO()
    np.savez(body, np.frombuffer(header, np.uint8), *arrays)
    return body.getvalue()


# What reading a forged or torn file raises; too few arrays are the last.
_DAMAGED: tuple[type[Exception], ...] = (*ARRAY_ERRORS, StopIteration)


def _unpack(body: bytes, where: str) -> tuple[str, dict[str, LayerChange]]:
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as file:
            arrays = iter([file[f"arr_{number}"] for number in range(len(file.files))])
            header = parse_json(next(arrays).tobytes())
            found = {}
            for layer in header["layers"]:
                refined = {str(name): next(arrays) for name in layer["refined"]}
                scale = next(arrays) if layer["scaled"] else None
                found[str(layer["output"])] = LayerChange(LayerReport(**layer["report"]), refined, scale)
            return str(header["identity"]), found
    except _DAMAGED as error:
        raise DataError(f"{where} is damaged: {error}.") from error
