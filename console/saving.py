"""What leaves the console as a file or through the terminal's clipboard: pictures, data of a screen, copied lines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import platformdirs

from console.export import free_stem, write_tables
from harness.records.layout import RunFolder

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
        screen = self.painted_screen
        stem = time.strftime(f"{screen.WHERE if screen is not None else 'console'}-%Y%m%d-%H%M%S")

        def write(folder: Path) -> list[Path]:
            name = f"{free_stem(folder, stem, '.svg')}.svg"
            return [Path(self.save_screenshot(name, str(folder)))]

        save(self, write, "picture")

    def action_export(self: _App) -> None:
        screen = self.painted_screen
        tables = screen.tables() if screen is not None else {}
        if screen is None or not any(tables.values()):
            self.tell("this screen has no data yet", "no export", "warning")
            return
        stem = time.strftime(f"{screen.WHERE}-%Y%m%d-%H%M%S")
        save(self, lambda folder: write_tables(tables, folder, stem), "export")

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


def save(app: _App, write: Callable[[Path], list[Path]], what: str) -> None:
    """Into `exports` of the run's record when it lies here and can be written, else into the working directory; says where, or
    why not."""
    problems = []
    for folder in folders_for(app):
        try:
            files = write(folder())
        except OSError as problem:
            problems.append(f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror or str(problem))
            continue
        named = files[0].name if len(files) == 1 else f"{len(files)} files: {files[0].stem}*"  # two short lines, not nine
        app.tell(f"{named}\nin {_short(files[0].parent)}" + (f"\n(not into the record: {problems[0]})" if problems else ""))
        return
    app.tell("\n".join(dict.fromkeys(problems)), f"no {what}", "error")


def folders_for(app: _App) -> list[Callable[[], Path]]:
    """Called one after the other: a working directory that was removed is an OSError of its own."""
    record = app.record_folder
    return [*([lambda: _made(RunFolder(record).exports)] if record is not None else []), Path.cwd]


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _short(folder: Path) -> str:
    """As one would type it here: below the working directory without it, below the home with ~, else whole."""
    for mark, base_of in (("", Path.cwd), ("~/", Path.home)):
        with contextlib.suppress(OSError, RuntimeError):
            base = base_of()
            if folder != base and folder.is_relative_to(base):
                return f"{mark}{folder.relative_to(base)}"
    return str(folder)
