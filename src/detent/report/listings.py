"""The documents of what is only looked at: recipes, the contents of a model, dumped codes, statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from operator import itemgetter

from detent.comparison.inspection import Inspection, QuantizedTensor
from detent.comparison.value_files import Dump
from detent.recipe import Recipe
from detent.recipe.file import to_toml
from detent.report.document import (
    Block,
    Cell,
    Code,
    Column,
    Document,
    Paragraph,
    Section,
    figure,
    named,
    number,
    table,
    worded,
)
from detent.report.figures import command, size
from detent.results.summarized import StatisticsView, TensorSummary

SHOWN = 8
"""Rows of a table that a short answer lists."""

TWINS = ("_ADAROUND", "_ADAQUANT")

LEGEND = """
asym: the zero point follows the data   2^n: power-of-two scales   a/b: b in part of the model
Plain recipes take seconds, fine-tuned ones (A8W8_ADAROUND) minutes; names also work with _CONFIG.

One in full:  detent recipes XINT8
To edit:      detent recipes XINT8 --toml > my.toml; detent quantize MODEL OUTPUT --recipe my.toml
One field:    detent quantize MODEL OUTPUT --recipe A8W8 --set weights.granularity=per_channel"""


def recipes_document(recipes: Sequence[Recipe]) -> Document:
    """Build a list of recipes, by target; fine-tuned twins are named beside the recipe that they are of."""
    names = {recipe.name for recipe in recipes}
    shown = [recipe for recipe in recipes if not _is_twin(recipe, names)]
    rows = []
    for target in dict.fromkeys(recipe.target for recipe in shown):
        rows.append([f"for {target}", "", "", "", ""])
        for recipe in (recipe for recipe in shown if recipe.target == target):
            formats = (_formats(recipe, role) for role in ("activations", "weights"))
            rows.append([recipe.name, *formats, _calibration(recipe), _tuning(recipe, names)])
    titles = ("Recipe", "Activations", "Weights", "Calibration", "Fine-tuned")
    columns = [worded(title, itemgetter(at)) for at, title in enumerate(titles)]
    blocks: list[Block] = [table("recipes", columns, rows), Paragraph(LEGEND)]
    return Document("recipes", "Recipes", (), sections=[Section("Recipes", blocks=blocks, folded=False)])


def _is_twin(recipe: Recipe, names: Collection[str]) -> bool:
    return any(recipe.name.endswith(twin) and recipe.name.removesuffix(twin) in names for twin in TWINS)


def _formats(recipe: Recipe, role: str) -> str:
    """Describe the format of a role, and after a slash those of parts of the model."""
    parts = [getattr(override, role) for override in recipe.overrides]
    usual = recipe.formats[role]
    return "/".join(["float" if usual is None else usual.description, *(fmt.description for fmt in parts if fmt)])


def _calibration(recipe: Recipe) -> str:
    if recipe.dynamic:
        return "at run time"
    method = recipe.method
    return ("mean " if method.averages else "") + method.name if _calibrates(recipe) else "none"


def _tuning(recipe: Recipe, names: Collection[str]) -> str:
    """Return the endings of the names of twins; or the refinement that the recipe has itself."""
    own = recipe.refinement.name if recipe.refinement is not None and recipe.refinement.learns_by_gradient else ""
    return " ".join(twin for twin in TWINS if recipe.name + twin in names) or own


def recipe_document(recipe: Recipe) -> Document:
    """Build the document of one recipe: a sentence, what it does and all of its fields."""
    steps = [] if recipe.equalize is None else ["equalize channels"]
    steps = ["equalize layer by layer"] if recipe.equalize is not None and recipe.equalize.by_layers else steps
    steps = ["absorb biases", *steps] if recipe.equalize is not None and recipe.equalize.absorb else steps
    steps += [f"smooth activations ({recipe.smooth:g})"] if recipe.smooth is not None else []
    steps += [] if recipe.dynamic or not _calibrates(recipe) else [f"calibrate with {recipe.method.name}"]
    steps += [f"16 bits where a transformer needs them ({recipe.widen:g} dB)"] if recipe.widen is not None else []
    refinement = recipe.refinement
    if refinement is not None:
        steps.append(refinement.name if refinement.learns_weights else "correct biases")
    about = f"Steps: {', '.join([*steps, f'write as {recipe.format}'])}. Target: {recipe.target}."
    file = Section("File", blocks=[Code(to_toml(recipe), on="both")], folded=False)
    closing = [f"Next: {command('quantize', 'MODEL', 'OUTPUT', '--calib', 'DATA', '--recipe', recipe.name)}"]
    headline = [f"{recipe.name}: {recipe.description}"]
    return Document("recipe", recipe.name, headline, [about], sections=[file], closing=closing)


def _calibrates(recipe: Recipe) -> bool:
    formats = [recipe.activations, *(override.activations for override in recipe.overrides)]
    return any(fmt is not None and fmt.needs_data for fmt in formats)


def inspection_document(inspection: Inspection, *, nodes: bool = False) -> Document:
    """Build the document of the contents of a model, with a list of its nodes if that is asked for."""
    opset = ", ".join(f"{domain} {version}" for domain, version in inspection.opset.items())
    made_by = f", made by {inspection.producer}" if inspection.producer else ""
    count = sum(inspection.operators.values())
    values = (("input", inspection.inputs), ("output", inspection.outputs))
    about = [f"{kind} {value}: {typed}" for kind, named in values for value, typed in named.items()]
    about += [f"constants {dtype}: {size(stored)}" for dtype, stored in inspection.constants.items()]
    operators = [worded("Operator", itemgetter(0)), figure("Nodes", itemgetter(1), "")]
    listed = [
        named("Node", "name"),
        worded("Operator", "op_type"),
        figure("Inputs", "inputs"),
        figure("Of them quantized", "quantized_inputs"),
    ]
    tables = [
        table("operators", operators, inspection.operators.items(), shown=SHOWN),
        table("tensors", _QUANTIZED, inspection.quantized, shown=SHOWN),
        *([table("nodes", listed, inspection.nodes)] if nodes else []),
    ]
    sections = [Section(each.what.capitalize(), blocks=[each]) for each in tables if each.rows]
    headline = f"{size(inspection.bytes)}, {count} nodes, opset {opset}{made_by}"
    return Document("inspection", "Contents", [headline], about, sections=sections, closing=_contents(inspection))


def _contents(inspection: Inspection) -> list[str]:
    """Say how a model is quantized, and what to type next."""
    kinds = Counter(tensor.dtype for tensor in inspection.quantized)
    model = inspection.source or "MODEL"
    if not kinds:
        return ["Not quantized.", f"Next: {command('quantize', model, 'OUTPUT', '--calib', 'DATA')}"]
    counts = ", ".join(f"{count} {dtype}" for dtype, count in kinds.most_common())
    return [f"{kinds.total()} quantized tensors: {counts}.", f"Next: {command('check', model)}"]


def _scale_cell(tensor: QuantizedTensor) -> Cell:
    return Cell(f"{tensor.channels} channels") if tensor.scale is None else number(tensor.scale, f"{tensor.scale:.6g}")


_QUANTIZED = (
    named("Quantized tensor", "name"),
    worded("Kind", lambda tensor: "constant" if tensor.constant else "activation"),
    worded("Type", "dtype"),
    Column("Scale", numeric=True, cell=_scale_cell),
    figure("Zero point", "zero_point", ""),
    figure("Position", "position", ""),
)


def dump_document(dump: Dump) -> Document:
    """Build the document of dumped codes: what was written where."""
    floats = f", {len(dump.floats)} float values" if dump.floats else ""
    codes = f"codes of {dump.activations} tensors and {dump.constants} constants{floats}"
    following = command("emulate", dump.source or "MODEL", "--data", "DATA")
    closing = [f"Wrote {dump.folder}: {codes} for {dump.origin}, each as .bin and .txt.", f"Next: {following}"]
    return Document("dump", dump.origin, (), closing=closing)


def statistics_document(view: StatisticsView) -> Document:
    """Build the document of statistics: the facts of each tensor, then the choices of the methods."""
    near_zero = "Closer to zero than 1/4096 of the largest magnitude."
    columns = [
        figure("#", "number"),
        named("Tensor", "name"),
        figure("Minimum", "minimum", ".4g"),
        figure("Maximum", "maximum", ".4g"),
        figure("Near zero", "near_zero", lambda share: f"{100 * share:.1f} %", near_zero),
        figure("Outliers", "outlier_ratio", ".1f", "The largest magnitude over that of the 99.9th percentile."),
    ]
    legend = (
        "outliers: the largest magnitude over that of the 99.9th percentile. "
        "near zero: closer to it than 1/4096 of the largest."
    )
    sections = [
        Section(
            "Tensors",
            blocks=[table("tensors", columns, view.tensors, shown=SHOWN), Paragraph(legend, quiet=True, on="verbose")],
            folded=False,
        )
    ]
    methods = list(dict.fromkeys(method for tensor in view.tensors for method in tensor.choices))
    if methods:
        ranges = [Column(method, numeric=True, verbatim=True, cell=partial(_range_cell, method)) for method in methods]
        head = Paragraph("\nThe range that each method would choose:", on="terminal")
        chosen = table("tensors", [figure("#", "number"), *ranges], view.tensors)
        sections.append(Section("Choices", "The range that each method would choose.", [head, chosen], on="verbose"))
    shown = "" if len(view.tensors) == view.of else f"{len(view.tensors)} of "
    headline = f"{shown}{view.of} tensors, counted over {view.samples} samples: {view.description}"
    return Document("statistics", view.description, [headline], sections=sections, closing=_outliers(view))


def _outliers(view: StatisticsView) -> list[str]:
    """Name the tensor whose range is ruled by the fewest values, and what to type next."""
    if not view.tensors:
        return []
    worst = max(view.tensors, key=lambda tensor: tensor.outlier_ratio)
    found = f"The largest value of '{worst.name}' is {worst.outlier_ratio:.1f} times its 99.9th percentile."
    return [found, f"Next: {command('quantize', 'MODEL', 'OUTPUT', '--stats', 'FILE')}"]


def _range_cell(method: str, tensor: TensorSummary) -> Cell:
    choice = tensor.choices.get(method)
    return number(None) if choice is None else number(choice[1] - choice[0], f"{choice[0]:.3g} .. {choice[1]:.3g}")
