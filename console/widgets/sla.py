"""The numbers that decide: tail latencies against their limits, and the load that produces them.

Every figure says its window ("60 s" or "whole"). The word after a gauge (OK, NEAR, OVER) and its glyph say what the
colour says. A percentile with too few samples is a dash, with how many there are.
"""

from __future__ import annotations

import math
import textwrap
from typing import Final

from rich.style import Style
from textual.strip import Strip

from console.store import tables
from console.store.causes import likely_cause
from console.store.fleet import FleetStore
from console.widgets import fmt
from console.widgets.paint import GLYPHS, Paint, Painted, Run, fitting, size_of, spread, strip_of
from console.widgets.pod_cells import why_gone
from harness.metrics.kernels import summary
from harness.wire.control import FleetSnapshot, SlaView

_ODD: Final = "kernel~odd"  # as a filter: who runs another MoE kernel or table than most
P99_NEEDS: Final = 1000  # samples before a p99 is told (Percentiles: 10 / (1 - q))
_WORDS: Final = {"over": "× OVER", "near": "▲ NEAR", "ok": "● OK", "": ""}


def judged(value_ms: float, limit_ms: float | None, ink: Paint) -> tuple[str, Style]:
    is_ = tables.judged(value_ms, limit_ms)
    return _WORDS[is_], {"over": ink.bad, "near": ink.warn, "ok": ink.good, "": ink.muted}[is_]


class Gauge:
    """One latency as one line: last window with its bar, then the whole attempt."""

    def __init__(self, name: str) -> None:
        self.name = name

    def runs(self, view: SlaView, window_s: float, width: int, ink: Paint) -> list[Run]:
        now_ms, whole_ms, limit_ms = view.window.p99, view.whole.p99, view.limit_ms
        word, style = judged(now_ms, limit_ms, ink)
        left: list[Run] = [(f"{self.name} p99 ", ink.muted), (f"{window_s:.0f} s ", ink.faint)]
        if math.isnan(now_ms):
            return [*left, *self._early(view, width - size_of(left), ink)]
        left.append((f"{fmt.millis(now_ms):>7} ", ink.bold))
        if limit_ms is None:
            return [*left, ("no limit", ink.muted), ("   whole ", ink.muted), (fmt.millis(whole_ms), ink.plain)]
        tail: list[Run] = [
            (f"{fmt.percent(now_ms / limit_ms):>4}", ink.plain),
            (f" of {fmt.millis(limit_ms)} ".ljust(12), ink.muted),
            (f"{word:<6}", style),
            ("  whole ", ink.muted),
            (f"{fmt.millis(whole_ms):>7}", judged(whole_ms, limit_ms, ink)[1]),
        ]
        used = sum(len(text) for text, _ in left) + sum(len(text) for text, _ in tail)
        room = max(4, min(40, width - used - 2))
        full, trough = fmt.gauge(now_ms / limit_ms, room)
        return [*left, (full, style), (trough, ink.rule), *tail]

    @staticmethod
    def _early(view: SlaView, room: int, ink: Paint) -> list[Run]:
        """`–  755 of 1,000 samples for a p99 · p50 21 ms · limit 500 ms`"""
        groups: list[list[Run]] = [
            [
                (f"{fmt.UNKNOWN:>2}  ", ink.faint),
                (fmt.count(view.window.n), ink.plain),
                (f" of {fmt.count(P99_NEEDS)}", ink.muted),
            ],
            [(" samples for a p99", ink.muted)],
        ]
        if not math.isnan(view.window.p50):
            groups.append([(" · p50 ", ink.muted), (fmt.millis(view.window.p50), ink.plain)])
        if view.limit_ms is not None:
            groups.append([(f" · limit {fmt.millis(view.limit_ms)}", ink.muted)])
        return fitting(groups, room)


