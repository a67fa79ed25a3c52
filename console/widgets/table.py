"""The replica table of the Live screen: what a row shows and what stands above it. Scrolling and painting are in rows.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.style import Style
from textual.content import Content
from textual.strip import Strip

from console.store.causes import likely_cause
from console.store.columns import LIVE_STATES
from console.store.fleet import FleetStore
from console.store.view import RowView, TableView
from console.widgets import fmt
from console.widgets.paint import GLYPHS, Run, strip_of
from console.widgets.rows import TREND_MAX, RowsTable, sparkline


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    width: int
    right: bool = True


_WIDE = (
    Column("REPLICA", 14, False), Column("STATE", 13, False), Column("TOK/S", 9), Column("Δmed", 6), Column("ratio", 7),
    Column("z", 6), Column("TTFTp99", 9), Column("TPOTp99", 9), Column("KV", 5), Column("RUN", 5), Column("WAIT", 6),
    Column("OLDEST", 8), Column("FOR", 6),
)  # fmt: skip
_NARROW = (
    Column("REPLICA", 13, False), Column("STATE", 13, False), Column("TOK/S", 8), Column("Δmed", 6), Column("z", 6),
    Column("TTFTp99", 9), Column("WAIT", 6), Column("FOR", 5),
)  # fmt: skip
_TREND = "trend"
_CAUSE_MAX = 22


class ReplicaTable(RowsTable):
    def __init__(self, store: FleetStore, view: TableView, now: Callable[[], float], *, id: str | None = None) -> None:
        super().__init__(store, now, id=id)
        self._view = view
        self._outliers: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._medians = 0.0
        self.narrow = False

    @property
    def rows(self) -> RowView:
        return self._view

    def look(self, width: int) -> None:
        self._medians = self._store.median("tokens_s")
        self._outliers = self._store.outliers()

    def _columns(self) -> tuple[Column, ...]:
        return _NARROW if self.narrow else _WIDE

    def heading(self, width: int) -> Strip:
        ink = self.inks
        runs: list[Run] = [(" ", ink.muted)]
        runs += [(_fit(column.title, column), ink.muted) for column in self._columns()]
        used = 1 + sum(column.width for column in self._columns())
        if width - used - 3 >= len(_TREND):
            runs.append((f"   {_TREND}", ink.faint))
        return strip_of(runs, width)

    def nothing(self) -> str:
        view = self._view
        if view.faults_only:
            return f"  no fault matches /{view.text} (esc clears the filter)" if view.text else "  no faults (z shows all)"
        return "  no replica matches (esc clears the filter)"

    def title(self) -> Content:
        view, shown, all_of = self._view, len(self._view.rows), len(self._store.slots)
        warn = []
        if view.text:
            warn.append(f"/{fmt.middle(view.text, 10 if self.narrow else 24)}")
        if view.faults_only:
            warn.append("faults only")
        if view.frozen:
            warn.append("❄ order frozen")
        count = fmt.count(all_of) if shown == all_of else f"{fmt.count(shown)} of {fmt.count(all_of)}"
        parts: list[Content | str | tuple[str, str]] = [
            f"Replicas {count} · {'↑' if view.reverse else '↓'} {view.sort.name if self.narrow else view.sort.label}"
        ]
        parts += [(f" · {text}", "$warning") for text in warn]
        if view.bound and view.cursor is not None:
            gone = view.gone(self._store)
            held = f"{view.cursor}, which left the fleet" if gone else view.cursor
            parts.append((" · ▌held" if self.narrow else f" · ▌held on {held}, esc lets go", "$primary"))
        return Content.assemble(*parts)

    def row(self, at: int, width: int, chosen: bool) -> Strip:
        store, ink = self._store, self.inks
        name = store.state_name(at)
        base = ink.cursor if chosen else None
        live = name in LIVE_STATES
        number = ink.plain if live else ink.faint
        state = ink.states.get(name, ink.plain)
        cells = self._cells(at, name, live)
        beyond = name == "SLOW" or (name == "READY" and bool(self._outliers[at]))
        mark = ("▌" if self._view.bound else "▏") if chosen else " "  # full: held on this slot; thin: rests on the first row
        runs: list[Run] = [(mark, ink.primary)]
        for column in self._columns():
            text = cells[column.title]
            style = {"REPLICA": ink.bold if chosen else ink.plain, "STATE": state, "FOR": ink.muted}.get(column.title, number)
            if beyond and column.title in ("Δmed", "ratio", "z"):
                style = ink.states["SLOW"]
            runs.append((_fit(text, column), style))
        used = 1 + sum(column.width for column in self._columns())
        cause = likely_cause(store, at) if beyond else ""
        if cause and (room := width - used - 2) >= 8:
            told = f"  {fmt.clip(cause, min(room, _CAUSE_MAX))}"
            runs.append((told, ink.warn))
            used += len(told)
        runs += self._trend(at, min(TREND_MAX, width - used - 4), ink.states["SLOW"] if beyond else state)
        return strip_of(runs, width, base)

    def _cells(self, at: int, name: str, live: bool) -> dict[str, str]:
        store = self._store

        def number(column: str) -> float:
            return float(store.floats(column)[at]) if live else math.nan

        def whole(column: str) -> str:
            return fmt.count(int(store.ints(column)[at])) if live else fmt.UNKNOWN

        tokens, ratio, z = number("tokens_s"), number("ratio"), number("z")
        return {
            "REPLICA": store.slots[at].slot,
            "STATE": f"{GLYPHS.get(name, ' ')} {name}",
            "TOK/S": fmt.count(tokens),
            "Δmed": fmt.signed_percent(tokens / self._medians - 1) if self._medians else fmt.UNKNOWN,
            "ratio": fmt.UNKNOWN if math.isnan(ratio) else f"{ratio:.2f}x",
            "z": fmt.signed(z),
            "TTFTp99": fmt.millis(number("ttft_p99_ms")),
            "TPOTp99": fmt.millis(number("tpot_p99_ms")),
            "KV": fmt.percent(number("kv_use")),
            "RUN": whole("running"),
            "WAIT": whole("waiting"),
            "OLDEST": fmt.age(number("oldest_s")),
            "FOR": fmt.age(store.age_s(at)),
        }

    def _trend(self, at: int, room: int, style: Style) -> list[Run]:
        if room < 4:
            return []
        return [("   ", self.inks.plain), (sparkline(self._store.history.values[at][-room:].tolist(), self._medians), style)]


def _fit(text: str, column: Column) -> str:
    text = fmt.clip(text, column.width - (0 if column.right else 1))
    return text.rjust(column.width) if column.right else text.ljust(column.width)
