"""Pods and Kubernetes nodes on the screens: where replicas stand, what pods wait for, what cannot be seen, what befell them."""

from __future__ import annotations

import math

import pytest
from acting_helpers import app_on, feed_of, press, told
from cluster_helpers import SLOW_SLOT, cluster_of, clustered, store_of
from console_helpers import HandClock, settle, text_of, wait_for
from textual.widgets import Static

from console.app import PacelineApp
from console.feeds.sample_cluster import NO_ROOM
from console.feeds.scripted import ScriptedFeed
from console.screens.describe import DescribeScreen
from console.store.cluster import OLD_AFTER_S, waiting
from console.store.filters import parse
from console.store.fleet import FleetStore
from console.store.merge import Timeline
from console.store.nodes import NODE_SORTS, NodeRows
from console.themes import shipped_folder
from console.widgets import pods
from console.widgets.barrier import BarrierPane
from console.widgets.fleet_summary import FleetSummary
from console.widgets.fleet_table import FleetTable
from console.widgets.header import HeaderLine, PhaseStrip
from console.widgets.replica import FactsPane, SlotEvents
from harness.wire import control
from harness.wire.clusterview import ClusterView, HostRow
from harness.wire.frames import encode


def kept(store: FleetStore, text: str) -> set[str]:
    mask = parse(text).keeps(store)
    return {info.node for info, keep in zip(store.slots, mask, strict=True) if keep}


# --- what is known -------------------------------------------------------------------------------------------


def test_a_view_that_comes_over_the_wire_is_taken_and_replaces_the_one_before() -> None:
    fleet = clustered()
    store = store_of(fleet)
    assert store.cluster.host_name("node015") == "mi355x-016"
    cluster_of(fleet).change(15, host="mi355x-090")
    version = store.version
    store.apply(control.TO_CONSOLE.decode(encode(cluster_of(fleet).view())))
    assert store.cluster.host_name("node015") == "mi355x-090"
    assert store.version == version + 1


@pytest.mark.parametrize(
    ("words", "nodes"),
    [
        ("host:mi355x-016", {"node015"}),
        ("pod~worker-15-", {"node015"}),
        ("rack:r2", {f"node{node:03d}" for node in range(8, 16)}),
        ("rack:r2 !host:mi355x-016", {f"node{node:03d}" for node in range(8, 15)}),
        ("host:mi355x-013", set()),  # its pod is gone: nobody stands there
    ],
)
def test_the_filter_finds_replicas_by_host_pod_and_rack(words: str, nodes: set[str]) -> None:
    assert kept(store_of(clustered()), words) == nodes


def test_a_pod_that_waits_is_found_by_its_reason() -> None:
    assert len(kept(store_of(clustered(pending=True)), "reason~Insufficient")) == 37


def test_nodes_that_are_not_ready_cordoned_or_short_of_accelerators_come_first() -> None:
    store = store_of(clustered())
    rows = NodeRows(store)
    order = rows.order(NODE_SORTS["worst"], reverse=False)
    assert [rows.names[int(at)] for at in order[:4]] == ["node010", "node020", "node033", "node015"]
    by_rack = rows.order(NODE_SORTS["rack"], reverse=False)
    assert rows.names[int(by_rack[0])] == "node000"


def test_without_a_cluster_nothing_of_it_is_known_or_said(store: FleetStore) -> None:
    assert store.cluster.view is None
    assert pods.trouble(store) == pods.pods_now(store) == pods.hosts_now(store) == ""
    assert waiting(store) == []
    assert NodeRows(store).order(NODE_SORTS["rack"], reverse=False).size == 64


# --- what cannot be seen -------------------------------------------------------------------------------------


def test_a_view_with_a_problem_says_how_old_it_is() -> None:
    fleet = clustered()
    cluster_of(fleet).problem, cluster_of(fleet).seen_s = "API server does not answer", 42.0
    assert pods.trouble(store_of(fleet)) == "cluster view 42 s old: API server does not answer"


def test_a_view_that_is_old_is_told_even_when_the_head_saw_no_problem() -> None:
    fleet = clustered()
    cluster_of(fleet).seen_s = OLD_AFTER_S - 5
    assert pods.trouble(store_of(fleet)) == ""
    cluster_of(fleet).seen_s = OLD_AFTER_S + 90
    assert pods.trouble(store_of(fleet)) == "cluster view 4 min old: nothing was heard of the API server since"


