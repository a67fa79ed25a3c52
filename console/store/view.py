"""Which replicas the table shows, in which order, and where the cursor is. Pure: no clock, no drawing.

Invariants (property-tested): once the operator has moved it, the cursor names a slot, never a position, so a re-sort
cannot put it on another replica (before that it rests on the first row, where the worst one is); the order holds still
for HOLD_S after the cursor moved and for as long as it is frozen; a row under the cursor that stops matching the filter
stays until the cursor leaves it; every row shown is a slot of the roster, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from console.store.fleet import READY_CODE, SHOWN_STATES, STOPPED_CODE, FleetStore

HOLD_S: Final = 5.0
RESORT_S: Final = 0.7  # asked once a second, with the jitter of a timer

_SEVERITY: Final = (
    "SLOW", "LOST", "REJECTED", "SUSPECT", "EVICTED", "DRAINING", "DRAINED", "WARMING", "REGISTERED", "NEW", "READY", "STOPPED",
)  # fmt: skip
#: Position in _SEVERITY of each state code.
SEVERITY_OF: Final[NDArray[np.int8]] = np.array([_SEVERITY.index(name) for name in SHOWN_STATES], dtype=np.int8)


@dataclass(frozen=True, slots=True)
class Sort:
    name: str
    label: str
    column: str = ""  # "" = by severity or by slot
    descending: bool = True


SORTS: Final = (
    Sort("worst", "worst first"),
    Sort("slot", "slot", descending=False),
    Sort("tok/s", "tok/s, slowest first", "tokens_s", descending=False),
    Sort("ratio", "step-time ratio", "ratio"),
    Sort("ttft", "TTFT p99", "ttft_p99_ms"),
    Sort("waiting", "waiting", "waiting"),
    Sort("in flight", "in flight", "outstanding"),
)


def order_by(store: FleetStore, sort: Sort) -> NDArray[np.intp]:
    """Positions of all slots in that order; ties keep roster order, unknown values come last."""
    count = len(store.slots)
    roster = np.arange(count)
    if sort.name == "slot":
        return roster
    if sort.name == "worst":
        # Healthy replicas jitter by a per cent or two every window: steps of 5 % keep their rows from dancing.
        ratio = np.nan_to_num(np.round(store.floats("ratio") * 20), nan=-1.0)
        return np.lexsort((roster, -ratio, SEVERITY_OF[store.state]))
    is_int = sort.column in ("waiting", "outstanding", "running", "restarts")
    values = (store.ints(sort.column) if is_int else store.floats(sort.column)).astype(np.float64)
    keyed = np.where(np.isnan(values), np.inf, -values if sort.descending else values)
    return np.lexsort((roster, keyed))


def matching(store: FleetStore, text: str, faults_only: bool) -> NDArray[np.bool_]:
    """Rows whose slot or state contains the text (case does not matter), and that have a fault if asked."""
    keep = np.ones(len(store.slots), dtype=np.bool_)
    if faults_only:
        keep &= (store.state != READY_CODE) & (store.state != STOPPED_CODE)
    wanted = text.strip().lower()
    if wanted:
        states = np.array([wanted in name.lower() for name in SHOWN_STATES], dtype=np.bool_)[store.state]
        names = np.fromiter((wanted in info.slot for info in store.slots), dtype=np.bool_, count=len(store.slots))
        keep &= states | names
    return keep


class TableView:
    def __init__(self) -> None:
        self.rows: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self.cursor: str | None = None
        self.bound = False  # the operator chose the slot under the cursor
        self.sort = SORTS[0]
        self.text = ""
        self.faults_only = False
        self.frozen = False
        self._slots: Sequence[object] = ()
        self._held_until = float("-inf")
        self._next_sort = float("-inf")
        self._forced = True
        self._refiltered = False  # the operator chose other rows: the cursor has no claim to stay

    # --- order ---------------------------------------------------------------------------------------------

    def reorder(self, store: FleetStore, now_s: float) -> bool:
        """Sort and filter when due; True if the rows changed. Asked when the values on screen are painted anew, and only
        then: an order made of values that nobody sees reads as a wrong order."""
        roster_changed = self._slots is not store.slots and len(self._slots) != len(store.slots)
        forced = self._forced or roster_changed
        if not forced and (self.frozen or now_s < self._held_until or now_s < self._next_sort):
            return False
        self._next_sort = now_s + RESORT_S
        keep = matching(store, self.text, self.faults_only)
        position = store.index.get(self.cursor) if self.bound and self.cursor is not None else None
        if position is not None and not self._refiltered:
            keep[position] = True
        order = order_by(store, self.sort)
        rows = order[keep[order]]
        self._slots, self._forced, self._refiltered = store.slots, False, False
        changed = not np.array_equal(rows, self.rows)
        self.rows = rows
        if position is None or not keep[position]:
            self.bound = False
            self.cursor = store.slots[int(rows[0])].slot if len(rows) else None
        return changed

    def force(self) -> None:
        """The operator asked for another order or filter: do it at the next tick, whatever is held."""
        self._forced = True
        self._held_until = float("-inf")

    def next_sort(self) -> Sort:
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        self.force()
        return self.sort

    def filter(self, text: str) -> None:
        self.text = text
        self._refiltered = True
        self.force()

    def toggle_faults(self) -> bool:
        self.faults_only = not self.faults_only
        self._refiltered = True
        self.force()
        return self.faults_only

    # --- cursor --------------------------------------------------------------------------------------------

    def position(self, store: FleetStore) -> int:
        """Row of the cursor, -1 when nothing is shown."""
        index = store.index.get(self.cursor) if self.cursor is not None else None
        if index is None:
            return -1
        found = np.flatnonzero(self.rows == index)
        return int(found[0]) if len(found) else -1

    def move(self, store: FleetStore, by: int, now_s: float) -> None:
        if len(self.rows):
            self.move_to(store, self.position(store) + by, now_s)

    def hold(self, now_s: float) -> None:
        """The operator is about to act on the row under the cursor, or to open it: it stays the chosen one."""
        if self.cursor is not None:
            self.bound = True
            self._held_until = now_s + HOLD_S

    def release(self) -> None:
        """Back to resting on the first row."""
        self.bound = False
        self.force()

    def move_to(self, store: FleetStore, row: int, now_s: float) -> None:
        self._held_until = now_s + HOLD_S
        if len(self.rows):
            self.bound = True
            row = min(max(row, 0), len(self.rows) - 1)
            self.cursor = store.slots[int(self.rows[row])].slot
