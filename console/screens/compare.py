"""Runs side by side: opened from the list of runs, left to it."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult

from console.actions import BY_ID, Where, bindings
from console.screens.base import PaintedScreen, Tables
from console.screens.lines import LinesKeys
from console.store.runs import Comparison
from console.widgets.footer import KeyFooter
from console.widgets.header import HeaderLine
from console.widgets.listing import LinesPane
from console.widgets.runs import ComparePane


class CompareScreen(LinesKeys, PaintedScreen):
    """Two to four runs side by side; esc goes back to the list."""

    BINDINGS = bindings("runs", ("back", "up", "down", "page_up", "page_down", "top", "bottom"))
    WHERE: ClassVar[Where] = "runs"

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self._comparison = comparison

    def compose(self) -> ComposeResult:
        app = self.console_app
        yield HeaderLine(app.store, "Runs ▸ Compare", looks_only=app.looks_only, id="header")
        yield ComparePane(self._comparison, id="compare")
        yield KeyFooter([BY_ID[name] for name in ("back", "export", "help", "leave")], app.why_not, id="footer")

    @property
    def pane(self) -> ComparePane:
        return self.query_one("#compare", ComparePane)

    def moving(self) -> LinesPane:
        return self.pane

    def on_mount(self) -> None:
        self.pane.focus()

    def action_back(self) -> None:
        self.app.pop_screen()

    def tables(self) -> Tables:
        names = [row.name for row in self._comparison.runs]
        return {
            "figures": [
                {"figure": one.name, "unit": one.unit, **dict(zip(names, one.values, strict=True))}
                for one in self._comparison.figures
            ],
            "spec": [{"field": field, **dict(zip(names, values, strict=True))} for field, values in self._comparison.spec],
        }
