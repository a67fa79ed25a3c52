"""Records for console tests, written by the same writers as a head's, of runs that never were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from harness.records.clusterlog import ClusterWriter
from harness.records.journal import JournalWriter
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, read_run, write_run
from harness.records.writer import RecordWriter
from harness.spec import RunSpec
from harness.wire.attempt import SAMPLE_DTYPE
from harness.wire.clusterview import BudgetRow, ClusterView, HostRow, PodRow
from harness.wire.control import JournalEntry
from harness.wire.states import REPLICA_CODE

T0 = 1_795_000_000.0
SECONDS_BEFORE = 5  # from the run's start to its first sample


def a_spec(name: str = "kit", *, nodes: int = 2, per_node: int = 2, qps: float = 100.0, seconds: float = 60.0) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": name,
            "load": {"target_qps": qps, "duration_s": seconds},
            "limits": {"ttft_p99_ms": 500, "tpot_p99_ms": 40},
            "fleet": {"nodes": nodes, "replicas_per_node": per_node},
        }
    )


def ended_run(
    root: Path, name: str, spec: RunSpec | None = None, *, at: float = T0, verdict: str = "VALID", **figures: Any
) -> Path:
    """A run.json and nothing else: what a list of runs reads."""
    spec = spec or a_spec()
    path = root / name
    path.mkdir(parents=True)
    results = {"completed_qps": 99.5, "tokens_per_s": 6000.0, "ttft_p99_ms": 310.0, "tpot_p99_ms": 21.0} | figures
    n = int(spec.load.target_qps * (spec.load.duration_s or 60))
    attempt = AttemptRecord(
        1, "performance", "Server", spec.load.target_qps, 1, at + SECONDS_BEFORE, at + 70, "ENDED", verdict, results=results,
        totals={"issued": n, "completed": n, "failed": 0, "lost": 0, "redispatched": 3},
    )  # fmt: skip
    run = RunFile(
        run=name, spec=spec.model_dump(mode="json"), phase="DONE", synthetic=True, started_unix=at, ended_unix=at + 71,
        attempts=[attempt], verdict=verdict,
    )  # fmt: skip
    write_run(path, run)
    return path


def recorded_run(root: Path, name: str = "kit-1", *, seconds: int = 60, qps: int = 100, spec: RunSpec | None = None) -> Path:
    """With journal, timeline and samples. Sample k of a second: TTFT 100 ms (in the last third of the load 600 ms), 11
    tokens, TPOT 20 ms. The last slot is evicted and flagged slow before."""
    spec = spec or a_spec(qps=qps, seconds=seconds)
    path = ended_run(root, name, spec)
    folder = RunFolder(path)
    slots = spec.slots()
    _write_journal(folder, slots, seconds)
    writer = RecordWriter(folder, waiting_rows=10_000_000)
    for second in range(seconds + SECONDS_BEFORE):
        load_s = second - SECONDS_BEFORE
        _write_second(writer, second, slots, evicted=load_s >= 2 * seconds // 3)
        if load_s >= 0:
            writer.samples(1, 1, rows_of(load_s, qps, len(slots), slow=load_s >= 2 * seconds // 3), slots)
    writer.flush()
    return path


def rows_of(second: int, qps: int, slots: int, *, slow: bool) -> np.ndarray[Any, Any]:
    rows = np.zeros(qps, SAMPLE_DTYPE)
    k = np.arange(qps)
    rows["seq"] = rows["index"] = second * qps + k
    rows["slot"], rows["tries"], rows["incarnation"], rows["n_prompt"], rows["n_tokens"] = k % slots, 1, 1, 7, 11
    rows["scheduled_ns"] = (second + k / qps) * 1e9
    rows["issued_ns"] = rows["scheduled_ns"] + 100_000
    rows["dispatched_ns"] = rows["issued_ns"] + 50_000
    rows["first_ns"] = rows["scheduled_ns"] + (600 if slow else 100) * 1_000_000
    rows["done_ns"] = rows["first_ns"] + 200 * 1_000_000
    rows["queue_us"], rows["prefill_us"], rows["decode_us"] = 1000, 5000, 200_000
    rows["prefill_slot"] = rows["prefilled_ns"] = rows["transfer_us"] = -1
    return rows


def _write_second(writer: RecordWriter, second: int, slots: list[str], *, evicted: bool) -> None:
    n = len(slots)
    state = np.full(n, REPLICA_CODE["READY" if second >= SECONDS_BEFORE - 1 else "WARMING"], dtype=np.uint8)
    if evicted:
        state[-1] = REPLICA_CODE["EVICTED"]
    columns: dict[str, Any] = {name: np.full(n, 2, dtype=np.int32) for name in ("outstanding", "running", "waiting")}
    columns |= {name: np.full(n, 1.0, dtype=np.float32) for name in ("kv_use", "step_ms", "batch", "ratio", "z")}
    columns["tokens_s"] = np.full(n, 100.0 + second, dtype=np.float32)
    writer.timeline(1 if second >= SECONDS_BEFORE else 0, T0 + second, {"state": state, **columns}, slots)


def _write_journal(folder: RunFolder, slots: list[str], seconds: int) -> None:
    journal = JournalWriter(folder.journal)

    def note(at_s: float, what: str, subject: str = "", **more: Any) -> None:
        journal.append(JournalEntry(0, T0 + at_s, more.pop("who", "head"), what, subject, **more))

    begin, end = float(SECONDS_BEFORE), float(SECONDS_BEFORE + seconds)
    note(0.0, "run.phase", before="PLACING", after="REGISTERING")
    for number, slot in enumerate(slots):
        note(1.0, "replica.state", slot, before="NEW", after="WARMING", data={"incarnation": f"{number:012x}", "nth": 1})
    note(2.0, "run.phase", before="REGISTERING", after="WARMING")
    for number, slot in enumerate(slots):
        note(3.0, "replica.state", slot, before="WARMING", after="READY", data={"incarnation": f"{number:012x}", "nth": 1})
    note(begin - 1, "run.phase", before="WARMING", after="READY")
    note(begin - 0.5, "attempt.start", "1", attempt=1)
    note(begin - 0.4, "run.phase", before="READY", after="MEASURING", attempt=1)
    note(begin, "attempt.phase", "1", after="issuing", attempt=1)
    note(begin + seconds / 2, "straggler.slow", slots[-1], level="warn", attempt=1)
    note(begin + 2 * seconds / 3, "act.evict", slots[-1], who="operator:kim", level="warn", attempt=1)
    evicted = {"before": "READY", "after": "EVICTED", "data": {"incarnation": f"{len(slots) - 1:012x}", "nth": 1}}
    note(begin + 2 * seconds / 3, "replica.state", slots[-1], attempt=1, **evicted)
    note(end + 1, "run.phase", before="MEASURING", after="DRAINING", attempt=1)
    note(end + 2, "attempt.end", "1", after="VALID", attempt=1)
    note(end + 2.1, "run.phase", before="DRAINING", after="DONE", attempt=1)
    journal.close()


def on_a_cluster(path: Path, spec: RunSpec, *, seconds: int = 60) -> Path:
    """Such a record as a head in a pod would have written it: the last node's pod waits until second 3, and is evicted with
    the replica, two thirds through the load; its successor comes 6 s later. At the end all have ended in order."""
    nodes, folder = spec.fleet.nodes, RunFolder(path)
    run = read_run(path)
    run.spec["cluster"]["kind"] = "kubernetes"
    write_run(path, run)
    writer, last = ClusterWriter(folder.cluster), nodes - 1
    gone_s = SECONDS_BEFORE + 2 * seconds // 3

    def told(at_s: float, *, phase: str = "Running", wanted: PodRow | None = None) -> None:
        pods = [_pod(node, phase) for node in range(nodes)]
        pods[last] = wanted or pods[last]
        hosts = [HostRow(f"host-{node}", rack="r1", gpus=8, gpus_there=8, pods=[f"kit-worker-{node}"]) for node in range(nodes)]
        budget = BudgetRow("kit-worker", 1, nodes, nodes - 1, nodes)
        view = ClusterView("kubernetes", "bench", "kit", nodes, T0 + at_s, pods=pods, hosts=hosts, budget=budget)
        writer.take(view, T0 + at_s, final=True)

    waits = PodRow(last, f"kit-worker-{last}", "uid-a", "Pending", reason="0/2 nodes are available", since_unix=T0)
    evicted = PodRow(
        last, f"kit-worker-{last}", "uid-a", "Terminating", host=f"host-{last}", reason="evicted", evictions=1,
        next_delay_s=20.0, replacement_unix=T0 + gone_s + 6,
    )  # fmt: skip
    told(0.0, wanted=waits)
    told(3.0)
    told(float(gone_s), wanted=evicted)
    told(gone_s + 6.0, wanted=_pod(last, "Running", name=f"kit-worker-{last}-b"))
    told(seconds + SECONDS_BEFORE + 2.0, phase="Succeeded", wanted=_pod(last, "Succeeded", name=f"kit-worker-{last}-b"))
    writer.close()
    return path


def _pod(node: int, phase: str, *, name: str = "") -> PodRow:
    why = "" if phase == "Running" else f"pod {name} has ended by itself"
    return PodRow(
        node, name or f"kit-worker-{node}", f"uid-{node}", phase, phase == "Running", f"host-{node}", "r1", why,
        since_unix=T0 + 1, next_delay_s=10.0,
    )  # fmt: skip