def test_a_right_that_is_missing_does_not_make_the_whole_view_old() -> None:
    fleet = clustered()
    cluster_of(fleet).problem = "pods of this namespace may not be watched"
    assert pods.trouble(store_of(fleet)) == "cluster view incomplete: pods of this namespace may not be watched"


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_every_screen_says_that_the_cluster_is_not_seen_and_trusts_the_figures_of_the_run(size: tuple[int, int]) -> None:
    app = app_on(clustered())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        assert "cluster view" not in text_of(app.screen.query_one(PhaseStrip))
        sample = cluster_of(feed_of(app).fleet)
        sample.problem, sample.seen_s = "API server does not answer", 42.0
        feed_of(app).push()
        await settle(pilot, app)
        assert "▲ cluster view 42 s old: API server does not answer" in text_of(app.screen.query_one(PhaseStrip))
        assert not app.screen.has_class("-stale")
        assert "● live" in text_of(app.screen.query_one(HeaderLine))
        for key in ("2", "4"):
            await press(pilot, key)
            await settle(pilot, app)
            assert "▲" in text_of(app.screen.query_one(HeaderLine))
        sample.problem, sample.seen_s = "", 0.2
        feed_of(app).push()
        await press(pilot, "1")
        await settle(pilot, app)
        assert "▲" not in text_of(app.screen.query_one(HeaderLine))


# --- the barrier ---------------------------------------------------------------------------------------------


def test_what_many_pods_wait_for_is_one_reason_with_their_number_and_the_oldest_age() -> None:
    store = store_of(clustered(pending=True))
    groups = waiting(store)
    assert [(group.what, len(group.names)) for group in groups[:2]] == [("pod", 37), ("pod", 2)]
    assert groups[0].why == f"Pending: {NO_ROOM}"
    assert groups[0].oldest_s == pytest.approx(252.0)
    assert groups[1].why.startswith("Pending: ImagePullBackOff")
    assert all(group.what == "replica" and math.isnan(group.oldest_s) for group in groups[2:])


@pytest.mark.parametrize(
    ("reason", "phase", "why"),
    [
        ("pod {pod} has been Pending for {n} min: no node fits", "Pending", "Pending: no node fits"),
        (
            "pod {pod} on node {host}: image w cannot be pulled",
            "Pending",
            "Pending: image w cannot be pulled",
        ),
        ("pod {pod} is Terminating: evicted, {n} s of its grace left", "Terminating", "Terminating: evicted"),
        (
            "pod {pod} has been running on node {host} for {n} s and is silent",
            "Running",
            "not ready: running and is silent",
        ),
        (
            "pod {pod} has been starting on node {host}: `describe {pod}`",
            "Pending",
            "Pending: starting: `describe …`",
        ),
    ],
)
def test_reasons_that_differ_only_in_names_and_ages_are_one(reason: str, phase: str, why: str) -> None:
    fleet = clustered()
    sample = cluster_of(fleet)
    for node in range(20, 30):
        row = sample.pods[node]
        sample.change(node, phase=phase, ready=False, reason=reason.format(pod=row.pod, host=row.host, n=node))
    (group,) = [group for group in waiting(store_of(fleet)) if "node020" in group.names]
    assert (len(group.names), group.why) == (10, why)


def test_a_node_without_a_pod_is_not_said_twice_to_have_none() -> None:
    fleet = clustered()
    for node in range(20, 30):
        cluster_of(fleet).change(node, pod="", phase="", ready=False, reason=f"no pod: index {node} of job w has failed for good")
    (group,) = [group for group in waiting(store_of(fleet)) if "node020" in group.names]
    assert (len(group.names), group.why) == (10, "no pod: its index of job w has failed for good")


@pytest.mark.parametrize(
    ("host", "note"),
    [
        (
            HostRow("h1", ready=False, reason="node h1 is NotReady: no kubelet (since 11:13)"),
            "NotReady: no kubelet (since 11:13)",
        ),
        (HostRow("h1", ready=False), "NotReady"),
        (HostRow("h1", cordoned=True, gpus=8, gpus_there=8), "cordoned"),
        (HostRow("h1", gpus=7, gpus_there=8, reason="node h1 offers 7 of its 8 amd.com/gpu"), "offers 7 of its 8 amd.com/gpu"),
        (HostRow("h1", cordoned=True, gpus=6, gpus_there=8), "cordoned · 6 of 8 GPUs allocatable"),
        (HostRow("h1", gpus=8, gpus_there=8), ""),
        (None, ""),
    ],
)
def test_what_is_wrong_with_a_node_is_said_once(host: HostRow | None, note: str) -> None:
    assert pods.host_note(host) == note


