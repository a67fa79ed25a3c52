"""Replay: a record played into the store as its head would have filled it, at any speed and from any second."""

from __future__ import annotations

import asyncio
import math
import resource
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from console_helpers import HandClock, text_of, wait_for
from recorded_kit import SECONDS_BEFORE, T0, a_spec, recorded_run, rows_of

from console.app import PacelineApp
from console.feeds.recorded import RecordedRun, read_recorded
from console.feeds.replay import ReplayFeed
from console.screens.command_line import CommandLine
from console.screens.live import LiveScreen
from console.screens.replaying import place_of
from console.screens.runs import RunsScreen, replay_session
from console.store.fleet import FleetStore
from console.themes import shipped_folder
from harness.records.journal import JournalWriter
from harness.records.layout import RunFolder
from harness.records.reader import Record, summarise
from harness.records.runfile import AttemptRecord, read_run, write_run
from harness.records.writer import RecordWriter
from harness.wire.control import JournalEntry
from harness.wire.inquiry import GetReplica, GetSla, SlaDetail


def read(path: Path) -> RecordedRun:
    return read_recorded(path, lambda _: None)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def recorded(record: Path) -> RecordedRun:
    return read(record)


def test_a_second_says_what_the_samples_and_the_timeline_say(recorded: RecordedRun) -> None:
    snap = recorded.snapshot(SECONDS_BEFORE + 30, 1)
    assert (snap.phase, snap.attempt, snap.attempt_state) == ("MEASURING", 1, "issuing")
    assert snap.elapsed_s == pytest.approx(30.0)
    assert snap.issued == pytest.approx(3000, abs=2)
    assert snap.completed == pytest.approx(2970, abs=2)  # 300 ms from schedule to end
    assert snap.offered_qps == pytest.approx(100, rel=0.02)
    assert snap.ttft.window.p50 == pytest.approx(100, rel=0.02)
    assert snap.tpot.window.p99 == pytest.approx(20, rel=0.02)
    assert snap.ttft.over == 0
    assert snap.counts == {"READY": 4}
    assert snap.mechanism == ""
    assert math.isnan(snap.head_cpu_percent)
    assert np.isnan(np.frombuffer(snap.oldest_s, "<f4")).all()
    assert np.frombuffer(snap.ttft_p99_ms, "<f4") == pytest.approx([100] * 4, rel=0.02)


def test_the_last_second_agrees_with_the_summary_of_the_record(record: Path, recorded: RecordedRun) -> None:
    snap, summary = recorded.snapshot(SECONDS_BEFORE + 61, 1), summarise(Record(record), 1)
    assert snap.completed == summary.totals["completed"]
    assert snap.ttft.whole.p99 == pytest.approx(summary.ttft_ms["p99"], rel=0.02)
    assert snap.ttft.over == 2000


def test_what_was_not_known_yet_is_not_told(recorded: RecordedRun) -> None:
    early = recorded.state(SECONDS_BEFORE + 10)
    assert [attempt.verdict for attempt in early.attempts] == [""]
    assert max(entry.unix for entry in early.journal) <= T0 + SECONDS_BEFORE + 10
    late = recorded.state(recorded.length_s)
    assert [attempt.verdict for attempt in late.attempts] == ["VALID"]
    assert late.phase == "DONE"
    barrier = recorded.snapshot(2, 1)
    assert barrier.attempt == 0
    assert barrier.missing_total == 4
    assert barrier.missing[0] == "node000/gpu0: WARMING"


def test_acts_and_stragglers_are_there_from_their_second_on(recorded: RecordedRun) -> None:
    before, flagged, after = (recorded.snapshot(SECONDS_BEFORE + s, 1) for s in (29, 35, 41))
    assert (before.slow, before.acts) == ([], 0)
    assert flagged.slow == ["node001/gpu1"]
    assert flagged.slow_age_s == pytest.approx([5.0])
    assert (after.slow, after.acts, after.evictions) == ([], 1, 1)
    assert after.counts == {"READY": 3, "EVICTED": 1}


