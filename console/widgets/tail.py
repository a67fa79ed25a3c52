"""The SLA screen's text panes: what is left of the budget, percentiles, the parts of TTFT, and whose samples are late."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from textual.strip import Strip

from console.store import tables
from console.store.fleet import FleetStore
from console.store.latency import QUANTILES, Metric, Span, Tail, latency, over_counts, samples, tail_of, tail_shares
from console.widgets import fmt
from console.widgets.histogram import percent
from console.widgets.paint import Painted, Run, fitting, size_of, strip_of
from console.widgets.sla import judged
from harness.wire.control import SlaView
from harness.wire.inquiry import LatencyDetail, SlaDetail

NAMES: Final[dict[Metric, str]] = {"ttft": "TTFT", "tpot": "TPOT"}


@dataclass(slots=True)
class SlaChoice:
    """What the screen shows: the head's last answer, and what the operator chose to see of it."""

    detail: SlaDetail | None = None
    heard_s: float = math.nan
    missing: str = ""  # why there is no answer
    span: Span = "window"
    metric: Metric = "ttft"
    by_node: bool = False

    def span_text(self, store: FleetStore) -> str:
        return "whole attempt" if self.span == "whole" else f"last {self.window_s(store):.0f} s"

    def window_s(self, store: FleetStore) -> float:
        return self.detail.window_s if self.detail is not None else tables.window_s(store)


# --- budget ------------------------------------------------------------------------------------------------


class BudgetPane(Painted):
    """A line for each limit: samples over it against what early stopping accepts, and where the end is heading."""

    def __init__(self, store: FleetStore, note: Callable[[], tuple[str, bool]], *, id: str | None = None) -> None:
        super().__init__(3, id=id)
        self._store, self._note = store, note

    def draw(self, width: int, height: int) -> list[Strip]:
        store, ink, snap = self._store, self.inks, self._store.snapshot
        self.entitle("Over the limit, of what early stopping allows · p99 expected at the end")
        lines = []
        if snap is None or not snap.attempt or store.ended:
            lines.append(strip_of([("no attempt is running: nothing is left to spend", ink.muted)], width))
        elif snap.attempt_kind == "explore":
            lines.append(strip_of([("exploration: no verdict at stake", ink.muted)], width))
        elif snap.attempt_kind in ("accuracy", "compliance"):
            lines.append(strip_of([(f"{snap.attempt_kind}: limits are not judged", ink.muted)], width))
        else:
            lines += [strip_of(self._line(name, view, width), width) for name, view in (("TTFT", snap.ttft), ("TPOT", snap.tpot))]
        text, urgent = self._note()
        told = [strip_of([(part, ink.warn if urgent else ink.faint)], width) for part in textwrap.wrap(text, max(10, width))]
        self.set_lines(max(3, len(lines) + len(told)))
        return [*lines, *told]

    def _line(self, name: str, view: SlaView, width: int) -> list[Run]:
        ink = self.inks
        head: list[Run] = [(f"{name}  ", ink.bold)]
        if view.limit_ms is None:
            return [*head, ("no limit: nothing to be over", ink.muted)]
        if view.needed > 0:
            more = f"{fmt.count(view.needed)} more samples before a verdict is possible"
            return [*head, (more, ink.muted)]
        used = view.over / view.over_allowed if view.over_allowed > 0 else math.nan
        glyph, style = ("×", ink.bad) if used > 1 else ("▲", ink.warn) if used > tables.NEAR_FRACTION else ("●", ink.good)
        left = view.over_allowed - view.over
        word = f"{fmt.big(left)} left" if left >= 0 else f"{fmt.big(-left)} too many"
        over: list[Run] = [("over ", ink.muted), (f"{fmt.big(view.over):>6}", ink.plain), (" of ", ink.muted)]
        full, trough = fmt.gauge(used, 24)
        bar: list[Run] = [(" ", ink.plain), (full, style), (trough, ink.rule)] if width >= 100 else []
        groups = [head, [*over, (f"{fmt.big(view.over_allowed):<6}", ink.plain)]]
        groups.append([*bar, (f"{fmt.percent(used):>5}  ", style), (f"{glyph} {word:<{12 if width >= 100 else 10}}", style)])
        if not math.isnan(view.projected_ms) and not self._store.ending:
            groups.append(self._outlook(view, "end ≈"))
        return fitting(groups, width)

    def _outlook(self, view: SlaView, words: str) -> list[Run]:
        ink = self.inks
        low, high = fmt.millis(view.projected_low_ms), fmt.millis(view.projected_high_ms)
        span = f" [{low.rpartition(' ')[0] if low[-2:] == high[-2:] else low} … {high}]"
        style = judged(view.projected_high_ms, view.limit_ms, ink)[1]
        return [(f" {words} ", ink.muted), (fmt.millis(view.projected_ms), style), (span, ink.muted)]