class SlaPane(Painted):
    """Both gauges, then what each of them is heading for; where a line is short, only TTFT's."""

    def __init__(self, store: FleetStore, *, id: str | None = None) -> None:
        super().__init__(4, id=id)
        self._store = store
        self.border_title = "SLA"

    def draw(self, width: int, height: int) -> list[Strip]:
        snap, ink = self._store.snapshot, self.inks
        if snap is None:
            return [strip_of([("no numbers yet", ink.muted)], width)]
        window_s = tables.window_s(self._store)
        lines = [
            strip_of(Gauge("TTFT").runs(snap.ttft, window_s, width, ink), width),
            strip_of(Gauge("TPOT").runs(snap.tpot, window_s, width, ink), width),
        ]
        lines.append(strip_of(self._outlook("TTFT", snap.ttft, snap, width), width))
        once = snap.attempt_kind in ("accuracy", "compliance") or (snap.attempt_kind == "explore" and snap.ttft.needed > 0)
        if snap.attempt and not self._store.ended and not once:
            lines.append(strip_of(self._outlook("TPOT", snap.tpot, snap, width), width))
        return lines

    def _outlook(self, name: str, view: SlaView, snap: FleetSnapshot, width: int) -> list[Run]:
        ink, explore = self.inks, snap.attempt_kind == "explore"
        if self._store.ended or not snap.attempt:
            return [("no attempt is running", ink.muted)]
        if snap.attempt_kind in ("accuracy", "compliance"):
            return [(f"{snap.attempt_kind}: limits are not judged", ink.muted)]
        if view.needed > 0:
            if explore:
                return [("exploration: no verdict at stake", ink.muted)]
            first: Run = (f"{name} verdict possible after ", ink.muted)
            return [first, (fmt.count(view.needed), ink.plain), (" more samples", ink.muted)]
        groups: list[list[Run]] = [[(f"{name} ", ink.muted)]]
        if not math.isnan(view.projected_ms) and snap.duration_s > 0 and not self._store.ending:
            low, high = fmt.millis(view.projected_low_ms), fmt.millis(view.projected_high_ms)
            if low.split(" ")[-1] == high.split(" ")[-1]:
                low = low.split(" ")[0]  # the unit once
            span = f" [{low} … {high}]  "
            groups.append([("at end ≈ ", ink.muted), (fmt.millis(view.projected_ms), ink.plain), (span, ink.muted)])
        if view.limit_ms is not None and view.over_allowed > 0:
            style = ink.plain if view.over <= tables.NEAR_FRACTION * view.over_allowed else ink.warn
            style = ink.bad if view.over > view.over_allowed else style
            allowed = f" of {fmt.big(view.over_allowed)} allowed"
            groups.append([("over ", ink.muted), (fmt.big(view.over), style), (allowed, ink.muted)])
        return fitting(groups, width)


