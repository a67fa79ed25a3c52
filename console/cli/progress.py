"""A run's progress on stderr: a line every two seconds, or, on a terminal, one line that is drawn over.

Follows what the head publishes and decides nothing: a run goes on whether or not anybody follows it.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from console.cli.output import clock, number
from harness.wire.control import FleetSnapshot, JournalEntry, SlaView
from harness.wire.states import LOST, READY

_ALIKE = 2
EVERY_S = 2.0
EVERY_ON_TERMINAL_S = 0.5


class ProgressLines:
    """Turns snapshots and journal entries into lines; time is passed in."""

    def __init__(self, out: TextIO | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._out = out if out is not None else sys.stderr
        self._over = self._out.isatty()
        self._now_s = now_s
        self._started_s = now_s()
        self._next_s = self._started_s
        self._phase = ""
        self._drawn = False

    def snapshot(self, fleet: FleetSnapshot) -> None:
        now_s = self._now_s()
        if now_s < self._next_s and fleet.phase == self._phase:
            return
        self._phase = fleet.phase
        self._next_s = now_s + (EVERY_ON_TERMINAL_S if self._over else EVERY_S)
        line = f"{clock(now_s - self._started_s):>5} {progress_line(fleet)}"
        if self._over:
            width = max(20, shutil.get_terminal_size().columns - 1)
            self._out.write(f"\r\x1b[K{line[:width]}")
            self._drawn = True
        else:
            self._out.write(line + "\n")
        self._out.flush()

    def news(self, entries: Iterable[JournalEntry]) -> None:
        """What a person should not miss: acts, warnings, errors, starts and ends of attempts. What befalls many replicas
        at once is told of the first, with the number of the others."""
        worth = [
            e for e in entries if e.level != "info" or e.what.startswith("act.") or e.what in ("attempt.start", "attempt.end")
        ]
        told: dict[tuple[str, str], int] = {}
        for entry in worth:
            kind = (entry.what, entry.after)
            told[kind] = told.get(kind, 0) + 1
            if told[kind] <= _ALIKE or entry.what.startswith("act."):
                self._entry(entry)
        for (what, after), count in told.items():
            if count > _ALIKE and not what.startswith("act."):
                self.say(f"{what}{f' → {after}' if after else ''}: {count - _ALIKE} more")

    def _entry(self, entry: JournalEntry) -> None:
        who = f" by {entry.who.partition(':')[2] or entry.who}" if entry.what.startswith("act.") else ""
        move = f" {entry.before} → {entry.after}" if entry.before and entry.after else f" {entry.after}" if entry.after else ""
        why = f": {entry.why}" if entry.why else ""
        self.say(f"{entry.level.upper() + ' ' if entry.level != 'info' else ''}{entry.what} {entry.subject}{move}{who}{why}")

    def say(self, text: str) -> None:
        self.finish()
        self._out.write(f"{clock(self._now_s() - self._started_s):>5} {text}\n")
        self._out.flush()

    def finish(self) -> None:
        """Leave the line that is drawn over."""
        if self._drawn:
            self._out.write("\n")
            self._out.flush()
            self._drawn = False


def progress_line(fleet: FleetSnapshot) -> str:
    total = sum(fleet.counts.values())
    ready = fleet.counts.get(READY, 0)
    parts = [f"{fleet.phase:<11}", f"{ready}/{total} ready"]
    if fleet.missing_total:
        shown = "; ".join(fleet.missing[:2])
        more = fleet.missing_total - min(2, len(fleet.missing))
        parts.append(f"missing {shown}{f' and {more} more' if more else ''}")
    elif fleet.counts.get(LOST, 0):
        parts.append(f"{fleet.counts[LOST]} lost")
    if fleet.attempt and fleet.attempt_state not in ("", "ENDED"):
        parts += _load(fleet)
    if fleet.slow or fleet.slow_nodes:
        parts.append("slow " + ", ".join([*fleet.slow_nodes, *fleet.slow][:3]))
    elif fleet.fleet_slow:
        parts.append("the whole fleet is slow")
    return "  ".join(parts)


def _load(fleet: FleetSnapshot) -> list[str]:
    kind = "explore" if fleet.attempt_kind == "explore" else fleet.scenario
    of_duration = f" of {clock(fleet.duration_s)}" if fleet.duration_s else ""
    of_queries = f" of {fleet.min_queries:,d}" if fleet.min_queries > 1 else ""
    parts = [
        f"{kind} #{fleet.attempt} {clock(fleet.elapsed_s)}{of_duration}",
        f"issued {fleet.issued:,d}{of_queries}, done {fleet.completed:,d}",
        f"{number(fleet.offered_qps)} → {number(fleet.completed_qps)} q/s (target {fleet.target_qps:g})",
        _against("TTFT", fleet.ttft),
        _against("TPOT", fleet.tpot),
    ]
    if fleet.redispatched:
        parts.append(f"{fleet.redispatched:,d} dispatched again")
    if fleet.backlog:
        parts.append(f"{fleet.backlog:,d} held in the head")
    if fleet.paused:
        parts.append("PAUSED")
    left_s = eta_s(fleet)
    if fleet.attempt_state == "draining":
        parts.append(f"{fleet.in_flight:,d} still in flight")
    elif left_s is not None:
        parts.append(f"ETA {clock(left_s)}")
    return parts


def _against(name: str, sla: SlaView) -> str:
    """Whole attempt's p99 once there are enough samples, else the window's median; `!` when over the limit."""
    limit = f" of {sla.limit_ms:g}" if sla.limit_ms is not None else ""
    if math.isfinite(sla.whole.p99):
        over = "!" if sla.limit_ms is not None and sla.whole.p99 > sla.limit_ms else ""
        return f"{name} p99 {number(sla.whole.p99)}{over}{limit} ms"
    return f"{name} p50 {number(sla.window.p50)}{limit} ms"


def eta_s(fleet: FleetSnapshot) -> float | None:
    """Until minimum duration and minimum queries are both met; None where no end is in sight."""
    if not fleet.duration_s:
        return None
    left_s = fleet.duration_s - fleet.elapsed_s
    if fleet.min_queries > fleet.issued and fleet.scenario == "Server":
        rate_qps = fleet.offered_qps if fleet.offered_qps > 0 else fleet.target_qps
        left_s = max(left_s, (fleet.min_queries - fleet.issued) / rate_qps)
    return max(0.0, left_s)
