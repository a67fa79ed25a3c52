"""Order, filter and cursor of the table, whatever the fleet does: properties rather than examples."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from console.feeds.scripted import ScriptedFleet
from console.store.fleet import FleetStore
from console.store.view import HOLD_S, SORTS, TableView

NODES, GPUS = 4, 4
STATES = st.lists(st.integers(0, 9), min_size=NODES * GPUS, max_size=NODES * GPUS)


def fleet_store() -> tuple[ScriptedFleet, FleetStore]:
    fleet, store = ScriptedFleet(nodes=NODES, gpus=GPUS), FleetStore()
    store.apply(fleet.run_state())
    store.apply(fleet.snapshot())
    return fleet, store


def shown(store: FleetStore, view: TableView) -> list[str]:
    return [store.slots[int(at)].slot for at in view.rows]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("states"), STATES),
        st.tuples(st.just("move"), st.integers(-20, 20)),
        st.tuples(st.just("sort"), st.none()),
        st.tuples(st.just("filter"), st.sampled_from(["", "node001", "gpu2", "lost", "nothing like this"])),
        st.tuples(st.just("faults"), st.none()),
        st.tuples(st.just("freeze"), st.none()),
        st.tuples(st.just("wait"), st.floats(0.1, 20)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_cursor_keeps_its_slot_until_the_operator_or_the_filter_takes_it(steps: list[tuple[str, object]]) -> None:
    (fleet, store), view, now_s = fleet_store(), TableView(), 0.0
    view.reorder(store, now_s)
    for step, value in steps:
        before, bound = view.cursor, view.bound
        if step == "states":
            fleet.state = np.array(value, dtype=np.uint8)
            store.apply(fleet.snapshot())
        elif step == "move":
            view.move(store, int(str(value)), now_s)
        elif step == "sort":
            view.next_sort()
        elif step == "filter":
            view.filter(str(value))
        elif step == "faults":
            view.toggle_faults()
        elif step == "freeze":
            view.frozen = not view.frozen
        else:
            now_s += float(str(value))
        view.reorder(store, now_s)
        rows = shown(store, view)
        assert len(set(rows)) == len(rows)
        assert (view.cursor in rows) if rows else view.cursor is None
        if bound and step in ("states", "sort", "freeze", "wait"):
            assert view.cursor == before


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
    fleet.state[:8] = 7
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


def test_every_sort_shows_every_slot() -> None:
    (_, store), view = fleet_store(), TableView()
    for _ in SORTS:
        view.reorder(store, 0.0)
        assert sorted(view.rows.tolist()) == list(range(NODES * GPUS))
        view.next_sort()
