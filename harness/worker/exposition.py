"""The worker's own /metrics: its slots, the processes that carry them with their memory and CPU, and how long no head was heard.

Latencies are the head's to tell, which sees every sample; here stands what only the node knows.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.metrics.exposition import Column, Page, Table

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_NAN = float("nan")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class SlotLine:
    slot: str
    state: str  # of slots.SlotState
    lives: int


@dataclass(frozen=True, slots=True)
class ProcessLine:
    name: str  # of its log: node000-gpu0, or node000-0 where slots share it
    pid: int


class WorkerMetrics:
    def __init__(
        self,
        name: str,
        slots: Callable[[], list[SlotLine]],
        processes: Callable[[], list[ProcessLine]],
        silent_s: Callable[[], float],
        proc: Path = Path("/proc"),
    ) -> None:
        self._name, self._slots, self._processes, self._silent_s, self._proc = name, slots, processes, silent_s, proc
        self._page = Page(self)

    def render(self, accept: str) -> tuple[bytes, str]:
        return self._page.render(accept, [self._slot_table(), self._process_table()])

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        yield InfoMetricFamily("paceline_worker", "The worker that this is", {"worker": self._name})
        yield GaugeMetricFamily("paceline_worker_head_silent_seconds", "Since it heard a head", self._silent_s())
        counted = GaugeMetricFamily("paceline_worker_slots", "Slots by what the worker does with them", labels=["state"])
        for state, number in Counter(line.state for line in self._slots()).items():
            counted.add_metric([state], number)
        yield counted

    def _slot_table(self) -> Table:
        lines = self._slots()
        lives = Column("worker_slot_lives_total", "Incarnations that it has begun", "counter", [line.lives for line in lines])
        return Table("replica", [line.slot for line in lines], [lives])

    def _process_table(self) -> Table:
        lines = self._processes()
        figures = [_figures(self._proc / str(line.pid) / "stat") for line in lines]
        columns = [
            Column("worker_process_cpu_seconds_total", "CPU of a replica process", "counter", [cpu_s for cpu_s, _ in figures]),
            Column("worker_process_resident_bytes", "Memory of a replica process", "gauge", [rss for _, rss in figures]),
        ]
        return Table("process", [line.name for line in lines], columns)


def _figures(stat: Path) -> tuple[float, float]:
    """CPU seconds and resident bytes; NaN of a process that has just gone."""
    try:
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return _NAN, _NAN
