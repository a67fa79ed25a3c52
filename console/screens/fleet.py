"""Fleet: every replica or every node as a row; filter, order, marks, and acts on all that is marked.

CPU per tick of the whole screen at 120x36 and 4 Hz with every number changing, as tests/bench/console_rig.py measures it,
at 512 and at 4,096 replicas: 3.8 and 4.1 ms (0.39 and 0.43 of its calibration loop); by node 3.9 and 4.3 ms; with everything
marked 3.8 and 5.4 ms. Table and order once a second, header, summary and keys at every tick.
"""

from __future__ import annotations

import difflib
from typing import Any, ClassVar

from textual.app import ComposeResult

from console.actions import Where, bindings, footer_of
from console.screens.base import PaintedScreen, Tables
from console.screens.describe import describe
from console.screens.replaying import ReplayKeys
from console.screens.row_keys import RowKeys
from console.store import gpu_tables, tables
from console.store.columns import ALIASES
from console.store.fleet import FleetStore
from console.store.nodes import NodeView
from console.store.view import TableView
from console.widgets.clock import EVERYTHING, Due
from console.widgets.filter_bar import FilterBar
from console.widgets.fleet_columns import choosable
from console.widgets.fleet_summary import FleetSummary
from console.widgets.fleet_table import FleetTable
from console.widgets.footer import KeyFooter
from console.widgets.header import HeaderLine, PhaseStrip
from console.widgets.paint import Painted


