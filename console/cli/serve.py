"""`paceline serve`: the console in a browser on this machine."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from console.cli.errors import OK, BadInput
from console.cli.found import any_run, live_run
from console.cli.output import note, plural, say
from harness.cluster.local import head_alive

if TYPE_CHECKING:
    from console.serving.server import ConsoleServer

_MOST_TABS = 64  # each is a process of some 60 MB


def serve(
    run: str | None = None,
    /,
    *,
    port: Annotated[int, Parameter(help="0 takes a free one")] = 0,
    operator: Annotated[bool, Parameter(negative="", help="Tabs may act on the run; without it they only watch")] = False,
    host: Annotated[str, Parameter(help="Address to listen on")] = "127.0.0.1",
    max_tabs: Annotated[int, Parameter(help="Consoles open at the same time")] = 8,
    behind_proxy: Annotated[
        str,
        Parameter(
            help="Address, such as https://bench.example.org, of a proxy in front that encrypts and asks who is there; "
            "nothing but this machine may be listened on without one"
        ),
    ] = "",
) -> int:
    """Open the console of a run to browsers on this machine, by an address that nobody can guess. Ends with Ctrl-C.

    Each tab is a console of its own and ends with it; the run notices nothing. Read-only unless --operator is given.
    """
    from console.serving.gate import Gate, UnfitAddress, is_loopback
    from console.serving.server import ConsoleServer

    if not 0 <= port <= 65535:
        raise BadInput(f"--port {port}: ports go from 1 to 65535, and 0 takes a free one")
    if not 1 <= max_tabs <= _MOST_TABS:
        raise BadInput(f"--max-tabs {max_tabs} must be 1 to {_MOST_TABS}")
    if not is_loopback(host) and not behind_proxy:
        raise BadInput(
            f"--host {host} would show the console to other machines, unencrypted, and to whoever sees the address once. "
            "Leave it at 127.0.0.1 and reach it through ssh (ssh -L), or put a proxy in front that encrypts and asks who "
            "is there, and name it: --behind-proxy https://bench.example.org"
        )
    try:
        gate = Gate(behind_proxy)
    except UnfitAddress as problem:
        raise BadInput(f"--behind-proxy: {problem}") from problem
    folder = any_run(run) if run is not None else live_run(None)
    server = ConsoleServer(folder.path, gate, operator=operator, max_tabs=max_tabs)
    rights = "Tabs may act on the run" if operator else "Tabs only watch (--operator lets them act)"
    asyncio.run(_until_ended(server, host, port, f"{folder.name} in a browser", f"{rights}; {plural(max_tabs, 'tab')} at most."))
    note(f"{folder.name} goes on." if head_alive(folder) else "ended")
    return OK


async def _until_ended(server: ConsoleServer, host: str, port: int, title: str, rights: str) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    try:
        address = await server.start(host, port)
    except OSError as error:
        await server.stop()
        raise BadInput(_why_not_listening(error, host, port)) from error
    say(f"{title}:\n\n  {address}\n")
    say(f"{rights} Whoever has the address has that right: treat it like a password. Ctrl-C ends it.")
    sys.stdout.flush()
    try:
        await ended.wait()
    finally:
        await server.stop()


def _why_not_listening(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; --port 0 takes a free one"
    if error.errno == errno.EACCES:
        return f"port {port} needs root; take one from 1024 on, or --port 0 for a free one"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is no address of this machine"
    return f"cannot listen on {host} port {port}: {error.strerror or error}"
