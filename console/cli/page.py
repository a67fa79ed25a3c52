"""A page of text: titles, lines and tables as wide as it may be. No number is ever cut, and no path: where the width is short
whole columns go, least needed first."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from console.store.tables import Row
from console.widgets import fmt

_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    heading: str
    text: Callable[[Row], str]
    right: bool = True
    keep: int = 9  # lower goes first when the width is short; 9 stays


@dataclass(slots=True)
class Page:
    width: int
    bold: bool = False
    lines: list[str] = field(default_factory=list)

    def title(self, text: str) -> None:
        if self.lines:
            self.lines.append("")
        for part in textwrap.wrap(text, self.width, replace_whitespace=False, break_on_hyphens=False):
            self.lines.append(f"\x1b[1m{part}\x1b[0m" if self.bold else part)

    def line(self, *parts: str) -> None:
        """Parts with a gap between, on as many lines as they need."""
        text = ""
        for part in filter(None, parts):
            if text and len(text) + len(_GAP) + len(part) > self.width - 2:
                self.lines.append(f"  {text}")
                text = ""
            text = f"{text}{_GAP}{part}" if text else part
        if text:
            self.lines.append(f"  {text}")

    def prose(self, text: str) -> None:
        self.lines += textwrap.wrap(text, self.width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)

    def table(self, columns: Sequence[Column], rows: Sequence[Row], nothing: str = "") -> None:
        if not rows:
            self.line(nothing)
            return
        columns = [column for column in columns if any(column.text(row) not in ("", fmt.UNKNOWN) for row in rows)]
        cells = [[column.text(row) for row in rows] for column in columns]
        widths = [max(len(column.heading), *(len(text) for text in texts)) for column, texts in zip(columns, cells, strict=True)]
        shown = list(range(len(columns)))
        while sum(widths[at] + len(_GAP) for at in shown) > self.width and any(columns[at].keep < 9 for at in shown):
            shown.remove(min(shown, key=lambda at: (columns[at].keep, -at)))
        for number in range(-1, len(rows)):
            texts = [columns[at].heading if number < 0 else cells[at][number] for at in shown]
            sized = [
                t.rjust(widths[at]) if columns[at].right else t.ljust(widths[at]) for t, at in zip(texts, shown, strict=True)
            ]
            self.lines.append(fmt.clip(f"  {_GAP.join(sized)}".rstrip(), self.width))

    def __str__(self) -> str:
        return "\n".join(self.lines)
