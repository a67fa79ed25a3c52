"""Two to eight attempts side by side: of runs, opened from their list, or of one run, opened from its record.

Samples are read in a thread, one run after the other; who leaves while that goes on ends it with the run that is being read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from textual import on
from textual.app import ComposeResult

from console.actions import BY_ID, Where, bindings
from console.errors import describe
from console.screens.base import PaintedScreen, Tables
from console.screens.drill_definitions import DefinitionsScreen
from console.screens.lines import LinesKeys
from console.widgets.compare import VIEWS, ComparePane, about
from console.widgets.curves import Curves
from console.widgets.footer import KeyFooter
from console.widgets.header import HeaderLine
from console.widgets.launching import AboutLine
from console.widgets.listing import LinesPane

if TYPE_CHECKING:
    from harness.analysis.comparing import Comparison

_FOOTER: Final = ("view_next", "baseline", "metric", "curves", "definitions", "back", "export", "help", "leave")

AT_ONCE: Final = 8  # attempts side by side


class _Left(Exception):
    """The screen was left while runs were read."""


class CompareScreen(LinesKeys, PaintedScreen):
    BINDINGS = bindings("compare")
    WHERE: ClassVar[Where] = "compare"

    def __init__(self, sides: Sequence[tuple[Path, int | None]]) -> None:
        """Runs' folders, each with the number of an attempt; None: the last that measured anything."""
        super().__init__()
        self._sides = list(sides)
        self._left = False

    def compose(self) -> ComposeResult:
        app = self.console_app
        yield HeaderLine(None, "Runs ▸ Compare", id="header")
        yield Curves(id="curves")
        yield ComparePane(id="compare")
        yield AboutLine(id="about")
        yield KeyFooter([BY_ID[name] for name in _FOOTER], app.why_not, id="footer")

    @property
    def pane(self) -> ComparePane:
        return self.query_one("#compare", ComparePane)

    @property
    def curves(self) -> Curves:
        return self.query_one("#curves", Curves)

    def moving(self) -> LinesPane:
        return self.pane

    def on_mount(self) -> None:
        self.pane.focus()
        self.run_worker(self._read(), group="compare", exclusive=True)

    def on_unmount(self) -> None:
        self._left = True

    # --- reading ---------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            found = await asyncio.to_thread(self._compare)
        except _Left:
            return
        except Exception as error:
            self.pane.say(f"cannot be compared: {describe(error)[0]}")
            return
        self.pane.put(found)
        self._show()

    def _compare(self) -> Comparison:
        """In a thread: reads every sample."""
        from harness.analysis.comparing import compare
        from harness.records.reader import Record

        def progress(text: str) -> None:
            if self._left:
                raise _Left
            self.app.call_from_thread(self._say, text)

        return compare([(Record(path), number) for path, number in self._sides], progress=progress)

    def _say(self, text: str) -> None:
        if self.is_attached:
            self.pane.say(f"{text} …")

    # --- showing ---------------------------------------------------------------------------------------------

    def _show(self) -> None:
        pane = self.pane
        drawn = pane.view == "distributions" and pane.overlay is not None
        self.set_class(drawn, "-curves")
        if drawn:
            self.curves.put(pane.overlay, tail=self.curves.tail)
        self._tell_row()

    @on(LinesPane.Moved)
    def _tell_row(self) -> None:
        pane = self.pane
        if pane.found is not None:
            remarks = "; ".join(pane.found.remarks)
            self.query_one("#about", AboutLine).say(about(pane.found, pane.row) or remarks)

    def action_view_next(self) -> None:
        self._view(1)

    def action_view_before(self) -> None:
        self._view(-1)

    def _view(self, way: int) -> None:
        self.pane.choose(VIEWS[(VIEWS.index(self.pane.view) + way) % len(VIEWS)])
        self._show()

    def action_metric(self) -> None:
        self.pane.metric += self.pane.view == "distributions"
        self.pane.choose("distributions")
        self._show()

    def action_curves(self) -> None:
        self.curves.tail = not self.curves.tail
        self.pane.choose("distributions")
        self._show()

    def action_baseline(self) -> None:
        from harness.analysis.comparing import rebased

        pane = self.pane
        if (found := pane.found) is not None:
            at = pane.at
            pane.first = 0
            pane.put(rebased(found, (found.baseline + 1) % len(found.sides)))
            pane.move_to(at)
            self._show()

    def action_left(self) -> None:
        self.pane.scroll_sides(-1)

    def action_right(self) -> None:
        self.pane.scroll_sides(1)

    def action_definitions(self) -> None:
        found = self.pane.found
        if found is not None:
            ids = [
                "percentile",
                "percentile_interval",
                "rate_interval",
                "difference_interval",
                *(row.id for row in found.figures),
            ]
            self.app.push_screen(DefinitionsScreen("What these figures are", ids))

    def action_copy(self) -> None:
        if (found := self.pane.found) is not None and (words := about(found, self.pane.row)):
            self.console_app.copy(words, "row")

    def action_back(self) -> None:
        self.app.pop_screen()

    def tables(self) -> Tables:
        if (found := self.pane.found) is None:
            return {}
        from harness.analysis.comparing import rows_of

        names = [side.name for side in found.sides]
        curves = [
            {"metric": overlay.metric, "run": name, "ms": ms, "share_at_or_below": share}
            for overlay in found.overlays
            for name, cdf in zip(names, overlay.cdfs, strict=True)
            for ms, share in cdf
        ]
        settings = [{"group": row.group, "field": row.field, **dict(zip(names, row.values, strict=True))} for row in found.config]
        return {
            "figures": rows_of(found),
            "distributions": curves,
            "settings": settings,
            "warnings": [{"text": one} for one in found.warnings],
        }
