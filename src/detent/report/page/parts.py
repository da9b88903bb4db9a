"""What every page is made of: a verdict, a few large figures, and sections of which the later ones are folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from detent.report.page.html import Child, Markup, joined, tag

Level = Literal["good", "warn", "bad", "plain"]


@dataclass(frozen=True)
class Verdict:
    """What the reader wants to know first, in a few words and a sentence."""

    level: Level
    title: str
    said: str


@dataclass(frozen=True)
class Tile:
    """A large figure and its meaning."""

    title: str
    figure: str
    meaning: str
    level: Level = "plain"


@dataclass(frozen=True)
class Section:
    """A part of the page with its meaning in a sentence or two. `count` is shown beside the title."""

    title: str
    meaning: str
    body: Markup
    folded: bool = True
    count: str = ""


@dataclass(frozen=True)
class Contents:
    """A whole page. `kind` is what was done, `title` to what, `about` the small print below it."""

    kind: str
    title: str
    about: Sequence[str]
    verdict: Verdict
    tiles: Sequence[Tile]
    sections: Sequence[Section]


def body_of(contents: Contents) -> Markup:
    """The page between its head and its foot."""
    about = [tag("p", line) for line in contents.about if line]
    header = tag(
        "header",
        tag("p", tag("strong", "Detent"), f" {contents.kind}", class_="brand"),
        tag("h1", tag("bdi", contents.title)),
        tag("div", *about, class_="about"),
    )
    verdict = tag(
        "div",
        tag("h2", contents.verdict.title),
        tag("p", contents.verdict.said),
        class_=f"verdict {contents.verdict.level}",
    )
    tiles = tag("div", *(_tile(tile) for tile in contents.tiles), class_="tiles")
    return joined((header, tag("main", verdict, tiles, *(_section(section) for section in contents.sections))))


def _tile(tile: Tile) -> Markup:
    return tag(
        "div",
        tag("h3", tile.title),
        tag("p", tile.figure, class_=f"figure {tile.level}"),
        tag("p", tile.meaning, class_="quiet"),
        class_="tile",
    )


def _section(section: Section) -> Markup:
    count = tag("span", section.count, class_="count") if section.count else None
    meaning = tag("p", section.meaning, class_="meaning") if section.meaning else None
    if not section.folded:
        return tag("section", tag("h2", section.title, count), meaning, section.body)
    return tag("details", tag("summary", tag("h2", section.title, count)), meaning, section.body, class_="section")


def facts(pairs: Mapping[str, Child]) -> Markup:
    """Short facts, each under its name; those that are None are left out."""
    told = [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs.items() if value is not None]
    return tag("dl", *told, class_="facts")


def notes(errors: Sequence[str], warnings: Sequence[str], suggestions: Sequence[str]) -> Markup:
    """What is wrong, what to know and what to try."""
    entries = [tag("li", tag("span", "Error", class_="badge bad"), said) for said in errors]
    entries += [tag("li", tag("span", "Note", class_="badge warn"), said) for said in warnings]
    entries += [tag("li", tag("span", "Advice", class_="badge plain"), said) for said in suggestions]
    return tag("ul", *entries, class_="notes")


def code(content: str) -> Markup:
    """A file as it is."""
    return tag("pre", tag("code", content), tabindex=0)
