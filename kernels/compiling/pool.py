"""Many compilations at once, in child processes: what crashes or hangs costs one job, and what was compiled is kept on disk.

This process needs no triton; the children are of a Python that has it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.compiling.child import Child, ChildGone, command
from kernels.compiling.job import Job
from kernels.compiling.limits import problems
from kernels.compiling.resources import Resources
from kernels.errors import NotHere
from kernels.identity import kernel_hash

WHICH_DEADLINE_S = 60.0
START_DEADLINE_S = 180.0  # loading triton from a cold disk on a busy machine
#: Where a Python's triton lies and which it is, without the seconds that importing it takes.
_WHICH_TRITON = (
    "import importlib.util, json, pathlib, re; spec = importlib.util.find_spec('triton'); "
    "text = pathlib.Path(spec.origin).read_text() if spec and spec.origin else ''; "
    "found = re.search(r'''__version__ = ['\"]([^'\"]+)''', text); print(json.dumps({'triton': found.group(1) if found else ''}))"
)


@dataclass(frozen=True, slots=True)
class Compiled:
    job: Job
    resources: Resources | None  # None: see error
    error: str = ""
    cached: bool = False

    @property
    def problems(self) -> list[str]:
        """Why this is not to be launched, the kind before the colon; empty when it is fine."""
        return [self.error] if self.resources is None else problems(self.resources, multiplies=self.job.function == "moe_gemm")


@dataclass(frozen=True, slots=True)
class _Crashed:
    reason: str


def triton_version(python: str = sys.executable) -> str:
    """NotHere when that Python cannot be run or has no triton."""
    try:
        child = Child([python, "-c", _WHICH_TRITON], Path(tempfile.gettempdir()), os.environ)
    except OSError as error:
        raise NotHere(
            f"{python}: cannot be run as a Python ({error.strerror}); name one that has triton with --python"
        ) from error
    try:
        version = child.read(WHICH_DEADLINE_S).get("triton")
    except ChildGone as gone:
        raise NotHere(f"{python}: cannot be run as a Python ({gone}); name one that has triton with --python") from gone
    finally:
        child.end()
    if isinstance(version, str) and re.fullmatch(r"\d[\w.+-]{0,60}", version, re.ASCII):
        return version
    raise NotHere(f"{python}: has no triton, which compiles kernels; install paceline[kernels] there, or name another --python")


class Pool:
    """NotHere, at once, when that Python has no triton. `command_line` replaces the compiling child by what speaks the same lines
    and passes for triton `version`. `launches`: the TRITON_CACHE_DIR of launches on this machine, which then find there what was
    compiled."""

    def __init__(
        self,
        cache: Path,
        *,
        python: str = sys.executable,
        workers: int = 0,
        deadline_s: float = 300.0,
        command_line: list[str] | None = None,
        version: str = "",
        launches: Path | None = None,
    ) -> None:
        self.triton_version = version or triton_version(python)
        self._kernel_hash = kernel_hash()
        self._cache = cache.absolute()
        self._workers = workers or os.cpu_count() or 1
        self._deadline_s = deadline_s
        self._launches = launches
        self._command = command_line or command(python, "kernels.compiling")

    def compile(self, jobs: Iterable[Job], progress: Callable[[int, int], None] | None = None) -> Generator[Compiled, None, None]:
        """Each job's result as it is known, kept ones first. All children are gone when this ends, however it ends.

        `progress(done, all)` is called before each result is handed out.
        """
        wanted = list(dict.fromkeys(jobs))
        alike: dict[str, list[Job]] = {}
        for job in wanted:
            alike.setdefault(job.key(self._kernel_hash, self.triton_version), []).append(job)
        done = 0
        for key, of_key, compiled in self._results(alike):
            for job in of_key:
                done += 1
                if progress is not None:
                    progress(done, len(wanted))
                yield Compiled(job, compiled.resources, compiled.error, compiled.cached)
            alike.pop(key)

    def _results(self, alike: dict[str, list[Job]]) -> Iterator[tuple[str, list[Job], Compiled]]:
        todo: list[tuple[str, Job]] = []
        for key, of_key in list(alike.items()):
            kept = self._kept(key, of_key[0])
            if kept is None:
                todo.append((key, of_key[0]))
            else:
                yield key, of_key, kept
        if todo:
            with contextlib.closing(self._compiled(todo)) as results:
                for key, compiled in results:
                    yield key, alike[key], compiled

    def _compiled(self, todo: list[tuple[str, Job]]) -> Generator[tuple[str, Compiled], None, None]:
        waiting: queue.SimpleQueue[tuple[str, Job]] = queue.SimpleQueue()
        for each in todo:
            waiting.put(each)
        with self._tritons_own_cache() as folder:
            crew = _Crew(lambda: self._start(folder), waiting, self._deadline_s)
            try:
                crew.begin(min(self._workers, len(todo)))
                for _ in todo:
                    key, job, answer = crew.next()
                    yield key, self._keep(key, job, answer)
            finally:
                crew.stop()

    def _tritons_own_cache(self) -> contextlib.AbstractContextManager[str]:
        """For as long as the children live: it takes a megabyte for each kernel, of which nothing is needed again, except where
        this machine launches them."""
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            for left in self._cache.glob("triton-*"):  # by a process that was killed
                if left.stat().st_mtime < time.time() - 86400:
                    shutil.rmtree(left, ignore_errors=True)
            if self._launches is not None:
                self._launches.mkdir(parents=True, exist_ok=True)
                return contextlib.nullcontext(str(self._launches.absolute()))
            return tempfile.TemporaryDirectory(prefix="triton-", dir=self._cache, ignore_cleanup_errors=True)
        except OSError as error:
            raise NotHere(
                f"{self._cache}: compiled kernels cannot be kept there: {error.strerror}; name another folder"
            ) from error

    def _start(self, tritons: str) -> Child:
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        return Child(self._command, self._cache, environment | {"TRITON_CACHE_DIR": tritons, "TRITON_DEFAULT_FP_FUSION": "1"})

    def _kept(self, key: str, job: Job) -> Compiled | None:
        try:
            table = json.loads((self._cache / f"{key}.json").read_text(encoding="utf-8"))
            if "error" in table:
                return Compiled(job, None, f"does not compile: {table['error']}", cached=True)
            return Compiled(job, Resources.of(table["resources"]), cached=True)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):  # not there, or damaged: compiled again
            return None

    def _keep(self, key: str, job: Job, answer: dict[str, Any] | _Crashed) -> Compiled:
        if isinstance(answer, _Crashed):  # may be the machine's fault, so not kept
            return Compiled(job, None, f"compiler lost: {answer.reason}")
        try:
            resources = None if "error" in answer else Resources.of(answer["resources"])
        except (KeyError, TypeError):
            return Compiled(job, None, f"compiler lost: answered {str(answer)[:200]}")
        path = self._cache / f"{key}.json"
        aside = path.with_suffix(f".{os.getpid()}.new")
        with contextlib.suppress(OSError):  # a full disk costs the next run its time, not this one its result
            aside.write_text(json.dumps({**answer, "job": job.json()}), encoding="utf-8")
            aside.replace(path)
        return Compiled(job, resources, "" if resources else f"does not compile: {answer['error']}")


class _Crew:
    """Threads with a child each. Ends with all children dead, and no thread left."""

    def __init__(self, start: Callable[[], Child], waiting: queue.SimpleQueue[tuple[str, Job]], deadline_s: float) -> None:
        self._start, self._waiting, self._deadline_s = start, waiting, deadline_s
        self._answers: queue.SimpleQueue[tuple[str, Job, dict[str, Any] | _Crashed] | NotHere] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._children: set[Child] = set()
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def begin(self, workers: int) -> None:
        for index in range(workers):
            thread = threading.Thread(target=self._work, name=f"compile-{index}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def next(self) -> tuple[str, Job, dict[str, Any] | _Crashed]:
        answer = self._answers.get()
        if isinstance(answer, NotHere):
            raise answer
        return answer

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for child in self._children:
                child.kill()
        for thread in self._threads:
            thread.join(30)

    def _work(self) -> None:
        child: Child | None = None
        try:
            while not self._stopped:
                try:
                    key, job = self._waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    child = child or self._ready_child()
                    if child is None:
                        return
                except (ChildGone, OSError) as error:
                    self._answers.put(NotHere(f"a compiling process did not start: {error}"))
                    return
                try:
                    answer = child.ask(job.json(), self._deadline_s)
                    if "machine" in answer:
                        self._answers.put(NotHere(f"compiling stopped, by no fault of the kernel's: {answer['machine']}"))
                        return
                    self._answers.put((key, job, answer))
                except (ChildGone, OSError) as error:
                    self._leave(child)
                    child = None
                    self._answers.put((key, job, _Crashed(str(error))))
        finally:
            if child is not None:
                self._leave(child)

    def _ready_child(self) -> Child | None:
        with self._lock:
            if self._stopped:
                return None
            child = self._start()
            self._children.add(child)
        try:
            hello = child.read(START_DEADLINE_S)
        except ChildGone:
            self._leave(child)
            raise
        if not hello.get("ready"):
            self._leave(child)
            raise ChildGone(str(hello.get("error", hello)))
        return child

    def _leave(self, child: Child) -> None:
        with self._lock:
            self._children.discard(child)
        child.end()