def test_distributions_until_then_are_answered_from_the_samples(recorded: RecordedRun) -> None:
    detail = recorded.sla(SECONDS_BEFORE + 50, GetSla("q", without=["node000/gpu0"]))
    assert isinstance(detail, SlaDetail)
    assert detail.ttft.whole_n == sum(detail.ttft.whole)
    assert len(detail.ttft.edges_ms) == len(detail.ttft.whole) + 1
    assert detail.ttft.whole_ms["p50"] == pytest.approx(100, rel=0.03)
    over = np.frombuffer(detail.ttft.over_whole, "<i4")
    assert over.sum() == pytest.approx(940, abs=5)  # 600 ms after their schedule, for 9.4 s of them
    assert np.frombuffer(detail.ttft.samples_whole, "<i4").sum() == detail.ttft.whole_n
    assert detail.ttft.without_p99_ms == pytest.approx(600, rel=0.03)
    parts = {part.name: part.mean_ms for part in detail.parts}
    assert parts["replica queue"] == pytest.approx(1.0)
    assert parts["prefill"] == pytest.approx(5.0)
    assert detail.parts_n == pytest.approx(4920, abs=10)
    assert recorded.sla(2, GetSla("q")) is None


async def test_a_seek_makes_charts_and_sparklines_as_they_were_then(record: Path) -> None:
    played, jumped = FleetStore(), FleetStore()
    for store, stops in ((played, range(41)), (jumped, [60, 0, 40])):
        feed, run = ReplayFeed(record), read(record)
        for at_s in stops:
            if store is jumped:
                feed.seek_to(float(at_s))
            feed._show(store, run, at_s)
    assert len(jumped.series) == len(played.series) == 41
    for name in ("unix", "target_qps", "offered_qps", "ttft_p99_ms", "ready"):
        assert np.array_equal(jumped.series.column(name), played.series.column(name), equal_nan=True), name
    assert np.array_equal(jumped.history.values, played.history.values, equal_nan=True)
    assert list(jumped.journal) == list(played.journal)
    assert jumped.phase == played.phase == "MEASURING"


async def test_it_plays_at_its_speed_pauses_and_ends(record: Path, hand_clock: HandClock) -> None:
    store = FleetStore(hand_clock)
    feed = ReplayFeed(record, now_s=hand_clock)
    assert feed.label() == "REPLAY reading …"
    playing = asyncio.create_task(feed.follow(store))
    try:
        await wait_for(lambda: feed.opened and store.snapshot is not None)
        assert feed.position_s == pytest.approx(2.0, abs=0.1)  # a little before the load
        feed.set_speed(16)
        hand_clock.s += 2
        await wait_for(lambda: feed.position_s > 33)
        assert feed.label() == "REPLAY x16 00:34/01:08"
        feed.play_pause()
        assert not feed.playing
        hand_clock.s += 100
        await wait_for(lambda: store.link().kind == "live")  # a picture that stands is not a head that is silent
        assert feed.label() == "REPLAY ❚❚ x16 00:34/01:08"
        feed.seek_by(10)
        await wait_for(lambda: store.snapshot is not None and store.snapshot.unix == T0 + 44)
        feed.play_pause()
        assert feed.playing
        hand_clock.s += 100
        await wait_for(lambda: feed.at_end)
        assert not feed.playing
        assert feed.label() == "REPLAY ■ end 01:08/01:08"
        await wait_for(lambda: store.ended)
        assert store.attempt is not None
        assert store.attempt.verdict == "VALID"
        feed.seek_by(-30)
        await wait_for(lambda: not store.ended)
        reply = await feed.command("evict", {"slot": "node000/gpu0"})
        assert not reply.ok
        assert "replay" in reply.message
        assert await feed.ask(GetReplica("q", "node000/gpu0")) is None
        with pytest.raises(ValueError, match="1, 4, 16, 60"):
            feed.set_speed(3)
    finally:
        playing.cancel()


