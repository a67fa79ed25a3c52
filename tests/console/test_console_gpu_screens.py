"""GPUs on the screens: heat map, Fleet's columns, Replica's pane, the header's source, proposals to evict, events, twins."""

from __future__ import annotations

import json
import math

import pytest
from console_helpers import AppMaker, settle, text_of, wait_for
from gpu_kit import changed, gpus_of, store_of, with_gpus
from textual.widgets import Input

from console.cli.page import Page
from console.cli.pages import fleet_page, live_page, nodes_page, replica_page
from console.feeds.sample_gpus import BROKEN, CAPPED, NOT_COLLECTED, SOURCE
from console.feeds.scripted import SAMPLE_UNIX, ScriptedFleet
from console.screens.detail import ReplicaScreen
from console.screens.fleet import FleetScreen
from console.screens.live import LiveScreen, rate_picture
from console.store import tables
from console.store.fleet import FleetStore
from console.store.merge import Timeline, sentence
from console.widgets.fleet_columns import choosable
from console.widgets.fleet_table import FleetTable
from console.widgets.gpu_figures import written
from console.widgets.gpus import GpuPane, source_cell
from console.widgets.header import HeaderLine, PhaseStrip
from console.widgets.heatmap import HeatMap
from console.widgets.sla import StragglerPane
from console.widgets.table import ReplicaTable
from harness.metrics.gpu.roles import ROLES
from harness.wire.control import JournalEntry
from harness.wire.gpus import GpuView


def lines_of(table: FleetTable | ReplicaTable) -> str:
    return "\n".join(table.render_line(y).text.rstrip() for y in range(table.scrollable_content_region.height))


# --- header, proposals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "later_s", "text", "stands"),
    [
        ("ok", 0.0, "GPU prom 15 s", "ok"), ("ok", 80.0, "GPU prom 82s old", "warn"), ("down", 40.0, "GPU down 42s", "warn"),
        ("stale", 200.0, "GPU stale 3m", "warn"), ("none", 0.0, "no GPU metrics", "none"),
        ("partial", 0.0, "GPU prom 15 s partial", "warn"), ("starting", 0.0, "GPU prom starting", "none"),
    ],
)  # fmt: skip
def test_the_header_names_the_source_its_resolution_and_what_is_wrong(state: str, later_s: float, text: str, stands: str) -> None:
    fleet = with_gpus(nodes=2, gpus=2)
    store = store_of(fleet)
    view = store.gpus.view
    assert view is not None
    store.apply(changed(view, state=state))
    fleet.t_s += later_s
    store.apply(fleet.snapshot())
    assert source_cell(store) == (text, stands)


def test_a_head_that_says_nothing_of_gpus_has_no_cell() -> None:
    assert source_cell(store_of(ScriptedFleet(nodes=1, gpus=2))) == ("", "none")


@pytest.mark.parametrize("size", [(160, 48), (120, 36), (80, 24)])
async def test_an_alert_that_proposes_an_eviction_stands_under_the_phase_at_every_size(
    make_app: AppMaker, size: tuple[int, int]
) -> None:
    app = make_app(with_gpus())
    async with app.run_test(size=size) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        told = text_of(app.screen.query_one(PhaseStrip))
        assert f"▲ {BROKEN}: 2 uncorrectable" in told
        assert "e on its row evicts it" in told
        if size[0] >= 100:
            assert "GPU prom 15 s" in text_of(app.screen.query_one(HeaderLine))
        await pilot.press("e")  # the row under the cursor is the proposed one
        await wait_for(lambda: app.screen.query("#reason"))
        assert app.screen.query_one("#reason", Input).value == "2 uncorrectable memory errors in 10 min"
        assert str(app.screen.query_one("#dialog").border_title) == f"Evict {BROKEN}?"


async def test_an_eviction_of_another_replica_has_no_reason_yet(make_app: AppMaker) -> None:
    app = make_app(with_gpus())
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("down", "e")
        await wait_for(lambda: app.screen.query("#reason"))
        assert app.screen.query_one("#reason", Input).value == ""


