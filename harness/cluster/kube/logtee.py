"""The logs of a run's pods, copied into its record from their first line: the cluster drops them with the pod.

One stream a pod, which goes on where it ended for as long as the pod exists: after a restart of the API server, of the
container, or of the head itself (`.tee.json` beside the logs remembers how far each pod was read). The API resumes by whole
seconds, so lines that are there already are known by their own time stamps and skipped.

A worker's line `[node003/gpu1] text` belongs to that replica's log, any other to its node's. The head reads its own output the
same way, into head.log, and first what the heads before it have said: a head that crashes cannot write its last words.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import re
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from harness.cluster.base import ClusterError
from harness.cluster.kube.api import Api, ApiProblem
from harness.cluster.kube.headlog import keep_head_log
from harness.cluster.kube.logfiles import LogFiles
from harness.cluster.kube.loglines import begins, has_ended, name_of, parted
from harness.cluster.kube.views import PodView
from harness.records.errors import RecordError
from harness.records.files import write_atomically
from harness.records.layout import RunFolder

_OF_SLOT = re.compile(r"\[(node\d{3,})/gpu(\d{1,3})\] ?")
_WRITE_EVERY_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _DENIED_PAUSE_S = 0.5, 10.0, 60.0
_LAST_WORDS = 5

log = logging.getLogger("paceline.cluster")


class Position(NamedTuple):
    """How far a log has been read: the newest line's time, how many lines had exactly that one, and whether it was the last."""

    ns: int = 0
    lines: int = 0
    ended: bool = False


_NOTHING_YET = Position()


@dataclass(slots=True)
class _Stream:
    pod: PodView
    task: asyncio.Task[None] | None = None
    position: Position = _NOTHING_YET
    begun: bool = False
    gone: bool = False
    names: set[str] = field(default_factory=set)  # of the logs that it has written to
    last: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_WORDS))
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_started(self) -> bool:
        return _has_started(self.pod)

    @property
    def has_ended(self) -> bool:
        return self.gone or self.pod.ended


