"""Keys of a screen around one table: moving, ordering, filtering, holding the row under the cursor. Mixed into PaintedScreens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from textual.widgets import Input

from console.store.fleet import FleetStore
from console.store.view import BadSort, RowView, TableView
from console.widgets.filter_bar import FilterBar
from console.widgets.paint import Painted
from console.widgets.rows import RowsTable

if TYPE_CHECKING:
    from console.screens.base import PaintedScreen as _Screen
else:
    _Screen = object


HINT: Final = "a b both · a|b either · !a not · ↵ keeps it · esc clears"


class RowKeys(_Screen):
    """The screen has a RowsTable `#table` and a FilterBar `#filter-bar`; its class `-filtering` shows the latter."""

    _store: FleetStore
    _view: TableView  # the replicas: they have the filter

    @property
    def rows_table(self) -> RowsTable:
        return self.query_one("#table", RowsTable)

    @property
    def rows(self) -> RowView:
        """Those on show."""
        return self.rows_table.rows

    def moved(self) -> None:
        """The cursor is elsewhere, or what it means has changed."""

    def resort(self) -> None:
        """At once, because the operator asked for it."""
        self.rows.reorder(self._store, self.console_app.now_s())
        self.rows_table.show_cursor()
        self.moved()

    def wipe(self) -> None:
        for painted in self.query(Painted):
            painted.wipe()
        self.rows_table.wipe()

    # --- moving ----------------------------------------------------------------------------------------------

    def action_up(self) -> None:
        self._move(-1)

    def action_down(self) -> None:
        self._move(1)

    def action_page_up(self) -> None:
        self._move(-self.rows_table.page)

    def action_page_down(self) -> None:
        self._move(self.rows_table.page)

    def action_top(self) -> None:
        self._move(-len(self.rows.rows))

    def action_bottom(self) -> None:
        self._move(len(self.rows.rows))

    def _move(self, by: int) -> None:
        self.rows_table.move(by)
        self.moved()

    def hold(self) -> None:
        self.rows.hold(self.console_app.now_s())
        self.rows_table.repaint()

    def targets(self) -> list[str]:
        return self.rows.targets(self._store)

    def on_rows_table_chosen(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        raise NotImplementedError

    # --- order -----------------------------------------------------------------------------------------------

    def sort_names(self) -> list[str]:
        return list(self.rows.sorts)

    def action_sort(self) -> None:
        self.rows.next_sort()
        self.resort()

    def command_sort(self, text: str) -> None:
        try:
            self.rows.sort_by(text)
        except BadSort as problem:
            self.console_app.tell(str(problem), "not sorted", "error")
        else:
            self.resort()

    def action_freeze(self) -> None:
        self.rows.frozen = not self.rows.frozen
        self.rows_table.repaint()

    def action_faults(self) -> None:
        self._view.toggle_faults()
        self.resort()

    # --- filter ----------------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        self.console_app.expect_typing()
        self.add_class("-filtering")
        self.query_one(FilterBar).open(self._view.text)
        self._say_hint()

    def command_filter(self, text: str) -> None:
        problem = self._view.filter(text)
        if problem:
            self.console_app.tell(problem, "not a filter", "error")
        else:
            self.resort()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter" and self.has_class("-filtering"):
            problem = self._view.filter(event.value)
            if problem:
                self.query_one(FilterBar).say(problem, wrong=True)
            else:
                self.resort()
                self._say_hint()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id != "filter":
            return
        event.stop()
        if not self._view.filter(event.value):  # what is wrong stands beside it already
            self._stop_filtering()
            self.resort()

    def _say_hint(self) -> None:
        self.query_one(FilterBar).say(HINT)

    def _stop_filtering(self) -> None:
        self.remove_class("-filtering")
        self.rows_table.focus()

    def action_back(self) -> None:
        if self.has_class("-filtering") or self._view.text:
            self._stop_filtering()
            self._view.filter("")
        elif self.rows.bound:
            self.rows.release()
        self.resort()
        self.rows_table.focus()
