"""Every act by its keys on sample data: what is asked, what is sent on a yes, what is told of the head's answer."""

from __future__ import annotations

import pytest
from acting_helpers import app_on, complaint, facts, feed_of, opened, press, say_yes, sent, told
from console_helpers import settle
from textual.widgets import Button, Input

from console.screens.dialogs import AskAttempt, AskChoice, AskRate, AskRemoval, ConfirmAct, Dialog, TypeToConfirm
from console.screens.dialogs.fields import Choice
from console.screens.load_acts import asked_rate, rate_step, stepped

SIZES = [(120, 36), (80, 24)]


# --- what all dialogs keep ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("key", "kind", "opens"),
    [
        ("e", "", AskRemoval),
        ("d", "", AskRemoval),
        ("r", "", AskRemoval),
        ("W", "barrier", ConfirmAct),
        ("p", "explore", ConfirmAct),
        ("X", "", ConfirmAct),
        ("B", "warm", AskAttempt),
    ],
)
async def test_cancel_has_the_focus_the_buttons_are_on_screen_and_esc_sends_nothing(
    size: tuple[int, int], key: str, kind: str, opens: type
) -> None:
    app = app_on(kind)
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        await press(pilot, key)
        assert type(app.screen) is opens
        assert app.focused is app.screen.query_one("#cancel", Button)
        box = app.screen.query_one("#dialog").region
        assert box.y >= 0
        assert box.bottom <= size[1]
        assert app.screen.query_one("#yes", Button).region.bottom < box.bottom
        await press(pilot, "escape")
        assert not isinstance(app.screen, Dialog)
        await press(pilot, key, "enter")  # on Cancel
        assert not isinstance(app.screen, Dialog)
        assert sent(app) == []


@pytest.mark.parametrize(("key", "opens"), [("equals_sign", AskRate), ("P", AskChoice), ("S", TypeToConfirm)])
async def test_where_something_must_be_typed_or_chosen_enter_alone_does_nothing(key: str, opens: type) -> None:
    app = app_on()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        await press(pilot, key)
        assert isinstance(app.screen, opens)
        await press(pilot, "enter", "enter", "enter")
        assert isinstance(app.screen, opens)
        said = complaint(app)
        assert said
        app.screen.tell_again()  # the figures of the next second
        assert complaint(app) == said
        await press(pilot, "escape")
        assert sent(app) == []


async def test_a_key_pressed_twice_asks_once() -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.ask_and_act("drain", ["node001/gpu1"])
        app.ask_and_act("drain", ["node001/gpu1"])
        await opened(pilot)
        await press(pilot, "escape")
        assert not isinstance(app.screen, Dialog)


async def test_an_open_dialog_is_not_sent_into_a_run_that_ended_meanwhile() -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "d")
        app.store.phase = "DONE"
        await say_yes(pilot)
        assert sent(app) == []
        assert "the run has ended" in told(app)


async def test_disarmed_every_act_says_how_to_arm() -> None:
    app = app_on("explore")
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "A")
        for key in ("e", "d", "r", "a", "equals_sign", "plus", "p", "P", "X", "S", "C", "B"):
            await press(pilot, key)
            assert not isinstance(app.screen, Dialog), key
            assert "this console is disarmed: A arms it" in told(app), key
        await press(pilot, "A", "e")
        assert isinstance(app.screen, AskRemoval)


# --- rate --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("qps", "step"), [(4000, 100), (144, 5), (60, 2), (20, 0.5), (10, 0.25), (0.004, 0.0001), (1e6, 25_000)])
def test_a_step_is_about_two_and_a_half_percent_in_round_figures(qps: float, step: float) -> None:
    assert rate_step(qps) == pytest.approx(step)


