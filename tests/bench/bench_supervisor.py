"""(f) The supervisor's CPU at 512 replicas and 4,000 samples a second.

The real supervisor in a process of its own: 512 CURVE connections with a heartbeat each 1.5 s, a stand-in driver that sends
400 sample rows ten times a second, the record written every second, snapshots at 4 Hz to one console that follows.
What is measured is the whole process over 20 s of steady load, libzmq's thread and the record's compression included.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import polars as pl

from harness.records.reader import Record
from harness.wire.client import HeadClient, Telemetry
from harness.wire.control import FleetSnapshot
from harness.wire.states import READY
from tests.bench.batch_driver import SAMPLES_S
from tests.bench.head_rig import Head, fleet_spec
from tests.bench.rig import BenchTimeout, Row, children, process_cpu_s, row, wait_for

REPLICAS = 512
MEASURE_S = 20.0
SETTLE_S = 3.0


class Console(threading.Thread):
    """Follows the telemetry and counts snapshots, as a console that is attached would."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="console", daemon=True)
        self._telemetry = Telemetry.of_run(folder, timeout_s=0.2)
        self.snapshots = 0
        self.leave = False

    def run(self) -> None:
        for message in self._telemetry:
            self.snapshots += isinstance(message, FleetSnapshot)
            if self.leave:
                break
        self._telemetry.close()


def run() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as place, children() as processes:
        spec = fleet_spec(REPLICAS, kind="explore", target_qps=SAMPLES_S, duration_s=0)
        head = Head(Path(place), spec, processes, driver="batch_driver")
        head.start()
        for client in head.prepare(READY, 1):
            client.tell("go")
            client.says(40)
        wait_for("the attempt's load", lambda: "issuing" in _attempt_state(head), 40)
        console = Console(head.folder.path)
        console.start()
        try:
            time.sleep(SETTLE_S)
            assert head.process is not None
            pid, seen = head.process.pid, console.snapshots
            began_s, cpu_before_s = time.monotonic(), process_cpu_s(pid)
            time.sleep(MEASURE_S)
            cpu_s, span_s = process_cpu_s(pid) - cpu_before_s, time.monotonic() - began_s
            snapshot_hz = (console.snapshots - seen) / span_s
            _check_fleet(head)
        finally:
            console.leave = True
            console.join(5)
        head.kill()
        recorded = int(Record(head.folder).samples(1).select(pl.len()).collect().item())
    if recorded < SAMPLES_S * MEASURE_S:
        raise BenchTimeout(f"only {recorded} samples are in the record after {MEASURE_S:g} s at {SAMPLES_S} a second")
    percent = 100 * cpu_s / span_s
    return [
        row("(f) supervisor CPU, 512 replicas, 4,000 samples/s", percent, "% of core", at_most=35),
        row("snapshots received meanwhile", snapshot_hz, "1/s", at_least=3.5),
        row("samples in the record afterwards", recorded, "samples", at_least=SAMPLES_S * MEASURE_S),
    ]


def _attempt_state(head: Head) -> str:
    with HeadClient.of_run(head.folder.path, operator="bench") as client:
        attempts = client.state(journal_tail=0, timeout_s=10).attempts
    return attempts[-1].state if attempts else ""


def _check_fleet(head: Head) -> None:
    with HeadClient.of_run(head.folder.path, operator="bench") as client:
        ready = sum(slot.state == READY for slot in client.state(journal_tail=0, timeout_s=10).slots)
    if ready != REPLICAS:
        raise BenchTimeout(f"only {ready} of {REPLICAS} replicas are READY at the end of the measurement")


if __name__ == "__main__":
    for line in run():
        print(line)
