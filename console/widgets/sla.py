"""The numbers that decide: tail latencies against their limits, and the load that produces them.

Every figure says its window ("60 s" or "whole"). The word after a gauge (OK, NEAR, OVER) and its glyph say what the
colour says. A percentile with too few samples is a dash, with how many there are.
"""

from __future__ import annotations

import math
import textwrap
from typing import Final

import numpy as np
from rich.style import Style
from textual.strip import Strip

from console.store.fleet import READY_CODE, STOPPED_CODE, FleetStore
from console.widgets import fmt
from console.widgets.paint import GLYPHS, Paint, Painted, Run, fitting, spread, strip_of
from harness.wire.control import FleetSnapshot, SlaView

NEAR_FRACTION: Final = 0.9


def judged(value_ms: float, limit_ms: float | None, ink: Paint) -> tuple[str, Style]:
    if limit_ms is None or math.isnan(value_ms):
        return "", ink.muted
    if value_ms > limit_ms:
        return "× OVER", ink.bad
    return ("▲ NEAR", ink.warn) if value_ms > NEAR_FRACTION * limit_ms else ("● OK", ink.good)


class Gauge:
    """One latency as one line: last window with its bar, then the whole attempt."""

    def __init__(self, name: str) -> None:
        self.name = name

    def runs(self, view: SlaView, window_s: float, width: int, ink: Paint) -> list[Run]:
        now_ms, whole_ms, limit_ms = view.window.p99, view.whole.p99, view.limit_ms
        word, style = judged(now_ms, limit_ms, ink)
        left: list[Run] = [(f"{self.name} p99 ", ink.muted), (f"{window_s:.0f} s ", ink.faint)]
        if math.isnan(now_ms):
            left += [(f"{fmt.UNKNOWN:>7}", ink.faint), (f"  too few samples yet ({fmt.count(view.window.n)})", ink.muted)]
            return left
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
        return [*left, ("▕", ink.rule), (fmt.bar(now_ms / limit_ms, room), style), ("▏", ink.rule), *tail]


class SlaPane(Painted):
    def __init__(self, store: FleetStore, *, id: str | None = None) -> None:
        super().__init__(3, id=id)
        self._store = store
        self.border_title = "SLA"

    def draw(self, width: int, height: int) -> list[Strip]:
        snap, ink = self._store.snapshot, self.inks
        if snap is None:
            return [strip_of([("no numbers yet", ink.muted)], width)]
        spec = self._store.spec
        window_s = spec.metrics.window_s if spec else 60.0
        lines = [
            strip_of(Gauge("TTFT").runs(snap.ttft, window_s, width, ink), width),
            strip_of(Gauge("TPOT").runs(snap.tpot, window_s, width, ink), width),
        ]
        return [*lines, strip_of(self._outlook(snap, width), width)][:height]

    def _outlook(self, snap: FleetSnapshot, width: int) -> list[Run]:
        ink, view, explore = self.inks, snap.ttft, snap.attempt_kind == "explore"
        if self._store.ended or not snap.attempt:
            return [("no attempt is running", ink.muted)]
        if view.needed > 0:
            if explore:
                return [("exploration: no verdict at stake", ink.muted)]
            return [("verdict possible after ", ink.muted), (fmt.count(view.needed), ink.plain), (" more samples", ink.muted)]
        groups: list[list[Run]] = []
        if not math.isnan(view.projected_ms) and snap.duration_s > 0 and not self._store.ending:
            low, high = fmt.millis(view.projected_low_ms), fmt.millis(view.projected_high_ms)
            span = f" [{low.removesuffix(' s') if high.endswith(' s') else low} … {high}]   "
            groups.append([("end of run ≈ ", ink.muted), (fmt.millis(view.projected_ms), ink.plain), (span, ink.muted)])
        if view.limit_ms is not None and view.over_allowed > 0:
            style = ink.plain if view.over <= NEAR_FRACTION * view.over_allowed else ink.warn
            style = ink.bad if view.over > view.over_allowed else style
            allowed = f" of {fmt.big(view.over_allowed)} allowed"
            groups.append([("over limit ", ink.muted), (fmt.big(view.over), style), (allowed, ink.muted)])
        return fitting(groups, width)


