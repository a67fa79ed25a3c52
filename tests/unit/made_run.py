"""Records of runs that never were, of any size, written as a head writes them: a model of a fleet with faults that a drill-down
must find. Everything is drawn from one seed, so a test knows what it looks for."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.records.journal import JournalWriter
from harness.records.layout import RunFolder
from harness.records.reader import Record, summarise
from harness.records.runfile import AttemptRecord, RunFile, write_run
from harness.records.writer import RecordWriter
from harness.spec import RunSpec
from harness.wire.attempt import SAMPLE_DTYPE
from harness.wire.control import JournalEntry
from harness.wire.states import REPLICA_CODE

T0 = 1_795_000_000.0
BEFORE_S = 5  # from the run's start to the attempt's time zero


@dataclass(frozen=True)
class Made:
    """`slow_node` decodes `slow` times as long as others; from `stall_s` on prompts wait 1.5 s more for 4 s; every
    `again_every`-th sample was dispatched twice. The last slot is evicted at two thirds of the load."""

    name: str = "made-1"
    nodes: int = 4
    per_node: int = 4
    qps: float = 200.0
    seconds: int = 60
    seed: int = 7
    slow_node: int | None = 1
    slow: float = 1.6
    stall_s: int | None = None
    again_every: int = 0
    tpot_ms: float = 20.0
    queue_ms: float = 22.5  # at the replica, mean
    ttft_limit_ms: float = 3000.0
    tpot_limit_ms: float = 80.0
    verdict: str = "VALID"
    failed: int = 0

    @property
    def spec(self) -> RunSpec:
        return RunSpec.model_validate(
            {
                "name": "made",
                "model": {"name": "gpt-oss-120b"},
                "load": {"target_qps": self.qps, "duration_s": self.seconds},
                "limits": {"ttft_p99_ms": self.ttft_limit_ms, "tpot_p99_ms": self.tpot_limit_ms},
                "fleet": {"nodes": self.nodes, "replicas_per_node": self.per_node},
            }
        )


def make_run(root: Path, made: Made | None = None, *, at_unix: float = T0) -> Path:
    """The folder. One attempt, number 1, Server."""
    made = made or Made()
    path = root / made.name
    path.mkdir(parents=True)
    folder, spec = RunFolder(path), made.spec
    slots = spec.slots()
    writer = RecordWriter(folder, waiting_rows=50_000_000)
    rows = sample_rows(made)
    step = max(1, made.seconds // 60)  # chunks of a second or more
    edges = np.searchsorted(rows["scheduled_ns"], np.arange(0, made.seconds + step, step) * 1e9)
    for start, end in itertools.pairwise(edges):
        writer.samples(1, 1, rows[start:end], slots)
        writer.flush()
    for second in range(BEFORE_S + made.seconds):
        _timeline_second(writer, made, second, slots, at_unix)
    writer.flush(final=True)
    _journal(folder, made, slots, at_unix)
    attempt = AttemptRecord(
        1, "performance", "Server", made.qps, 1, at_unix + BEFORE_S, at_unix + BEFORE_S + made.seconds, "ENDED", made.verdict
    )
    attempt.totals = {"issued": len(rows), "completed": len(rows) - made.failed, "failed": made.failed, "lost": 0}
    run = RunFile(
        run=made.name, spec=spec.model_dump(mode="json"), phase="DONE", synthetic=True, started_unix=at_unix,
        ended_unix=at_unix + BEFORE_S + made.seconds + 1, attempts=[attempt], verdict=made.verdict,
    )  # fmt: skip
    write_run(path, run)
    summary = summarise(Record(path), 1)
    attempt.totals, attempt.rates = dict(summary.totals), summary.rates
    attempt.ttft_ms, attempt.tpot_ms, attempt.latency_ms = summary.ttft_ms, summary.tpot_ms, summary.latency_ms
    attempt.results = {
        name: value
        for name, value in (
            ("completed_qps", summary.rates["completed_qps"]), ("tokens_per_s", summary.rates["tokens_per_s"]),
            ("ttft_p99_ms", summary.ttft_ms["p99"]), ("tpot_p99_ms", summary.tpot_ms["p99"]),
        )
        if value is not None
    }  # fmt: skip
    write_run(path, run)
    return path


def sample_rows(made: Made) -> np.ndarray[Any, Any]:
    """SAMPLE_DTYPE rows in the order of their schedule."""
    rng = np.random.default_rng(made.seed)
    n, n_slots = int(made.qps * made.seconds), made.nodes * made.per_node
    rows = np.zeros(n, SAMPLE_DTYPE)
    scheduled_s = np.sort(rng.uniform(0, made.seconds, n))
    n_prompt = np.clip(rng.lognormal(6.5, 0.8, n), 16, 8000).astype(np.int32)
    n_tokens = np.clip(rng.lognormal(3.5, 0.6, n), 2, 2000).astype(np.int32)
    slot = rng.integers(0, n_slots, n)
    evicted = scheduled_s >= 2 * made.seconds / 3
    slot[evicted & (slot == n_slots - 1)] = 0
    lag_ms = rng.exponential(0.08, n)
    head_ms = rng.exponential(0.5, n)
    queue_ms = rng.gamma(1.5, made.queue_ms / 1.5, n)
    if made.stall_s is not None:
        queue_ms += 1500.0 * ((scheduled_s >= made.stall_s) & (scheduled_s < made.stall_s + 4))
    prefill_ms = 5.0 + n_prompt * 0.04 * rng.lognormal(0, 0.1, n)
    tpot_ms = made.tpot_ms * rng.lognormal(0, 0.08, n)
    if made.slow_node is not None:
        tpot_ms[slot // made.per_node == made.slow_node] *= made.slow
    decode_ms = tpot_ms * (n_tokens - 1)
    rows["seq"], rows["index"] = np.arange(n), rng.integers(0, 6396, n)
    rows["slot"], rows["incarnation"], rows["tries"] = slot, 1, 1
    if made.again_every:
        rows["tries"][:: made.again_every] = 2
        head_ms[:: made.again_every] += 800.0
    rows["n_prompt"], rows["n_tokens"] = n_prompt, n_tokens
    rows["scheduled_ns"] = scheduled_s * 1e9
    rows["issued_ns"] = rows["scheduled_ns"] + (lag_ms * 1e6).astype(np.int64)
    rows["dispatched_ns"] = rows["issued_ns"] + (head_ms * 1e6).astype(np.int64)
    rows["first_ns"] = rows["dispatched_ns"] + ((queue_ms + prefill_ms + 1.0) * 1e6).astype(np.int64)
    rows["done_ns"] = rows["first_ns"] + (decode_ms * 1e6).astype(np.int64)
    rows["queue_us"], rows["prefill_us"], rows["decode_us"] = queue_ms * 1e3, prefill_ms * 1e3, decode_ms * 1e3
    rows["prefill_slot"] = rows["prefilled_ns"] = rows["transfer_us"] = -1
    if made.failed:
        rows["done_ns"][-made.failed :] = -1
    return rows


def _timeline_second(writer: RecordWriter, made: Made, second: int, slots: list[str], at_unix: float) -> None:
    n, load_s = len(slots), second - BEFORE_S
    state = np.full(n, REPLICA_CODE["READY" if load_s >= -1 else "WARMING"], dtype=np.uint8)
    if load_s >= 2 * made.seconds / 3:
        state[-1] = REPLICA_CODE["EVICTED"]
    ratio = np.ones(n, np.float32)
    if made.slow_node is not None:
        ratio[made.slow_node * made.per_node : (made.slow_node + 1) * made.per_node] = made.slow
    busy = 12 if load_s >= 0 else 0
    columns: dict[str, Any] = {"outstanding": busy, "running": busy, "waiting": 0}
    columns = {name: np.full(n, value, np.int32) for name, value in columns.items()}
    columns |= {"kv_use": np.full(n, 0.4, np.float32), "batch": np.full(n, float(busy), np.float32), "z": np.zeros(n, np.float32)}
    columns |= {"step_ms": ratio * np.float32(made.tpot_ms), "ratio": ratio, "tokens_s": np.full(n, 500.0, np.float32) / ratio}
    writer.timeline(1 if load_s >= 0 else 0, at_unix + second, {"state": state, **columns}, slots)


def _journal(folder: RunFolder, made: Made, slots: list[str], at_unix: float) -> None:
    journal = JournalWriter(folder.journal)

    def note(at_s: float, what: str, subject: str = "", **more: Any) -> None:
        journal.append(JournalEntry(0, at_unix + at_s, more.pop("who", "head"), what, subject, **more))

    end_s = float(BEFORE_S + made.seconds)
    note(0.0, "run.phase", before="PLACING", after="REGISTERING")
    for number, slot in enumerate(slots):
        data = {"incarnation": f"{number:012x}", "nth": 1}
        note(1.0, "replica.state", slot, before="NEW", after="WARMING", data=data)
        note(3.0, "replica.state", slot, before="WARMING", after="READY", data=data)
    note(BEFORE_S - 1.0, "run.phase", before="WARMING", after="READY")
    note(BEFORE_S - 0.5, "attempt.start", "1", attempt=1)
    note(BEFORE_S - 0.4, "run.phase", before="READY", after="MEASURING", attempt=1)
    note(BEFORE_S, "attempt.phase", "1", after="issuing", attempt=1)
    if made.slow_node is not None:
        slow = slots[made.slow_node * made.per_node]
        note(BEFORE_S + made.seconds / 4, "straggler.slow", slow, level="warn", attempt=1)
    evict_s = BEFORE_S + 2 * made.seconds / 3
    note(evict_s, "act.evict", slots[-1], who="operator:kim", why="slow", level="warn", attempt=1)
    data = {"incarnation": f"{len(slots) - 1:012x}", "nth": 1}
    note(evict_s, "replica.state", slots[-1], before="READY", after="EVICTED", attempt=1, data=data)
    note(end_s, "attempt.end", "1", after=made.verdict, attempt=1)
    note(end_s + 1, "run.phase", before="MEASURING", after="DONE")
    journal.close()
