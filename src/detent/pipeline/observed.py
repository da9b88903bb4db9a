"""The second stage: rescale channels, then get statistics from a sweep, from other workers or from a file.

Rescaling is smoothing, absorbing and equalizing: they keep what the float model computes, and change what is observed.
`Observed` is the stage that costs most time, and the one that several runs share: `serves` says for which recipes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.devices.catalog import OPTIONAL
from detent.equalizations import Awq, smoothing_text
from detent.equalizations.channel_problem import Floats
from detent.equalize.absorb import Absorption, absorb, absorb_again
from detent.equalize.activation_aware import AwqSmoother, WeightRounding
from detent.equalize.equalize import Equalization, equalize, equalize_again
from detent.equalize.input_channels import Smoothing
from detent.equalize.moments import Answers
from detent.equalize.smooth_quant import SmoothQuant
from detent.errors import DataError, ModelError, UsageError
from detent.evaluation.data_check import LOOKED_AT, question_data, settled
from detent.methods.method import Vote
from detent.numerics.formats import is_integer
from detent.numerics.interface import NumberFormat
from detent.observe.executors import sweep_on
from detent.observe.samples import PendingSample, Source
from detent.observe.sources import input_specs
from detent.observe.statistics_file import StatisticsFile, check_fits, load_statistics, save_statistics
from detent.observe.sweep import Checkpoint, NotFiniteError, Observation, look, recall, sweep
from detent.pipeline.job import Job
from detent.pipeline.prepared import Original, Prepared, Stopwatch, check_preparation, check_recipe
from detent.plan import concats
from detent.plan.layout import Layout
from detent.plan.mixed import arrange
from detent.plan.plan import params_of_constant
from detent.recipe import Recipe
from detent.recipe.recipe import EQUALIZING_SAMPLES, PRESETS, WIDENING_SAMPLES
from detent.refine.ranges import SAMPLES as RANGE_SAMPLES
from detent.results.tensors import ChannelSizes, channel_magnitudes, channel_sizes
from detent.settings import choice_text
from detent.tasks.purpose import Purpose

SIGNIFICANT_BITS = 8  # of small floats and blocks, near enough


@dataclass(frozen=True)
class Rescaling:
    """What was done: each is None if the recipe did not ask for it."""

    smoothing: Smoothing | None = None
    absorption: Absorption | None = None
    equalization: Equalization | None = None

    @property
    def changed(self) -> bool:
        """Whether the model may differ from the prepared one in more than names."""
        return self.smoothing is not None or self.equalization is not None

    @property
    def factors(self) -> tuple[float, ...] | None:
        """The factors of channels, for a file of statistics."""
        return None if self.equalization is None else self.equalization.factors

    @property
    def absorbed(self) -> Mapping[str, tuple[float, ...]] | None:
        """The biases that layers gave to those behind, for a file of statistics."""
        return None if self.absorption is None else self.absorption.amounts

    @property
    def smoothed(self) -> Mapping[str, tuple[float, ...]] | None:
        """The factors of smoothed values, for a file of statistics."""
        return None if self.smoothing is None else self.smoothing.factors


def _bits(fmt: NumberFormat | None) -> int:
    """Return the bits of a number that decide how coarsely it is rounded; those of float32 if it is not."""
    if fmt is None:
        # float32 rounds to 24 significant bits.
        return 24
    return fmt.bits if is_integer(fmt) else SIGNIFICANT_BITS


def _codes(formats: Mapping[str, NumberFormat]) -> dict[str, int]:
    """Return the number of codes above zero of each value whose scale is one power of two, and 0 for the others."""
    return {
        name: fmt.levels[1] if is_integer(fmt) and fmt.power_of_two and fmt.granularity == "per_tensor" else 0
        for name, fmt in formats.items()
    }


def rescale(
    model: ir.Model,
    layout: Layout,
    recipe: Recipe,
    samples: Sequence[PendingSample],
    saved: StatisticsFile | None,
    threads: int = 0,
    answers: Answers | None = None,
) -> Rescaling:
    """Smooth, absorb and equalize `model` in place, as the recipe says; as it was done for `saved` statistics, if any.

    `layout` has the formats of all values that will be quantized. `answers` takes what the model answers to samples
    that are run for that.
    """
    smoothing = absorption = equalization = None
    # Factors of channels follow from the order of magnitude of activations, which a few samples show.
    few = samples[:EQUALIZING_SAMPLES]
    if recipe.smooth is not None and (saved is None or saved.smoothed is not None):
        smoothing = _smooth(model, layout, recipe, few, None if saved is None else saved.smoothed, threads)
    if recipe.equalize is not None:
        # Absorbing changes biases, which the factors of equalization then scale: the order is part of what a statistics
        # file keeps.
        if recipe.equalize.absorb:
            given = None if saved is None else saved.absorbed
            absorption = absorb(model, few, threads) if given is None else absorb_again(model, given)
        if saved is not None and saved.factors is not None:
            equalization = equalize_again(model, saved.factors)
        else:
            equalization = equalize(model, recipe.equalize, few, threads, codes=_codes(layout.formats), answers=answers)
    return Rescaling(smoothing, absorption, equalization)


def _smooth(
    model: ir.Model,
    layout: Layout,
    recipe: Recipe,
    samples: Sequence[PendingSample],
    known: Mapping[str, Sequence[float]] | None,
    threads: int,
) -> Smoothing:
    """Divide values by factors of their channels: by those that are `known`, if any."""
    choice = recipe.smooth
    if isinstance(choice, Awq):
        by_error = AwqSmoother(choice, insert=choice.insert)
        if known is None:
            return by_error.smooth(model, samples, _rounding(layout, recipe), threads)
        return by_error.smooth_again(model, known)
    assert choice is not None, "the recipe smooths"
    by_size = SmoothQuant(choice)
    if known is None:
        return by_size.smooth(model, samples, threads, bits=(_bits(recipe.activations), _bits(recipe.weights)))
    return by_size.smooth_again(model, known)


def _rounding(layout: Layout, recipe: Recipe) -> WeightRounding:
    """Return how weights are rounded when they are written, before any refinement."""

    def of(name: str) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None:
        site, fmt = layout.sites.get(name), layout.formats.get(name)
        if site is None or fmt is None:
            return None
        return lambda numbers: params_of_constant(numbers, fmt, recipe.method_of_weights, site).snap(numbers)

    return of


# With so many samples, channels have shown how large they get: equalization has to prove itself with fewer.
TRUSTED = 48

# Fields of a recipe that only later stages read, but for the votes of a method and some steps of `also`.
READ_LATER = frozenset(
    (
        *("name", "description", "method", "weight_method", "clip_outputs", "refinement", "search_ranges"),
        *("widen", "widen_everywhere", "also"),
    )
)


@dataclass(frozen=True, eq=False)
class Observed:
    """The rescaled float model with its statistics, and the samples that later stages learn from and measure with.

    `samples` are the first of `source`; `findings` are what is wrong with the data. `channels` are the
    sizes of weights' channels that rescaling changed, and `notes` what was tried and taken back.
    """

    prepared: Prepared
    original: Original
    rescaling: Rescaling
    channels: Mapping[str, ChannelSizes]
    observation: Observation
    source: Source | None
    samples: list[PendingSample]
    findings: Sequence[str] = ()
    notes: Sequence[str] = ()

    def serves(self, job: Job) -> bool:
        """Tell whether a run of `job`, which differs at most in its recipe, would observe the same."""
        before, recipe = self.prepared.job.recipe, job.recipe
        if self.source is None or not self.source.repeatable or self.prepared.warnings:
            return False
        names = {field.name for field in dataclasses.fields(Recipe)} - READ_LATER
        # Listing what later stages read is the safe side: a new field of the recipe costs a sweep, not a wrong result.
        same = all(getattr(before, name) == getattr(recipe, name) for name in names)
        same = same and set(before.also) - OPTIONAL.keys() == set(recipe.also) - OPTIONAL.keys()  # those come later
        return same and _vote(recipe)[1] in ("", _vote(before)[1])

    def under(self, job: Job) -> Observed:
        """Return what a run of `job`, which this serves, would observe; nothing is run."""
        target = check_recipe(job.recipe, job.selection)
        prepared = replace(self.prepared, job=job, target=target)
        return replace(self, prepared=prepared, samples=_first_samples(job, self.source, None))


# Chooses between the observation of a rescaled model and that of the plain one; the text names the rescaling.
BetterOf = Callable[[Observed, Observed, str], Observed]


def observe(prepared: Prepared, watch: Stopwatch, better_of: BetterOf) -> Observed:
    """Rescale the prepared model and get its statistics. With few samples, `better_of` says whether to equalize it."""
    job, model, source = prepared.job, prepared.model, prepared.source
    # Loading the untouched model and asking it about the data overlaps with what leaves a core idle.
    with ThreadPoolExecutor(1) as background:
        loading = background.submit(prepared.original.open)
        with watch.step("equalize"):
            prepared, saved = _saved_statistics(prepared)
            layout = prepared.layout
            samples = _first_samples(job, source, saved)
            answers: Answers = {}
            before = channel_magnitudes(model, layout)
            plain = model.clone() if _is_on_trial(job, source, saved) else None  # weights are shared until they change
            unscaled = model.clone() if isinstance(job.recipe.smooth, Awq) and saved is None else None
            rescaling = rescale(model, layout, job.recipe, samples, saved, job.collecting.threads, answers)
            channels = channel_sizes(before, channel_magnitudes(model, layout))
            prepared = _with_inserted(prepared, rescaling)
            questions = background.submit(_question, prepared, loading, _looked_at(job, samples, source), answers)
            if job.options["strict"] and (found := questions.result()[1]):
                raise DataError(f"{found[0]} (--strict)")
        with watch.step("calibrate"):
            prepared, observation = _counted(prepared, source, saved, job.collecting.checkpoint)
            original = loading.result()
            said = check_preparation(prepared, original, samples, observation)
            purpose, findings = questions.result()
            prepared = replace(prepared, purpose=purpose)
            observed = Observed(prepared, original, rescaling, channels, observation, source, samples, findings)
            if plain is not None and rescaling.factors and any(rescaling.factors) and observation.held_out:
                observed = better_of(observed, _unequalized(observed, plain), "Equalization")
            if unscaled is not None and rescaling.smoothed and observation.runner is not None:
                observed = better_of(observed, _unsmoothed(observed, unscaled, layout, before), "Awq")
            observed.observation.notes.extend(said)
            if job.collecting.save is not None and saved is None and prepared.needs_statistics:
                _save(observed)
    return observed


def _is_on_trial(job: Job, source: Source | None, saved: StatisticsFile | None) -> bool:
    """Tell whether samples are so few that equalization has to prove itself."""
    recipe = job.recipe
    if recipe.equalize is None or recipe.equalize.absorb or recipe.smooth is not None or saved is not None:
        return False
    return source is not None and source.repeatable and source.length is not None and source.length < TRUSTED


def _unequalized(observed: Observed, plain: ir.Model) -> Observed:
    """Return what would have been observed without equalization."""
    assert observed.rescaling.factors is not None, "the model was equalized"
    prepared = replace(observed.prepared, model=plain)
    equalization = equalize_again(plain, [0.0] * len(observed.rescaling.factors))
    prepared, observation = _counted(prepared, observed.source, None, None)
    rescaling = Rescaling(equalization=equalization)
    return replace(observed, prepared=prepared, rescaling=rescaling, channels={}, observation=observation)


def _with_inserted(prepared: Prepared, rescaling: Rescaling) -> Prepared:
    """Decide anew what is quantized if nodes were inserted."""
    if rescaling.smoothing is None or not rescaling.smoothing.inserted:
        return prepared
    job = prepared.job
    return replace(
        prepared, layout=arrange(prepared.model, job.selection, job.recipe, prepared.became, prepared.tail)
    ).without(prepared.not_finite)


def _unsmoothed(observed: Observed, plain: ir.Model, layout: Layout, before: Mapping[str, Floats]) -> Observed:
    """Return what would have been observed without smoothing."""
    job = observed.prepared.job
    recipe = job.recipe.replace(smooth=None)
    rescaling = rescale(plain, layout, recipe, observed.samples, None, job.collecting.threads)
    channels = channel_sizes(before, channel_magnitudes(plain, layout))
    prepared, observation = _counted(
        replace(observed.prepared, model=plain, layout=layout), observed.source, None, None
    )
    return replace(observed, prepared=prepared, rescaling=rescaling, channels=channels, observation=observation)


def _looked_at(job: Job, samples: list[PendingSample], source: Source | None) -> list[PendingSample]:
    """Return the samples to question the data by. Random data is known to be wrong."""
    if source is None or source.random or job.probes:
        return []
    return samples[:LOOKED_AT] if len(samples) >= LOOKED_AT else source.peek(LOOKED_AT, counted=True)


def _question(
    prepared: Prepared, loading: Future[Original], looked_at: Sequence[PendingSample], answers: Answers
) -> tuple[Purpose, list[str]]:
    """Return what the model turns out to be for, and what is wrong with the data. `answers` has what is known."""
    if not looked_at:
        return prepared.purpose, []
    original, samples = loading.result(), FirstSamples(looked_at)
    source = prepared.source
    guessed, arrays = source is not None and source.note.startswith("Guessed"), source is None or not source.preprocess
    known = {at: answers[pending.index] for at, pending in enumerate(looked_at) if pending.index in answers}

    def answer(at: int) -> Mapping[str, npt.NDArray[Any]]:
        if at not in known:
            known[at] = original.answer(samples[at])
        return known[at]

    purpose = prepared.purpose
    if prepared.job.options["task"] is None:
        purpose = settled(purpose, answer, len(samples), looked_at[0].size)
    found = question_data(
        samples,
        purpose,
        original.answer,
        guessed=guessed,
        arrays=arrays,
        declared=_is_as_declared(prepared),
        known=known,
    )
    return purpose, [*original.unlike_training(samples), *found]


def _is_as_declared(prepared: Prepared) -> bool:
    """Tell whether images are normalised as the model's file says."""
    made = None if prepared.source is None else prepared.source.preprocess
    said = next((spec.declared.settings for spec in input_specs(prepared.model) if spec.declared is not None), {})
    if made is None or not {"mean", "std"} <= said.keys():
        return False
    pairs = ((made.mean, said["mean"]), (made.std, said["std"]))
    return all(np.allclose(one, other) for one, other in pairs)