async def test_a_proposal_goes_once_the_replica_is_evicted(make_app: AppMaker) -> None:
    fleet = with_gpus()
    app = make_app(fleet)
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        fleet.state[fleet.names.index(BROKEN)] = fleet.state[fleet.names.index("node012/gpu1")]
        app.session.feed.push(0.25)  # type: ignore[attr-defined]
        await settle(pilot, app)
        assert BROKEN not in text_of(app.screen.query_one(PhaseStrip))


# --- Live ----------------------------------------------------------------------------------------------------


async def test_the_heat_map_shows_a_gpu_role_by_name_and_marks_alerts(make_app: AppMaker) -> None:
    app = make_app(with_gpus())
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("colon", *"heat power", "enter")
        await settle(pilot, app)
        heat = app.screen.query_one(HeatMap)
        assert heat.metric.role == "power"
        assert "0 W" in str(heat.border_title)
        assert "1500 W" in str(heat.border_title)
        assert str(heat.border_title).endswith(" alert")
        assert text_of(heat).count("◆") == 2


async def test_the_heat_key_goes_round_all_roles_and_back(make_app: AppMaker) -> None:
    app = make_app(with_gpus(nodes=4, gpus=4))
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        screen = app.screen
        assert isinstance(screen, LiveScreen)
        seen = [screen.heat.metric.name]
        for _ in range(len(screen.heat_names()) - 1):
            await pilot.press("h")
            seen.append(screen.heat.metric.name)
        assert seen == screen.heat_names()
        await pilot.press("h")
        assert screen.heat.metric.name == "ratio"


async def test_a_stale_role_is_dashes_not_zeroes_on_the_heat_map(make_app: AppMaker) -> None:
    app = make_app(with_gpus(nodes=4, gpus=4))
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("colon", *"heat memtemp", "enter")
        await settle(pilot, app)
        heat = app.screen.query_one(HeatMap)
        assert text_of(heat).count("–") >= 16
        assert "old" in str(heat.border_title)


async def test_the_slow_row_and_the_straggler_list_say_power_cap(make_app: AppMaker) -> None:
    app = make_app(with_gpus())
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        assert "power cap" in text_of(app.screen.query_one(StragglerPane))
        row = next(line for line in lines_of(app.screen.query_one(ReplicaTable)).splitlines() if CAPPED in line)
        assert "power cap" in row


def test_alerts_are_marks_on_the_charts_at_their_start_and_end() -> None:
    fleet = with_gpus()
    data = {"rule": "power_cap", "severity": "warn"}
    fleet.journal.append(JournalEntry(99, SAMPLE_UNIX + 400, "head", "alert.end", CAPPED, data=data))
    marks = [text for _, text, act in rate_picture(store_of(fleet)).marks if not act]
    assert "power-cap n15/g3" in marks
    assert "power-cap-over n15/g3" in marks
    assert "uncorrectable-ECC n3/g1" in marks


# --- Fleet ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "headings"),
    [((80, 24), ["POWER", "THROTTLE"]), ((120, 36), ["UTIL", "POWER", "TEMP", "THROTTLE"]), ((160, 48), ["CLOCK", "CAUSE"])],
)
async def test_fleet_has_as_many_columns_of_gpus_as_fit(make_app: AppMaker, size: tuple[int, int], headings: list[str]) -> None:
    app = make_app(with_gpus())
    async with app.run_test(size=size) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("2")
        await settle(pilot, app)
        shown = lines_of(app.screen.query_one(FleetTable)).splitlines()
        assert all(heading in shown[0] for heading in headings), shown[0]
        row = next(line for line in shown if CAPPED in line)
        assert "96%" in row
        assert " W" in row


