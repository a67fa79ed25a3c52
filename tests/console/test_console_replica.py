"""The Replica screen: one slot beside its fleet, what it holds, what its log says; and the memory behind its charts."""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from console_helpers import AppMaker, HandClock, settle, text_of, wait_for
from textual.pilot import Pilot

from console.app import PacelineApp
from console.feeds.scripted import ScriptedFeed, ScriptedFleet
from console.screens.detail import ReplicaScreen
from console.screens.live import LiveScreen
from console.store.causes import reason_of
from console.store.compare import compared, differences, told
from console.store.fleet import FleetStore
from console.store.rings import HISTORY_POINTS, SLACK, History
from console.store.tail import LogTail
from console.widgets import fmt
from console.widgets.band import band_of
from console.widgets.clock import EVERYTHING
from harness.records.logs import level_of
from harness.wire.inquiry import InFlight, ReplicaDetail

SIZES = [(120, 36), (80, 24)]


def feed_of(app: PacelineApp) -> ScriptedFeed:
    feed = app.session.feed
    assert isinstance(feed, ScriptedFeed)
    return feed


async def open_slot(pilot: Pilot[Any], app: PacelineApp, slot: str = "node015/gpu3") -> ReplicaScreen:
    await settle(pilot, app)
    app.open_replica(slot, "Live")
    await settle(pilot, app)
    screen = app.screen
    assert isinstance(screen, ReplicaScreen)
    return screen


def pane(screen: ReplicaScreen, name: str) -> str:
    return text_of(screen.query_one(f"#{name}"))


def title(screen: ReplicaScreen, name: str) -> str:
    return str(screen.query_one(f"#{name}").border_title)


# --- memory ------------------------------------------------------------------------------------------------


def test_history_keeps_the_last_minutes_through_its_slack() -> None:
    history = History(3)
    for second in range(1, HISTORY_POINTS + 3 * SLACK):
        history.push(float(second), np.full(3, second, dtype=np.float32))
    assert history.values.shape == (3, HISTORY_POINTS)
    newest = HISTORY_POINTS + 3 * SLACK - 1
    assert history.values[1].tolist() == list(range(newest - HISTORY_POINTS + 1, newest + 1))
    assert history.unix[-1] == newest


def test_a_long_silence_leaves_nothing_old_behind_and_a_clock_set_back_begins_anew() -> None:
    history = History(1, points=10)
    history.push(100.0, np.ones(1, dtype=np.float32))
    history.push(100.0 + 5000, np.ones(1, dtype=np.float32))
    assert np.isnan(history.values[0, :-1]).all()
    history.push(101.0, np.ones(1, dtype=np.float32))
    assert np.isnan(history.values[0, :-1]).all()


def test_the_band_is_of_those_that_serve() -> None:
    history = History(11, points=4)
    values = np.arange(11, dtype=np.float32)
    values[10] = 1000.0
    serving = np.ones(11, dtype=np.bool_)
    serving[10] = False
    history.push(1.0, values, serving)
    assert history.band[:, -1].tolist() == [1.0, 4.0, 8.0]


def test_a_replica_that_is_gone_waits_for_nothing(store: FleetStore) -> None:
    waiting = store.histories["waiting"].values
    assert math.isnan(waiting[store.index["node010/gpu0"], -1])
    assert waiting[store.index["node015/gpu3"], -1] > 0
    band = band_of(store.histories["tokens_s"], store.index["node015/gpu3"])
    assert band.own[-1] < band.low[-1] < band.median[-1] < band.high[-1]


def test_remembering_a_second_of_512_replicas_is_cheap() -> None:
    histories = [History(512) for _ in range(3)]
    column = np.random.default_rng(1).normal(11_000, 90, 512).astype(np.float32)
    serving = np.ones(512, dtype=np.bool_)
    began_s = time.process_time()
    for second in range(500):
        for history in histories:
            history.push(1000.0 + second, column, serving)
    each_ms = (time.process_time() - began_s) / 500 * 1000
    print(f"{each_ms:.3f} ms a second of the run")
    assert each_ms < 1.0


# --- differences -------------------------------------------------------------------------------------------


def test_what_differs_is_told_with_the_majority(store: FleetStore) -> None:
    found = differences(store.slots, store.index["node006/gpu6"])
    assert [(each.name, each.own, each.against) for each in found] == [
        ("arguments", "b07e5a13", "majority: 9f2c41d0 in 511 of 512"),
        ("max_num_seqs", "384", "majority: 512 in 511 of 512"),
    ]
    assert differences(store.slots, store.index["node015/gpu3"]) == []


