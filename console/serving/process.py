"""The server's end of a tab's console process: starts it, passes bytes both ways, and sees to it that it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from console.serving.tab import DRIVER, ORDER, order_of

STOP_WITHIN_S: Final = 3.0
#: Of the server's terminal; the browser's is another, and always has all colours.
_NOT_FOR_TABS: Final = ("NO_COLOR", "COLORTERM", "TERM", "TEXTUAL_DRIVER", "TEXTUAL_PRESS", "TEXTUAL_SCREENSHOT")


class TabProcess(AppService):
    """`ended(exit code)` is awaited once the process has ended by itself."""

    def __init__(
        self,
        run: Path,
        *,
        operator: bool,
        write: Callable[[bytes], Awaitable[None]],
        ended: Callable[[int], Awaitable[None]],
    ) -> None:
        self._run_path, self._operator, self._ended = run, operator, ended
        self._stopping = False
        self._deaf = False
        super().__init__(
            "", write_bytes=write, write_str=_nothing, close=_nothing, download_manager=DownloadManager(), debug=False
        )

    def _build_environment(self, width: int = 80, height: int = 24) -> dict[str, str]:
        built: dict[str, str] = super()._build_environment(width, height)
        kept = {name: value for name, value in built.items() if name not in _NOT_FOR_TABS}
        return kept | {"TEXTUAL_DRIVER": DRIVER, ORDER: order_of(self._run_path, self._operator)}

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        """No shell, so nothing to quote; a session of its own, so that Ctrl-C reaches the server alone, which ends its tabs."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "console.serving.tab"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._build_environment(width, height),
            start_new_session=True,
        )
        self._process, self._stdin = process, process.stdin
        return process

    async def run(self) -> None:
        try:
            await super().run()
        except asyncio.CancelledError:
            # Of a process that ended before anything was read, the base class cancels its reader of stderr before that has begun,
            # and is hit by that itself. The browser must hear of the end all the same.
            this = asyncio.current_task()
            if this is not None and this.cancelling():
                raise
        assert self._process is not None
        code = await self._process.wait()
        if not self._stopping:
            await self._ended(code)

    async def on_data(self, payload: bytes) -> None:
        """To the browser. When that has gone, read on and drop: a console that cannot write cannot leave either."""
        if self._deaf:
            return
        try:
            await super().on_data(payload)
        except (ConnectionError, RuntimeError):
            self._deaf = True

    async def on_meta(self, data: bytes) -> None:
        """Opening addresses and delivering files is nothing this console does in a browser; that it ends, `run` sees."""

    async def on_packed(self, payload: bytes) -> None:
        """See `on_meta`."""

    async def stop(self) -> None:
        """Ask it to leave, close its input, and kill it if it has not gone in time."""
        process, task = self._process, self._task
        self._task, self._stopping, self._deaf = None, True, True
        if process is None or task is None:
            return
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.send_meta({"type": "quit"}), 0.5)
            self.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_WITHIN_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        # It may be telling the browser why the process ended: let it, but not for ever.
        await asyncio.wait({task}, timeout=STOP_WITHIN_S)
        task.cancel()
        await asyncio.wait({task})


async def _nothing(*_: object) -> None:
    return