def test_steps_never_reach_nothing() -> None:
    assert stepped(4000, 1, 100) == 4100
    assert stepped(100, -1, 100) == 100
    assert stepped(0.3, -1, 0.1) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("typed", "fields"),
    [
        ("3900", ("3900", "")),
        ("50 15", ("50", "15")),
        ("50  15s", ("50", "15")),
        ("+100", ("4100", "")),
        ("-5% 30", ("3800", "30")),
        ("-x", ("-x", "")),
        ("soon", ("soon", "")),
        ("", ("", "")),
    ],
)
def test_a_rate_is_typed_exactly_as_a_change_or_with_the_seconds_of_a_ramp(typed: str, fields: tuple[str, str]) -> None:
    assert asked_rate(typed, 4000.0) == fields


async def test_a_ramp_given_with_the_command_stands_in_the_dialog() -> None:
    app = app_on("explore")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        app.ask_and_act("rate", value="-5% 15")
        await opened(pilot)
        assert [app.screen.query_one(f"#{name}", Input).value for name in ("qps", "ramp")] == ["3800", "15"]
        assert "enter again: sets it" in str(app.screen.query_one("#dialog").border_subtitle)
        await say_yes(pilot)
        assert sent(app) == [("set_rate", {"qps": 3800.0, "ramp_s": 15.0})]


async def test_plus_and_minus_stage_a_step_that_more_keys_change_and_only_a_yes_sends() -> None:
    app = app_on("explore")
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "plus")
        box = app.screen.query_one("#qps", Input)
        assert box.value == "4100"
        assert "100 qps" in facts(app)["one step"]
        await press(pilot, "up", "+", "+", "-", "down", "+")
        assert box.value == "4300"
        assert complaint(app) == "4000 → 4300 qps (+7.5%), per replica 7.86 → 8.45 qps"
        assert sent(app) == []
        await press(pilot, "enter", "enter")
        assert sent(app) == [("set_rate", {"qps": 4300.0})]
        assert "set_rate" in told(app)
        feed_of(app).push()
        await press(pilot, "minus")
        assert app.screen.query_one("#qps", Input).value == "4200"


async def test_a_ramp_is_offered_where_the_rate_changes_at_once_and_refused_elsewhere_in_words() -> None:
    app = app_on("explore")
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.ask_and_act("rate", value="3900")
        await opened(pilot)
        assert app.screen.query_one("#qps", Input).value == "3900"
        ramp = app.screen.query_one("#ramp", Input)
        for junk in ("soon", "-5", "nan", "1e9"):
            ramp.value = junk
            await pilot.pause()
            assert app.screen.query_one("#yes", Button).disabled
            assert "is not a ramp" in complaint(app)
        ramp.value = "30"
        app.screen.query_one("#reason", Input).value = "find the knee"
        await pilot.pause()
        await say_yes(pilot)
        assert sent(app) == [("set_rate", {"qps": 3900.0, "ramp_s": 30.0})]
        assert feed_of(app).sent[0].reason == "find the knee"
    fixed = app_on()
    async with fixed.run_test(size=(80, 24)) as pilot:
        await settle(pilot, fixed)
        await press(pilot, "equals_sign")
        ramp = fixed.screen.query_one("#ramp", Input)
        assert ramp.disabled
        assert "LoadGen fixes its schedule" in ramp.placeholder
        assert "SUPERSEDED" in facts(fixed)["how"]


async def test_a_rate_that_the_runs_own_specification_forbids_is_refused_in_its_words() -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.ask_and_act("rate", value="100000")
        await opened(pilot)
        assert app.screen.query_one("#yes", Button).disabled
        assert "50,000,000" in complaint(app)


async def test_the_mechanism_follows_the_run_while_the_dialog_is_open() -> None:
    app = app_on("explore")
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "equals_sign")
        assert not app.screen.query_one("#ramp", Input).disabled
        feed_of(app).fleet.kind = "performance"
        feed_of(app).push()
        assert isinstance(app.screen, AskRate)
        app.screen.tell_again()
        await pilot.pause()
        assert app.screen.query_one("#ramp", Input).disabled
        assert "SUPERSEDED" in facts(app)["how"]


# --- the run -----------------------------------------------------------------------------------------------


