"""(c) How late LoadGen's queries are issued, against a bare Python loop that sleeps until each is due.

Both follow the very same schedule (LoadGen's Server schedule at 1,000 QPS, reproduced), in turns. The driver's lag is what
its sample rows say: issued minus scheduled, as the console and the record show it. The bare loop does nothing but sleep
and read the clock; its lag is the machine's. Both count from the least lag seen, because nobody outside LoadGen knows its
zero. Echo replicas are few and answer little: this is about the issuer, not about the peers.

The p99 is taken of each second (1,000 queries) and the median second counts: on a machine with other work, one burst of
it in one turn would otherwise decide the ratio (two runs of three turns each, compared whole: 1.1 and 2.7).
"""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np

from harness.mlperf.schedule import ServerSchedule
from harness.mlperf.settings import seeds_of
from harness.spec import RunSpec
from tests.bench.bench_driver import spec_for
from tests.bench.driver_rig import run_driver
from tests.bench.rig import Row, median, row

QPS = 1000
SECONDS = 3.0
ROUNDS = 5
SLOTS = 8
ANSWER_TOKENS = 16

Lags = np.ndarray[Any, Any]


def bare_lags_ms(spec: RunSpec) -> Lags:
    schedule = ServerSchedule(seeds_of(spec).schedule, QPS)
    due_s = (schedule.due_ns(0, schedule.generated(int(SECONDS * 1000))) / 1e9).tolist()
    issued_s = []
    gc.collect()
    gc.disable()
    try:
        zero_s = time.monotonic() + 0.05
        for due in due_s:
            wait_s = zero_s + due - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            issued_s.append(time.monotonic() - zero_s)
    finally:
        gc.enable()
    return _from_least((np.array(issued_s) - np.array(due_s)) * 1e3)


def driver_lags_ms(spec: RunSpec) -> Lags:
    rows = np.sort(run_driver(spec, answer_tokens=ANSWER_TOKENS, within_s=60).rows, order="seq")
    return _from_least((rows["issued_ns"] - rows["scheduled_ns"]) / 1e6)


def _from_least(lags_ms: Lags) -> Lags:
    from_least: Lags = lags_ms - lags_ms.min()
    return from_least


def run() -> list[Row]:
    spec = spec_for(SLOTS, qps=QPS, seconds=SECONDS, cap=1024, answer_tokens=ANSWER_TOKENS)
    bare: list[Lags] = []
    ours: list[Lags] = []
    for _ in range(ROUNDS):
        bare.append(bare_lags_ms(spec))
        ours.append(driver_lags_ms(spec))

    def p(lags: list[Lags], percentile: float) -> float:
        seconds = [second for turn in lags for second in np.array_split(turn, round(len(turn) / QPS))]
        return median([float(np.percentile(second, percentile)) for second in seconds])

    return [
        row("(c) issue lag p99 against a bare sleep loop, 1,000 QPS", p(ours, 99) / p(bare, 99), "ratio", at_most=1.3),
        row("issue lag p50 against a bare sleep loop", p(ours, 50) / p(bare, 50), "ratio"),
        row("issue lag p99, driver with LoadGen", p(ours, 99), "ms"),
        row("issue lag p99, bare sleep loop", p(bare, 99), "ms"),
        row("issue lag p50, driver with LoadGen", p(ours, 50), "ms"),
        row("issue lag p50, bare sleep loop", p(bare, 50), "ms"),
    ]


if __name__ == "__main__":
    for line in run():
        print(line)
