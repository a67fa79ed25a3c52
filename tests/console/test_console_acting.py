"""Around an act: the row stays held, the picture goes on behind the question, the verdict's fate is said."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from console_helpers import AppMaker, HandClock, settle, text_of, wait_for
from test_console_screens import feed_of
from textual.widgets import Button, Input, Static

from console.app import PacelineApp
from console.feeds.scripted import ScriptedFleet
from console.screens.acts import Grave, Prediction, Target, facts_for, target_of, verdict_fact
from console.screens.dialogs import ConfirmAct, Dialog
from console.screens.help import HelpScreen
from console.screens.live import LiveScreen
from console.store.fleet import FleetStore
from console.widgets.clock import EVERYTHING
from harness.wire.inquiry import LatencyDetail, SlaDetail


def live(app: PacelineApp) -> LiveScreen:
    return next(screen for screen in app.screen_stack if isinstance(screen, LiveScreen))


def facts(app: PacelineApp) -> str:
    return " | ".join(str(fact.render()) for fact in app.screen.query(".fact-text"))


@pytest.mark.parametrize(("key", "opens"), [("e", ConfirmAct), ("question_mark", HelpScreen)])
async def test_the_picture_goes_on_behind_a_dialog_and_behind_help(make_app: AppMaker, key: str, opens: type) -> None:
    app = make_app()
    app.theme = "paceline-dark"  # in 16 colours nothing shows through
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press(key)
        await pilot.pause()
        assert isinstance(app.screen, opens)
        before = [text_of(live(app).query_one(name)) for name in ("#phase", "#load")]
        feed_of(app).push(60.0)
        app.render_clock.finished()
        assert app.tick() > 0
        await pilot.pause()
        assert [text_of(live(app).query_one(name)) for name in ("#phase", "#load")] != before
        assert "08:42" in text_of(live(app).query_one("#phase"))
        if opens is HelpScreen:
            return  # it covers that line
        # what the terminal gets is the whole stack, not only the dialog
        screen = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
        assert "08:42" in screen


async def test_the_figures_of_a_dialog_go_on_but_not_whom_it_is_about(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("e")
        await pilot.pause()
        before = facts(app)
        at = app.store.index["node015/gpu3"]
        feed_of(app).push(30.0)
        app.store.slots[at] = msgspec.structs.replace(app.store.slots[at], incarnation="a-later-life")
        assert isinstance(app.screen, Dialog)
        app.screen.tell_again()
        await pilot.pause()
        assert facts(app) != before
        assert "node015/gpu3, which is gone by now: the head will refuse" in facts(app)


@pytest.mark.parametrize("key", ["e", "d", "r", "enter"])
async def test_acting_on_a_row_holds_the_cursor_there_and_shows_it(make_app: AppMaker, hand_clock: HandClock, key: str) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        chosen = app.view.cursor
        table = live(app).table
        assert "held" not in str(table.border_title)
        assert text_of(table).splitlines()[1].startswith("▏")
        await pilot.press(key)
        await pilot.pause()
        feed_of(app).fleet.slow = []
        feed_of(app).fleet.state[40:60] = 7
        hand_clock.s += 20
        feed_of(app).push()
        live(app).paint(EVERYTHING)
        await pilot.press("escape")
        await settle(pilot, app)
        assert app.view.cursor == chosen
        assert app.view.bound
        assert f"held on {chosen}" in str(table.border_title)
        await pilot.press("escape")
        await settle(pilot, app)
        assert not app.view.bound


@pytest.mark.parametrize(
    ("kind", "act", "said"),
    [
        ("performance", "drain", "stays VALID-able; the act is counted as ACTS"),
        ("performance", "readmit", "stays VALID-able; the act is counted as ACTS"),
        ("performance", "evict", "can no longer be VALID"),
        ("performance", "recycle", "can no longer be VALID"),
        ("explore", "evict", "no verdict at stake"),
    ],
)
def test_a_dialog_says_what_the_act_does_to_the_verdict(kind: str, act: str, said: str) -> None:
    store, fleet = FleetStore(), ScriptedFleet(nodes=2, gpus=4, kind=kind)
    store.apply(fleet.run_state())
    store.apply(fleet.snapshot())
    assert said in verdict_fact(store, act)


def test_between_attempts_nothing_is_at_stake() -> None:
    store, fleet = FleetStore(), ScriptedFleet(nodes=2, gpus=4, phase="READY")
    store.apply(fleet.run_state())
    store.apply(fleet.snapshot())
    assert "nothing is at stake" in verdict_fact(store, "evict")


async def test_help_explains_acts(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        await pilot.press("question_mark")
        await pilot.pause()
        text = " ".join(str(line.render()) for line in app.screen.query(".help-text"))
        assert "Drain and readmit are what load balancing may do" in text
        # wrapped text stays in its own column
        assert len({line.region.x for line in app.screen.query(".help-text")}) == 1


async def test_only_the_button_that_enter_presses_is_filled(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("e")
        await pilot.pause()
        cancel, yes = app.screen.query_one("#cancel", Button), app.screen.query_one("#yes", Button)
        surface = app.screen.query_one("#dialog").styles.background
        assert cancel.styles.background != surface
        assert yes.styles.background == surface
        await pilot.press("right")
        await pilot.pause()
        assert cancel.styles.background == surface
        assert yes.styles.background != surface


async def test_enter_on_a_wrong_name_says_what_is_wrong(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        await pilot.press("S")
        await pilot.pause()
        assert "type the run's name" in str(app.screen.query_one(".ask", Static).render())
        app.screen.query_one("#word", Input).value = "gptoss"
        await pilot.press("enter")
        await pilot.pause()
        complaint = app.screen.query_one("#complaint", Static)
        assert "'gptoss' is not the run's name" in str(complaint.render())
        assert complaint.has_class("wrong")
        assert feed_of(app).sent == []


async def test_looking_makes_no_toasts_and_acts_make_one_at_a_time(make_app: AppMaker) -> None:
    app = make_app(read_only=True)
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await settle(pilot, app)
        await pilot.press("o", "h", "T", "f")
        await pilot.pause()
        assert len(app._notifications) == 0
        assert "↓ slot" in str(live(app).table.border_title)
        await pilot.press("e", "d", "=")
        await wait_for(lambda: [toast for toast in app.screen.query("Toast") if toast.region.height])
        assert len(app._notifications) == 1
        table, toast = live(app).table.region, app.screen.query_one("Toast").region
        assert toast.y > table.y + 4


async def test_read_only_is_a_badge_and_the_controller_is_named(make_app: AppMaker) -> None:
    for size in ((120, 36), (80, 24)):
        app = make_app(read_only=True)
        async with app.run_test(size=size) as pilot:
            await settle(pilot, app)
            header = text_of(app.screen.query_one("#header"))
            assert "READ-ONLY" in header
            assert ("control: kim@head" in header) == (size[0] == 120)


async def test_the_log_path_is_copied_through_the_terminal(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        await pilot.press("y")
        await pilot.pause()
        assert app.clipboard.endswith("/logs/node015.log")
        assert any("OSC 52" in note.title for note in app._notifications)


async def test_a_picture_goes_into_the_record_when_it_is_here(
    make_app: AppMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = tmp_path / "record"
    record.mkdir()
    (record / "run.json").write_text("{}")
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        app.store.record = str(record)
        await pilot.press("ctrl+s")
        await pilot.pause()
        app.store.record = "/nowhere/on/this/machine"
        await pilot.press("ctrl+s")
        await pilot.pause()
    assert [name.endswith(".svg") for name in os.listdir(record / "exports")].count(True) == 1
    assert [name.endswith(".svg") for name in os.listdir(tmp_path)].count(True) == 1


def test_a_p99_of_too_few_samples_says_so() -> None:
    store, fleet = FleetStore(), ScriptedFleet(nodes=2, gpus=4)
    store.apply(fleet.run_state())
    store.apply(fleet.snapshot())
    target = target_of(store, "node001/gpu2")
    assert target is not None
    few = LatencyDetail(3000.0, window_n=640)
    enough = LatencyDetail(80.0, window_ms={"p99": 36.5}, window_n=6400)
    told = dict(facts_for(store, "drain", [target], Prediction(SlaDetail("1", 1, 60.0, few, enough))))
    assert told["p99, 60 s"] == "TTFT –: 640 samples are too few\nTPOT 36.5 ms; without its samples –: too few are left"


def test_more_than_a_quarter_more_load_is_a_warning_and_less_is_not() -> None:
    store, fleet = FleetStore(), ScriptedFleet(nodes=2, gpus=4)
    store.apply(fleet.run_state())
    store.apply(fleet.snapshot())
    serving = [info.slot for at, info in enumerate(store.slots) if store.state_name(at) in ("READY", "SLOW")]

    def effect(number: int) -> str:
        targets = [target for slot in serving[:number] if (target := target_of(store, slot)) is not None]
        return dict(facts_for(store, "drain", targets))["effect"]

    assert not isinstance(effect(1), Grave)
    assert isinstance(effect(3), Grave)
    assert effect(3).startswith("▲ ")


def test_readmitting_tells_only_the_case_that_applies() -> None:
    store, fleet = FleetStore(), ScriptedFleet(nodes=2, gpus=4)
    store.apply(fleet.run_state())
    store.apply(fleet.snapshot())
    slots = [info.slot for info in store.slots]
    drained, lost = Target(slots[0], "", "DRAINED"), Target(slots[1], "", "LOST")
    effects = [dict(facts_for(store, "readmit", targets))["effect"] for targets in ([drained], [lost], [drained, lost])]
    assert effects == [
        "it serves again at once: warm already",
        "its worker starts a new one, which warms up and joins",
        "1 drained one again at once · for 1 the worker starts new ones, which warm up and join",
    ]
    assert "tok/s" not in dict(facts_for(store, "readmit", [drained]))["why"]