def test_nodes_that_are_not_wanted_now_are_not_waited_for() -> None:
    fleet = clustered(pending=True)
    store = store_of(fleet)
    view = cluster_of(fleet).view()
    store.apply(ClusterView(view.kind, view.namespace, view.run, 20, view.seen_unix, "", view.pods, view.hosts))
    assert [group for group in waiting(store) if group.what == "pod"] == []


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_the_barrier_shows_reasons_and_not_slots(size: tuple[int, int]) -> None:
    app = app_on(clustered(pending=True))
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        shown = text_of(app.screen.query_one(BarrierPane))
        assert "25 of 64 pods Running · 39 Pending" in shown
        assert "as the API server had it just now" in shown
        assert "▲ 37 pods" in shown
        assert "Pending: 0/64 nodes are available" in shown
        assert "oldest 4m" in shown
        assert ("anti-affinity rules  node027, node028, node029 and 34 more" in shown) is (size[0] == 120)


# --- the fleet -----------------------------------------------------------------------------------------------


async def shown_fleet(app: PacelineApp, pilot: object, *keys: str) -> list[str]:
    await press(pilot, "2", *keys)  # type: ignore[arg-type]
    await settle(pilot, app)  # type: ignore[arg-type]
    table = app.screen.query_one(FleetTable)
    return [table.render_line(y).text.rstrip() for y in range(table.size.height)]


async def test_replicas_have_their_host_and_those_that_are_gone_what_became_of_their_pod() -> None:
    app = app_on(clustered())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        lines = await shown_fleet(app, pilot)
        assert "HOST" in lines[0]
        assert any("node015/gpu3" in line and "mi355x-016" in line for line in lines)
        assert any("node010/gpu0" in line and "× mi355x-011" in line and "its node is NotReady" in line for line in lines)
        (first,) = [line for line in lines if "node012/gpu0" in line]
        assert "replacement in ~32 s · evicted for the third time" in first
        feed_of(app).push(10.0)
        await settle(pilot, app)
        later = await shown_fleet(app, pilot)
        assert any("node012/gpu0" in line and "replacement in ~22 s" in line for line in later)


async def test_more_columns_are_there_when_there_is_room_and_in_wide_mode() -> None:
    app = app_on(clustered())
    async with app.run_test(size=(190, 40)) as pilot:
        await settle(pilot, app)
        heading = (await shown_fleet(app, pilot))[0]
        assert [name in heading for name in ("HOST", "RACK", "POD")] == [True, True, True]
        heading = (await shown_fleet(app, pilot, "w"))[0]
        assert [name in heading for name in ("HOST", "RACK", "POD")] == [True, True, True]


async def test_a_run_of_processes_has_the_columns_it_had() -> None:
    app = app_on()
    async with app.run_test(size=(190, 40)) as pilot:
        await settle(pilot, app)
        heading = (await shown_fleet(app, pilot))[0]
        assert not any(name in heading for name in ("HOST", "RACK", "POD"))
        assert "pods" not in text_of(app.screen.query_one(FleetSummary))
        await press(pilot, "D")
        assert "there is nothing to describe" in told(app)


@pytest.mark.parametrize("size", [(160, 48), (120, 36), (80, 24)])
async def test_nodes_show_what_is_wrong_with_them_at_once(size: tuple[int, int]) -> None:
    app = app_on(clustered())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        lines = [line for line in await shown_fleet(app, pilot, "n") if "node0" in line]
        assert "× mi355x-011" in lines[0]
        assert "NotReady" in lines[0]
        assert "▲ mi355x-021" in lines[1]
        assert "cordoned" in lines[1]
        assert "▲ mi355x-034" in lines[2]
        assert "7 of 8 GPUs" in lines[2]
        summary = text_of(app.screen.query_one(FleetSummary))
        assert "62 of 64 pods Running · 1 not ready · 1 missing" in summary
        assert ("66 nodes: 1 NotReady, 1 cordoned, 1 short of GPUs, 3 without a worker" in summary) is (size[0] >= 120)


async def test_where_nodes_may_not_be_read_the_reason_stands_in_their_place() -> None:
    app = app_on(clustered())
    async with app.run_test(size=(160, 48)) as pilot:
        await settle(pilot, app)
        sample = cluster_of(feed_of(app).fleet)
        sample.hosts, sample.denied = [], {"hosts": "no right to list nodes (an optional ClusterRole)"}
        feed_of(app).push()
        await shown_fleet(app, pilot, "n")
        assert "nodes not shown: no right to list nodes" in text_of(app.screen.query_one(FleetSummary))


