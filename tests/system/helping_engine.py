"""An engine that starts helper processes, as engines of real hardware do: one forked from the replica, one program.

`kind` of engine_args: "" loads at once; "stuck" holds its process's loop for a minute, as a heavy import can;
"slow" takes `load_s` with the loop free. Its facts tell what it saw while it started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from worker_kit import EchoEngine

from harness.engines.base import EngineContext, Events
from harness.spec import RunSpec

MARK = "PACELINE_TEST_MARK"


class HelpingEngine(EchoEngine):
    many_per_process = False
    synthetic = False

    def __init__(self, context: EngineContext, events: Events) -> None:
        super().__init__(context, events)
        self._facts: dict[str, Any] = {}

    async def start(self) -> None:
        args = self._context.args
        self._facts["threads"] = len(os.listdir("/proc/self/task"))
        self._facts["sockets"] = sum(os.readlink(f).startswith("socket") for f in Path("/proc/self/fd").iterdir() if f.exists())
        self._facts["mark"] = os.environ.get(MARK, "")
        self._facts["forked"] = _forked()
        self._facts["program"] = _program()
        if args.get("kind") == "stuck":
            time.sleep(60)  # noqa: ASYNC251  it holds the loop on purpose
        await asyncio.sleep(args.get("load_s", 0))
        self._facts["loaded"] = True

    def facts(self) -> dict[str, Any]:
        return self._facts


def _forked() -> int:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, lambda *_: None)  # survives it, as a helper that shuts down in its own time
        while True:
            time.sleep(600)
    return pid


def _program() -> int:
    return subprocess.Popen(["sleep", "600"]).pid


factory = HelpingEngine


def check_args(spec: RunSpec) -> None:
    pass


def identity(spec: RunSpec) -> dict[str, Any]:
    return {}


def default_slots_per_process(spec: RunSpec) -> int:
    return 1


def devices(spec: RunSpec) -> int:
    return spec.fleet.layout.devices if spec.fleet.engine_args.get("accelerated") else 0


def environment(spec: RunSpec, gpu: int) -> dict[str, str]:
    """numpy's library for linear algebra starts threads at import; it is not what a test here looks for."""
    return {MARK: f"place {gpu}", "OPENBLAS_NUM_THREADS": "1"}
