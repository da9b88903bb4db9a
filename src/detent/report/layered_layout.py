"""Place the nodes of a network so that it can be read: layer by layer, folded into columns as a newspaper is.

    rank     a node stands below everything that it reads; what only constants lead to stands right above its reader
    bend     a tensor that passes ranks has one bend in each: however many read it, it is one line
    order    within a rank by the mean place of the neighbours above, then below, and again while lines cross less
    fold     into columns of about the page's proportions, each cut where few tensors cross it
    align    links that do not cross each other join nodes to straight blocks: bends first, then what is computed next
    place    each block moves to the median of its neighbours as far as those beside it in a rank let it

So the main line of a network is straight, its skip connections run beside it, and all of it fits a screen.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

WIDTH, HEIGHT, BEND = 148.0, 36.0, 14.0  # of a node, and of a line that passes
# Between nodes of a rank, between ranks, between columns, and between lines that turn to the next column.
BESIDE, BELOW, GUTTER, TRACK = 16.0, 24.0, 44.0, 7.0
PROPORTION = 1.65  # width over height of the whole drawing, as far as columns can make it
SWEEPS = 12
MOST_BENDS = 60_000  # lines with more bends in all are not drawn through the ranks: they end behind their node


@dataclass(frozen=True)
class Drawing:
    """The middle of each node's upper edge, and the line from each node to its readers as the data of an SVG path."""

    width: float
    height: float
    places: Sequence[tuple[float, float]]
    lines: Sequence[str]


def draw_layered(sources: Sequence[Sequence[int]], fixed: Iterable[int] = ()) -> Drawing:
    """Place nodes that come after everything they read. `fixed` are inputs: what reads them stays as high as it can."""
    return _Layered(sources, set(fixed)).drawn()


