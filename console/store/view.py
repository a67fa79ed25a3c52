"""Which rows a table shows, in which order, where the cursor is and what is marked. Pure: no clock, no drawing.

Invariants (property-tested): once the operator has moved it, the cursor names a row, never a position, so a re-sort
cannot put it on another replica (before that it rests on the first row, where the worst one is), and a row that left the
fleet leaves the cursor on nothing rather than on its neighbour, to be found again when it comes back; the order holds still
for HOLD_S after the cursor moved and for as long as it is frozen; a row under the cursor that stops matching the filter
stays until the cursor leaves it; every row shown is one of the roster, once. Marks name rows too: they outlast sorting,
filters and reconnects, and go only with their slot. A roster with other slots is sorted at once, held or not: rows are
positions in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from console.store import filters
from console.store.columns import ALIASES, NUMBERS, TEXTS
from console.store.fleet import READY_CODE, SHOWN_STATES, STOPPED_CODE, FleetStore
from console.store.words import BadFilter

HOLD_S: Final = 5.0
RESORT_S: Final = 0.7  # asked once a second, with the jitter of a timer

Order = NDArray[np.intp]

_SEVERITY: Final = (
    "SLOW", "LOST", "REJECTED", "SUSPECT", "EVICTED", "DRAINING", "DRAINED", "WARMING", "REGISTERED", "NEW", "READY", "STOPPED",
)  # fmt: skip
_COULD_GO: Final = ("READY", "SLOW", "SUSPECT", "WARMING", "REGISTERED")  # an eviction still changes something
#: Position in _SEVERITY of each state code.
SEVERITY_OF: Final[NDArray[np.int8]] = np.array([_SEVERITY.index(name) for name in SHOWN_STATES], dtype=np.int8)


@dataclass(frozen=True, slots=True)
class Sort:
    name: str
    label: str
    descending: bool = True  # when it is not reversed


WORST: Final = Sort("worst", "worst first")
SLOT: Final = Sort("slot", "slot", descending=False)
#: Every order of replicas by name.
REPLICA_SORTS: Final = {
    sort.name: sort
    for sort in (
        WORST,
        SLOT,
        Sort("state", "state", descending=False),
        *(Sort(number.name, number.label, number.descending) for number in NUMBERS.values()),
        *(Sort(text, text, descending=False) for text in TEXTS),
    )
}
#: Those that the sort key goes round.
SORTS: Final = tuple(REPLICA_SORTS[name] for name in ("worst", "slot", "tok/s", "ratio", "ttft", "wait", "inflight"))


class BadSort(Exception):
    """No such order; the text says which there are."""


def by_value(values: NDArray[np.float64], descending: bool) -> Order:
    """Positions in that order; ties keep roster order, unknown values come last either way."""
    keyed = np.where(np.isnan(values), np.inf, -values if descending else values)
    return np.lexsort((np.arange(len(values)), keyed))


def by_text(texts: Sequence[str], *, reverse: bool) -> Order:
    """Positions in the order of the alphabet; what is not known comes last either way."""
    low = [text.lower() for text in texts]
    order = sorted(range(len(low)), key=low.__getitem__, reverse=reverse)
    return np.array([*(at for at in order if low[at]), *(at for at in order if not low[at])], dtype=np.intp)


def order_by(store: FleetStore, sort: Sort, *, reverse: bool = False) -> Order:
    """Positions of all slots in that order."""
    roster = np.arange(len(store.slots))
    sign = -1 if reverse else 1
    if sort.name == "slot":
        return roster[::sign]
    if sort.name == "worst":
        # Healthy replicas jitter by a per cent or two every window: steps of 5 % keep their rows from dancing.
        ratio = np.nan_to_num(np.round(store.floats("ratio") * 20), nan=-1.0)
        return np.lexsort((roster, -sign * ratio, sign * SEVERITY_OF[store.state], -sign * _proposed(store)))
    if sort.name == "state":
        return np.lexsort((roster, sign * SEVERITY_OF[store.state]))
    if sort.name in TEXTS:
        of = TEXTS[sort.name].of
        return by_text([of(store, info) for info in store.slots], reverse=reverse)
    return by_value(NUMBERS[sort.name].values(store), sort.descending != reverse)


def _proposed(store: FleetStore) -> NDArray[np.int8]:
    """Those that an alert proposes to evict come before all others: their answers may be wrong, which no latency shows."""
    wanted = np.zeros(len(store.slots), dtype=np.int8)
    for row in store.gpus.proposals():
        at = store.index.get(row.subject)
        if at is not None and store.state_name(at) in _COULD_GO:
            wanted[at] = 1
    return wanted


def faulty(store: FleetStore) -> NDArray[np.bool_]:
    return np.asarray((store.state != READY_CODE) & (store.state != STOPPED_CODE), dtype=np.bool_)


class RowView:
    """What views of replicas and of nodes have in common. A row's name is what cursor and marks hold on to."""

    def __init__(self, sorts: Mapping[str, Sort], cycle: tuple[Sort, ...]) -> None:
        self.rows: Order = np.zeros(0, dtype=np.intp)
        self.cursor: str | None = None
        self.bound = False  # the operator chose the row under the cursor
        self.sorts, self._cycle = sorts, cycle
        self.sort = cycle[0]
        self.reverse = False
        self.frozen = False
        self.marks: dict[str, None] = {}  # in the order of marking
        self._anchor: str | None = None  # the last one marked: where a range begins
        self._roster: object = None
        self._held_until = float("-inf")
        self._next_sort = float("-inf")
        self._forced = True
        self._refiltered = False  # the operator chose other rows: the cursor has no claim to stay
        self._last_row = 0  # of the cursor, for when its row is gone
        self._marked: list[str] | None = None  # worked out; footers ask for it at every tick

    # --- of what kind the rows are ---------------------------------------------------------------------------

    def index(self, store: FleetStore) -> Mapping[str, int]:
        """Position of each row's name; another object once the roster is another one."""
        raise NotImplementedError

    def name(self, store: FleetStore, at: int) -> str:
        raise NotImplementedError

    def slots_of(self, store: FleetStore, name: str) -> list[str]:
        """The replicas that an act on this row means."""
        raise NotImplementedError

    def _order(self, store: FleetStore) -> Order:
        raise NotImplementedError

    def _keep(self, store: FleetStore) -> NDArray[np.bool_]:
        raise NotImplementedError

    # --- order ---------------------------------------------------------------------------------------------

    def reorder(self, store: FleetStore, now_s: float) -> bool:
        """Sort and filter when due; True if the rows changed. Asked when the values on screen are painted anew, and only
        then: an order made of values that nobody sees reads as a wrong order."""
        forced = self._forced or self.index(store) is not self._roster
        if not forced and (self.frozen or now_s < self._held_until or now_s < self._next_sort):
            return False
        self._next_sort = now_s + RESORT_S
        return self._arrange(store)

    def keep_up(self, store: FleetStore) -> None:
        """Before rows are looked up: they are positions, which another roster makes meaningless."""
        if self.index(store) is not self._roster:
            self._arrange(store)

    def _arrange(self, store: FleetStore) -> bool:
        index = self.index(store)
        if index is not self._roster:
            self.marks = {name: None for name in self.marks if name in index}
            self._roster = index
        self._marked = None
        keep = self._keep(store)
        position = index.get(self.cursor) if self.bound and self.cursor is not None else None
        if position is not None and not self._refiltered:
            keep[position] = True
        order = self._order(store)
        rows = order[keep[order]]
        gone = self.bound and position is None and not self._refiltered
        self._forced = self._refiltered = False
        changed = not np.array_equal(rows, self.rows)
        self.rows = rows
        if not gone and (position is None or not keep[position]):
            self.bound = False
            self.cursor = self.name(store, int(rows[0])) if len(rows) else None
        return changed

    def force(self) -> None:
        """The operator asked for another order or filter: do it at the next tick, whatever is held."""
        self._forced = True
        self._held_until = float("-inf")

    def refilter(self) -> None:
        """The operator asked for other rows: the cursor stays only if its row is one of them."""
        self._refiltered = True
        self.force()

    def next_sort(self) -> Sort:
        at = self._cycle.index(self.sort) + 1 if self.sort in self._cycle else 0
        return self._sort_by(self._cycle[at % len(self._cycle)], reverse=False)

    def sort_by(self, text: str) -> Sort:
        """By a column's name; with a minus before it, the other way round. Raises BadSort."""
        name = text.strip().lower()
        reverse = name.startswith("-")
        name = name.removeprefix("-").strip()
        name = ALIASES.get(name, name)
        if name not in self.sorts:
            raise BadSort(f"no column {text.strip()!r} to sort by; there are {', '.join(self.sorts)} (-NAME reverses)")
        return self._sort_by(self.sorts[name], reverse=reverse)

    def click_sort(self, name: str) -> None:
        """On a heading: by that column, and once more for the other way round."""
        if name in self.sorts:
            self._sort_by(self.sorts[name], reverse=self.sort.name == name and not self.reverse)

    def turn(self) -> None:
        self._sort_by(self.sort, reverse=not self.reverse)

    def _sort_by(self, sort: Sort, *, reverse: bool) -> Sort:
        self.sort, self.reverse = sort, reverse
        self.force()
        return sort

    @property
    def downward(self) -> bool:
        """Largest (or worst) first."""
        return self.sort.descending != self.reverse

    @property
    def order_words(self) -> str:
        return f"{self.sort.label}, reversed" if self.reverse else self.sort.label

    # --- cursor --------------------------------------------------------------------------------------------

    def position(self, store: FleetStore) -> int:
        """Row of the cursor, -1 when it is on nothing that is shown."""
        self.keep_up(store)
        row = self._row_of(store, self.cursor)
        if row >= 0:
            self._last_row = row
        return row

    def _row_of(self, store: FleetStore, name: str | None) -> int:
        at = self.index(store).get(name, -1) if name is not None else -1
        found = np.flatnonzero(self.rows == at)
        return int(found[0]) if len(found) else -1

    def gone(self, store: FleetStore) -> bool:
        """The row that the operator chose is no longer part of the fleet."""
        return self.bound and self.cursor is not None and self.cursor not in self.index(store)

    def move(self, store: FleetStore, by: int, now_s: float) -> None:
        self.keep_up(store)
        if len(self.rows):
            row = self.position(store)
            # From a row that is gone, one step leads to what stands in its place.
            self.move_to(store, row + by if row >= 0 else self._last_row + (by - 1 if by > 0 else by), now_s)

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
        self.keep_up(store)
        self._held_until = now_s + HOLD_S
        if len(self.rows):
            self.bound = True
            self._last_row = min(max(row, 0), len(self.rows) - 1)
            self.cursor = self.name(store, int(self.rows[self._last_row]))

    def go_to(self, store: FleetStore, name: str, now_s: float) -> bool:
        """Choose the row of that name; False when it is not shown."""
        self.keep_up(store)
        row = self._row_of(store, name)
        if row >= 0:
            self.move_to(store, row, now_s)
        return row >= 0

    # --- marks ---------------------------------------------------------------------------------------------

    def mark(self, store: FleetStore, now_s: float) -> None:
        """The row under the cursor, or no longer; then on to the next one."""
        if self.position(store) < 0 or self.cursor is None:
            return
        if self.cursor in self.marks:
            del self.marks[self.cursor]
        else:
            self.marks[self.cursor] = None
        self._anchor, self._marked = self.cursor, None
        self.move(store, 1, now_s)

    def mark_range(self, store: FleetStore, now_s: float) -> None:
        """Everything from the row last marked to the cursor, as they stand now."""
        here = self.position(store)
        if here < 0:
            return
        start = self._row_of(store, self._anchor)
        start = start if start >= 0 else here
        for row in range(min(start, here), max(start, here) + 1):
            self.marks[self.name(store, int(self.rows[row]))] = None
        self._anchor, self._marked = self.cursor, None
        self.hold(now_s)

    def unmark(self) -> None:
        self.marks, self._anchor, self._marked = {}, None, None

    def marked(self, store: FleetStore) -> list[str]:
        """In the order of the rows, then those that the filter hides."""
        self.keep_up(store)
        if self._marked is None:
            index = self.index(store)
            chosen = np.zeros(len(index), dtype=np.bool_)
            chosen[[index[name] for name in self.marks]] = True
            shown = self.rows[chosen[self.rows]]
            chosen[shown] = False
            self._marked = [self.name(store, int(at)) for at in (*shown, *np.flatnonzero(chosen))]
        return list(self._marked)

    def hidden_marks(self, store: FleetStore) -> int:
        """Marked, and not among the rows shown."""
        self.keep_up(store)
        marked = [self.index(store)[name] for name in self.marks]
        return len(marked) - int(np.isin(self.rows, marked).sum()) if marked else 0

    def targets(self, store: FleetStore) -> list[str]:
        """Slots that an act hits: of the marked rows, else of the one under the cursor."""
        names = self.marked(store)
        if not names and self.cursor is not None and self.cursor in self.index(store):
            names = [self.cursor]
        return [slot for name in names for slot in self.slots_of(store, name)]


