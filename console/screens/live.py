"""Live: the whole run on one screen. Composes widgets and answers keys; numbers come from the store, acts go to the app."""

from __future__ import annotations

from typing import ClassVar, Final, cast

from textual.app import ComposeResult
from textual.containers import Horizontal

from console.actions import BY_ID, Where, bindings, footer_of
from console.config import shown_key
from console.screens.base import PaintedScreen, Tables
from console.screens.replaying import ReplayKeys
from console.screens.row_keys import RowKeys
from console.store import heat, roles, tables
from console.store.fleet import FleetStore
from console.store.merge import recycled
from console.store.view import TableView
from console.widgets import fmt
from console.widgets.barrier import BarrierPane
from console.widgets.chart import BrailleChart, Line, Picture
from console.widgets.clock import EVERYTHING, Due
from console.widgets.events import EventsPane
from console.widgets.filter_bar import FilterBar
from console.widgets.footer import HasConfig, KeyFooter
from console.widgets.header import HeaderLine, PhaseStrip
from console.widgets.heatmap import HeatMap
from console.widgets.paint import Painted
from console.widgets.roles import RolesPane
from console.widgets.sla import LoadPane, SlaPane, StragglerPane
from console.widgets.table import ReplicaTable
from console.widgets.verdict import VerdictBanner
from harness.metrics.rates import RATE_WINDOW_S

FEW_ROWS, FEW_ROWS_TALL = 6, 8  # a table with at most that many rows takes no more than them
FAULT_LINES: Final = 9  # of the pane beside the heat map, which is no higher than the map where that is small


class LiveScreen(RowKeys, ReplayKeys, PaintedScreen):
    BINDINGS = bindings("live")
    WHERE: ClassVar[Where] = "live"

    def __init__(self, store: FleetStore, view: TableView) -> None:
        super().__init__()
        self._store, self._view = store, view
        self._layout_key: tuple[object, ...] = ()
        self._seen = (False, 0)

    def compose(self) -> ComposeResult:
        store = self._store
        yield HeaderLine(store, "Live", looks_only=self.console_app.looks_only, id="header")
        yield PhaseStrip(store, id="phase")
        yield VerdictBanner(store, hint=self._more, id="verdict")
        yield BarrierPane(store, id="barrier")
        with Horizontal(id="sla-tier"):
            yield SlaPane(store, id="sla")
            yield LoadPane(store, id="load")
        yield RolesPane(store, id="roles")
        with Horizontal(id="fleet-tier"):
            yield HeatMap(store, self._view, id="heat")
            yield StragglerPane(store, id="stragglers")
        with Horizontal(id="chart-tier"):
            yield BrailleChart(
                lambda: f"QPS · {RATE_WINDOW_S:.0f} s window", lambda: rate_picture(store), fmt.big, id="rate-chart"
            )
            yield BrailleChart(lambda: f"TTFT{_window(store)}", lambda: ttft_picture(store), _short_ms, id="ttft-chart")
        yield ReplicaTable(store, self._view, self.console_app.now_s, id="table")
        yield FilterBar(id="filter-bar")
        yield EventsPane(store, id="events")
        yield KeyFooter(footer_of("live"), self.console_app.why_not, id="footer")

    def _more(self) -> str:
        """The rows below are of stopped replicas: what each of them did is elsewhere."""
        if not self._store.ended or self.console_app.record_folder is None:
            return ""
        key = shown_key(BY_ID["result"], cast(HasConfig, self.app).config.keys)
        return f"{key}: by replica, whole attempt, from the record; below is only how they ended"

    def on_mount(self) -> None:
        self.table.focus()
        self.paint(EVERYTHING)

    @property
    def table(self) -> ReplicaTable:
        return self.query_one("#table", ReplicaTable)

    @property
    def heat(self) -> HeatMap:
        return self.query_one("#heat", HeatMap)

    # --- painting ------------------------------------------------------------------------------------------

    def paint(self, due: Due) -> int:
        self._arrange()
        seen = (self._store.snapshot is not None, len(self._store.slots))
        if seen != self._seen:  # the first numbers, or another fleet: not a moment later
            self._seen, due = seen, EVERYTHING
            self._view.force()
        lines = 0
        for painted in self.query(Painted):
            if not painted.display or painted.region.height == 0:
                continue
            chart, heat = isinstance(painted, BrailleChart), isinstance(painted, HeatMap)
            if (due.charts if chart else due.heat if heat else due.numbers) or painted.unpainted:
                lines += painted.repaint()
        self.query_one("#stragglers", StragglerPane).set_lines(min(FAULT_LINES, max(5, self.heat.lines)))
        if due.table:
            self._view.reorder(self._store, self.console_app.now_s())
            lines += self.table.repaint()
        return lines

    def _arrange(self) -> None:
        """Classes that say what the screen is about now; only touched when something of it changed."""
        link, (width, height), narrow = self._store.link(), self.size, self.size.width < 100
        verdict = self.query_one("#verdict", VerdictBanner).wanted
        split = bool(roles.views(self._store))
        pods, size = self._store.cluster.view is not None, len(self._store.slots)
        key = (self._store.at_barrier, verdict, self._store.ended, not link.trusted, width, height, size, split, pods)
        if key == self._layout_key:
            return
        self._layout_key = key
        self.set_class(self._store.at_barrier, "-barrier")
        self.set_class(pods, "-pods")
        self.set_class(verdict, "-verdict")
        self.set_class(split, "-split")
        self.set_class(self._store.ended, "-ended")
        self.set_class(not link.trusted, "-stale")
        self.heat.compact = self.table.narrow = narrow
        self.heat.room = 5 if narrow else 13 if height >= 45 else 9
        # A fleet of a few rows leaves lines over: events get them. By the roster, so that a filter moves nothing.
        few = 0 < len(self._store.slots) <= (FEW_ROWS_TALL if height >= 36 or narrow else FEW_ROWS)
        self.set_class(few, "-few")
        self.table.styles.height = len(self._store.slots) + 2 if few else None

    def moved(self) -> None:
        self.heat.repaint()

    def tables(self) -> Tables:
        """With the replicas as the table has them: filtered, in its order."""
        return tables.live(self._store) | tables.fleet(self._store, self._view.rows)

    # --- keys: looking -------------------------------------------------------------------------------------

    def action_heat(self) -> None:
        self.heat.next_metric()

    def heat_names(self) -> list[str]:
        return list(heat.names(self._store))

    def command_heat(self, text: str) -> None:
        metric = heat.named(self._store, text)
        if metric is None:
            self.console_app.tell(heat.missing(self._store, text), "not shown", "warning")
        else:
            self.heat.show(metric)

    def action_charts(self) -> None:
        self.toggle_class("-charts")
        self.call_after_refresh(self.paint, EVERYTHING)

    def action_open(self) -> None:
        if self._view.cursor is not None and not self._view.gone(self._store):
            self.hold()
            self.console_app.open_replica(self._view.cursor, "Live")

    def action_result(self) -> None:
        self.console_app.show_record()

    def action_back(self) -> None:
        """With nothing left to clear, out of a replay."""
        busy = self.has_class("-filtering") or self._view.text or self.rows.bound
        if busy or not self.leave_replay():
            super().action_back()

    def action_copy(self) -> None:
        self.hold()
        self.console_app.copy_log_path(self._view.cursor)


