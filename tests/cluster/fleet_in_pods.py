"""A whole fleet in the pods of the fake cluster, and when each of its replicas came to be: real head, workers, replicas.

    with fleet_of(16, tmp_path) as fleet:
        fleet.place()
        fleet.until_ready(60)
        print(fleet.arrivals())

A pod begins with the process of its container (the kubelet writes Running then), a replica with what the head's journal says of
it. One process carries all replicas of a node, as it is with synthetic ones.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster_kit import ClusterKit, cluster_of, free_ports

from harness.cluster.kube.names import INDEX
from harness.cluster.kube.render import owned_by, render
from harness.cluster.procinfo import start_ticks
from harness.records.journal import read_journal
from harness.records.layout import RunFolder
from harness.spec import RunSpec
from harness.wire.client import HeadAddress, HeadClient
from harness.wire.control import JournalEntry, RunState
from harness.wire.keys import ServerKeys, load_client_keys
from harness.wire.states import READY, REGISTERED

Json = dict[str, Any]
RUN = "fleet"
REPLICAS = 8
HEAD_S = 30.0


def fleet_spec(nodes: int, control: int, telemetry: int, **fleet: Any) -> RunSpec:
    """A run that measures nothing: it waits at the barrier for somebody's word, and keeps warm without an attempt."""
    small = {f"{who}_{what}": amount for who in ("head", "worker") for what, amount in (("cpu", "10m"), ("memory", "64Mi"))}
    return RunSpec.model_validate(
        {
            "name": "fleet",
            "load": {"kind": "explore", "target_qps": 0.1, "duration_s": 0},
            "fleet": {"nodes": nodes, "replicas_per_node": REPLICAS, **fleet},
            "record": {"min_free_gb": 0},
            "metrics": {"listen": "127.0.0.1:0"},  # pods of the fake share an address
            "cluster": {
                "kind": "kubernetes",
                "kubernetes": {"control_port": control, "telemetry_port": telemetry, "grace_s": 5, "keep_record_s": 0, **small},
            },
        }
    )


def started_unix(pid: int) -> float:
    ticks = start_ticks(pid)
    assert ticks is not None, f"process {pid} has ended"
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Life:
    """Of a pod with one container."""

    uid: str
    pid: int
    started_unix: float


@dataclass(frozen=True)
class Arrivals:
    """Of one head: seconds from a beginning to each replica, in order."""

    registered_s: list[float]
    ready_s: list[float]

    def __str__(self) -> str:
        return f"REGISTERED {_spread(self.registered_s)}, READY {_spread(self.ready_s)} s (first, median, last)"


def _spread(found: list[float]) -> str:
    return f"{found[0]:.2f} {statistics.median(found):.2f} {found[-1]:.2f}" if found else "none"


@dataclass
class Fleet:
    kit: ClusterKit
    spec: RunSpec
    keys: Path  # a folder with all keys of the run

    # --- acts ------------------------------------------------------------------------------------------------

    def place(self, *, head_first: bool = False) -> None:
        """All objects of the run at once, as `paceline run` does it; or the workers when the head is Ready."""
        server = ServerKeys.fresh()
        server.save(self.keys)
        config, *others = sorted(render(self.spec, RUN, keys=server), key=lambda obj: obj["kind"] != "ConfigMap")
        made = self.kit.create("ConfigMap", config)
        for obj in owned_by([config, *others], made["metadata"]["uid"])[1:]:
            if head_first and obj["metadata"]["name"] == f"{RUN}-worker" and obj["kind"] == "Job":
                self.kit.until(lambda: self.kit.ready("head") == 1, HEAD_S, "the head is Ready")
            self.kit.create(obj["kind"], obj)

    def kill_head(self) -> float:
        """When (unix s); its pod fails and the Job makes another."""
        self.kit.kill(f"{RUN}-head-")
        return time.time()

    def state(self, within_s: float) -> RunState:
        """As a console asks for it."""
        kube = self.spec.cluster.kubernetes
        control, telemetry = (f"tcp://127.0.0.1:{port}" for port in (kube.control_port, kube.telemetry_port))
        with HeadClient(HeadAddress(control, telemetry, 0, 0), load_client_keys(self.keys, "viewer")) as client:
            return client.state(journal_tail=0, timeout_s=within_s)

    # --- what became of it -------------------------------------------------------------------------------------

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.kit.claim("paceline-results") / RUN)

    def journal(self, epoch: int = 0) -> list[JournalEntry]:
        """Of one head; 0: all."""
        entries = read_journal(self.folder.journal) if self.folder.journal.exists() else []
        starts = [n for n, entry in enumerate(entries) if entry.what == "head.start"] + [len(entries)]
        if epoch == 0:
            return entries
        return entries[starts[epoch - 1] : starts[epoch]] if epoch < len(starts) else []

    def moves(self, state: str, epoch: int = 1) -> dict[str, JournalEntry]:
        """The first move to this state of each slot."""
        return first_moves(self.journal(epoch), state)

    def until_ready(self, within_s: float, epoch: int = 1) -> None:
        """Raises AssertionError, at once should a head have failed that nobody killed."""
        expected, killed = self.spec.expected_replicas, epoch - 1

        def ready() -> bool:
            failed = [pod for pod in self.kit.pods("head", living=False) if pod["status"]["phase"] == "Failed"]
            assert len(failed) <= killed, "\n".join(line for pod in failed for line in self.kit.log(pod["metadata"]["name"]))
            return len(self.moves(READY, epoch)) == expected

        self.kit.until(ready, within_s, f"{expected} replicas READY at head {epoch}")

    def arrivals(self, since_unix: float, epoch: int = 1) -> Arrivals:
        return Arrivals(*(sorted(e.unix - since_unix for e in self.moves(s, epoch).values()) for s in (REGISTERED, READY)))

    def worker_pods(self) -> dict[int, Life]:
        """By node."""
        return {int(pod["metadata"]["labels"][INDEX]): self._life(pod) for pod in self.kit.pods("worker")}

    def head_pod(self) -> Life:
        (pod,) = self.kit.pods("head")
        return self._life(pod)

    def _life(self, pod: Json) -> Life:
        (pid,) = self.kit.pids(pod["metadata"]["name"])
        return Life(pod["metadata"]["uid"], pid, started_unix(pid))

    def ready_after_s(self) -> list[float]:
        """Of each replica from when its worker's container had started, in order."""
        return since_start_s(self.moves(READY), {node: pod.started_unix for node, pod in self.worker_pods().items()})


def first_moves(journal: list[JournalEntry], state: str) -> dict[str, JournalEntry]:
    found: dict[str, JournalEntry] = {}
    for entry in journal:
        if entry.what == "replica.state" and entry.after == state:
            found.setdefault(entry.subject, entry)
    return found


def since_start_s(ready: dict[str, JournalEntry], started: Mapping[int, float]) -> list[float]:
    """Of each replica from when its node's worker had started (unix s), in order."""
    return sorted(entry.unix - started[_node_of(slot)] for slot, entry in ready.items())


def _node_of(slot: str) -> int:
    return int(slot.partition("/")[0].removeprefix("node"))


@contextlib.contextmanager
def fleet_of(nodes: int, place: Path, **fleet: Any) -> Iterator[Fleet]:
    """On a cluster of as many nodes and one for the head. A head's successor comes after 1 s, not the usual 10."""
    with cluster_of(nodes + 1, place, processes=True, backoff_s=1.0) as kit:
        yield Fleet(kit, fleet_spec(nodes, *free_ports(2), **fleet), place / "keys")
