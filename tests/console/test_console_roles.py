"""A fleet that splits prefill from decode, on every screen and in the text twins; one that does not looks as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from acting_helpers import app_on, facts, press
from console_helpers import AppMaker, HandClock, settle, text_of, wait_for
from recorded_kit import SECONDS_BEFORE, a_spec, recorded_run
from textual.widgets import Input

from console.cli.page import Page
from console.cli.pages import live_page
from console.cli.progress import role_line
from console.cli.start import split_in_words
from console.feeds.recorded import read_recorded
from console.feeds.scripted import ScriptedFleet
from console.plain import status
from console.screens.acts import facts_for, guard, target_of
from console.screens.live import LiveScreen
from console.screens.sla import SlaScreen
from console.store import roles, tables
from console.store.compare import told
from console.store.filters import parse
from console.store.fleet import FleetStore
from console.widgets.fleet_table import FleetTable
from console.widgets.replica import FactsPane
from console.widgets.roles import RolesPane
from console.widgets.tail import PartsPane
from harness.spec import RunSpec
from harness.wire.control import RoleView
from harness.wire.inquiry import GetSla
from harness.wire.states import REPLICA_CODE

BOTH_SIZES = pytest.mark.parametrize("size", [(120, 36), (80, 24)])


def split_fleet(nodes: int = 8, split: str = "5P4D", **options: Any) -> ScriptedFleet:
    return ScriptedFleet(nodes=nodes, gpus=int(split[0]) + int(split[2]), roles=split, **options)


def store_of(fleet: ScriptedFleet) -> FleetStore:
    store = FleetStore(HandClock())
    store.apply(fleet.run_state())
    store.apply(fleet.snapshot())
    return store


# --- screens -------------------------------------------------------------------------------------------------------------


@BOTH_SIZES
async def test_live_has_a_line_for_each_role(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app(split_fleet())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        prefill, decode = text_of(app.screen.query_one(RolesPane)).splitlines()
        assert prefill.split()[:5] == ["prefill", "40", "of", "40", "ready"]
        assert "in flight" in prefill
        assert "41 waiting" in prefill
        assert prefill.endswith("561 ktok/s in")
        assert decode.split()[:5] == ["decode", "32", "of", "32", "ready"]
        assert "212 waiting" in decode
        assert "754 ktok/s out" in decode
        assert ("KV transfer p50 2.7 ms p99 9.3 ms" in decode) == (size[0] == 120)
        assert app.screen.query_one("#table").region.height >= 5, "the table keeps its place"


async def test_live_says_who_is_missing_of_a_role(make_app: AppMaker) -> None:
    fleet = split_fleet()
    fleet.state[[0, 5, 6]] = REPLICA_CODE["LOST"]
    app = make_app(fleet)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        prefill, decode = text_of(app.screen.query_one(RolesPane)).splitlines()
        assert "39 of 40 ready" in prefill
        assert "30 of 32 ready" in decode


async def test_at_the_barrier_only_who_is_ready_is_told(make_app: AppMaker) -> None:
    app = make_app(split_fleet(phase="WARMING", at_s=0.0))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        assert text_of(app.screen.query_one(RolesPane)).splitlines() == [
            "prefill  30 of 40 ready",
            "decode   11 of 32 ready",
        ]


async def test_a_fleet_that_is_not_split_has_neither_the_lines_nor_the_column(make_app: AppMaker) -> None:
    app = make_app(ScriptedFleet(nodes=8, gpus=8))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        assert isinstance(app.screen, LiveScreen)
        assert app.screen.query_one(RolesPane).region.height == 0
        await pilot.press("2")
        await settle(pilot, app)
        assert "ROLE" not in text_of(app.screen.query_one(FleetTable))


@BOTH_SIZES
async def test_fleet_shows_the_role_of_each_replica_and_takes_it_as_a_filter(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app(split_fleet())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        await pilot.press("2")
        await settle(pilot, app)
        table = app.screen.query_one(FleetTable)
        assert "ROLE" in text_of(table).splitlines()[0]
        assert {"prefill", "decode"} <= set(text_of(table).split())
        await pilot.press("slash")
        app.screen.query_one("#filter", Input).value = "role:prefill"
        await pilot.pause()
        await settle(pilot, app)
        assert "decode" not in text_of(table)
        assert len(table.rows.rows) == 40


async def test_a_replica_names_its_role_and_how_its_kv_caches_travel_and_is_seen_beside_its_own_role(make_app: AppMaker) -> None:
    app = make_app(split_fleet())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.open_replica("node000/gpu7", "Live")  # type: ignore[attr-defined]
        await settle(pilot, app)
        shown = " ".join(text_of(app.screen.query_one("#now-facts", FactsPane)).split())
        assert "role decode: kv_transfer_ms 2, kv_transfer_us_per_token 0.74" in shown
        assert "decode p10-p90" in str(app.screen.query_one("#step-chart").border_title)


async def test_a_prefill_replica_says_why_it_has_no_tokens_and_no_latencies(make_app: AppMaker) -> None:
    app = make_app(split_fleet())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.open_replica("node000/gpu0", "Live")  # type: ignore[attr-defined]
        await settle(pilot, app)
        shown = " ".join(text_of(app.screen.query_one("#now-facts", FactsPane)).split())
        assert "tok/s gives none: it fills KV caches" in shown
        assert "TTFT p99 counted at decode, where samples end" in shown


def test_removing_a_prefill_replica_foretells_no_latency() -> None:
    store = store_of(split_fleet(nodes=1))
    for slot, foretold in (("node000/gpu0", False), ("node000/gpu7", True)):
        target = target_of(store, slot)
        assert target is not None
        shown = dict(facts_for(store, "drain", [target]))
        assert ("p99, 60 s" in shown) is foretold
        assert ("counted at the decode replica" in shown.get("p99", "")) is not foretold


async def test_the_parts_of_ttft_are_seven_and_all_of_them_fit(make_app: AppMaker) -> None:
    app = make_app(split_fleet())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("3")
        await wait_for(lambda: isinstance(app.screen, SlaScreen) and app.screen.choice.detail is not None)
        await settle(pilot, app)
        lines = text_of(app.screen.query_one(PartsPane)).splitlines()
        names = [line[:14].strip() for line in lines[1:9]]
        assert names == [
            "schedule lag", "head queue", "prefill queue", "prefill", "decode wait", "KV transfer", "other", "together",
        ]  # fmt: skip
        assert "samples; tail" in lines[9]


# --- what the guards of the head foretell ------------------------------------------------------------------------------------


async def test_the_dialog_says_that_the_last_of_a_role_would_go_and_offers_to_force_it() -> None:
    app = app_on(split_fleet(nodes=1, split="1P3D"))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.ask_and_act("drain", ["node000/gpu0"])
        await press(pilot)
        assert facts(app)["role"] == "no prefill replica would be READY, decode would stand still: the head refuses"
        assert facts(app)["effect"].startswith("▲ no prefill replica would be left to serve")
        force = app.screen.query_one("#force")
        assert force.display
        assert "the last READY prefill replica" in str(force.render())


def told_of(fleet: ScriptedFleet, act: str, *slots: str) -> tuple[str, str]:
    store = store_of(fleet)
    targets = [target for slot in slots if (target := target_of(store, slot)) is not None]
    return dict(facts_for(store, act, targets))["role"], guard(store, act, targets)


def test_another_replica_of_the_role_is_enough() -> None:
    assert told_of(split_fleet(nodes=1), "evict", "node000/gpu0") == ("4 prefill replicas would be READY: ok", "")


def test_all_of_one_role_among_many_marked_are_too_many() -> None:
    fact, objection = told_of(split_fleet(nodes=1), "recycle", *(f"node000/gpu{gpu}" for gpu in (0, 5, 6, 7, 8)))
    assert fact == (
        "4 prefill replicas would be READY: ok · no decode replica would be READY, what is prefilled would find nobody: "
        "the head refuses the last"
    )
    assert objection == "the quorum and the last READY decode replica"


def test_who_is_lost_already_is_nobodys_last_and_the_load_falls_on_those_of_the_role() -> None:
    fleet = split_fleet(nodes=1, split="2P2D")
    fleet.state[0] = REPLICA_CODE["SUSPECT"]
    assert told_of(fleet, "evict", "node000/gpu0")[1] == ""
    store = store_of(split_fleet(nodes=1, split="2P2D"))
    target = target_of(store, "node000/gpu3")
    assert target is not None
    assert "over 1 decode replica: +100.0% load each" in dict(facts_for(store, "drain", [target]))["effect"]


# --- numbers ---------------------------------------------------------------------------------------------------------------


def test_a_prefill_replica_has_no_throughput_and_does_not_pull_the_median_down() -> None:
    store = store_of(split_fleet())
    prefill = store.role_mask("prefill")
    assert np.isnan(store.floats("tokens_s")[prefill]).all()
    assert store.median("tokens_s") == pytest.approx(11_000, rel=0.02)
    rows = tables.fleet(store)["replicas"]
    assert {row["tokens_per_s"] is None for row in rows if row["role"] == "prefill"} == {True}


def test_a_filter_takes_texts_and_states_with_a_colon_and_nothing_else_changes() -> None:
    store = store_of(split_fleet())
    for text, same in (("role:decode", "role=decode"), ("!role:decode", "role=prefill"), ("state:ready", "state=ready")):
        assert parse(text).keeps(store).tolist() == parse(same).keeps(store).tolist()
    assert parse("role:prefill gpu0").keeps(store).sum() == 8
    assert (parse("prefill").keeps(store) == store.role_mask("prefill")).all()
    assert (parse("!prefill").keeps(store) == store.role_mask("decode")).all()
    assert not parse("prefill").keeps(store_of(ScriptedFleet(nodes=2, gpus=2))).any()


def test_the_tables_and_the_page_of_attach_once_have_the_roles_only_where_there_are_any() -> None:
    found = tables.live(store_of(split_fleet()))
    assert [(row["role"], row["replicas"], row["ready"], row["waiting"]) for row in found["roles"]] == [
        ("prefill", 40, 40, 41),
        ("decode", 32, 32, 212),
    ]
    assert found["roles"][0]["kv_transfer_p50_ms"] is None
    assert found["roles"][1]["kv_transfer_p99_ms"] == 9.3
    for width in (120, 80):
        page = Page(width)
        live_page(page, found)
        lines = str(page).splitlines()
        heading = next(at for at, line in enumerate(lines) if line.startswith("Roles, last 10 s"))
        assert lines[heading + 2].split()[:5] == ["prefill", "40", "40", str(found["roles"][0]["in_flight"]), "41"]
        assert all(len(line) <= width for line in lines)
    assert "roles" not in tables.live(store_of(ScriptedFleet(nodes=2, gpus=2)))


def test_told_in_words_each_role_has_its_clause() -> None:
    store = store_of(split_fleet())
    text, at_them = status(store), int(store.ints("outstanding")[store.role_mask("prefill")].sum())
    assert f"prefill: 40 of 40 ready, {at_them} samples in flight, 41 waiting, 560,812 tokens a second in" in text
    assert "tokens a second out, half of the KV transfers took at most 2.7 ms" in text
    assert "prefill" not in status(store_of(ScriptedFleet(nodes=2, gpus=2)))


def test_status_has_a_line_a_role() -> None:
    view = RoleView("decode", 4, 3, 214, 5, 12.1, 16_310.4, 2.81, 9.0)
    assert role_line(view) == (
        "decode: 3/4 ready, 214 in flight, 5 waiting, 12.1 samples/s, 16,310 tok/s out, KV transfer p50 2.8 ms"
    )
    assert role_line(RoleView("prefill", 5, 5)).endswith("0 tok/s in")


# --- replays -----------------------------------------------------------------------------------------------------------------


def test_a_replay_counts_its_roles_and_does_not_tell_what_only_a_head_knew(tmp_path: Path) -> None:
    whole = a_spec(nodes=1, per_node=4)
    spec = RunSpec.model_validate(whole.model_dump() | {"fleet": whole.fleet.model_dump() | {"roles": "1P3D"}})
    recorded = read_recorded(recorded_run(tmp_path, "split", seconds=20, spec=spec), lambda _: None)
    store = FleetStore(HandClock())
    store.apply(recorded.state(SECONDS_BEFORE + 10))
    store.apply(recorded.snapshot(SECONDS_BEFORE + 10, 1))
    prefill, decode = roles.views(store)
    assert (prefill.replicas, prefill.ready, decode.replicas, decode.ready) == (1, 1, 3, 3)
    assert tables.live(store)["roles"][0]["waiting"] is None
    assert tables.live(store)["roles"][0]["tokens_per_s"] is None
    assert decode.samples_per_s == pytest.approx(100, rel=0.1)
    detail = recorded.sla(SECONDS_BEFORE + 10, GetSla("q"))
    assert detail is not None
    assert [part.name for part in detail.parts][4:6] == ["decode wait", "KV transfer"]


def test_the_first_line_of_a_run_says_what_the_pattern_of_roles_came_to() -> None:
    eight_by_eight = {"name": "first", "fleet": {"nodes": 8, "replicas_per_node": 8, "roles": "5P4D"}}
    assert split_in_words(RunSpec.model_validate(eight_by_eight)) == ", 36 prefill and 28 decode"
    assert split_in_words(RunSpec.model_validate({"name": "first"})) == ""


def test_roles_travel_in_the_snapshot() -> None:
    snap = split_fleet().snapshot()
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(snap), type=type(snap))
    assert [view.role for view in again.roles] == ["prefill", "decode"]


def test_a_computed_number_is_told_without_its_rounding() -> None:
    assert told(0.7999999999999999) == "0.8"
    assert told([2.0, 0.1 + 0.2]) == "2.0, 0.3"
