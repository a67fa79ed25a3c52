"""A report before it has a form: sections of sentences, tables and charts. HTML, Markdown and the data files are made of these.

Text in here is as the record has it, hostile or not; whoever gives it a form escapes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from harness.report.palette import Palette

Level = Literal["good", "info", "warn", "bad"]
Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Column:
    """`digits`: decimals of its numbers; None for text."""

    title: str
    digits: int | None = None

    @property
    def right(self) -> bool:
        return self.digits is not None

    def text(self, value: Cell) -> str:
        if value is None:
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int | float):
            return number(value, self.digits if self.digits is not None else 1)
        return value


@dataclass(frozen=True)
class Table:
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    #: By row: a word that colours it, where one of its cells says the same in text.
    levels: Sequence[Level | None] = ()


@dataclass(frozen=True)
class Chart:
    """`draw` makes the figure with the colours that it is given. `alt` says in words what is to be seen."""

    name: str  # of the file, without its ending
    title: str
    caption: str
    alt: str
    draw: Callable[[Palette], Figure]


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Remarks:
    """Sentences with a level each, the most important first."""

    lines: Sequence[tuple[Level, str]]


@dataclass(frozen=True)
class Folded:
    """Shown on demand: a table of hundreds of rows."""

    title: str
    blocks: Sequence[Block]


Block = Table | Chart | Text | Heading | Remarks | Folded


@dataclass(frozen=True)
class Section:
    id: str  # within its part; letters, digits, "-"
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Tile:
    """A figure that is read first."""

    label: str
    value: str
    unit: str
    below: str = ""
    level: Level | None = None


@dataclass(frozen=True)
class Part:
    """One attempt of a run, or what several have to do with each other. `stamps` are said at the top, whatever is read on."""

    id: str
    title: str
    subtitle: str
    sections: Sequence[Section]
    verdict: str = ""
    stamps: Sequence[str] = ()
    tiles: Sequence[Tile] = ()

    def charts(self) -> Iterator[Chart]:
        for section in self.sections:
            yield from _charts(section.blocks)


@dataclass(frozen=True)
class Document:
    title: str
    parts: Sequence[Part]
    footer: str = ""


@dataclass(frozen=True)
class Data:
    """A table of a data file: machine names, all digits."""

    name: str
    rows: list[dict[str, Any]] = field(default_factory=list)


def _charts(blocks: Sequence[Block]) -> Iterator[Chart]:
    for block in blocks:
        if isinstance(block, Chart):
            yield block
        elif isinstance(block, Folded):
            yield from _charts(block.blocks)


def number(value: float | None, digits: int = 1) -> str:
    """`1,234.5`; `-` where nothing is known."""
    if value is None or value != value or value in (float("inf"), float("-inf")):
        return "-"
    if isinstance(value, int):
        return f"{value:,d}"
    return f"{round(value, digits) + 0.0:,.{digits}f}"  # + 0.0: never -0.0


def span(interval: tuple[float, float] | None, digits: int = 1) -> str:
    return "-" if interval is None else f"{number(interval[0], digits)} to {number(interval[1], digits)}"


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def visible(text: object) -> str:
    """Without what no page may hold (control characters, half surrogates) and what turns the direction of writing."""
    return _CONTROL.sub("\ufffd", str(text))


def short(text: object, most: int) -> str:
    whole = visible(text).replace("\n", " ")
    return whole if len(whole) <= most else whole[: most - 1] + "…"


def slug(text: str) -> str:
    """For file names and anchors: letters, digits, `-`, `_` and `.`, never empty, never a path."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:80] or "run"
