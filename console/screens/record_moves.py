"""The ways through a record: from view to view by key or name, into what is behind a row, back, and to other attempts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from textual import on

from console.actions import BY_ID
from console.screens.compare import AT_ONCE, CompareScreen
from console.screens.drill_moment import LifeScreen
from console.screens.record_keys import RecordKeys
from console.store.drill import VIEWS, Choice, DrillStore, FleetBy, View
from console.store.fleet import FleetStore
from console.widgets.drill import ViewTabs
from console.widgets.drill_rows import Setting
from console.widgets.drill_verdict import Problem
from console.widgets.listing import LinesPane
from harness.analysis import views


class RecordMoves(RecordKeys):
    def __init__(self, store: FleetStore, path: Path, *, first: bool) -> None:
        """`first`: opened instead of the live screen; back from it is the list of runs."""
        super().__init__(store, path)
        self._first = first
        self.trail: list[Choice] = []  # where enter came from, the last step last

    def _into(self, choice: Choice) -> None:
        """A step that esc takes back."""
        self.trail.append(self.choice)
        self._to(choice)

    def _view(self, view: View) -> None:
        if view != self.choice.view:
            self.remove_class("-filtering")  # what was being typed was for the rows of the view before
            self._to(self.choice.to(view))

    @on(ViewTabs.Clicked)
    def _tab_clicked(self, event: ViewTabs.Clicked) -> None:
        self._view(event.view)

    def action_view_next(self) -> None:
        self._view(VIEWS[(VIEWS.index(self.choice.view) + 1) % len(VIEWS)])

    def action_view_before(self) -> None:
        self._view(VIEWS[VIEWS.index(self.choice.view) - 1])

    def action_left(self) -> None:
        self.action_view_before()

    def action_right(self) -> None:
        self.action_view_next()

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

    # --- down and back -------------------------------------------------------------------------------------------

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
                self._into(replace(choice.to("slowest"), where=item.where))
            case views.FleetRow():
                where = views.Where(node=item.name) if choice.fleet_by == "node" else views.Where(slot=item.name)
                self._into(replace(choice.to("slowest"), where=where))
            case views.SampleRow():
                samples = [row for row in self.pane.items if isinstance(row, views.SampleRow)]
                self.app.push_screen(LifeScreen(self._store, self.drill, samples, samples.index(item)))
            case Setting():
                words = f"{item.field} = {item.variant.value or '(none)'}"
                self._into(replace(choice.to("fleet"), fleet_by="replica", only=item.slots, only_words=words))
            case Problem():
                self.console_app.tell(item.text, "the record", "warning")
            case None:
                self.console_app.tell("nothing is under the cursor", BY_ID["open"].title, "warning")
            case _:
                self.action_definitions()

    @on(LinesPane.Chosen)
    def _open_clicked(self) -> None:
        self.action_open()

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

    # --- attempts ------------------------------------------------------------------------------------------------

    def action_attempt_before(self) -> None:
        self._attempt_beside(-1)

    def action_attempt_next(self) -> None:
        self._attempt_beside(1)

    def action_attempts(self) -> None:
        numbers = self.drill.attempts[-AT_ONCE:]
        if len(numbers) < 2:
            self.console_app.tell("this record has one attempt; mark runs on Runs to compare them", "compare", "warning")
        else:
            self.app.push_screen(CompareScreen([(self._path, number) for number in numbers]))

    def _attempt_beside(self, way: int) -> None:
        number = self.drill.beside(way)
        if number is None:
            which = "before" if way < 0 else "after"
            self.console_app.tell(f"this record has no attempt {which} this one", "attempts", "warning")
            return
        self.drill.close()
        self.drill, self.trail = DrillStore(self._path, number, attempts=self.drill.attempts), []
        self._to(replace(self.choice, where=views.Where(), text="", only=frozenset(), only_words=""))
