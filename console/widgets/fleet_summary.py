"""Above the Fleet table: how many replicas are in which state, the middle one's throughput, and what the filter leaves;
on a cluster the same of its pods and nodes."""

from __future__ import annotations

from collections.abc import Callable

from textual.strip import Strip

from console.store.fleet import SHOWN_STATES, FleetStore
from console.store.view import SEVERITY_OF, TableView
from console.widgets import fmt, pods
from console.widgets.paint import GLYPHS, Painted, Run, fitting, size_of, spread, strip_of

_ONE_LINE = 116  # columns from which everything stands in one line


class FleetSummary(Painted):
    def __init__(
        self, store: FleetStore, view: TableView, shown: Callable[[], tuple[int, str]], *, id: str | None = None
    ) -> None:
        super().__init__(1, id=id)
        self._store, self._view, self._shown = store, view, shown

    def draw(self, width: int, height: int) -> list[Strip]:
        one, cluster = width >= _ONE_LINE, self._cluster(width)
        self.set_lines((1 if one else 2) + len(cluster))
        return [*self._fleet(width, one), *cluster][:height]

    def _cluster(self, width: int) -> list[Strip]:
        """`62 of 64 pods Running · 1 Pending   66 nodes: 1 NotReady   disruption budget lets 2 go now`: as much as fits."""
        store, ink = self._store, self.inks
        if store.cluster.view is None or store.ended:
            return []
        budget = pods.budget(store.cluster.view.budget) if store.cluster.view.budget is not None else ""
        parts = [pods.pods_now(store), pods.hosts_now(store), f"budget {budget}" if budget else ""]
        groups: list[list[Run]] = [[(f" {part}  ", ink.plain if at else ink.bold)] for at, part in enumerate(parts) if part]
        return [strip_of(fitting(groups, width + 2), width)]

    def _fleet(self, width: int, one: bool) -> list[Strip]:
        median = self._median()
        if one:
            room = width - size_of(median) - 1
            states = self._states(room)
            left = [*states, ("  ", self.inks.plain), *self._filter(room - size_of(states) - 2)]
            return [strip_of(spread(left, median, width), width)]
        below = strip_of(spread(self._filter(width - size_of(median) - 1), median, width), width)
        return [strip_of(self._states(width), width), below]

    def _states(self, room: int) -> list[Run]:
        ink, store = self.inks, self._store
        if not store.slots:
            return [(" no replicas known yet", ink.muted)]
        counts = store.count_states()
        order = sorted(counts, key=lambda name: (name != "READY", int(SEVERITY_OF[SHOWN_STATES.index(name)])))
        groups: list[list[Run]] = [[(f" {fmt.count(len(store.slots))} replicas ", ink.bold)]]
        groups += [[(f" {GLYPHS[name]} {fmt.count(counts[name])} {name} ", ink.states[name])] for name in order]
        return fitting(groups, room)

    def _median(self) -> list[Run]:
        ink = self.inks
        return [("median ", ink.muted), (f"{fmt.count(self._store.median('tokens_s'))} tok/s ", ink.plain)]

    def _filter(self, room: int) -> list[Run]:
        ink, view = self.inks, self._view
        if not view.text and not view.faults_only:
            return [(" no filter: all rows", ink.faint)] if room >= 24 else []
        shown, what = self._shown()
        all_of = len(self._store.node_names if what == "nodes" else self._store.slots)
        count = f"{fmt.count(shown)} of {fmt.count(all_of)}"
        words = ((f"/{view.text}" if view.text else "") + (" faults only" if view.faults_only else "")).strip()
        if len(words) + len(count) + 3 > room:  # the table's title has all of it
            words = "filtered"
        return [(f" {words}: ", ink.warn), (count, ink.plain)]
