"""The Fleet screen under keys, on sample data: rows, nodes, filter, order, marks, wide columns, export."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from console_helpers import AppMaker, HandClock, settle, text_of
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_kit import recorded_run
from textual.pilot import Pilot
from textual.widgets import Input

from console.app import PacelineApp
from console.feeds.replay import ReplayFeed
from console.feeds.scripted import ScriptedFeed, ScriptedFleet
from console.screens.detail import ReplicaScreen
from console.screens.fleet import FleetScreen
from console.screens.live import LiveScreen
from console.screens.runs import replay_session
from console.themes import shipped_folder
from console.widgets.clock import EVERYTHING
from console.widgets.fleet_table import FleetTable

SIZES = [(120, 36), (80, 24), (160, 48)]


def feed_of(app: PacelineApp) -> ScriptedFeed:
    feed = app.session.feed
    assert isinstance(feed, ScriptedFeed)
    return feed


def fleet_of(app: PacelineApp) -> FleetScreen:
    assert isinstance(app.screen, FleetScreen)
    return app.screen


def lines_of(app: PacelineApp) -> list[str]:
    """Heading, then rows."""
    return text_of(fleet_of(app).table).splitlines()


def title_of(app: PacelineApp) -> str:
    return str(fleet_of(app).table.border_title)


def says(app: PacelineApp) -> str:
    return text_of(app.screen.query_one("#filter-says"))


async def until(true: Callable[[], bool], within_s: float = 60.0) -> None:
    end_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end_s, "never became true"
        await asyncio.sleep(0.02)


async def to_fleet(pilot: Pilot[Any], app: PacelineApp) -> None:
    await settle(pilot, app)
    await pilot.press("2")
    await settle(pilot, app)


async def type_filter(pilot: Pilot[Any], app: PacelineApp, text: str) -> None:
    await pilot.press("slash")
    app.screen.query_one("#filter", Input).value = text
    await pilot.pause()


@pytest.mark.parametrize("size", [*SIZES, (60, 15), (200, 60)])
async def test_rows_fit_and_the_summary_counts_states(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await to_fleet(pilot, app)
        rows = lines_of(app)
        assert rows[0].lstrip().startswith("REPLICA")
        assert "node015/gpu3" in rows[1]
        assert "▲ SLOW" in rows[1]
        summary = text_of(app.screen.query_one("#fleet-summary"))
        assert "512 replicas" in summary
        assert "tok/s" in summary
        if size[0] >= 80:
            for part in ("● 507 READY", "▲ 2 SLOW", "× 1 LOST", "⊘ 1 EVICTED", "▽ 1 DRAINING"):
                assert part in summary
        for keys in ("n", "w", "w", "n"):
            await pilot.press(keys)
            await settle(pilot, app)
            for widget in app.screen.query("Painted, FleetTable"):
                for y in range(widget.content_size.height):
                    assert widget.render_line(y).cell_length <= widget.content_size.width, (keys, widget.id)


async def test_values_stand_under_their_headings(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await to_fleet(pilot, app)
        heading, first = lines_of(app)[:2]
        at = app.store.index["node015/gpu3"]
        for title, value in (
            ("TOK/S", f"{app.store.floats('tokens_s')[at]:,.0f}"),
            ("KV", f"{app.store.floats('kv_use')[at]:.0%}"),
        ):
            end = heading.index(title) + len(title)
            assert first[:end].endswith(value)


async def test_filter_as_typed_and_a_mistake_keeps_the_last_good_one(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await to_fleet(pilot, app)
        await pilot.press("slash", *"slow")
        await pilot.pause()
        assert len(app.session.fleet_view.rows) == 2
        assert "↵ keeps it" in says(app)
        app.screen.query_one("#filter", Input).value = "slow ttft>x"
        await pilot.pause()
        assert "x: ttft takes a number like 2500, 2.5s or 80ms" in says(app)
        assert len(app.session.fleet_view.rows) == 2
        await pilot.press("enter")  # nothing to keep: the line stays open
        await pilot.pause()
        assert app.screen.has_class("-filtering")
        app.screen.query_one("#filter", Input).value = "slow z>10"
        await pilot.press("enter")
        await settle(pilot, app)
        assert not app.screen.has_class("-filtering")
        assert "/slow z>10: 1 of 512" in text_of(app.screen.query_one("#fleet-summary"))
        assert "/slow z>10" in title_of(app)
        assert app.session.view.text == "", "the filter of Live is another one"
        await pilot.press("escape")
        await settle(pilot, app)
        assert len(app.session.fleet_view.rows) == 512


async def test_typing_the_name_of_a_column_hides_nothing_on_the_way(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await to_fleet(pilot, app)
        await pilot.press("slash")
        for key in "kv>50%":
            await pilot.press("greater_than_sign" if key == ">" else "percent_sign" if key == "%" else key)
            await pilot.pause()
            assert len(app.session.fleet_view.rows) > 400


@pytest.mark.parametrize("screen", ["1", "2"])
async def test_filter_and_sort_by_name(make_app: AppMaker, screen: str) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press(screen)
        await settle(pilot, app)
        shown = app.screen
        assert isinstance(shown, FleetScreen | LiveScreen)
        shown.command_filter("n6|n15 !g0")
        assert len(shown.rows.rows) == 14
        shown.command_filter("z>")
        assert len(shown.rows.rows) == 14
        shown.command_sort("-ttft")
        slots = [app.store.slots[int(at)].slot for at in shown.rows.rows]
        assert slots[-1] == "node015/gpu3"
        shown.command_sort("colour")
        await pilot.pause()
        assert any("no column 'colour'" in note.message for note in app._notifications)
        assert {"worst", "slot", "z", "ttft"} <= set(shown.sort_names())


async def test_order_is_held_while_acting_and_frozen_on_request(make_app: AppMaker, hand_clock: HandClock) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await to_fleet(pilot, app)
        await pilot.press("f")
        before = [line[:14] for line in lines_of(app)]
        feed_of(app).fleet.state[100:140] = 7
        hand_clock.s += 60
        feed_of(app).push()
        await settle(pilot, app)
        assert [line[:14] for line in lines_of(app)] == before
        assert "order frozen" in title_of(app)
        await pilot.press("f")
        await settle(pilot, app)
        assert [line[:14] for line in lines_of(app)] != before


async def test_marks_are_what_acts_hit(make_app: AppMaker, hand_clock: HandClock) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await to_fleet(pilot, app)
        assert fleet_of(app).targets() == ["node015/gpu3"]
        await pilot.press("space", "space", "down", "space")
        await settle(pilot, app)
        marked = fleet_of(app).targets()
        assert marked == [line[2:16].strip() for line in lines_of(app) if line[1] == "✓"]
        assert "3 marked" in title_of(app)
        feed_of(app).fleet.state[300:340] = 7  # they sort above
        hand_clock.s += 60
        feed_of(app).push()
        await pilot.press("o", "o")
        await settle(pilot, app)
        assert set(fleet_of(app).targets()) == set(marked)
        await type_filter(pilot, app, "slow")
        await settle(pilot, app)
        assert "3 marked, 1 not shown" in title_of(app)
        assert set(fleet_of(app).targets()) == set(marked)
        await pilot.press("escape", "u")
        await settle(pilot, app)
        assert "marked" not in title_of(app)
        assert len(fleet_of(app).targets()) == 1


@pytest.mark.parametrize("key", ["ctrl+@", "ctrl+space"])
async def test_a_range_is_marked_from_the_last_mark(make_app: AppMaker, key: str) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await to_fleet(pilot, app)
        await pilot.press("down", "space", "down", "down", key)
        await settle(pilot, app)
        rows = lines_of(app)
        assert [row for row, line in enumerate(rows) if line[1:2] == "✓"] == [2, 3, 4, 5]


async def test_nodes_and_into_one_and_back(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await to_fleet(pilot, app)
        await pilot.press("n")
        await settle(pilot, app)
        rows = lines_of(app)
        assert "Nodes 64" in title_of(app)
        assert "node015" in rows[1]
        assert "● 7 READY ▲ 1 SLOW" in rows[1]
        lost = next(line for line in rows if "node010" in line)
        assert "× 1 LOST" in lost
        await pilot.press("down", "space")
        assert fleet_of(app).targets() == [f"node006/gpu{gpu}" for gpu in range(8)]
        await pilot.press("u", "up", "enter")
        await settle(pilot, app)
        assert {line[2:9] for line in lines_of(app)[1:9]} == {"node006"}
        assert "Replicas 8" in title_of(app)
        await pilot.press("enter")
        await settle(pilot, app)
        assert isinstance(app.screen, ReplicaScreen)
        await pilot.press("escape")
        await settle(pilot, app)
        await pilot.press("escape")
        await settle(pilot, app)
        assert "Nodes 64" in title_of(app)
        assert app.session.fleet_view.text == ""
        assert any(line.startswith("▌ node006") for line in lines_of(app))


async def test_nodes_follow_the_filter_and_faults(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await to_fleet(pilot, app)
        await pilot.press("n", "z")
        await settle(pilot, app)
        assert len(fleet_of(app).rows.rows) == 5
        assert "faults only: 5 of 64" in text_of(app.screen.query_one("#fleet-summary"))
        await type_filter(pilot, app, "nothing-like-it")
        await settle(pilot, app)
        assert "no fault matches" in lines_of(app)[1]


async def test_enter_opens_the_replica_under_the_cursor(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await to_fleet(pilot, app)
        await pilot.press("down", "enter")
        await settle(pilot, app)
        assert isinstance(app.screen, ReplicaScreen)
        assert app.screen.slot == "node006/gpu6"
        assert "Fleet" in text_of(app.screen.query_one("#header"))


@pytest.mark.parametrize("size", SIZES)
async def test_wide_columns_scroll_and_the_first_one_stays(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await to_fleet(pilot, app)
        await pilot.press("w")
        await settle(pilot, app)
        heads = lines_of(app)[0]
        assert "HOST" in heads
        seen = set(heads.split())
        for _ in range(30):
            await pilot.press("right")
            heads = lines_of(app)[0]
            assert heads.lstrip().startswith("REPLICA")
            seen |= set(heads.split())
        assert {"ROLE", "HOST", "WORKER", "POD", "RESTARTS", "INCARNATION", "BEAT", "ENGINE", "ARGS", "TOK/S", "REASON"} <= seen
        assert "REASON" in heads
        last = title_of(app)
        await pilot.press("right")
        assert title_of(app) == last
        await pilot.press("left", "w")
        await settle(pilot, app)
        assert "HOST" not in lines_of(app)[0]


async def test_a_click_on_a_heading_sorts_and_on_a_row_chooses_it(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await to_fleet(pilot, app)
        x = lines_of(app)[0].index("WAIT") + 1
        await pilot.click("#table", offset=(x, 1))  # the title is above
        await settle(pilot, app)
        view = app.session.fleet_view
        assert (view.sort.name, view.downward) == ("wait", True)
        await pilot.click("#table", offset=(x, 1))
        await settle(pilot, app)
        assert (view.sort.name, view.downward) == ("wait", False)
        assert "WAIT↑" in lines_of(app)[0]
        await pilot.click("#table", offset=(5, 4))
        await settle(pilot, app)
        assert lines_of(app)[3].startswith("▌")
        assert view.cursor == lines_of(app)[3][2:16].strip()
        await pilot.press("O")
        assert (view.sort.name, view.downward) == ("wait", True)


async def test_a_click_on_live_chooses_the_row_it_hits(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.click("#table", offset=(5, 3))
        await settle(pilot, app)
        assert text_of(app.screen.query_one("#table")).splitlines()[2].startswith("▌")


async def test_exports_have_the_rows_as_shown_with_all_columns(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await to_fleet(pilot, app)
        await pilot.press("space")
        fleet_of(app).command_filter("n15|n10")
        fleet_of(app).command_sort("slot")
        rows = fleet_of(app).tables()["replicas"]
        assert [row["slot"] for row in rows] == [f"node{node:03d}/gpu{gpu}" for node in (10, 15) for gpu in range(8)]
        by_slot = {row["slot"]: row for row in rows}
        chosen = by_slot["node015/gpu3"]
        assert chosen["marked"]
        assert chosen["tokens_per_s"] == pytest.approx(float(app.store.floats("tokens_s")[app.store.index["node015/gpu3"]]))
        assert {"role", "host", "worker", "pod", "incarnation", "args_hash", "engine", "restarts", "heartbeat_age_s"} <= set(
            chosen
        )
        assert by_slot["node010/gpu0"]["tokens_per_s"] is None
        await pilot.press("n")
        nodes = fleet_of(app).tables()["nodes"]
        assert [(row["node"], row["slow"], row["missing"]) for row in nodes] == [("node015", 1, 0), ("node010", 0, 1)]


async def test_copy_takes_the_log_of_the_row(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await to_fleet(pilot, app)
        await pilot.press("y")
        assert app.clipboard.endswith("node015.log")
        await pilot.press("n", "y")
        assert app.clipboard.endswith("node015.log")


async def test_without_a_replay_its_keys_say_so(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await to_fleet(pilot, app)
        for key in ("comma", "full_stop", "greater_than_sign"):
            app.clear_notifications()
            await pilot.press(key)
            await pilot.pause()
            assert any("nothing is being replayed" in note.message for note in app._notifications)


async def test_replay_keys_reach_the_replay_from_every_screen_of_the_run(tmp_path: Path, make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.open_session(replay_session(app, recorded_run(tmp_path)))
        await until(lambda: app.session.kind == "replay" and app.store.snapshot is not None)
        await until(lambda: isinstance(app.screen, LiveScreen))
        feed = app.session.feed
        assert isinstance(feed, ReplayFeed)
        await pilot.press("space")
        assert not feed.playing
        feed.seek_to(30.0)
        await pilot.press("comma")
        assert feed.position_s == 20.0
        await pilot.press("2")
        await settle(pilot, app)
        await pilot.press("full_stop", "greater_than_sign")
        assert (feed.position_s, feed.speed) == (30.0, 4.0)
        fleet_of(app).command_replay_speed("x60")
        assert feed.speed == 60.0
        fleet_of(app).command_replay_speed("fast")
        await pilot.pause()
        assert any("'fast' is no replay speed; there are 1, 4, 16, 60" in note.message for note in app._notifications)


async def test_a_fleet_of_other_slots_keeps_marks_and_drops_who_is_gone(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await to_fleet(pilot, app)
        await pilot.press("space", "space", "space")
        marked = fleet_of(app).targets()
        state = feed_of(app).fleet.run_state()
        app.store.apply(msgspec.structs.replace(state, slots=[info for info in state.slots if info.slot != marked[0]]))
        await pilot.press("down")  # before anything is painted anew
        await settle(pilot, app)
        assert set(fleet_of(app).targets()) == set(marked[1:])
        assert "2 marked" in title_of(app)


# --- whatever comes, in whatever order ---------------------------------------------------------------------------

KEYS = [
    "down", "up", "pagedown", "pageup", "end", "g", "space", "ctrl+@", "u", "o", "O", "z", "f", "n", "w", "right", "left",
    "escape",
]  # fmt: skip
STEPS = st.lists(
    st.one_of(
        st.sampled_from(KEYS),
        st.tuples(st.just("states"), st.lists(st.integers(0, 9), min_size=32, max_size=32)),
        st.tuples(st.just("filter"), st.sampled_from(["", "n1", "lost", "z>", "!ready", "nothing-at-all"])),
        st.tuples(st.just("roster"), st.lists(st.integers(0, 31), unique=True, max_size=32)),
        st.tuples(st.just("back"), st.none()),
        st.tuples(st.just("wait"), st.floats(0.1, 9)),
    ),
    min_size=5,
    max_size=30,
)


@settings(max_examples=12, deadline=None)
@given(STEPS)
def test_what_is_drawn_is_what_the_view_says(steps: list[Any]) -> None:
    asyncio.run(_play(steps))


async def _play(steps: list[Any]) -> None:
    clock, fleet = HandClock(), ScriptedFleet(nodes=8, gpus=4)
    app = PacelineApp(feed=ScriptedFeed(fleet, hz=0), fps=1, now_s=clock, theme_folders=[shipped_folder()])
    async with app.run_test(size=(100, 30)) as pilot:
        await to_fleet(pilot, app)
        for step in steps:
            if isinstance(step, str):
                await pilot.press(step)
            else:
                _do(app, clock, fleet, *step)
            await pilot.pause()
            fleet_of(app).paint(EVERYTHING)
            _check(app, fleet_of(app).table)


def _do(app: PacelineApp, clock: HandClock, fleet: ScriptedFleet, name: str, value: Any) -> None:
    state = fleet.run_state()
    acts: dict[str, Callable[[], object]] = {
        "filter": lambda: fleet_of(app).command_filter(value),
        "roster": lambda: app.store.apply(msgspec.structs.replace(state, slots=[state.slots[at] for at in value])),
        "back": lambda: app.store.apply(state),
        "wait": lambda: setattr(clock, "s", clock.s + value),
    }
    if name == "states":
        fleet.state[:] = value
        if len(app.store.slots) == len(fleet.names):
            feed_of(app).push(1.0)
    else:
        acts[name]()


def _check(app: PacelineApp, table: FleetTable) -> None:
    view, store = table.rows, app.store
    drawn = {}
    for line in text_of(table).splitlines()[1:]:
        name = line[2:].split(" ")[0]
        if name in view.index(store):
            assert name not in drawn, f"{name} is drawn twice"
            drawn[name] = line
    top = int(table.scroll_offset.y)
    height = table.scrollable_content_region.height - 1
    assert list(drawn) == [view.name(store, int(at)) for at in view.rows[top : top + height]]
    assert {name for name, line in drawn.items() if line[1] == "✓"} == set(view.marks) & set(drawn)
    under = [name for name, line in drawn.items() if line[0] in "▌▏"]
    if view.bound and not view.gone(store):
        assert under == [view.cursor], "what an act would hit is on screen"
    elif view.bound:
        assert under == []
    elif top == 0 and len(view.rows):
        assert under == [view.cursor]
