"""Keys that move through lists of lines, and their painting. Mixed into PaintedScreens that are made of such lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.widgets.clock import Due
from console.widgets.listing import LinesPane
from console.widgets.paint import Painted

if TYPE_CHECKING:
    from console.screens.base import PaintedScreen as _Screen
else:
    _Screen = object


class LinesKeys(_Screen):
    def moving(self) -> LinesPane:
        """The list that the keys move through now."""
        raise NotImplementedError

    def paint(self, due: Due) -> int:
        lines = sum(painted.repaint() for painted in self.query(Painted) if painted.region.height and due.numbers)
        return lines + sum(pane.repaint() for pane in self.query(LinesPane) if due.table)

    def wipe(self) -> None:
        super().wipe()
        for pane in self.query(LinesPane):
            pane.wipe()

    def action_up(self) -> None:
        self.moving().move(-1)

    def action_down(self) -> None:
        self.moving().move(1)

    def action_page_up(self) -> None:
        self.moving().move(-self.moving().page)

    def action_page_down(self) -> None:
        self.moving().move(self.moving().page)

    def action_top(self) -> None:
        self.moving().move(-self.moving().count())

    def action_bottom(self) -> None:
        self.moving().move(self.moving().count())