class FirstSamples(Sequence[Mapping[str, npt.NDArray[Any]]]):
    """The inputs of samples. Each is read when it is first asked for: most questions need only a few."""

    def __init__(self, pending: Sequence[PendingSample]) -> None:
        self._pending = pending
        self._read = cache(lambda index: pending[index].load().feeds)

    def __len__(self) -> int:
        return len(self._pending)

    def __getitem__(self, index: Any) -> Any:
        """Return one sample, or a list of some."""
        return [self[each] for each in range(len(self))[index]] if isinstance(index, slice) else self._read(index)


def _saved_statistics(prepared: Prepared) -> tuple[Prepared, StatisticsFile | None]:
    """Load the file of an earlier sweep, if there is one to use; what it did not count stays float.

    Raise UsageError if it does not fit.
    """
    job, recipe, source = prepared.job, prepared.job.recipe, prepared.source
    if job.collecting.reuse is None:
        return prepared, None
    file = load_statistics(job.collecting.reuse)
    if file.not_finite:
        prepared = prepared.without(file.not_finite)
    assert prepared.fingerprint is not None
    data = None if source is None else source.fingerprint
    check_fits(file, prepared.fingerprint, prepared.sites, data, _vote(recipe)[1])
    _check_smoothing(file, recipe)
    _check_equalization(file, recipe)
    return prepared, file


