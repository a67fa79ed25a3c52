"""SLA: the distributions against their limits, what TTFT is made of, and whose samples make the tail.

The head is asked every two seconds while this is on show; between answers only the budget moves, which snapshots carry.
Without a head to ask (an ended run, a replay) the panes say what is missing and show nothing that was not measured.
"""

from __future__ import annotations

import math
import uuid
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll

from console.actions import Where, bindings, footer_of
from console.screens.base import PaintedScreen, Tables
from console.screens.replaying import ReplayKeys
from console.store import tables
from console.store.fleet import FleetStore
from console.store.latency import Metric, latency
from console.store.sla_tables import sla_tables
from console.widgets import fmt
from console.widgets.clock import EVERYTHING, Due
from console.widgets.footer import KeyFooter
from console.widgets.header import HeaderLine
from console.widgets.histogram import Distribution, Histogram
from console.widgets.paint import Painted
from console.widgets.tail import NAMES, BudgetPane, PartsPane, PercentilePane, SlaChoice, TailPane
from harness.wire.inquiry import GetSla, SlaDetail

ASK_EVERY_S: Final = 2.0
OLD_AFTER_S: Final = 3 * ASK_EVERY_S


class SlaScreen(ReplayKeys, PaintedScreen):
    BINDINGS = bindings("sla")
    WHERE: ClassVar[Where] = "sla"

    def __init__(self, store: FleetStore) -> None:
        super().__init__()
        self._store = store
        self.choice = SlaChoice()
        self._painted: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        app, store, choice = self.console_app, self._store, self.choice
        yield HeaderLine(store, "SLA", looks_only=app.looks_only, id="header")
        with VerticalScroll(id="sla-panes"):
            yield BudgetPane(store, self.note, id="budget")
            with Horizontal(id="histogram-tier"):
                yield Histogram(lambda: self._distribution("ttft"), id="ttft-histogram")
                yield Histogram(lambda: self._distribution("tpot"), id="tpot-histogram")
            with Horizontal(id="percentile-tier"):
                yield PercentilePane(store, choice, id="percentiles")
                yield PartsPane(choice, id="ttft-parts")
            yield TailPane(store, choice, id="tail")
        yield KeyFooter(sorted(footer_of("sla"), key=lambda action: action.where == ("app",)), app.why_not, id="footer")

    def on_mount(self) -> None:
        self.query_one("#sla-panes").focus()
        self.set_class(True, "-ttft")
        self.every(ASK_EVERY_S, self._ask, "sla detail")
        self.call_after_refresh(self.paint, EVERYTHING)

    async def _ask(self) -> None:
        answer = await self.console_app.inquire(GetSla(uuid.uuid4().hex))
        if isinstance(answer, SlaDetail):
            self.choice.detail, self.choice.heard_s, self.choice.missing = answer, self.console_app.now_s(), ""
        elif self.choice.detail is None:
            self.choice.missing = self._why_missing()

    def _why_missing(self) -> str:
        kind = self._store.link().kind
        if self.console_app.session.kind == "replay":
            return "not in this replay: distributions of a past moment are not kept, percentiles are those of its snapshots"
        if self._store.ended:
            return "the run has ended: only its head could tell, and the record shows results by replica (5 Runs)"
        return "the head does not answer" if kind in ("live", "stale", "lost") else "no head has been reached yet"

    def note(self) -> tuple[str, bool]:
        """What the figures are of and how old; True when that is not as it should be."""
        detail = self.choice.detail
        if detail is None:
            return (self.choice.missing or "asking the head …"), bool(self.choice.missing)
        age_s = self.console_app.now_s() - self.choice.heard_s
        text = f"distributions of attempt {detail.attempt}" if detail.attempt else "no attempt yet"
        shown = self._store.attempt
        if shown is not None and detail.attempt and shown.number != detail.attempt:
            text += f" (attempt {shown.number} has no sample yet)"
        old = age_s > OLD_AFTER_S
        panes = self.query_one("#sla-panes")
        below = " · more below: PgDn" if panes.max_scroll_y > panes.scroll_y else ""
        return (f"{text}, as of {fmt.age(age_s)} ago: no answer since" if old else text) + below, old

    @property
    def _old(self) -> bool:
        return not math.isnan(self.choice.heard_s) and self.console_app.now_s() - self.choice.heard_s > OLD_AFTER_S

    def _distribution(self, metric: Metric) -> Distribution:
        choice = self.choice
        view = latency(choice.detail, metric) if choice.detail is not None else None
        return Distribution(NAMES[metric], view, choice.span, choice.span_text(self._store), choice.missing)

    def paint(self, due: Due) -> int:
        self.set_class(not self._store.link().trusted or self._old, "-stale")
        self.set_class(self._store.split, "-split")  # TTFT has two parts more then
        # Two panes move with every snapshot; the others with answers and keys, and those are two seconds apart.
        key = (self.choice.heard_s, self.choice.missing, self.choice.span, self.choice.metric, self.choice.by_node)
        fresh = key != self._painted or due == EVERYTHING
        self._painted = key
        lines = 0
        for painted in self.query(Painted):
            moves = not isinstance(painted, Histogram | PartsPane | TailPane)
            if painted.region.height and (painted.unpainted or fresh or (moves and due.numbers)):
                lines += painted.repaint()
        return lines

    def tables(self) -> Tables:
        if self.choice.detail is None:
            return {"limits": tables.sla_rows(self._store)}
        return {"limits": tables.sla_rows(self._store), **sla_tables(self.choice.detail, [i.slot for i in self._store.slots])}

    # --- keys ----------------------------------------------------------------------------------------------

    def _redraw(self) -> None:
        self.paint(EVERYTHING)

    def action_window(self) -> None:
        self.choice.span = "whole" if self.choice.span == "window" else "window"
        self._redraw()

    def action_metric(self) -> None:
        self.choice.metric = "tpot" if self.choice.metric == "ttft" else "ttft"
        self.set_class(self.choice.metric == "ttft", "-ttft")
        self.call_after_refresh(self._redraw)

    def action_by_node(self) -> None:
        self.choice.by_node = not self.choice.by_node
        self._redraw()

    def action_back(self) -> None:
        """Back to what is shown first: the last window of TTFT, by replica."""
        self.choice.span, self.choice.metric, self.choice.by_node = "window", "ttft", False
        self.set_class(True, "-ttft")
        self.call_after_refresh(self._redraw)