_NAME, _VALUE, _SHARE = 6, 7, 6  # columns: name of a quantile, a value, its share of the limit with its mark


# --- percentiles -------------------------------------------------------------------------------------------


class PercentilePane(Painted):
    """p50 … p99.9 of both latencies for both spans, each with its share of the limit. Without a detailed answer, what
    snapshots carry of it (no p95)."""

    def __init__(self, store: FleetStore, choice: SlaChoice, *, id: str | None = None) -> None:
        super().__init__(8, id=id)
        self._store, self._choice = store, choice

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, choice = self.inks, self._choice
        self.entitle("Percentiles and share of the limit")
        spans: tuple[tuple[Span, str], ...] = (("window", f"{choice.window_s(self._store):.0f} s"), ("whole", "whole"))
        told = [(f"{name} {text}", *self._values(metric, span)) for metric, name in NAMES.items() for span, text in spans]
        # Everything ends where the values end; heads and counts that are wider reach into the gutter before them.
        spare = max(0, width - _NAME - len(told) * (_VALUE + _SHARE))
        narrow = min(3, spare // 4)
        gaps = [0, narrow, min(6, spare - 2 * narrow), narrow]
        ends = [_NAME + sum(gaps[: at + 1]) + at * (_VALUE + _SHARE) + _VALUE for at in range(len(told))]
        limits = [fmt.millis(limit_ms) if limit_ms else "none" for _, _, _, limit_ms in told]
        broken = [judged(values.get("p99", math.nan), limit_ms, ink)[1] == ink.bad for _, values, _, limit_ms in told]
        lines = [self._line("", [(head, ink.muted) for head, _, _, _ in told], ends, width)]
        for name in QUANTILES:
            cells = [self._cell(values.get(name, math.nan), limit_ms, name == "p99") for _, values, _, limit_ms in told]
            lines.append(self._line(name, [cell[0] for cell in cells], ends, width, [cell[1] for cell in cells]))
        limited: list[Run] = [(text, ink.bad if bad else ink.plain) for text, bad in zip(limits, broken, strict=True)]
        lines.append(self._line("limit", limited, ends, width))
        lines.append(self._line("n", [(fmt.count(n) if n else fmt.UNKNOWN, ink.muted) for _, _, n, _ in told], ends, width))
        return lines

    def _line(self, name: str, texts: list[Run], ends: list[int], width: int, shares: Sequence[Run] = ()) -> Strip:
        ink = self.inks
        runs: list[Run] = [(name, ink.bold if name == "p99" else ink.muted)]
        for at, (text, style) in enumerate(texts):
            runs += [(" " * (ends[at] - len(text) - size_of(runs)), ink.plain), (text, style), *shares[at : at + 1]]
        return strip_of(runs, width)

    def _cell(self, value_ms: float, limit_ms: float | None, decides: bool) -> tuple[Run, Run]:
        """The value, and its share of the limit with a mark where that is judged."""
        ink = self.inks
        style = ink.bold if decides else ink.plain
        share = f"{fmt.percent(value_ms / limit_ms):>{_SHARE - 1}}" if limit_ms and not math.isnan(value_ms) else ""
        word, colour = judged(value_ms, limit_ms, ink) if decides else ("", ink.muted)
        mark = word[:1] if word and word[0] in "×▲" else " "
        return (fmt.millis(value_ms), ink.faint if math.isnan(value_ms) else style), (share + mark if share else "", colour)

    def _values(self, metric: Metric, span: Span) -> tuple[dict[str, float], int, float | None]:
        detail, snap = self._choice.detail, self._store.snapshot
        if detail is not None:
            view = latency(detail, metric)
            return (view.window_ms if span == "window" else view.whole_ms), samples(view, span), view.limit_ms
        if snap is None or self._store.ended:
            return {}, 0, None
        told: SlaView = snap.ttft if metric == "ttft" else snap.tpot
        known = told.window if span == "window" else told.whole
        values = {"p50": known.p50, "p90": known.p90, "p99": known.p99, "p99.9": known.p99_9}
        return {name: value for name, value in values.items() if not math.isnan(value)}, known.n, told.limit_ms


# --- parts of TTFT -----------------------------------------------------------------------------------------


class PartsPane(Painted):
    def __init__(self, choice: SlaChoice, *, id: str | None = None) -> None:
        super().__init__(8, id=id)
        self._choice = choice

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, detail = self.inks, self._choice.detail
        title = "What TTFT is made of"
        if detail is None or not detail.parts_n:
            self.entitle(title)
            why = self._choice.missing or "not known: a head splits TTFT as samples end, a replay does not"
            return [strip_of([(part, ink.muted)], width) for part in textwrap.wrap(why, width)]
        self.entitle(f"{title} · last {detail.window_s:.0f} s")
        wide = width >= 66  # with the median
        room = max(0, min(24, width - 14 - (4 if wide else 3) * 9 - 8))
        shares = tail_shares(detail.parts)
        most = max((share for share in shares if not math.isnan(share)), default=0.0)
        lines = [strip_of([(self._cells("", "mean", "p50" if wide else None, "p99", "tail"), ink.muted)], width)]
        for part, share in zip(detail.parts, shares, strict=True):
            style = ink.warn if share == most and share > 0.4 else ink.primary
            median = fmt.millis(part.p50_ms) if wide else None
            numbers = self._cells(part.name, fmt.millis(part.mean_ms), median, fmt.millis(part.p99_ms), fmt.millis(part.tail_ms))
            runs: list[Run] = [(numbers[:14], ink.plain), (numbers[14:-9], ink.muted), (numbers[-9:], ink.plain)]
            lines.append(strip_of([*runs, (f"{percent(share):>6} ", style), (fmt.gauge(share, room)[0], style)], width))
        mean_ms, tail_ms = sum(part.mean_ms for part in detail.parts), sum(part.tail_ms for part in detail.parts)
        together = self._cells("together", fmt.millis(mean_ms), "" if wide else None, "", fmt.millis(tail_ms))
        of = f"{fmt.count(detail.parts_n)} samples; tail: the slowest {fmt.count(detail.parts_tail_n)}, mean"
        lines += [strip_of([(text, ink.muted)], width) for text in (together, of)]
        return lines

    @staticmethod
    def _cells(name: str, mean: str, median: str | None, p99: str, tail: str) -> str:
        return f"{name:<14}" + "".join(f"{text:>9}" for text in (mean, median, p99, tail) if text is not None)


FEW: Final = 20  # samples over the limit: with fewer, chance decides whose they are


# --- the tail by replica -----------------------------------------------------------------------------------


class TailPane(Painted):
    """Replicas or nodes by their share of the samples over the limit, beside the share they would have were all alike."""

    def __init__(self, store: FleetStore, choice: SlaChoice, *, id: str | None = None) -> None:
        super().__init__(10, id=id)
        self._store, self._choice = store, choice

    def tail(self) -> tuple[Tail | None, LatencyDetail | None]:
        detail, choice = self._choice.detail, self._choice
        if detail is None:
            return None, None
        view = latency(detail, choice.metric)
        return tail_of(self._store, view, choice.span, by_node=choice.by_node), view

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, choice = self.inks, self._choice
        tail, view = self.tail()
        who = "node" if choice.by_node else "replica"
        limit = "among the slowest 1%" if view is None or view.limit_ms is None else f"over {fmt.millis(view.limit_ms)}"
        self.entitle(f"{NAMES[choice.metric]} samples {limit} by {who} · {choice.span_text(self._store)}")
        if tail is None:
            why = choice.missing or ("the fleet has just changed" if view is not None else "")
            return [strip_of([(part, ink.muted)], width) for part in textwrap.wrap(why, width)]
        if not tail.total:
            return self._none(view, who, limit, width)
        room = max(6, min(40, width - 15 - 7 - 9 - 10 - 8 - (12 if choice.span == "whole" else 0) - 3))
        lines = [strip_of(self._heads(who, room), width)]
        fits = max(1, height - 2)
        peak = tail.rows[0].share
        for row in tail.rows[:fits]:
            standing_out = row.times >= 3 and row.share >= 0.02
            style = ink.warn if standing_out else ink.primary
            runs: list[Run] = [
                (f"{row.name:<15}", ink.bold if standing_out else ink.plain),
                (f"{percent(row.share):>6} ", style),
                (f"{fmt.gauge(row.share / peak, room)[0]:<{room}}", style),
                (f"{fmt.count(row.over):>9}", ink.plain),
                (f"{percent(row.expected):>10}", ink.muted),
                (f"{times(row.times):>8}", style if standing_out else ink.muted),
            ]
            if choice.span == "whole":
                runs.append((f"{percent(row.own_share):>12}", ink.muted))
            lines.append(strip_of(runs, width))
        more = len(tail.rows) - fits
        first = min(5, len(tail.rows))
        told: list[list[Run]] = [
            [(f"first {first}: {percent(tail.share_of_first(first))}", ink.plain), (f" of {fmt.count(tail.total)}", ink.muted)],
            [(f" · {fmt.count(more)} more {who}s with some" if more > 0 else "", ink.muted)],
            [(" · too few to say whose they are" if tail.total < FEW else "", ink.muted)],
        ]
        return [*lines, strip_of(fitting(told, width), width)]

    def _none(self, view: LatencyDetail | None, who: str, limit: str, width: int) -> list[Strip]:
        """Nobody is late: said in one line, with where there is something to see and what this would show."""
        ink, span = self.inks, self._choice.span
        n = samples(view, span) if view is not None else 0
        whole = int(over_counts(view, "whole").sum()) if view is not None and span == "window" else 0
        groups: list[list[Run]] = [[("● none", ink.good)], [(f" of {fmt.count(n)} samples {limit}", ink.plain)] if n else []]
        if whole:
            groups.append([(f" · {fmt.count(whole)} in the whole attempt: w shows them", ink.muted)])
        text = f"Once samples are {limit}: each {who}'s share of them, beside the share it would have were all alike."
        told = [strip_of([(part, ink.muted)], width) for part in textwrap.wrap(text, max(10, width))]
        return [strip_of(fitting(groups, width), width), *told]

    def _heads(self, who: str, room: int) -> list[Run]:
        ink = self.inks
        runs: list[Run] = [(f"{who.upper():<15}{'SHARE':>6} ", ink.muted), (" " * room, ink.muted)]
        runs.append((f"{'OVER':>9}{'EXPECTED':>10}{'TIMES':>8}", ink.muted))
        return [*runs, (f"{'OF ITS OWN':>12}", ink.muted)] if self._choice.span == "whole" else runs


def times(value: float) -> str:
    return fmt.UNKNOWN if math.isnan(value) else f"{value:.0f}x" if value >= 9.95 else f"{value:.1f}x"
