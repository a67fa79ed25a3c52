"""From pod Running to READY at 1, 8 and 64 pods of 8 synthetic replicas, against the same worker command as a plain process.

The cluster is the tests' fake API server with its process kubelet: real workers and replicas, and a head that watches the
cluster as it does on a real one. Plain workers are started together by this bench, for a head that watches nothing. Both heads
listen before the first worker starts, so the ratio is what the way over a cluster adds. Start-up of Python is nearly all of
it: half a CPU second a worker and as much for its replicas, on all the cores that there are. Then the head's pod is killed:
its successor's time to all READY, with nothing reloaded.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.records.journal import read_journal
from harness.wire.client import HeadAddress
from harness.wire.states import READY
from tests.bench.head_rig import Head, fleet_spec
from tests.bench.rig import ROOT, Row, children, median, process_cpu_s, row, wait_for

sys.path.insert(0, str(ROOT / "tests" / "cluster"))
from fleet_in_pods import REPLICAS, first_moves, fleet_of, since_start_s, started_unix

ROUNDS = {1: 3, 8: 1, 64: 1}  # a single worker's start varies most
WITHIN_S = 180.0


def run() -> list[Row]:
    rows: list[Row] = []
    for nodes, rounds in ROUNDS.items():
        plain = [plain_workers(nodes) for _ in range(rounds)]
        in_pods, others = zip(*(pods(nodes) for _ in range(rounds)), strict=True)
        ours_s, plain_s = (median([median(found) for found in way]) for way in (in_pods, plain))
        last_s = median([found[-1] for found in in_pods])
        of = f"{nodes} pods" if nodes > 1 else "1 pod"
        rows += [
            row(f"kube ready: pod Running to READY over plain processes, {of}", ours_s / plain_s, "ratio", at_most=1.5),
            row(f"pod Running to READY, median of {nodes * REPLICAS} replicas", ours_s, "s"),
            row(f"pod Running to READY, last of {nodes * REPLICAS} replicas", last_s, "s"),
            *others[0],
        ]
    return rows


def pods(nodes: int) -> tuple[list[float], list[Row]]:
    """Seconds from Running to READY of each replica in order, and what a killed head costs."""
    expected = nodes * REPLICAS
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as place, fleet_of(nodes, Path(place)) as fleet:
        fleet.place(head_first=True)
        fleet.until_ready(WITHIN_S)
        found = fleet.ready_after_s()
        before = {slot: entry.data for slot, entry in fleet.moves(READY).items()}
        fleet.kill_head()
        fleet.until_ready(WITHIN_S, epoch=2)
        head = fleet.head_pod()
        again_s = fleet.arrivals(head.started_unix, epoch=2).ready_s[-1]
        cpu_ms = process_cpu_s(head.pid) * 1000
        reloaded = sum(before[slot] != entry.data for slot, entry in fleet.moves(READY, 2).items())
    return found, [
        row(f"next head's pod Running to {expected} READY, reloaded", reloaded, "replicas", at_most=0),
        row(f"next head's pod Running to {expected} READY", again_s, "s"),
        row(f"next head's CPU until {expected} READY, its start included", cpu_ms, "ms"),
    ]


def plain_workers(nodes: int) -> list[float]:
    """Seconds from the start of the process to READY of each replica, in order."""
    expected = nodes * REPLICAS
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as place, children() as processes:
        folder = Path(place) / "run"
        folder.mkdir()
        head = Head(folder, fleet_spec(expected), processes)
        head.start()

        def ready() -> bool:
            return len(first_moves(read_journal(head.folder.journal), READY)) == expected

        with workers(head, nodes, Path(place)) as started:
            wait_for(f"{expected} replicas READY", ready, WITHIN_S, step_s=0.1)
            begun = {node: started_unix(process.pid) for node, process in enumerate(started)}
            return since_start_s(first_moves(read_journal(head.folder.journal), READY), begun)


@contextlib.contextmanager
def workers(head: Head, nodes: int, place: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The command of the pods, as the kubelet starts it."""
    command = [sys.executable, "-m", "console.cli", "worker", "--head", HeadAddress.read(head.folder).control]
    command += ["--keys", str(head.folder.keys), "--echo-logs"]
    started = []
    try:
        for node in range(nodes):
            own = ["--nodes", str(node), "--name", f"worker-{node}"]
            files = ["--logs", str(place / f"logs-{node}"), "--ready-file", str(place / f"ready-{node}")]
            quiet = subprocess.DEVNULL
            started.append(subprocess.Popen([*command, *own, *files], cwd=place, stdin=quiet, stdout=quiet, stderr=quiet))
        yield started
    finally:
        for process in started:
            process.kill()  # its replicas go with it
        for process in started:
            process.wait(10)


if __name__ == "__main__":
    for line in run():
        print(line)
