"""What arrives in one piece goes where it was meant for: into the field that its first key opens, never to keys that act."""

from __future__ import annotations

import asyncio

import pytest
from console_helpers import AppMaker, settle
from test_console_screens import feed_of
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from console.app import PacelineApp, Result
from console.feeds.scripted import ScriptedFleet
from console.screens.command_line import CommandLine
from console.screens.dialogs import Dialog

NAMED = {"/": "slash", ":": "colon", "=": "equals_sign", "?": "question_mark", "\r": "enter", " ": "space", "\t": "tab"}


async def burst(pilot: Pilot[Result], app: PacelineApp, text: str) -> None:
    """As a terminal delivers it: no key waits for the one before."""
    for character in text:
        shown = character if character.isprintable() else None
        app.post_message(events.Key(NAMED.get(character, character), shown))
    for _ in range(20):
        await asyncio.sleep(0.01)
        await pilot.pause()


@pytest.mark.parametrize("screen", ["1", "2", "4"])
async def test_a_filter_typed_in_one_piece_is_a_filter(make_app: AppMaker, screen: str) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press(screen)
        await settle(pilot, app)
        await burst(pilot, app, "/ready")
        assert isinstance(app.focused, Input)
        assert app.focused.value == "ready"
        assert not isinstance(app.screen, Dialog)
        assert feed_of(app).sent == []


async def test_a_command_typed_in_one_piece_is_that_command(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await burst(pilot, app, ":readmit")
        assert isinstance(app.screen, CommandLine)
        assert app.screen.query_one(Input).value == "readmit"
        await pilot.press("escape")
        await burst(pilot, app, ":fleet\r")
        assert app.current_mode == "fleet"


async def test_a_rate_typed_in_one_piece_stays_in_its_dialog(make_app: AppMaker) -> None:
    app = make_app(ScriptedFleet(kind="explore"))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await burst(pilot, app, "=4100")
        assert app.current_mode == "live"
        assert isinstance(app.screen, Dialog)
        assert isinstance(app.focused, Input)
        assert app.focused.value == "4100"


async def test_what_was_meant_for_a_dialog_that_does_not_open_is_lost(make_app: AppMaker) -> None:
    """A replica cannot be paused, so `p` opens nothing; the letters after it must not act either way."""
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await burst(pilot, app, "p2")
        assert app.current_mode == "fleet"  # nothing was to open: the next key is a key
        assert feed_of(app).sent == []


async def test_a_field_that_is_left_at_once_holds_no_key_back(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("slash")
        await pilot.pause()
        app.screen.set_focus(app.screen.query_one("#table"))  # as a click does
        await burst(pilot, app, "2")
        assert app.current_mode == "fleet"
