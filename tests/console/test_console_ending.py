"""How attempts and runs end on screen: draining, stopping, the verdict with its results, and runs that are only a record."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from console_helpers import AppMaker, HandClock, settle, text_of
from recorded_kit import recorded_run
from test_console_screens import feed_of

from console.app import PacelineApp
from console.feeds.scripted import ScriptedFleet
from console.screens.live import LiveScreen
from console.screens.record import RecordScreen
from console.store.fleet import FleetStore
from console.store.rates import rate_words
from console.store.record import over
from console.themes import shipped_folder
from console.widgets.clock import EVERYTHING
from console.widgets.verdict import VerdictBanner
from harness.records.errors import RecordError
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, read_run, write_run
from harness.spec import FleetSpec, LimitsSpec, RunSpec
from harness.wire.control import AttemptInfo, JournalEntry
from harness.wire.keys import ServerKeys


def ended_fleet(verdict: str = "INVALID") -> ScriptedFleet:
    fleet = ScriptedFleet()
    fleet.earlier = [AttemptInfo(1, "performance", "Server", 144.0, 1, verdict="SUPERSEDED", state="ENDED")]
    fleet.phase, fleet.verdict, fleet.reasons = "DONE", verdict, ["TTFT p99 3.21 s is over the limit of 3.00 s"]
    return fleet


def store_of(fleet: ScriptedFleet, **changes: Any) -> FleetStore:
    store = FleetStore()
    store.apply(fleet.run_state())
    store.apply(msgspec.structs.replace(fleet.snapshot(), **changes))
    return store


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_the_banner_has_the_results_of_the_whole_attempt_and_what_came_before(
    make_app: AppMaker, size: tuple[int, int]
) -> None:
    app = make_app(ended_fleet())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        banner = text_of(app.screen.query_one("#verdict"))
        for text in ("INVALID", "3,988 qps", "5,575,680 tok/s", "TTFT p99 2.69 s of 3.00 s ● OK", "TPOT p99 36.5 ms of 80.0 ms"):
            assert text in banner
        for text in ("issued 4,800,000", "completed 4,800,000", "re-dispatched 118", "attempt 1 SUPERSEDED at 144 qps"):
            assert text in banner
        assert not app.screen.query_one("#sla-tier").display


async def test_after_the_end_nothing_is_forecast_and_nobody_is_ready(make_app: AppMaker) -> None:
    app = make_app(ended_fleet("VALID"))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        screen = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
        assert "end of run" not in screen
        assert "verdict possible" not in screen
        assert "READY" not in screen.replace("READY → LOST", "").replace("WARMING → READY", "")
        assert "STOPPED" in screen
        assert "LOST" in screen


async def test_an_exploration_never_promises_a_verdict(make_app: AppMaker) -> None:
    app = make_app(ScriptedFleet(kind="explore"))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        snap = app.store.snapshot
        assert snap is not None
        app.store.snapshot = msgspec.structs.replace(snap, ttft=msgspec.structs.replace(snap.ttft, needed=331))
        await pilot.pause()
        app.screen.query_one("#sla").repaint()  # type: ignore[attr-defined]
        assert "verdict possible" not in text_of(app.screen.query_one("#sla"))
        assert "no verdict at stake" in text_of(app.screen.query_one("#sla"))


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_draining_says_since_when_how_many_and_the_oldest(make_app: AppMaker, size: tuple[int, int]) -> None:
    fleet = ScriptedFleet()
    fleet.phase, fleet.attempt_state = "DRAINING", "draining"
    app = make_app(fleet)
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        phase = text_of(app.screen.query_one("#phase"))
        assert "DRAINING" in phase
        assert "draining 02:45 · " in phase
        assert "in flight · oldest" in phase
        assert "ETA" not in phase
        assert "/20:00" not in phase


async def test_stopping_is_seen(make_app: AppMaker) -> None:
    fleet = ScriptedFleet()
    fleet.attempt_state = "stopping"
    app = make_app(fleet)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        assert "stopping · " in text_of(app.screen.query_one("#phase"))


def test_progress_plans_with_the_queries_that_the_attempt_must_issue() -> None:
    store = store_of(ScriptedFleet(), target_qps=10.0, min_queries=6000, duration_s=60.0, elapsed_s=90.0, issued=900)
    progress = store.progress()
    assert progress.planned_s == 600.0
    assert progress.duration == pytest.approx(0.15)
    assert progress.eta_s == pytest.approx(510.0)


def test_an_eta_of_nothing_is_not_shown() -> None:
    store = store_of(ScriptedFleet(), duration_s=60.0, elapsed_s=61.0, min_queries=10, issued=10)
    assert math.isnan(store.progress().eta_s)


def test_offline_progress_counts_completions() -> None:
    at = {"scenario": "Offline", "target_qps": 100.0, "min_queries": 6000, "duration_s": 10.0, "elapsed_s": 40.0}
    store = store_of(ScriptedFleet(), issued=6000, completed=3000, completed_qps=50.0, **at)
    assert store.progress().queries == pytest.approx(0.5)
    assert store.progress().eta_s == pytest.approx(60.0)


# --- from the record -------------------------------------------------------------------------------------------


def write_record(folder: Path, phase: str, verdict: str, **of_fleet: Any) -> Path:
    limits, fleet = LimitsSpec(ttft_p99_ms=3000.0, tpot_p99_ms=80.0), FleetSpec(nodes=2, replicas_per_node=2, **of_fleet)
    spec = RunSpec(name="old", limits=limits, fleet=fleet)
    attempt = AttemptRecord(
        number=1, kind="performance", scenario="Server", target_qps=40.0, epoch=1, state="ENDED" if verdict else "issuing",
        verdict=verdict, rates={"completed_qps": 39.5}, ttft_ms={"p99": 812.0}, totals={"issued": 0, "completed": 0},
    )  # fmt: skip
    run = RunFile(
        run=folder.name, spec=spec.model_dump(mode="json"), phase=phase, synthetic=True, attempts=[attempt], verdict=verdict
    )
    write_run(folder, run)
    return folder


def dead_head(folder: Path) -> None:
    address = {"control": "tcp://127.0.0.1:9", "telemetry": "tcp://127.0.0.1:9", "pid": 2**22 - 1, "epoch": 1}
    ServerKeys.fresh().save(RunFolder(folder).keys)
    (folder / "head.json").write_text(json.dumps(address))


def test_a_run_whose_head_is_still_starting_is_waited_for(tmp_path: Path) -> None:
    assert over(tmp_path) is None
    assert over(write_record(tmp_path, "PLACING", "")) is None


def damaged(folder: Path, damage: str) -> None:
    if damage == "run":
        (folder / "run.json").write_text("{")
    else:
        run = json.loads((folder / "run.json").read_text())
        run["spec"]["fleet"]["nodes"] = "many"
        (folder / "run.json").write_text(json.dumps(run))


@pytest.mark.parametrize(("damage", "said"), [("run", "is not a run record"), ("spec", r"its spec .*: spec\.fleet\.nodes: ")])
def test_an_ended_run_that_cannot_be_read_says_why(tmp_path: Path, damage: str, said: str) -> None:
    damaged(write_record(tmp_path, "DONE", "VALID"), damage)
    with pytest.raises(RecordError, match=said):
        over(tmp_path)


async def test_a_console_on_a_run_that_cannot_be_read_opens_and_says_why(tmp_path: Path) -> None:
    damaged(write_record(tmp_path, "DONE", "VALID"), "spec")
    app = PacelineApp(tmp_path, theme_folders=[shipped_folder()])
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        assert "spec.fleet.nodes" in app.store.link_note


def test_a_record_gives_each_replica_the_role_that_its_head_gave_it(tmp_path: Path) -> None:
    state = over(write_record(tmp_path, "DONE", "VALID", roles=("prefill", "decode")))
    assert state is not None
    assert [info.role for info in state.slots] == ["prefill", "decode"] * 2


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_an_ended_run_opens_with_its_verdict_and_its_replicas(tmp_path: Path, size: tuple[int, int]) -> None:
    app = PacelineApp(write_record(tmp_path, "DONE", "VALID"), theme_folders=[shipped_folder()])
    async with app.run_test(size=size) as pilot:
        assert isinstance(app.screen, RecordScreen)
        await app.workers.wait_for_complete()
        await settle(pilot, app)
        banner = text_of(app.screen.query_one("#verdict"))
        assert "VALID" in banner
        assert "39.5 qps" in banner
        assert "TTFT p99 812 ms of 3.00 s" in banner
        assert "No sample" in text_of(app.screen.query_one("#findings"))
        assert "◆ ended" in text_of(app.screen.query_one("#header"))
        await pilot.press("q")
    assert app.return_value == "left"


async def test_a_run_without_its_head_says_how_to_get_one_and_leaves_the_screen_to_it(tmp_path: Path) -> None:
    dead_head(write_record(tmp_path, "MEASURING", ""))
    app = PacelineApp(tmp_path, theme_folders=[shipped_folder()])
    async with app.run_test(size=(80, 24)) as pilot:
        assert isinstance(app.screen, RecordScreen)
        await settle(pilot, app)
        assert f"paceline restart-head {tmp_path.name}" in text_of(app.screen.query_one("#phase"))
        banner = text_of(app.screen.query_one("#verdict"))
        assert "CRASHED" in banner
        assert "ended in phase MEASURING" in " ".join(banner.split())
        fleet = ScriptedFleet()  # a head was started again
        app.store.apply(fleet.run_state())
        app.store.apply(fleet.snapshot())
        await settle(pilot, app)
        assert isinstance(app.screen, LiveScreen)


async def test_a_lost_head_is_told_with_the_remedy_uncut(make_app: AppMaker, hand_clock: HandClock) -> None:
    app = make_app()
    async with app.run_test(size=(60, 20)) as pilot:
        await settle(pilot, app)
        remedy = "head gone: paceline restart-head deepseek-r1-server-20261129-194951"
        app.store.disconnected(remedy)
        hand_clock.s += 30
        await settle(pilot, app)
        assert remedy in " ".join(text_of(app.screen.query_one("#phase")).split())


async def test_the_result_by_replica_is_one_key_away_once_the_run_has_ended(make_app: AppMaker, tmp_path: Path) -> None:
    app = make_app(ended_fleet())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("v")
        await pilot.pause()
        assert any("not on this machine" in note.message for note in app._notifications)
        app.store.record = str(write_record(tmp_path, "DONE", "INVALID"))
        await settle(pilot, app)
        assert "v: by replica" in text_of(app.screen.query_one("#verdict"))
        await pilot.press("v")
        await settle(pilot, app)
        assert isinstance(app.screen, RecordScreen)
        await pilot.press("escape")
        await settle(pilot, app)
        assert isinstance(app.screen, LiveScreen)
        assert feed_of(app).sent == []


def explored(acts: int = 11) -> AttemptInfo:
    note = "ACTS 2: replicas were drained or readmitted during the attempt, as load balancing may do"
    return AttemptInfo(1, "explore", "Server", 30.0, 1, verdict="EXPLORATION", state="ENDED", acts=acts, notes=[note])


def rated(qps: float, attempt: int = 1) -> JournalEntry:
    return JournalEntry(0, 0.0, "operator:kim", "act.set_rate", after=f"{qps:g} QPS", data={"qps": qps}, attempt=attempt)


def test_the_rate_of_an_exploration_is_told_with_its_changes() -> None:
    assert rate_words(explored(), []) == "30 qps"
    assert rate_words(explored(), [rated(40)]) == "30 → 40 qps (1 change)"
    assert rate_words(explored(), [rated(40), rated(43), rated(99, attempt=2), rated(60), rated(50)]) == "30 → 50 qps (4 changes)"
    fixed = AttemptInfo(1, "performance", "Server", 30.0, 1)
    assert rate_words(fixed, [rated(40)]) == "30 qps"  # there another rate is another attempt


async def test_the_banner_has_one_count_of_acts_and_says_what_the_others_are_of(make_app: AppMaker) -> None:
    app = make_app(ended_fleet())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.store.attempts = {2: msgspec.structs.replace(explored(), number=2)}
        app.store.snapshot = None
        banner = app.screen.query_one(VerdictBanner)
        banner.repaint()
        told = " ".join(text_of(banner).split())
        assert told.count("ACTS") == 1
        assert "2 of 11 acts: replicas were drained" in told


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_the_record_has_limits_and_acts_and_cuts_no_reason(tmp_path: Path, size: tuple[int, int]) -> None:
    path = recorded_run(tmp_path, seconds=12)
    run = read_run(path)
    run.attempts[0].reasons = [f"reason number {number} that an attempt may have" for number in range(6)]
    write_run(path, run)
    app = PacelineApp(path, theme_folders=[shipped_folder()])
    async with app.run_test(size=size) as pilot:
        await app.workers.wait_for_complete()
        await settle(pilot, app)
        assert "reason number 5" in " ".join(text_of(app.screen.query_one("#verdict")).split())
        limits = text_of(app.screen.query_one("#margins"))
        assert all(name in limits for name in ("TTFT", "TPOT", "600 ms", "×"))
        await pilot.press("a")
        await app.workers.wait_for_complete()
        await settle(pilot, app)
        acts = text_of(app.screen.query_one("#effects"))
        assert "evict" in acts
        assert "(kim)" in acts


async def test_a_tick_while_the_console_is_being_taken_down_paints_nothing(make_app: AppMaker, monkeypatch: Any) -> None:
    app = make_app()
    painted: list[int] = []
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        screen, close_all = app.screen, app._close_all
        monkeypatch.setattr(app.render_clock, "tick", lambda: EVERYTHING)
        monkeypatch.setattr(type(app), "painted_screen", property(lambda app: screen))

        async def closing() -> None:
            await screen.query("*").remove()
            painted.append(app.tick())
            await close_all()

        monkeypatch.setattr(app, "_close_all", closing)
    assert painted == [0]
