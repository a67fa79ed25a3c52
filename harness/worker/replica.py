"""The replica process: `python -m harness.worker.replica`, started by a worker, carries one or more incarnations.

Its configuration is the first line of stdin, commands follow, and EOF means that the worker is gone. The process also
asks the kernel to be killed with its worker (PR_SET_PDEATHSIG), for the case that its loop is stuck when that happens.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from harness.engines import registry
from harness.engines.base import EngineError
from harness.spec import RunSpec
from harness.wire import sockets
from harness.wire.keys import load_client_keys
from harness.worker.dataplane import DataPlane
from harness.worker.incarnation import Incarnation
from harness.worker.launch import LaunchConfig, SlotLife
from harness.worker.pipes import LineReader, LineWriter, read_first_line
from harness.worker.session import Session

PR_SET_PDEATHSIG = 1
STDIN = 0

log = logging.getLogger("paceline.replica")


def main() -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    line, rest = read_first_line(STDIN)
    if not line:
        return 0  # the worker ended before it had said what to do
    config = LaunchConfig.of(json.loads(line))
    if not die_with(config.worker_pid):
        return 0
    try:
        process = ReplicaProcess(config)
    except EngineError as error:  # no such engine, or not with these arguments: it would be the same next time
        for life in config.slots:
            told = {"died": life.slot, "incarnation": life.incarnation, "reason": str(error), "final": True}
            os.write(config.status_fd, json.dumps(told).encode() + b"\n")
        return 1
    return asyncio.run(process.run(rest))


def die_with(parent_pid: int) -> bool:
    """Ask for SIGKILL when the parent ends. False: it already has (the request came too late to be honoured)."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent_pid


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
        context = sockets.context()
        self._over: asyncio.Future[int] = loop.create_future()
        keys = load_client_keys(Path(self._config.keys), "worker")
        rng = random.Random()
        self._plane = DataPlane(loop, context, keys, self._slots, rng)
        self._session = Session(
            loop,
            context,
            keys,
            head=self._config.head,
            spec=self._spec,
            worker=self._config.worker,
            args_hash=self._args_hash,
            slots=self._slots,
            plane=self._plane,
            rng=rng,
        )
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
        self._session.close()
        commands.close()
        context.term()
        return code

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
        await self._session.register(incarnation)

    def became_ready(self, incarnation: Incarnation) -> None:
        self._tell("up", incarnation)
        self._session.news()
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


if __name__ == "__main__":
    sys.exit(main())