class _Layered:
    """The stages, each of which reads what those before it found. Items are nodes, and bends behind them."""

    def __init__(self, sources: Sequence[Sequence[int]], fixed: set[int]) -> None:
        self.nodes = len(sources)
        self.readers: list[list[int]] = [[] for _ in sources]
        for node, read in enumerate(sources):
            for source in dict.fromkeys(read):
                self.readers[source].append(node)
        self.rank = _ranks(sources, self.readers, fixed)
        self.ahead = [0] * self.nodes  # nodes to go to the end of the network
        for node in reversed(range(self.nodes)):
            self.ahead[node] = 1 + max((self.ahead[reader] for reader in self.readers[node]), default=0)
        self.below: list[list[int]] = [[] for _ in sources]
        self.stubs: list[int] = []
        self._add_bends()
        self.above: list[list[int]] = [[] for _ in self.below]
        for item, lower in enumerate(self.below):
            for each in lower:
                self.above[each].append(item)
        self.ranks = self._ordered()
        self.at = {item: at for row in self.ranks for at, item in enumerate(row)}
        self.starts = self._folded()

    def _add_bends(self) -> None:
        """Give every tensor that passes ranks one bend in each of them."""
        passed = [max((self.rank[reader] for reader in readers), default=0) for readers in self.readers]
        spans = [max(last - rank - 1, 0) for rank, last in zip(self.rank, passed, strict=True)]
        longest = max(spans, default=0) if sum(spans) <= MOST_BENDS else MOST_BENDS // max(len(spans), 1)
        for node, all_readers in enumerate(self.readers):
            chain, readers = [node], all_readers
            if spans[node] > longest:
                self.stubs.append(node)
                readers = [reader for reader in all_readers if self.rank[reader] == self.rank[node] + 1]
            else:
                for rank in range(self.rank[node] + 1, self.rank[node] + 1 + spans[node]):
                    self.rank.append(rank)
                    self.below.append([])
                    self.below[chain[-1]].append(len(self.below) - 1)
                    chain.append(len(self.below) - 1)
            for reader in readers:
                self.below[chain[self.rank[reader] - self.rank[node] - 1]].append(reader)

    def _ordered(self) -> list[list[int]]:
        """Return the items of each rank, from left to right."""
        ranks: list[list[int]] = [[] for _ in range(max(self.rank, default=0) + 1)]
        for item, rank in enumerate(self.rank):
            ranks[rank].append(item)
        best, least = ranks, self._crossings(ranks)
        for sweep in range(SWEEPS):
            if not least:
                break
            downwards = sweep % 2 == 0
            ranks = [list(row) for row in (ranks if downwards else ranks[::-1])]
            neighbours = self.above if downwards else self.below
            for over, row in itertools.pairwise(ranks):
                places = {item: at for at, item in enumerate(over)}
                keys = {
                    item: sum(places[each] for each in found) / len(found) if (found := neighbours[item]) else at
                    for at, item in enumerate(row)
                }
                row.sort(key=keys.__getitem__)
            ranks = ranks if downwards else ranks[::-1]
            crossings = self._crossings(ranks)
            if crossings < least:
                best, least = ranks, crossings
            elif sweep > 3:
                break
        return best

    def _crossings(self, ranks: Sequence[Sequence[int]]) -> int:
        """Count the pairs of links that cross: those that end left of one that began before."""
        count = 0
        for over, row in itertools.pairwise(ranks):
            places = {item: at for at, item in enumerate(row)}
            ends: list[int] = []
            for item in over:
                links = sorted(places[each] for each in self.below[item])
                for at in links:
                    count += len(ends) - bisect_left(ends, at + 1)
                for at in links:
                    insort(ends, at)
        return count

    def _folded(self) -> list[int]:
        """Return the first rank of each column."""
        widths = sorted(sum(self._width(item) + BESIDE for item in row) for row in self.ranks)
        typical = widths[int(0.95 * (len(widths) - 1))] + GUTTER
        count = len(self.ranks)
        columns = max(1, round((PROPORTION * count * (HEIGHT + BELOW) / typical) ** 0.5))
        reach = max(1, count // (5 * columns))
        crossing = [sum(1 for item in row if self.below[item]) for row in self.ranks]
        starts = [0]
        for column in range(1, columns):
            wanted = round(column * count / columns)
            near = range(max(wanted - reach, starts[-1] + 2), min(wanted + reach + 1, count - 1))
            if near:
                starts.append(min(near, key=lambda rank: crossing[rank - 1] + 3 * abs(rank - wanted) / reach))
        return starts

    def _width(self, item: int) -> float:
        return WIDTH if item < self.nodes else BEND

    def _aligned(self) -> list[int]:
        """Return the block of each item: items of one block stand exactly below each other."""
        block = list(range(len(self.below)))
        for rank, row in enumerate(self.ranks[:-1]):
            if rank + 1 in self.starts:
                continue
            taken: list[tuple[int, int]] = []
            for _, upper, lower in sorted(self._candidates(row)):
                link = (self.at[upper], self.at[lower])
                at = bisect_left(taken, link)
                left, right = taken[at - 1 : at] if at else [], taken[at : at + 1]
                if all(each[0] < link[0] and each[1] < link[1] for each in left) and all(
                    each[0] > link[0] and each[1] > link[1] for each in right
                ):
                    taken.insert(at, link)
                    block[lower] = block[upper]
        return block

    def _candidates(self, row: Sequence[int]) -> Iterator[tuple[tuple[int, int, float], int, int]]:
        """Yield the links below a rank, each with how much it matters that it is straight, first comes first."""
        for upper in row:
            for at, lower in enumerate(self.below[upper]):
                bends = (upper >= self.nodes) + (lower >= self.nodes)
                follows = -self.ahead[lower] if bends == 0 else 0
                middle = abs(at - (len(self.below[upper]) - 1) / 2)
                yield ((1, 2, 0)[bends], follows, middle), upper, lower

    def _placed(self, block: Sequence[int]) -> list[float]:
        """Return the middle of each item."""
        beside: dict[int, list[tuple[int, float]]] = {}
        for row in self.ranks:
            for left, right in itertools.pairwise(row):
                apart = (self._width(left) + self._width(right)) / 2 + BESIDE
                beside.setdefault(block[left], []).append((block[right], apart))
        order, before = _in_order(set(block), beside)
        x: dict[int, float] = {}
        for each in order:
            x[each] = max((x[left] + apart for left, apart in before.get(each, ())), default=0.0)
        near: dict[int, list[int]] = {each: [] for each in order}
        for upper, lower in ((upper, lower) for upper, found in enumerate(self.below) for lower in found):
            if block[upper] != block[lower] and self.rank[lower] not in self.starts:
                near[block[upper]].append(block[lower])
                near[block[lower]].append(block[upper])
        for sweep in range(SWEEPS):
            for each in order if sweep % 2 else reversed(order):
                if near[each]:
                    low = max((x[left] + apart for left, apart in before.get(each, ())), default=float("-inf"))
                    high = min((x[right] - apart for right, apart in beside.get(each, ())), default=float("inf"))
                    x[each] = min(max(median(x[other] for other in near[each]), low), high)
        return [x[each] for each in block]

    def drawn(self) -> Drawing:
        """Place the columns beside each other, and draw the lines."""
        x = self._placed(self._aligned())
        top = [0.0] * len(self.ranks)
        ends = [*self.starts[1:], len(self.ranks)]
        left, height, gutters = 0.0, 0.0, [0.0]
        for start, end in zip(self.starts, ends, strict=True):
            items = [item for row in self.ranks[start:end] for item in row]
            first = min((x[item] - self._width(item) / 2 for item in items), default=0.0)
            turning = TRACK * sum(1 for item in self.ranks[end - 1] if self.below[item])
            entering = TRACK * sum(1 for item in self.ranks[start - 1] if self.below[item]) if start else 0.0
            top[start] = entering
            for rank in range(start + 1, end):
                aside = (abs(x[lower] - x[upper]) for upper in self.ranks[rank - 1] for lower in self.below[upper])
                top[rank] = top[rank - 1] + HEIGHT + BELOW + min(0.06 * max(aside, default=0.0), 2 * BELOW)
            for item in items:
                x[item] += left - first
            right = max((x[item] + self._width(item) / 2 for item in items), default=left)
            height = max(height, top[end - 1] + HEIGHT + (turning + BELOW / 2 if end < len(self.ranks) else 0.0))
            gutters.append(right + GUTTER / 2)
            left = right + GUTTER + turning
        places = [(x[node], top[self.rank[node]]) for node in range(self.nodes)]
        lines = [self._line(node, x, top, gutters) for node in range(self.nodes)]
        return Drawing(max(left - GUTTER, WIDTH), height, places, lines)

    def _line(self, node: int, x: Sequence[float], top: Sequence[float], gutters: Sequence[float]) -> str:
        """Draw the line from a node to all its readers."""
        path, waiting = [], [node]
        if node in self.stubs:
            path += [f"M{_n(x[node] - 5)} {_n(top[self.rank[node]] + HEIGHT + 6)}h10"]
        while waiting:
            upper = waiting.pop()
            rank = self.rank[upper]
            y = top[rank] + HEIGHT
            if upper >= self.nodes:
                path.append(f"M{_n(x[upper])} {_n(top[rank])}V{_n(y)}")
            for lower in self.below[upper]:
                path.append(f"M{_n(x[upper])} {_n(y)}")
                if rank + 1 in self.starts:
                    path.append(self._turn(upper, lower, x, top, gutters[self.starts.index(rank + 1)]))
                elif abs(x[upper] - x[lower]) < 0.5:
                    path.append(f"V{_n(top[rank + 1])}")
                else:
                    middle = _n((y + top[rank + 1]) / 2)
                    path.append(f"C{_n(x[upper])} {middle} {_n(x[lower])} {middle} {_n(x[lower])} {_n(top[rank + 1])}")
                if lower < self.nodes:
                    path.append("m-3.5-5l3.5 5l3.5-5")
                else:
                    waiting.append(lower)
        return "".join(path)

    def _turn(self, upper: int, lower: int, x: Sequence[float], top: Sequence[float], gutter: float) -> str:
        """Draw a link to the next column: down, into the gutter, up, and in from above. Each has a track of its own."""
        row = [item for item in self.ranks[self.rank[upper]] if self.below[item]]
        track = TRACK * (len(row) - 1 - row.index(upper))
        right, bottom = gutter + track, top[self.rank[upper]] + HEIGHT + BELOW / 2 + track
        high = top[self.rank[lower]] - BELOW / 2 - track
        return (
            f"V{_n(bottom - 5)}q0 5 5 5H{_n(right - 5)}q5 0 5-5V{_n(high + 5)}q0-5 5-5"
            f"H{_n(x[lower] - 5)}q5 0 5 5V{_n(top[self.rank[lower]])}"
        )


def _ranks(sources: Sequence[Sequence[int]], readers: Sequence[Sequence[int]], fixed: set[int]) -> list[int]:
    rank: list[int] = []
    floating: list[bool] = []  # nothing but constants leads to it
    for node, read in enumerate(sources):
        rank.append(1 + max((rank[source] for source in read), default=-1))
        floating.append(node not in fixed and all(floating[source] for source in read))
    for node in reversed(range(len(sources))):
        if (floating[node] or node in fixed) and readers[node]:
            rank[node] = min(rank[reader] for reader in readers[node]) - 1
    least = min(rank, default=0)
    return [each - least for each in rank]


def _in_order(
    blocks: set[int], beside: dict[int, list[tuple[int, float]]]
) -> tuple[list[int], dict[int, list[tuple[int, float]]]]:
    """Return blocks so that each comes after those left of it, and those left of each."""
    before: dict[int, list[tuple[int, float]]] = {}
    for left, rights in beside.items():
        for right, apart in rights:
            before.setdefault(right, []).append((left, apart))
    waiting = {block: len(before.get(block, ())) for block in blocks}
    ready = sorted(block for block, count in waiting.items() if not count)
    for block in ready:
        for right, _ in beside.get(block, ()):
            waiting[right] -= 1
            if not waiting[right]:
                ready.append(right)
    return ready, before


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
