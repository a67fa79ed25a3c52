"""A run's progress on stderr: a line every two seconds, or, on a terminal, one line that is drawn over.

Follows what the head publishes and decides nothing: a run goes on whether or not anybody follows it. On a terminal TTFT
and TPOT against their limits are the last thing to be shortened; 80 columns are enough for both and the ETA.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from console.cli.fitting import fitted
from console.cli.output import clock, number
from console.cli.story import in_words
from harness.wire.control import FleetSnapshot, JournalEntry, RoleView, SlaView
from harness.wire.states import DRAINING, LOST, READY, WARMING_PAIRS

_ALIKE = 2
_REASONS = 2
EVERY_S = 2.0
EVERY_ON_TERMINAL_S = 0.5
#: What a driver is doing before its first query (DriverPhase), and a snapshot without an attempt.
_BEFORE_LOAD = frozenset({"starting", "loading", "generating schedule", "waiting for replicas"})
_NO_LOAD = frozenset({"", "ENDED"})
_AFTER_LOAD = frozenset({"draining", "stopping", "logging"})


class ProgressLines:
    """Turns snapshots and journal entries into lines; time is passed in. `already_s`: the run's age when they begin."""

    def __init__(self, out: TextIO | None = None, now_s: Callable[[], float] = time.monotonic, already_s: float = 0.0) -> None:
        self._out = out if out is not None else sys.stderr
        self._over = self._out.isatty()
        self._now_s = now_s
        self._started_s = now_s() - max(0.0, already_s)
        self._next_s = -math.inf
        self._phase = ""
        self._drawn = False
        self._missing_told = ""  # the reasons that stand above in full
        self._told_length = 0  # of which attempt it was said that LoadGen makes it longer
        self._issuing = (0, 0.0)  # attempt, its clock when it was last seen issuing

    def snapshot(self, fleet: FleetSnapshot) -> None:
        if fleet.attempt and fleet.attempt != self._told_length and (longer := longer_than_asked(fleet)):
            self._told_length = fleet.attempt
            self.say(longer)
        if fleet.attempt_state not in _AFTER_LOAD:
            self._issuing = (fleet.attempt, fleet.elapsed_s)
        issued_s = self._issuing[1] if self._issuing[0] == fleet.attempt else None
        now_s = self._now_s()
        if now_s < self._next_s and fleet.phase == self._phase:
            return
        self._phase = fleet.phase
        self._next_s = now_s + (EVERY_ON_TERMINAL_S if self._over else EVERY_S)
        at = f"{clock(now_s - self._started_s):>5} "
        if self._over:
            width = max(20, shutil.get_terminal_size().columns - 1)
            self._out.write(f"\r\x1b[K{at}{progress_line(fleet, width - len(at), issued_s)}")
            self._drawn = True
        else:
            brief = fleet.missing_total > 0 and self._missing_are_told(fleet)
            self._out.write(f"{at}{progress_line(fleet, None, issued_s, brief=brief)}\n")
        self._out.flush()

    def _missing_are_told(self, fleet: FleetSnapshot) -> bool:
        """Whether the last line that said why replicas are missing said the same, but for its numbers (seconds, rounds)."""
        reasons = re.sub(r"\d+", "", _missing(fleet, _REASONS))
        told, self._missing_told = reasons == self._missing_told, reasons
        return told

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
                self.say(in_words(entry))
        for (what, after), count in told.items():
            if count > _ALIKE and not what.startswith("act."):
                self.say(f"{what}{f' → {after}' if after else ''}: {count - _ALIKE} more")

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


#: What is shortened first. Parts with more than one shorter form come more than once.
_SHORTEN = (
    "phase", "missing", "again", "slow", "counts", "held", "rates", "limits", "load", "counts", "slow", "ready",
    "missing", "again", "held", "rates", "phase", "ready", "rates", "missing", "load",
)  # fmt: skip


