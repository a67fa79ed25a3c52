"""A driver that only reports: Batches as a dispatcher sends them at 4,000 completed samples a second, ten a second.

Started by the head in place of harness.driver (see bare_head), with the same configuration file. Rows are made with the
spread of a real run beforehand, so that making them costs nothing while the supervisor is measured.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import zmq

from harness.driver.config import DriverConfig
from harness.wire import attempt as up
from harness.wire.frames import encode
from harness.worker.replica import die_with
from tests.bench.bench_record import second_of_rows

SAMPLES_S = 4000
BATCHES_S = 10
RUN_S = 120


class BatchDriver:
    def __init__(self, config: DriverConfig) -> None:
        self._config = config
        self._pair = zmq.Context().socket(zmq.PAIR)
        self._pair.sndhwm = self._pair.rcvhwm = 0
        self._pair.linger = 500
        self._pair.connect(config.pair)
        rng = np.random.default_rng(1)
        slots = len(config.slots)
        self._seconds = []
        for second in range(10):
            rows = second_of_rows(second, rng, SAMPLES_S)
            rows["slot"] %= slots
            self._seconds.append(rows)
        self._outstanding = rng.integers(8, 64, slots).astype("<i4").tobytes()
        self._oldest_ms = rng.integers(1000, 30_000, slots).astype("<i4").tobytes()

    def run(self) -> None:
        self._pair.send(encode(up.DriverUp(os.getpid(), "tcp://127.0.0.1:1", "")))
        self._pair.send(encode(up.DriverPhase("issuing")))
        started_s, started_unix = time.monotonic(), time.time()
        for number in range(RUN_S * BATCHES_S):
            time.sleep(max(0.0, started_s + (number + 1) / BATCHES_S - time.monotonic()))
            if self._told_to_quit():
                return
            self._pair.send(encode(self._batch(number, started_s, started_unix)))
        self._pair.send(encode(up.DriverEnd(True, "", RUN_S * SAMPLES_S, RUN_S * SAMPLES_S)))

    def _told_to_quit(self) -> bool:
        while self._pair.poll(0):
            if isinstance(up.TO_DRIVER.decode(self._pair.recv()), up.Quit | up.Finish):
                return True
        return False

    def _batch(self, number: int, started_s: float, started_unix: float) -> up.Batch:
        per_batch = SAMPLES_S // BATCHES_S
        second, part = divmod(number, BATCHES_S)
        laps, second = divmod(second, len(self._seconds))
        rows = self._seconds[second][part * per_batch : (part + 1) * per_batch].copy()
        rows["seq"] += laps * len(self._seconds) * SAMPLES_S
        for name in ("scheduled_ns", "issued_ns", "dispatched_ns", "first_ns", "done_ns"):
            rows[name] += laps * len(self._seconds) * 1_000_000_000
        completed = (number + 1) * per_batch
        return up.Batch(
            now_ns=int((time.monotonic() - started_s) * 1e9),
            started_unix=started_unix,
            issued=completed + 16_000,
            scheduled=completed + 16_000,
            completed=completed,
            failed=0,
            redispatched=0,
            held=0,
            in_flight=16_000,
            stale=0,
            target_qps=SAMPLES_S,
            cpu_s=time.process_time(),
            planned=0,
            ttfts=np.column_stack([rows["slot"], (rows["first_ns"] - rows["scheduled_ns"]) // 1000]).astype("<i4").tobytes(),
            rows=rows.tobytes(),
            outstanding=self._outstanding,
            oldest_ms=self._oldest_ms,
        )


if __name__ == "__main__":
    die_with(os.getppid())
    BatchDriver(DriverConfig.load(Path(sys.argv[1]))).run()
