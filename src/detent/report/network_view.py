"""The network as a picture: a box for each layer, colored by its error, its number format or where it runs.

It is drawn once, here, as SVG. The page's script only moves the view, finds boxes, and opens what a row of the table of
layers opens into; without a script, and on paper, the whole network is there in the first coloring.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from markupsafe import Markup

from detent.report import document as doc
from detent.report.charts import legend_key, tag
from detent.report.figures import decibels, in_the_middle
from detent.report.layer_table import LayerRow
from detent.report.layered_layout import HEIGHT, WIDTH, draw_layered
from detent.results.checked import DeviceCheck, NodePlace
from detent.results.quantized import Report
from detent.results.tensors import NetworkNode

# The least SQNR of each color but the last, which is for all below.
ERRORS = ((40.0, "40 dB and more"), (30.0, "30 to 40 dB"), (20.0, "20 to 30 dB"), (10.0, "10 to 20 dB"))
FORMATS = 6  # colors for number formats; all further ones share the last
ON_CPU = "on the CPU"
MARGIN = 16.0
LETTERS, NAME_LETTERS = 18, 24

Known = TypeVar("Known")


@dataclass(frozen=True)
class Box:
    """One layer in the picture. `about` are lines that describe it, and `colors` its place in each coloring.

    `mark` is written in its corner, `row` is the row of the table of layers that it opens.
    """

    title: str
    name: str
    sources: tuple[int, ...]
    colors: tuple[int, ...]
    about: Sequence[str] = ()
    mark: str = ""
    row: str | None = None
    kind: str = "node"


@dataclass(frozen=True)
class Coloring:
    """What colors may mean: a name for the button, and the meaning of each color that is in use, by its number."""

    name: str
    style: str
    meanings: Mapping[int, str]


@dataclass(frozen=True)
class NetworkChart:
    """A network, each box after those that it reads."""

    boxes: Sequence[Box]
    colorings: Sequence[Coloring]

    def draw(self) -> Markup:
        """Return the picture with its tools, which are hidden until the script shows them."""
        inputs = [at for at, box in enumerate(self.boxes) if box.kind == "input"]
        drawing = draw_layered([box.sources for box in self.boxes], inputs)
        readers: list[list[str]] = [[] for _ in self.boxes]
        for at, box in enumerate(self.boxes):
            for source in box.sources:
                readers[source].append(str(at))
        lines = (tag("path", d=line, data_to=" ".join(to)) for line, to in zip(drawing.lines, readers, strict=True))
        nodes = (self._box(box, place) for box, place in zip(self.boxes, drawing.places, strict=True))
        size = f"{-MARGIN:g} {-MARGIN:g} {drawing.width + 2 * MARGIN:.0f} {drawing.height + 2 * MARGIN:.0f}"
        svg = tag(
            "svg",
            tag("g", *lines, class_="lines"),
            tag("g", *nodes, class_="boxes"),
            viewBox=size,
            role="img",
            tabindex="0",
            aria_label=f"The network, {len(self.boxes)} boxes. The table of layers lists the same.",
        )
        return tag("figure", *self._tools(), svg, *self._legends(), class_="network", data_by=self.colorings[0].style)

    def _box(self, box: Box, place: tuple[float, float]) -> Markup:
        colored = zip(self.colorings, box.colors, strict=True)
        styles = " ".join(f"{coloring.style}{color}" for coloring, color in colored)
        x, y = place
        rounded = HEIGHT / 2 if box.kind != "node" else 6
        children = [
            tag("title", "\n".join((box.name, *box.about))),
            tag("rect", width=f"{WIDTH:g}", height=f"{HEIGHT:g}", rx=f"{rounded:g}"),
            tag("text", in_the_middle(box.title, LETTERS - len(f"  {box.mark}" if box.mark else "")), x=10, y=15),
            tag("text", in_the_middle(box.name, NAME_LETTERS), x=10, y=28, class_="of"),
            tag("text", box.mark, x=f"{WIDTH - 8:g}", y=15, class_="mark") if box.mark else None,
        ]
        where = f"translate({x - WIDTH / 2:.1f} {y:.1f})"
        return tag("g", *children, class_=f"{box.kind} {styles}", transform=where, data_row=box.row)

    def _tools(self) -> Iterator[Markup]:
        field = Markup('<input type="search" placeholder="Find a layer or operator" aria-label="Find in the network">')
        choices = [
            tag("button", each.name, type="button", data_by=each.style, aria_pressed=str(not at).lower())
            for at, each in enumerate(self.colorings)
        ]
        moves = [
            tag("button", sign, type="button", data_do=does, title=meaning, aria_label=meaning)
            for sign, does, meaning in (
                ("−", "out", "Smaller"),
                ("+", "in", "Larger"),
                ("Fit", "fit", "The whole network"),
                ("Expand", "expand", "As large as the window; Escape leaves"),
            )
        ]
        yield tag(
            "div",
            field,
            tag("span", class_="found", role="status"),
            tag("span", "Color by", *choices, class_="choices") if len(choices) > 1 else None,
            tag("span", *moves, class_="moves"),
            class_="tools",
            hidden="",
        )
        yield tag("aside", class_="panel", hidden="", aria_live="polite")

    def _legends(self) -> Iterator[Markup]:
        for coloring in self.colorings:
            meanings = sorted(coloring.meanings.items())
            keys = (legend_key(f"{coloring.style}{color}", meaning) for color, meaning in meanings)
            yield tag("figcaption", *keys, data_of=coloring.style)


def network_chart(report: Report, layers: Sequence[LayerRow]) -> NetworkChart | None:
    """Return the picture of a quantized network; None if it is not known, or has one node."""
    network = report.pictures.network
    if len(network) < 4:
        return None
    rows = {layer.node: layer for layer in layers}  # if a node has several, its result is the last
    left_float = {decision.node: decision.reason for decision in report.left_float()}
    places = {} if report.device is None else {each.node: _where(each, report.device) for each in report.device.nodes}
    hosts = _hosts(network, {*rows, *left_float})
    joined: dict[int, list[NetworkNode]] = {}  # the nodes of each box, in the order of the network
    for node, host in zip(network, hosts, strict=True):
        joined.setdefault(host, []).append(node)
    number = {host: place for place, host in enumerate(joined)}
    formats = _formats(rows.values())
    boxes = []
    for nodes in joined.values():
        sources = tuple(dict.fromkeys(number[hosts[source]] for source in nodes[0].sources))
        row, where = _first_known(nodes, rows), _first_known(nodes, places)
        dtype = row.tensor.dtype if row is not None and row.tensor is not None else ""
        boxes.append(
            Box(
                " + ".join(dict.fromkeys(node.op_type for node in nodes)),
                nodes[0].name,
                sources,
                (_error_color(row), formats.get(dtype, FORMATS + 1), 2 if where is None else int(where == ON_CPU)),
                _about(nodes, row, _first_known(nodes, left_float), where or ""),
                _mark(row),
                None if row is None else row.id,
                nodes[0].kind,
            )
        )
    return NetworkChart(boxes, list(_colorings(boxes, formats, report)))


def _first_known(nodes: Sequence[NetworkNode], known: Mapping[str, Known]) -> Known | None:
    """Return the entry of the first node that has one."""
    return next((known[node.name] for node in nodes if node.name in known), None)


def _mark(row: LayerRow | None) -> str:
    if row is None or row.sqnr is None:
        return ""
    return f"{row.sqnr:.0f} dB" if math.isfinite(row.sqnr) else "exact"


def _hosts(network: Sequence[NetworkNode], own: set[str]) -> list[int]:
    """Return the box of each node: its own, or that of the only node before it. A box has at most one of `own`.

    A Relu joins the Conv before it, whichever of the two has a row: only the result of both is rounded.
    """
    readers = Counter(source for node in network for source in node.sources)
    hosts: list[int] = []
    full: set[int] = set()
    for at, node in enumerate(network):
        before = node.sources[0] if len(node.sources) == 1 and readers[node.sources[0]] == 1 else at
        joins = before != at and network[before].kind == node.kind == "node"
        host = hosts[before] if joins and not (node.name in own and hosts[before] in full) else at
        hosts.append(host)
        if node.name in own:
            full.add(host)
    return hosts


def _formats(layers: Iterable[LayerRow]) -> dict[str, int]:
    """Return the color of each number format, the most frequent first."""
    counted = Counter(layer.tensor.dtype for layer in layers if layer.tensor is not None)
    return {dtype: min(at, FORMATS - 1) for at, (dtype, _) in enumerate(counted.most_common())}


def _where(place: NodePlace, device: DeviceCheck) -> str:
    return ON_CPU if place.subgraph is None else f"on {device.target}, subgraph {place.subgraph}"


def _error_color(layer: LayerRow | None) -> int:
    if layer is None or layer.sqnr is None:
        return len(ERRORS) + 1
    return next((at for at, (least, _) in enumerate(ERRORS) if layer.sqnr >= least), len(ERRORS))


def _about(inside: Sequence[NetworkNode], row: LayerRow | None, reason: str | None, where: str) -> list[str]:
    """Describe a box in a few lines."""
    lines = [" + ".join(each.op_type for each in inside) + (f", {inside[-1].shape}" if inside[-1].shape else "")]
    if row is not None and row.sqnr is not None:
        lines.append(f"SQNR {decibels(row.sqnr)}{'' if math.isinf(row.sqnr) else ' dB'}")
    if row is not None and row.tensor is not None:
        lines.append(row.tensor.dtype)
    if reason is not None:
        lines.append(f"float: {reason}")
    return [*lines, where] if where else lines


def _colorings(boxes: Sequence[Box], formats: Mapping[str, int], report: Report) -> Iterator[Coloring]:
    """Yield those that tell something: the error if it was measured, the formats, the device if there is one."""
    names: dict[int, list[str]] = {}
    for dtype, color in formats.items():
        names.setdefault(color, []).append(dtype)
    errors = dict(enumerate([*(text for _, text in ERRORS), f"below {ERRORS[-1][0]:g} dB", "not measured"]))
    of_formats = {color: ", ".join(each) for color, each in names.items()} | {FORMATS + 1: "float, or inside a layer"}
    device = "" if report.device is None else report.device.target
    of_device = {0: f"on {device}", 1: ON_CPU, 2: "no layer"}
    all_of_them = (("error", "e", errors), ("number format", "f", of_formats), ("device", "d", of_device))
    for at, (name, style, meanings) in enumerate(all_of_them):
        counted = Counter(box.colors[at] for box in boxes)
        used = {color: f"{text} ({counted[color]})" for color, text in meanings.items() if counted[color]}
        yield Coloring(name, style, used)


def network_section(report: Report, layers: Sequence[LayerRow]) -> doc.Section | None:
    """Show the network; None if it is not known."""
    chart = network_chart(report, layers)
    if chart is None:
        return None
    meaning = (
        "Every layer and what it reads, from top to bottom and on in the next column. Click on one for its histogram "
        "and its numbers; drag to move, and zoom with Ctrl and the wheel, two fingers or the buttons."
    )
    return doc.Section("Network", meaning, [doc.Figure(chart)], folded=False, count=str(len(chart.boxes)), on="page")
