"""Node x GPU, one cell for each replica: a straggler is a hole in the pattern, a bad node a stripe.

A full cell is a bar whose height is its level and whose colour is the theme's ramp; a narrow terminal gets half blocks,
two replicas a character. Cells grow with the room; where a node has few replicas or the nodes are many, they are put
in several bands below one another, and where even that does not hold them all, several nodes share a cell that shows the
worst of them (`Plan`). A replica that does not serve shows its state's glyph instead of a level, so
that state is never colour alone; a replica that an alert is about has a ◆ in its cell.
One widget: 512 cells as widgets of their own cost 30 times as much.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray
from rich.style import Style
from textual.strip import Strip

from console.store.fleet import READY_CODE, SHOWN_STATES, SLOW_CODE, FleetStore
from console.store.heat import METRICS, UNKNOWN, HeatLevels, HeatMetric, fresh, metrics_of
from console.store.view import SEVERITY_OF, TableView
from console.widgets import fmt
from console.widgets.paint import GLYPHS, Painted, Run, size_of, spread, strip_of

_LABEL = 5  # "g0   " before the rows, "n    " before the axis of nodes
_CELL_MAX = 9
_CELL_GOOD = 5  # wide enough that one more band is not worth its lines
_ALERT = "◆"
_WARN, _CRIT = 2, 3  # levels of alerts from which a cell is marked


@dataclass(frozen=True, slots=True)
class Plan:
    """How nodes are laid out: `bands` of `across` cells each, `cell` columns wide; a cell is `stack` nodes."""

    bands: int
    across: int
    cell: int
    rows: int  # lines of a band
    shown: int  # cells
    stack: int = 1

    @property
    def lines(self) -> int:
        """One axis for all bands when a band is a line (it says where it begins), else one under each."""
        return self.bands * self.rows + (1 if self.rows == 1 else self.bands)


def plan_of(nodes: int, rows: int, width: int, room: int) -> Plan:
    """A cell a node if that can be, else the fewest nodes a cell with which all are shown."""
    for stack in count(1):
        cells = -(-nodes // stack)
        plan = _plan_of(cells, rows, width, room)
        if plan.shown == cells:
            return replace(plan, stack=stack)
    raise AssertionError("one cell always fits")


def _plan_of(nodes: int, rows: int, width: int, room: int) -> Plan:
    """The fewest bands whose cells are good, else the widest cells; within `room` lines if that is possible at all."""
    best = _plan(nodes, rows, width, 1)
    for bands in range(2, nodes + 1):
        plan = _plan(nodes, rows, width, bands)
        if plan.lines > room or (best.shown == nodes and best.cell >= _CELL_GOOD):
            break
        if (plan.shown, plan.cell) > (best.shown, best.cell):
            best = plan
    return best


def _plan(nodes: int, rows: int, width: int, bands: int) -> Plan:
    across = -(-nodes // bands)
    if bands > 1:
        across = -(-across // 8) * 8  # bands that begin at round numbers are read at a glance
        bands = -(-nodes // across)
    cell = max(1, min(_CELL_MAX, width // across))
    across = min(across, width // cell)
    return Plan(bands, across, cell, rows, min(nodes, across * bands))


class HeatMap(Painted):
    def __init__(self, store: FleetStore, view: TableView, *, id: str | None = None) -> None:
        super().__init__(9, id=id)
        self._store, self._view = store, view
        self._levels = HeatLevels()
        self._values = self._levels.update(store, METRICS[0])
        self._grid_of = (store.node_of, np.zeros((0, 0), dtype=np.intp))
        self._alerts: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self.metric = METRICS[0]
        self.compact = False
        self.room = 9  # lines it may take

    def on_mount(self) -> None:
        self._retitle()

    @property
    def lines(self) -> int:
        """Lines that it takes."""
        return self._lines

    def next_metric(self) -> None:
        """Round and round, those of GPUs last."""
        known = metrics_of(self._store)
        at = next((at for at, metric in enumerate(known) if metric.name == self.metric.name), -1)
        self.show(known[(at + 1) % len(known)])

    def show(self, metric: HeatMetric) -> None:
        self.metric = metric
        self._retitle()
        self.repaint()

    def _retitle(self) -> None:
        scale = "".join(f"[$heat-{level}]{block}[/]" for level, block in enumerate(fmt.BLOCKS))
        marks = f"   [$warning]{_ALERT}[/] alert" if (self._alerts >= _WARN).any() else ""
        age = self._age()
        self.entitle(f"Fleet · {self.metric.label}   {self.metric.low_text} {scale} {self.metric.high_text}{marks}{age}")

    def _age(self) -> str:
        """Of a metric whose values are older than its source makes them."""
        gpus, role, unix = self._store.gpus, self.metric.role, self._store.unix
        return f"   [$warning]{fmt.age(gpus.age_s(role, unix))} old[/]" if role and gpus.old(role, unix) else ""

    def draw(self, width: int, height: int) -> list[Strip]:
        store = self._store
        if not store.slots:
            return [Strip.blank(width)] * height
        self.metric = fresh(store, self.metric)
        self._values = self._levels.update(store, self.metric)
        self._alerts = store.gpus.levels((info.slot, info.node) for info in store.slots)
        if not self.compact:
            self._retitle()
        gpus = int(store.gpu_of.max()) + 1
        per_row = 2 if self.compact and gpus > 1 else 1
        plan = plan_of(len(store.node_names), -(-gpus // per_row), width - _LABEL, self.room)
        self.set_lines(plan.lines)
        grid = self._worst_of(self._grid(gpus + gpus % per_row), plan.stack)
        chosen = self._chosen(plan)
        lines = []
        for band in range(plan.bands):
            cells = range(band * plan.across, min((band + 1) * plan.across, plan.shown))
            for row in range(plan.rows):
                pair = range(row * per_row, (row + 1) * per_row)
                label = f"n{cells.start * plan.stack}" if plan.rows == 1 and plan.bands > 1 else f"g{pair[0]}"
                runs: list[Run] = [(f"{label:<{_LABEL}}", self.inks.faint)]
                for cell in cells:
                    here = chosen is not None and chosen[0] == cell and chosen[1] in pair
                    runs += self._cell([int(grid[cell, gpu]) for gpu in pair], plan.cell, here)
                lines.append(strip_of(runs, width))
            if plan.rows > 1:
                lines.append(self._axis(plan, cells, width))
        if plan.rows == 1:
            lines.append(self._axis(plan, range(min(plan.across, plan.shown)), width))
        return lines

    def _grid(self, gpus: int) -> NDArray[np.intp]:
        """Roster position of each node's replicas, -1 where there is none; made anew with the roster."""
        store = self._store
        if self._grid_of[0] is not store.node_of or self._grid_of[1].shape[1] != gpus:
            grid = np.full((len(store.node_names), gpus), -1, dtype=np.intp)
            grid[store.node_of, store.gpu_of] = np.arange(len(store.slots))
            self._grid_of = (store.node_of, grid)
        return self._grid_of[1]

    def _worst_of(self, grid: NDArray[np.intp], stack: int) -> NDArray[np.intp]:
        """Of the nodes that share a cell, the replica to look at: by state, then by level."""
        if stack == 1:
            return grid
        levels = self._values.astype(np.int32)
        how_bad = np.where(levels == UNKNOWN, -1, levels if self.metric.high_is_bad else -levels + 7)
        alarmed = 500 * (self._alerts >= _WARN) if len(self._alerts) == len(levels) else 0
        rank = np.append(1000 - 20 * SEVERITY_OF[self._store.state].astype(np.int32) + how_bad + alarmed, -1)
        missing = -len(grid) % stack
        padded = np.vstack([grid, np.full((missing, grid.shape[1]), -1, dtype=np.intp)])
        stacked = padded.reshape(-1, stack, grid.shape[1])
        worst = np.argmax(rank[stacked], axis=1)
        return np.take_along_axis(stacked, worst[:, None, :], axis=1)[:, 0, :]

    def _chosen(self, plan: Plan) -> tuple[int, int] | None:
        """Cell and GPU of the replica under the cursor."""
        at = self._store.index.get(self._view.cursor) if self._view.cursor is not None else None
        return (int(self._store.node_of[at]) // plan.stack, int(self._store.gpu_of[at])) if at is not None else None

    def _cell(self, slots: list[int], cell: int, chosen: bool) -> list[Run]:
        ink = self.inks
        if len(slots) == 2:
            text, style = self._half(slots[0], slots[1])
            mark = Style(underline=True, bold=True)  # both colours of a half block are taken
        else:
            text, style = self._full(slots[0])
            mark = Style(bgcolor=ink.cursor.bgcolor, underline=True)
        gap = 1 if cell > 2 else 0
        if chosen:
            style = style + mark
        alert = max((int(self._alerts[at]) for at in slots if 0 <= at < len(self._alerts)), default=0)
        if alert < _WARN:
            return [(text * (cell - gap), style), (" " * gap, ink.plain)]
        told = (ink.bad if alert >= _CRIT else ink.warn) + Style(bold=True)
        if chosen:
            told = told + Style(underline=True)
        return [(text * (cell - gap - 1), style), (_ALERT, told), (" " * gap, ink.plain)]

    def _full(self, at: int) -> Run:
        ink = self.inks
        if at < 0:
            return " ", ink.plain
        code = int(self._store.state[at])
        name, level = SHOWN_STATES[code], int(self._values[at])
        if level == UNKNOWN and self.metric.role and code in (READY_CODE, SLOW_CODE):
            return fmt.UNKNOWN, ink.faint  # its replica is well, only this is not known
        if code not in (READY_CODE, SLOW_CODE) or level == UNKNOWN:
            return GLYPHS[name], ink.states[name]
        if code == SLOW_CODE:
            return fmt.BLOCKS[level], ink.states["SLOW"] + Style(bold=True)
        return fmt.BLOCKS[level], ink.heat[level]

    def _half(self, top: int, bottom: int) -> Run:
        """Two replicas in one character; a state glyph wins, because it is the one that matters."""
        names = []
        for at in (top, bottom):
            code = int(self._store.state[at]) if at >= 0 else -1
            level = int(self._values[at]) if at >= 0 else UNKNOWN
            if level == UNKNOWN and self.metric.role and code == READY_CODE:
                return fmt.UNKNOWN, self.inks.faint
            if code == SLOW_CODE or (code >= 0 and (code != READY_CODE or level == UNKNOWN)):
                return GLYPHS[SHOWN_STATES[code]], self.inks.states[SHOWN_STATES[code]] + Style(bold=True)
            names.append(f"heat-{level}" if at >= 0 else "background")
        return "▀", self.inks.on(names[0], names[1])

    def _axis(self, plan: Plan, cells: range, width: int) -> Strip:
        ink = self.inks
        step = max(1, -(-8 // plan.cell)) if plan.cell < _CELL_GOOD else 1
        head = "n+" if plan.rows == 1 and plan.bands > 1 else "n"
        axis = ""
        for cell in cells[::step]:
            at, node = (cell - cells.start) * plan.cell, str(cell * plan.stack)
            if at + len(node) <= len(cells) * plan.cell:
                axis = axis.ljust(at) + node
        last = cells.stop >= plan.shown or plan.rows == 1
        right: list[Run] = []
        if plan.stack > 1 and last:
            right = [(f"a cell: the worst of {plan.stack} nodes", ink.warn)]
        elif self.compact and last:
            right = [(f"{self.metric.label} {self.metric.low_text} ", ink.faint), *[("█", style) for style in ink.heat]]
            right.append((f" {self.metric.high_text}", ink.faint))
        room = width - _LABEL - size_of(right) - 1
        if len(axis) > room:
            axis = axis[:room].rsplit(" ", 1)[0]  # whole labels only
        return strip_of(spread([(f"{head:<{_LABEL}}", ink.faint), (axis, ink.faint)], right, width), width)