class TableView(RowView):
    """Replicas."""

    def __init__(self) -> None:
        super().__init__(REPLICA_SORTS, SORTS)
        self.faults_only = False
        self._filter = filters.EVERYTHING
        self._followers: list[Callable[[], None]] = []

    @property
    def text(self) -> str:
        """The filter in force."""
        return self._filter.text

    def filter(self, text: str) -> str:
        """What is wrong with it, in words; then the last good one stays in force. Empty: it is in force."""
        try:
            self._filter = filters.parse(text)
        except BadFilter as problem:
            return str(problem)
        self._changed_rows()
        return ""

    def toggle_faults(self) -> bool:
        self.faults_only = not self.faults_only
        self._changed_rows()
        return self.faults_only

    def matching(self, store: FleetStore) -> NDArray[np.bool_]:
        """By the filter, and with a fault if only those are wanted."""
        keep = self._filter.keeps(store)
        return keep & faulty(store) if self.faults_only else keep

    def on_other_rows(self, tell: Callable[[], None]) -> None:
        """Also tell a view that shows the same replicas in another way."""
        self._followers.append(tell)

    def _changed_rows(self) -> None:
        self.refilter()
        for tell in self._followers:
            tell()

    def index(self, store: FleetStore) -> Mapping[str, int]:
        return store.index

    def name(self, store: FleetStore, at: int) -> str:
        return store.slots[at].slot

    def slots_of(self, store: FleetStore, name: str) -> list[str]:
        return [name]

    def _order(self, store: FleetStore) -> Order:
        return order_by(store, self.sort, reverse=self.reverse)

    def _keep(self, store: FleetStore) -> NDArray[np.bool_]:
        return self.matching(store)
