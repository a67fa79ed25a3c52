"""The web server: one page, its files, and a websocket for each tab.

Every request is looked at by the gate before anything else happens, and every answer carries the same headers. Nothing
is logged: an access log would hold the token.
"""

from __future__ import annotations

import asyncio
import html
import json
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from aiohttp import WSMsgType, web

from console.serving.gate import Gate, security_headers
from console.serving.process import TabProcess

_PAGE: Final = Path(__file__).parent / "page"
#: Of textual-serve: its terminal and the fonts that ship with it.
_FROM_TEXTUAL: Final = (
    "js/textual.js",
    "css/xterm.css",
    "fonts/RobotoMono-VariableFont_wght.ttf",
    "fonts/RobotoMono-Italic-VariableFont_wght.ttf",
)
_OWN: Final = ("page.js", "page.css", "icon.svg")
_HEARTBEAT_S: Final = 15.0
_LONGEST_MESSAGE: Final = 1 << 20  # a paste
_LARGEST: Final = (500, 200)  # columns, rows: what a tab asks for is what its process will draw

#: Close codes of the websocket; page.js has the words for them.
LEFT, TOO_MANY, SERVER_ENDS, CRASHED = 4000, 4001, 4002, 4003


class ConsoleServer:
    def __init__(self, run: Path, gate: Gate, *, operator: bool = False, max_tabs: int = 8) -> None:
        self._run, self._gate, self._operator, self._max_tabs = run, gate, operator, max_tabs
        self._tabs: dict[web.WebSocketResponse, TabProcess] = {}
        self._runner: web.AppRunner | None = None
        static = Path(str(files("textual_serve"))) / "static"
        self._files = {f"static/{name}": static / name for name in _FROM_TEXTUAL} | {name: _PAGE / name for name in _OWN}

    async def start(self, host: str, port: int) -> str:
        """Listens; the address that opens a console, without a proxy's name."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/{token}", self._with_slash),
                web.get("/{token}/", self._page),
                web.get("/{token}/ws", self._console),
                web.get("/{token}/{file:.+}", self._file),
            ]
        )
        app.on_response_prepare.append(self._add_headers)
        app.on_shutdown.append(self._end_tabs)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=5.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound = int(self._runner.addresses[0][1])
        self._gate.open_on(bound)
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{bound}/{self._gate.token}/"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def tabs(self) -> int:
        return len(self._tabs)

    # --- what every request meets --------------------------------------------------------------------------

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        upgrades = request.headers.get("Upgrade", "").lower() == "websocket" or request.path.endswith("/ws")
        problem = self._gate.why_not(request.path, request.headers, websocket=upgrades)
        if problem:
            return web.Response(status=403, text=f"403: {problem}\n")
        return await handler(request)

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        # A refused request may name any host: it gets a policy that allows nothing.
        host = request.host if response.status != 403 else "127.0.0.1"
        response.headers.update(security_headers(host))
        response.headers.popall("Server", None)

    # --- answers -------------------------------------------------------------------------------------------

    async def _with_slash(self, request: web.Request) -> web.StreamResponse:
        """Names in the page are relative to its folder."""
        raise web.HTTPPermanentRedirect(f"/{self._gate.token}/")

    async def _page(self, request: web.Request) -> web.StreamResponse:
        text = (_PAGE / "index.html").read_text(encoding="utf-8").replace("{{run}}", html.escape(self._run.name))
        return web.Response(text=text, content_type="text/html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        path = self._files.get(request.match_info["file"])
        if path is None:
            raise web.HTTPNotFound(text="404: nothing of that name\n")
        return web.FileResponse(path)

    async def _console(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(heartbeat=_HEARTBEAT_S, max_msg_size=_LONGEST_MESSAGE)
        await socket.prepare(request)
        if len(self._tabs) >= self._max_tabs:
            await socket.close(code=TOO_MANY, message=str(self._max_tabs).encode())
            return socket

        async def ended(code: int) -> None:
            await socket.close(code=CRASHED if code else LEFT)

        tab = self._tabs[socket] = TabProcess(self._run, operator=self._operator, write=socket.send_bytes, ended=ended)
        try:
            await tab.start(
                _size(request.query.get("width"), 80, _LARGEST[0]), _size(request.query.get("height"), 24, _LARGEST[1])
            )
            async for message in socket:
                if message.type == WSMsgType.TEXT:
                    await _pass_on(message.data, tab, socket)
        finally:
            await asyncio.shield(tab.stop())
            self._tabs.pop(socket, None)
        return socket

    async def _end_tabs(self, _: web.Application) -> None:
        closing = [asyncio.wait_for(socket.close(code=SERVER_ENDS), 1.0) for socket in self._tabs]
        await asyncio.gather(*closing, return_exceptions=True)  # a browser that is suspended reads nothing
        await asyncio.gather(*(tab.stop() for tab in self._tabs.values()), return_exceptions=True)


def _size(given: Any, default: int, largest: int) -> int:
    try:
        return max(1, min(int(given), largest))
    except (TypeError, ValueError):
        return default


async def _pass_on(text: str, tab: TabProcess, socket: web.WebSocketResponse) -> None:
    """One message of the page to its console. Whoever can send these has the token, but may still be broken."""
    try:
        kind, *rest = json.loads(text)
        if kind == "stdin":
            await tab.send_bytes(str(rest[0]).encode())
        elif kind == "resize":
            width, height = rest[0].get("width"), rest[0].get("height")
            await tab.set_terminal_size(_size(width, 80, _LARGEST[0]), _size(height, 24, _LARGEST[1]))
        elif kind == "ping":
            await socket.send_json(["pong", str(rest[0])])
        elif kind in ("focus", "blur"):
            await (tab.focus() if kind == "focus" else tab.blur())
    except (ValueError, TypeError, IndexError, AttributeError):
        return