# --- one replica ---------------------------------------------------------------------------------------------


async def test_the_replica_screen_has_its_pod_and_the_key_that_describes_it() -> None:
    app = app_on(clustered())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.open_replica(SLOW_SLOT, "Live")
        await settle(pilot, app)
        shown = text_of(app.screen.query_one("#pod-facts", FactsPane))
        assert "sample-worker-15-x001" in shown
        assert "● Running for 9m" in shown
        assert "mi355x-016 · rack r2" in shown
        assert "would start about 40 s after it has ended" in shown
        assert "lets 1 go now: 63 healthy, 62 needed" in shown
        assert " D Pod " in app.screen.query_one("#footer").render_line(0).text


async def test_a_pod_that_was_evicted_counts_down_and_its_events_are_those_of_the_slot() -> None:
    app = app_on(clustered())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.open_replica("node012/gpu1", "Live")
        await settle(pilot, app)
        shown = text_of(app.screen.query_one("#pod-facts", FactsPane))
        assert "none now" in shown
        assert "replacement in ~32 s" in shown
        feed_of(app).push(40.0)
        await settle(pilot, app)
        assert "replacement due for 8 s" in text_of(app.screen.query_one("#pod-facts", FactsPane))
        events = text_of(app.screen.query_one(SlotEvents))
        assert "evicted through the API" in events
        assert "pod evicted" in events


async def test_the_description_scrolls_is_copied_and_says_what_is_old() -> None:
    fleet = clustered()
    cluster_of(fleet).problem, cluster_of(fleet).seen_s = "API server does not answer", 42.0
    app = PacelineApp(feed=ScriptedFeed(fleet, hz=0), fps=1, now_s=HandClock(), theme_folders=[shipped_folder()])
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        app.open_replica("node033/gpu0", "Live")
        await settle(pilot, app)
        await press(pilot, "D")
        assert isinstance(app.screen, DescribeScreen)
        await wait_for(lambda: "mi355x-034" in str(app.screen.query_one("#description", Static).render()))
        await pilot.pause()  # lines that are there can be scrolled once they are laid out
        shown = str(app.screen.query_one("#description", Static).render())
        assert shown.startswith("▲ cluster view 42 s old: API server does not answer")
        assert "on mi355x-034, rack r5" in shown
        lines = app.screen.query_one("#describe-lines")
        await press(pilot, "pagedown")
        assert lines.scroll_y > 0
        await press(pilot, "y")
        assert "description" in told(app)
        await press(pilot, "escape")
        assert not isinstance(app.screen, DescribeScreen)


async def test_no_answer_is_said() -> None:
    app = app_on(clustered())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        app.open_replica(SLOW_SLOT, "Live")
        await settle(pilot, app)
        await press(pilot, "D")
        await wait_for(lambda: "the head does not answer" in str(app.screen.query_one("#description", Static).render()))


# --- events --------------------------------------------------------------------------------------------------


def test_what_befell_pods_reads_well_and_is_found_by_words() -> None:
    timeline = Timeline()
    said = [
        ("worker.started", "worker-3", "pod w-3-x on mi355x-004", "info"),
        ("worker.pending", "worker-4", NO_ROOM, "warn"),
        ("worker.event", "worker-4", "Back-off pulling image paceline-worker:0.1.0", "warn"),
        ("worker.exited", "worker-3", "OOMKilled (exit code 137)", "error"),
        ("pod.evicted", "node003", "pod w-3-x is evicted", "warn"),
        ("pod.not_evicted", "node005", "the budget lets none go", "error"),
    ]
    entries = [
        control.JournalEntry(number, 1000.0 + number, "head", what, subject, why, level=level)
        for number, (what, subject, why, level) in enumerate(said, 1)
    ]
    timeline.add_journal(entries)
    rows = [(row.kind, row.source, row.text) for row in timeline.rows if row.kind != "day"]
    assert rows == [
        ("worker", "worker-3", "started: pod w-3-x on mi355x-004"),
        ("worker", "worker-4", f"waits: {NO_ROOM}"),
        ("worker", "worker-4", "Back-off pulling image paceline-worker:0.1.0"),
        ("worker", "worker-3", "exited: OOMKilled (exit code 137)"),
        ("pod", "node003", "evicted: pod w-3-x is evicted"),
        ("pod", "node005", "not evicted: the budget lets none go"),
    ]
    timeline.filter("worker-4")
    assert timeline.shown == 2
    timeline.filter("oomkilled|evicted")
    assert timeline.shown == 3
