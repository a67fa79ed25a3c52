"""The table of the Fleet screen: all replicas, or the nodes they stand on, in as many columns as fit.

Columns are named as the filter and `:sort` name them; a click on a heading sorts by it. When the terminal is too narrow,
the columns that matter least go. `wide` has all of them: the first stays, the others scroll. On a cluster a replica that
serves nothing has, instead of a row of dashes, what became of its pod; nodes have a note on pod and Kubernetes node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.style import Style
from textual.content import Content
from textual.strip import Strip

from console.store.columns import LIVE_STATES, NUMBERS, TEXTS, Floats
from console.store.fleet import SHOWN_STATES, FleetStore
from console.store.gpus import ROLE_OF
from console.store.nodes import NodeRows, NodeView
from console.store.view import SEVERITY_OF, RowView, TableView
from console.widgets import fmt
from console.widgets.fleet_columns import (
    Column,
    chosen_columns,
    in_words,
    named_columns,
    noted,
    usual_columns,
    usual_texts,
    wide_columns,
)
from console.widgets.paint import GLYPHS, Run, fitting, size_of, strip_of
from console.widgets.pod_cells import host_cell, note_cell, why_gone
from console.widgets.rows import TREND_MAX, RowsTable, sparkline

_TREND: Final = "trend"
_TREND_MIN: Final = 8
_EDGE: Final = 2  # cursor and mark
_RIM: Final = 1  # between the last column and the scroll bar
_TEXT_MAX: Final = 34
THROTTLED: Final = 0.5  # of the last minute: worth a colour


class FleetTable(RowsTable):
    def __init__(
        self, store: FleetStore, view: TableView, nodes: NodeView, now: Callable[[], float], *, id: str | None = None
    ) -> None:
        super().__init__(store, now, id=id)
        self._view, self._node_view = view, nodes
        self.by_node = False
        self.wide = False
        self.named: tuple[str, ...] = ()  # columns that the operator chose; none: the usual ones
        self.first = 0  # wide: so many columns after the first one are scrolled away
        self._columns: tuple[Column, ...] = usual_columns(store, 0, by_node=False)[0]
        self._all = len(self._columns)
        self._values: Mapping[str, Floats] = {}
        self._summed: NodeRows | None = None
        self._outliers: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._median = math.nan
        self._widths: dict[str, int] = {}
        self._widths_of: tuple[object, ...] = ()
        self._usual: dict[tuple[str, str], str] = {}  # (column, role): what most replicas of that role have

    @property
    def rows(self) -> RowView:
        return self._node_view if self.by_node else self._view

    # --- columns -------------------------------------------------------------------------------------------

    def look(self, width: int) -> None:
        store = self._store
        self._plan(width)
        if self.by_node:
            self._summed = self._node_view.summed(store)
            self._values = self._summed.columns
        else:
            names = {column.name for column in self._columns}
            self._values = {name: number.values(store) for name, number in NUMBERS.items() if name in names}
            self._outliers = store.outliers()
        self._median = store.median("tokens_s")

    def _plan(self, width: int) -> None:
        room = width - _EDGE - _RIM
        if not self.wide:
            columns, drops = usual_columns(self._store, room, by_node=self.by_node)
            if self.named and not self.by_node:
                columns, drops = named_columns(self._store, self.named), tuple(reversed(self.named))
                self._all = len(columns)
            self._columns = noted(chosen_columns(self._measured(columns), drops, room), room)
            return
        columns = self._measured(wide_columns(self._store, by_node=self.by_node))
        self._all = len(columns)
        self.first = min(self.first, self._last_first(columns, room))
        shown = [columns[0]]
        for column in columns[1 + self.first :]:
            if sum(one.width for one in shown) + column.width > room:
                break
            shown.append(column)
        self._columns = tuple(shown)

    @property
    def _on_cluster(self) -> bool:
        return self._store.cluster.view is not None

    def _last_first(self, columns: tuple[Column, ...], room: int) -> int:
        """Scrolled so far, the last column is on screen: further on there is nothing."""
        room -= columns[0].width
        fits = 0
        for column in reversed(columns[1:]):
            room -= column.width
            if room < 0:
                break
            fits += 1
        return len(columns) - 1 - max(1, fits)

    def _measured(self, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        """Names and texts are as wide as the longest of them; measured anew when the roster has changed."""
        store = self._store
        key = (store.index, store.roster_version, len(store.slots), self.wide, self.by_node, store.cluster.view)
        if len(self._widths_of) != len(key) or any(a is not b and a != b for a, b in zip(key, self._widths_of, strict=True)):
            self._widths_of = key
            names = store.node_names if self.by_node else [info.slot for info in store.slots]
            self._widths = {columns[0].name: max((len(name) for name in names), default=0) + 2}
            measured = set(TEXTS) if self.wide and not self.by_node else {"host", "rack", "pod"} if self._on_cluster else set()
            self._widths |= {
                name: max((len(TEXTS[name].of(store, info)) for info in store.slots), default=0) + 2 for name in measured
            }
            if self._on_cluster:
                self._widths["host"] += 2  # a mark stands before the name of one that somebody should look at
            if self.wide and not self.by_node:
                self._usual = usual_texts(store)
        sized = [replace(one, width=max(one.width, min(self._widths.get(one.name, 0), _TEXT_MAX))) for one in columns]
        return tuple(sized)

    def scroll_columns(self, by: int) -> None:
        if self.wide:
            self.first = max(0, self.first + by)
            self.repaint()

    def toggle_wide(self) -> None:
        self.wide, self.first = not self.wide, 0
        self.repaint()

    # --- above the rows --------------------------------------------------------------------------------------

    def heading(self, width: int) -> Strip:
        ink, rows = self.inks, self.rows
        runs: list[Run] = [(" " * _EDGE, ink.muted)]
        for column in self._columns:
            sorted_by = column.name == rows.sort.name
            title = column.title + ("↓" if rows.downward else "↑") if sorted_by else column.title
            runs.append((_fit(title, column), ink.primary + Style(bold=True) if sorted_by else ink.muted))
        if self._trend_room(width) >= _TREND_MIN:
            runs.append((f"   {_TREND}", ink.faint))
        return strip_of(runs, width)

    def heading_clicked(self, x: int) -> None:
        x -= _EDGE
        for column in self._columns:
            if 0 <= x < column.width:
                self.rows.click_sort(column.name)
                self.rows.reorder(self._store, self._now())
                self.show_cursor()
                return
            x -= column.width

    def nothing(self) -> str:
        view = self._view
        if view.faults_only:
            return f"  no fault matches /{view.text} (esc clears the filter)" if view.text else "  no faults (z shows all)"
        return f"  no {'node has a replica that' if self.by_node else 'replica'} matches (esc clears the filter)"

    def title(self) -> Content:
        """What the rows are, what decides which and in which order, what is marked and what is held."""
        rows, narrow = self.rows, self.scrollable_content_region.width < 100
        what = "Nodes" if self.by_node else "Replicas"
        arrow = "↓" if rows.downward else "↑"
        order = rows.sort.name if narrow else rows.order_words
        parts: list[Content | str | tuple[str, str]] = [f"{what} {fmt.count(len(rows.rows))} · {arrow} {order}"]
        if self._view.text:
            parts.append((f" · /{fmt.middle(self._view.text, 16 if narrow else 48)}", "$warning"))
        if self._view.faults_only:
            parts.append((" · faults only", "$warning"))
        if self.by_node and len(parts) == 1 and not narrow and not self.wide:
            parts.append((" · sums; the worst ratio and p99; the mean KV", "$ink-faint"))
        if self.wide:
            begin = 2 + self.first
            parts.append(f" · columns {begin}–{begin + len(self._columns) - 2} of {self._all} (← →)")
        if self.named and not self.by_node and not self.wide:
            gone = self._all - len(self._columns)
            parts.append(
                (f" · chosen columns{f', {gone} have no room (w)' if gone else ''}", "$warning" if gone else "$ink-faint")
            )
        if rows.marks:
            hidden = rows.hidden_marks(self._store)
            parts.append((f" · {len(rows.marks)} marked" + (f", {hidden} not shown" if hidden else ""), "$primary"))
        if rows.frozen:
            parts.append((" · ❄ order frozen", "$warning"))
        if rows.bound and rows.cursor is not None:
            held = f"{rows.cursor}, which left the fleet" if rows.gone(self._store) else rows.cursor
            parts.append((" · ▌held" if narrow else f" · ▌held on {held}, esc lets go", "$primary"))
        return Content.assemble(*parts)

    # --- rows ------------------------------------------------------------------------------------------------

    def row(self, at: int, width: int, chosen: bool) -> Strip:
        ink, rows = self.inks, self.rows
        name = rows.name(self._store, at)
        marked = name in rows.marks
        cursor = ("▌" if rows.bound else "▏") if chosen else " "  # full: held on this row; thin: rests on the first one
        runs: list[Run] = [(cursor, ink.primary), ("✓" if marked else " ", ink.primary)]
        style = ink.primary + Style(bold=True) if marked else ink.bold if chosen else ink.plain
        runs += self._node_cells(at, name, style) if self.by_node else self._replica_cells(at, name, style, width)
        return strip_of(runs, width, ink.cursor if chosen else None)

    def _replica_cells(self, at: int, slot: str, slot_style: Style, width: int) -> list[Run]:
        store, ink = self._store, self.inks
        state = store.state_name(at)
        state_style = ink.states.get(state, ink.plain)
        beyond = state == "SLOW" or (state == "READY" and bool(self._outliers[at]))
        number = ink.plain if state in LIVE_STATES else ink.faint
        runs: list[Run] = []
        why = why_gone(store, at, state) if self._on_cluster and not self.wide else ""
        for place, column in enumerate(self._columns):
            if why and column.name in NUMBERS and column.name != "age":
                return runs + self._reason_instead(at, place, why)
            if column.name == "slot":
                runs.append((_fit(slot, column), slot_style))
            elif column.name == "state":
                runs.append((_fit(f"{GLYPHS.get(state, ' ')} {state}", column), state_style))
            elif column.name == "host" and self._on_cluster:
                runs.append(host_cell(store, ink, store.slots[at].node, column.width, ink.muted))
            elif column.name in TEXTS:
                info = store.slots[at]
                text = TEXTS[column.name].of(store, info)
                if column.name == "reason" and self._on_cluster:
                    text = why_gone(store, at, state) or text
                odd = self._usual.get((column.name, info.role), text) != text or (column.name == "waived" and info.waived)
                runs.append(_text_cell(text, column, ink.warn if odd else ink.muted, ink.faint))
            else:
                runs.append(self._figure(at, column, beyond, number))
        room = self._trend_room(width)
        if room >= _TREND_MIN:
            trend = sparkline(store.history.values[at][-room:].tolist(), self._median)
            runs += [("   ", ink.plain), (trend, ink.states["SLOW"] if beyond else state_style)]
        return runs

    def _figure(self, at: int, column: Column, beyond: bool, number: Style) -> Run:
        """Of GPUs: what is older than its source makes it is grey."""
        ink, store = self.inks, self._store
        value = float(self._values[column.name][at])
        role = ROLE_OF.get(column.name, "throttle_power" if column.name == "throttle" else "")
        if role:
            style = ink.faint if math.isnan(value) or store.gpus.old(role, store.unix) else ink.plain
            if column.name == "throttle" and value >= THROTTLED:
                style = ink.warn
        elif beyond and column.name in ("dmed", "ratio", "z"):
            style = ink.states["SLOW"]
        else:
            style = ink.muted if column.name == "age" else number
        return _fit(column.write(value), column), style

    def _reason_instead(self, at: int, place: int, why: str) -> list[Run]:
        """Over all columns from this one on; how long it has been so keeps its place."""
        ink, age = self.inks, next((column for column in self._columns[place:] if column.name == "age"), None)
        figures = sum(column.width for column in self._columns[place:] if column is not age)
        runs: list[Run] = [(f"  {fmt.clause(why, figures - 3)}".ljust(figures), ink.warn)]
        if age is not None:
            runs.append((_fit(age.write(float(self._values["age"][at])), age), ink.muted))
        return runs

    def _trend_room(self, width: int) -> int:
        if self.wide or self.by_node:
            return 0
        return min(TREND_MAX, width - _EDGE - sum(column.width for column in self._columns) - 3)

    def _node_cells(self, at: int, node: str, node_style: Style) -> list[Run]:
        ink = self.inks
        runs: list[Run] = []
        serves = not math.isnan(float(self._values["tok/s"][at]))
        for column in self._columns:
            if column.name == "node":
                runs.append((_fit(node, column), node_style))
                continue
            if column.name == "states":
                runs += self._state_counts(at, column)
                continue
            if column.name == "host":
                runs.append(host_cell(self._store, ink, node, column.width, ink.plain))
                continue
            if column.name == "rack":
                runs.append(_text_cell(self._store.cluster.rack(node), column, ink.muted, ink.faint))
                continue
            if column.name == "note":
                runs.append(note_cell(self._store, ink, node, column.width))
                continue
            value = float(self._values[column.name][at])
            style = ink.plain if serves else ink.faint
            if column.name in ("slow", "missing"):
                style = ink.faint if not value else ink.states["SLOW"] if column.name == "slow" else ink.bad
            runs.append((_fit(column.write(value), column), style))
        return runs

    def _state_counts(self, at: int, column: Column) -> list[Run]:
        """`● 6 READY ▲ 1 SLOW × 1 LOST`: those that serve first, then the worst; where it is narrow the marks alone, whose names
        stand above."""
        assert self._summed is not None
        counts, ink = self._summed.states[at], self.inks
        present = [int(code) for code in np.flatnonzero(counts)]
        present.sort(key=lambda code: (SHOWN_STATES[code] != "READY", int(SEVERITY_OF[code])))
        groups: list[list[Run]] = []
        for code in present:
            name = SHOWN_STATES[code]
            told = f"{GLYPHS[name]} {counts[code]}" + (f" {name}" if in_words(column) else "")
            groups.append([(told, ink.states[name]), (" ", ink.plain)])
        width = column.width
        kept = fitting(groups, width)
        if size_of(kept) < sum(size_of(group) for group in groups) and SHOWN_STATES[present[0]] == "READY":
            kept = fitting(groups[1:], width)
        return [*kept, (" " * (width - size_of(kept)), ink.plain)]


def _fit(text: str, column: Column) -> str:
    text = fmt.clip(text, column.width - (0 if column.right else 1))
    return text.rjust(column.width) if column.right else text.ljust(column.width)


def _text_cell(text: str, column: Column, style: Style, unknown: Style) -> Run:
    """Long names lose their middle. Some headings stand off from a number before them: so do their texts."""
    lead = " " * (len(column.title) - len(column.title.lstrip()))
    shown = fmt.middle(text, column.width - 1 - len(lead)) if text else fmt.UNKNOWN
    return (lead + shown).ljust(column.width), style if text else unknown