def progress_line(fleet: FleetSnapshot, width: int | None = None, issued_s: float | None = None, *, brief: bool = False) -> str:
    """One line about the whole run; `width` None: as long as it takes. `issued_s`: how long the issuing took, where known.
    `brief`: how many are missing, not why."""
    total = sum(fleet.counts.values())
    ready = fleet.counts.get(READY, 0)
    all_ready = ready == total
    parts: dict[str, tuple[str, ...]] = {
        "phase": (f"{fleet.phase:<11}", fleet.phase, ""),
        "ready": (f"{ready}/{total} ready", *([] if all_ready else [f"{ready}/{total}"]), ""),
    }
    if fleet.missing_total:
        count = f"{fleet.missing_total} missing"
        parts["missing"] = (count,) if brief else (_missing(fleet, _REASONS), _missing(fleet, 1), count)
    elif fleet.counts.get(LOST, 0):
        parts["missing"] = (f"{fleet.counts[LOST]} lost", "")
    if not fleet.attempt or fleet.attempt_state in _NO_LOAD:
        parts["phase"] = (f"{fleet.phase:<11}", fleet.phase)
    elif fleet.attempt_state in _BEFORE_LOAD or fleet.attempt_state.startswith(WARMING_PAIRS):
        parts["load"] = (f"{_kind(fleet)} #{fleet.attempt}: {fleet.attempt_state}",)
    else:
        parts |= _load(fleet, issued_s)
    if fleet.slow or fleet.slow_nodes:
        slow = [*fleet.slow_nodes, *fleet.slow]
        parts["slow"] = ("slow " + ", ".join(slow[:3]), f"{len(slow)} slow", "")
    elif fleet.fleet_slow:
        parts["slow"] = ("the whole fleet is slow", "fleet slow", "")
    return fitted(parts, _SHORTEN, width)


def role_line(view: RoleView) -> str:
    """`decode: 4/4 ready, 214 in flight, 0 waiting, 12.1 samples/s, 16,310 tok/s out, KV transfer p50 2.8 ms`"""
    way = "in" if view.role == "prefill" else "out"
    text = f"{view.role}: {view.ready}/{view.replicas} ready, {view.outstanding:,d} in flight, {view.waiting:,d} waiting, "
    text += f"{number(view.samples_per_s)} samples/s, {number(view.tokens_per_s, 0)} tok/s {way}"
    return text if math.isnan(view.transfer_p50_ms) else f"{text}, KV transfer p50 {number(view.transfer_p50_ms)} ms"


def _missing(fleet: FleetSnapshot, shown: int) -> str:
    """The first replicas that are missing, of those with the same reason (a pod has many replicas) only the first."""
    first: dict[str, str] = {}
    for line in fleet.missing:
        first.setdefault(line.partition(": ")[2], line)
    named = list(first.values())[:shown]
    more = fleet.missing_total - len(named)
    return f"missing {'; '.join(named)}{f' and {more} more' if more else ''}"


def _load(fleet: FleetSnapshot, issued_s: float | None) -> dict[str, tuple[str, ...]]:
    ending = fleet.attempt_state in _AFTER_LOAD
    of_queries = f" of {fleet.min_queries:,d}" if fleet.min_queries > 1 else ""
    which = f"{_kind(fleet)} #{fleet.attempt}"
    if ending:
        load: tuple[str, ...] = (which if issued_s is None else f"{which} issued in {clock(issued_s)}", which, "")
    else:
        planned = clock(planned_s(fleet)) if fleet.duration_s else ""
        of, over = (f" of {planned}", f"/{planned}") if planned else ("", "")
        load = (f"{which} {clock(fleet.elapsed_s)}{of}", f"{clock(fleet.elapsed_s)}{over}")
    done = f"done {fleet.completed:,d}"
    completed = f"{number(fleet.completed_qps)} q/s"
    rates = f"{number(fleet.offered_qps)} → {completed} (target {fleet.target_qps:g})"
    parts: dict[str, tuple[str, ...]] = {
        "load": load,
        "counts": (f"{done} of {fleet.issued:,d}" if ending else f"issued {fleet.issued:,d}{of_queries}, {done}", done, ""),
        "rates": ("",) if ending else (rates, f"{number(fleet.completed_qps)} of {fleet.target_qps:g} q/s", completed, ""),
        "limits": _limits(fleet),
    }
    if fleet.redispatched:
        parts["again"] = (f"{fleet.redispatched:,d} dispatched again", f"{fleet.redispatched:,d} again", "")
    if fleet.backlog:
        parts["held"] = (f"{fleet.backlog:,d} held in the head", f"{fleet.backlog:,d} held", "")
    if fleet.paused:
        parts["paused"] = ("PAUSED",)
    if ending:
        parts["eta"] = (_end(fleet),)
    elif (left_s := eta_s(fleet)) is not None:
        parts["eta"] = (f"ETA {clock(left_s)}",)
    return parts


