"""What is asked for: one quantization, complete, from what a user says in whatever form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import onnx
from typing_extensions import Unpack

from detent.devices.catalog import device_of
from detent.devices.device import GENERATIONS, instead_of_shifts, recipe_for, recipe_for_any
from detent.equalizations import parse_equalization
from detent.errors import UsageError
from detent.graph.load import ModelLike, given_model, read_proto
from detent.graph.pytorch import from_torch, is_torch
from detent.graph.session import DEFAULT_PROVIDERS, memory_limit
from detent.observe.loaders import first_sample
from detent.observe.preprocess import PreprocessOptions
from detent.observe.samples import is_array_like
from detent.option_values import constants_of, fixing_of, image_options, names_of, providers_of
from detent.options import QuantizeOptions, settled
from detent.plan.select import Selection
from detent.progress import Progress, silent
from detent.recipe import Recipe
from detent.recipe.file import change, find_recipe, with_settings
from detent.recipe.recipe import DEFAULT
from detent.refine.refine import MEMORY
from detent.settings import parse_memory

# The field of a recipe that an option changes, if the two have different names.
FIELD_OF_OPTION = {"refine": "refinement", "device": "target"}


@dataclass(frozen=True)
class Collecting:
    """How statistics are collected.

    `reuse` is a file of an earlier sweep and `save` one to write; `checkpoint` keeps what an interrupted sweep counted.
    `executor` counts on other workers than the threads of this process. With `measures`, it measures layers too, so
    that it has work even if nothing is counted.
    """

    reuse: Path | None = None
    save: Path | None = None
    checkpoint: Path | None = None
    executor: Any = None
    measures: bool = False
    threads: int = 0
    providers: Sequence[str] = DEFAULT_PROVIDERS

    def __post_init__(self) -> None:
        if self.reuse is not None and (self.must_count or self.save is not None):
            raise UsageError("With --stats nothing is counted: leave --save-stats, --workers and --dask out.")
        if self.executor is not None and tuple(self.providers) != DEFAULT_PROVIDERS:
            raise UsageError("--providers are those of this process; workers compute on their CPUs.")

    @property
    def needs_identity(self) -> bool:
        """Whether a file of statistics, which names the model by its fingerprint, is read or written."""
        return self.reuse is not None or self.save is not None

    @property
    def must_count(self) -> bool:
        """Whether there are workers that do nothing but count."""
        return self.executor is not None and not self.measures


@dataclass(frozen=True)
class Job:
    """One quantization: what to read, how to quantize it and where to write.

    `options` are as the user wrote them, complete; the properties say what they mean. Options that change the recipe
    are in `recipe` already. `probes` is how many samples are kept at hand to measure layers with; `measures` says that
    the executor of the options does that too.
    """

    model: ModelLike
    output: Path | None
    recipe: Recipe
    calibration: Any = None
    options: QuantizeOptions = field(default_factory=lambda: settled(QuantizeOptions, {}))
    probes: int = 0
    measures: bool = False
    recipe_reason: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant before any work is done."""
        _ = self.preprocess, self.shapes, self.constants, self.collecting, self.memory

    @cached_property
    def preprocess(self) -> PreprocessOptions:
        """How images become arrays."""
        return image_options(self.options)

    @cached_property
    def shapes(self) -> Mapping[str, Sequence[int]] | None:
        """The input shapes to write into the model."""
        return fixing_of(self.options["fix_shape"])[0]

    @cached_property
    def constants(self) -> Mapping[str, Sequence[float]]:
        """The inputs that become constants."""
        return constants_of(self.options["fix_input"])

    @property
    def runs_batches(self) -> bool:
        """Whether samples may be run several at a time: items of a stream may be batches."""
        counted = self.calibration is None or isinstance(self.calibration, (str, PathLike, Mapping))
        return self.options["batch"] not in (None, 1) or not (counted or is_array_like(self.calibration))

    @cached_property
    def selection(self) -> Selection:
        """The nodes to quantize."""
        given = self.options
        patterns = given["include"], given["exclude"], given["op_types"], given["start"], given["end"]
        return Selection(*map(names_of, patterns))

    @cached_property
    def collecting(self) -> Collecting:
        """How statistics are collected."""
        stats, save = self.options["stats"], self.options["save_stats"]
        return Collecting(
            reuse=None if stats is None else Path(stats),
            save=None if save is None else Path(save),
            checkpoint=checkpoint_beside(self.output) if self.output and self.options["resume"] else None,
            executor=self.options["executor"],
            measures=self.measures,
            threads=self.options["threads"],
            providers=providers_of(self.options["providers"]),
        )

    @cached_property
    def memory(self) -> int:
        """The bytes that the refinement may use."""
        given = self.options["memory"]
        if given is None:
            limit = memory_limit()
            # The models themselves need the other half.
            return MEMORY if limit is None else min(MEMORY, limit // 2)
        return parse_memory(given) if isinstance(given, str) else given

    @property
    def progress(self) -> Progress:
        """Who hears of progress."""
        return self.options["progress"] or silent

    @property
    def refinement_file(self) -> Path | None:
        """Where an interrupted refinement keeps the layers that it has finished; None if it keeps none."""
        return refinement_beside(self.output) if self.output and self.collecting.checkpoint else None

    def with_options(self, **changes: Unpack[QuantizeOptions]) -> Job:
        """Return the job with some options changed."""
        return replace(self, options={**self.options, **changes})


def make_job(
    model: Any,
    calibration: Any = None,
    recipe: str | PathLike[str] | Recipe | None = None,
    output: str | PathLike[str] | None = None,
    **options: Unpack[QuantizeOptions],
) -> Job:
    """Return the job of what `detent.quantize` or a relative is given."""
    given = settled(QuantizeOptions, options)
    if is_torch(model):
        example = given["example_inputs"]
        model = from_torch(
            model, first_sample(calibration) if example is None else example, fixing_of(given["fix_shape"])[0]
        )
    model = given_model(model)
    named, why = (recipe, "") if recipe is not None else _recipe_for(given["device"], model)
    chosen = change_recipe(named, given)
    if given["rounding"] is None and instead_of_shifts(chosen.weights) is None and chosen.rounding == "half-even":
        chosen = chosen.replace(rounding=device_of(chosen).rounding)
    if given["memory"] is not None and chosen.refinement is None:
        raise UsageError(f"Recipe {chosen.name} refines nothing, so there is nothing to use memory for: leave it out.")
    return Job(
        model=model,
        output=None if output is None else Path(output),
        recipe=chosen,
        calibration=calibration,
        options=given,
        recipe_reason=why,
    )


def _recipe_for(device: str | None, model: Path | onnx.ModelProto) -> tuple[str, str]:
    """Return the recipe for a device and a model if the user names none, and why it is that one."""
    if device is not None and device not in GENERATIONS:
        return DEFAULT, ""
    proto = model if isinstance(model, onnx.ModelProto) else read_proto(model)
    if device is not None:
        name, why = recipe_for(GENERATIONS[device], proto)
        return name, f"Recipe {name}: {why}. Another with --recipe."
    name, why = recipe_for_any(proto)
    return name, why and f"Recipe {name}: {why}. Another with --recipe."


def change_recipe(recipe: str | PathLike[str] | Recipe, options: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a name or file, with what `set` and other options change."""
    chosen = with_settings(find_recipe(recipe), names_of(options["set"]))
    fields = {each.name for each in dataclasses.fields(Recipe)}
    flags = {FIELD_OF_OPTION.get(name, name): value for name, value in options.items() if value is not None}
    if "widen" in flags:
        flags["widen_everywhere"] = True  # an explicit request holds for layers of any kind
    flags["equalize"] = _equalization(options.get("equalize"), options.get("equalize_with"))
    given = {name: value for name, value in flags.items() if name in fields and value is not None}
    text = {name: value for name, value in given.items() if isinstance(value, (str, bool, int, float))}
    chosen = change(chosen, text).replace(**{name: value for name, value in given.items() if name not in text})
    return _without_bias_correction(chosen) if options.get("no_bias_correction") else chosen


def checkpoint_beside(output: Path) -> Path:
    """Return where an interrupted calibration keeps what it has counted."""
    return output.parent / f"{output.name}.checkpoint"


def refinement_beside(output: Path) -> Path:
    """Return where an interrupted refinement keeps the layers that it has finished."""
    return output.parent / f"{output.name}.refinement"


def _equalization(switch: Any, name: str | None) -> Any:
    """Return what --equalize, --no-equalize and --equalize-with say together; None if none of them was given."""
    if name is None:
        return switch
    if switch is not None and switch != (parse_equalization(name) is not None):
        flag = "--equalize" if switch else "--no-equalize"
        raise UsageError(f"{flag} and --equalize-with {name} contradict each other: give one of them.")
    return name


def _without_bias_correction(recipe: Recipe) -> Recipe:
    """Return the recipe of --no-bias-correction. Other refinements need to set biases along with the weights."""
    if recipe.refinement is None or not recipe.refinement.learns_weights:
        return recipe.replace(refinement=None)
    raise UsageError(
        f"{type(recipe.refinement).__name__} corrects biases along with the weights, so --no-bias-correction cannot be "
        "had with it. Give --refine none, or leave --no-bias-correction out."
    )