def test_places_are_no_differences_and_roles_are_compared_apart(store: FleetStore) -> None:
    slots = [
        msgspec.structs.replace(info, role="prefill", args_hash="other", host=f"host-{at}") if at < 100 else info
        for at, info in enumerate(store.slots)
    ]
    assert differences(slots, 3) == []
    assert compared(slots, 3) == 100


def test_who_has_not_registered_is_neither_compared_nor_counted(store: FleetStore) -> None:
    slots = list(store.slots)
    slots[0] = msgspec.structs.replace(slots[0], incarnation="", args_hash="")
    assert differences(slots, 0) == []
    assert compared(slots, 0) == 0
    assert compared(slots, 1) == 511


def test_a_fact_that_only_others_have_is_a_difference(store: FleetStore) -> None:
    slots = list(store.slots)
    facts = {name: value for name, value in slots[5].facts.items() if name != "kernel"}
    slots[5] = msgspec.structs.replace(slots[5], facts=facts)
    found = differences(slots, 5)
    assert [(each.name, each.own, each.majority) for each in found] == [("kernel", "", "triton")]


def test_of_two_camps_of_one_size_neither_differs(store: FleetStore) -> None:
    slots = [msgspec.structs.replace(info, args_hash="ab"[at % 2]) for at, info in enumerate(store.slots[:10])]
    assert differences(slots, 0) == differences(slots, 1) == []


# --- the log's end -----------------------------------------------------------------------------------------


def answer(lines: list[str], octets: int, path: str = "/log") -> ReplicaDetail:
    return ReplicaDetail("1", "node000/gpu0", "a", log=path, log_lines=lines, log_size=octets, log_written_s=1.0)


def test_lines_under_the_readers_eyes_stay_until_the_end_is_asked_for() -> None:
    tail = LogTail()
    tail.take(answer(["a", "b", "c"], 6))
    tail.pager.move(-1)
    tail.take(answer(["b", "c", "d"], 8))
    assert (list(tail.lines), tail.newer) == (["a", "b", "c"], 2)
    tail.pager.move_to(10)
    tail.take(answer(["c", "d", "e"], 10))
    assert (list(tail.lines), tail.newer, tail.pager.cursor) == (["c", "d", "e"], 0, 2)


def test_the_log_of_a_new_incarnation_replaces_the_old_one_at_once() -> None:
    tail = LogTail()
    tail.take(answer(["a", "b", "c"], 600))
    tail.pager.move(-1)
    tail.take(answer(["new"], 4))
    assert list(tail.lines) == ["new"]
    assert tail.pager.follow


def test_levels_and_sizes_in_words() -> None:
    assert level_of("12:00 WARNING  runner: slow") == "warn"
    assert level_of("Traceback (most recent call last):") == "error"
    assert level_of("no errors were found") == "info"
    assert [fmt.size(octets) for octets in (12, 4096, 7_300_000)] == ["12 B", "4.1 kB", "7.3 MB"]