def _check_smoothing(file: StatisticsFile, recipe: Recipe) -> None:
    """Raise UsageError if the values were smoothed, and the recipe has it otherwise, or the other way round.

    Statistics without smoothing serve a preset that smooths by itself: then it does not.
    """
    if file.smoothed is not None and recipe.smooth is None:
        raise UsageError("The statistics were counted after smoothing: give --smooth, or calibrate again.")
    wanted = None if recipe.smooth is None else smoothing_text(recipe.smooth)
    made = f"{file.alpha:g}" if isinstance(file.alpha, float) else file.alpha
    if file.smoothed is None and wanted not in (None, made, _usual_smoothing(recipe)):
        raise UsageError("The statistics were counted without smoothing: give no --smooth, or calibrate again.")
    if file.smoothed is not None and made != wanted:
        raise UsageError(f"The statistics were counted after smoothing by {made}: give that, or calibrate again.")


def _usual_smoothing(recipe: Recipe) -> str | None:
    preset = PRESETS.get(recipe.name)
    return None if preset is None or preset.smooth is None else smoothing_text(preset.smooth)


def _check_equalization(file: StatisticsFile, recipe: Recipe) -> None:
    """Raise UsageError if the channels were counted after another equalization, or one with other settings."""
    wanted, made = choice_text(recipe.equalize), file.equalization
    if made is None and file.factors is not None:
        raise UsageError(
            f"The statistics were saved by Detent {file.detent_version}, which did not note the equalization that they "
            f"were counted after; recipe {recipe.name} has {wanted}. Calibrate again."
        )
    made = made or choice_text(None)
    if made != wanted:
        raise UsageError(
            f"The statistics were counted after the equalization {made}, and recipe {recipe.name} has {wanted}. Give "
            f"--set equalize={made}, or calibrate again."
        )


