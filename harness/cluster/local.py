"""Workers as processes on this machine.

Each worker leads a session (and process group) of its own: it outlives the console and the head, and ending the group
ends exactly it and its replicas. `workers.json` in the run's folder remembers who was started, by pid and start time,
so that a restarted head adopts them and `paceline stop` can never hit a stranger.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.cluster.base import ClusterError, NodeEvent, Place, Removal
from harness.cluster.procinfo import end_group, ended_in_words, is_alive, kill_group, start_ticks
from harness.records.files import write_atomically
from harness.records.layout import RunFolder
from harness.spec import RunSpec

_STABLE_S = 60.0  # a worker that lived this long starts again without delay


@dataclass(slots=True)
class _Worker:
    name: str
    nodes: tuple[int, ...]
    pid: int = 0
    ticks: int | None = None
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    deaths: int = 0
    retry_at_s: float | None = None
    reason: str = ""

    def alive(self) -> bool:
        if self.process is not None:
            return self.process.poll() is None
        return self.pid > 0 and is_alive(self.pid, self.ticks)


class LocalCluster:
    kind = "local"
    evicts_nodes = False

    def __init__(self, folder: RunFolder, spec: RunSpec) -> None:
        self._folder = folder
        self._fleet = spec.fleet
        step = spec.cluster.nodes_per_worker
        nodes = range(spec.fleet.nodes)
        groups = [tuple(nodes[start : start + step]) for start in range(0, len(nodes), step)]
        self._workers = [_Worker(f"w{number:03d}", group) for number, group in enumerate(groups)]
        self._of_node = {node: worker for worker in self._workers for node in worker.nodes}
        self._place: Place | None = None
        self._known = folder.workers_json

    def start(self, place: Place) -> None:
        self._place = place
        adopted = self._remembered()
        for worker in self._workers:
            before = adopted.get(worker.name)
            if before is not None and is_alive(*before):
                worker.pid, worker.ticks = before
                worker.started_s = time.monotonic()
            else:
                if before is not None:
                    kill_group(*before)  # what a dead worker's engines may have left
                self._launch(worker, time.monotonic())
        self._remember()

    def poll(self, now_s: float) -> list[NodeEvent]:
        events: list[NodeEvent] = []
        for worker in self._workers:
            if worker.pid and not worker.alive():
                events.append(self._died(worker, now_s))
            elif worker.retry_at_s is not None and now_s >= worker.retry_at_s:
                self._launch(worker, now_s)
                self._remember()
                events.append(NodeEvent(worker.name, worker.nodes, "started", pid=worker.pid))
        return events

    def why_missing(self, node: int) -> str:
        worker = self._of_node[node]
        if worker.pid and worker.alive():
            return f"worker {worker.name} (process {worker.pid}) has not registered yet"
        return f"worker {worker.name} is down: {worker.reason or 'not started'}"

    def view(self) -> None:
        return None

    def removal(self, node: int) -> Removal:
        return Removal()

    async def evict(self, node: int, *, cordon: bool, why: str) -> str:
        raise ClusterError("workers of this machine are not evicted; their replicas are")

    def scaled(self, nodes: int) -> None:
        raise ClusterError("a fleet of processes keeps its size; scaling is for cluster.kind = kubernetes")

    def describe(self, node: int) -> list[str]:
        return []

    def stop(self, deadline_s: float) -> None:
        deadline = time.monotonic() + deadline_s
        for worker in self._workers:
            worker.retry_at_s = None
            if worker.alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGTERM)
        while time.monotonic() < deadline and any(worker.alive() for worker in self._workers):
            time.sleep(0.02)
        for worker in self._workers:
            if worker.pid:
                kill_group(worker.pid, worker.ticks)
                if worker.process is not None:
                    worker.process.wait(5)
                worker.pid = 0
        self._known.unlink(missing_ok=True)

    def _launch(self, worker: _Worker, now_s: float) -> None:
        assert self._place is not None
        self._folder.logs.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "harness.worker", "--head", self._place.control, "--keys", str(self._folder.keys)]
        command += ["--nodes", ",".join(map(str, worker.nodes)), "--name", worker.name, "--logs", str(self._folder.logs)]
        worker.process = _spawn(command, self._folder.log(worker.name))
        worker.pid, worker.ticks = worker.process.pid, start_ticks(worker.process.pid)
        worker.started_s, worker.retry_at_s = now_s, None

    def _died(self, worker: _Worker, now_s: float) -> NodeEvent:
        status = worker.process.returncode if worker.process is not None else None
        kill_group(worker.pid, worker.ticks)  # whatever of its replicas is left
        if now_s - worker.started_s > _STABLE_S:
            worker.deaths = 0
        worker.deaths += 1
        ended = ended_in_words(status) if status is not None else "ended"
        worker.reason = f"worker {worker.name} (process {worker.pid}) {ended}"
        worker.pid, worker.process = 0, None
        if worker.deaths > self._fleet.max_restarts:
            return NodeEvent(worker.name, worker.nodes, "gave_up", f"{worker.reason}; {worker.deaths} times, not started again")
        delay = min(self._fleet.restart_backoff_s * 2 ** (worker.deaths - 1), self._fleet.restart_backoff_max_s)
        worker.retry_at_s = now_s + delay
        return NodeEvent(worker.name, worker.nodes, "exited", worker.reason, retry_in_s=delay)

    def _remember(self) -> None:
        known = [{"name": w.name, "nodes": list(w.nodes), "pid": w.pid, "ticks": w.ticks} for w in self._workers if w.pid]
        write_atomically(self._known, json.dumps(known).encode())

    def _remembered(self) -> dict[str, tuple[int, int]]:
        return _workers_of(self._known)


def _workers_of(path: Path) -> dict[str, tuple[int, int]]:
    """Worker name → (pid, start time); nothing from a file that is not what we write."""
    try:
        entries = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    found = {}
    for entry in entries if isinstance(entries, list) else []:
        process = _process_of(entry)
        if process is not None:
            found[str(entry.get("name"))] = process
    return found


def _process_of(raw: Any) -> tuple[int, int] | None:
    """(pid, start time) of what a file says; None unless both are there: a bare pid may be anybody's by now."""
    if not isinstance(raw, dict):
        return None
    pid, ticks = raw.get("pid"), raw.get("ticks")
    return (pid, ticks) if isinstance(pid, int) and isinstance(ticks, int) and pid > 1 else None


