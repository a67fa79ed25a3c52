"""What a replica process does: carries one or more incarnations, takes its worker's commands, tells it who is up or over.

The connections to the head are made when the first engine has started, not before: an engine may fork its helpers while
it starts, which only a process without threads can do safely (ZeroMQ's I/O thread is one), and a replica that loads
weights for minutes has nothing to say to anybody but its worker.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
from pathlib import Path
from typing import Any

from harness.engines import registry
from harness.engines.base import EngineError
from harness.spec import RunSpec
from harness.wire import sockets
from harness.wire.keys import load_client_keys
from harness.worker.dataplane import DataPlane
from harness.worker.incarnation import Incarnation
from harness.worker.launch import STDIN, LaunchConfig, SlotLife
from harness.worker.pipes import LineReader, LineWriter
from harness.worker.session import Session

log = logging.getLogger("paceline.replica")


def run(config: LaunchConfig, rest: bytes) -> int:
    """Until the worker says stop or is gone. `rest`: what stdin already brought after the configuration."""
    os.register_at_fork(after_in_child=_let_go_of_signals)
    try:
        process = ReplicaProcess(config)
    except (EngineError, ImportError) as error:  # no such engine, or not with these arguments: the same next time
        for life in config.slots:
            told = {"died": life.slot, "incarnation": life.incarnation, "reason": str(error), "final": True}
            os.write(config.status_fd, json.dumps(told).encode() + b"\n")
        return 1
    return asyncio.run(process.run(rest))


def _let_go_of_signals() -> None:
    """A helper forked from here shares the loop's wake-up socket: a SIGTERM to it would end this process too."""
    signal.set_wakeup_fd(-1)


class ReplicaProcess:
    """Implements incarnation.Host."""

    def __init__(self, config: LaunchConfig) -> None:
        self._config = config
        self._spec = RunSpec.model_validate_json(config.spec)
        self._factory = registry.factory(self._spec.fleet.engine)
        self._args_hash = registry.args_hash(self._spec)
        self._slots: dict[str, Incarnation] = {}
        self._endings: dict[str, asyncio.Task[None]] = {}  # slot → the end of its latest incarnation
        self._ending = False

    async def run(self, rest: bytes) -> int:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._context = sockets.context()  # has no thread until its first socket
        self._over: asyncio.Future[int] = loop.create_future()
        self._client_keys = load_client_keys(Path(self._config.keys), "worker")
        self._rng = random.Random()
        self._plane = DataPlane(loop, self._context, self._client_keys, self._slots, self._rng)
        self._session: Session | None = None
        self._status = LineWriter(loop, self._config.status_fd)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, 128 + number)
        for life in self._config.slots:
            self._start(life)
        commands = LineReader(loop, STDIN, self._on_command, lambda: self._end(0), head=rest)
        code = await self._over
        self._ending = True  # from here on the end of the process says it all
        for incarnation in list(self._slots.values()):
            incarnation.stop()
        if self._endings:
            await asyncio.wait(self._endings.values())
        self._plane.close()
        if self._session is not None:
            self._session.close()
        commands.close()
        self._context.term()
        return code

    def _connected(self) -> Session:
        if self._session is None:
            self._session = Session(
                self._loop,
                self._context,
                self._client_keys,
                head=self._config.head,
                spec=self._spec,
                worker=self._config.worker,
                args_hash=self._args_hash,
                slots=self._slots,
                plane=self._plane,
                rng=self._rng,
            )
        return self._session

    def _end(self, code: int) -> None:
        if not self._over.done():
            self._over.set_result(code)

    # --- commands ---------------------------------------------------------------------------------------------

    def _on_command(self, command: dict[str, Any]) -> None:
        if "start" in command:
            self._start(SlotLife.of(command["start"]))
        elif "stop" in command:
            incarnation = self._slots.get(command["stop"])
            if incarnation is not None and incarnation.id == command.get("incarnation"):
                incarnation.stop()

    def _start(self, life: SlotLife) -> None:
        previous = self._slots.get(life.slot)
        if previous is not None:
            previous.stop()
        incarnation = self._slots[life.slot] = Incarnation(self._spec, life, self._factory, self, self._plane)
        incarnation.begin(after=self._endings.get(life.slot))

    # --- incarnation.Host -------------------------------------------------------------------------------------

    async def register(self, incarnation: Incarnation) -> None:
        await self._connected().register(incarnation)

    def loading(self, incarnation: Incarnation, note: str) -> None:
        self._tell("loading", incarnation, note=note)

    def became_ready(self, incarnation: Incarnation) -> None:
        self._tell("up", incarnation)
        self._connected().news()
        self._plane.greet_soon()

    def ended(self, incarnation: Incarnation, reason: str, *, final: bool, asked: bool) -> None:
        if self._slots.get(incarnation.slot) is incarnation:
            del self._slots[incarnation.slot]
        ending = asyncio.get_running_loop().create_task(incarnation.release())
        self._endings[incarnation.slot] = ending
        if asked:
            ending.add_done_callback(lambda _: self._tell("stopped", incarnation))
        else:
            log.error("%s %s died: %s", incarnation.slot, incarnation.id, reason)
            self._tell("died", incarnation, reason=reason, final=final)

    def _tell(self, what: str, incarnation: Incarnation, **more: Any) -> None:
        if not self._ending:
            self._status.write({what: incarnation.slot, "incarnation": incarnation.id, **more})