def _first_samples(job: Job, source: Source | None, saved: StatisticsFile | None) -> list[PendingSample]:
    """Return the samples that equalization, refinement and probes look at."""
    recipe = job.recipe
    needed = max(recipe.refinement.samples if recipe.refinement is not None else 0, job.probes)
    if recipe.search_ranges:
        needed = max(needed, RANGE_SAMPLES)
    if recipe.widen is not None and source is not None:  # from statistics alone, nothing can be widened
        needed = max(needed, WIDENING_SAMPLES)
    if (recipe.equalize is not None or recipe.smooth is not None) and saved is None:
        needed = max(needed, EQUALIZING_SAMPLES)
    if not needed:
        return []
    if source is None:
        who = "--search-ranges" if recipe.refinement is None else type(recipe.refinement).__name__
        raise UsageError(
            f"{who} looks at samples, and statistics have none: give --calib beside --stats, or --refine none and no "
            "--search-ranges."
        )
    return source.peek(needed)


def _counted(
    prepared: Prepared, source: Source | None, saved: StatisticsFile | None, checkpoint: Path | None
) -> tuple[Prepared, Observation]:
    """Return the statistics, and the model with the nodes left float that these rule out, each with a note.

    These are nodes with NaN or infinity, and Concats on whose grid the smaller operands would be lost.

    Raise NotFiniteError if there is nothing else to quantize, or if the samples come only once.
    """
    origin, known = "", len(prepared.not_finite)
    while True:
        try:
            observation = _statistics(prepared, source, saved, checkpoint)
            break
        except NotFiniteError as error:
            if source is None or not source.repeatable:
                raise
            try:
                prepared = prepared.without(error.sites)
            except ModelError:
                raise error from None
            origin = origin or error.origin
    if origin:
        found = prepared.not_finite[known:]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        observation.notes.append(
            f"On {origin} the float model itself computes NaN or infinity in tensor '{found[0]}'{more}: the nodes "
            "around it stay float. A mask is meant to; else check the sample and its preprocessing."
        )
    if concats.STEP not in prepared.job.recipe.without:
        prepared = prepared.leaving(concats.lossy_concats(prepared.model, prepared.layout, observation.statistics))
    return prepared, observation


