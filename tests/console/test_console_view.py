"""Order, filter, cursor and marks of a table, whatever the fleet does: properties rather than examples.

One machine plays a fleet (states change, slots leave, come back, stand elsewhere in the roster, the head answers anew) and
an operator, against the view of replicas and against that of nodes, and knows what has to be true after each step.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from console.feeds.scripted import ScriptedFleet
from console.store.fleet import FleetStore
from console.store.nodes import NodeView
from console.store.view import HOLD_S, REPLICA_SORTS, SORTS, BadSort, RowView, TableView
from harness.wire.control import FLOAT_COLUMNS, INT_COLUMNS, FleetSnapshot

NODES, GPUS = 4, 4
COUNT = NODES * GPUS
STATES = st.lists(st.integers(0, 9), min_size=COUNT, max_size=COUNT)
FILTERS = ["", "node001", "gpu2", "lost", "nothing-like-this", "!ready", "g1|g2 !n3", "ratio>1.0", "wait>5 kv<90%"]
BAD_FILTERS = ["z>", "nope=3", "|", "!", "kv>90"]


def fleet_store() -> tuple[ScriptedFleet, FleetStore]:
    fleet, store = ScriptedFleet(nodes=NODES, gpus=GPUS), FleetStore()
    store.apply(fleet.run_state())
    store.apply(fleet.snapshot())
    return fleet, store


def shown(store: FleetStore, view: RowView) -> list[str]:
    return [view.name(store, int(at)) for at in view.rows]


def part_of(snapshot: FleetSnapshot, positions: list[int]) -> FleetSnapshot:
    """The snapshot of a fleet that has only these replicas, in this order."""
    kinds = dict.fromkeys(FLOAT_COLUMNS, "<f4") | dict.fromkeys(INT_COLUMNS, "<i4") | {"state_code": "u1"}
    columns: dict[str, Any] = {
        name: np.frombuffer(getattr(snapshot, name), dtype=kind)[positions].tobytes() for name, kind in kinds.items()
    }
    return msgspec.structs.replace(snapshot, **columns)


class TableMachine(RuleBasedStateMachine):
    by_node = False

    def __init__(self) -> None:
        super().__init__()
        self.fleet, self.store = ScriptedFleet(nodes=NODES, gpus=GPUS), FleetStore()
        self.present = list(range(COUNT))  # positions in the fleet, in the order of the roster
        self.replicas = TableView()
        self.view: RowView = NodeView(self.replicas) if self.by_node else self.replicas
        self.now_s = 0.0
        self.text, self.sort, self.reverse = "", self.view.sort, False
        self.marks: set[str] = set()

    @initialize()
    def begin(self) -> None:
        self._state_and_snapshot()
        self._tick()

    def _state_and_snapshot(self) -> None:
        state = self.fleet.run_state()
        self.store.apply(msgspec.structs.replace(state, slots=[state.slots[at] for at in self.present]))
        self.store.apply(part_of(self.fleet.snapshot(), self.present))

    def _tick(self) -> None:
        self.view.reorder(self.store, self.now_s)

    def _by_itself(self, before: tuple[str | None, bool]) -> None:
        """Nobody touched a key: a chosen row is still the chosen one."""
        cursor, bound = before
        if bound:
            assert (self.view.cursor, self.view.bound) == (cursor, True)

    # --- the fleet -------------------------------------------------------------------------------------------

    @rule(states=STATES, slow=st.integers(0, COUNT - 1))
    def snapshot(self, states: list[int], slow: int) -> None:
        before, order = (self.view.cursor, self.view.bound), shown(self.store, self.view)
        self.now_s += 1.0
        held = self.view.frozen or self.now_s < self.view._held_until
        self.fleet.state = np.array(states, dtype=np.uint8)
        self.fleet.slow = [self.fleet.names[slow]]
        self.fleet.t_s += 1
        self.store.apply(part_of(self.fleet.snapshot(), self.present))
        self._tick()
        self._by_itself(before)
        if held:
            assert shown(self.store, self.view) == order

    @rule(present=st.lists(st.integers(0, COUNT - 1), unique=True), paint=st.booleans())
    def roster(self, present: list[int], paint: bool) -> None:
        before = (self.view.cursor, self.view.bound)
        self.present = present
        self._state_and_snapshot()
        if paint:
            self._tick()
        self._by_itself(before)
        self.marks &= set(self.view.index(self.store))

    @rule()
    def everybody_is_back(self) -> None:
        self.roster(list(range(COUNT)), True)

    @rule()
    def reconnect(self) -> None:
        before, order = (self.view.cursor, self.view.bound), shown(self.store, self.view)
        self._state_and_snapshot()
        assert shown(self.store, self.view) == order
        self._tick()
        self._by_itself(before)

    @rule(seconds=st.floats(0.1, 20))
    def wait(self, seconds: float) -> None:
        before = (self.view.cursor, self.view.bound)
        self.now_s += seconds
        self._tick()
        self._by_itself(before)

    # --- the operator ----------------------------------------------------------------------------------------

    @rule(by=st.integers(-20, 20))
    def move(self, by: int) -> None:
        rows = shown(self.store, self.view)
        row = self.view.position(self.store)
        self.view.move(self.store, by, self.now_s)
        if row >= 0:
            assert self.view.cursor == rows[min(max(row + by, 0), len(rows) - 1)]

    @rule(name=st.sampled_from([*REPLICA_SORTS, "node", "slow", "missing"]), reverse=st.booleans())
    def sort_by(self, name: str, reverse: bool) -> None:
        before = (self.view.cursor, self.view.bound)
        if name in self.view.sorts:
            self.sort, self.reverse = self.view.sort_by(("-" if reverse else "") + name), reverse
        else:
            with pytest.raises(BadSort, match=name):
                self.view.sort_by(name)
        self._tick()
        self._by_itself(before)

    @rule(text=st.sampled_from(FILTERS))
    def filter(self, text: str) -> None:
        assert self.replicas.filter(text) == ""
        self.text = text
        self._tick()

    @rule(text=st.sampled_from(BAD_FILTERS))
    def filter_with_a_mistake(self, text: str) -> None:
        before, order = (self.view.cursor, self.view.bound), shown(self.store, self.view)
        assert self.replicas.filter(text)
        assert shown(self.store, self.view) == order
        self._by_itself(before)

    @rule()
    def faults(self) -> None:
        self.replicas.toggle_faults()
        self._tick()

    @rule()
    def freeze(self) -> None:
        self.view.frozen = not self.view.frozen

    @rule()
    def hold(self) -> None:
        self.view.hold(self.now_s)

    @rule()
    def let_go(self) -> None:
        self.view.release()
        self._tick()

    @rule()
    def mark(self) -> None:
        here = self.view.cursor if self.view.position(self.store) >= 0 else None
        self.view.mark(self.store, self.now_s)
        if here is not None:
            self.marks ^= {here}

    @precondition(lambda self: self.view.position(self.store) >= 0)
    @rule()
    def mark_range(self) -> None:
        rows, here = shown(self.store, self.view), self.view.position(self.store)
        anchor = self.view._anchor
        start = rows.index(anchor) if anchor in rows else here
        self.view.mark_range(self.store, self.now_s)
        self.marks |= set(rows[min(start, here) : max(start, here) + 1])

    @rule()
    def unmark(self) -> None:
        self.view.unmark()
        self.marks = set()

    # --- what is always true ---------------------------------------------------------------------------------

    @invariant()
    def rows_are_of_the_roster_and_there_once(self) -> None:
        self.view.keep_up(self.store)
        rows = shown(self.store, self.view)
        assert len(set(rows)) == len(rows)
        assert set(rows) <= set(self.view.index(self.store))

    @invariant()
    def the_cursor_is_on_its_row(self) -> None:
        view, rows = self.view, shown(self.store, self.view)
        if not view.bound:
            assert view.cursor == (rows[0] if rows else None)
        elif not view.gone(self.store):
            assert view.cursor in rows
            assert rows[view.position(self.store)] == view.cursor
        else:
            assert view.position(self.store) == -1

    @invariant()
    def filter_sort_and_marks_are_what_the_operator_made_them(self) -> None:
        assert self.replicas.text == self.text
        assert (self.view.sort, self.view.reverse) == (self.sort, self.reverse)
        assert set(self.view.marks) == self.marks

    @invariant()
    def acts_hit_the_marked_else_the_chosen_and_nobody_else(self) -> None:
        view, store = self.view, self.store
        names = view.marked(store) or ([view.cursor] if view.cursor in view.index(store) else [])
        assert set(names) <= (self.marks or {str(view.cursor)})
        slots = view.targets(store)
        assert slots == [info for name in names for info in view.slots_of(store, str(name))]
        assert len(set(slots)) == len(slots)
        assert set(slots) <= set(store.index)
        if self.marks:
            on_show = [name for name in shown(store, view) if name in self.marks]
            assert names[: len(on_show)] == on_show
            assert view.hidden_marks(store) == len(names) - len(on_show)


class NodeMachine(TableMachine):
    by_node = True


@pytest.mark.parametrize("machine", [TableMachine, NodeMachine])
def test_cursor_marks_sort_and_filter_survive_whatever_the_fleet_does(machine: type[TableMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))  # type: ignore[no-untyped-call]


@settings(max_examples=40, deadline=None)
@given(STATES)
def test_order_holds_after_a_cursor_move_and_then_follows(states: list[int]) -> None:
    (fleet, store), view = fleet_store(), TableView()
    view.reorder(store, 0.0)
    view.move(store, 3, 10.0)
    held = shown(store, view)
    fleet.state = np.array(states, dtype=np.uint8)
    store.apply(fleet.snapshot())
    view.reorder(store, 10.0 + HOLD_S - 0.1)
    assert shown(store, view) == held
    view.reorder(store, 10.0 + HOLD_S + 1.0)
    fresh = TableView()
    fresh.reorder(store, 0.0)
    assert shown(store, view) == shown(store, fresh)


def test_frozen_order_outlasts_everything_but_the_operator() -> None:
    (fleet, store), view = fleet_store(), TableView()
    view.reorder(store, 0.0)
    view.frozen, held = True, shown(store, view)
    fleet.state[8:] = 7
    store.apply(fleet.snapshot())
    view.reorder(store, 500.0)
    assert shown(store, view) == held
    view.filter("lost")
    view.reorder(store, 500.1)
    assert len(view.rows) == 8


def test_row_under_the_cursor_stays_when_it_stops_matching() -> None:
    (fleet, store), view = fleet_store(), TableView()
    fleet.state[5] = 7
    store.apply(fleet.snapshot())
    view.toggle_faults()
    view.reorder(store, 0.0)
    view.move(store, 0, 0.0)
    chosen = view.cursor
    fleet.state[5] = 3
    store.apply(fleet.snapshot())
    view.reorder(store, 100.0)
    assert view.cursor == chosen
    assert chosen in shown(store, view)


def test_a_slot_that_left_leaves_the_cursor_on_nothing_and_finds_it_again() -> None:
    (fleet, store), view = fleet_store(), TableView()
    view.reorder(store, 0.0)
    view.sort_by("slot")
    view.reorder(store, 0.0)
    view.move_to(store, 5, 0.0)
    state = fleet.run_state()
    store.apply(msgspec.structs.replace(state, slots=state.slots[:5] + state.slots[6:]))
    view.reorder(store, 100.0)
    assert (view.cursor, view.gone(store), view.targets(store)) == (fleet.names[5], True, [])
    store.apply(state)
    view.reorder(store, 200.0)
    assert view.targets(store) == [fleet.names[5]]
    store.apply(msgspec.structs.replace(state, slots=state.slots[:5] + state.slots[6:]))
    view.move(store, 1, 300.0)
    assert view.cursor == fleet.names[6], "one step down from the gap is what stands there now"


def test_a_roster_in_another_order_moves_no_name() -> None:
    (fleet, store), view = fleet_store(), TableView()
    view.sort_by("slot")
    view.reorder(store, 0.0)
    view.move_to(store, 3, 0.0)
    view.mark(store, 0.0)
    state = fleet.run_state()
    store.apply(msgspec.structs.replace(state, slots=state.slots[::-1]))
    assert view.targets(store) == [fleet.names[3]]
    assert shown(store, view) == fleet.names[::-1]


@pytest.mark.parametrize("name", list(REPLICA_SORTS))
@pytest.mark.parametrize("sign", ["", "-"])
def test_every_sort_shows_every_slot_and_unknown_values_last(name: str, sign: str) -> None:
    (fleet, store), view = fleet_store(), TableView()
    fleet.state[3] = 7  # LOST: has no throughput
    store.apply(fleet.snapshot())
    view.sort_by(sign + name)
    view.reorder(store, 0.0)
    assert sorted(view.rows.tolist()) == list(range(COUNT))
    if name in ("tok/s", "ratio", "ttft", "wait"):
        assert shown(store, view)[-1] == fleet.names[3]


def test_sort_key_goes_round_and_a_heading_turns() -> None:
    view = TableView()
    seen = [view.sort.name, *(view.next_sort().name for _ in SORTS)]
    assert seen == [*(sort.name for sort in SORTS), "worst"]
    view.click_sort("z")
    assert (view.sort.name, view.downward) == ("z", True)
    view.click_sort("z")
    assert (view.sort.name, view.downward) == ("z", False)
    view.click_sort("no such column")
    assert view.sort.name == "z"
    assert view.next_sort().name == "worst"


def test_an_unknown_sort_says_which_there_are() -> None:
    with pytest.raises(BadSort, match=r"no column 'colour'.*tok/s"):
        TableView().sort_by("colour")


def test_a_node_is_shown_for_one_replica_and_sums_all_of_them() -> None:
    (fleet, store), replicas = fleet_store(), TableView()
    fleet.state[5] = 7
    store.apply(fleet.snapshot())
    nodes = NodeView(replicas)
    replicas.filter("lost")
    nodes.reorder(store, 0.0)
    assert shown(store, nodes) == ["node001"]
    summed = nodes.summed(store)
    at = nodes.index(store)["node001"]
    others = [store.floats("tokens_s")[position] for position in (4, 6, 7)]
    assert summed.columns["tok/s"][at] == pytest.approx(sum(others))
    assert summed.columns["missing"][at] == 1
    assert summed.columns["kv"][at] == pytest.approx(np.mean([store.floats("kv_use")[position] for position in (4, 6, 7)]))
    assert summed.columns["ttft"][at] == pytest.approx(max(store.floats("ttft_p99_ms")[position] for position in (4, 6, 7)))
    assert nodes.targets(store) == [f"node001/gpu{gpu}" for gpu in range(4)]


def test_a_node_without_figures_has_none_rather_than_zero() -> None:
    (fleet, store), nodes = fleet_store(), NodeView(TableView())
    fleet.state[:GPUS] = 7
    store.apply(fleet.snapshot())
    summed = nodes.summed(store)
    assert all(np.isnan(summed.columns[name][0]) for name in ("tok/s", "wait", "kv", "ratio", "ttft"))
    assert summed.columns["missing"][0] == GPUS
