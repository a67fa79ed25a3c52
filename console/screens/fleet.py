"""Fleet."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult

from console.actions import Where, bindings, footer_of
from console.screens.base import PaintedScreen
from console.widgets.clock import Due
from console.widgets.footer import KeyFooter
from console.widgets.header import HeaderLine
from console.widgets.paint import Painted


class FleetScreen(PaintedScreen):
    BINDINGS = bindings("fleet")
    WHERE: ClassVar[Where] = "fleet"

    def __init__(self, *held: Any) -> None:
        super().__init__()

    def compose(self) -> ComposeResult:
        app = self.console_app
        yield HeaderLine(app.store, "Fleet", looks_only=app.looks_only, id="header")
        yield KeyFooter(footer_of("fleet"), app.why_not, id="footer")

    def paint(self, due: Due) -> int:
        return sum(painted.repaint() for painted in self.query(Painted))
