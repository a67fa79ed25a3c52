"""Launch."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult

from console.actions import Where, bindings, footer_of
from console.screens.base import PaintedScreen
from console.widgets.clock import Due
from console.widgets.footer import KeyFooter
from console.widgets.header import HeaderLine
from console.widgets.paint import Painted


class LaunchScreen(PaintedScreen):
    BINDINGS = bindings("launch")
    WHERE: ClassVar[Where] = "launch"

    def __init__(self, *held: Any) -> None:
        super().__init__()

    def compose(self) -> ComposeResult:
        app = self.console_app
        yield HeaderLine(app.store, "Launch", looks_only=app.looks_only, id="header")
        yield KeyFooter(footer_of("launch"), app.why_not, id="footer")

    def paint(self, due: Due) -> int:
        return sum(painted.repaint() for painted in self.query(Painted))