def test_each_attempt_is_played_with_its_own_samples_and_rate(tmp_path: Path) -> None:
    path = recorded_run(tmp_path, seconds=10)
    run = read_run(path)
    run.attempts[0].verdict = "SUPERSEDED"
    second = AttemptRecord(2, "explore", "Server", 50.0, 2, T0 + 20, T0 + 30, "ENDED", "EXPLORATION", supersedes=1)
    run.attempts.append(second)
    write_run(path, run)
    folder = RunFolder(path)
    journal = JournalWriter(folder.journal)
    journal.append(JournalEntry(0, T0 + 19, "head", "attempt.start", "2", attempt=2))
    rate = {"qps": 150.0, "ramp_s": 4.0}
    journal.append(JournalEntry(0, T0 + 22, "operator:kim", "act.set_rate", after="150 QPS", data=rate, attempt=2))
    journal.append(JournalEntry(0, T0 + 30, "head", "attempt.end", "2", attempt=2))
    journal.close()
    writer = RecordWriter(folder)
    for at_s in range(10):
        writer.samples(2, 2, rows_of(at_s, 50, 4, slow=False), a_spec().slots())
    writer.flush()
    played = read(path)
    first, between, later = (played.snapshot(at_s, 1) for at_s in (12, 18, 24))
    assert (first.attempt, between.attempt, later.attempt) == (1, 0, 2)
    assert (between.target_qps, between.issued) == (0.0, 0)
    assert later.attempt_kind == "explore"
    assert later.issued == pytest.approx(200, abs=2)
    assert later.target_qps == pytest.approx(100.0)  # half of the ramp
    assert [info.verdict for info in played.state(24).attempts] == ["SUPERSEDED", ""]


@pytest.mark.parametrize("damage", ["samples", "timeline", "one chunk", "journal"])
def test_a_damaged_record_plays_with_what_is_left(tmp_path: Path, damage: str) -> None:
    path = recorded_run(tmp_path, seconds=12)
    if damage == "one chunk":
        next((path / "samples").iterdir()).write_bytes(b"PAR1 this is not parquet PAR1")
    elif damage == "journal":
        (path / "journal.jsonl").write_bytes((path / "journal.jsonl").read_bytes()[:-40])
    else:
        shutil.rmtree(path / damage)
    run = read(path)
    snap = run.snapshot(SECONDS_BEFORE + 6, 1)
    assert snap.phase == "MEASURING"
    assert snap.counts == {"READY": 4}
    assert (snap.issued > 0) == (damage in ("timeline", "journal"))
    if damage in ("samples", "one chunk"):
        assert run.problems


async def test_what_cannot_be_played_says_why(tmp_path: Path) -> None:
    store, feed = FleetStore(), ReplayFeed(tmp_path)
    await feed.follow(store)
    assert "run.json" in store.link_note
    assert feed.label() == "REPLAY cannot be read"