def _head_process(folder: RunFolder) -> tuple[int, int] | None:
    try:
        return _process_of(json.loads(folder.head_json.read_text()))
    except (OSError, ValueError):
        return None


def _spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


def placed_on(folder: RunFolder) -> str:
    """local or kubernetes, by the folder's spec; local where it cannot be read."""
    try:
        return str(json.loads(folder.spec_json.read_bytes())["cluster"]["kind"])
    except (OSError, ValueError, KeyError, TypeError):
        return "local"


def log_of_start(folder: RunFolder) -> Path:
    """Where what launch_head has started says why it could not."""
    return folder.log("link" if placed_on(folder) == "kubernetes" else "head")


def launch_head(folder: RunFolder) -> int:
    """Start (or restart) the head of a run as a process of its own session; returns its pid at once.

    The head of a run on Kubernetes is a pod that is there already: what starts here is the link to it, which stands for it.
    """
    if not folder.spec_json.is_file():
        raise ClusterError(f"{folder.path} holds no spec.json: it is not a run's folder")
    module = "harness.cluster.kube.link" if placed_on(folder) == "kubernetes" else "harness.head"
    return _spawn([sys.executable, "-m", module, str(folder.path)], log_of_start(folder)).pid


def head_alive(folder: RunFolder) -> bool:
    """Whether a head holds this run; of a run on Kubernetes: whether a link to its head lives."""
    process = _head_process(folder)
    return process is not None and is_alive(*process)


def workers_alive(folder: RunFolder) -> int:
    """How many worker processes of a local run live: they outlive a head that died."""
    return sum(is_alive(*worker) for worker in _workers_of(folder.workers_json).values())


def kill_run(folder: RunFolder, head_pid: int = 0) -> None:
    """End the run's head and workers at once. The record stays as it is, which is readable.

    `head_pid`: as launch_head returned it, for a head that has not yet written where it listens. Raises ClusterError where
    the run's objects on Kubernetes could not be removed: then it goes on there.
    """
    if head_pid:
        kill_group(head_pid, None)
    head = _head_process(folder)
    if head is not None:
        kill_group(*head)
    for worker in _workers_of(folder.workers_json).values():
        end_group(*worker, grace_s=0)
    if placed_on(folder) == "kubernetes":
        from harness.cluster.kube.ending import remove_at_once

        remove_at_once(folder)
