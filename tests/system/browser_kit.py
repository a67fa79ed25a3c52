"""A headless Chromium driven over its DevTools protocol, and a served console to point it at.

The terminal draws on a canvas, so its text is read from xterm's own buffer. The page keeps that object to itself; a setter
on a name that its constructor assigns hands it to the test without a change in what is served.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or ""
_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # tests run as root in a container
    "--remote-debugging-port=0",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--window-size=1300,900",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # whatever it may want of the world, it does not get
)
_CATCH_TERMINAL: Final = """
Object.defineProperty(Object.prototype, "webglAddon", {
  configurable: true,
  set(addon) {
    window.caughtTerminal = this.terminal;
    Object.defineProperty(this, "webglAddon", { value: addon, writable: true, configurable: true });
  },
});
"""
_READ_TERMINAL: Final = """
(() => {
  const buffer = window.caughtTerminal?.buffer.active;
  if (!buffer) return "";
  return Array.from({ length: buffer.length }, (_, y) => buffer.getLine(y)?.translateToString(true) ?? "").join("\\n");
})()
"""


class Page:
    """One tab, and all that it asked of the network."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session = ""
        self.requests: list[str] = []
        self.complaints: list[str] = []  # of the browser: refused by policy, not found, errors in scripts
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
                continue
            method, facts = told["method"], told["params"]
            if method == "Network.requestWillBeSent":
                self.requests.append(facts["request"]["url"])
            elif method == "Network.webSocketCreated":
                self.requests.append(facts["url"])
            elif method == "Log.entryAdded" and facts["entry"]["level"] == "error":
                self.complaints.append(f"{facts['entry']['text']} {facts['entry'].get('url', '')}")
            elif method == "Runtime.exceptionThrown":
                self.complaints.append(str(facts["exceptionDetails"].get("exception", facts["exceptionDetails"])))

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params}
        await self._socket.send_json(message | ({"sessionId": self._session} if self._session else {}))
        answer = await asyncio.wait_for(self._answers[number], 45)
        assert "error" not in answer, (method, answer)
        return answer["result"]  # type: ignore[no-any-return]

    async def open(self, address: str) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Network", "Log", "Runtime", "Page"):
            await self.call(f"{domain}.enable")
        await self.call("Page.addScriptToEvaluateOnNewDocument", source=_CATCH_TERMINAL)
        await self.call("Page.navigate", url=address)

    async def evaluate(self, expression: str) -> Any:
        return (await self.call("Runtime.evaluate", expression=expression))["result"].get("value")

    async def text(self) -> str:
        """What stands in the terminal, line by line."""
        return str(await self.evaluate(_READ_TERMINAL))

    async def wait(self, what: str, within_s: float = 45.0, *, gone: bool = False) -> str:
        deadline = time.monotonic() + within_s
        while (what in (text := await self.text())) is gone:
            assert time.monotonic() < deadline, f"{'still' if gone else 'never'} saw {what!r}; {self.complaints}:\n{text}"
            await asyncio.sleep(0.1)
        return text

    async def wait_closed(self, why: str, within_s: float = 30.0) -> None:
        """Until the page says that its console has ended, and why."""
        deadline = time.monotonic() + within_s
        while why not in (said := str(await self.evaluate("document.getElementById('closed-why').textContent"))):
            assert time.monotonic() < deadline, f"never said {why!r} but {said!r}"
            await asyncio.sleep(0.1)

    async def press(self, key: str, code: int = 0) -> None:
        """A character, or a named key with its code."""
        text = {} if code else {"text": key}
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)

    async def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode((await self.call("Page.captureScreenshot"))["data"]))

    async def close(self) -> None:
        self._reader.cancel()
        await self._socket.close()


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Callable[[], Awaitable[Page]]]:
    """Gives a maker of pages; the browser and all its processes end with the block."""
    log = (profile.parent / "chromium.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        *(CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"), stdout=log, stderr=log, start_new_session=True
    )
    session = aiohttp.ClientSession()
    pages: list[Page] = []
    try:
        port_file = profile / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while not (port_file.is_file() and len(port_file.read_text().splitlines()) == 2):
            assert process.returncode is None, (profile.parent / "chromium.log").read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, "chromium did not start within 60 s"
            await asyncio.sleep(0.1)
        port, path = port_file.read_text().splitlines()

        async def new_page() -> Page:
            page = Page(await session.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=0))
            pages.append(page)
            return page

        yield new_page
    finally:
        for page in pages:
            await page.close()
        await session.close()
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        log.close()


class Served:
    """`paceline serve` as a process."""

    def __init__(self, run: Path, *options: str) -> None:
        env = os.environ | {"PACELINE_RUNS": str(run.parent), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "console.cli", "serve", str(run), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self.told = ""
        assert self.process.stdout is not None
        while "http://" not in self.told:
            line = self.process.stdout.readline()
            assert line, f"serve ended: {self.told}"
            self.told += line
        self.address = next(line.strip() for line in self.told.splitlines() if "http://" in line)
        self.token = self.address.rstrip("/").rsplit("/", 1)[1]

    def consoles(self) -> list[int]:
        """Processes behind its tabs."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in listed.split()]

    def end(self) -> str:
        """Ctrl-C; everything it said."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert self.process.stdout is not None
        self.told += self.process.stdout.read()  # not communicate(): it passes over what readline() has read ahead
        return self.told
