"""A head's page without a head: a fleet of any size that beats, samples that completed, and the reader of prometheus_client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from head_kit import Fleet, a_spec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from harness.head.exposition import HeadMetrics
from harness.head.live import Live
from harness.head.snapshot import SnapshotBuilder, View
from harness.wire.attempt import SAMPLE_DTYPE, Batch
from harness.wire.control import FleetSnapshot

NS = 1_000_000_000


@dataclass
class ShownHead:
    nodes: int = 2
    replicas_per_node: int = 2
    name: str = "a-run"
    synthetic: bool = True
    ops: Any = None  # not read by the page
    snapshot: FleetSnapshot | None = None
    fleet: Fleet = field(init=False)

    def __post_init__(self) -> None:
        self.spec = a_spec(self.nodes, self.replicas_per_node, limits={"ttft_p99_ms": 2500, "tpot_p99_ms": 40})
        self.fleet = Fleet(self.spec)
        self.roster = self.fleet.roster
        self.live = Live(self.spec, len(self.roster.replicas))
        self.metrics = HeadMetrics(self)

    def load(self, ttfts_ms: list[float], tokens: int = 11, tpot_ms: float = 20.0, failed: int = 0, attempt: int = 1) -> None:
        """Completed samples, one a TTFT, round robin over the fleet."""
        rows = np.zeros(len(ttfts_ms), SAMPLE_DTYPE)
        rows["slot"] = np.arange(len(rows)) % len(self.roster.replicas)
        rows["first_ns"] = np.array(ttfts_ms) * 1e6
        rows["done_ns"] = rows["first_ns"] + int((tokens - 1) * tpot_ms * 1e6)
        rows["n_tokens"] = tokens
        rows["prefill_slot"] = -1
        pairs = np.stack([rows["slot"], (np.array(ttfts_ms) * 1e3).astype("<i4")], axis=1).astype("<i4")
        n = len(self.roster.replicas)
        self.live.take(
            Batch(
                now_ns=NS, started_unix=1.0, issued=len(rows) + failed, scheduled=len(rows), completed=len(rows), failed=failed,
                redispatched=0, held=3, in_flight=2, stale=0, target_qps=10.0, cpu_s=0.0, planned=0, ttfts=pairs.tobytes(),
                rows=rows.tobytes(), outstanding=np.arange(n, dtype="<i4").tobytes(), oldest_ms=np.zeros(n, "<i4").tobytes(),
            ),
            10.0,
        )  # fmt: skip

    def look(self) -> None:
        """Take the snapshot that the supervisor takes four times a second."""
        view = View(
            seq=1, head_epoch=1, phase="MEASURING", phase_since_unix=1.0, attempt=None, barrier=None, judgement=None,
            straggler_note="", mechanism="", paused=False, policy="flag", controller="", synthetic=True, head_cpu_percent=1.0,
            driver_cpu_percent=2.0, target_qps=10.0,
        )  # fmt: skip
        self.snapshot = SnapshotBuilder(self.roster, self.live).build(view, self.fleet.clock())


def samples_of(body: bytes) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(body.decode()) for sample in family.samples]


def value_of(samples: list[Sample], name: str, **labels: str) -> float:
    found = [sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items()]
    assert len(found) == 1, f"{name} {labels}: {len(found)} samples"
    return float(found[0])
