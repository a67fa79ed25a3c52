"""Metrics: a query in PromQL, asked of the run's source by its head, as chart and table; and every metric by name.

The head asks, so a console needs no way to the Prometheus and no password for it. A span that ends now is asked for again
every so often while this is on show. A source without PromQL (exporters' pages) says so; its metrics can be looked through
all the same, and their values are on Live, Fleet and Replica.
"""

from __future__ import annotations

import uuid
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input, Static

from console.actions import Where, bindings, footer_of
from console.screens.base import PaintedScreen, Tables
from console.store import gpu_tables, promql, tables
from console.store.fleet import FleetStore
from console.widgets.chart import BrailleChart, Picture
from console.widgets.clock import EVERYTHING, Due
from console.widgets.footer import KeyFooter
from console.widgets.gpu_source import source_facts
from console.widgets.header import HeaderLine, source_words
from console.widgets.paint import Painted
from console.widgets.promql import Asked, AskedPane, NamesBar, NamesPane, SeriesTable, figure, picture
from console.widgets.replica import FactsPane
from harness.wire.inquiry import GetMetricNames, MetricCurves, MetricName, MetricNames, QueryMetrics

AGAIN_EVERY_S: Final = 10.0
MOST_SERIES: Final = 500
_WHOLE_SPAN_S: Final = 10**9  # the chart shows all that the answer has


class QueryBox(Input):
    """The line in which the query is typed; ↑ and ↓ go through earlier ones."""

    BINDINGS: ClassVar = [
        Binding("up", "earlier", show=False),
        Binding("down", "later", show=False),
    ]

    class Left(Message):
        pass

    def __init__(self, *, id: str) -> None:
        super().__init__(
            placeholder="PromQL, as in max by (hostname, gpu_id) (gpu_package_power)", id=id, compact=True, select_on_focus=False
        )
        self._back, self._draft = 0, ""

    def action_earlier(self) -> None:
        self._recall(self._back + 1)

    def action_later(self) -> None:
        self._recall(self._back - 1)

    def _recall(self, back: int) -> None:
        known = promql.earlier()
        if self._back == 0:
            self._draft = self.value
        self._back = min(max(0, back), len(known))
        self.value = known[-self._back] if self._back else self._draft
        self.cursor_position = len(self.value)

    def begin_anew(self) -> None:
        self._back = 0


