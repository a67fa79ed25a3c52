"""What keys do within a view of a record: which figure, which groups, which rows in which order, and what is around a row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

from textual import on
from textual.widgets import Input

from console.actions import BY_ID
from console.feeds.replay import ReplayFeed
from console.screens.base import PaintedScreen
from console.screens.drill_definitions import DefinitionsScreen
from console.screens.drill_moment import LogsScreen
from console.session import Session
from console.store.drill import FLEET_ORDERS, Choice, DrillStore, FleetBy
from console.store.drill_tables import FIGURES
from console.store.drill_words import why_not
from console.store.fleet import FleetStore
from console.widgets.clock import EVERYTHING
from console.widgets.drill import ItemsPane
from console.widgets.listing import LinesPane
from harness.analysis import views


class RecordKeys(PaintedScreen):
    """Of a screen that shows what its `choice` says: a key replaces that and shows again."""

    def __init__(self, store: FleetStore, path: Path) -> None:
        super().__init__()
        self._store, self._path = store, path
        self.choice = Choice()
        self.drill = DrillStore(path, store.attempt.number if store.attempt is not None else None)

    @property
    def pane(self) -> ItemsPane[Any]:
        """The list of the view on show."""
        raise NotImplementedError

    def show(self) -> None:
        """What is chosen."""
        raise NotImplementedError

    def _to(self, choice: Choice) -> None:
        self.choice = choice
        self.show()

    def _refused(self, name: str) -> bool:
        """Says why, where the key means nothing in this view."""
        why = why_not(name, self.choice.view)
        if why:
            self.console_app.tell(why, BY_ID[name].title, "warning")
        return bool(why)

    # --- which figure, which groups ------------------------------------------------------------------------------

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
                f"there is no limit on {views.CALLED[self.choice.metric]}: the tail is the slowest 1 %", "tail", "warning"
            )
        else:
            self._to(replace(self.choice, over_limit=not self.choice.over_limit))

    # --- which rows in which order -------------------------------------------------------------------------------

    def sort_names(self) -> list[str]:
        return [order.name for order in FLEET_ORDERS] if self.choice.view == "fleet" else list(views.METRICS)

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

    # --- what is around a row ------------------------------------------------------------------------------------

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
