"""Load a model to be evaluated: run in exact arithmetic, and fed the same data as the reference model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from detent.convert.splitting import Pipeline, continues, tail_file
from detent.emulator import Emulator
from detent.errors import DetentError, ModelError, UsageError, nearest
from detent.graph.load import ModelLike, given_model, name_of, read
from detent.graph.pytorch import from_torch, is_torch
from detent.graph.save import complete_proto
from detent.graph.session import DEFAULT_PROVIDERS, Runner
from detent.graph.taps import open_exact
from detent.numerics.codec import DeviceRounding
from detent.observe.loaders import first_sample
from detent.observe.preprocess import InputSpec
from detent.observe.samples import Array, Sample
from detent.observe.sources import input_specs

AnyModel = ModelLike | ir.Model


def model_name(model: AnyModel) -> str:
    """Return what messages and reports call a model."""
    return str(model.meta.get("name", "the given model")) if isinstance(model, ir.Model) else name_of(model)


def same_model(one: AnyModel, other: AnyModel) -> bool:
    """Tell whether two arguments are the same object or the same path."""
    if isinstance(one, (ir.Model, onnx.ModelProto)) or isinstance(other, (ir.Model, onnx.ModelProto)):
        return one is other
    return Path(one) == Path(other)


def as_models(
    given: Any, tail: str | os.PathLike[str] | onnx.ModelProto | None = None, data: Any = None
) -> list[AnyModel]:
    """Return one model, or several of them, as a list; those that `tail` continues, together with it.

    A PyTorch module is exported with the shapes of the first sample of `data`.
    """
    kinds = (str, os.PathLike, onnx.ModelProto, ir.Model, Pipeline)
    single = isinstance(given, kinds) or is_torch(given) or not isinstance(given, Iterable)
    several = [_exported(each, data) if is_torch(each) else each for each in ([given] if single else given)]
    whole = [_whole(model, tail) for model in several]
    if tail is not None and not any(isinstance(model, ir.Model) and "name" in model.meta for model in whole):
        raise UsageError(
            f"--tail {tail}: it continues none of the models. Give the model that was written beside it, which ends "
            "where it begins."
        )
    return whole


def _exported(model: Any, data: Any) -> onnx.ModelProto:
    """Export a PyTorch module. A folder of images does not say what the module is called with."""
    example = first_sample(data)
    if example is None and not isinstance(model, str | os.PathLike) and hasattr(model, "forward"):
        raise UsageError(
            f"{type(model).__name__} does not say the shapes of its inputs. Give "
            "detent.from_torch(module, torch.zeros(1, 3, 224, 224)) in its place."
        )
    return from_torch(model, example)


def _whole(model: Any, tail: str | os.PathLike[str] | onnx.ModelProto | None) -> AnyModel:
    if isinstance(model, Pipeline):
        return model.joined
    if isinstance(model, ir.Model):
        return model
    given = given_model(model)
    return Pipeline(given, tail).joined if tail is not None and continues(given, tail) else given


class Candidate:
    """A loaded model with its inputs and outputs. Any number of threads may run it.

    Integer kernels are not used: on some CPUs they saturate, and then compute something other than the model.
    """

    def __init__(
        self,
        model: AnyModel,
        providers: Sequence[str] = DEFAULT_PROVIDERS,
        *,
        name: str | None = None,
        emulate: DeviceRounding | None = None,
        runner: Runner | None = None,
    ) -> None:
        """Load `model`, which messages call `name`. A `runner` has loaded it already, and knows its outputs.

        With `emulate` it is computed in integers with that rounding, as the NPU does.
        """
        self.name = model_name(model) if name is None else name
        graph_model = model if isinstance(model, ir.Model) else read(model)
        self.inputs = input_specs(graph_model)
        outputs = graph_model.graph.outputs
        self.sequences = [str(value.name) for value in outputs if isinstance(value.type, ir.SequenceType)]
        self.outputs = [str(value.name) for value in outputs] if runner is None else runner.outputs
        try:
            self._runner: Callable[..., list[Array]]
            if runner is not None:
                self._runner = runner
            elif emulate is None:
                self._runner = open_exact(graph_model, self.outputs, providers)
            else:
                emulated = complete_proto(model) if isinstance(model, ir.Model) else model
                self._runner = Emulator(emulated, rounding=emulate)
        except ModelError as error:
            raise ModelError(f"{self.name}: {error}") from error
        self._types = {spec.name: spec.dtype for spec in self.inputs}

    def __call__(self, sample: Sample) -> dict[str, Array]:
        """Return all outputs by name. Floating-point inputs are cast to the model's own type."""
        feeds = {name: array.astype(self._types[name], copy=False) for name, array in sample.feeds.items()}
        try:
            return dict(zip(self.outputs, self._run(feeds, sample.origin), strict=True))
        except DetentError as error:
            # Two models run side by side: an error that does not say which one failed is of no use.
            raise type(error)(f"{self.name}: {error}") from error

    def _run(self, feeds: dict[str, Array], origin: str) -> list[Array]:
        """Run the feeds as they are, or row by row if the model is fixed to one sample and the reference is not."""
        # Files for an NPU have a batch of 1, and are compared with a float model that takes any.
        sizes = {array.shape[0] if array.ndim else 1 for array in feeds.values()}
        if len(sizes) != 1 or sizes == {1} or any(spec.shape[:1] != (1,) for spec in self.inputs):
            return self._runner(feeds, origin)
        rows = range(sizes.pop())
        single = [self._runner({name: array[at : at + 1] for name, array in feeds.items()}, origin) for at in rows]
        return [
            np.concatenate(answers) if answers[0].ndim else np.stack(answers) for answers in zip(*single, strict=True)
        ]

    def check_like(self, reference: Candidate) -> None:
        """Raise ModelError unless this model takes the inputs of the reference and gives its outputs."""
        theirs = {spec.name: spec for spec in reference.inputs}
        _check_names("input", [*self._types], [*theirs], self.name, reference.name)
        for spec in self.inputs:
            other = theirs[spec.name]
            if not _fits(spec, other):
                raise ModelError(
                    f"Input '{spec.name}' of {self.name} is {spec.type_text} {spec.shape_text}, but that of "
                    f"{reference.name} is {other.type_text} {other.shape_text}. Only models that take the same data "
                    "can be compared."
                )
        _check_names("output", self.outputs, reference.outputs, self.name, reference.name)


def _check_names(kind: str, found: Sequence[str], expected: Sequence[str], name: str, reference: str) -> None:
    for one, others, owner, lacking in ((found, expected, name, reference), (expected, found, reference, name)):
        extra = [each for each in one if each not in others]
        if extra:
            tail = tail_file(Path(name))
            beside = f" Its second part lies beside it: give --tail {tail}." if tail.is_file() else ""
            raise ModelError(
                f"{owner} has the {kind} '{extra[0]}', which {lacking} does not have.{nearest(extra[0], others)} "
                f"Only models of the same {kind}s can be compared.{beside}"
            )


def _fits(spec: InputSpec, other: InputSpec) -> bool:
    """Tell whether the same data can be fed: same rank, no conflicting dimension, same type (or both floating)."""
    same_type = spec.dtype == other.dtype or (spec.dtype.kind == "f" and other.dtype.kind == "f")
    return (
        same_type
        and len(spec.shape) == len(other.shape)
        and all(one == two or None in (one, two) for one, two in zip(spec.shape, other.shape, strict=True))
    )
