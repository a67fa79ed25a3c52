"""While the fleet comes up: how many replicas are ready of how many, who is missing and why, and when patience ends. On a
cluster the reasons are a board: a line for each, with how many pods it keeps waiting and for how long."""

from __future__ import annotations

from textual.strip import Strip

from console.store.cluster import waiting
from console.store.fleet import FleetStore
from console.widgets import fmt
from console.widgets.paint import GLYPHS, Painted, Run, strip_of
from console.widgets.pending import board, lines_of

_ORDER = ("READY", "WARMING", "REGISTERED", "NEW", "REJECTED", "LOST", "EVICTED", "SUSPECT")
LINES, LINES_TALL = 10, 13


class BarrierPane(Painted):
    def __init__(self, store: FleetStore, *, id: str | None = None) -> None:
        super().__init__(LINES, id=id)
        self._store = store
        self.border_title = "Waiting for the fleet"

    def draw(self, width: int, height: int) -> list[Strip]:
        store, ink, snap = self._store, self.inks, self._store.snapshot
        states, expected = store.count_states(), len(store.slots)
        ready = states.get("READY", 0)
        fraction = ready / expected if expected else 0.0
        room = max(10, min(48, width - 34))
        lines = [
            strip_of(
                [
                    (f"{fmt.count(ready)} of {fmt.count(expected)} ready  ", ink.bold), ("▕", ink.rule),
                    (fmt.bar(fraction, room), ink.primary), ("▏", ink.rule), (f" {fmt.percent(fraction)}", ink.plain),
                ],
                width,
            ),
            strip_of(self._states(states), width),
            strip_of(self._quorum(expected), width),
        ]  # fmt: skip
        rows = max(0, height - len(lines) - 1)
        if store.cluster.view is not None:
            groups = waiting(store)
            self.set_lines(min(LINES_TALL, max(LINES, len(lines) + lines_of(groups, width))))
            return lines + board(store, groups, ink, width, rows + 1)
        missing = list(snap.missing) if snap else []
        total = snap.missing_total if snap else 0
        per_line = 2 if width >= 110 and len(missing) > rows else 1  # a few have the whole width: their reasons are long
        room_for = rows * per_line
        shown = missing[:room_for]
        column = width // per_line
        for start in range(0, len(shown), per_line):
            runs: list[Run] = []
            for text in shown[start : start + per_line]:
                slot, _, why = text.partition(": ")
                padded = fmt.clip(why, column - 18).ljust(column - 17)
                runs += [("· ", ink.warn), (f"{slot:<14} ", ink.plain), (padded, ink.muted)]
            lines.append(strip_of(runs, width))
        if total > len(shown):
            lines.append(strip_of([(f"… and {fmt.count(total - len(shown))} more missing", ink.muted)], width))
        return lines

    def _states(self, states: dict[str, int]) -> list[Run]:
        runs: list[Run] = []
        for name in _ORDER:
            if states.get(name):
                runs.append((f"{GLYPHS[name]} {states[name]} {name.lower()}   ", self.inks.states[name]))
        return runs

    def _quorum(self, expected: int) -> list[Run]:
        store, ink = self._store, self.inks
        if store.spec is None:
            return []
        barrier = store.spec.fleet.barrier
        needs = f"all {fmt.count(expected)}" if barrier.min_ready is None else f"at least {fmt.count(barrier.min_ready)}"
        runs: list[Run] = [("goes on with ", ink.muted), (needs, ink.plain)]
        if store.snapshot is not None and store.snapshot.phase_since_unix:
            waited_s = max(0.0, store.snapshot.unix - store.snapshot.phase_since_unix)  # both by the head's clock
            if waited_s < 10 * barrier.deadline_s:
                runs += [("   waited ", ink.muted), (f"{fmt.clock(waited_s)} of {fmt.clock(barrier.deadline_s)}", ink.plain)]
        return runs
