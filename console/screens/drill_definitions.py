"""What each figure of a view is: its formula, the time that it is of and where it comes from, over the view itself."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content

from console.screens.overlay import LinesOver

if TYPE_CHECKING:
    from harness.analysis.definitions import Definition

_LEAST_WIDTH: Final = 24
_LABEL: Final = 9


class DefinitionsScreen(LinesOver):
    BINDINGS: ClassVar = [Binding("enter", "close", "Close", show=False)]

    def __init__(self, title: str, ids: Sequence[str]) -> None:
        super().__init__()
        self._title, self._ids = title, ids

    def compose(self) -> ComposeResult:
        yield from self.framed(self._title, "↑ ↓ PgUp PgDn scroll · esc closes")

    def on_mount(self) -> None:
        self.call_after_refresh(self._draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        from harness.analysis.definitions import used_ids

        width = max(_LEAST_WIDTH, self.room - 1)  # a scrollbar may come
        lines = [line for one in used_ids(self._ids) for line in _lines(one, width)]
        self.put(
            Content("\n").join(lines or [Content.styled("this view has no figures, only what replicas report", "$ink-muted")])
        )


def _lines(one: Definition, width: int) -> list[Content]:
    unit = f" [{one.unit}]" if one.unit else ""
    lines = [Content.assemble((one.title, "$foreground bold"), (f"{unit}  {one.id}", "$ink-faint"))]
    for label, text in (("is", one.formula), ("of", one.window), ("from", one.source)):
        parts = textwrap.wrap(text, max(16, width - _LABEL), break_on_hyphens=False) or [""]
        lines.append(Content.assemble((f"  {label:<{_LABEL - 2}}", "$ink-muted"), (parts[0], "$foreground")))
        lines += [Content.styled(" " * _LABEL + part, "$foreground") for part in parts[1:]]
    return [*lines, Content("")]