# --- the screen --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
async def test_it_shows_now_the_fleets_band_samples_events_and_the_log(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        screen = await open_slot(pilot, app)
        now = pane(screen, "now-facts")
        assert "▲ SLOW for" in now
        assert "against the median" in now
        assert "same as the fleet" in pane(screen, "differences")
        assert title(screen, "in-flight").startswith("In flight ")
        samples = pane(screen, "in-flight").splitlines()
        assert samples[0].split() == ["SAMPLE", "AGE", "PROMPT", "TRIES", "FIRST", "TOKEN"]
        ages = [float(line.split()[1]) for line in samples[1:7]]
        assert ages == sorted(ages, reverse=True)
        assert "younger" in samples[7]
        for chart in ("tokens-chart", "step-chart", "waiting-chart"):
            assert "fleet p10-p90" in title(screen, chart)
        assert any("⠀" < letter <= "⣿" for letter in pane(screen, "tokens-chart"))
        assert "straggler" in pane(screen, "slot-events")
        assert "generation" in pane(screen, "replica-log")
        assert "before them left out" in title(screen, "replica-log")
        assert "incarnation" in pane(screen, "own-facts")
        assert "arguments" in pane(screen, "own-facts")


async def test_a_slow_replica_has_its_stragglers_reason_not_the_one_of_its_start(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_slot(pilot, app)
        at = app.store.index["node015/gpu3"]
        app.store.slots[at].reason = "warm after 2 rounds"
        assert reason_of(app.store, at) == "ratio 1.69, z 18.2"
        screen.paint(EVERYTHING)
        assert "warm after" not in pane(screen, "now-facts")
        assert "(by the heartbeat)" in pane(screen, "now-facts")
        assert "esc Back" in text_of(screen.query_one("#footer"))


async def test_an_evicted_replica_shows_no_numbers_of_its_past(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_slot(pilot, app, "node012/gpu1")
        facts = {line[:13].strip(): line[13:].strip() for line in pane(screen, "now-facts").splitlines()}
        assert facts["TTFT p99"].startswith("–")
        assert facts["tok/s"] == "–"


async def test_a_log_of_several_replicas_says_so(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_slot(pilot, app)
        assert title(screen, "replica-log").startswith("Log of node015-gpu3.log · ")
        at = app.store.index["node015/gpu3"]
        for info in app.store.slots[at : at + 4]:
            info.log = "/logs/node015.log"
        assert screen._log_name("/logs/node015.log") == "node015.log, shared by 4 replicas"


def test_facts_are_told_as_words() -> None:
    assert told(["a", {"tp": 4, "ep": False}, None]) == "a, tp 4, ep no, none"


async def test_the_page_scrolls_to_its_end_on_a_small_terminal(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_slot(pilot, app)
        await pilot.press("end")
        await wait_for(lambda: screen.query_one("#own-facts").region.bottom <= 23)


@pytest.mark.parametrize("size", [*SIZES, (160, 48), (60, 15)])
async def test_no_line_is_wider_than_its_pane(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        screen = await open_slot(pilot, app, "node006/gpu6")
        for widget in screen.query("Painted"):
            for y in range(widget.content_size.height):
                assert widget.render_line(y).cell_length <= widget.content_size.width, widget.id


async def test_only_what_differs_is_listed(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_slot(pilot, app, "node006/gpu6")
        lines = pane(screen, "differences").splitlines()
        assert "▲ max_num_seqs  384  majority: 512 in 511 of 512" in lines
        assert len(lines) == 2
        assert [row["fact"] for row in screen.tables()["differences"]] == ["arguments", "max_num_seqs"]


async def test_l_gives_the_page_to_the_log_which_stays_where_it_is_scrolled(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_slot(pilot, app)
        await pilot.press("l")
        await settle(pilot, app)
        assert screen.query_one("#replica-log").size.height > 25
        assert not screen.query_one("#replica-tier").display
        await pilot.press("up", "pageup")
        before = pane(screen, "replica-log")
        feed_of(app).fleet.t_s += 20
        await screen._ask()
        await settle(pilot, app)
        assert pane(screen, "replica-log") == before
        assert "▌held" in title(screen, "replica-log")
        assert "newer" in title(screen, "replica-log")
        await pilot.press("end")
        await screen._ask()
        await settle(pilot, app)
        assert pane(screen, "replica-log") != before
        assert "held" not in title(screen, "replica-log")
        await pilot.press("escape")
        await settle(pilot, app)
        assert app.screen is screen
        assert screen.query_one("#replica-tier").display
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, LiveScreen)


async def test_a_sample_without_a_first_token_past_the_limit_is_called_out(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_slot(pilot, app)
        assert screen.detail is not None
        late = [InFlight(1, 9.5, 200, 2), InFlight(2, 1.0, 200), InFlight(3, 0.5, 200, 1, True)]
        screen.detail = msgspec.structs.replace(screen.detail, in_flight=late, in_flight_total=3)
        await settle(pilot, app)
        rows = pane(screen, "in-flight").splitlines()
        assert "▲ over limit" in rows[1]
        assert "○ not yet" in rows[2]
        assert "● has come" in rows[3]


async def test_a_lost_head_greys_the_page_and_lists_say_how_old_they_are(make_app: AppMaker, hand_clock: HandClock) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_slot(pilot, app)
        feed_of(app).silent = True
        hand_clock.s += 15
        await settle(pilot, app)
        assert screen.has_class("-stale")
        assert "as of 15s ago" in title(screen, "in-flight")


async def test_a_replica_that_never_came_has_dashes_and_reasons(make_app: AppMaker) -> None:
    fleet = ScriptedFleet(phase="WARMING", at_s=0.0)
    fleet.state[9] = 0  # NEW
    fleet.incarnation[9] = ""
    app = make_app(fleet)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_slot(pilot, app, fleet.names[9])
        assert "· NEW" in pane(screen, "now-facts")
        assert "–" in pane(screen, "now-facts")
        assert "not registered" in pane(screen, "differences")
        assert "no sample in flight" in pane(screen, "in-flight")
        assert "nothing measured yet" in pane(screen, "tokens-chart")


async def test_without_an_answer_it_says_so(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        feed_of(app).silent = True
        screen = await open_slot(pilot, app)
        assert "the head does not answer" in pane(screen, "in-flight")
        assert "the head does not answer" in pane(screen, "replica-log")
        assert "in_flight" not in screen.tables()