def _limits(fleet: FleetSnapshot) -> tuple[str, ...]:
    watched = (("TTFT", fleet.ttft), ("TPOT", fleet.tpot))
    return "  ".join(_against(name, sla, " of ") for name, sla in watched), "  ".join(
        _against(name, sla, "/") for name, sla in watched
    )


def _against(name: str, sla: SlaView, of: str) -> str:
    """The whole attempt's p99 against its limit, `!` when over; while there are too few samples for a p99, how many."""
    if not math.isfinite(sla.whole.p99):
        return f"{name} p99 – (n={sla.whole.n:,d})"
    limit = f"{of}{sla.limit_ms:g}" if sla.limit_ms is not None else ""
    over = "!" if sla.limit_ms is not None and sla.whole.p99 > sla.limit_ms else ""
    return f"{name} p99 {number(sla.whole.p99)}{over}{limit} ms"


def _kind(fleet: FleetSnapshot) -> str:
    return fleet.scenario if fleet.attempt_kind == "performance" else fleet.attempt_kind


def _end(fleet: FleetSnapshot) -> str:
    if fleet.attempt_state == "logging" and not fleet.in_flight:
        return "writing logs"
    drained = f" for {clock(_draining_s(fleet))}" if _draining_s(fleet) >= 1 else ""
    return f"{fleet.attempt_state}{drained}, {fleet.in_flight:,d} in flight"


def _draining_s(fleet: FleetSnapshot) -> float:
    """The head enters DRAINING when everything is issued; the attempt's own clock goes on."""
    return max(0.0, fleet.unix - fleet.phase_since_unix) if fleet.phase == DRAINING else 0.0


def planned_s(fleet: FleetSnapshot) -> float:
    """How long the load takes: the minimum duration, or LoadGen's minimum of queries at the target rate."""
    if fleet.scenario != "Server" or fleet.target_qps <= 0 or fleet.attempt_kind == "explore":
        return fleet.duration_s
    return max(fleet.duration_s, fleet.min_queries / fleet.target_qps)


def eta_s(fleet: FleetSnapshot) -> float | None:
    """Until minimum duration and minimum queries are both met; None where no end is in sight."""
    return max(0.0, planned_s(fleet) - fleet.elapsed_s) if fleet.duration_s else None


def longer_than_asked(fleet: FleetSnapshot) -> str:
    """Said once of an attempt whose minimum of queries outlasts load.duration_s; empty otherwise, or not known yet.

    Arrivals are random: n of them take n / rate seconds give or take sqrt(n) / rate, which is no reason to say anything.
    """
    n, rate_qps, asked_s = fleet.min_queries, fleet.target_qps, fleet.duration_s
    if planned_s(fleet) == asked_s or planned_s(fleet) <= asked_s + 1.0 + 4.0 * math.sqrt(n) / rate_qps:
        return ""
    return (
        f"{n:,d} queries at {rate_qps:g} QPS: at least {clock(planned_s(fleet))} "
        f"(load.duration_s asks for {clock(asked_s)}, LoadGen's minimum of queries for more)"
    )
