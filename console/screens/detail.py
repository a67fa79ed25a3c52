"""One replica: what it is, how it goes, and what happened to it. Follows the slot through its incarnations.

Everything stands in one column that scrolls: a small terminal shows less at once, never less.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.strip import Strip

from console.actions import Where, bindings, footer_of
from console.screens.base import PaintedScreen
from console.store.fleet import FleetStore
from console.widgets import fmt
from console.widgets.chart import BrailleChart, Line, Picture
from console.widgets.clock import EVERYTHING, Due
from console.widgets.events import event_runs
from console.widgets.footer import KeyFooter
from console.widgets.header import HeaderLine
from console.widgets.paint import GLYPHS, Painted, Run, strip_of

_LABEL = 13
EVENT_LINES = 12


PATH = "path"  # meaning of a fact that is shortened in its middle


class FactsPane(Painted):
    """Label and value; what is too long for a line goes on in the next."""

    def __init__(self, title: str, facts: Callable[[], list[tuple[str, str, str]]], *, id: str | None = None) -> None:
        super().__init__(10, id=id)
        self._title, self._facts = title, facts

    def on_mount(self) -> None:
        self.border_title = self._title

    def draw(self, width: int, height: int) -> list[Strip]:
        ink = self.inks
        lines = []
        for label, value, meaning in self._facts():
            style = ink.states.get(meaning, ink.plain)
            if meaning == PATH:  # both ends of a path say which file it is; `y` copies all of it
                value = fmt.middle(value, width - _LABEL)
            parts = textwrap.wrap(value or fmt.UNKNOWN, max(10, width - _LABEL), break_on_hyphens=False) or [fmt.UNKNOWN]
            for row, part in enumerate(parts):
                lines.append(strip_of([(f"{'' if row else label:<{_LABEL}}", ink.muted), (part, style)], width))
        self.set_lines(len(lines))
        return lines[:height] + [Strip.blank(width)] * (height - len(lines))


class SlotEvents(Painted):
    def __init__(self, store: FleetStore, slot: str, *, id: str | None = None) -> None:
        super().__init__(1, id=id)
        self._store, self._slot = store, slot

    def on_mount(self) -> None:
        self.border_title = "What happened to it"

    def draw(self, width: int, height: int) -> list[Strip]:
        ink = self.inks
        entries = self._store.history_of(self._slot)[-EVENT_LINES:]
        self.set_lines(max(1, len(entries)))
        lines = [strip_of(event_runs(entry, ink, width), width) for entry in entries]
        if not lines:
            nothing: list[Run] = [(" nothing in the part of the journal that this console has", ink.muted)]
            lines = [strip_of(nothing, width)]
        return lines + [Strip.blank(width)] * (height - len(lines))


class ReplicaScreen(PaintedScreen):
    BINDINGS = bindings("replica")
    WHERE: ClassVar[Where] = "replica"

    def __init__(self, store: FleetStore, slot: str, crumb: str = "Live") -> None:
        super().__init__()
        self._store, self.slot, self._crumb = store, slot, crumb

    def compose(self) -> ComposeResult:
        store, slot = self._store, self.slot
        yield HeaderLine(store, f"{self._crumb} ▸ {slot}", looks_only=self.console_app.looks_only, id="header")
        with VerticalScroll(id="replica"):
            with Horizontal(id="facts-tier"):
                yield FactsPane("Now", self._now_facts, id="now-facts")
                yield FactsPane("What it is", self._own_facts, id="own-facts")
            yield BrailleChart(lambda: "tok/s each second", self._picture, fmt.big, span_s=60, id="replica-chart")
            yield SlotEvents(store, slot, id="slot-events")
        yield KeyFooter(footer_of("replica"), self.console_app.why_not, id="footer")

    def on_mount(self) -> None:
        self.query_one("#replica").focus()
        self.paint(EVERYTHING)

    def _now_facts(self) -> list[tuple[str, str, str]]:
        store = self._store
        at = store.index.get(self.slot)
        if at is None:
            return [("state", "no longer part of the fleet", "LOST")]
        name = store.state_name(at)

        def value(column: str) -> float:
            return float(store.floats(column)[at])

        tokens, median = value("tokens_s"), store.median("tokens_s")
        share = "" if math.isnan(tokens) or not median else f"  ({fmt.signed_percent(tokens / median - 1)} against the median)"
        ratio, z = value("ratio"), value("z")
        against = (
            "" if math.isnan(ratio) else f", {ratio:.2f}x the fleet's curve" + ("" if math.isnan(z) else f" (z {fmt.signed(z)})")
        )
        return [
            ("state", f"{GLYPHS.get(name, '')} {name} for {fmt.age(store.age_s(at))}  {store.slots[at].reason}", name),
            ("tok/s", fmt.count(tokens) + share, ""),
            ("step time", fmt.millis(value("step_ms")) + against, ""),
            ("TTFT p99", f"{fmt.millis(value('ttft_p99_ms'))}  last 60 s", ""),
            ("TPOT p99", f"{fmt.millis(value('tpot_p99_ms'))}  last 60 s", ""),
            ("in flight", f"{fmt.count(int(store.ints('outstanding')[at]))}, oldest {fmt.age(value('oldest_s'))}", ""),
            ("engine", f"{store.ints('running')[at]} running, {store.ints('waiting')[at]} waiting", ""),
            ("batch", fmt.big(value("batch")), ""),
            ("KV cache", fmt.percent(value("kv_use")), ""),
            ("heartbeat", f"{fmt.age(value('beat_age_s'))} ago, {store.ints('restarts')[at]} restarts", ""),
        ]

    def _own_facts(self) -> list[tuple[str, str, str]]:
        at = self._store.index.get(self.slot)
        if at is None:
            return []
        info = self._store.slots[at]
        return [
            ("slot", f"{info.slot}, role {info.role}", ""),
            ("incarnation", f"{info.incarnation[:16]}  (life {info.incarnations})", ""),
            ("engine", f"{info.engine}{' (synthetic)' if info.synthetic else ''}", ""),
            ("versions", " · ".join(f"{name} {version}" for name, version in info.versions.items()), ""),
            ("arguments", info.args_hash, ""),
            ("accelerator", " · ".join(f"{key} {value}" for key, value in info.accelerator.items()), ""),
            ("process", f"{info.pid} on {info.host}" if info.pid else "", ""),
            ("worker", f"{info.worker} {info.pod}".strip(), ""),
            ("facts", " · ".join(f"{key} {value}" for key, value in info.facts.items()), ""),
            ("log", info.log, PATH),
        ]

    def _picture(self) -> Picture:
        store = self._store
        at = store.index.get(self.slot)
        if at is None or store.snapshot is None:
            return Picture(np.zeros(0), [])
        values = store.history.values[at].astype(np.float64)
        unix = store.snapshot.unix - np.arange(len(values), dtype=np.float64)[::-1]
        median = np.full(len(values), store.median("tokens_s"))
        return Picture(unix, [Line("fleet median", "chart-target", median), Line("this replica", "chart-offered", values)])

    def paint(self, due: Due) -> int:
        self.set_class(not self._store.link().trusted, "-stale")
        return sum(
            painted.repaint()
            for painted in self.query(Painted)
            if due.charts or painted.unpainted or (due.numbers and not isinstance(painted, BrailleChart))
        )

    def action_back(self) -> None:
        self.dismiss(None)

    def action_copy(self) -> None:
        self.console_app.copy_log_path(self.slot)

    def targets(self) -> list[str]:
        return [self.slot]
