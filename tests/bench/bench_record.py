"""The run record: bytes a sample, the cost of a chunk, and the drill-down's queries on 2.4 million samples.

The record is made by RecordWriter as a 600 s run at 4,000 samples/s over 512 replicas makes it: 600 chunks. Times
are made up with a spread like that of a real run, because the size on disk depends on it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness.records.layout import RunFolder
from harness.records.reader import Record, slowest, summarise
from harness.records.writer import RecordWriter
from harness.spec import slot_name
from harness.wire.attempt import SAMPLE_DTYPE

SECONDS = 600
SAMPLES_S = 4000
SLOTS = [slot_name(n, g) for n in range(64) for g in range(8)]


def second_of_rows(second: int, rng: np.random.Generator, n: int = SAMPLES_S) -> np.ndarray[Any, Any]:
    """One second of arrivals, in order of completion."""
    rows = np.zeros(n, SAMPLE_DTYPE)
    rows["seq"] = np.arange(second * n, (second + 1) * n)
    rows["index"] = rng.integers(0, 6396, n)
    rows["slot"] = rng.integers(0, len(SLOTS), n)
    rows["incarnation"] = 1
    rows["tries"] = 1
    rows["n_prompt"] = rng.integers(16, 8000, n)
    rows["n_tokens"] = np.clip(rng.lognormal(6.5, 1.0, n), 2, 10240)
    rows["scheduled_ns"] = np.sort(rng.uniform(second, second + 1, n)) * 1e9
    rows["issued_ns"] = rows["scheduled_ns"] + rng.exponential(60e3, n).astype(np.int64)
    rows["dispatched_ns"] = rows["issued_ns"] + rng.exponential(40e3, n).astype(np.int64)
    rows["queue_us"] = rng.exponential(20e3, n)
    rows["prefill_us"] = rng.lognormal(12.5, 0.4, n)
    rows["decode_us"] = (rows["n_tokens"] - 1) * rng.normal(20e3, 2e3, n)
    rows["first_ns"] = rows["dispatched_ns"] + 1000 * (rows["queue_us"].astype(np.int64) + rows["prefill_us"])
    rows["done_ns"] = rows["first_ns"] + 1000 * rows["decode_us"].astype(np.int64)
    return rows[np.argsort(rows["done_ns"])]


def run() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as place:
        folder = RunFolder(Path(place))
        writer = RecordWriter(folder)
        rng = np.random.default_rng(1)
        handing_s = flushing_s = flushing_cpu_s = 0.0
        for second in range(SECONDS):
            rows = second_of_rows(second, rng)
            started = time.perf_counter()
            for batch in np.array_split(rows, 10):
                writer.samples(1, 1, batch, SLOTS)
            handed, cpu = time.perf_counter(), time.process_time()
            writer.flush()
            handing_s += handed - started
            flushing_s += time.perf_counter() - handed
            flushing_cpu_s += time.process_time() - cpu
        total = SECONDS * SAMPLES_S
        size = sum(path.stat().st_size for path in folder.samples.iterdir())
        opened_s, summary = _timed(lambda: summarise(Record(place), 1))
        assert summary.totals["completed"] == total
        record = Record(place)
        return [
            _line("record.bytes_per_sample", size / total, "B", 64),
            _line("record.handover_per_batch", handing_s / SECONDS / 10 * 1e3, "ms", 1),
            _line("record.flush_per_chunk", flushing_s / SECONDS * 1e3, "ms", 100),
            _line("record.flush_cpu_per_chunk", flushing_cpu_s / SECONDS * 1e3, "ms", 20),
            _line("record.open_and_summarise", opened_s, "s", 1),
            _line("record.summarise", _timed(lambda: summarise(record, 1))[0], "s", 1),
            _line("record.summarise_again", _timed(lambda: summarise(record, 1))[0], "s", 1),
            _line("record.slowest_20", _timed(lambda: slowest(record, 20, 1))[0], "s", 1),
        ]


def _timed(query: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = query()
    return time.perf_counter() - started, result


def _line(name: str, value: float, unit: str, goal: float) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "unit": unit, "goal": goal, "ok": value <= goal}


if __name__ == "__main__":
    for line in run():
        print(
            f"{line['name']:32} {line['value']:10.3f} {line['unit']:3} goal ≤ {line['goal']:g} {'ok' if line['ok'] else 'MISSED'}"
        )
