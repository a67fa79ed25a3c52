"""A run from its record: its verdict first, and from there down to one sample, in views that the same keys move through.

Shown when a console is opened on a run that has ended or lost its head, and by `v` after the end of a run that was watched.
Nothing moves here but the clock. Everything is read in threads (`console/store/drill.py`); a view that is being read says so.
Enter goes from a row to the samples behind it, esc back the way one came. A head that is started again while this is open
takes over: the screen closes itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Input

from console.actions import BY_ID, Where, bindings
from console.screens.base import Tables
from console.screens.lines import LinesKeys
from console.screens.record_moves import RecordMoves
from console.store.drill import VIEWS, Ask, DrillStore, View, fleet_rows, keeps, problem_of, tail_words
from console.store.drill_tables import tables_of
from console.store.drill_words import HINTS, title_of, way_back, why_not
from console.widgets.clock import EVERYTHING, Due
from console.widgets.drill import ContextLine, ItemsPane, Title, ViewTabs, row_words
from console.widgets.drill_distributions import Bars, Cdf, FiguresPane
from console.widgets.drill_rows import ActsPane, ConfigPane, FleetPane, SlowestPane, settings_of
from console.widgets.drill_tail import GroupsPane, PartsPane
from console.widgets.drill_timeline import Lanes, MarksPane, Shown
from console.widgets.drill_verdict import FindingsPane, MarginsPane
from console.widgets.footer import KeyFooter
from console.widgets.header import HeaderLine, PhaseStrip
from console.widgets.listing import LinesPane
from console.widgets.paint import Painted
from console.widgets.verdict import VerdictBanner
from harness.analysis import views

#: The list of each view that keys move through.
_LISTS: Final[dict[View, str]] = {
    "verdict": "findings", "timeline": "marks", "distributions": "figures", "tail": "groups", "fleet": "by-replica",
    "slowest": "slowest", "acts": "effects", "config": "settings",
}  # fmt: skip
_FOOTER: Final = (
    "open", "view_next", "metric", "group", "filter", "sort", "logs_around", "replay", "definitions", "back", "command_line",
    "help", "leave",
)  # fmt: skip


class RecordScreen(LinesKeys, RecordMoves):
    BINDINGS = bindings("record")
    WHERE: ClassVar[Where] = "record"

    def compose(self) -> ComposeResult:
        store = self._store
        yield HeaderLine(store, "Record", looks_only=False, id="header")
        yield PhaseStrip(store, id="phase")
        yield ViewTabs(lambda: self.choice, self._attempt_words, id="views")
        yield ContextLine(self.context_parts, id="context")
        with Vertical(id="view-verdict", classes="drill-view"):
            yield VerdictBanner(store, whole=True, attempt=self._number, id="verdict")
            yield MarginsPane(lambda: self._answer_of(views.Overview), self._says, lambda: self.drill.limits, id="margins")
            yield FindingsPane(id="findings")
        with Vertical(id="view-timeline", classes="drill-view"):
            yield Lanes(self._lanes, id="lanes")
            yield MarksPane(id="marks")
        with Vertical(id="view-distributions", classes="drill-view"):
            yield FiguresPane(id="figures")
            with Horizontal(id="shapes"):
                yield Bars(self._distribution, id="bars")
                yield Cdf(self._distribution, id="cdf")
        with Vertical(id="view-tail", classes="drill-view"):
            yield GroupsPane(lambda: self.choice, id="groups")
            yield PartsPane(lambda: self._answer_of(views.Tail), id="parts")
        lists: tuple[tuple[View, ItemsPane[Any]], ...] = (
            ("fleet", FleetPane(id="by-replica")), ("slowest", SlowestPane(id="slowest")), ("acts", ActsPane(id="effects")),
            ("config", ConfigPane(id="settings")),
        )  # fmt: skip
        for view, pane in lists:
            with Vertical(id=f"view-{view}", classes="drill-view"):
                yield pane
        yield Input(placeholder="node003  a|b  !a", id="filter", compact=True)
        yield KeyFooter([BY_ID[name] for name in _FOOTER], lambda _: "", id="footer")

    def on_mount(self) -> None:
        self.show()

    def on_unmount(self) -> None:
        self.drill.close()

    # --- what is shown -------------------------------------------------------------------------------------

    @property
    def pane(self) -> ItemsPane[Any]:
        """The list of the view on show."""
        return self.query_one(f"#{_LISTS[self.choice.view]}", ItemsPane)

    def moving(self) -> LinesPane:
        return self.pane

    def show(self) -> None:
        """The chosen view: what is known of it now, the rest once it has been read."""
        for view in VIEWS:
            self.query_one(f"#view-{view}").set_class(view == self.choice.view, "-on")
        self.set_class(self.query_one("#verdict", VerdictBanner).wanted, "-verdict")
        fitting = [BY_ID[name] for name in _FOOTER if not why_not(name, self.choice.view)]
        self.query_one("#footer", KeyFooter).offer(fitting)
        self._put()
        if not self.has_class("-filtering"):
            self.pane.focus()
        ask, drill = self.choice.ask, self.drill
        if drill.known(ask) is None and ask not in drill.failures:
            self.run_worker(self._read(drill, ask), group="drill")
        self.call_after_refresh(self.paint, EVERYTHING)

    async def _read(self, drill: DrillStore, ask: Ask) -> None:
        fresh = await drill.get(ask)
        there = self.is_attached and bool(self.query("#footer"))  # left meanwhile, its widgets go one by one
        if fresh and there and drill is self.drill and ask == self.choice.ask:
            self._put()
            self.call_after_refresh(self.paint, EVERYTHING)

    def _put(self) -> None:
        choice, pane = self.choice, self.pane
        answer, says = self.drill.known(choice.ask), self.drill.says(choice.ask)
        if answer is None:
            pane.put([], choice.ask, says)
            self._entitle([])
            return
        match pane:
            case FindingsPane():
                pane.show(answer, self.drill.problems, self._beside_loadgen())
                return
            case FiguresPane():
                pane.put(answer, choice.ask)
                pane.choose_metric(choice.metric)
            case SlowestPane():
                pane.by = choice.metric
            case FleetPane():
                pane.kind = choice.fleet_by
        rows = self._rows_of(answer)
        if not isinstance(pane, FiguresPane):
            kept = keeps("" if problem_of(choice.text) else choice.text)
            shown = rows if choice.view == "fleet" or not choice.text else [row for row in rows if kept(row_words(pane, row))]
            of = (choice.ask, choice.by, choice.sort, choice.reverse)
            fresh = pane.of != of
            pane.put(shown, of, "" if shown or not rows else "no row matches (esc clears the filter)")
            if isinstance(pane, GroupsPane) and fresh and choice.by not in ("replica", "node"):
                pane.begin_at_outstanding()
        self._entitle(rows)

    def _rows_of(self, answer: Any) -> list[Any]:
        match self.choice.view:
            case "timeline":
                return list(answer.marks)
            case "tail":
                return list(answer.groups.get(self.choice.by, []))
            case "fleet":
                choice = self.choice if not problem_of(self.choice.text) else replace(self.choice, text="")
                return fleet_rows(answer, choice)
            case "config":
                return list(settings_of(answer))
            case "acts":
                return [line for effect in answer for line in (effect, Title(""))]
        return list(answer)

    def _entitle(self, rows: list[Any]) -> None:
        answer = self.drill.known(self.choice.ask)
        cut = answer.cut if isinstance(answer, views.Timeline) else 0
        title = title_of(self.choice, sum(not isinstance(row, Title) for row in rows))
        self.pane.entitle(title + (f" · {cut:,d} more left out" if cut else ""))

    def paint(self, due: Due) -> int:
        if self._first and self._store.link().kind == "live" and self.app.screen is self:
            self.app.pop_screen()
            return 0
        self.set_class(not self._store.ended, "-no-head")
        every, lines = due == EVERYTHING, 0
        for painted in self.query(Painted):
            moves = isinstance(painted, HeaderLine | PhaseStrip) and due.numbers
            if painted.region.height and (every or moves or painted.unpainted):
                lines += painted.repaint()
        return lines + sum(pane.repaint() for pane in self.query(ItemsPane) if every and pane.region.height)

    # --- what widgets ask ----------------------------------------------------------------------------------

    def _answer_of(self, kind: type[Any]) -> Any:
        found = self.drill.known(self.choice.ask)
        return found if isinstance(found, kind) else None

    def _says(self) -> str:
        return self.drill.says(self.choice.ask)

    def _number(self) -> int | None:
        attempt = self.drill.attempt
        return attempt.number if attempt is not None else self.drill.wanted

    def _attempt_words(self) -> str:
        numbers, number = self.drill.attempts, self._number()
        if len(numbers) < 2 or number not in numbers:
            return ""
        return (
            f"[ ] {numbers.index(number) + 1}/{len(numbers)}"
            if self.size.width < 96
            else f"attempt {number} of {len(numbers)}, [ ]"
        )

    def context_parts(self) -> tuple[list[str], list[str], str]:
        """What is shown, what is wrong, where esc leads."""
        choice, shown = self.choice, []
        tail = self._answer_of(views.Tail)
        if tail is not None:
            shown += tail_words(tail)
        if choice.view in ("tail", "slowest") and (choice.where != views.Where() or tail is None):
            shown.append(choice.where.words)
        if choice.only_words and choice.view == "fleet":
            shown.append(choice.only_words)
        if choice.text:
            shown.append(f"/{choice.text}")
        wrong = problem_of(choice.text)
        problems = [wrong] if wrong else [] if choice.view == "verdict" else self.drill.problems
        timeline = self._answer_of(views.Timeline)
        shown += [f"{timeline.step_s:g} s a step"] if timeline is not None and timeline.ticks else []
        shown += [] if problems else HINTS.get(choice.view, ())
        return shown, problems, way_back(choice, self.trail, first=self._first)

    def _lanes(self) -> Shown:
        mark = self.query_one("#marks", MarksPane).item
        timeline = self._answer_of(views.Timeline)
        begin = self.drill.begin_unix or 0.0
        return Shown(timeline, self._says(), begin, self.drill.limits, mark.at_s if mark is not None else None)

    def _distribution(self) -> views.Distribution | None:
        found = self.drill.known(Ask("distributions")) or []
        return next((one for one in found if one.metric == self.choice.metric), None)

    def _beside_loadgen(self) -> list[Any]:
        from harness.analysis.definitions import beside_loadgen

        return list(beside_loadgen(self.drill.attempt)) if self.drill.attempt is not None else []

    def tables(self) -> Tables:
        return tables_of(self.drill.known(self.choice.ask))
