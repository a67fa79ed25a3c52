"""What the render clock expects of a screen, and the app of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

from textual.screen import Screen

from console.actions import Action
from console.store.fleet import FleetStore
from console.store.view import TableView
from console.widgets.clock import Due
from console.widgets.paint import Paint


class ConsoleApp(Protocol):
    """The part of the app that screens may use."""

    store: FleetStore
    view: TableView

    @property
    def inks(self) -> Paint: ...

    def why_not(self, action: Action) -> str:
        """Why this cannot be done now, in words; empty when it can."""

    def ask_and_act(self, name: str) -> None:
        """Ask, send the command of that name to the head, tell the answer."""

    def now_s(self) -> float: ...

    @property
    def looks_only(self) -> bool:
        """Opened read-only: acts are not offered."""

    @property
    def record_folder(self) -> Path | None:
        """The run's record, when it lies on this machine."""

    def show_record(self) -> None:
        """The run's result by replica, once it has ended; else says why not."""

    def copy_log_path(self, slot: str | None) -> None:
        """To the clipboard of the terminal; says so."""


class PaintedScreen(Screen[None]):
    """A screen that draws when the render clock says so."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (160, "-wider")]  # noqa: RUF012 - as Textual declares it
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall"), (45, "-taller")]  # noqa: RUF012

    @property
    def console_app(self) -> ConsoleApp:
        return cast(ConsoleApp, self.app)

    def paint(self, due: Due) -> int:
        """Draw what is due; how many lines changed."""
        raise NotImplementedError

    def wipe(self) -> None:
        """Draw everything again: the theme has changed."""
        raise NotImplementedError