async def test_without_a_source_fleet_has_none_of_them(make_app: AppMaker) -> None:
    app = make_app(ScriptedFleet())
    async with app.run_test(size=(160, 48)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("2")
        await settle(pilot, app)
        assert "POWER" not in lines_of(app.screen.query_one(FleetTable)).splitlines()[0]


async def test_columns_are_chosen_by_name_and_put_back(make_app: AppMaker) -> None:
    app = make_app(with_gpus())
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("2", "c")
        await pilot.press(*"ecc.unc power cause tok/s nic", "enter")
        await settle(pilot, app)
        table = app.screen.query_one(FleetTable)
        heading = lines_of(table).splitlines()[0].split()
        assert heading[:7] == ["REPLICA", "STATE", "ECC.UNC", "POWER", "CAUSE", "TOK/S", "NIC"]
        row = next(line for line in lines_of(table).splitlines() if BROKEN in line)
        assert row.split("ECC")[1].split()[1] == "–", row  # not collected is a dash
        await pilot.press("c", *"usual", "enter")
        await settle(pilot, app)
        assert "TTFTp99" in lines_of(table).splitlines()[0]
        screen = app.screen
        assert isinstance(screen, FleetScreen)
        screen.command_columns("powr")
        assert table.named == ()
        assert {"power", "cause", "usual"} <= set(choosable(screen._store))


async def test_wide_columns_have_every_role_that_there_is(make_app: AppMaker) -> None:
    app = make_app(with_gpus(nodes=2, gpus=4))
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("2", "w")
        seen = ""
        for _ in range(40):
            await pilot.press("right")
            await settle(pilot, app)
            seen += lines_of(app.screen.query_one(FleetTable)).splitlines()[0]
        assert all(name in seen for name in ("ECC.UNC", "HBMTOT", "THR.TMP", "CAUSE", "ALERT", "REASON"))


def test_rows_of_nodes_add_up_their_gpus() -> None:
    store = store_of(with_gpus())
    row = tables.nodes(store)["nodes"][15]
    own = [one["power_w"] for one in tables.fleet(store)["replicas"] if one["node"] == "node015"]
    assert row["power_w"] == pytest.approx(sum(own), rel=1e-4)
    assert row["throttle_fraction_max"] == pytest.approx(0.96)
    assert row["clock_mhz_min"] < 1500


# --- Replica -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(160, 48), (120, 36), (80, 24)])
async def test_the_replica_screen_has_a_pane_of_its_gpus(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app(with_gpus())
    async with app.run_test(size=size) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("down", "enter")
        await wait_for(lambda: isinstance(app.screen, ReplicaScreen))
        await settle(pilot, app)
        await settle(pilot, app)
        pane = app.screen.query_one(GpuPane)
        told = " ".join(text_of(pane).split())
        for piece in ("UTIL", "POWER", "TEMP", "CLOCK", "THR.PWR", "MEMORY", "ECC.UNC", "96%", "261 GB", "power_cap for 4m"):
            assert piece in told, piece
        assert "too old to show: memtemp (7m)" in told
        assert "not collected: membw, error, nic" in told
        assert SOURCE in str(pane.border_title)


async def test_a_replica_of_several_gpus_has_a_line_for_each(make_app: AppMaker) -> None:
    fleet = with_gpus(nodes=2, gpus=4)
    gpus_of(fleet).devices = 4
    app = make_app(fleet)
    async with app.run_test(size=(80, 24)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        app.open_replica("node000/gpu1", "Live")
        await wait_for(lambda: isinstance(app.screen, ReplicaScreen))
        await settle(pilot, app)
        numbers = [line.split()[0] for line in text_of(app.screen.query_one(GpuPane)).splitlines()[1:5]]
        assert numbers == ["4", "5", "6", "7"]


async def test_without_a_source_the_replica_screen_has_no_such_pane(make_app: AppMaker) -> None:
    app = make_app(ScriptedFleet())
    async with app.run_test(size=(120, 36)) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        await pilot.press("enter")
        await wait_for(lambda: isinstance(app.screen, ReplicaScreen))
        await settle(pilot, app)
        assert not app.screen.query_one(GpuPane).display
        assert not any(chart.display for chart in app.screen.query(".gpu-chart"))


@pytest.mark.parametrize(
    ("role", "value", "text"),
    [
        ("gpu_util", 96.6, "97%"), ("power", 1012.4, "1,012 W"), ("power", 12_400.0, "12.4 kW"), ("junction_temp", 71.2, "71°C"),
        ("clock", 2371.0, "2,371"), ("throttle_power", 0.96, "96%"), ("hbm_used", 261e9, "261 GB"), ("energy", 4.1e8, "410.0 MJ"),
        ("ecc_uncorrectable", 2.0, "2"), ("power", math.nan, "–"),
    ],
)  # fmt: skip
def test_figures_are_written_in_the_unit_of_their_role_and_fit_their_column(role: str, value: float, text: str) -> None:
    assert written(value, ROLES[role]) == text
    assert len(text) <= 8


# --- events --------------------------------------------------------------------------------------------------


def test_alerts_read_as_sentences_and_stay_when_only_warnings_are_shown() -> None:
    store = store_of(with_gpus())
    timeline = Timeline()
    timeline.add_journal(list(store.journal))
    timeline.next_level()
    shown = [(row.kind, row.source, row.text) for row in timeline.rows if row.kind == "alert"]
    assert ("alert", CAPPED, "power cap: 96 % of the last minute at the power cap, fleet median 2 %") in shown
    end = JournalEntry(1, 0.0, "head", "alert.end", CAPPED, data={"rule": "power_cap"})
    assert sentence(end) == "alert power cap is over"
    source = next(entry for entry in store.journal if entry.what == "metrics.source")
    assert sentence(source) == "GPU metrics → ok"


# --- twins ---------------------------------------------------------------------------------------------------


def page_of(name: str, store: FleetStore, width: int = 160) -> str:
    page, run = Page(width), tables.live(store)["run"][0]
    if name == "live":
        live_page(page, tables.live(store))
    elif name == "fleet":
        fleet_page(page, run, tables.fleet(store), "roster order")
    elif name == "nodes":
        nodes_page(page, run, tables.nodes(store))
    else:
        replica_page(page, run, tables.replica(store, CAPPED))
    assert all(len(line) <= width for line in page.lines)
    return str(page)


def test_rows_carry_roles_alerts_and_source_in_units_and_never_a_nan() -> None:
    store = store_of(with_gpus())
    live, fleet, replica = tables.live(store), tables.fleet(store), tables.replica(store, CAPPED)
    json.dumps(live | fleet | replica | tables.nodes(store), allow_nan=False)
    (source,) = live["gpu_source"]
    assert (source["state"], source["kind"], source["resolution_s"], source["gpus_matched"]) == ("ok", "promql", 15.0, 512)
    assert source["not_collected"] == NOT_COLLECTED
    assert [row["rule"] for row in live["alerts"]] == ["ecc_uncorrectable", "power_cap"]
    row = fleet["replicas"][store.index[CAPPED]]
    assert row["power_w"] == pytest.approx(640, abs=5)
    assert row["junction_temp_celsius"] < 70
    assert row["memory_temp_celsius"] is None  # stale
    assert (row["alerts"], row["likely_cause"]) == (["power_cap"], "power cap")
    gpus = {row["role"]: row for row in replica["gpus"]}
    assert gpus["power"]["metric"] == "gpu_package_power"
    assert gpus["memory_temp"]["stale"]
    assert gpus["link_down"]["not_collected"] == NOT_COLLECTED["link_down"]


def test_a_run_without_a_source_has_nothing_of_it_in_its_rows(store: FleetStore) -> None:
    assert "gpu_source" not in tables.live(store)
    assert "alerts" not in tables.fleet(store)["replicas"][0]
    assert "gpus" not in tables.replica(store, CAPPED)


@pytest.mark.parametrize("width", [80, 120, 160])
def test_pages_say_where_metrics_come_from_and_what_fires(width: int) -> None:
    store = store_of(with_gpus())
    live = page_of("live", store, width)
    assert "GPU metrics ok" in live
    assert "ecc_uncorrectable" in live
    assert "evict it" in live
    assert "likely power cap" in live
    assert "POWER" in page_of("fleet", store, width)
    replica = page_of("replica", store, width)
    assert "too old to show" in replica
    assert f"not collected: {NOT_COLLECTED['error_code']}" in replica
    assert "power_cap" in replica


def test_a_source_that_is_down_says_so_with_its_remedy() -> None:
    store = store_of(with_gpus(nodes=2, gpus=2))
    view = store.gpus.view
    assert isinstance(view, GpuView)
    store.apply(changed(view, state="down", problem="prom.example:9090 refused the connection; is it running?"))
    page = page_of("live", store)
    assert "GPU metrics DOWN" in page
    assert "refused the connection" in page
