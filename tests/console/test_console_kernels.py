"""What the console shows of replicas that run another MoE kernel or table than most of their node class."""

from __future__ import annotations

import pytest
from console_helpers import AppMaker, settle, text_of
from msgspec.structs import replace

from console.feeds.scripted import ScriptedFeed
from console.screens.detail import ReplicaScreen
from console.store import filters, tables
from console.store.causes import likely_cause
from console.store.columns import TEXTS
from harness.wire.control import RosterNews, SlotInfo

NEW, OLD = "gfx950-256cu-288gb-AMD_Instinct_MI355X", "gfx942-304cu-192gb-AMD_Instinct_MI300X"
TUNED = {"kernel": "paceline-mxfp4-a16w4", "kernel.config": "tuned", "kernel.config_hash": "0a1b2c3d4e5f"}
DEFAULT = {"kernel": "paceline-mxfp4-a16w4", "kernel.config": "default"}


def told(info: SlotInfo, odd: set[str]) -> SlotInfo:
    """Most nodes are of one class with its table, the last ones of another with its own."""
    new = info.node < "node056"
    table = TUNED if new else {**TUNED, "kernel.config_hash": "77ff00112233"}
    facts = {**info.facts, **(DEFAULT if info.slot in odd else table), "kernel.node_class": NEW if new else OLD}
    kept = {name: value for name, value in facts.items() if info.slot not in odd or name != "kernel.config_hash"}
    return replace(info, facts=kept)


@pytest.mark.parametrize(
    ("odd", "line"),
    [
        ({"node002/gpu5"}, "▲ node002/gpu5: MoE table: default instead"),
        ({"node002/gpu5", "node003/gpu1", "node005/gpu0"}, "▲ 3 odd MoE kernels or tables: / kernel~odd"),
    ],
)
async def test_live_names_who_runs_another_table_without_a_replica_being_opened(
    make_app: AppMaker, odd: set[str], line: str
) -> None:
    app = make_app()
    async with app.run_test(size=(140, 40)) as pilot:
        await settle(pilot, app)
        store = app.session.store
        assert "MoE" not in text_of(app.screen.query_one("#stragglers"))
        store.apply(RosterNews(store.roster_version, [told(info, odd) for info in store.slots], []))
        await settle(pilot, app)
        assert isinstance(app.session.feed, ScriptedFeed)
        assert line in text_of(app.screen.query_one("#stragglers"))
        assert set(store.odd_kernels) == odd
        at = store.index["node002/gpu5"]
        assert likely_cause(store, at) == "MoE table: default instead of tuned"
        assert {row["slot"] for row in tables.live(store)["run"][0]["other_kernels"]} == odd
        found = filters.parse("kernel~odd").keeps(store)
        assert {store.slots[int(place)].slot for place in found.nonzero()[0]} == odd
        app.open_replica("node002/gpu5", "Live")
        await settle(pilot, app)
        screen = app.screen
        assert isinstance(screen, ReplicaScreen)
        against = text_of(screen.query_one("#differences"))
        assert "kernel.config" in against
        assert "default  majority: tuned" in against
        assert "node_class" not in against, "most are of its class"


async def test_what_a_replica_tells_of_its_kernel_cannot_move_the_cursor(make_app: AppMaker) -> None:
    app = make_app()
    hostile = {"kernel": "\x1b[2Jred\r\n\tnext", "kernel.config": "z\u202eabc", "kernel.node_class": NEW}
    async with app.run_test(size=(140, 40)) as pilot:
        await settle(pilot, app)
        store = app.session.store
        news = [told(info, set()) for info in store.slots]
        at = store.index["node002/gpu5"]
        news[at] = replace(news[at], facts={**store.slots[at].facts, **hostile})
        store.apply(RosterNews(store.roster_version, news, []))
        await settle(pilot, app)
        assert "node002/gpu5: MoE kernel: [2Jred next" in text_of(app.screen.query_one("#stragglers"))
        assert TEXTS["kernel"].of(store, store.slots[at]) == "odd [2Jred next z abc"
        app.open_replica("node002/gpu5", "Live")
        await settle(pilot, app)
        against = text_of(app.screen.query_one("#differences"))
        assert "kernel  [2Jred next" in against
        assert all(line.isprintable() for line in against.splitlines())


async def test_a_narrow_terminal_says_how_many_differ_where_no_pane_names_them(make_app: AppMaker) -> None:
    app = make_app()
    odd = {"node002/gpu5", "node003/gpu1", "node005/gpu0"}
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        store = app.session.store
        store.apply(RosterNews(store.roster_version, [told(info, odd) for info in store.slots], []))
        await settle(pilot, app)
        assert "▲ 3 odd MoE" in text_of(app.screen.query_one("#load"))


async def test_live_says_so_where_no_table_of_a_node_class_is_the_usual_one(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(140, 40)) as pilot:
        await settle(pilot, app)
        store = app.session.store
        two = {"node002/gpu0", "node002/gpu1"}
        news = [told(info, {"node002/gpu1"}) for info in store.slots if info.slot in two]
        store.apply(RosterNews(store.roster_version, [replace(info, role="prefill") for info in news], []))
        await settle(pilot, app)
        assert store.split_kernels == [f"no usual MoE table: 1 default, 1 tuned, of the prefill replicas of {NEW}"]
        assert "▲ no usual MoE table: 1 default, 1 tuned, of" in text_of(app.screen.query_one("#stragglers"))
        assert store.odd_kernels == {}
