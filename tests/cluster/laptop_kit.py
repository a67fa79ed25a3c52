"""Somebody at a laptop with a kubeconfig: runs `paceline …` as a process, and leaves no link behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster_kit import ClusterKit, environment, free_ports

from harness.cluster.local import head_alive
from harness.cluster.procinfo import end_group, is_alive
from harness.records.journal import read_journal
from harness.records.layout import RunFolder, list_runs
from harness.wire.client import HeadClient, HeadUnreachable
from harness.wire.control import RunState, SlotInfo

#: Pods of the fake are processes of this machine, which has few cores and little memory.
SMALL = {
    "cluster.kind": "kubernetes",
    "metrics.listen": "127.0.0.1:0",  # pods of the fake share an address
    "cluster.kubernetes.head_cpu": "1",
    "cluster.kubernetes.head_memory": "1Gi",
    "cluster.kubernetes.worker_cpu": "500m",
    "cluster.kubernetes.worker_memory": "1Gi",
    "cluster.kubernetes.grace_s": "5",
    "fleet.replicas_per_node": "2",
    "fleet.engine_args": "{}",
    "load.kind": "explore",
    "load.target_qps": "10",
}


ANSWER_S = 30.0  # for a head to answer, over a link whose processes share this machine


@dataclass
class Laptop:
    kubeconfig: Path
    runs: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        return environment(self.kubeconfig, PACELINE_RUNS=str(self.runs), PYTHONUNBUFFERED="1")

    def paceline(self, *arguments: str, within_s: float = 90.0, answer: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "console.cli", *arguments],
            env=self.env, text=True, capture_output=True, timeout=within_s, input=answer, check=False,
        )  # fmt: skip

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """A command that goes on; its stderr is to be read by the caller."""
        process = subprocess.Popen(
            [sys.executable, "-m", "console.cli", *arguments],
            env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def run(self, nodes: int, **more: Any) -> list[str]:
        """Arguments of `paceline` that start a run without end on so many nodes."""
        control, telemetry = free_ports(2)
        ports = {"cluster.kubernetes.control_port": control, "cluster.kubernetes.telemetry_port": telemetry}
        wishes = {**SMALL, "load.duration_s": 0, "fleet.nodes": nodes, **ports, **more}
        overrides = [part for name, value in wishes.items() for part in ("-s", f"{name}={value}")]
        return ["run", "demo", "--no-console", *overrides]

    @property
    def folder(self) -> RunFolder:
        (found,) = list_runs(self.runs)
        return found

    def link_pid(self) -> int:
        return int(json.loads(self.folder.head_json.read_text())["pid"])

    def until_linked(self, within_s: float = 60.0) -> RunFolder:
        self.until(lambda: bool(list_runs(self.runs)) and head_alive(self.folder), within_s, "a run with a link")
        return self.folder

    def until(self, holds: Any, within_s: float, what: str) -> None:
        until_s = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > until_s:
                raise AssertionError(f"not within {within_s} s: {what}\n{self.said()}")
            time.sleep(0.05)

    def said(self) -> str:
        return "\n".join(f"{path}:\n{path.read_text()}" for path in self.runs.rglob("link.log"))

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        for lock in self.runs.rglob("lock"):
            pid = int(lock.read_text().strip() or 0)
            if pid > 1 and is_alive(pid, None) and str(lock.parent) in _command(pid):
                end_group(pid, None, grace_s=3.0)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@contextlib.contextmanager
def laptop_of(kit: ClusterKit, place: Path, name: str = "laptop", kubeconfig: Path | None = None) -> Iterator[Laptop]:
    """With the rights of the example Role for operators, or whatever the given kubeconfig says."""
    made = Laptop(kubeconfig or kit.operator(place / f"{name}.kubeconfig"), place / name)
    made.runs.mkdir()
    try:
        yield made
    finally:
        made.close()


def state_of(folder: RunFolder) -> RunState:
    """As its head says."""
    until_s = time.monotonic() + ANSWER_S
    while True:
        try:
            with HeadClient.of_run(folder.path) as head:
                return head.state(journal_tail=0)
        except HeadUnreachable:
            if time.monotonic() > until_s:
                raise


def slots(folder: RunFolder) -> list[SlotInfo]:
    return state_of(folder).slots


def ready(folder: RunFolder) -> int:
    return sum(slot.state == "READY" for slot in slots(folder))


def seen_ready(folder: RunFolder) -> tuple[int, int]:
    """Worker pods that the head sees ready, and how many of them its disruption budget counts. A pod gets ready by its kubelet,
    so this may be after its replicas are; and what the budget counts is told by another watch than the pods are."""
    view = state_of(folder).cluster
    if view is None or view.budget is None:
        return 0, 0
    return sum(row.ready for row in view.pods if row.node >= 0), view.budget.healthy


def on_claim(kit: ClusterKit, folder: RunFolder) -> RunFolder:
    """The head's own record of a run."""
    return RunFolder(kit.claim("paceline-results") / folder.name)


def told(kit: ClusterKit, folder: RunFolder, what: str) -> list[str]:
    """Reasons of all such entries of the head's journal."""
    return [entry.why for entry in read_journal(on_claim(kit, folder).journal) if entry.what == what]


def objects_of(kit: ClusterKit) -> list[str]:
    """Everything of runs that is on the cluster."""
    kinds = ("ConfigMap", "Secret", "Service", "PodDisruptionBudget", "NetworkPolicy", "Job", "Pod")
    return [f"{kind} {thing['metadata']['name']}" for kind in kinds for thing in kit.listed(kind)]