async def test_a_policy_is_chosen_with_what_each_does_and_the_present_one_is_no_change() -> None:
    app = app_on()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        await press(pilot, "P")
        assert app.screen.query_one("#yes", Button).disabled
        await press(pilot, "down", "down")
        assert complaint(app) == "flag → recycle"
        await press(pilot, "enter", "enter")
        assert sent(app) == [("set_policy", {"policy": "recycle"})]
        app.ask_and_act("policy", value="drain")
        await opened(pilot)
        assert app.screen.query_one("#choice", Choice).value == "drain"
        assert app.focused is app.screen.query_one("#cancel", Button)
        await press(pilot, "escape")
        app.ask_and_act("policy", value="ignore")
        await opened(pilot)
        assert "there is no policy 'ignore': flag, drain, recycle" in told(app)


async def test_the_next_attempt_is_asked_for_only_between_attempts_of_a_warm_run() -> None:
    running = app_on()
    async with running.run_test(size=(120, 36)) as pilot:
        await settle(pilot, running)
        await press(pilot, "B")
        assert "attempt 1 is running: X ends it, = changes its rate" in told(running)
    warm = app_on("warm")
    async with warm.run_test(size=(120, 36)) as pilot:
        await settle(pilot, warm)
        await press(pilot, "equals_sign")
        assert "B begins the next one, at any rate" in told(warm)
        await press(pilot, "X")
        assert "no attempt is running" in told(warm)
        await press(pilot, "B")
        assert "512 of 512" in facts(warm)["fleet"]
        warm.screen.query_one("#kind", Choice).focus()
        await press(pilot, "down")
        warm.screen.query_one("#qps", Input).value = "lots"
        await pilot.pause()
        assert "'lots' is not a rate" in complaint(warm)
        warm.screen.query_one("#qps", Input).value = "3500"
        await pilot.pause()
        await say_yes(pilot)
        assert sent(warm) == [("start_attempt", {"kind": "explore", "qps": 3500.0})]


async def test_aborting_says_what_becomes_of_the_attempt_and_of_the_fleet() -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "X")
        assert "becomes ABORTED" in facts(app)["verdict"]
        assert "keep_warm_s is 0" in facts(app)["then"]
        await say_yes(pilot)
        assert sent(app) == [("abort", {})]


# --- control -----------------------------------------------------------------------------------------------


async def test_an_act_while_another_holds_control_asks_for_the_take_over_and_goes_on() -> None:
    app = app_on(operator="lee@laptop")
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "d")
        assert "kim@head holds control. Take it over?" in str(app.screen.query_one("#dialog").border_title)
        assert app.focused is app.screen.query_one("#cancel", Button)
        await press(pilot, "escape")
        assert sent(app) == []
        await press(pilot, "d")
        await say_yes(pilot)
        assert sent(app) == [("take_control", {})]
        assert isinstance(app.screen, AskRemoval)
        await say_yes(pilot)
        assert [name for name, _ in sent(app)] == ["take_control", "drain"]


async def test_a_refused_take_over_ends_the_act() -> None:
    app = app_on(operator="lee@laptop")
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        feed_of(app).refuse_slots = {"": "control is locked"}
        await press(pilot, "d")
        await say_yes(pilot)
        assert not isinstance(app.screen, Dialog)
        assert "Take or release control: refused: control is locked" in told(app)


async def test_ending_things_needs_no_control() -> None:
    app = app_on(operator="lee@laptop")
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "S")
        assert isinstance(app.screen, TypeToConfirm)
        await press(pilot, "escape", "X")
        assert "Abort attempt 1?" in str(app.screen.query_one("#dialog").border_title)


async def test_the_control_key_releases_what_we_hold_takes_what_is_free_and_asks_for_what_is_not() -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "C")
        feed_of(app).hold_control("")
        await press(pilot, "C")
        assert [name for name, _ in sent(app)] == ["release_control", "take_control"]
        feed_of(app).hold_control("lee@laptop")
        await press(pilot, "C")
        assert "lee@laptop holds control" in facts(app)["holder"]
        await press(pilot, "escape")
        assert len(sent(app)) == 2
