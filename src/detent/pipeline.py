"""The whole way from a float model to a quantized one, top to bottom.

    load -> prepare -> lay out -> observe -> plan -> constrain -> emit -> verify -> measure -> save

Decisions are made on the plan, weights are encoded once at emission, and nothing is written before everything held.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from detent import __version__
from detent.emit.qdq import emit_qdq
from detent.errors import ModelError
from detent.graph.load import ModelLike, load, name_of, stored_bytes
from detent.graph.save import check_output, complete_proto, save, serialize
from detent.graph.session import check_operators
from detent.graph.values import constant
from detent.measure.fidelity import Fidelity, measure_fidelity
from detent.observe.inputs import input_specs
from detent.observe.preprocess import PreprocessOptions
from detent.observe.sources import Source, open_source
from detent.observe.sweep import Observation, sweep
from detent.plan.layout import Layout, Role, Site, lay_out
from detent.plan.plan import Plan, make_plan
from detent.plan.select import Selection
from detent.prepare import Change, default_passes, prepare
from detent.progress import Progress, silent
from detent.recipe import Recipe
from detent.report.advice import suggestions_for, warnings_for
from detent.report.report import Calibration, Report, TensorReport
from detent.targets.target import PassMaker, Target, find_target

HELD_OUT = 16
"""Samples kept back to measure the result with, where the data has any to spare."""


@dataclass(frozen=True)
class Job:
    """One quantization, complete: what to read, how to quantize it and where to write."""

    model: ModelLike
    output: Path | None
    recipe: Recipe
    calibration: Any = None
    preprocess: PreprocessOptions | None = None
    selection: Selection = field(default_factory=Selection)
    fix_shapes: Mapping[str, Sequence[int]] | None = None
    limit: int | None = None
    seed: int | None = None
    batch: int | None = None
    threads: int = 0
    dry_run: bool = False
    progress: Progress = silent


@dataclass
class _Stopwatch:
    """Seconds per stage, and the stage's name to the observer."""

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.progress(name, 0, None)
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def run(job: Job) -> Report:
    """Quantize. Raises a DetentError, and leaves no output, where anything is wrong."""
    target = find_target(job.recipe.target)
    if job.output is not None:
        check_output(job.output, job.model)
    watch = _Stopwatch(job.progress)
    with watch.stage("load"):
        model = load(job.model)
        _refuse_quantized(model, name_of(job.model))
        check_operators(model)
        bytes_before = stored_bytes(job.model)
    with watch.stage("prepare"):
        changes = prepare(model, default_passes(job.fix_shapes))
        layout = lay_out(model, job.selection)
    source = open_source(
        job.calibration,
        input_specs(model),
        preprocess=job.preprocess,
        limit=job.limit,
        reserve=HELD_OUT,
        seed=job.seed,
        batch=job.batch,
    )
    if job.dry_run:
        return _preview(job, layout, changes, source, bytes_before, watch.seconds)
    with watch.stage("calibrate"):
        observation = sweep(model, _observed(layout), source, threads=job.threads, progress=job.progress)
    with watch.stage("plan"):
        changes += _rewrite(model, target.substitutions, layout)
        plan = make_plan(model, layout, observation.histograms, job.recipe)
        unsettled = target.constrain(model, plan)
        tensors = _describe_constants(model, plan)
    with watch.stage("emit"):
        dequantized = _emit(model, plan, target, changes)
    with watch.stage("measure"):
        fidelity = measure_fidelity(
            observation.runner,
            model,
            {name: dequantized[name] for name in _observed(layout)},
            observation.measured_on,
            job.progress,
        )
    tensors += _describe_activations(plan, observation, fidelity)
    with watch.stage("save"):
        bytes_after = len(serialize(proto := complete_proto(model))) if job.output is None else save(model, job.output)
    calibration = _calibration(source, observation.samples)
    nodes = list(layout.decisions.values())
    return Report(
        source=name_of(job.model),
        output=None if job.output is None else str(job.output),
        recipe=job.recipe,
        nodes=nodes,
        tensors=tensors,
        changes=changes,
        moves=plan.moves,
        calibration=calibration,
        fidelity=fidelity,
        in_sample=observation.in_sample,
        bytes_before=bytes_before,
        bytes_after=bytes_after,
        seconds=watch.seconds,
        warnings=warnings_for(calibration, nodes, changes, observation.in_sample, unsettled),
        suggestions=suggestions_for(fidelity, calibration, tensors, nodes),
        model=proto if job.output is None else None,
    )


