"""Node x GPU, one cell for each replica: a straggler is a hole in the pattern, a bad node a stripe.

A full cell is a bar whose height is its level and whose colour is the theme's ramp; a narrow terminal gets half blocks,
two replicas a character. A replica that does not serve shows its state's glyph instead of a level, so that state is
never colour alone. One widget: 512 cells as widgets of their own cost 30 times as much.
"""

from __future__ import annotations

from rich.style import Style
from textual.strip import Strip

from console.store.fleet import READY_CODE, SHOWN_STATES, SLOW_CODE, FleetStore
from console.store.heat import METRICS, UNKNOWN, HeatLevels
from console.store.view import TableView
from console.widgets import fmt
from console.widgets.paint import GLYPHS, Painted, Run, spread, strip_of

_LABEL = 4  # "g0  " before the rows, "n   " before the axis of nodes


class HeatMap(Painted):
    def __init__(self, store: FleetStore, view: TableView, *, id: str | None = None) -> None:
        super().__init__(9, id=id)
        self._store, self._view = store, view
        self._levels = HeatLevels()
        self._values = self._levels.update(store, METRICS[0])
        self.metric = METRICS[0]
        self.compact = False

    def on_mount(self) -> None:
        self._retitle()

    def next_metric(self) -> str:
        self.metric = METRICS[(METRICS.index(self.metric) + 1) % len(METRICS)]
        self._retitle()
        self.repaint()
        return self.metric.label

    def _retitle(self) -> None:
        scale = "".join(f"[$heat-{level}]{block}[/]" for level, block in enumerate(fmt.BLOCKS))
        self.border_title = f"Fleet · {self.metric.label}   {self.metric.low_text} {scale} {self.metric.high_text}"

    def draw(self, width: int, height: int) -> list[Strip]:
        store = self._store
        if not store.slots:
            return [Strip.blank(width)] * height
        gpus = int(store.gpu_of.max()) + 1
        grid = {(int(n), int(g)): at for at, (n, g) in enumerate(zip(store.node_of, store.gpu_of, strict=True))}
        self._values = self._levels.update(store, self.metric)
        rows = (gpus + 1) // 2 if self.compact else gpus
        self.set_lines(rows + 1)
        nodes = len(store.node_names)
        cell = max(1, min(5, (width - _LABEL) // nodes))
        shown = min(nodes, (width - _LABEL) // cell)
        lines = []
        for row in range(min(rows, height - 1)):
            pair = [row * 2, row * 2 + 1] if self.compact else [row]
            runs: list[Run] = [(f"g{pair[0]:<3}", self.inks.faint)]
            for node in range(shown):
                runs += self._cell([grid.get((node, gpu), -1) for gpu in pair], cell)
            lines.append(strip_of(runs, width))
        return [*lines, self._axis(shown, nodes, cell, width)]

    def _cell(self, slots: list[int], cell: int) -> list[Run]:
        ink = self.inks
        chosen = any(at >= 0 and self._store.slots[at].slot == self._view.cursor for at in slots)
        if len(slots) == 2:
            text, style = self._half(slots[0], slots[1])
            mark = Style(underline=True, bold=True)  # both colours of a half block are taken
        else:
            text, style = self._full(slots[0])
            mark = Style(bgcolor=ink.cursor.bgcolor, underline=True)
        body = text * (cell - 1 if cell > 2 else cell)
        if chosen:
            style = style + mark
        return [(body, style), (" ", ink.plain)] if cell > 2 else [(body, style)]

    def _full(self, at: int) -> Run:
        ink = self.inks
        if at < 0:
            return " ", ink.plain
        code = int(self._store.state[at])
        name, level = SHOWN_STATES[code], int(self._values[at])
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
            if code == SLOW_CODE or (code >= 0 and (code != READY_CODE or level == UNKNOWN)):
                return GLYPHS[SHOWN_STATES[code]], self.inks.states[SHOWN_STATES[code]] + Style(bold=True)
            names.append(f"heat-{level}" if at >= 0 else "background")
        return "▀", self.inks.on(names[0], names[1])

    def _axis(self, shown: int, nodes: int, cell: int, width: int) -> Strip:
        ink = self.inks
        step = max(1, -(-8 // cell))
        axis = ""
        for node in range(0, shown, step):
            label = f"{node}"
            if node * cell + len(label) <= shown * cell:
                axis = axis.ljust(node * cell) + label
        right: list[Run] = []
        if nodes > shown:
            right = [(f"+{nodes - shown} nodes not shown", ink.warn)]
        elif self.compact:
            right = [(f"{self.metric.label} {self.metric.low_text} ", ink.faint), *[("█", style) for style in ink.heat]]
            right.append((f" {self.metric.high_text}", ink.faint))
        room = width - _LABEL - sum(len(text) for text, _ in right) - 1
        if len(axis) > room:
            axis = axis[:room].rsplit(" ", 1)[0]  # whole labels only
        return strip_of(spread([("n   ", ink.faint), (axis, ink.faint)], right, width), width)
