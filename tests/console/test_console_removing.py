"""Evict, drain, recycle, readmit and waive on sample data: one replica or many, against the guards or with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from acting_helpers import ForetellingFeed, acts_over, app_on, complaint, facts, feed_of, opened, press, say_yes, sent, told
from console_helpers import HandClock, settle, wait_for
from textual.widgets import Input, Static

from console.app import PacelineApp
from console.screens.dialogs import Dialog, Sending
from console.screens.dialogs.fields import Choice, Tick
from console.themes import shipped_folder
from harness.wire.states import REPLICA_CODE

SEVERAL = [f"node{node:03d}/gpu5" for node in range(8)]


async def test_the_effect_on_the_latencies_is_asked_of_the_head_and_a_dash_until_it_answers() -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "e")
        await pilot.pause()
        assert facts(app)["p99, 60 s"].splitlines()[0] == "TTFT 2.69 s; without its samples 2.61 s"
        assert [question.without for question in feed_of(app).questions] == [["node015/gpu3"]]
        await press(pilot, "escape")

    class Dumb(ForetellingFeed):
        async def ask(self, question: Any) -> None:
            return None

    silent = PacelineApp(feed=Dumb(), fps=1, now_s=HandClock(), theme_folders=[shipped_folder()])
    async with silent.run_test(size=(120, 36)) as pilot:
        await settle(pilot, silent)
        await press(pilot, "e")
        assert facts(silent)["p99, 60 s"].splitlines()[0] == "TTFT –: the head has not answered yet"


@pytest.mark.parametrize(
    ("keys", "sends"),
    [
        ((), {}),
        (("down",), {"deadline_s": 0.0}),
        (("tab", "ctrl+u", "3", "0"), {"deadline_s": 30.0}),
    ],
)
async def test_evicting_drains_first_for_as_long_as_is_said_or_not_at_all(keys: tuple[str, ...], sends: dict[str, float]) -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "e")
        assert app.screen.query_one("#deadline", Input).value == "240"
        app.screen.query_one("#mode", Choice).focus()
        await press(pilot, *keys)
        app.screen.query_one("#deadline", Input).cursor_position = 3
        await say_yes(pilot)
        ((name, args),) = sent(app)
        assert name == "evict"
        assert args == {"slot": "node015/gpu3", "incarnation": args["incarnation"]} | sends


async def test_a_deadline_that_is_none_is_refused_in_words() -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "e")
        for junk in ("", "0", "soon", "-1", "1e9"):
            app.screen.query_one("#deadline", Input).value = junk
            await pilot.pause()
            await say_yes(pilot)
            assert "is not a deadline" in complaint(app)
        assert sent(app) == []


async def test_force_is_offered_only_against_a_guard_and_is_off_by_default() -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "e")
        assert not app.screen.query_one("#force", Tick).display
        await press(pilot, "escape")
        feed_of(app).fleet.state[:260] = REPLICA_CODE["LOST"]
        feed_of(app).push()
        app.ask_and_act("drain", ["node040/gpu1"])
        await opened(pilot)
        force = app.screen.query_one("#force", Tick)
        assert force.display
        assert not force.on
        assert "the head refuses" in facts(app)["quorum"]
        await say_yes(pilot)
        app.ask_and_act("drain", ["node040/gpu2"])
        await opened(pilot)
        app.screen.query_one("#force", Tick).focus()
        await press(pilot, "space")
        await say_yes(pilot)
        assert ["force" in args for _, args in sent(app)] == [False, True]


async def test_the_eviction_limit_counts_what_was_evicted_before() -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.ask_and_act("evict", SEVERAL[:6])
        await opened(pilot)
        assert facts(app)["limit"] == "0 evictions in the last 10 min, at most 4: the head refuses all but 4"
        assert app.screen.query_one("#force", Tick).display
        await press(pilot, "escape")
        app.ask_and_act("evict", SEVERAL[:4])
        await opened(pilot)
        assert facts(app)["limit"].endswith("ok")


async def test_several_are_sent_one_after_the_other_and_each_refusal_is_told_with_its_slot() -> None:
    app = app_on()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        feed_of(app).refuse_slots = {SEVERAL[2]: f"{SEVERAL[2]} is now incarnation x; you acted on y, which is gone"}
        app.ask_and_act("drain", SEVERAL)
        await opened(pilot)
        assert facts(app)["which"].startswith("8 replicas: node000/gpu5, node001/gpu5, node002/gpu5 and 5 more")
        assert "without their samples" in facts(app)["p99, 60 s"]
        await say_yes(pilot)
        await acts_over(pilot)
        assert [args["slot"] for _, args in sent(app)] == SEVERAL
        assert all(args["incarnation"] for _, args in sent(app))
        assert "draining 7 of 8; refused: node002/gpu5 is now incarnation x" in told(app)
        assert not isinstance(app.screen, Sending)


async def test_esc_stops_the_rest() -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        turns = feed_of(app).turns = asyncio.Semaphore(2)
        app.ask_and_act("recycle", SEVERAL)
        await opened(pilot)
        await say_yes(pilot)
        await wait_for(lambda: len(sent(app)) == 2)
        await pilot.pause()
        assert isinstance(app.screen, Sending)
        assert "3 of 8: node002" in str(app.screen.query_one("#sending", Static).render())
        await press(pilot, "escape")
        assert len(sent(app)) == 2
        for _ in SEVERAL:
            turns.release()
        await acts_over(pilot)
        assert len(sent(app)) == 3, "the one on its way is not taken back"
        assert "recycling 3 of 8; 5 not sent (stopped)" in told(app)


async def test_no_answer_ends_the_series_and_says_so() -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        feed_of(app).silent_slots = {SEVERAL[1]}
        app.ask_and_act("drain", SEVERAL[:4])
        await opened(pilot)
        await say_yes(pilot)
        await acts_over(pilot)
        assert "draining 1 of 4; node001/gpu5: no answer from the head within 12 s; look at the events" in told(app)
        assert "2 not sent" in told(app)


async def test_what_does_not_fit_is_left_out_and_said() -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.ask_and_act("evict", ["node010/gpu0", "node010/gpu1", "node010/gpu2"])
        await opened(pilot)
        assert facts(app)["left out"].startswith("node010/gpu0 is LOST")
        await say_yes(pilot)
        await acts_over(pilot)
        assert [args["slot"] for _, args in sent(app)] == ["node010/gpu1", "node010/gpu2"]


@pytest.mark.parametrize(
    ("act", "slot", "says"),
    [
        ("evict", "node010/gpu0", "node010/gpu0 is LOST: no live replica is there; a takes it back"),
        ("drain", "node012/gpu1", "it holds no samples to drain"),
        ("readmit", "node015/gpu3", "serves already, there is nothing to readmit"),
        ("evict", "node15/gpu3", "did you mean node015/gpu3?"),
        ("waive", "node010/gpu0", "no barrier is waiting"),
    ],
)
async def test_what_makes_no_sense_is_answered_without_a_question(act: str, slot: str, says: str) -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.ask_and_act(act, [slot])
        await opened(pilot)
        assert not isinstance(app.screen, Dialog)
        assert says in told(app)


async def test_readmit_and_waive_send_their_slot() -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.ask_and_act("readmit", ["node010/gpu0"])
        await opened(pilot)
        await say_yes(pilot)
        assert sent(app) == [("readmit", {"slot": "node010/gpu0"})]
    barrier = app_on("barrier")
    async with barrier.run_test(size=(80, 24)) as pilot:
        await settle(pilot, barrier)
        await press(pilot, "W")
        assert "other slots are still missing" in facts(barrier)["effect"]
        await say_yes(pilot)
        assert [name for name, _ in sent(barrier)] == ["waive"]
        assert sent(barrier)[0][1]["slot"] == barrier.view.cursor