def _refuse_quantized(model: ir.Model, name: str) -> None:
    for node in model.graph:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") or node.op_type.startswith("QLinear"):
            raise ModelError(
                f"{name} is quantized already (node '{node.name}' is a {node.op_type}). Give the float model; "
                f"`detent inspect` shows what is in this one."
            )


def _observed(layout: Layout) -> list[str]:
    """The activation sites whose statistics decide something: those that share no other's position."""
    return [site.value for site in layout.of_role(Role.ACTIVATION) if layout.leader(site.value) == site.value]


def _rewrite(model: ir.Model, makers: Sequence[PassMaker], layout: Layout) -> list[Change]:
    return prepare(model, [make(layout.quantizes) for make in makers])


def _emit(model: ir.Model, plan: Plan, target: Target, changes: list[Change]) -> Mapping[str, str]:
    """Write the plan into the graph, and check that the result is a model that any tool will take."""
    changes += _rewrite(model, target.corrections, plan.layout)
    dequantized = emit_qdq(model, plan)
    model.producer_name, model.producer_version = "detent", __version__
    try:
        common_passes.CheckerPass(full_check=True)(model)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(f"The quantized model does not pass onnx's checker, so it is not written: {error}") from error
    return dequantized


def _calibration(source: Source, samples: int) -> Calibration:
    preprocess = source.preprocess.to_dict() if source.preprocess else None
    return Calibration(source.describe, samples, source.random, preprocess, source.note)


def _describe_constants(model: ir.Model, plan: Plan) -> list[TensorReport]:
    described = []
    for site in plan.layout.sites.values():
        if site.role is Role.ACTIVATION:
            continue
        array = constant(model.graph.initializers[site.value])
        values = np.zeros(1) if array is None or array.size == 0 else array
        levels = np.rint(values / plan.scale(site.value))
        grid = plan.grid(site.value)
        clipped = float(((levels < grid.low_level) | (levels > grid.high_level)).mean())
        described.append(_tensor(site, plan, float(values.min()), float(values.max()), clipped))
    return described


def _describe_activations(plan: Plan, observation: Observation, fidelity: Fidelity) -> list[TensorReport]:
    described = []
    for site in plan.layout.of_role(Role.ACTIVATION):
        leader = plan.layout.leader(site.value)
        histogram = observation.histograms[leader]
        clipped = histogram.clipped_fraction(plan.position(leader), plan.grid(leader))
        described.append(
            _tensor(
                site,
                plan,
                histogram.minimum,
                histogram.maximum,
                clipped,
                shares=leader if leader != site.value else None,
                closeness=fidelity.tensors.get(site.value),
            )
        )
    return described


def _tensor(site: Site, plan: Plan, minimum: float, maximum: float, clipped: float, **more: Any) -> TensorReport:
    return TensorReport(
        name=site.value,
        role=site.role.value,
        node=site.node,
        position=plan.position(site.value),
        scale=plan.scale(site.value),
        minimum=minimum,
        maximum=maximum,
        clipped=clipped,
        **more,
    )


def _preview(
    job: Job, layout: Layout, changes: list[Change], source: Source, bytes_before: int, seconds: Mapping[str, float]
) -> Report:
    """The report of a dry run: every decision that needs no data."""
    return Report(
        source=name_of(job.model),
        output=None,
        recipe=job.recipe,
        nodes=list(layout.decisions.values()),
        tensors=(),
        changes=changes,
        moves=(),
        calibration=_calibration(source, source.length or 0),
        fidelity=None,
        in_sample=False,
        bytes_before=bytes_before,
        bytes_after=None,
        seconds=seconds,
    )