class LoadPane(Painted):
    def __init__(self, store: FleetStore, *, id: str | None = None) -> None:
        super().__init__(3, id=id)
        self._store = store
        self.border_title = "Load"

    def draw(self, width: int, height: int) -> list[Strip]:
        snap, ink = self._store.snapshot, self.inks
        if snap is None:
            return [strip_of([], width)] * height
        if height == 1:
            return [strip_of(self._one_line(snap), width)]
        slope_style = ink.warn if snap.backlog_slope > 1 and snap.backlog > 0 else ink.muted
        rates: list[Run] = [
            ("target ", ink.muted), (fmt.rate(snap.target_qps), ink.bold), ("  offered ", ink.muted),
            (fmt.rate(snap.offered_qps), ink.plain), ("  done ", ink.muted), (fmt.rate(snap.completed_qps), ink.plain),
            (" qps", ink.muted),
        ]  # fmt: skip
        flow = fitting(
            [
                [("in flight ", ink.muted), (fmt.count(snap.in_flight), ink.plain)],
                [
                    ("  backlog ", ink.muted),
                    (fmt.count(snap.backlog), ink.plain),
                    (f" ({fmt.signed(snap.backlog_slope, 0)}/s)", slope_style),
                ],
                [("  lag p99 ", ink.muted), (fmt.millis(snap.issue_lag_p99_ms), ink.plain)],
            ],
            width,
        )
        number, _, unit = fmt.big(snap.tokens_per_s).partition(" ")
        tokens: list[Run] = [(number, ink.bold), (f" {unit}tok/s", ink.muted)]
        if snap.redispatched:
            tokens += [("  re-dispatched ", ink.muted), (fmt.count(snap.redispatched), ink.plain)]
        if snap.failed:
            tokens += [("  failed ", ink.muted), (fmt.count(snap.failed), ink.bad)]
        if snap.acts:
            tokens += [(f"  ACTS {snap.acts}", ink.warn)]
        return [strip_of(line, width) for line in (rates, flow, tokens)]

    def _one_line(self, snap: FleetSnapshot) -> list[Run]:
        ink, states = self.inks, self._store.count_states()
        number, _, unit = fmt.big(snap.tokens_per_s).partition(" ")
        runs: list[Run] = [
            ("QPS ", ink.muted),
            (fmt.rate(snap.target_qps), ink.bold),
            ("→", ink.faint),
            (fmt.rate(snap.completed_qps), ink.plain),
            ("  backlog ", ink.muted),
            (f"{fmt.count(snap.backlog)} ({fmt.signed(snap.backlog_slope, 0)}/s)", ink.plain),
            (f"  {number}", ink.plain),
            (f" {unit}tok/s ", ink.muted),
        ]
        for name, letter in (("READY", "R"), ("SLOW", "S"), ("EVICTED", "E"), ("LOST", "L")):
            if states.get(name):
                runs.append((f" {states[name]}{letter}", ink.states[name]))
        return [*runs, (f"  ACTS {snap.acts}", ink.warn)] if snap.acts else runs


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
        note = snap.straggler_note if snap is not None and not store.ended else ""
        why = [strip_of([(text, ink.muted)], width) for text in textwrap.wrap(note, width)[:2]]
        faults = self._faults()
        lines += [self._fault(position, width) for position in faults[: max(0, height - len(lines) - len(why) - 1)]]
        if snap is not None and not store.ended:
            lines += [strip_of([(f"▲ {node}: its replicas are slow together", ink.warn)], width) for node in snap.slow_nodes]
        if not why and not faults and not (snap and (snap.slow_nodes or snap.fleet_slow)) and self._judging():
            why = [strip_of([("no straggler, nobody missing", ink.muted)], width)]
        lines = [*lines[: height - len(why)], *why]
        return lines[:height] + [Strip.blank(width)] * (height - len(lines))

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

    def _faults(self) -> list[int]:
        store = self._store
        flagged = [store.index[slot] for slot in (store.snapshot.slow if store.snapshot else []) if slot in store.index]
        slow = [at for at in flagged if int(store.state[at]) != STOPPED_CODE]
        beyond = [int(at) for at in np.flatnonzero(store.outliers() & (store.state == READY_CODE))]
        slow += sorted(beyond, key=lambda at: -float(store.floats("z")[at]))
        gone = [at for at in range(len(store.slots)) if store.state_name(at) in ("LOST", "REJECTED", "SUSPECT", "EVICTED")]
        return slow + [at for at in gone if at not in slow]

    def _fault(self, at: int, width: int) -> Strip:
        store, ink = self._store, self.inks
        name = store.state_name(at)
        word, style = ("outlier", ink.states["SLOW"]) if name == "READY" else (name, ink.states[name] + ink.bold)
        runs: list[Run] = [(f"{word:<8}", style), (f" {store.slots[at].slot:<13}", ink.plain)]
        age = "" if name == "READY" else fmt.age(store.age_s(at))
        if name in ("SLOW", "READY"):
            ratio, z = float(store.floats("ratio")[at]), float(store.floats("z")[at])
            runs += [
                ("" if math.isnan(ratio) else f" {ratio:5.2f}x", ink.plain),
                ("" if math.isnan(z) else f"  z {fmt.signed(z).lstrip('+'):>4}", ink.muted),
            ]
        else:
            runs += [(" " + fmt.clause(store.slots[at].reason or "", max(0, width - 28)), ink.muted)]
        return strip_of(spread(runs, [(age, ink.muted)], width), width)