class FleetScreen(RowKeys, ReplayKeys, PaintedScreen):
    BINDINGS = bindings("fleet")
    WHERE: ClassVar[Where] = "fleet"

    def __init__(self, store: FleetStore, view: TableView) -> None:
        super().__init__()
        self._store, self._view = store, view
        self._node_view = NodeView(view)
        self._seen = (False, 0)
        self._entered: tuple[str, str] | None = None  # a node was opened: (filter that shows it, filter before)

    def compose(self) -> ComposeResult:
        store, app = self._store, self.console_app
        yield HeaderLine(store, "Fleet", looks_only=app.looks_only, id="header")
        yield PhaseStrip(store, id="phase")
        yield FleetSummary(store, self._view, self._shown, id="fleet-summary")
        yield FleetTable(store, self._view, self._node_view, app.now_s, id="table")
        yield FilterBar(id="filter-bar")
        yield KeyFooter(footer_of("fleet"), app.why_not, id="footer")

    def on_mount(self) -> None:
        self.table.focus()
        self.paint(EVERYTHING)

    @property
    def table(self) -> FleetTable:
        return self.query_one("#table", FleetTable)

    def _shown(self) -> tuple[int, str]:
        return len(self.rows.rows), "nodes" if self.table.by_node else "replicas"

    # --- painting ------------------------------------------------------------------------------------------

    def paint(self, due: Due) -> int:
        self.set_class(not self._store.link().trusted, "-stale")
        seen = (self._store.snapshot is not None, len(self._store.slots))
        if seen != self._seen:  # the first numbers, or another fleet: not a moment later
            self._seen, due = seen, EVERYTHING
            self._view.force()
            self._node_view.force()
        lines = 0
        if due.table:
            self.rows.reorder(self._store, self.console_app.now_s())
            lines += self.table.repaint()
        for painted in self.query(Painted):
            if painted.display and painted.region.height and (due.numbers or painted.unpainted):
                lines += painted.repaint()
        return lines

    def moved(self) -> None:
        self.query_one(FleetSummary).repaint()

    def tables(self) -> Tables:
        store, rows = self._store, self.rows
        rows.keep_up(store)
        positions = [int(at) for at in rows.rows]
        if self.table.by_node:
            kind, nodes = "nodes", tables.nodes(store, self._node_view.summed(store))["nodes"]
            data = [nodes[at] for at in positions]
        else:
            kind, replicas = "replicas", tables.fleet(store, positions)["replicas"]
            data = [row | self._more_of_replica(at) for at, row in zip(positions, replicas, strict=True)]
        marked = (rows.name(store, at) in rows.marks for at in positions)
        return {kind: [row | {"marked": mark} for row, mark in zip(data, marked, strict=True)]} | gpu_tables.whole(store)

    def _more_of_replica(self, at: int) -> dict[str, Any]:
        info = self._store.slots[at]
        return {"engine": info.engine, "args_hash": info.args_hash, "incarnations": info.incarnations, "waived": info.waived}

    # --- keys ------------------------------------------------------------------------------------------------

    def action_reverse(self) -> None:
        self.rows.turn()
        self.resort()

    def action_nodes(self) -> None:
        self._entered = None
        self._show_nodes(not self.table.by_node)

    def _show_nodes(self, by_node: bool) -> None:
        self.table.by_node = by_node
        self.table.first = 0
        self.rows.force()
        self.resort()

    def action_wide(self) -> None:
        self.table.toggle_wide()

    def column_names(self) -> list[str]:
        return choosable(self._store)

    def action_columns(self) -> None:
        self.console_app.expect_typing()
        self.run_worker(self.app.run_action("command_line('columns ')"))

    def command_columns(self, text: str) -> None:
        """`power temp clock`, or `usual`."""
        known = choosable(self._store)
        names = [ALIASES.get(name, name) for name in text.lower().replace(",", " ").split()]
        unknown = [name for name in names if name not in known]
        if unknown:
            near = difflib.get_close_matches(unknown[0], known, 1)
            rather = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            self.console_app.tell(f"no column {unknown[0]!r}; {rather}", "columns", "error")
            return
        self.table.named = () if "usual" in names else tuple(dict.fromkeys(names))
        self.table.wide = False
        self.table.repaint()

    def action_left(self) -> None:
        self.table.scroll_columns(-1)

    def action_right(self) -> None:
        self.table.scroll_columns(1)

    def action_mark(self) -> None:
        self.rows.mark(self._store, self.console_app.now_s())
        self._marked()

    def action_mark_range(self) -> None:
        self.rows.mark_range(self._store, self.console_app.now_s())
        self._marked()

    def action_unmark(self) -> None:
        self.rows.unmark()
        self._marked()

    def _marked(self) -> None:
        self.table.show_cursor()
        self.moved()

    def action_open(self) -> None:
        """A replica; or the replicas of a node, from which esc leads back."""
        self.hold()
        name = self.rows.cursor
        if name is None or self.rows.gone(self._store):
            return
        if not self.table.by_node:
            self.console_app.open_replica(name, "Fleet")
            return
        before = self._view.text
        self._view.filter(name)
        self._entered = (self._view.text, before)
        self._show_nodes(False)

    def action_back(self) -> None:
        entered = self._entered
        if entered is None or self.has_class("-filtering") or self._view.text != entered[0]:
            self._entered = None
            super().action_back()
            return
        self._entered = None
        node = self._node_view.cursor
        self._view.filter(entered[1])
        self._show_nodes(True)
        if node is not None:
            self._node_view.go_to(self._store, node, self.console_app.now_s())
            self.resort()

    def action_describe(self) -> None:
        """Of a node: the pod that all its replicas share."""
        self.hold()
        slots = self.rows.slots_of(self._store, self.rows.cursor) if self.rows.cursor is not None else []
        if (found := describe(self.console_app, slots[0] if slots else None)) is not None:
            self.app.push_screen(found)

    def action_copy(self) -> None:
        self.hold()
        name = self.rows.cursor
        if not self.table.by_node or name is None:
            self.console_app.copy_log_path(name)
            return
        logs = dict.fromkeys(self._store.slots[int(at)].log for at in self._node_view.members(self._store, name))
        paths = "\n".join(path for path in logs if path)
        if paths:
            self.console_app.copy(paths, "log paths")
        else:
            self.console_app.tell("no log of this node is known (yet)", severity="warning")
