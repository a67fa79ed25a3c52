"""The head's own /metrics at 512 replicas: size and CPU of a page, and CPU against prometheus_client alone for the same lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.bench.rig import Row, row

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from exposition_kit import ShownHead

ROUNDS = 15
CPU_GOAL_MS, SIZE_GOAL_KB = 100.0, 600.0


class _Ready:
    """The same families, made beforehand: what is left is the library's writing of them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def run() -> list[Row]:
    head = ShownHead(64, 8)
    head.fleet.ready()
    for number in range(512):
        head.fleet.beat(number, running=20, waiting=3, kv_use=0.4, steps=50, step_ms=21.5, batch=20.0, tokens_out=900)
    for _ in range(10):
        head.load([100.0 + 7 * i for i in range(4000)])
    head.look()
    body, _ = head.metrics.render("")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Ready(list(text_string_to_metric_families(body.decode()))))  # type: ignore[arg-type]
    ours_ms, theirs_ms = _cpu_ms(lambda: head.metrics.render("")), _cpu_ms(lambda: generate_latest(registry))
    size_kb = len(body) / 1e3
    return [
        row("own metrics: CPU of a page over prometheus_client's, same lines", ours_ms / theirs_ms, "ratio", at_most=0.5),
        row("own metrics: CPU of a page of 512 replicas", ours_ms, "ms", at_most=CPU_GOAL_MS),
        row("own metrics: size of a page of 512 replicas", size_kb, "kB", at_most=SIZE_GOAL_KB),
    ]


def _cpu_ms(work: Callable[[], object]) -> float:
    """The median of a few rounds, in CPU time of this thread."""
    work()
    spent = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        work()
        spent.append(time.thread_time() - began)
    return sorted(spent)[ROUNDS // 2] * 1e3
