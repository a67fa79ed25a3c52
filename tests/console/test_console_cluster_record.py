"""Pods and Kubernetes nodes of a run on a cluster, in its replay and after its end: from the record alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from console_helpers import HandClock, settle, wait_for
from recorded_kit import SECONDS_BEFORE, T0, a_spec, on_a_cluster, recorded_run
from textual.widgets import Static

from console.app import PacelineApp
from console.cli.app import main
from console.feeds.recorded import RecordedRun, read_recorded
from console.feeds.replay import ReplayFeed
from console.screens.live import LiveScreen
from console.session import Session
from console.store.cluster import waiting
from console.store.described import described
from console.store.fleet import FleetStore
from console.store.record import over
from console.widgets.fleet_table import FleetTable

SECONDS = 60
GONE_S = SECONDS_BEFORE + 2 * SECONDS // 3


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = a_spec(seconds=SECONDS)
    return on_a_cluster(recorded_run(tmp_path_factory.mktemp("runs"), seconds=SECONDS), spec, seconds=SECONDS)


@pytest.fixture(scope="module")
def recorded(record: Path) -> RecordedRun:
    return read_recorded(record, lambda text: None)


def at(recorded: RecordedRun, second: float) -> FleetStore:
    store = FleetStore(HandClock())
    store.apply(recorded.state(second))
    store.apply(recorded.snapshot(second, 1))
    return store


def test_a_replay_has_pods_hosts_and_what_was_waited_for_at_the_barrier(recorded: RecordedRun) -> None:
    store = at(recorded, 2.0)
    assert store.at_barrier
    (first, *_) = waiting(store)
    assert (first.what, first.names, first.why) == ("pod", ["node001"], "Pending: 0/2 nodes are available")
    ready = at(recorded, 10.0)
    assert ready.cluster.host_name("node001") == "host-1"
    assert ready.cluster.rack("node001") == "r1"


def test_an_eviction_counts_down_by_the_clock_of_the_record(recorded: RecordedRun) -> None:
    store = at(recorded, GONE_S + 2.0)
    row = store.cluster.row("node001")
    assert row is not None
    assert row.phase == "Terminating"
    assert store.cluster.replacement_s("node001", store.unix) == pytest.approx(4.0, abs=0.01)


def test_a_step_tells_only_what_changed_in_it(recorded: RecordedRun) -> None:
    kinds = [type(message).__name__ for message in recorded.news(GONE_S - 1, GONE_S + 1)]
    assert kinds.count("ClusterView") == 1
    assert "ClusterView" not in [type(message).__name__ for message in recorded.news(20, 30)]


def test_a_description_has_what_was_recorded_and_says_what_was_not(recorded: RecordedRun) -> None:
    text = "\n".join(described(at(recorded, GONE_S + 2.0), "node001/gpu1"))
    assert "Phase        Terminating, not ready" in text
    assert "Its node     host-1: Ready" in text
    assert "1 evictions of this index" in text
    assert "act.evict node001/gpu1" in text
    assert "Not recorded\n  containers and their states" in text
    assert described(at(recorded, 5.0), "node099/gpu0") == []


async def test_the_screens_of_a_replay_are_those_of_a_cluster(record: Path) -> None:
    app = PacelineApp()
    async with app.run_test(size=(120, 36)) as pilot:
        feed = ReplayFeed(record)
        app.open_session(Session(feed, FleetStore(), record, kind="replay"))
        await wait_for(lambda: isinstance(app.screen, LiveScreen) and app.store.snapshot is not None)
        feed.pause()
        feed.seek_to(GONE_S + 2.0)
        await wait_for(lambda: app.store.unix == T0 + GONE_S + 2)
        await pilot.press("2")
        await settle(pilot, app)
        shown = fleet(app)
        assert "host-0" in shown
        assert "replacement in ~4 s" in shown
        await pilot.press("n")
        await settle(pilot, app)
        assert "evicted" in fleet(app)
        await pilot.press("D")
        await wait_for(lambda: "Not recorded" in description(app))
        assert "from the record" in str(app.screen.query_one("#describe").border_title)


async def test_after_the_end_it_is_still_known_where_everything_stood(record: Path) -> None:
    app = PacelineApp(record, fps=1, now_s=HandClock())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("2")
        await settle(pilot, app)
        assert "host-1" in fleet(app)
        await pilot.press("n")
        await settle(pilot, app)
        rows = fleet(app)
        assert "Succeeded" in rows
        assert "has ended by itself" not in rows
        await pilot.press("D")
        await wait_for(lambda: "kit-worker-" in description(app))


def test_the_record_of_an_ended_run_has_its_cluster(record: Path) -> None:
    state = over(record)
    assert state is not None
    assert state.cluster is not None
    assert {row.phase for row in state.cluster.pods} == {"Succeeded"}


def test_show_names_the_cluster_and_the_host_of_every_replica(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(record)]) == 0
    page = capsys.readouterr().out
    assert "cluster   kubernetes, namespace bench: 2 of 2 nodes wanted" in page
    assert "host-0" in page
    assert main(["show", str(record), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["host"] for row in found["cluster"]["pods"]] == ["host-0", "host-1"]
    assert found["replicas"][0]["host"].startswith("host-")


def fleet(app: PacelineApp) -> str:
    table = app.screen.query_one(FleetTable)
    return "\n".join(table.render_line(y).text.rstrip() for y in range(table.size.height))


def description(app: PacelineApp) -> str:
    found = app.screen.query("#description").results(Static)
    return "".join(str(lines.render()) for lines in found)