class LoadPane(Painted):
    """What is asked for, what is issued, what comes back; and what waits. Rates are of the last ten seconds."""

    def __init__(self, store: FleetStore, *, id: str | None = None) -> None:
        super().__init__(4, id=id)
        self._store = store
        self.border_title = "Load"

    def draw(self, width: int, height: int) -> list[Strip]:
        snap, ink = self._store.snapshot, self.inks
        if snap is None:
            return [strip_of([], width)] * height
        if height == 1:
            line = self._one_line(snap)
            return [strip_of(line if size_of(line) <= width else self._one_line(snap, slope=False), width)]
        slope_style = ink.warn if snap.backlog_slope > 1 and snap.backlog > 0 else ink.muted
        rates: list[Run] = [
            ("target ", ink.muted), *self._target(snap), ("  offered ", ink.muted), (fmt.rate(snap.offered_qps), ink.plain),
            ("  done ", ink.muted), (fmt.rate(snap.completed_qps), ink.plain), (" qps", ink.muted),
        ]  # fmt: skip
        issue = [
            [("scheduled ", ink.muted), (fmt.rate(snap.scheduled_qps), ink.plain)],
            [("  issue lag p99 ", ink.muted), (fmt.millis(snap.issue_lag_p99_ms), ink.plain)],
            [("  p50 ", ink.muted), (fmt.millis(snap.issue_lag_p50_ms), ink.plain)],
        ]
        flow = [
            [("in flight ", ink.muted), (fmt.count(snap.in_flight), ink.plain)],
            [
                ("  backlog ", ink.muted), (fmt.count(snap.backlog), ink.plain),
                (f" ({fmt.signed(snap.backlog_slope, 0)}/s)", slope_style),
            ],
        ]  # fmt: skip
        number, _, unit = fmt.big(snap.tokens_per_s).partition(" ")
        tokens: list[Run] = [(number, ink.bold), (f" {unit}tok/s", ink.muted)]
        if snap.redispatched:
            tokens += [("  re-dispatched ", ink.muted), (fmt.count(snap.redispatched), ink.plain)]
        if snap.failed:
            tokens += [("  failed ", ink.muted), (fmt.count(snap.failed), ink.bad)]
        if snap.acts:
            tokens += [(f"  ACTS {snap.acts}", ink.warn)]
        lines = [rates, fitting(issue, width), fitting(flow, width), tokens]
        return [strip_of(line, width) for line in lines][:height]

    def _target(self, snap: FleetSnapshot) -> list[Run]:
        """With where a ramp is going and how long it still takes."""
        ink = self.inks
        now: list[Run] = [(fmt.rate(snap.target_qps), ink.bold)]
        if snap.ramp_to_qps > 0:
            now.append((f"→{fmt.rate(snap.ramp_to_qps)} in {fmt.age(snap.ramp_left_s)}", ink.warn))
        return now

    def _one_line(self, snap: FleetSnapshot, slope: bool = True) -> list[Run]:
        ink, states = self.inks, self._store.count_states()
        number, _, unit = fmt.big(snap.tokens_per_s).partition(" ")
        runs: list[Run] = [
            ("QPS ", ink.muted),
            (fmt.rate(snap.target_qps), ink.bold),
            ("→", ink.faint),
            (fmt.rate(snap.completed_qps), ink.plain),
            ("  backlog ", ink.muted),
            (fmt.count(snap.backlog) + (f" ({fmt.signed(snap.backlog_slope, 0)}/s)" if slope else ""), ink.plain),
            (f"  {number}", ink.plain),
            (f" {unit}tok/s ", ink.muted),
        ]
        for name, letter in (("READY", "R"), ("SLOW", "S"), ("EVICTED", "E"), ("LOST", "L")):
            if states.get(name):
                runs.append((f" {states[name]}{letter}", ink.states[name]))
        if snap.acts:
            runs.append((f"  ACTS {snap.acts}", ink.warn))
        if odd := len(self._store.odd_kernels):  # where this line is all there is, no pane names them
            runs.append((f"  ▲ {fmt.count(odd)} odd MoE", ink.warn))
        return runs


