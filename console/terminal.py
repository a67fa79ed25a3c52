"""The terminal as Textual's driver writes to it, made safe to lose.

Textual writes from a thread that dies of the first error, and whoever writes afterwards waits for ever on its full queue.
A terminal that is closed (window shut, ssh broken) raises exactly that error, so a console that lost its terminal stayed
as a process that nobody could see or end. Here the error is met once, told, and everything written later is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import IO, Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver


class Losable:
    """The part of a text file that the writer thread uses; `lost` is called once, from the thread that met the error."""

    def __init__(self, file: IO[str], lost: Callable[[], None]) -> None:
        self._file, self._lost = file, lost
        self._gone = threading.Event()

    def write(self, text: str) -> None:
        self._try(self._file.write, text)

    def flush(self) -> None:
        self._try(self._file.flush)

    def fileno(self) -> int:
        return self._file.fileno()

    def _try(self, call: Callable[..., object], *args: str) -> None:
        if self._gone.is_set():
            return
        try:
            call(*args)
        except (OSError, ValueError):  # ValueError: the file was closed under us
            self._gone.set()
            self._lost()


class TerminalDriver(LinuxDriver):
    """The driver of a terminal; when that goes away the app leaves as it does by `q`."""

    def __init__(self, app: App[Any], **how: Any) -> None:
        super().__init__(app, **how)
        self._file: Any = Losable(self._file, self._hung_up)

    def _hung_up(self) -> None:
        self._app.call_later(self._app.exit, "detached")

    def _run_input_thread(self) -> None:
        """Reading fails too once the terminal is gone: that is no reason for a traceback that nobody can see."""
        try:
            self.run_input_thread()
        except OSError:
            self._hung_up()