def _window(store: FleetStore) -> str:
    """What a point of a chart stands for; what its axis spans is written on the axis."""
    return f" · {store.spec.metrics.window_s:.0f} s window" if store.spec is not None else ""


def _short_ms(value_ms: float) -> str:
    return f"{value_ms / 1000:.1f}s" if value_ms >= 1000 else f"{value_ms:.0f}ms"


def _marks(store: FleetStore) -> list[tuple[float, str, bool]]:
    """Acts and alarms for the time axis, in words as short as they go: `evict n5/g3`, `rate 200`, `slow n1/g2`,
    `power-cap n1/g2` and, at its end, `power-cap-over n1/g2`."""
    marks: list[tuple[float, str, bool]] = []
    asked: set[str] = set()  # slots whose recycle has its mark
    for entry in store.journal:
        act = entry.what.startswith("act.")
        if act:
            qps = entry.data.get("qps")
            rated = entry.what == "act.set_rate" and isinstance(qps, int | float)
            name = f"rate {qps:g}" if rated else entry.what.removeprefix("act.").replace("_", " ")
            asked |= {entry.subject} if name == "recycle" else set()
        elif entry.what == "straggler.slow":
            name = "slow"
        elif entry.what in ("alert.start", "alert.end"):
            if entry.data.get("severity") == "info":
                continue
            name = str(entry.data.get("cause") or entry.data.get("rule") or "alert").replace("_", " ")
            name = f"{name.replace(' ', '-')}" if entry.what == "alert.start" else f"{name.replace(' ', '-')}-over"
        elif entry.what == "replica.state" and entry.after == "LOST":
            if recycled(entry) and entry.subject in asked:
                continue
            name = "recycle" if recycled(entry) else "lost"
        else:
            continue
        marks.append((entry.unix, f"{name} {fmt.short_slot(entry.subject)}".strip(), act))
    return marks[-20:]


def rate_picture(store: FleetStore) -> Picture:
    series = store.series
    names = (("target", "target_qps"), ("offered", "offered_qps"), ("completed", "completed_qps"))
    lines = [Line(name.replace("completed", "done"), f"chart-{name}", series.column(column)) for name, column in names]
    return Picture(series.column("unix"), lines, marks=_marks(store))


def ttft_picture(store: FleetStore) -> Picture:
    series = store.series
    lines = [Line("p50", "chart-p50", series.column("ttft_p50_ms")), Line("p99", "chart-p99", series.column("ttft_p99_ms"))]
    limit_ms = store.snapshot.ttft.limit_ms if store.snapshot else None
    return Picture(series.column("unix"), lines, limit=limit_ms, marks=_marks(store))
