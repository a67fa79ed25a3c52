"""(d) Registration storms at the real supervisor: everybody at once, and everybody again after the head was killed.

The replicas use the worker's own session code (REGISTER until ACK with jittered back-off, heartbeats every 1.5 s), one
CURVE connection each, from two client processes. The first time runs from the word "go" (nothing connected yet) to the last
ACK; the second from the start of the new head process (its imports included) to the last ACK of the new epoch, with
clients whose reconnect and beat intervals have their normal jitter. The roster is then asked who is there: none may be
missing. Clients and head share the machine, so on two cores much of the time is the clients' own handshakes.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from harness.wire.client import HeadClient
from harness.wire.states import WARMING
from tests.bench.head_rig import Head, fleet_spec
from tests.bench.rig import BenchTimeout, Child, Row, children, process_cpu_s, row, wait_for

CLIENTS = 2
WITHIN_S = {64: 10.0, 512: 30.0, 2048: 90.0}


def run() -> list[Row]:
    rows: list[Row] = []
    for replicas in WITHIN_S:
        rows += storm(replicas)
    return rows


def storm(replicas: int) -> list[Row]:
    within_s = WITHIN_S[replicas]
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as place, children() as processes:
        head = Head(Path(place), fleet_spec(replicas), processes)
        head.start()
        clients = head.prepare(WARMING, CLIENTS)
        assert head.process is not None
        cpu_before_s, began_s = process_cpu_s(head.process.pid), time.monotonic()
        for client in clients:
            client.tell("go")
        took_s = _all_acknowledged(clients, 1, within_s) - began_s
        cpu_us = (process_cpu_s(head.process.pid) - cpu_before_s) / replicas * 1e6
        lost = replicas - _registered(head)
        head.kill()
        began_s = head.start()
        again_s = _all_acknowledged(clients, 2, within_s) - began_s
        lost_again = replicas - _registered(head)
        head.kill()
    return [
        row(f"(d) registration of {replicas} replicas, none lost", lost, "lost", at_most=0),
        row(f"(d) again after the head was killed, {replicas} replicas, none lost", lost_again, "lost", at_most=0),
        row(f"registration of {replicas}, go to last ACK", took_s, "s"),
        row(f"again, start of the new head to last ACK, {replicas}", again_s, "s"),
        row(f"head CPU for each registration, {replicas}", cpu_us, "us"),
    ]


def _all_acknowledged(clients: list[Child], epoch: int, within_s: float) -> float:
    """When (monotonic s) the last replica had its ACK from this head."""
    deadline = time.monotonic() + within_s
    last_s = 0.0
    for client in clients:
        while (said := client.says(max(0.1, deadline - time.monotonic())))["epoch"] < epoch:
            pass
        last_s = max(last_s, said["at_s"])
    return last_s


def _registered(head: Head) -> int:
    """How many slots the head counts as WARMING: a REGISTER with this epoch and a beat since."""

    def count() -> int:
        with HeadClient.of_run(head.folder.path, operator="bench") as client:
            return sum(slot.state == WARMING for slot in client.state(journal_tail=0, timeout_s=20).slots)

    expected = head.spec.expected_replicas
    try:
        return wait_for("every slot WARMING", lambda: count() == expected and expected, 15, step_s=0.2)
    except BenchTimeout:
        return count()


if __name__ == "__main__":
    for line in run():
        print(line)
