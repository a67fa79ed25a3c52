"""Wide, tall, small: what scales, what wraps, what is never cut, and words for the straggler's panel and table."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from console_helpers import AppMaker, settle, text_of, wait_for
from test_console_screens import feed_of

from console.feeds.scripted import ScriptedFleet
from console.screens.detail import ReplicaScreen
from console.screens.live import _marks
from console.store.fleet import FleetStore
from console.widgets import fmt
from console.widgets.chart import placed
from console.widgets.heatmap import plan_of


@pytest.mark.parametrize(
    ("nodes", "rows", "width", "room", "least_cell"),
    [(64, 8, 139, 13, 2), (64, 8, 68, 9, 1), (8, 8, 68, 9, 8), (64, 1, 68, 9, 5), (64, 1, 139, 13, 5), (64, 1, 75, 5, 3)],
)
def test_heat_map_cells_grow_with_the_room(nodes: int, rows: int, width: int, room: int, least_cell: int) -> None:
    plan = plan_of(nodes, rows, width, room)
    assert plan.shown == nodes
    assert plan.cell >= least_cell
    assert plan.cell * plan.across <= width
    assert plan.lines <= room


@pytest.mark.parametrize("nodes", [1, 2, 7, 63, 64, 65, 200, 600])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_heat_map_plans_have_a_place_for_each_node(nodes: int, rows: int) -> None:
    for width in (20, 68, 139):
        plan = plan_of(nodes, rows, width, 13)
        assert nodes <= plan.shown * plan.stack < nodes + plan.stack
        assert plan.cell * plan.across <= width
        assert (plan.bands - 1) * plan.across < nodes


async def test_where_nodes_share_a_cell_the_worst_of_them_is_shown(make_app: AppMaker) -> None:
    app = make_app(ScriptedFleet(nodes=512))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        heat = text_of(app.screen.heat)  # type: ignore[attr-defined]
        assert "a cell: the worst of" in heat
        lines = heat.splitlines()
        assert "⊘" in lines[1]  # node012/gpu1
        assert "×" in lines[0]  # node010/gpu0


async def test_every_replica_of_a_fleet_of_single_gpu_nodes_has_a_cell(make_app: AppMaker) -> None:
    app = make_app(ScriptedFleet(nodes=64, gpus=1))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        heat = text_of(app.screen.heat)  # type: ignore[attr-defined]
        lines = [line for line in heat.splitlines() if line.startswith("n") and not line.startswith("n+")]
        assert sum(len(line[5:].split()) for line in lines) == 64
        assert "not shown" not in heat


@pytest.mark.parametrize(("size", "least"), [((120, 36), 3), ((200, 50), 8)])
async def test_events_get_the_lines_that_are_left(make_app: AppMaker, size: tuple[int, int], least: int) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        assert app.screen.query_one("#events").content_size.height >= least
        assert app.screen.query_one("#table").content_size.height >= 7


async def test_a_few_replicas_take_no_more_than_their_rows(make_app: AppMaker) -> None:
    app = make_app(ScriptedFleet(nodes=1, gpus=4))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        assert app.screen.query_one("#table").content_size.height == 5
        assert app.screen.query_one("#events").content_size.height >= 5


async def test_replica_detail_shows_all_facts_by_scrolling(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        await pilot.press("enter")
        await settle(pilot, app)
        assert isinstance(app.screen, ReplicaScreen)
        assert "▸ Live ▸ node015/gpu3 " in text_of(app.screen.query_one("#header"))
        now, own = text_of(app.screen.query_one("#now-facts")), text_of(app.screen.query_one("#own-facts"))
        assert "heartbeat" in now
        assert "python 3.11.7 · pyzmq 27.3.0" in own
        assert "/logs/node015.log" in own
        scroll = app.screen.query_one("#replica")
        assert scroll.max_scroll_y > 0
        await pilot.press("end")
        await wait_for(lambda: scroll.scroll_y > 0)


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_flags_of_the_table_are_never_cut(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        await pilot.press("j", "f", "o", "slash", *"node001", "enter")
        await settle(pilot, app)
        screen = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
        title = next(line for line in screen.splitlines() if "Replicas" in line and "↓" in line)
        for flag in ("↓ slot", "/node001", "❄ order frozen"):
            assert flag in title


async def test_no_faults_is_said_with_the_way_back(make_app: AppMaker) -> None:
    app = make_app(ScriptedFleet(nodes=2, gpus=4))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        await pilot.press("z")
        await settle(pilot, app)
        assert "no faults (z shows all)" in text_of(app.screen.query_one("#table"))


async def test_order_and_numbers_of_the_table_are_of_the_same_moment(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("o", "o")  # tok/s, slowest first
        app.render_clock.fps = 4
        for _ in range(9):
            feed_of(app).push()
            app.render_clock.finished()
            app._now_s.s += 0.25  # type: ignore[attr-defined]
            app.tick()
            await pilot.pause()
            rows = text_of(app.screen.query_one("#table")).splitlines()[1:]
            values = [row.split()[3].replace(",", "") for row in rows]
            numbers = [int(value) for value in values if value.isdigit()]
            assert numbers == sorted(numbers)


async def test_straggler_panel_says_why_nobody_is_judged_and_who_stands_out(make_app: AppMaker) -> None:
    fleet = ScriptedFleet(nodes=8, gpus=8)
    fleet.straggler_note = "not judged yet: grace for 22 s more"
    fleet._skill[5] = 0.7
    app = make_app(fleet)
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        panel = text_of(app.screen.query_one("#stragglers"))
        assert "not judged yet: grace for 22 s more" in panel
        assert "no straggler" not in panel
        assert "outlier  node000/gpu5" in panel
        table = app.screen.query_one("#table")
        slow = app.inks.states["SLOW"].color
        row = next(table.render_line(y) for y in range(1, 5) if "node000/gpu5" in table.render_line(y).text)
        assert "READY" in row.text
        assert any(segment.style is not None and segment.style.color == slow and "x" in segment.text for segment in row)


def test_slow_counts_its_age_from_the_flag() -> None:
    store, fleet = FleetStore(), ScriptedFleet()
    store.apply(fleet.run_state())
    store.apply(msgspec.structs.replace(fleet.snapshot(), slow_age_s=[77.0, 5.0]))
    assert store.age_s(store.index["node015/gpu3"]) == 77.0
    assert store.age_s(store.index["node000/gpu0"]) > 400


async def test_every_state_fits_its_column(make_app: AppMaker) -> None:
    for size in ((120, 36), (80, 24)):
        app = make_app(ScriptedFleet(phase="WARMING", at_s=0.0))
        async with app.run_test(size=size) as pilot:
            await settle(pilot, app)
            app.view.filter("registered")
            await settle(pilot, app)
            assert "○ REGISTERED" in text_of(app.screen.query_one("#table"))


async def test_time_axes_have_seconds_below_ten_minutes(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        chart = app.screen.query_one("#ttft-chart")
        assert text_of(chart).splitlines()[-1].count(":") == 4
        assert "60 s window" in str(chart.border_title)


@pytest.mark.parametrize(
    ("marks", "axis"),
    [
        ([(10, "evict n1/g2", True), (30, "slow n3/g1", False)], "          ▲evict n1/g2        ▲slow n3/g1"),
        ([(10, "evict n1/g2", True), (20, "rate 30", True)], "          ▲evict    ▲rate 30"),
        ([(10, "drain n1/g2", True), (13, "evict n1/g2", True), (15, "slow n1/g2", False)], "          ▲2 acts"),
        ([(10, "slow n1/g2", False), (12, "evict n1/g2", True)], "            ▲evict n1/g2"),
        ([(10, "slow n1/g2", False), (12, "slow n1/g3", False)], "          ▲2 slow"),
        ([(49, "rate 30", True)], " " * 42 + "rate 30▲"),
    ],
)
def test_marks_of_acts_are_shortened_or_counted_but_never_left_out(marks: list[tuple[int, str, bool]], axis: str) -> None:
    line = ""
    for at, text in placed(marks, 9, 50, 49):
        assert len(line) <= at
        line = line.ljust(at) + text
    assert line == axis


async def test_an_act_of_this_moment_has_its_mark_and_a_recycle_is_not_called_lost(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await settle(pilot, app)
        fleet = feed_of(app).fleet
        tell = feed_of(app).tell
        tell(fleet.note(fleet.t_s - 1, "operator:kim@head", "act.recycle", "node005/gpu1", why="hot", level="warn"))
        tell(fleet.note(fleet.t_s, "head", "replica.state", "node005/gpu1", "recycled: hot", "DRAINED", "LOST"))
        await settle(pilot, app)
        assert "recycle▲" in text_of(app.screen.query_one("#ttft-chart")).splitlines()[-1]
        names = [name for _, name, _ in _marks(app.store)]
        assert names[-1] == "recycle n5/g1"
        assert names.count("recycle n5/g1") == 1


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_a_small_fleet_is_shown_whole(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app(ScriptedFleet(nodes=2, gpus=4))
    async with app.run_test(size=size) as pilot:
        for _ in range(3):
            await settle(pilot, app)
        table = text_of(app.screen.query_one("#table"))
        assert all(f"node{node:03d}/gpu{gpu}" in table for node in range(2) for gpu in range(4))
        assert app.screen.query_one("#events").size.height > 0


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert fmt.signed(-0.04) == "0.0"
    assert fmt.signed(0.04) == "0.0"
    assert fmt.signed(-3.52) == "-3.5"
    assert fmt.signed_percent(-0.001) == "0%"
    assert fmt.count(61204) == "61,204"


def test_a_reason_that_is_too_long_ends_where_it_may() -> None:
    reason = "steps take 1.35 x the fleet's curve (z 34.9) in 3 of 4 windows"
    assert fmt.clause(reason, 40) == "steps take 1.35 x the fleet's curve…"
    assert fmt.clause(reason, 52) == "steps take 1.35 x the fleet's curve (z 34.9) in 3…"
    assert fmt.clause(reason, 80) == reason
    for width in range(1, 70):
        assert len(fmt.clause(reason, width)) <= max(1, width)


async def test_lines_that_are_not_drawn_yet_have_the_screens_background(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        table = app.screen.query_one("#table")
        table._strips = {}  # type: ignore[attr-defined]
        blank = table.render_line(5)
        background = table.rich_style.bgcolor
        assert all(segment.style is not None and segment.style.bgcolor == background for segment in blank)
        assert isinstance(app.store.state, np.ndarray)
