"""What the render clock expects of a screen, and the app of all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar, Literal, Protocol, cast

from textual.screen import Screen

from console.actions import Action, Where
from console.session import Session
from console.store.fleet import FleetStore
from console.store.tables import Tables as Tables
from console.store.view import TableView
from console.widgets.clock import EVERYTHING, Due
from console.widgets.paint import Paint, Painted
from harness.wire.inquiry import Answer, Question


class ConsoleApp(Protocol):
    """The part of the app that screens may use."""

    session: Session

    @property
    def store(self) -> FleetStore: ...

    @property
    def view(self) -> TableView: ...

    @property
    def inks(self) -> Paint: ...

    def why_not(self, action: Action) -> str:
        """Why this cannot be done now, in words; empty when it can."""

    def ask_and_act(self, name: str, slots: list[str] | None = None, value: str = "") -> None:
        """Ask, send the command of that name to the head, tell the answer. No slots: those of the screen's `targets`."""

    async def inquire(self, question: Question) -> Answer | None:
        """Ask the head for more than snapshots carry. Await it in a worker, never in a paint."""

    def tell(self, text: str, title: str = "", severity: Literal["information", "warning", "error"] = "information") -> None:
        """A toast."""

    def expect_typing(self) -> None:
        """Said by an action that opens a field: keys typed ahead are for that field, not for this screen."""

    def now_s(self) -> float: ...

    @property
    def looks_only(self) -> bool:
        """Opened read-only: acts are not offered."""

    @property
    def read_only(self) -> bool:
        """This console was opened read-only: nothing on this machine is changed from here."""

    @property
    def record_folder(self) -> Path | None:
        """The run's record, when it lies on this machine."""

    def show_record(self) -> None:
        """The run's result by replica, once it has ended; else says why not."""

    def open_run(self, path: Path, *, looks_only: bool = False) -> None:
        """Look at that run from now on: on the live screens while it goes on, at its record once it has ended."""

    def open_session(self, session: Session) -> None:
        """Look at something else from now on; the live screens begin anew."""

    def open_replica(self, slot: str, crumb: str) -> None:
        """Push the Replica screen of that slot; `crumb` is where it was opened from."""

    def copy(self, text: str, what: str) -> None:
        """To the clipboard of the terminal and to a file; says so."""

    def copy_log_path(self, slot: str | None) -> None:
        """To the clipboard of the terminal; says so."""


class PaintedScreen(Screen[None]):
    """A screen that draws when the render clock says so."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (160, "-wider")]  # noqa: RUF012 - as Textual declares it
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall"), (45, "-taller")]  # noqa: RUF012
    AUTO_FOCUS = ""  # else the first field of a screen would take the keys that were meant for the screen
    #: Its scope in the action registry: help shows these first.
    WHERE: ClassVar[Where] = "live"

    @property
    def console_app(self) -> ConsoleApp:
        return cast(ConsoleApp, self.app)

    def targets(self) -> list[str]:
        """Slots that an act from this screen hits: the marked ones, else the one under the cursor."""
        return []

    def hold(self) -> None:
        """An act was asked for: what is under the cursor stays there."""

    def sort_names(self) -> list[str]:
        """What `:sort` takes here."""
        return []

    def action_act(self, name: str) -> None:
        self.hold()
        self.console_app.ask_and_act(name)

    def tables(self) -> Tables:
        """The data of this screen as tables, for export and twins: what is shown, unrounded, with units in the names."""
        return {}

    def paint(self, due: Due) -> int:
        """Draw what is due; how many lines changed."""
        raise NotImplementedError

    def wipe(self) -> None:
        """Draw everything again: the theme has changed."""
        for painted in self.query(Painted):
            painted.wipe()

    def on_resize(self) -> None:
        self.call_after_refresh(self.paint, EVERYTHING)

    def on_screen_resume(self) -> None:
        """Shown again after another screen: what stands there is old, perhaps in another theme."""
        self.call_after_refresh(self._come_back)

    def _come_back(self) -> None:
        if self.is_attached and self.app.screen is self:
            self.wipe()
            self.paint(EVERYTHING)

    def every(self, seconds: float, ask: Callable[[], Awaitable[None]], name: str) -> None:
        """Run `ask` again and again while this screen is the one on show; a slow answer delays the next question only."""
        self.run_worker(self._ask_for_ever(seconds, ask), name=name, group=name, exclusive=True)

    async def _ask_for_ever(self, seconds: float, ask: Callable[[], Awaitable[None]]) -> None:
        while True:
            if self.app.screen is self:
                await ask()
            await asyncio.sleep(seconds)
