"""The store follows a head: snapshots, news, restarts, silence."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from console_helpers import HandClock

from console.feeds.scripted import ScriptedFleet
from console.store.fleet import SLOW_CODE, FleetStore
from console.store.heat import METRICS, UNKNOWN, HeatLevels
from console.store.rings import History
from harness.wire.control import AttemptInfo, JournalEntry, JournalNews, RosterNews


def test_snapshot_fills_the_columns_and_marks_stragglers_slow(store: FleetStore) -> None:
    assert store.floats("tokens_s").shape == (512,)
    assert store.state_name(store.index["node015/gpu3"]) == "SLOW"
    assert int((store.state == SLOW_CODE).sum()) == 2
    assert store.count_states()["LOST"] == 1


def test_silence_goes_from_live_over_stale_to_lost(store: FleetStore, hand_clock: HandClock) -> None:
    assert store.link().kind == "live"
    hand_clock.s += 2.5
    assert store.link().kind == "stale"
    assert store.link().age_s == pytest.approx(2.5)
    hand_clock.s += 10
    assert store.link().kind == "lost"


def test_an_ended_run_is_not_called_lost(hand_clock: HandClock) -> None:
    store, fleet = FleetStore(hand_clock), ScriptedFleet()
    fleet.phase = "DONE"
    store.apply(fleet.run_state())
    hand_clock.s += 100
    assert store.link().kind == "ended"
    assert store.link().trusted


def test_nothing_heard_yet_is_connecting_and_says_why() -> None:
    store = FleetStore()
    store.disconnected("no head has started yet")
    assert store.link().kind == "connecting"
    assert "no head" in store.link().detail


def test_a_newer_roster_or_epoch_asks_for_the_whole_state(store: FleetStore) -> None:
    snap = ScriptedFleet().snapshot()
    store.apply(msgspec.structs.replace(snap, roster_version=9))
    assert store.needs_state
    store.apply(ScriptedFleet().run_state())
    assert not store.needs_state
    store.apply(msgspec.structs.replace(snap, head_epoch=2))
    assert store.needs_state


def test_a_snapshot_of_another_fleet_size_is_not_drawn(store: FleetStore) -> None:
    before = store.snapshot
    store.apply(ScriptedFleet(nodes=2, gpus=2, phase="READY").snapshot())
    assert store.snapshot is before
    assert store.needs_state


def test_journal_repeats_are_dropped_and_gaps_noticed(store: FleetStore) -> None:
    last = store.journal[-1].seq
    store.apply(JournalNews([JournalEntry(last, 0.0, "head", "x"), JournalEntry(last + 1, 0.0, "head", "y")]))
    assert [entry.what for entry in list(store.journal)[-1:]] == ["y"]
    assert not store.needs_state
    store.apply(JournalNews([JournalEntry(last + 5, 0.0, "head", "z")]))
    assert store.needs_state


def test_roster_news_replaces_facts_and_attempts(store: FleetStore) -> None:
    info = msgspec.structs.replace(store.slots[3], incarnation="new-life")
    ended = AttemptInfo(1, "performance", "Server", 4000.0, 1, verdict="VALID", state="ENDED")
    store.apply(RosterNews(2, [info], [ended]))
    assert store.slots[3].incarnation == "new-life"
    assert store.attempt is not None
    assert store.attempt.verdict == "VALID"


def test_progress_takes_the_later_of_both_minimums(store: FleetStore) -> None:
    progress = store.progress()
    assert progress.duration == pytest.approx(462 / 1200)
    assert progress.queries < 1
    assert progress.eta_s >= 1200 - 462 - 1


def test_history_leaves_a_gap_for_missed_seconds() -> None:
    history = History(1, points=6)
    history.push(10.2, np.array([1.0], dtype=np.float32))
    assert not history.push(10.9, np.array([2.0], dtype=np.float32))
    history.push(13.0, np.array([3.0], dtype=np.float32))
    tail = history.values[0, -4:]
    assert tail[0] == 1.0
    assert math.isnan(tail[1])
    assert math.isnan(tail[2])
    assert tail[3] == 3.0


def test_heat_levels_hold_still_at_a_threshold(store: FleetStore) -> None:
    levels = HeatLevels()
    metric = next(metric for metric in METRICS if metric.name == "tok")
    first = levels.update(store, metric).copy()
    at = int(np.flatnonzero(first == 6)[0])
    edge = 0.5 + 0.65 * 6 / 8  # lower end of level 6
    column = store.floats("tokens_s").copy()
    store.columns["tokens_s"] = column
    column[at] = store.median("tokens_s") * (edge - 0.01)
    assert levels.update(store, metric)[at] == 6
    column[at] = store.median("tokens_s") * (edge - 0.05)
    assert levels.update(store, metric)[at] == 5
    assert levels.update(store, metric)[store.index["node010/gpu0"]] == UNKNOWN
