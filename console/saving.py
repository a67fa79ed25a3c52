"""What leaves the console as a file or through the terminal's clipboard: pictures, data of a screen, copied lines."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import platformdirs

if TYPE_CHECKING:
    from console.screens.base import PaintedScreen
    from console.store.fleet import FleetStore

COPIED = "copied.txt"


class _App(Protocol):
    """What saving needs of the app it is mixed into."""

    @property
    def store(self) -> FleetStore: ...

    @property
    def record_folder(self) -> Path | None: ...

    @property
    def painted_screen(self) -> PaintedScreen | None: ...

    def save_screenshot(self, filename: str, path: str) -> str: ...

    def copy_to_clipboard(self, text: str) -> None: ...

    def tell(self, text: str, title: str = "", severity: Literal["information", "warning", "error"] = "information") -> None: ...

    def copy(self, text: str, what: str) -> None: ...


class Saving:
    def action_picture(self: _App) -> None:
        try:
            where = self.save_screenshot(time.strftime("console-%Y%m%d-%H%M%S.svg"), str(folder_for(self)))
        except OSError as error:
            self.tell(f"no picture: {error}", severity="error")
        else:
            self.tell(f"picture in {where}")

    def action_export(self: _App) -> None:
        from console.export import write_tables

        screen = self.painted_screen
        tables = screen.tables() if screen is not None else {}
        if not any(tables.values()):
            self.tell("this screen has no data yet", severity="warning")
            return
        try:
            files = write_tables(tables, folder_for(self), time.strftime(f"{screen.WHERE if screen else ''}-%Y%m%d-%H%M%S"))
        except OSError as error:
            self.tell(f"no export: {error}", severity="error")
        else:
            self.tell("\n".join(str(file) for file in files), "data in")

    def copy(self: _App, text: str, what: str) -> None:
        """Terminals differ in whether they take OSC 52, and none says so: the same text is in a file as well."""
        self.copy_to_clipboard(text)
        try:
            folder = platformdirs.user_state_path("paceline", ensure_exists=True)
            (folder / COPIED).write_text(text + "\n", encoding="utf-8")
        except OSError:
            kept = ""
        else:
            kept = f"; also in {folder / COPIED}"
        self.tell(
            text if len(text) < 200 else f"{text[:200]} …", f"{what} copied (OSC 52; in tmux: set -g set-clipboard on){kept}"
        )

    def copy_log_path(self: _App, slot: str | None) -> None:
        at = self.store.index.get(slot) if slot is not None else None
        path = self.store.slots[at].log if at is not None else ""
        if path:
            self.copy(path, "log path")
        else:
            self.tell("no log of this replica is known (yet)", severity="warning")


def folder_for(app: Any) -> Path:
    """The run's record when it lies here and can be written, else the working directory."""
    record: Path | None = app.record_folder
    return record if record is not None and os.access(record, os.W_OK) else Path.cwd()
