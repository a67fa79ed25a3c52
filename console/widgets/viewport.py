"""What tables and lists of lines have in common: strips of the viewport alone, of which only those that changed are refreshed.

A ScrollView whose lines come from `repaint`, not from `render_line`: what is drawn is compared with what is on screen first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.widgets.paint import HasInks, Paint, merge


class Viewport(ScrollView, can_focus=True, inherit_bindings=False):
    #: Lines at the top that never scroll.
    HEADINGS = 0

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._strips: dict[int, Strip] = {}  # by line of the viewport

    @property
    def inks(self) -> Paint:
        return cast(HasInks, self.app).inks

    def repaint(self, *, whole: bool = False) -> int:
        """Draw the visible lines and refresh those that changed; how many that was."""
        raise NotImplementedError

    def show_cursor(self) -> None:
        """Scroll to the cursor if it is out of sight, and paint."""
        raise NotImplementedError

    def put_strips(self, strips: Iterable[Strip], *, whole: bool) -> int:
        """All lines of the viewport from the top; how many of them are other than before."""
        base = self.rich_style
        fresh = {y: strip.apply_style(base) for y, strip in enumerate(strips)}
        changed = [y for y, strip in fresh.items() if whole or self._strips.get(y) != strip]
        self._strips = fresh
        if changed:
            self.refresh(*merge(changed, self.scrollable_content_region.width))
        return len(changed)

    def wipe(self) -> None:
        self._strips = {}
        self.repaint(whole=True)

    def render_line(self, y: int) -> Strip:
        strip = self._strips.get(y)
        return strip if strip is not None else Strip.blank(self.scrollable_content_region.width, self.rich_style)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self.repaint()

    def on_resize(self) -> None:
        self.wipe()
        self.show_cursor()

    @property
    def page(self) -> int:
        return max(1, self.scrollable_content_region.height - self.HEADINGS - 1)
