"""Samples of a model with state: what it hands on after one step is what it is fed in the next.

    detent quantize vad.onnx vad_int8.onnx --calib chunks/ --feedback state=stateN

Samples are the steps of one sequence, in order, without the states. The first step starts from zeros, or from nothing
where the state grows with the sequence, as keys and values of a decoder do. The float model computes the states, so
what is quantized sees those that it has in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from detent.errors import UsageError, nearest
from detent.observe.preprocess import InputSpec
from detent.observe.samples import Array, PendingSample, Source

if TYPE_CHECKING:
    import onnx_ir as ir  # reading data does not load onnx

_GROWING = ("past", "seq", "len", "cache", "token")
"""Parts of the names of dimensions that are empty before the first step."""

Step = Callable[[Mapping[str, Array], str], Mapping[str, Array]]
"""Runs the float model on the inputs of one step, which has a name, and returns its outputs."""


def states_of(given: Sequence[str], model: ir.Model) -> dict[str, str]:
    """Return the output that each state comes from, from texts such as `past=present`."""
    inputs, outputs = ([str(value.name) for value in values] for values in (model.graph.inputs, model.graph.outputs))
    found: dict[str, str] = {}
    for text in given:
        state, separator, result = text.partition("=")
        if not separator:
            raise UsageError(f"--feedback '{text}': expected INPUT=OUTPUT, such as past=present.")
        for name, known, kind in ((state, inputs, "input"), (result, outputs, "output")):
            if name not in known:
                raise UsageError(
                    f"--feedback '{text}': the model has no {kind} '{name}'.{nearest(name, known)} It has "
                    f"{', '.join(known)}."
                )
        found[state] = result
    if found and len(found) == len(inputs):
        raise UsageError("--feedback names every input of the model: there must be one that samples are fed to.")
    return found


def initial_states(model: ir.Model, specs: Sequence[InputSpec], states: Mapping[str, str]) -> dict[str, Array]:
    """Return zeros for each state, of size 1 where a batch is open, and none where it grows."""
    types = {spec.name: spec.dtype for spec in specs}
    found = {}
    for value in model.graph.inputs:
        name = str(value.name)
        if name in states and value.shape is not None:
            sizes = [dim if isinstance(dim, int) else _start(dim.value or "") for dim in value.shape]
            found[name] = np.zeros(sizes, types[name])
    return found


def _start(name: str) -> int:
    return 0 if any(part in name.lower() for part in _GROWING) else 1


@dataclass(frozen=True)
class FeedbackSource(Source):
    """The samples of `steps`, with the states added that the model hands on from one to the next."""

    steps: Source
    states: Mapping[str, str]
    initial: Mapping[str, Array]
    step: Step

    def __post_init__(self) -> None:
        for name in ("random", "repeatable", "preprocess", "note"):
            object.__setattr__(self, name, getattr(self.steps, name))

    @property
    def length(self) -> int | None:
        """Number of steps."""
        return self.steps.length

    @property
    def describe(self) -> str:
        """One line for the terminal."""
        return f"{self.steps.describe}, steps of one sequence with {', '.join(self.states)} fed back"

    @property
    def fingerprint(self) -> str | None:
        """That of the samples: states follow from them and from the model."""
        return self.steps.fingerprint

    def __iter__(self) -> Iterator[PendingSample]:
        """Run step after step, in whichever thread asks for the next."""
        state = dict(self.initial)
        for pending in self.steps:
            feeds = {**pending.load().feeds, **state}
            outputs = self.step(feeds, pending.origin)
            state = {name: outputs[result] for name, result in self.states.items()}
            yield replace(pending, read=partial(dict, feeds))
