"""Seven screens: digits go there, each is found as it was left, and another run leaves nothing of the last one behind."""

from __future__ import annotations

import pytest
from console_helpers import AppMaker, settle, text_of, wait_for
from test_console_screens import feed_of

from console.actions import BY_ID
from console.app import OF_A_RUN, PacelineApp
from console.feeds.scripted import ScriptedFeed, ScriptedFleet
from console.screens.base import PaintedScreen
from console.session import Session
from console.store.fleet import FleetStore
from console.themes import shipped_folder
from console.widgets.header import HeaderLine

DIGITS = {"0": "launch", "1": "live", "2": "fleet", "3": "sla", "4": "events", "5": "runs"}


def header(app: PacelineApp) -> str:
    return text_of(app.screen.query_one(HeaderLine))


@pytest.mark.parametrize("size", [(120, 36), (80, 24), (60, 15)])
async def test_digits_go_to_every_screen_and_the_header_says_which(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        for digit, mode in DIGITS.items():
            await pilot.press(digit)
            await settle(pilot, app)
            assert app.current_mode == mode
            assert isinstance(app.screen, PaintedScreen)
            assert mode in (mode, app.screen.WHERE)
            assert {"sla": "SLA"}.get(mode, mode.capitalize()) in header(app)


async def test_the_last_screen_is_one_key_away(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        for key, mode in (("2", "fleet"), ("4", "events"), ("grave_accent", "fleet"), ("grave_accent", "events")):
            await pilot.press(key)
            await pilot.pause()
            assert app.current_mode == mode


async def test_a_screen_is_found_as_it_was_left(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("down", "down", "enter")
        await settle(pilot, app)
        chosen = app.view.cursor
        assert app.screen.targets() == [chosen]  # type: ignore[attr-defined]
        await pilot.press("2", "1")
        await settle(pilot, app)
        assert app.screen.WHERE == "replica"  # type: ignore[attr-defined]
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen.WHERE == "live"  # type: ignore[attr-defined]
        assert app.view.cursor == chosen


async def test_without_a_run_only_launch_and_runs_are_there() -> None:
    app = PacelineApp(theme_folders=[shipped_folder()])
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        assert app.current_mode == "launch"
        for key in "1234":
            await pilot.press(key)
            await pilot.pause()
            assert app.current_mode == "launch"
            assert any("no run is open" in note.message for note in app._notifications)
        assert app.why_not(BY_ID["evict"]).startswith("no run is open")
        await pilot.press("5")
        await pilot.pause()
        assert app.current_mode == "runs"


async def test_opening_another_run_shows_only_that_one(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("2", "slash", *"slow", "enter", "4", "1")
        await settle(pilot, app)
        first = app.session
        other = ScriptedFeed(ScriptedFleet(nodes=2, gpus=4), hz=0)
        app.open_session(Session(other, FleetStore(app.now_s)))
        await wait_for(lambda: app.session is not first and app.current_mode == "live" and len(app.store.slots) == 8)
        await settle(pilot, app)
        assert app.session.feed is other
        assert len(app.store.slots) == 8
        assert first.feed._store is None  # type: ignore[attr-defined]
        for key in "12346":
            await pilot.press(key)
            await settle(pilot, app)
        assert app.session.fleet_view.text == ""
        assert set(OF_A_RUN) <= set(app._screen_stacks)


async def test_a_frozen_picture_stands_while_the_run_goes_on(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("F")
        await pilot.pause()
        assert "PICTURE FROZEN" in header(app)
        before = [strip.text for strip in app.screen._compositor.render_strips()]
        feed_of(app).push(60.0)
        for _ in range(8):
            app.render_clock.finished()
            app.tick()
        await pilot.pause()
        assert [strip.text for strip in app.screen._compositor.render_strips()] == before
        await pilot.press("F")
        await settle(pilot, app)
        assert "FROZEN" not in header(app)
        assert [strip.text for strip in app.screen._compositor.render_strips()] != before


async def test_a_disarmed_console_does_not_act_and_says_how_to_arm(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("A")
        await settle(pilot, app)
        assert "DISARMED" in header(app)
        await pilot.press("e")
        await pilot.pause()
        assert app.screen.WHERE == "live"  # type: ignore[attr-defined]
        assert any("A arms it" in note.message for note in app._notifications)
        await pilot.press("A", "e")
        await pilot.pause()
        assert app.screen is not app.painted_screen