def test_memory_is_bounded_by_samples_and_by_seconds_of_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.feeds.tape.TIMELINE_CELLS", 4 * 20)
    path = recorded_run(tmp_path, seconds=60, qps=2000, spec=a_spec(qps=2000))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = read(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 120_000
    tape = run.tapes[1]
    arrays = [tape.issued, tape.scheduled, tape.dispatched, tape.done, tape.tokens, tape.lag_ms, tape.redispatched]
    for latency in (tape.ttft, tape.tpot):
        arrays += [latency.at, latency.cell, latency.slot]
    assert sum(array.nbytes for array in arrays) / 120_000 < 60
    assert run.timeline.state.size <= 4 * 20
    assert run.snapshot(SECONDS_BEFORE + 30, 1).counts == {"READY": 4}


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_the_live_screens_show_the_replay_and_refuse_acts(record: Path, size: tuple[int, int]) -> None:
    app = PacelineApp(theme_folders=[shipped_folder()])
    async with app.run_test(size=size) as pilot:
        app.open_session(replay_session(app, record))
        await wait_for(lambda: isinstance(app.screen, LiveScreen) and app.store.snapshot is not None)
        feed = app.session.feed
        assert isinstance(feed, ReplayFeed)
        feed.play_pause()
        feed.seek_to(40.0)
        await wait_for(lambda: app.store.snapshot is not None and app.store.snapshot.unix == T0 + 40)
        await wait_for(lambda: "REPLAY ❚❚ x1 00:40/01:08" in text_of(app.screen.query_one("#header")))
        await wait_for(lambda: "MEASURING" in text_of(app.screen.query_one("#phase")))
        await pilot.press("full_stop", "greater_than_sign")
        assert (feed.position_s, feed.speed) == (50.0, 4.0)
        await pilot.press("X")
        await wait_for(lambda: any("replay" in str(toast.message) for toast in app._notifications))


async def test_it_jumps_to_times_acts_and_alerts_and_esc_leaves_it(record: Path) -> None:
    app = PacelineApp(theme_folders=[shipped_folder()])
    async with app.run_test(size=(120, 36)) as pilot:
        app.open_session(replay_session(app, record))
        await wait_for(lambda: isinstance(app.screen, LiveScreen) and app.store.snapshot is not None)
        feed, live = app.session.feed, app.screen
        assert isinstance(feed, ReplayFeed)
        assert isinstance(live, LiveScreen)
        feed.play_pause()
        live.command_replay_to("0:10")
        assert feed.position_s == 10.0
        await pilot.press("right_square_bracket")
        assert feed.position_s == SECONDS_BEFORE + 30  # called slow
        await pilot.press("right_square_bracket")
        assert feed.position_s == SECONDS_BEFORE + 40  # evicted
        await pilot.press("left_square_bracket")
        assert feed.position_s == SECONDS_BEFORE + 30
        live.command_replay_to("+5")
        assert feed.position_s == SECONDS_BEFORE + 35
        live.command_replay_to("9:00")
        assert feed.position_s == SECONDS_BEFORE + 35
        await wait_for(lambda: any("the record ends at 1:08" in str(toast.message) for toast in app._notifications))
        await wait_for(lambda: app.store.snapshot is not None and app.store.snapshot.unix == T0 + 40)
        live.query_one("#header").repaint()  # type: ignore[call-arg]
        assert time.strftime("%m-%d %H:%M:%S", time.localtime(T0 + 40)) in text_of(live.query_one("#header"))
        await pilot.press("J")
        await wait_for(lambda: isinstance(app.screen, CommandLine))
        await pilot.press(*"0:20", "enter")
        await wait_for(lambda: feed.position_s == 20.0)
        await pilot.press("escape")
        await wait_for(lambda: isinstance(app.screen, RunsScreen))


@pytest.mark.parametrize(
    ("text", "place_s"),
    [("3:20", 200.0), ("1:03:20", 3800.0), ("200", 200.0), ("+30", 130.0), ("-1:00", 40.0), ("end", 500.0), ("begin", 0.0),
     ("soon", None), ("", None), ("1:2", None)],
)  # fmt: skip
def test_a_place_of_a_replay_can_be_typed_in_several_ways(text: str, place_s: float | None) -> None:
    assert place_of(text, 100.0, 500.0) == place_s


async def test_the_barrier_was_waited_for_as_long_as_the_record_says(record: Path) -> None:
    app = PacelineApp(theme_folders=[shipped_folder()])
    async with app.run_test(size=(120, 36)):
        app.open_session(replay_session(app, record))
        await wait_for(lambda: isinstance(app.screen, LiveScreen) and app.store.snapshot is not None)
        feed = app.session.feed
        assert isinstance(feed, ReplayFeed)
        feed.play_pause()
        feed.seek_to(3.0)
        await wait_for(lambda: "waited 00:01 of" in text_of(app.screen.query_one("#barrier")))