class LogTee:
    """`denied` says why no log can be read, "" while they can. Nothing is raised out of its tasks."""

    def __init__(self, folder: RunFolder, api: Api, *, gpus: int, files: LogFiles | None = None) -> None:
        self.denied = ""
        self._api, self._gpus = api, gpus  # replicas of a node, so that no line can name a file of its own
        self._folder, self._files = folder, files or LogFiles(folder)
        self._state = folder.logs / ".tee.json"
        self._streams: dict[str, _Stream] = {}
        self._kept: dict[str, Position] = {}
        self._writer: asyncio.Task[None] | None = None
        self._remembered = ""
        self._disk = ThreadPoolExecutor(1, "pod logs")  # of batches that a stalled disk holds up, none overtakes another

    # --- what the watch tells ------------------------------------------------------------------------------

    def start(self) -> None:
        self._kept = self._read_state()
        self._writer = asyncio.create_task(self._write_for_ever(), name="write pod logs")

    def see(self, pod: PodView) -> None:
        """A pod of the run is there, or has changed."""
        stream = self._streams.get(pod.uid)
        if stream is None:
            kept = self._kept.pop(pod.uid, None)
            stream = self._streams[pod.uid] = _Stream(pod, position=kept or _NOTHING_YET, begun=kept is not None)
            if stream.position.ended:
                return  # read to its end by the head before this one
            pause_s = random.uniform(0, min(3.0, len(self._streams) / 100))  # a head that restarts finds hundreds at once
            stream.task = asyncio.create_task(self._follow(stream, pause_s), name=f"log of {pod.name}")
            return
        if (_has_started(stream.pod), stream.pod.ended) != (_has_started(pod), pod.ended):
            stream.changed.set()
        stream.pod = pod

    def gone(self, pod: PodView) -> None:
        stream = self._streams.get(pod.uid)
        if stream is not None:
            stream.gone, stream.pod = True, pod
            stream.changed.set()

    def last_words(self, uid: str) -> list[str]:
        """The last lines of a pod's log, oldest first; [] when nothing was read."""
        stream = self._streams.get(uid)
        return list(stream.last) if stream is not None else []

    @property
    def problem(self) -> str:
        return self._files.problem

    async def close(self, within_s: float) -> None:
        """Read what ended pods have left, as far as the time allows, and write all of it."""
        tasks = [stream.task for stream in self._streams.values() if stream.task is not None]
        ending = [stream.task for stream in self._streams.values() if stream.task is not None and stream.has_ended]
        if ending:
            await asyncio.wait(ending, timeout=within_s)
        for task in [*tasks, *([self._writer] if self._writer else [])]:
            task.cancel()
        await asyncio.gather(*tasks, *([self._writer] if self._writer else []), return_exceptions=True)
        await self._write()

    # --- one pod -------------------------------------------------------------------------------------------

    async def _follow(self, stream: _Stream, pause_s: float) -> None:
        try:
            await self._wait(stream, pause_s)
            while not stream.has_started and not stream.gone:
                await self._wait(stream, 30.0)
            if stream.gone and not stream.has_started:
                return  # it never ran
            if stream.pod.component == "head" and not stream.begun:
                await self._keep_heads_before(stream.pod)
            self._begin(stream)
            await self._read_until_ended(stream)
            self._end(stream)
        except Exception:
            log.exception("the log of pod %s cannot be kept", stream.pod.name)
        finally:
            stream.task = None
            asyncio.get_running_loop().call_later(120.0, self._forget, stream.pod.uid)

    async def _keep_heads_before(self, own: PodView) -> None:
        try:
            await keep_head_log(self._api, self._folder, but=own.name)
        except ClusterError as problem:
            log.warning("what the head before this one has said is not known: %s", problem)

    def _forget(self, uid: str) -> None:
        stream = self._streams.get(uid)
        if stream is not None and stream.gone:
            del self._streams[uid]
        elif stream is not None:  # an ended pod that the cluster keeps
            asyncio.get_running_loop().call_later(120.0, self._forget, uid)

    async def _read_until_ended(self, stream: _Stream) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            had_ended, before = stream.has_ended, stream.position
            try:
                await self._stream(stream)
                self.denied = ""
                if had_ended:
                    return
            except ApiProblem as problem:
                if problem.not_found:
                    if had_ended or await self._is_gone(stream):
                        return
                elif problem.forbidden:
                    self.denied = str(problem)
                    pause_s = _DENIED_PAUSE_S
                elif stream.gone and not problem.may_pass:
                    return
            except ClusterError as problem:  # credentials
                log.warning("the log of pod %s: %s", stream.pod.name, problem)
            if stream.gone and pause_s >= _LONGEST_PAUSE_S:
                return  # nobody knows it any more
            if stream.position != before:
                pause_s = min(pause_s, _FIRST_PAUSE_S)
            await self._wait(stream, pause_s * random.uniform(0.7, 1.0))
            pause_s = min(pause_s * 2, max(_LONGEST_PAUSE_S, pause_s))

    async def _is_gone(self, stream: _Stream) -> bool:
        """The log is not there: the watch will say within seconds that the pod is not either."""
        for _ in range(10):
            if stream.has_ended:
                return True
            await self._wait(stream, 0.5)
        return stream.has_ended

    async def _stream(self, stream: _Stream) -> None:
        position = stream.position
        since = datetime.fromtimestamp(position.ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if position.ns else ""
        skip = position.lines
        lines = self._api.log(stream.pod.name, container=stream.pod.component, follow=True, timestamps=True, since_time=since)
        async with contextlib.aclosing(lines):  # type: ignore[type-var]
            async for line in lines:
                ns, text = parted(line)
                if ns is not None and ns < position.ns:
                    continue
                if ns == position.ns and skip > 0:
                    skip -= 1
                    continue
                self._keep(stream, ns, text)

    def _keep(self, stream: _Stream, ns: int | None, text: str) -> None:
        name, text = self._addressed(stream.pod, text)
        newest = stream.position
        if ns is not None and ns >= newest.ns:
            stream.position = Position(ns, newest.lines + 1 if ns == newest.ns else 1)
        stream.names.add(name)
        if text.strip():
            stream.last.append(text[:400])
        self._files.add(name, text, ns / 1e9 if ns is not None else time.time())

    def _addressed(self, pod: PodView, text: str) -> tuple[str, str]:
        own = name_of(pod)
        match = _OF_SLOT.match(text) if pod.component == "worker" else None
        if match is not None and match[1] == own and int(match[2]) < self._gpus:
            return f"{own}/gpu{int(match[2])}", text[match.end() :]
        return own, text

    def _begin(self, stream: _Stream) -> None:
        if not stream.begun:
            stream.begun = True
            pod = stream.pod
            self._files.note(name_of(pod), begins(pod), time.time(), pod.component)

    def _end(self, stream: _Stream) -> None:
        """Also in the logs of its replicas, which could not say it themselves."""
        own = name_of(stream.pod)
        stream.position = stream.position._replace(ended=True)
        for name in sorted({own, *stream.names}):
            self._files.note(name, has_ended(stream.pod), time.time(), stream.pod.component)

    async def _wait(self, stream: _Stream, pause_s: float) -> None:
        """Until that time, or until something of note happens to the pod."""
        stream.changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stream.changed.wait(), pause_s)

    # --- the disk ------------------------------------------------------------------------------------------

    async def _write_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_WRITE_EVERY_S)
            try:
                await self._write()
            except Exception:
                log.exception("pod logs cannot be written")

    async def _write(self) -> None:
        """Lines and at once how far they go: a head that is killed leaves no more to be read twice than one such batch."""
        batch, state = self._files.take(), self._state_now()
        if not batch and state == self._remembered:
            return
        # Shielded: what has been taken must not be lost when the task is cancelled in the middle.
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._disk, self._write_in_thread, batch, state))

    def _write_in_thread(self, batch: dict[str, list[str]], state: str) -> None:
        self._files.write(batch)
        if state != self._remembered:
            try:
                self._state.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._state, state.encode())
                self._remembered = state
            except (RecordError, OSError) as error:
                self._files.problem = f"logs of pods: {error}"

    def _state_now(self) -> str:
        known = {uid: stream.position for uid, stream in self._streams.items() if stream.begun and not stream.gone}
        return json.dumps({uid: list(position) for uid, position in (self._kept | known).items()})

    def _read_state(self) -> dict[str, Position]:
        try:
            raw = json.loads(self._state.read_text())
            return {str(uid): Position(int(ns), int(lines), bool(ended)) for uid, (ns, lines, ended) in raw.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}


def _has_started(pod: PodView) -> bool:
    return pod.ended or any(c.name == pod.component and c.state in ("running", "terminated") for c in pod.containers)
