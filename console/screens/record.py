"""A run from its record: its verdict first, and from there down to one sample, in views that the same keys move through.

Shown when a console is opened on a run that has ended or lost its head, and by `v` after the end of a run that was watched.
Nothing moves here but the clock. Everything is read in threads (`console/store/drill.py`); a view that is being read says so.
Enter goes from a row to the samples behind it, esc back the way one came. A head that is started again while this is open
takes over: the screen closes itself.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, cast, get_args

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Input

from console.actions import BY_ID, Where, bindings
from console.feeds.replay import ReplayFeed
from console.screens.base import PaintedScreen, Tables
from console.screens.drill_definitions import DefinitionsScreen
from console.screens.drill_moment import LifeScreen, LogsScreen
from console.screens.lines import LinesKeys
from console.session import Session
from console.store.drill import (
    FLEET_ORDERS,
    NAMES,
    VIEWS,
    Ask,
    Choice,
    DrillStore,
    FleetBy,
    View,
    fleet_rows,
    keeps,
    narrowed,
    problem_of,
    tail_words,
)
from console.store.drill_tables import FIGURES, tables_of
from console.store.fleet import FleetStore
from console.widgets.clock import EVERYTHING, Due
from console.widgets.drill import ContextLine, ItemsPane, Title, ViewTabs, row_words
from console.widgets.drill_distributions import Bars, Cdf, FiguresPane
from console.widgets.drill_rows import ActsPane, ConfigPane, FleetPane, Setting, SlowestPane, settings_of
from console.widgets.drill_tail import GroupsPane, PartsPane, groupings
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
#: What the line above a view says of its keys, where there is room.
_HINTS: Final[dict[View, tuple[str, ...]]] = {
    "verdict": ("↵ follows a finding to what is behind it", "tab goes through the views"),
    "timeline": ("↵ logs around a mark", "R replays from it"),
    "distributions": ("↑ ↓ choose what is drawn", "↵ its tail"),
    "fleet": ("▲ z above 3.5", "↵ its slowest samples"),
    "slowest": ("↵ one sample's life",),
    "acts": ("95 % intervals", "↵ logs around it"),
    "config": ("↵ the replicas that have it",),
}
_FILTERED: Final = ("timeline", "tail", "fleet", "slowest", "config")


class RecordScreen(LinesKeys, PaintedScreen):
    BINDINGS = bindings("record")
    WHERE: ClassVar[Where] = "record"

    def __init__(self, store: FleetStore, path: Path, *, first: bool) -> None:
        """`first`: opened instead of the live screen; back from it is the list of runs."""
        super().__init__()
        self._store, self._path, self._first = store, path, first
        self.choice = Choice()
        self.trail: list[Choice] = []  # where enter came from, the last step last
        self.drill = DrillStore(path, store.attempt.number if store.attempt is not None else None)

    def compose(self) -> ComposeResult:
        store = self._store
        yield HeaderLine(store, "Record", looks_only=False, id="header")
        yield PhaseStrip(store, id="phase")
        yield ViewTabs(lambda: self.choice, self._attempt_words, id="views")
        yield ContextLine(self.context_parts, id="context")
        with Vertical(id="view-verdict", classes="drill-view"):
            yield VerdictBanner(store, whole=True, attempt=self._number, id="verdict")
            yield MarginsPane(lambda: self._answer_of(views.Overview), self._says, id="margins")
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
        self.set_class(self.query_one("#verdict", VerdictBanner).wanted, "-verdict")
        self.show()

    # --- what is shown ---------------------------------------------------------------------------------------

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
        self.query_one("#footer", KeyFooter).offer([BY_ID[name] for name in _FOOTER if not self._why_not(BY_ID[name])])
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
        choice, answer = self.choice, self.drill.known(self.choice.ask)
        n = f"{sum(not isinstance(row, Title) for row in rows):,d}"
        title = {"timeline": f"What happened {n}", "acts": f"Acts {n}", "config": "Settings in which replicas differ"}.get(
            choice.view, ""
        )
        if choice.view == "tail":
            title = f"By {groupings(choice)}"
        elif choice.view == "fleet":
            order = FLEET_ORDERS[choice.sort % len(FLEET_ORDERS)]
            title = f"{'Nodes' if choice.fleet_by == 'node' else 'Replicas'} {n}, whole attempt · "
            title += f"{'↑' if order.largest == choice.reverse else '↓'} {order.label}"
        elif choice.view == "slowest":
            title = f"Slowest {n} by {NAMES[choice.metric]}"
        elif choice.view == "distributions":
            title = "Whole attempt, completed samples"
        cut = answer.cut if isinstance(answer, views.Timeline) and answer.cut else 0
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

    # --- what widgets ask ------------------------------------------------------------------------------------

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
        shown += [f"{timeline.step_s:g} s a step"] if timeline is not None else []
        shown += _HINTS.get(choice.view, ())
        return shown, problems, self._way_back()

    def _way_back(self) -> str:
        if self.choice.text:
            return "clears the filter"
        if self.trail:
            before = self.trail[-1]
            same = before.view == self.choice.view
            return f"◂ {before.where.words if same else before.view.capitalize()}"
        return "◂ Verdict" if self.choice.view != "verdict" else "◂ Runs" if self._first else "◂ Live"

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

    def _why_not(self, action: Any) -> str:
        view = self.choice.view
        fits: dict[str, tuple[View, ...]] = {
            "metric": ("distributions", "tail", "slowest"), "group": ("tail", "fleet"), "sort": ("fleet", "slowest"),
            "filter": _FILTERED, "logs_around": ("timeline", "slowest", "acts"),
        }  # fmt: skip
        return "" if view in fits.get(action.id, VIEWS) else f"not in the {view} view"

    def tables(self) -> Tables:
        return tables_of(self.drill.known(self.choice.ask))

    def sort_names(self) -> list[str]:
        return [order.name for order in FLEET_ORDERS] if self.choice.view == "fleet" else list(views.METRICS)

    # --- from view to view -----------------------------------------------------------------------------------

    def _to(self, choice: Choice) -> None:
        self.choice = choice
        self.show()

    def _into(self, choice: Choice) -> None:
        """A step that esc takes back."""
        self.trail.append(self.choice)
        self._to(choice)

    def _view(self, view: View) -> None:
        if view != self.choice.view:
            self._to(self.choice.to(view))

    def action_view_next(self) -> None:
        self._view(VIEWS[(VIEWS.index(self.choice.view) + 1) % len(VIEWS)])

    def action_view_before(self) -> None:
        self._view(VIEWS[VIEWS.index(self.choice.view) - 1])

    async def action_view(self) -> None:
        await self.app.run_action("command_line('view ')")

    def command_view(self, name: str) -> None:
        fits = [view for view in VIEWS if view.startswith(name.lower())]
        if len(fits) == 1:
            self._view(fits[0])
        else:
            self.console_app.tell(f"no view {name!r}; there are {', '.join(VIEWS)}", "view", "warning")

    def action_view_verdict(self) -> None:
        self._view("verdict")

    def action_view_timeline(self) -> None:
        self._view("timeline")

    def action_view_distributions(self) -> None:
        self._view("distributions")

    def action_view_tail(self) -> None:
        self._view("tail")

    def action_view_fleet(self) -> None:
        self._view("fleet")

    def action_view_slowest(self) -> None:
        self._view("slowest")

    def action_view_acts(self) -> None:
        self._view("acts")

    def action_view_config(self) -> None:
        self._view("config")

    def action_open(self) -> None:
        """From the row under the cursor to what is behind it."""
        choice, item = self.choice, self.pane.item
        match item:
            case views.Finding():
                self._follow(item)
            case views.Mark() | views.Effect():
                self.action_logs_around()
            case views.Distribution():
                self._into(replace(choice.to("tail"), metric=item.metric, where=views.Where()))
            case views.TailGroup():
                self._into(replace(choice.to("slowest"), where=narrowed(choice.where, item.where)))
            case views.FleetRow():
                where = views.Where(node=item.name) if choice.fleet_by == "node" else views.Where(slot=item.name)
                self._into(replace(choice.to("slowest"), where=where))
            case views.SampleRow():
                samples = [row for row in self.pane.items if isinstance(row, views.SampleRow)]
                self.app.push_screen(LifeScreen(self._store, self.drill, samples, samples.index(item)))
            case Setting():
                words = f"{item.field} = {item.variant.value or '(none)'}"
                self._into(replace(choice.to("fleet"), fleet_by="replica", only=item.slots, only_words=words))
            case None:
                self.console_app.tell("nothing is under the cursor", BY_ID["open"].title, "warning")
            case _:
                self.action_definitions()

    def _follow(self, finding: views.Finding) -> None:
        if not finding.view:
            self.console_app.tell("no other view shows more of this", BY_ID["open"].title)
            return
        by: FleetBy = "node" if finding.by == "node" else "replica"
        choice = replace(self.choice.to(finding.view), where=finding.where, fleet_by=by, over_limit=False)
        if finding.metric is not None:
            choice = replace(choice, metric=finding.metric)
        self._into(replace(choice, by=finding.by) if finding.by is not None else choice)

    def action_back(self) -> None:
        if self.has_class("-filtering") or self.choice.text:
            self.remove_class("-filtering")
            self._to(replace(self.choice, text=""))
        elif self.trail:
            self._to(self.trail.pop())
        elif self.choice.view != "verdict":
            self._view("verdict")
        elif self._first:
            self.run_worker(self.app.run_action("mode_runs"))
        else:
            self.app.pop_screen()

    # --- other keys ------------------------------------------------------------------------------------------

    def _refused(self, name: str) -> bool:
        """Says why, where the key means nothing in this view."""
        why = self._why_not(BY_ID[name])
        if why:
            self.console_app.tell(why, BY_ID[name].title, "warning")
        return bool(why)

    def action_metric(self) -> None:
        if not self._refused("metric"):
            self._to(self.choice.next_metric())

    @on(LinesPane.Moved)
    def _moved(self, event: LinesPane.Moved) -> None:
        """The row of a distribution is drawn below, the moment of a mark in the lanes."""
        item = self.pane.item if event.pane is self.pane else None
        if isinstance(item, views.Distribution):
            self.choice = replace(self.choice, metric=item.metric)
        if isinstance(item, views.Distribution | views.Mark):
            self.paint(EVERYTHING)

    @on(LinesPane.Chosen)
    def _open_clicked(self) -> None:
        self.action_open()

    def action_group(self) -> None:
        if not self._refused("group"):
            self._to(self.choice.next_group())

    def command_group(self, name: str) -> None:
        names: tuple[str, ...] = views.BYS if self.choice.view == "tail" else get_args(FleetBy)
        fits = [by for by in names if by.startswith(name.lower())]
        if self._refused("group"):
            return
        if len(fits) != 1:
            self.console_app.tell(f"no grouping {name!r}; there are {', '.join(names)}", "group", "warning")
        elif self.choice.view == "tail":
            self._to(replace(self.choice, by=cast(views.By, fits[0])))
        else:
            self._to(replace(self.choice, fleet_by=cast(FleetBy, fits[0])))

    def action_over_limit(self) -> None:
        if self.choice.view != "tail":
            self.console_app.tell("which samples are the tail is chosen in the tail view (t)", "tail", "warning")
        elif not self.choice.over_limit and self.drill.limits.get(self.choice.metric) is None:
            self.console_app.tell(
                f"there is no limit on {NAMES[self.choice.metric]}: the tail is the slowest 1 %", "tail", "warning"
            )
        else:
            self._to(replace(self.choice, over_limit=not self.choice.over_limit))

    def action_sort(self) -> None:
        if self._refused("sort"):
            return
        if self.choice.view == "slowest":
            self._to(self.choice.next_metric())
        else:
            self._to(replace(self.choice, sort=(self.choice.sort + 1) % len(FLEET_ORDERS), reverse=False))

    def command_sort(self, name: str) -> None:
        names = self.sort_names()
        if self._refused("sort"):
            return
        if name not in names:
            self.console_app.tell(f"no order {name!r}; there are {', '.join(names)}", "sort", "warning")
        elif self.choice.view == "slowest":
            self._to(replace(self.choice, metric=cast(views.Metric, name)))
        else:
            self._to(replace(self.choice, sort=names.index(name), reverse=False))

    def action_reverse(self) -> None:
        if self.choice.view == "fleet":
            self._to(replace(self.choice, reverse=not self.choice.reverse))

    def action_filter(self) -> None:
        if self._refused("filter"):
            return
        self.console_app.expect_typing()
        self.add_class("-filtering")
        box = self.query_one("#filter", Input)
        box.value = self.choice.text
        box.focus()

    def command_filter(self, text: str) -> None:
        if not self._refused("filter"):
            self._to(replace(self.choice, text=text.strip()))

    @on(Input.Changed, "#filter")
    def _filter_as_typed(self, event: Input.Changed) -> None:
        if self.has_class("-filtering"):
            self._to(replace(self.choice, text=event.value.strip()))

    @on(Input.Submitted, "#filter")
    def _filter_done(self) -> None:
        self.remove_class("-filtering")
        self.pane.focus()

    def _moment(self) -> tuple[float, str] | None:
        """The wall clock of the row under the cursor, and what it is in words."""
        match self.pane.item:
            case views.Mark() as mark:
                return mark.unix, mark.text
            case views.Effect() as effect:
                return effect.unix, f"{effect.act} {effect.subject}".rstrip()
            case views.SampleRow() as row if self.drill.begin_unix is not None:
                return self.drill.begin_unix + row.scheduled_s, f"sample {row.seq:,d} on {row.slot or 'no replica'}"
        return None

    def action_logs_around(self) -> None:
        if self._refused("logs_around"):
            return
        moment = self._moment()
        if moment is None:
            self.console_app.tell("no moment is under the cursor", BY_ID["logs_around"].title, "warning")
        else:
            self.app.push_screen(LogsScreen(self._store, self.drill, *moment))

    def action_replay(self) -> None:
        """From the moment under the cursor on, where there is one; else from the beginning of the load."""
        moment, app = self._moment(), self.console_app
        feed = ReplayFeed(self._path, begin_unix=moment[0] if moment is not None else None)
        app.open_session(Session(feed, FleetStore(app.now_s), self._path, kind="replay", looks_only=True))

    def action_definitions(self) -> None:
        view = self.choice.view
        self.app.push_screen(DefinitionsScreen(f"Figures of the {view} view", FIGURES[view]))

    def action_copy(self) -> None:
        if words := self.pane.words():
            self.console_app.copy(words, "row")

    def action_attempt_before(self) -> None:
        self._attempt_beside(-1)

    def action_attempt_next(self) -> None:
        self._attempt_beside(1)

    def _attempt_beside(self, way: int) -> None:
        number = self.drill.beside(way)
        if number is None:
            which = "before" if way < 0 else "after"
            self.console_app.tell(f"this record has no attempt {which} this one", "attempts", "warning")
            return
        self.drill, self.trail = DrillStore(self._path, number, attempts=self.drill.attempts), []
        self._to(replace(self.choice, where=views.Where(), text="", only=frozenset(), only_words=""))
        self.set_class(self.query_one("#verdict", VerdictBanner).wanted, "-verdict")