class StragglerPane(Painted):
    """Who is slow or about to be called so, who is gone, and whether it is one replica, one node or the whole fleet; while
    nobody is judged, why."""

    def __init__(self, store: FleetStore, *, id: str | None = None) -> None:
        super().__init__(9, id=id)
        self._store = store
        self.border_title = "Replicas"

    def draw(self, width: int, height: int) -> list[Strip]:
        store, snap, ink = self._store, self._store.snapshot, self.inks
        lines = self._counts(width)
        median = store.median("tokens_s")
        if not math.isnan(median):
            policy: list[Run] = [("policy ", ink.muted), (snap.policy, ink.plain)] if snap else []
            left: list[Run] = [("median ", ink.muted), (fmt.count(median), ink.plain), (" tok/s", ink.muted)]
            lines.append(strip_of(spread(left, policy, width), width))
        if snap is not None and snap.fleet_slow:
            lines.append(strip_of([("▲ the whole fleet is slow: no replica is singled out", ink.warn)], width))
        lines += [strip_of(runs, width) for runs in self._odd_kernels(width)]
        note = snap.straggler_note if snap is not None and not store.ended else ""
        why = [strip_of([(text, ink.muted)], width) for text in textwrap.wrap(note, width)[:2]]
        faults = tables.faults(store)
        lines += [self._fault(position, width) for position in faults[: max(0, height - len(lines) - len(why) - 1)]]
        if snap is not None and not store.ended:
            lines += [strip_of([(f"▲ {node}: its replicas are slow together", ink.warn)], width) for node in snap.slow_nodes]
        if not why and not faults and not (snap and (snap.slow_nodes or snap.fleet_slow)) and self._judging():
            why = [strip_of([("no straggler, nobody missing", ink.muted)], width)]
        return [*lines[: height - len(why)], *why]

    def _odd_kernels(self, width: int) -> list[list[Run]]:
        """The only one and in what it differs; of more a line for each node class if that fits, else how many. The filter
        shows them. Where none is usual: the two largest camps."""
        ink, odd = self.inks, self._store.odd_kernels
        split: list[list[Run]] = [[(fmt.clip(f"▲ {line}", width), ink.warn)] for line in self._store.split_kernels]
        if len(odd) == 1:
            (one,) = odd.values()
            return [[(f"▲ {one.slot}: {fmt.clip(one.cause, max(8, width - len(one.slot) - 4))}", ink.warn)], *split]
        told = list(summary(odd))
        if any(size_of([(f"▲ {line}", ink.warn)]) > width for line in told):
            told = [f"{fmt.count(len(odd))} odd MoE kernels or tables"]
        return [*(fitting([[(f"▲ {line}", ink.warn)], [(f": / {_ODD}", ink.muted)]], width) for line in told), *split]

    def _judging(self) -> bool:
        """Load runs and its replicas are compared: only then is their silence good news."""
        snap = self._store.snapshot
        return snap is not None and snap.phase in ("MEASURING", "DRAINING") and not self._store.ended

    def _counts(self, width: int) -> list[Strip]:
        """How many replicas are in which state, on as many lines as that takes."""
        store, ink = self._store, self.inks
        states = store.count_states()
        lines: list[list[Run]] = [[(f"{fmt.count(len(store.slots))} ", ink.bold)]]
        for name in sorted(states, key=lambda state: -states[state]):
            text = f" {GLYPHS[name]} {states[name]} {name}"
            if sum(len(piece) for piece, _ in lines[-1]) + len(text) > width:
                lines.append([("    ", ink.plain)])
            lines[-1].append((text + " ", ink.states[name]))
        return [strip_of(line, width) for line in lines]

    def _fault(self, at: int, width: int) -> Strip:
        store, ink = self._store, self.inks
        name = store.state_name(at)
        word, style = ("outlier", ink.states["SLOW"]) if name == "READY" else (name, ink.states[name] + ink.bold)
        runs: list[Run] = [(f"{word:<8}", style), (f" {store.slots[at].slot:<13}", ink.plain)]
        age = "" if name == "READY" else fmt.age(store.age_s(at))
        if name in ("SLOW", "READY"):
            ratio, z = float(store.floats("ratio")[at]), float(store.floats("z")[at])
            cause = likely_cause(store, at)
            groups: list[list[Run]] = [
                [("" if math.isnan(ratio) else f" {ratio:5.2f}x", ink.plain)],
                [(f"  {cause}", ink.warn)] if cause else [],
                [("" if math.isnan(z) else f"  z {fmt.signed(z).lstrip('+'):>4}", ink.muted)],
            ]
            runs += fitting(groups, width - size_of(runs) - len(age) - 1)
        else:
            pod = why_gone(store, at, name) if store.cluster.view is not None else ""
            runs += [(" " + fmt.clause(pod or store.slots[at].reason or "", max(0, width - 28)), ink.muted)]
        return strip_of(spread(runs, [(age, ink.muted)], width), width)
