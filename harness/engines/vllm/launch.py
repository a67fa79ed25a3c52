"""Starting vLLM beside the event loop, and ending it.

Import, load and shutdown take from seconds to many minutes and block. They run in one thread that lives as long as the
engine, so that the loop can still be told to stop. It must be one thread and must outlive the children: they ask the kernel
to be killed with their parent, and "parent" there means the thread that forked them. vLLM's engine core does not notice
the death of its parent otherwise, and would keep its accelerator for ever.

On the CPU vLLM forces `spawn`, where each replica imports it three times; forking instead saves more than half of the
start. On accelerators the method is vLLM's own choice (children that it spawns there are not tied to us by the kernel;
they end with the process group).
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from harness.engines.base import ArgumentError, EngineError
from harness.engines.vllm import compat
from harness.engines.vllm.args import WHERE
from harness.engines.vllm.logtail import LogTail

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1
#: Longer, and the replica's process would be killed before its engine has ended.
SHUTDOWN_S = 2.0
NICENESS = 10
_OF_ARGUMENTS = ("ValueError", "TypeError", "NotImplementedError", "ValidationError", "ImportError", "ModuleNotFoundError")


class EngineThread:
    """Runs one job after the other; `close` ends it when they are done."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="vllm", daemon=True)
        self._thread.start()

    async def run(self, job: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if answer.done():
                return  # nobody waits any more
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result, error = None, None
            try:
                result = job()
            except BaseException as raised:  # SystemExit too: vLLM's own start may call sys.exit
                error = raised if isinstance(raised, Exception) else RuntimeError(f"{type(raised).__name__}: {raised}")
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, result, error)

        self._jobs.put(work)
        return await answer

    def close(self) -> None:
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


@dataclass(slots=True)
class Started:
    llm: Any
    values: dict[str, Any]
    device: str
    children: list[BaseProcess] = field(default_factory=list)

    def shutdown(self) -> None:
        """Blocks for SHUTDOWN_S at most, then nothing of it is left."""
        try:
            self.llm.shutdown(timeout=SHUTDOWN_S)
        except TypeError:  # a version without that argument
            self.llm.shutdown()
        for child in self.children:
            with suppress(ValueError, OSError):
                if child.is_alive():
                    child.kill()
                child.join(1.0)


def import_vllm(*, cpu: bool) -> None:
    """What the start needs. On the CPU also what the children need, which they then get by the fork."""
    from vllm.v1.engine import async_llm as _  # noqa: F401

    if cpu:
        from vllm.v1.engine import core as _core  # noqa: F401
        from vllm.v1.executor import multiproc_executor as _executor  # noqa: F401
        from vllm.v1.worker import cpu_worker as _worker  # noqa: F401


def create(values: Mapping[str, Any], loggers: list[Any], before: set[BaseProcess], *, cpu: bool, log: LogTail) -> Started:
    """AsyncLLM from arguments; EngineError with the cause. `before`: children that are none of its."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    _tie_children_to_us()
    try:
        config = AsyncEngineArgs(**values).create_engine_config()
    except Exception as error:
        raise ArgumentError(refused(error, values)) from error
    if cpu:
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"  # after the configuration, which has set it to spawn
    try:
        llm = AsyncLLM.from_vllm_config(
            config,
            stat_loggers=loggers,
            disable_log_stats=bool(values.get("disable_log_stats")),
            enable_log_requests=bool(values.get("enable_log_requests")),
        )
    except Exception as error:
        kill_children(but=before)
        cause = log.last_error()
        told = f"vLLM could not start: {compat.in_words(error)}{f' Its cause: {cause}' if cause else ''}"
        raise (ArgumentError if would_say_it_again(cause) else EngineError)(told) from error
    children = [child for child in multiprocessing.active_children() if child not in before]
    return Started(llm, dict(values), compat.device_name(), children)


def would_say_it_again(cause: str) -> bool:
    """Whether the error of a start is one of arguments or model. One of memory passes, when whoever had it has ended."""
    kind, _, text = cause.partition(":")
    return kind.rpartition(".")[2] in _OF_ARGUMENTS and "memory" not in text.lower()


def give_way() -> None:
    """Where an engine computes on the cores that head and driver run on, the clock comes first.

    vLLM's processes spin while they work. At equal rights the driver's threads waited 50 to 100 ms for a core (two vLLM
    replicas on two cores): a FIRST was seen together with its COMPLETE, and the issue lag was 7 to 20 ms on average. At
    niceness 10 it was 0.08 ms. Called in the engine's thread: what it forks inherits the niceness, the replica's own thread
    keeps its own. A kernel that groups processes by session looks at the group's.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICENESS))


def refused(error: Exception, values: Mapping[str, Any]) -> str:
    """What vLLM says against arguments, with the one that it means where that can be told."""
    details = getattr(error, "errors", None)  # pydantic's ValidationError
    if callable(details):
        with suppress(Exception):
            first = details()[0]
            text = str(first.get("msg", error)).removeprefix("Value error, ")
            name = _meant([str(part) for part in first.get("loc") or ()], first.get("input"), values)
            return f"{WHERE}.{name} = {values[name]!r}: {text}" if name else f"{WHERE}: vLLM refuses them: {_named(text, values)}"
    return f"{WHERE}: vLLM refuses them: {_named(compat.in_words(error), values)}"


def _meant(fields: list[str], value: Any, values: Mapping[str, Any]) -> str:
    """Fields of vLLM's configuration are mostly called like arguments, or like their last words, with the same value."""
    for field_name in reversed(fields):
        if field_name in values:
            return field_name
        for name in values:
            if name.endswith(field_name) and values[name] == value:
                return name
    return ""


def _named(text: str, values: Mapping[str, Any]) -> str:
    text = " ".join(text.split())
    for name, value in values.items():
        if name != "model" and name in text:
            return f"{name} = {value!r}: {text}"
    return text


def kill_children(but: set[BaseProcess]) -> None:
    """While vLLM is starting: makes the start fail at once."""
    for child in set(multiprocessing.active_children()) - but:
        child.kill()


def tasks_of(llm: Any) -> list[asyncio.Task[Any]]:
    """What vLLM runs on our loop; cancelled by its shutdown, and over a moment later."""
    resources = getattr(getattr(llm, "engine_core", None), "resources", None)
    tasks = [getattr(llm, "output_handler", None)]
    tasks += [getattr(resources, name, None) for name in ("output_queue_task", "stats_update_task")]
    return [task for task in tasks if task is not None]


@lru_cache(maxsize=1)
def _tie_children_to_us() -> None:
    """From now on whatever this process forks dies with it, and has none of our event loop's signal handling: otherwise a
    SIGTERM for the child would be written to the pipe that our loop reads its own signals from."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
        asyncio._set_running_loop(None)

    os.register_at_fork(after_in_child=in_child)
