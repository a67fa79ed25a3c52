"""Drawing without layout: styles from the theme, and a widget that repaints only the lines that changed.

Textual costs 0.4-0.5 ms of CPU for each terminal line it composes again, so the unit of saving is the line: `Painted`
compares the strips it is given with those on screen and asks for the changed lines only. Styles are built once for a
theme; drawing code asks for a meaning ("slow", "muted"), never for a colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, cast

from rich.cells import cell_len, set_cell_size
from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from console.store.fleet import SHOWN_STATES, STOPPED
from console.widgets import fmt

Run = tuple[str, Style]

#: One glyph for each state: state must read without colour.
GLYPHS: Final = {
    "NEW": "·", "REGISTERED": "○", "WARMING": "◔", "READY": "●", "SUSPECT": "?", "DRAINING": "▽", "DRAINED": "◇",
    "LOST": "×", "EVICTED": "⊘", "REJECTED": "!", "SLOW": "▲", "STOPPED": "□",
}  # fmt: skip


class Paint:
    """Rich styles of one theme."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._variables = variables
        self._mixed: dict[tuple[str, str], Style] = {}
        self.plain = self.style("foreground")
        self.bold = self.plain + Style(bold=True)
        self.muted = self.style("ink-muted")
        self.faint = self.style("ink-faint")
        self.rule = self.style("ink-rule")
        self.primary = self.style("primary")
        self.good = self.style("success")
        self.warn = self.style("warning")
        self.bad = self.style("error")
        # In reverse video a graph would be its own negative, so what has a state's colour stays as it is in that row.
        reverse = variables.get("ink-cursor-text-style") == "reverse"
        self.cursor = Style(reverse=True) if reverse else Style(bgcolor=self._colour("ink-cursor"))
        upright = Style(reverse=False) if reverse else Style.null()
        self.badge = Style(color=self._colour("background"), bgcolor=self._colour("warning"), bold=True)
        self.heat = [self.style(f"heat-{step}") for step in range(8)]
        self.states = {name: self.style(f"state-{name.lower()}") + upright for name in SHOWN_STATES if name != STOPPED}
        self.states[STOPPED] = self.faint  # nothing to look at: no colour of its own in themes

    def _colour(self, name: str) -> RichColor:
        """One of the terminal's own 16 under an ANSI theme, else red, green and blue."""
        return Color.parse(self._variables[name]).rich_color

    def style(self, name: str) -> Style:
        return Style(color=self._colour(name))

    def on(self, front: str, back: str) -> Style:
        """One variable on another, for half blocks; cached, because a heat map asks for every cell."""
        key = (front, back)
        if key not in self._mixed:
            self._mixed[key] = Style(color=self._colour(front), bgcolor=self._colour(back))
        return self._mixed[key]


def strip_of(runs: Iterable[Run], width: int, base: Style | None = None) -> Strip:
    """One line exactly `width` wide: runs that touch and share a style become one segment."""
    segments: list[Segment] = []
    used = 0
    for text, style in runs:
        if not text or used >= width:
            continue
        length = len(text) if text.isascii() else cell_len(text)
        if used + length > width:
            text, length = set_cell_size(text, width - used), width - used
        used += length
        full = base + style if base is not None else style
        if segments and segments[-1].style == full:
            segments[-1] = Segment(segments[-1].text + text, full)
        else:
            segments.append(Segment(text, full))
    if used < width:
        segments.append(Segment(" " * (width - used), base))
    return Strip(segments, width)


def size_of(runs: Iterable[Run]) -> int:
    return sum(cell_len(text) for text, _ in runs)


def fitting(groups: Iterable[Sequence[Run]], width: int) -> list[Run]:
    """Whole groups, in order, as long as they fit: half a number is worse than none."""
    kept: list[Run] = []
    for group in groups:
        size = sum(cell_len(text) for text, _ in group)
        if size > width:
            break
        width -= size
        kept += group
    return kept


def spread(left: Sequence[Run], right: Sequence[Run], width: int) -> list[Run]:
    """Left and right parts of one line; the left one gives way."""
    room = width - sum(cell_len(text) for text, _ in right) - 1
    kept: list[Run] = []
    for text, style in left:
        if room <= 0:
            break
        kept.append((fmt.clip(text, room), style))
        room -= cell_len(kept[-1][0])
    return [*kept, (" " * (max(0, room) + 1), Style.null()), *right]


class HasInks(Protocol):
    inks: Paint


class Painted(Widget):
    """A widget that is told its lines. `draw` makes them; it is called by the render clock and when the size changes."""

    DEFAULT_CSS = """
    Painted { height: auto; width: 1fr; }
    """

    def __init__(self, lines: int = 1, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines = lines
        self._strips: list[Strip] = []
        self._drawn_width = -1
        self._titled = ""

    @property
    def inks(self) -> Paint:
        """Styles of the theme in force: the app makes them anew when the theme changes."""
        return cast(HasInks, self.app).inks

    def draw(self, width: int, height: int) -> list[Strip]:
        """Strips from the newest state, from the top; lines that are not drawn stay blank."""
        raise NotImplementedError

    def entitle(self, title: str) -> None:
        """For a title that changes: written only when it has, because a title paints its whole widget."""
        if title != self._titled:
            self._titled = self.border_title = title

    def repaint(self) -> int:
        """Draw again and refresh what changed; how many lines that was."""
        width, height = self.content_size
        if width <= 0 or height <= 0 or not self.is_attached:
            return 0
        base = self.rich_style
        fresh = [strip.apply_style(base) for strip in self.draw(width, height)[:height]]
        fresh += [Strip.blank(width, base)] * (height - len(fresh))
        if self._drawn_width != width or len(fresh) != len(self._strips):
            self._strips, self._drawn_width = fresh, width
            self.refresh()
            return height
        changed = [row for row, (new, old) in enumerate(zip(fresh, self._strips, strict=True)) if new != old]
        self._strips = fresh
        if changed:
            self.refresh(*merge(changed, width))
        return len(changed)

    @property
    def unpainted(self) -> bool:
        """Nothing drawn yet at this width."""
        return self._drawn_width != self.content_size.width

    def wipe(self) -> None:
        """Forget what is on screen (theme changed)."""
        self._drawn_width = -1
        self.repaint()

    def set_lines(self, lines: int) -> None:
        if lines != self._lines:
            self._lines = lines
            # Not at once: asked for while a layout is being worked out (first paint, resize), it would be swallowed.
            self.call_after_refresh(self.refresh, layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self._lines

    def on_resize(self) -> None:
        self.repaint()

    def render_line(self, y: int) -> Strip:
        if y < len(self._strips):
            return self._strips[y]
        return Strip.blank(self.content_size.width, self.rich_style)


def merge(rows: list[int], width: int) -> list[Region]:
    """Neighbouring lines as one region."""
    regions: list[Region] = []
    for row in rows:
        if regions and regions[-1].bottom == row:
            last = regions[-1]
            regions[-1] = Region(0, last.y, width, last.height + 1)
        else:
            regions.append(Region(0, row, width, 1))
    return regions
