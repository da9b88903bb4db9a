"""The documents of listings: recipes, the contents of a model, dumped codes, statistics, device checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path

from detent.comparison.folders import Dump
from detent.comparison.inspection import Inspection, QuantizedTensor
from detent.convert.splitting import tail_file
from detent.devices.device import Device, Generation
from detent.equalizations import smoothing_text
from detent.errors import listed
from detent.qdq.families import DYNAMIC
from detent.recipe import Recipe
from detent.recipe.file import to_toml
from detent.report import document as doc
from detent.report.figures import command, size
from detent.results import checked
from detent.results.paired import interval_text
from detent.results.tensors import StatisticsView, TensorSummary

SHOWN = 8  # rows of a table that a short answer lists

TWINS = ("_ADAROUND", "_ADAQUANT")

LEGEND = """
asym: the zero point follows the data   2^n: power-of-two scales   a/b: b in part of the model
Plain recipes take seconds, fine-tuned ones (A8W8_ADAROUND) minutes; names also work with _CONFIG.

One in full:  detent recipes XINT8
To edit:      detent recipes XINT8 --toml > my.toml; detent quantize MODEL OUTPUT --recipe my.toml
One field:    detent quantize MODEL OUTPUT --recipe A8W8 --set weights.granularity=per_channel"""


def recipes_document(recipes: Sequence[Recipe]) -> doc.Document:
    """Build a list of recipes, by target; fine-tuned twins are named beside their plain recipe."""
    names = {recipe.name for recipe in recipes}
    shown = [recipe for recipe in recipes if not _is_twin(recipe, names)]
    rows = []
    for target in dict.fromkeys(recipe.target for recipe in shown):
        rows.append([f"for {target}", "", "", "", ""])
        for recipe in (recipe for recipe in shown if recipe.target == target):
            formats = (_formats(recipe, role) for role in ("activations", "weights"))
            rows.append([recipe.name, *formats, _calibration(recipe), _tuning(recipe, names)])
    titles = ("Recipe", "Activations", "Weights", "Calibration", "Fine-tuned")
    columns = [doc.worded(title, itemgetter(at)) for at, title in enumerate(titles)]
    blocks: list[doc.Block] = [doc.table("recipes", columns, rows), doc.Paragraph(LEGEND)]
    return doc.Document("recipes", "Recipes", (), sections=[doc.Section("Recipes", blocks=blocks, folded=False)])


def _is_twin(recipe: Recipe, names: Collection[str]) -> bool:
    return any(recipe.name.endswith(twin) and recipe.name.removesuffix(twin) in names for twin in TWINS)


def _formats(recipe: Recipe, role: str) -> str:
    """Describe the format of a role, and after a slash the formats that overrides give it."""
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


def recipe_document(recipe: Recipe) -> doc.Document:
    """Build the document of one recipe: a sentence, what it does and all of its fields."""
    steps = [] if recipe.equalize is None else ["equalize channels"]
    steps = ["equalize layer by layer"] if recipe.equalize is not None and recipe.equalize.by_layers else steps
    steps = ["absorb biases", *steps] if recipe.equalize is not None and recipe.equalize.absorb else steps
    steps += [f"smooth activations ({smoothing_text(recipe.smooth)})"] if recipe.smooth is not None else []
    steps += [] if recipe.dynamic or not _calibrates(recipe) else [f"calibrate with {recipe.method.name}"]
    widens = "widen everywhere" if recipe.widen_everywhere else "widen"
    steps += [f"{widens} ({recipe.widen:g} dB)"] if recipe.widen is not None else []
    refinement = recipe.refinement
    if refinement is not None:
        steps.append(refinement.name if refinement.chooses_weights else "correct biases")
    about = f"Steps: {', '.join([*steps, f'write as {recipe.format}'])}. Target: {recipe.target}."
    file = doc.Section("File", blocks=[doc.Code(to_toml(recipe), on="both")], folded=False)
    closing = [f"Next: {command('quantize', 'MODEL', 'OUTPUT', '--calib', 'DATA', '--recipe', recipe.name)}"]
    headline = [f"{recipe.name}: {recipe.description}"]
    return doc.Document("recipe", recipe.name, headline, [about], sections=[file], closing=closing)


def devices_document(generations: Sequence[Generation], flows: Sequence[Device]) -> doc.Document:
    """Build a list of the devices that `--device` takes."""
    rows = [[each.name, each.chips, ", ".join(each.flows)] for each in generations]
    rows += [[each.name, each.description, ""] for each in flows]
    columns = [doc.worded(title, itemgetter(at)) for at, title in enumerate(("Device", "What it is", "Flows"))]
    about = (
        "Without --device: the strictest rules, which all generations accept; only XINT8's HardSigmoid is Phoenix's."
    )
    blocks: list[doc.Block] = [doc.table("devices", columns, rows), doc.Paragraph(about)]
    sections = [doc.Section("Devices", blocks=blocks, folded=False)]
    return doc.Document("devices", "Devices", (), sections=sections, closing=["Next: detent devices stx"])


def device_document(device: Device) -> doc.Document:
    """Build the document of one device: the known facts, with their sources and how certain they are."""
    generation = device.generation
    if generation is None:
        taken = doc.Paragraph(f"Operators: {' '.join(sorted(device.operators)) or 'all'}.")
        section = doc.Section("Operators", blocks=[taken], folded=False)
        return doc.Document("device", device.name, [f"{device.name}: {device.description}"], sections=[section])
    titles = {"About": "about", "What is known": "what", "Confidence": "confidence", "Source": "source"}
    columns = [doc.worded(title, attribute) for title, attribute in titles.items()]
    about = [f"Compiler {generation.target}, rounding {generation.rounding}, flows {', '.join(generation.flows)}."]
    section = doc.Section("Facts", blocks=[doc.table("facts", columns, generation.facts)], folded=False)
    closing = [f"Next: detent quantize MODEL OUTPUT --calib DATA --device {generation.name}"]
    return doc.Document(
        "device", device.name, [f"{device.name}: {generation.chips}"], about, sections=[section], closing=closing
    )


def _calibrates(recipe: Recipe) -> bool:
    formats = [recipe.activations, *(override.activations for override in recipe.overrides)]
    return any(fmt is not None and fmt.needs_data for fmt in formats)


def inspection_document(inspection: Inspection, *, nodes: bool = False) -> doc.Document:
    """Build the document of the contents of a model, with a list of its nodes if that is asked for."""
    opset = ", ".join(f"{domain} {version}" for domain, version in inspection.opset.items())
    made_by = f", made by {inspection.producer}" if inspection.producer else ""
    count = sum(inspection.operators.values())
    values = (("input", inspection.inputs), ("output", inspection.outputs))
    about = [f"{kind} {value}: {typed}" for kind, named in values for value, typed in named.items()]
    about += [f"constants {dtype}: {size(stored)}" for dtype, stored in inspection.constants.items()]
    operators = [doc.worded("Operator", itemgetter(0)), doc.figure("Nodes", itemgetter(1), "")]
    listed = [
        doc.named("Node", "name"),
        doc.worded("Operator", "op_type"),
        doc.figure("Inputs", "inputs"),
        doc.figure("Of them quantized", "quantized_inputs"),
    ]
    tables = [
        doc.table("operators", operators, inspection.operators.items(), shown=SHOWN),
        doc.table("tensors", _QUANTIZED, inspection.quantized, shown=SHOWN),
        *([doc.table("nodes", listed, inspection.nodes)] if nodes else []),
    ]
    sections = [doc.Section(each.what.capitalize(), blocks=[each]) for each in tables if each.rows]
    headline = f"{size(inspection.bytes)}, {count} nodes, opset {opset}{made_by}"
    return doc.Document("inspection", "Contents", [headline], about, sections=sections, closing=_contents(inspection))


def _contents(inspection: Inspection) -> list[str]:
    """Say how a model is quantized, and what to type next."""
    kinds = Counter(tensor.dtype for tensor in inspection.quantized)
    model = inspection.source or "MODEL"
    dynamic = sorted({kind.rpartition("::")[2] for kind in inspection.operators} & {*DYNAMIC})
    if dynamic and not kinds:
        return [f"Quantized as it runs: {', '.join(dynamic)}.", f"Next: {command('check', model)}"]
    if not kinds:
        return ["Not quantized.", f"Next: {command('quantize', model, 'OUTPUT', '--calib', 'DATA')}"]
    counts = ", ".join(f"{count} {dtype}" for dtype, count in kinds.most_common())
    return [f"{kinds.total()} quantized tensors: {counts}.", f"Next: {command('check', model)}"]


def _scale_cell(tensor: QuantizedTensor) -> doc.Cell:
    if tensor.scale is None:
        return doc.Cell(f"{tensor.channels} channels")
    return doc.number(tensor.scale, f"{tensor.scale:.6g}")


_QUANTIZED = (
    doc.named("Quantized tensor", "name"),
    doc.worded("Kind", lambda tensor: "constant" if tensor.constant else "activation"),
    doc.worded("Type", "dtype"),
    doc.Column("Scale", numeric=True, cell=_scale_cell),
    doc.figure("Zero point", "zero_point", ""),
    doc.figure("Position", "position", ""),
)


def dump_document(dump: Dump) -> doc.Document:
    """Build the document of dumped codes: what was written where."""
    floats = f", {len(dump.floats)} float values" if dump.floats else ""
    codes = f"codes of {dump.activations} tensors and {dump.constants} constants{floats}"
    following = command("emulate", dump.source or "MODEL", "--data", "DATA")
    closing = [f"Wrote {dump.folder}: {codes} for {dump.origin}, each as .bin and .txt.", f"Next: {following}"]
    return doc.Document("dump", dump.origin, (), closing=closing)


def statistics_document(view: StatisticsView) -> doc.Document:
    """Build the document of statistics: the facts of each tensor, then the choices of the methods."""
    near_zero = "Closer to zero than 1/4096 of the largest magnitude."
    columns = [
        doc.figure("#", "number"),
        doc.named("Tensor", "name"),
        doc.figure("Minimum", "minimum", ".4g"),
        doc.figure("Maximum", "maximum", ".4g"),
        doc.figure("Near zero", "near_zero", lambda share: f"{100 * share:.1f} %", near_zero),
        doc.figure("Outliers", "outlier_ratio", ".1f", "The largest magnitude over that of the 99.9th percentile."),
    ]
    legend = (
        "outliers: the largest magnitude over that of the 99.9th percentile. "
        "near zero: closer to it than 1/4096 of the largest."
    )
    shown = doc.table("tensors", columns, view.tensors, shown=SHOWN)
    explained = doc.Paragraph(legend, quiet=True, on="verbose")
    sections = [doc.Section("Tensors", blocks=[shown, explained], folded=False)]
    methods = list(dict.fromkeys(method for tensor in view.tensors for method in tensor.choices))
    if methods:
        cells = ((method, partial(_range_cell, method)) for method in methods)
        ranges = [doc.Column(method, numeric=True, verbatim=True, cell=cell) for method, cell in cells]
        meaning = "The range that each method would choose"
        head = doc.Paragraph(f"\n{meaning}:", on="terminal")
        chosen = doc.table("tensors", [doc.figure("#", "number"), *ranges], view.tensors)
        sections.append(doc.Section("Choices", f"{meaning}.", [head, chosen], on="verbose"))
    some = "" if len(view.tensors) == view.of else f"{len(view.tensors)} of "
    headline = f"{some}{view.of} tensors, counted over {view.samples} samples: {view.description}"
    return doc.Document("statistics", view.description, [headline], sections=sections, closing=_outliers(view))


def _outliers(view: StatisticsView) -> list[str]:
    """Name the tensor with the most extreme outlier, and the command to type next."""
    if not view.tensors:
        return []
    worst = max(view.tensors, key=lambda tensor: tensor.outlier_ratio)
    found = f"The largest value of '{worst.name}' is {worst.outlier_ratio:.1f} times its 99.9th percentile."
    return [found, f"Next: {command('quantize', 'MODEL', 'OUTPUT', '--calib', 'DATA', '--stats', 'FILE')}"]


def _range_cell(method: str, tensor: TensorSummary) -> doc.Cell:
    choice = tensor.choices.get(method)
    return doc.number(None) if choice is None else doc.number(choice[1] - choice[0], interval_text(choice, ".3g"))


SHOWN_FINDINGS = 5  # findings that a short answer lists

_VERDICTS: dict[str, tuple[str, doc.Level]] = {
    "accepted": ("takes it", "good"),
    "partly": ("takes part of it", "warn"),
    "rejected": ("not as it is", "bad"),
}
_FINDING_LEVELS: dict[str, doc.Level] = {"error": "bad", "warning": "warn", "note": "plain"}
_SHOWN_NODES = 4


def check_document(check: checked.DeviceCheck) -> doc.Document:
    left = ", ".join(f"{op_type} {count}" for op_type, count in checked.operators_left(check).items())
    on_cpu = [doc.Paragraph(f"On the CPU: {left}.")] if left and check.target != "cpu" else []
    notes = doc.NoteList([_finding_note(group) for group in checked.grouped(check.findings)], shown=SHOWN_FINDINGS)
    found = doc.Section("Findings", blocks=[notes, *on_cpu], on="terminal")
    text, level = _VERDICTS[check.verdict]
    verdict = doc.Verdict(level, f"{check.target} {text}", checked.summary(check))
    sections = [found, device_section(check)]
    closing = [checked.summary(check), *([] if check.cost is None else [str(check.cost)]), _next(check)]
    figures = [device_figure(check)]
    return doc.Document("check", Path(check.source).name, [check.source], (), verdict, figures, sections, closing)


def _next(check: checked.DeviceCheck) -> str:
    """Return the command to type next."""
    if not check.accepted:
        return "Next: the fixes above, those of errors first."
    if check.quantized:
        tail = tail_file(Path(check.source))
        rest = ["--tail", str(tail)] if tail.is_file() else []
        return f"Next: {command('evaluate', 'FLOAT_MODEL', check.source, '--data', 'LABELLED', *rest)}"
    recipe = ["--recipe", check.recipe] if check.recipe else []
    return f"Next: {command('quantize', check.source, 'OUTPUT', '--calib', 'DATA', *recipe)}"


def _finding_note(group: checked.FindingGroup) -> doc.Note:
    finding = group.finding
    details = [finding.why, f"fix: {finding.fix}" if finding.fix else ""]
    level = _FINDING_LEVELS[finding.level]
    return doc.Note(finding.level, level, finding.what, subject_of(group), [detail for detail in details if detail])


def device_figure(check: checked.DeviceCheck) -> doc.KeyFigure:
    text, level = _VERDICTS[check.verdict]
    meaning = checked.device_share(check)
    if check.verdict == "rejected":
        meaning += ", once the model-wide errors are fixed: see What to know"
    return doc.KeyFigure(check.target, text.capitalize(), f"{meaning}.", level)


def device_section(check: checked.DeviceCheck) -> doc.Section:
    """Build the section about a model on a device: findings, and where each node runs."""
    found = [_finding_note(group) for group in checked.grouped(check.findings)]
    columns = [
        doc.named("Node", "node"),
        doc.worded("Operator", "op_type", minor=True),
        doc.worded(
            "Runs in",
            lambda place: "CPU" if place.subgraph is None else f"subgraph {place.subgraph}",
            "The region that the device computes as one, or the CPU.",
        ),
        doc.figure("Multiplications", "macs", ",", "Of one sample, in layers.", minor=True),
    ]
    return doc.Section(
        f"Device {check.target}",
        "Whether the device that the recipe is for takes the file, node by node. Data travels at the borders of "
        "subgraphs: one is best.",
        [
            doc.Paragraph(checked.summary(check), "bad" if check.verdict == "rejected" else "plain", on="page"),
            doc.NoteList(found) if found else doc.Paragraph("There is nothing in the way.", on="page", quiet=True),
            doc.table("nodes", columns, check.nodes),
        ],
        count=_VERDICTS[check.verdict][0],
        on="verbose",
    )


def subject_of(group: checked.FindingGroup) -> str:
    """Name the nodes of a finding, or the model."""
    if group.finding.node == checked.MODEL:
        return "the model"
    if len(group.operators) == 1:
        names = listed([f"'{node}'" for node in group.nodes], _SHOWN_NODES)
        return f"{group.finding.op_type} {names}"
    counts = sorted(group.operators.items(), key=lambda item: -item[1])
    return f"{len(group.nodes)} nodes ({', '.join(f'{op_type} {count}' for op_type, count in counts)})"


# Findings about nodes on the CPU, as the end of "7 nodes ...".
_FEW_WORDS = {
    "the device does not have this operator": "that it does not have",
    "it only moves data": "that only move data",
    "it multiplies two activations": "of attention",
    "it was left float": "left float",
    "it is float: nothing around it is quantized": "left float",
}
_SHOWN_REASONS, _SHOWN_OPERATORS = 3, 3


def device_notes(check: checked.DeviceCheck, file: str) -> list[str]:
    """Say in a line each what keeps the model off the device, which nodes run on the CPU, and what else to mind.

    The check itself has the rest: nodes by name, reasons and fixes. `file` is the model as the command for it names it.
    """
    errors, minded = checked.grouped(check.errors), checked.grouped(check.warnings)
    about_all = [group.finding for group in errors if group.finding.node == checked.MODEL]
    lines = []
    if check.verdict == "rejected":
        first = (about_all or [errors[0].finding])[0]
        more = f" {len(about_all) - 1} more in the way." if len(about_all) > 1 else ""
        lines.append(f"{check.target} runs nothing of it: {first.what}; {first.why}. Fix: {first.fix}.{more}")
    left = _reasons(group for group in errors if group.finding.node != checked.MODEL)
    if left and check.device_nodes:
        count = f"{check.cpu_nodes} of {check.cpu_nodes + check.device_nodes} nodes to the CPU"
        then = "That mended, it" if lines else check.target
        lines.append(f"{then} leaves {count}, and gets the others in {checked.pieces(check.subgraphs)}: {left}.")
    if minded:
        first = minded[0].finding
        more = f" {len(minded) - 1} more to mind." if len(minded) > 1 else ""
        subject = "" if first.node == checked.MODEL else f"{len(minded[0].nodes)} {first.op_type}: "
        lines.append(f"{subject}{first.what}; {first.why}.{more}")
    if lines:
        lines[0] += f" Details: {command('check', file, '--device', check.target)}"
    return lines


def _reasons(groups: Iterable[checked.FindingGroup]) -> str:
    """Say in a few words why nodes run on the CPU, and how many of which operators."""
    counts: dict[str, Counter[str]] = {}
    for group in groups:
        words = _FEW_WORDS.get(group.finding.what, f"because {group.finding.what}")
        counts.setdefault(words, Counter()).update(group.operators)
    sorted_counts = sorted(counts.items(), key=lambda item: -item[1].total())
    reasons = [
        f"{each.total()} {words} ({listed([op_type for op_type, _ in each.most_common()], _SHOWN_OPERATORS)})"
        for words, each in sorted_counts[:_SHOWN_REASONS]
    ]
    others = sum(each.total() for _, each in sorted_counts[_SHOWN_REASONS:])
    return ", ".join([*reasons, f"{others} for other reasons"] if others else reasons)
