"""What the process benches share: CPU clocks of other threads and processes, child processes that always end, one row's form.

CPU time is the figure that survives a busy machine; wall rates are printed beside it and say more about the machine.
Linux lets a process read the CPU clock of any thread or process in nanoseconds; /proc/<pid>/stat has ticks of 10 ms.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from harness.worker.replica import die_with

ROOT = Path(__file__).parents[2]
Row = dict[str, Any]
T = TypeVar("T")


class BenchTimeout(Exception):
    """Something a bench waited for did not happen within its deadline; the text says what."""


def row(name: str, value: float, unit: str, *, at_most: float | None = None, at_least: float | None = None) -> Row:
    """Without a bound the row is for reading: its goal is empty and it is ok."""
    ok = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
    goal = f"<= {at_most:g}" if at_most is not None else f">= {at_least:g}" if at_least is not None else ""
    return {"name": name, "value": float(f"{value:.4g}"), "unit": unit, "goal": goal, "ok": ok}


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def wait_for(what: str, found: Callable[[], T | None], within_s: float, step_s: float = 0.02) -> T:
    deadline = time.monotonic() + within_s
    while True:
        value = found()
        if value:
            return value
        if time.monotonic() > deadline:
            raise BenchTimeout(f"not within {within_s:g} s: {what}")
        time.sleep(step_s)


# --- CPU clocks ------------------------------------------------------------------------------------------------------


def process_cpu_s(pid: int) -> float:
    """User and system time of all threads of a process."""
    return time.clock_gettime((~pid << 3) | 2)


def thread_cpu_s(tid: int) -> float:
    """Of a thread of this process, by its kernel id."""
    return time.clock_gettime((~tid << 3) | 6)


def zmq_io_threads() -> list[int]:
    """libzmq's own I/O threads in this process: CURVE, TCP and framing happen there, not under the GIL."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ends while it is looked at
            if (task / "comm").read_text().startswith("ZMQbg/IO"):
                found.append(int(task.name))
    return found


# --- processes -------------------------------------------------------------------------------------------------------


class Child:
    """A python program of this folder, told what to do by one JSON argument, telling what it found by JSON lines."""

    def __init__(self, module: str, config: dict[str, Any], cpus: set[int] | None = None) -> None:
        command = [sys.executable, "-m", f"tests.bench.{module}", json.dumps({**config, "parent": os.getpid()})]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if cpus:
            os.sched_setaffinity(self.process.pid, cpus)
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._unread = b""
        self.name = module

    @property
    def pid(self) -> int:
        return self.process.pid

    def says(self, within_s: float) -> dict[str, Any]:
        """Its next line. Raises BenchTimeout when it is silent or has ended."""
        stdout = self.process.stdout
        assert stdout is not None

        def line() -> bytes | None:
            self._unread += _available(stdout)
            head, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                return head
            if self.process.poll() is not None:
                raise BenchTimeout(f"{self.name} ended with status {self.process.returncode} before it had said anything")
            return None

        said: dict[str, Any] = json.loads(wait_for(f"a word from {self.name}", line, within_s))
        return said

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """At once; a bench's child has nothing to tidy up."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _available(pipe: IO[bytes]) -> bytes:
    return pipe.read() or b""


class Children:
    """Started together, ended together, whatever happens between."""

    def __init__(self) -> None:
        self._all: list[Child] = []

    def start(self, module: str, config: dict[str, Any], cpus: set[int] | None = None) -> Child:
        child = Child(module, config, cpus)
        self._all.append(child)
        return child

    def end(self) -> None:
        for child in self._all:
            child.end()
        self._all.clear()


@contextlib.contextmanager
def children() -> Iterator[Children]:
    started = Children()
    try:
        yield started
    finally:
        started.end()


def child_config() -> dict[str, Any]:
    """In a Child: what it was told. From here on the kernel ends it with its parent, however that ends."""
    config: dict[str, Any] = json.loads(sys.argv[1])
    if not die_with(config["parent"]):
        sys.exit(3)
    return config


def peers_cpus() -> set[int]:
    """All CPUs but the first, so that what is measured has one to itself as far as there are enough."""
    cpus = sorted(os.sched_getaffinity(0))
    return set(cpus[1:]) or set(cpus)


def split(items: list[T], parts: int) -> list[list[T]]:
    return [items[part::parts] for part in range(parts)]
