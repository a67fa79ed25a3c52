"""Keys that move through a log. Mixed into PaintedScreens that are made around one LogView."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.widgets.logview import MANY, LogView
from console.widgets.paint import Painted

if TYPE_CHECKING:
    from console.screens.base import PaintedScreen as _Screen
else:
    _Screen = object


class LogKeys(_Screen):
    @property
    def view(self) -> LogView:
        """The log that the keys move through."""
        raise NotImplementedError

    def _redraw(self) -> None:
        for painted in self.query(Painted):
            painted.repaint()

    def _move(self, by: int) -> None:
        self.view.move(by)
        self._redraw()

    def action_up(self) -> None:
        self._move(-1)

    def action_down(self) -> None:
        self._move(1)

    def action_page_up(self) -> None:
        self._move(-self.view.page)

    def action_page_down(self) -> None:
        self._move(self.view.page)

    def action_top(self) -> None:
        self._move(-MANY)

    def action_bottom(self) -> None:
        self._move(MANY)

    def action_left(self) -> None:
        self.view.aside(-1)

    def action_right(self) -> None:
        self.view.aside(1)

    def action_wide(self) -> None:
        self.view.wrap = not self.view.wrap
        self.view.pager.x = 0
        self._redraw()