class MetricsScreen(PaintedScreen):
    BINDINGS = bindings("metrics")
    WHERE: ClassVar[Where] = "metrics"

    def __init__(self, store: FleetStore) -> None:
        super().__init__()
        self._store = store
        self.asked = Asked()
        self._names: list[MetricName] = []
        self._matching: list[MetricName] = []
        self._names_missing = "asking the head …"
        self._painted: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        app, store = self.console_app, self._store
        yield HeaderLine(store, "Metrics", looks_only=app.looks_only, id="header")
        with Horizontal(id="query-row"):
            yield Static("❯", id="query-mark")
            yield QueryBox(id="query")
        with Vertical(id="answer"):
            yield AskedPane(self.asked, self._source, app.now_s, id="asked")
            yield FactsPane("Source", lambda: source_facts(store), id="source-facts")
            yield BrailleChart(self._chart_title, self._picture, figure, span_s=_WHOLE_SPAN_S, id="answer-chart")
            yield SeriesTable(self.asked, id="series")
        with Vertical(id="browser"):
            yield NamesBar(lambda: (len(self._matching), len(self._names), self._source()), id="names-bar")
            with Horizontal(id="names-row"):
                yield Static("/", id="names-mark")
                yield Input(placeholder="words of a name or its help: power · vllm latency", id="names-filter", compact=True)
            yield NamesPane(lambda: self._matching, self._why_no_names, id="names")
        yield KeyFooter(sorted(footer_of("metrics"), key=lambda action: action.where == ("app",)), app.why_not, id="footer")

    def on_mount(self) -> None:
        self.query_one("#series").focus()
        self.every(AGAIN_EVERY_S, self._ask_again, "promql")
        self.call_after_refresh(self.paint, EVERYTHING)

    # --- what is asked for -----------------------------------------------------------------------------------

    def put(self, query: str) -> None:
        """Ask this, now; a query that cannot be right is not sent."""
        asked = self.asked
        asked.query = query.strip()
        box = self.query_one("#query", QueryBox)
        if box.value != query:
            box.value = query
        asked.wrong = promql.problem_of(asked.query)
        self._browse(False)
        if not asked.wrong:
            box.begin_anew()
            promql.remember(asked.query)
            self.run_worker(self._ask(), name="promql at once", group="promql at once", exclusive=True)
            self.query_one("#series").focus()
        self.paint(EVERYTHING)

    async def _ask_again(self) -> None:
        """Only what moves: what is of now, or ends now."""
        if self.asked.answer is not None and not self.asked.wrong and not self._why_nobody():
            await self._ask()

    async def _ask(self) -> None:
        asked = self.asked
        if why := self._why_nobody():
            asked.problem, asked.waiting = why, False
            return
        start, end = promql.times_of(self._store, asked.span)
        query, span = asked.query, asked.span
        asked.waiting = True
        answer = await self.console_app.inquire(
            QueryMetrics(uuid.uuid4().hex, query, start_unix=start, end_unix=end, most=MOST_SERIES)
        )
        if (query, span) != (asked.query, asked.span):
            return  # another question has been put meanwhile
        if isinstance(answer, MetricCurves):
            asked.take(answer, query, self.console_app.now_s())
        else:
            asked.problem, asked.waiting = "the head does not answer", False
        self.paint(EVERYTHING)

    async def _ask_names(self) -> None:
        if why := self._why_nobody():
            self._names_missing = why
        else:
            answer = await self.console_app.inquire(GetMetricNames(uuid.uuid4().hex))
            if isinstance(answer, MetricNames):
                self._names, self._names_missing = list(answer.names), answer.problem or "no metric has all these words"
            else:
                self._names_missing = "the head does not answer"
        self._match()

    def _why_nobody(self) -> str:
        """Why there is nobody to ask, in words."""
        if self.console_app.session.kind == "replay":
            return "not in a replay: the record has the GPUs' roles (Live, Fleet, Replica), and no head is there to ask for more"
        if self._store.ended:
            return "the run has ended: its head is not there to ask; its record has the GPUs' roles (5 Runs, R replays them)"
        return ""

    def _why_no_names(self) -> str:
        return self._names_missing

    # --- what is shown ---------------------------------------------------------------------------------------

    def _source(self) -> str:
        view = self._store.gpus.view
        named = self.asked.answer.source if self.asked.answer is not None else ""
        return named or (view.source if view is not None else "") or source_words(self._store)

    def _chart_title(self) -> str:
        series = self.asked.series
        half = promql.DRAWN // 2
        more = f" · of {len(series)} the {half} largest and {half} smallest" if len(series) > promql.DRAWN else ""
        at = self._series.at
        chosen = f" · {series[at].label}" if at < len(series) and len(series) > 1 else ""
        return f"{self.asked.answered}{more}{chosen}".replace("[", r"\[")

    def _picture(self) -> Picture:
        return picture(self.asked, self._series.at)

    @property
    def _series(self) -> SeriesTable:
        return self.query_one("#series", SeriesTable)

    @property
    def _list(self) -> SeriesTable | NamesPane:
        return self.query_one("#names", NamesPane) if self.has_class("-browsing") else self._series

    def paint(self, due: Due) -> int:
        self.set_class(not self._store.link().trusted, "-stale")
        self.set_class(self.asked.over_time, "-over-time")
        self.set_class(not self.asked.query, "-nothing-asked")
        key = (self.asked.heard_s, self.asked.problem, self.asked.wrong, self.asked.query, self._series.at, len(self._matching))
        fresh, self._painted = key != self._painted or due == EVERYTHING, key
        lines = 0
        for painted in self.query(Painted):
            if not painted.region.height or not painted.display:
                continue
            if painted.unpainted or fresh or (due.numbers and not isinstance(painted, BrailleChart)):
                lines += painted.repaint()
        if fresh:
            self._series.entitle(f"Series {len(self.asked.series)}" if self.asked.series else "Series")
            lines += self._list.repaint()
        return lines

    def wipe(self) -> None:
        super().wipe()
        self._series.wipe()
        self.query_one("#names", NamesPane).wipe()

    def tables(self) -> Tables:
        told = self.asked.answer
        if told is None:
            return {"source": gpu_tables.source(self._store)}
        about: tables.Row = {
            "query": self.asked.answered, "span": self.asked.span, "source": told.source, "kind": told.kind,
            "step_s": told.step_s or None, "took_ms": told.took_ms, "series": len(told.curves), "left_out": told.left_out,
            "warnings": list(told.warnings),
        }  # fmt: skip
        points = [
            {"series": one.label, "labels": dict(one.labels), "unix": float(unix), "value": tables.known(float(value))}
            for one in self.asked.series
            for unix, value in zip(one.unix, one.values, strict=True)
        ]
        return {"query": [about], "points": points}

    # --- keys ------------------------------------------------------------------------------------------------

    def action_query(self) -> None:
        self.console_app.expect_typing()
        self._browse(False)
        box = self.query_one("#query", QueryBox)
        box.focus()
        box.cursor_position = len(box.value)

    def action_span(self) -> None:
        asked = self.asked
        asked.span = promql.SPANS[(promql.SPANS.index(asked.span) + 1) % len(promql.SPANS)]
        if asked.query and not asked.wrong:
            self.put(asked.query)
        self.paint(EVERYTHING)

    def action_browse(self) -> None:
        self.console_app.expect_typing()
        self._browse(True)
        self.run_worker(self._ask_names(), name="metric names", group="metric names", exclusive=True)

    def _browse(self, wanted: bool) -> None:
        self.set_class(wanted, "-browsing")
        if wanted:
            self.query_one("#names-filter", Input).focus()

    def _match(self) -> None:
        self._matching = promql.matching(self._names, self.query_one("#names-filter", Input).value)
        pane = self.query_one("#names", NamesPane)
        pane.at = min(pane.at, max(0, len(self._matching) - 1))
        self.call_after_refresh(self.paint, EVERYTHING)

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "names-filter":
            self.query_one("#names", NamesPane).at = 0
            self._match()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if event.input.id == "names-filter":
            self._choose()
        else:
            self.put(event.value)

    def on_key(self, event: object) -> None:
        """The filter of the names has the focus while the list above which it stands is moved through."""
        key = getattr(event, "key", "")
        moves = {"up": -1, "down": 1, "pageup": -self._list.page, "pagedown": self._list.page}
        if self.has_class("-browsing") and key in moves and isinstance(self.focused, Input):
            self._list.move(moves[key])
            stop = getattr(event, "stop", None)
            if stop is not None:
                stop()

    def _choose(self) -> None:
        pane = self.query_one("#names", NamesPane)
        if pane.at < len(self._matching):
            query = promql.query_for(self._matching[pane.at])
            self._browse(False)
            box = self.query_one("#query", QueryBox)
            box.value = query
            box.focus()
            box.cursor_position = len(query)

    def on_lines_pane_chosen(self) -> None:
        self.action_open()

    def on_lines_pane_moved(self) -> None:
        self.paint(EVERYTHING)

    def action_open(self) -> None:
        """Of a name, into the query; of an answer, once more."""
        if self.has_class("-browsing"):
            self._choose()
        elif self.asked.query:
            self.put(self.asked.query)
        else:
            self.action_query()

    def action_up(self) -> None:
        self._list.move(-1)

    def action_down(self) -> None:
        self._list.move(1)

    def action_page_up(self) -> None:
        self._list.move(-self._list.page)

    def action_page_down(self) -> None:
        self._list.move(self._list.page)

    def action_top(self) -> None:
        self._list.move_to(0)

    def action_bottom(self) -> None:
        self._list.move_to(max(0, self._list.count() - 1))

    def action_copy(self) -> None:
        if self.asked.query:
            self.console_app.copy(self.asked.query, "query")
        else:
            self.console_app.tell("there is no query to copy yet", severity="warning")

    def action_back(self) -> None:
        """Out of the names, out of the line; what was asked stays."""
        self._browse(False)
        self._series.focus()
        self.paint(EVERYTHING)