def _statistics(
    prepared: Prepared, source: Source | None, saved: StatisticsFile | None, checkpoint: Path | None
) -> Observation:
    """Return the statistics of a file, or count them now."""
    job, how, model, sites = prepared.job, prepared.job.collecting, prepared.model, prepared.sites
    if saved is not None:
        return recall(model, sites, source, saved, providers=how.providers)
    if source is None:
        return Observation({}, None, described="no data")
    if not prepared.needs_statistics:
        return look(model, sites, source, providers=how.providers)
    vote, votes_for = _vote(job.recipe)
    if how.executor is not None:
        return sweep_on(how.executor, model, sites, source, vote=vote, progress=job.progress)
    return sweep(
        model,
        sites,
        source,
        vote=vote,
        threads=how.threads,
        progress=job.progress,
        checkpoint=None if checkpoint is None else Checkpoint(checkpoint, votes_for=votes_for),
        providers=how.providers,
    )


def _save(observed: Observed) -> None:
    prepared, source = observed.prepared, observed.source
    observation, rescaling = observed.observation, observed.rescaling
    job, recipe = prepared.job, prepared.job.recipe
    assert job.collecting.save is not None and source is not None
    assert prepared.fingerprint is not None
    file = StatisticsFile(
        model=prepared.fingerprint,
        data=source.fingerprint,
        description=source.describe,
        samples=observation.samples,
        statistics=observation.statistics,
        votes_for=_vote(recipe)[1],
        factors=rescaling.factors,
        absorbed=rescaling.absorbed,
        smoothed=rescaling.smoothed or None,
        alpha=recipe.smooth if isinstance(recipe.smooth, float) else choice_text(recipe.smooth),
        equalization=choice_text(recipe.equalize),
        not_finite=prepared.not_finite,
    )
    save_statistics(job.collecting.save, file)


def _vote(recipe: Recipe) -> tuple[Vote | None, str]:
    """Return the vote that the method takes on each sample, and a name for it; None and "" for most methods."""
    method, fmt = recipe.method, recipe.activations
    vote = method.vote(fmt) if is_integer(fmt) else None
    return (None, "") if vote is None or fmt is None else (vote, f"{method} on {fmt.dtype}")
