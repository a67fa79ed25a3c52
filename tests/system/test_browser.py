"""The console in a browser: what it shows, who may see it, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from browser_kit import CHROMIUM, Served, browser
from run_kit import RunHandle, running

from console.cli import main
from console.serving.gate import Gate
from console.serving.server import CRASHED, SERVER_ENDS, TOO_MANY, ConsoleServer

needs_chromium = pytest.mark.skipif(
    not CHROMIUM and os.environ.get("CI") != "true", reason="chromium is not installed (apt-get install chromium)"
)


@pytest.fixture
def served(start_run: Callable[..., RunHandle]) -> Iterator[tuple[RunHandle, Callable[..., Served]]]:
    """A run that goes on, and `paceline serve` for it."""
    handle = start_run(load__kind="explore", load__duration_s=0, load__target_qps=20)
    servers: list[Served] = []

    def serve(*options: str) -> Served:
        servers.append(Served(handle.folder.path, *options))
        return servers[-1]

    handle.wait_issuing()
    yield handle, serve
    for server in servers:
        server.end()


async def until(true: Callable[[], object], what: str, within_s: float = 45.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.1)


# --- in a real browser -------------------------------------------------------------------------------------


@needs_chromium
async def test_a_browser_shows_the_live_screen_takes_keys_and_asks_nobody_else(
    served: tuple[RunHandle, Callable[..., Served]], tmp_path: Path
) -> None:
    assert CHROMIUM, "CI must have chromium"
    handle, serve = served
    server = serve()
    async with browser(tmp_path / "profile") as new_page:
        page = await new_page()
        await page.open(server.address)
        await page.wait("MEASURING")
        await page.wait("node000/gpu0")
        await page.wait("TTFT p99 60 s")
        await page.wait(handle.folder.name)
        await page.press("?")
        await page.wait("filter: a key, a word")
        await page.press("Escape", 27)
        await page.wait("filter: a key, a word", gone=True)
        await page.press("e")  # an act: this console only watches
        await page.wait("read-only")
        await page.press("2")
        await page.wait("▸ Fleet")

        asked = {urlsplit(url).hostname for url in page.requests if not url.startswith(("data:", "blob:"))}
        assert asked == {"127.0.0.1"}, page.requests
        assert any(url.startswith("ws://127.0.0.1") for url in page.requests)
        assert any(url.endswith(".ttf") for url in page.requests)
        assert page.complaints == []

        await page.press("q")
        await page.wait_closed("You left the console")
        await until(lambda: not server.consoles(), "the console's process ended")
    assert not [entry for entry in handle.journal("act.") if "evict" in entry.what]
    assert handle.state().phase == "MEASURING"


# --- its processes -----------------------------------------------------------------------------------------


async def test_each_tab_is_a_console_that_ends_with_it_and_all_end_with_the_server(
    served: tuple[RunHandle, Callable[..., Served]],
) -> None:
    handle, serve = served
    server = serve("--max-tabs", "2")
    origin = server.address.removesuffix(f"/{server.token}/")
    async with aiohttp.ClientSession(headers={"Origin": origin}) as session:
        first, second = [await session.ws_connect(f"{server.address}ws?width=120&height=36") for _ in range(2)]
        for tab in (first, second):
            await drawn_until(tab, "TTFT")
        third = await session.ws_connect(f"{server.address}ws")
        assert (await third.receive()).data == TOO_MANY
        pids = server.consoles()
        assert len(pids) == 2
        for pid in (server.process.pid, *pids):
            for file in ("cmdline", "environ"):
                assert server.token.encode() not in Path(f"/proc/{pid}/{file}").read_bytes()
        await first.close()
        await until(lambda: len(server.consoles()) == 1, "the first tab's console ended with it")
        seen = asyncio.create_task(read_to_its_end(second))
        told = await asyncio.to_thread(server.end)
        assert await seen == SERVER_ENDS
    assert server.process.returncode == 0
    assert told.count(server.token) == 1
    assert f"{handle.folder.name} goes on" in told
    assert not [pid for pid in pids if running(pid)]
    assert handle.state().phase == "MEASURING"


async def test_consoles_of_a_server_that_was_killed_leave_by_themselves(
    served: tuple[RunHandle, Callable[..., Served]],
) -> None:
    _, serve = served
    server = serve()
    origin = server.address.removesuffix(f"/{server.token}/")
    async with aiohttp.ClientSession(headers={"Origin": origin}) as session:
        tab = await session.ws_connect(f"{server.address}ws?width=80&height=24")
        await drawn_until(tab, "TTFT")
        pids = server.consoles()
        assert len(pids) == 1
        server.process.kill()
        await until(lambda: not running(pids[0]), "the console noticed that its server is gone")


async def test_a_tab_may_act_where_the_server_was_told_so(served: tuple[RunHandle, Callable[..., Served]]) -> None:
    _, serve = served
    server = serve("--operator")
    origin = server.address.removesuffix(f"/{server.token}/")
    async with aiohttp.ClientSession(headers={"Origin": origin}) as session:
        tab = await session.ws_connect(f"{server.address}ws?width=120&height=36")
        await drawn_until(tab, "node000/gpu1")
        await tab.send_json(["stdin", "e"])
        await drawn_until(tab, "Cancel")
    assert "Tabs may act on the run" in server.end()


async def read_to_its_end(tab: aiohttp.ClientWebSocketResponse) -> int | None:
    async for _ in tab:
        pass
    return tab.close_code


async def drawn_until(tab: aiohttp.ClientWebSocketResponse, text: str) -> str:
    drawn = b""
    async with asyncio.timeout(45):
        while text.encode() not in drawn:
            message = await tab.receive()
            assert message.type == aiohttp.WSMsgType.BINARY, message
            drawn += message.data
    return drawn.decode(errors="replace")


# --- the door ----------------------------------------------------------------------------------------------


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[tuple[ConsoleServer, str]]:
    """A server in this process; its consoles would have no run, and none is opened but where a test says so."""
    folder = tmp_path / "a <b> run"
    folder.mkdir()
    server = ConsoleServer(folder, Gate(), max_tabs=1)
    address = await server.start("127.0.0.1", 0)
    yield server, address
    await server.stop()


async def status(address: str, **headers: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(address, headers=headers, allow_redirects=False) as answer:
        await answer.read()
        return answer.status


async def test_only_the_whole_token_opens_anything(door: tuple[ConsoleServer, str]) -> None:
    server, address = door
    base, token = address.rstrip("/").rsplit("/", 1)
    assert len(token) >= 32
    assert await status(address) == 200
    assert await status(f"{address}page.js") == 200
    assert await status(f"{base}/{token}") == 308
    wrong = (
        "",
        "/",
        "/ws",
        f"/{token[:-1]}/",
        f"/{token}x/",
        f"/x/{token}/",
        "/%F0%9F%92%A9/",
        "/static/js/textual.js",
        "/favicon.ico",
    )
    for path in wrong:
        assert await status(base + path) == 403, path
    async with aiohttp.ClientSession(headers={"Origin": base}) as session:
        for path in ("/ws", "/wrong/ws"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(base + path)
            assert refused.value.status == 403
    assert server.tabs == 0


async def test_pages_and_names_of_others_are_refused_even_with_the_token(door: tuple[ConsoleServer, str]) -> None:
    _, address = door
    port = urlsplit(address).port
    assert await status(address, Host=f"localhost:{port}") == 200
    for host in ("rebound.example.org", f"rebound.example.org:{port}", "127.0.0.1", ""):
        assert await status(address, Host=host) == 403, host
    assert await status(address, Origin="https://example.org") == 403
    async with aiohttp.ClientSession() as session:
        for headers in (
            {},
            {"Origin": "null"},
            {"Origin": "https://example.org"},
            {"Origin": f"http://127.0.0.1:{(port or 0) + 1}"},
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"{address}ws", headers=headers)
            assert refused.value.status == 403


async def test_the_page_may_load_nothing_from_outside_and_is_kept_nowhere(door: tuple[ConsoleServer, str]) -> None:
    _, address = door
    async with aiohttp.ClientSession() as session:
        async with session.get(address) as answer:
            page, headers = await answer.text(), answer.headers
        assert "a &lt;b&gt; run" in page
        assert "//" not in page.replace("<!DOCTYPE", "")
        async with session.get(f"{address}page.css") as answer:
            assert "//" not in (await answer.text()).replace("/*", "").replace("*/", "")
        async with session.get(f"{address}../../etc/passwd") as answer:
            assert answer.status == 403
        async with session.get(f"{address}static/%2e%2e/server.py") as answer:
            assert answer.status in (403, 404)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "http" not in policy
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"


async def test_a_proxy_is_let_in_under_its_own_name_only(tmp_path: Path) -> None:
    gate = Gate("https://bench.example.org")
    gate.open_on(8000)
    path = f"/{gate.token}/ws"
    proxied = {"Host": "bench.example.org", "Origin": "https://bench.example.org"}
    assert gate.why_not(path, proxied, websocket=True) == ""
    assert gate.why_not(path, proxied | {"Origin": "http://bench.example.org"}, websocket=True)
    assert gate.why_not(path, proxied | {"Host": "other.example.org"}, websocket=True)
    assert gate.token not in repr(gate)


async def test_a_console_that_cannot_start_closes_its_tab_and_frees_its_place(
    door: tuple[ConsoleServer, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server, address = door
    monkeypatch.setenv("PACELINE_CONFIG", "/none")  # told in a toast, no more
    monkeypatch.setenv("PYTHONHOME", "/none")  # no Python process can start with it
    async with aiohttp.ClientSession(headers={"Origin": address.rsplit("/", 2)[0]}) as session:
        tab = await session.ws_connect(f"{address}ws")
        assert (await asyncio.wait_for(tab.receive(), 45)).data == CRASHED
    await until(lambda: server.tabs == 0, "its place is free")


async def test_browsers_that_read_nothing_keep_no_console_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[Drawing] = []

    class Drawing:
        """In place of a console's process: it draws until the browser takes no more."""

        def __init__(self, run: Path, *, write: Callable[[bytes], Awaitable[None]], **others: Any) -> None:
            self._write = write

        async def start(self, width: int, height: int) -> None:
            self._drawing = asyncio.create_task(self._draw())

        async def _draw(self) -> None:
            while True:
                await self._write(bytes(1 << 20))

        async def stop(self) -> None:
            stopped.append(self)
            self._drawing.cancel()

    monkeypatch.setattr("console.serving.server.TabProcess", Drawing)
    server = ConsoleServer(tmp_path, Gate())
    place = urlsplit(await server.start("127.0.0.1", 0))
    greeting = (
        f"GET {place.path}ws HTTP/1.1\r\nHost: {place.netloc}\r\nOrigin: http://{place.netloc}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    tabs = [await asyncio.open_connection(place.hostname, place.port) for _ in range(2)]
    for reads, writes in tabs:
        writes.write(greeting.encode())
        assert b"101 Switching" in await asyncio.wait_for(reads.readline(), 30)
    await until(lambda: server.tabs == 2, "two tabs")
    await asyncio.sleep(0.5)  # long enough for a megabyte that is not read; with less the test is only easier
    await asyncio.wait_for(server.stop(), 60)
    assert len(set(stopped)) == 2
    for _, writes in tabs:
        writes.close()


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["no-such-run"], "no runs in"),
        (["--port", "70000"], "1 to 65535"),
        (["--max-tabs", "0"], "1 to 64"),
        (["--host", "0.0.0.0"], "--behind-proxy"),
        (["--host", "203.0.113.7", "--behind-proxy", "bench.example.org"], "https://bench.example.org"),
        ([], "no run is going on"),
    ],
)
def test_what_cannot_be_served_is_said_in_words(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path))
    assert main(["serve", *options]) == 2
    assert said in capsys.readouterr().err


def test_a_port_in_use_is_said_in_words(
    start_run: Callable[..., RunHandle], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = start_run()
    handle.wait("its record", handle.folder.run_json.is_file)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(handle.folder.path), "--port", str(port)]) == 2
    assert f"port {port} of 127.0.0.1 is in use" in capsys.readouterr().err
