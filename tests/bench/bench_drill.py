"""The drill-down at full size: 2.4 million samples of 512 replicas, in a chunk a second as a head writes them (600).

Each view is timed as it is first asked for, in a process of its own so that its memory is known; what goes before it (the table,
or a metric's order that an earlier view made) is part of the first that needs it. Times are of the processor, of all threads: on
an idle machine a view takes no longer than that. The table is set against a bare polars scan of the same columns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, write_run
from harness.records.writer import RecordWriter
from tests.bench.bench_record import SECONDS, SLOTS, second_of_rows

MEMORY_MB = 1000
#: Of a bare scan: positions of names, differences, and what is no number are more work than reading.
TABLE_RATIO = 4.0


def run() -> list[dict[str, Any]]:
    import numpy as np

    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as place:
        folder, rng = RunFolder(Path(place)), np.random.default_rng(1)
        writer = RecordWriter(folder)
        for second in range(SECONDS):
            writer.samples(1, 1, second_of_rows(second, rng), SLOTS)
            writer.flush()
        attempt = AttemptRecord(1, "performance", "Server", 4000.0, 1, 1e9, 1e9 + SECONDS, "ENDED", "VALID")
        limits = {"ttft_p99_ms": 3000.0, "tpot_p99_ms": 80.0}
        write_run(folder.path, RunFile(run="bench", spec={"limits": limits}, phase="DONE", synthetic=True, attempts=[attempt]))
        measured = subprocess.run(
            [sys.executable, "-m", "tests.bench.bench_drill", place], check=True, capture_output=True, text=True, timeout=300
        )
    found: dict[str, float] = json.loads(measured.stdout)
    memory_mb, bare_s = found.pop("memory_mb"), found.pop("bare scan")
    return [
        _line("drill: table against a bare scan of its columns", found["table"] / bare_s, "ratio", TABLE_RATIO),
        *(_line(f"drill: {name}", seconds, "s", 1.0) for name, seconds in found.items()),
        _line("drill: memory of the process", memory_mb, "MB", MEMORY_MB),
    ]


def measure(place: str) -> dict[str, float]:
    """In its own process."""
    import resource

    from harness.analysis.drill import Drill
    from harness.analysis.views import Where
    from harness.records.columns import SAMPLE_SCHEMA
    from harness.records.reader import Record

    columns = [name for name in SAMPLE_SCHEMA if name not in ("attempt", "epoch")]
    Record(place).collect(lambda samples: samples.select(columns), 1)  # the files are in memory for both
    bare_s = min(_timed(lambda: Record(place).collect(lambda samples: samples.select(columns), 1)) for _ in range(3))
    drill = Drill(Record(place))
    slot = Where(node="node017")
    views: dict[str, Callable[[], Any]] = {
        "table": lambda: drill.table,
        "overview": drill.overview,
        "timeline": drill.timeline,
        "distributions": drill.distributions,
        "tail of TTFT": drill.tail,
        "tail of TPOT": lambda: drill.tail("tpot"),
        "tail of latency": lambda: drill.tail("latency"),
        "tail of one node": lambda: drill.tail("ttft", where=slot),
        "replicas": drill.fleet,
        "nodes": lambda: drill.fleet("node"),
        "slowest 50": drill.slowest,
        "one sample": lambda: drill.sample(1_234_567),
    }
    found = {"bare scan": bare_s, **{name: _timed(view) for name, view in views.items()}}
    return {**found, "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _timed(query: Callable[[], Any]) -> float:
    started = time.process_time()
    query()
    return time.process_time() - started


def _line(name: str, value: float, unit: str, goal: float) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "unit": unit, "goal": f"≤ {goal:g}", "ok": value <= goal}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
