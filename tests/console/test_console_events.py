"""Events: journal and logs as one list by time, in a window that stays where the operator put it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from console_helpers import AppMaker, HandClock, settle, text_of
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot
from textual.widgets import Input

from console.app import PacelineApp
from console.feeds.scripted import SAMPLE_UNIX, ScriptedFeed, ScriptedFleet
from console.screens.detail import ReplicaScreen
from console.screens.events import OLD_AFTER_S, EventsScreen
from console.store.merge import KEPT, Timeline, Words, reason, sentence
from console.store.tail import Pager, clean
from harness.wire.control import JournalEntry
from harness.wire.inquiry import LogLine, LogLines

SIZES = [(120, 36), (80, 24)]


def feed_of(app: PacelineApp) -> ScriptedFeed:
    feed = app.session.feed
    assert isinstance(feed, ScriptedFeed)
    return feed


async def open_events(pilot: Pilot[Any], app: PacelineApp) -> EventsScreen:
    await settle(pilot, app)
    await pilot.press("4")
    await settle(pilot, app)
    screen = app.screen
    assert isinstance(screen, EventsScreen)
    return screen


def shown(screen: EventsScreen) -> list[str]:
    return text_of(screen.view).rstrip().splitlines()


def bar(screen: EventsScreen) -> str:
    return text_of(screen.query_one("#timeline-bar"))


# --- the list ----------------------------------------------------------------------------------------------


def entry(seq: int, unix: float, what: str = "run.phase", **fields: Any) -> JournalEntry:
    return JournalEntry(seq, unix, fields.pop("who", "head"), what, **fields)


def texts(timeline: Timeline) -> list[str]:
    return [row.text for row in timeline.rows if row.kind != "day"]


def logs(*lines: tuple[float, str], left_out: int = 0, source: str = "node000") -> LogLines:
    return LogLines("1", [LogLine(unix, source, text) for unix, text in lines], left_out)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"what": "act.drain", "before": "READY", "after": "stay"}, "drain: no new samples"),
        ({"what": "act.evict", "before": "READY", "after": "evict"}, "evict: drained first, then ended"),
        ({"what": "act.recycle", "before": "READY", "after": "recycle"}, "recycle: drained first, then restarted"),
        ({"what": "act.set_rate", "before": "30 QPS", "after": "50 QPS", "data": {"qps": 50}}, "set rate 30 → 50 QPS"),
        ({"what": "act.set_rate", "data": {"qps": 4000.0, "ramp_s": 15}}, "set rate 4,000 QPS over 15 s"),
        ({"what": "act.take_control", "before": "", "after": "kim@head"}, "take control"),
        ({"what": "act.set_policy", "before": "flag", "after": "drain"}, "set policy flag → drain"),
        ({"what": "act.some_thing"}, "some thing"),
        ({"what": "refused.set_rate"}, "set rate refused"),
        ({"what": "replica.state", "before": "READY", "after": "LOST", "why": "no heartbeat"}, "READY → LOST"),
        ({"what": "replica.state", "before": "DRAINED", "after": "LOST", "why": "recycled: hot"}, "DRAINED → restarts (recycle)"),
    ],
)
def test_what_happened_is_said_in_words(given: dict[str, Any], said: str) -> None:
    assert sentence(entry(1, 0.0, **given)) == said


def test_a_reason_stands_apart_from_its_sentence() -> None:
    assert reason(entry(1, 0.0, "act.evict", why="hot")) == " · hot"
    assert reason(entry(1, 0.0, "replica.state", before="DRAINED", after="LOST", why="recycled: hot")) == ": hot"
    assert reason(entry(1, 0.0, "act.evict")) == ""


async def test_enter_opens_the_replica_that_the_line_is_about(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_events(pilot, app)
        assert shown(screen)[-1].startswith("▏"), "the cursor is there while the newest line is followed"
        await pilot.press("slash", *"evict:", "enter")
        await settle(pilot, app)
        assert str(screen.query_one("#words-mark").render()) == "/"
        await pilot.press("enter")
        await settle(pilot, app)
        opened = app.screen
        assert isinstance(opened, ReplicaScreen)
        assert opened.slot == "node012/gpu1"


async def test_enter_on_a_line_of_no_replica_says_so(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_events(pilot, app)
        await pilot.press("slash", *"snapshot", "enter", "enter")
        await settle(pilot, app)
        assert app.screen is screen
        assert any("about no replica" in note.message for note in app._notifications)


async def test_hits_of_the_filter_stand_out_in_every_column(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_events(pilot, app)
        await pilot.press("slash", *"node012", "enter")
        await settle(pilot, app)
        badge = app.inks.badge.bgcolor
        hits = [piece.text for piece in screen.view.render_line(1) if piece.style is not None and piece.style.bgcolor == badge]
        assert "node012" in hits


def test_late_lines_take_their_place_in_time() -> None:
    timeline = Timeline()
    timeline.add_journal([entry(1, 100.0, why="first"), entry(2, 110.0, why="third")])
    timeline.add_logs(logs((105.0, "second"), (120.0, "fourth")))
    assert [text.rpartition(" ")[2] for text in texts(timeline)] == ["first", "second", "third", "fourth"]


def test_what_an_overlapping_answer_repeats_is_shown_once_but_twins_stay() -> None:
    timeline = Timeline()
    timeline.add_logs(logs((100.0, "same"), (100.0, "same"), (101.0, "more")))
    assert timeline.logs_since == pytest.approx(96.0)
    timeline.add_logs(logs((100.0, "same"), (100.0, "same"), (101.0, "more"), (102.0, "new"), (100.5, "late")))
    assert texts(timeline) == ["same", "same", "late", "more", "new"]


def test_lines_that_the_head_left_out_are_counted_unless_they_are_here() -> None:
    timeline = Timeline()
    timeline.add_logs(logs((100.0, "a"), (100.5, "b")))
    timeline.add_logs(logs((103.0, "d"), left_out=7))
    assert timeline.logs_missed == 5


def test_the_ring_is_bounded_and_says_what_it_let_go() -> None:
    timeline = Timeline(kept=100)
    for second in range(50):
        timeline.add_logs(logs(*((second + part / 10, f"{second}.{part}") for part in range(10))))
    assert len(timeline) <= 125
    assert timeline.dropped == 500 - len(timeline)
    assert texts(timeline)[-1] == "49.9"
    assert timeline.rows[0].kind == "day"


def test_a_line_with_the_date_stands_where_the_day_changes() -> None:
    noon = time.mktime((2026, 11, 18, 12, 0, 0, 0, 0, -1))
    timeline = Timeline()
    timeline.add_logs(logs((noon, "a"), (noon + 5, "b"), (noon + 86_400, "c")))
    assert [row.text for row in timeline.rows] == [
        "Wednesday 18 November 2026", "a", "b", "Thursday 19 November 2026", "c",
    ]  # fmt: skip


def test_the_cursor_stays_on_its_line_when_earlier_ones_come_and_go() -> None:
    timeline = Timeline(kept=100)
    timeline.add_logs(logs(*((100.0 + number, str(number)) for number in range(100))))
    timeline.pager.move(-30)
    chosen = timeline.rows[timeline.pager.cursor].text
    timeline.add_logs(logs((130.5, "late")))
    assert timeline.rows[timeline.pager.cursor].text == chosen
    timeline.add_logs(logs(*((300.0 + number, f"n{number}") for number in range(30))))
    assert timeline.dropped > 0
    assert timeline.rows[timeline.pager.cursor].text == chosen
    assert not timeline.pager.follow


def test_a_journal_that_was_wound_back_is_taken_anew() -> None:
    timeline = Timeline()
    timeline.add_journal([entry(number, 100.0 + number, why=str(number)) for number in (4, 5, 6)])
    assert timeline.journal_before == 3
    timeline.add_journal([entry(1, 101.0, why="1"), entry(2, 102.0, why="2")])
    assert [text[-1] for text in texts(timeline)] == ["1", "2"]


def test_levels_keep_acts_and_stragglers_and_errors_are_errors_only() -> None:
    timeline = Timeline()
    timeline.add_journal([
        entry(1, 1.0, "act.set_rate", who="operator:kim@head"), entry(2, 2.0, "straggler.recovered", subject="node000/gpu0"),
        entry(3, 3.0, "replica.state", before="READY", after="LOST", level="error"), entry(4, 4.0, "run.phase"),
    ])  # fmt: skip
    timeline.add_logs(logs((5.0, "plain")))
    timeline.next_level()
    assert [row.kind for row in timeline.rows][1:] == ["act", "straggler", "replica"]
    timeline.next_level()
    assert [row.kind for row in timeline.rows][1:] == ["replica"]


@pytest.mark.parametrize(
    ("words", "matches"),
    [("engine lost", True), ("ENGINE", True), ("engine !lost", False), ("nothing|lost", True), ("nothing", False), ("", True),
     ("!engine|lost", True), ("!engine|nothing", False), ("!engine|!nothing", True), ("!!engine", True), ("! engine", False),
     ("nothing | lost", True), ("lost|", True), ("!", True)],
)  # fmt: skip
def test_words_of_the_filter(words: str, matches: bool) -> None:
    assert Words.of(words).match("log node000 the engine is lost") is matches


def test_control_characters_of_a_log_never_reach_the_terminal() -> None:
    assert clean("\x1b[31mred\x1b[0m\tend\x07\r\n") == "red end"
    assert clean(" 10%\r 99%\r100%") == "100%"


def test_a_window_shows_whole_rows_around_the_cursor() -> None:
    pager = Pager()
    pager.resize(100)
    assert pager.window(10) == list(range(90, 100))
    pager.move(-50)
    assert pager.window(10)[0] == 49
    assert pager.window(10, lambda row: 3) == [49, 50, 51, 52]
    pager.move(1000)
    assert pager.follow
    assert pager.window(10, lambda row: 3)[-1] == 99


@given(
    heights=st.lists(st.integers(1, 6), min_size=1, max_size=60),
    moves=st.lists(st.integers(-70, 70), max_size=12),
    height=st.integers(1, 20),
)
def test_the_cursors_row_is_always_in_the_window_which_is_full_when_it_can_be(
    heights: list[int], moves: list[int], height: int
) -> None:
    pager = Pager()
    pager.resize(len(heights))
    for by in [0, *moves]:
        pager.move(by)
        rows = pager.window(height, heights.__getitem__)
        assert pager.cursor in rows
        assert rows == list(range(rows[0], rows[-1] + 1))
        if rows[0] > 0 and rows[-1] == len(heights) - 1:
            assert heights[rows[0] - 1] + sum(heights[row] for row in rows) > height


# --- the screen --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
async def test_journal_and_logs_stand_together_by_time(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        screen = await open_events(pilot, app)
        assert "following" in bar(screen)
        assert "journal and logs" in bar(screen)
        assert any(" log " in line for line in shown(screen))
        await pilot.press("l")
        lines = shown(screen)
        assert "18 November 2026" in lines[0]
        about = [line for line in lines if "node012/gpu1" in line]
        assert about
        assert "» act" in about[0]
        assert any("▲ straggler" in line for line in lines)
        assert any("× log error" in line and "HIP error" in line for line in lines)
        times = [line[1:9] for line in lines[1:] if line.strip()]
        assert times == sorted(times)


async def test_level_and_sources_go_round(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_events(pilot, app)
        said = []
        for _ in range(3):
            await pilot.press("l")
            said.append(bar(screen).split("·")[0].strip())
        assert said == ["warnings and acts", "errors only", "all levels"]
        await pilot.press("o")
        assert "journal only" in bar(screen)
        assert not any(" log " in line for line in shown(screen))
        await pilot.press("o")
        assert "logs only" in bar(screen)
        assert all(" log" in line for line in shown(screen) if "November" not in line)


async def test_scrolling_up_stops_following_and_counts_what_is_newer(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_events(pilot, app)
        before = shown(screen)
        await pilot.press("up")
        assert "▌held" in bar(screen)
        feed_of(app).fleet.t_s += 30
        await screen._ask_logs()
        await settle(pilot, app)
        assert [line.strip("▌▏ ") for line in shown(screen)] == [line.strip("▌▏ ") for line in before]
        assert "newer (s follows)" in bar(screen)
        await pilot.press("s")
        await settle(pilot, app)
        assert "following" in bar(screen)
        assert shown(screen)[-1] != before[-1]
        await pilot.press("home")
        assert "18 November 2026" in shown(screen)[0]
        await pilot.press("pagedown", "pagedown", "b")
        assert "following" in bar(screen)


@pytest.mark.parametrize("size", SIZES)
async def test_filter_narrows_as_typed_and_esc_clears_it(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        screen = await open_events(pilot, app)
        await pilot.press("slash", *"hip")
        await pilot.pause()
        assert app.focused is screen.query_one("#filter", Input)
        assert [line for line in shown(screen) if "HIP error" in line]
        assert len([line for line in shown(screen) if line.strip()]) == 2
        await pilot.press("enter")
        assert "/hip" in bar(screen)
        found = [segment for segment in screen.view.render_line(1) if segment.text == "HIP"]
        assert found
        await pilot.press("escape")
        assert "/hip" not in bar(screen)
        assert len(shown(screen)) > 10


async def test_long_lines_wrap_or_scroll_and_times_stand_still(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_events(pilot, app)
        screen.command_filter("lowered")
        await settle(pilot, app)
        start = shown(screen)[-1]
        assert start.endswith("›")
        await pilot.press("right")
        moved = shown(screen)[-1]
        assert moved[:30] == start[:30]
        assert moved[40:] != start[40:]
        await pilot.press("left", "left", "w")
        text = " ".join(line[36:] for line in shown(screen)[-3:])
        assert "expected 9.4 ms at a batch of 104; the device" in " ".join(text.split())


async def test_copy_takes_the_line_under_the_cursor(
    make_app: AppMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_events(pilot, app)
        screen.command_filter("HIP")
        await pilot.press("y")
        await pilot.pause()
        assert app.clipboard.endswith("log node010/gpu0 RuntimeError: HIP error: device is lost")


async def test_old_logs_say_their_age_and_a_silent_head_greys_the_list(make_app: AppMaker, hand_clock: HandClock) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_events(pilot, app)
        feed_of(app).silent = True
        hand_clock.s += OLD_AFTER_S + 3
        await settle(pilot, app)
        assert "logs as of 9s ago" in bar(screen)
        assert screen.has_class("-stale")


async def test_a_run_of_which_nothing_is_known_says_so(make_app: AppMaker) -> None:
    fleet = ScriptedFleet(phase="PLACING", at_s=0.0)
    fleet.journal = []
    app = make_app(fleet)
    async with app.run_test(size=(80, 24)) as pilot:
        feed_of(app).silent = True
        screen = await open_events(pilot, app)
        assert "nothing has happened yet" in shown(screen)[0]
        assert "no logs yet" in bar(screen)


async def test_export_has_what_is_shown(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_events(pilot, app)
        await pilot.press("l", "o")
        rows = screen.tables()["events"]
        assert {row["source"] for row in rows} == {"journal"}
        assert len(rows) == screen.timeline.shown


async def test_a_hundred_thousand_lines_cost_no_more_than_the_window(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await open_events(pilot, app)
        began_s = time.process_time()
        for batch in range(200):
            lines = [(SAMPLE_UNIX + 500 + batch * 2 + number / 250, f"{batch} {number} in the engine") for number in range(500)]
            screen.timeline.add_logs(logs(*lines))
        batch_ms = (time.process_time() - began_s) / 200 * 1000
        await settle(pilot, app)
        assert len(screen.timeline) <= KEPT * 1.2
        assert "older left out" in bar(screen)
        began_s = time.process_time()
        for _ in range(50):
            screen.view.repaint()
        still_ms = (time.process_time() - began_s) / 50 * 1000
        began_s = time.process_time()
        for _ in range(25):
            screen.view.move(-7)
        moved_ms = (time.process_time() - began_s) / 25 * 1000
        print(f"batch of 500: {batch_ms:.2f} ms, unchanged paint {still_ms:.2f} ms, moved {moved_ms:.2f} ms")
        assert batch_ms < 15
        assert still_ms < 2.5
        assert moved_ms < 12
