"""What the pods of a run's head have said, for the part of head.log that no head has lived to write.

A head keeps its own output in its record (logtee.py). What it says last is missing there, and so is all of it where it did not
get as far as a record. That part is read from the pods that have ended and appended: by the next head to its record, and by the
link to the copy on its machine; the next head's file, once it is copied, takes the place of that one.
"""

from __future__ import annotations

import asyncio
import time
from itertools import takewhile
from typing import NamedTuple

from harness.cluster.kube import names
from harness.cluster.kube.api import Api, ApiProblem
from harness.cluster.kube.logfiles import LogFiles
from harness.cluster.kube.loglines import begins, has_ended, parted, zoned
from harness.cluster.kube.views import PodView, reduce_pod
from harness.records.layout import RunFolder

_LOOK_EVERY_S = 0.3


class _Line(NamedTuple):
    unix: float
    text: str


async def keep_head_log(api: Api, folder: RunFolder, *, wait_s: float = 0.0, but: str = "") -> bool:
    """Waits up to that long for heads to end; `but`: a pod to leave out. Whether anything was added. Raises ClusterError."""
    pods = [pod for pod in await _head_pods(api, folder) if pod.name != but]
    until_s = time.monotonic() + wait_s
    while not all(pod.ended for pod in pods) and time.monotonic() < until_s:
        await asyncio.sleep(_LOOK_EVERY_S)
        pods = await _head_pods(api, folder)
    files = LogFiles(folder)
    for pod in pods:
        lines = await _lines_of(api, pod)
        await asyncio.to_thread(_add, files, folder, pod, lines)
    batch = files.take()
    await asyncio.to_thread(files.write, batch)
    return bool(batch) and not files.problem


async def _head_pods(api: Api, folder: RunFolder) -> list[PodView]:
    raw = await api.list("Pod", selector=names.selector(names.instance_of(folder.name), "head"))
    return sorted((reduce_pod(one) for one in raw), key=lambda pod: pod.created_unix)


async def _lines_of(api: Api, pod: PodView) -> list[_Line]:
    """None of a pod that has not started, or whose log may not be read."""
    lines = []
    try:
        async for line in api.log(pod.name, container="head", timestamps=True):
            ns, text = parted(line)
            lines.append(_Line(time.time() if ns is None else ns / 1e9, text))
    except ApiProblem as problem:
        if problem.no_reply:
            raise
    return lines


def _add(files: LogFiles, folder: RunFolder, pod: PodView, lines: list[_Line]) -> None:
    try:  # not by splitlines: what a bar of progress has drawn over itself is one line, as it is in the pod's log
        here = folder.log("head").read_bytes().decode("utf-8", "replace").removesuffix("\n").split("\n")
    except OSError:
        here = []
    begin, end = f": {begins(pod)}", f": pod {pod.name} has ended"
    if not lines or any(line.startswith("--- ") and end in line for line in here):
        return
    marks = [number for number, line in enumerate(here) if line.startswith("--- ") and line.endswith(begin)]
    if not marks:
        files.note("head", begins(pod), lines[0].unix, "head")
    known = list(takewhile(lambda line: not line.startswith("--- "), here[marks[-1] + 1 :])) if marks else []
    for line in lines[_already(lines, known) :]:
        files.add("head", line.text, line.unix)
    if pod.ended:
        files.note("head", has_ended(pod), lines[-1].unix, "head")


def _already(lines: list[_Line], known: list[str]) -> int:
    """How many of the pod's lines are here: as many as are known, or, where that is not what stands there, up to the newest
    known one that is among them; as it was written or behind a time."""
    written = [zoned(line.text, line.unix) or line.text for line in lines]
    if known and len(known) <= len(lines) and written[len(known) - 1] in _forms(known[-1]):
        return len(known)
    number_of = {text: number for number, text in enumerate(written, 1)}
    return next((number_of[form] for one in reversed(known) for form in _forms(one) if form in number_of), 0)


def _forms(line: str) -> list[str]:
    return [line, *line.split(" ", 2)[2:]]
