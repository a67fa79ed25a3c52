"""Help: complete, as wide as the terminal, filtered as it is typed."""

from __future__ import annotations

import pytest
from console_helpers import AppMaker, settle
from textual.containers import VerticalScroll
from textual.widgets import Input

from console.actions import ACTIONS, of
from console.app import PacelineApp
from console.screens.help import HelpScreen, KeyTable


def told(app: PacelineApp) -> list[str]:
    return str(app.screen.query_one(KeyTable).render()).splitlines()


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (160, 48)])
async def test_it_lists_every_action_with_its_key_and_nothing_is_cut(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        await pilot.press("question_mark")
        await pilot.pause()
        table = app.screen.query_one(KeyTable)
        lines = told(app)
        for action in ACTIONS:
            assert any(action.title in line and line.split()[0] in action.shown_key for line in lines), action.id
        assert max(map(len, lines)) <= table.content_size.width
        assert table.region.right <= size[0]


async def test_the_keys_of_the_screen_come_first(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("3")
        await settle(pilot, app)
        await pilot.press("question_mark")
        await pilot.pause()
        lines = [line for line in told(app) if line.strip()]
        assert lines[0] == "On this screen (sla)"
        for action, line in zip(of("sla"), lines[1:], strict=False):
            assert action.title in line


async def test_it_scrolls_and_esc_closes_it(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        live = app.screen
        await pilot.press("f1")
        await pilot.pause()
        lines = app.screen.query_one("#help-lines", VerticalScroll)
        await pilot.press("pagedown", "down")
        await pilot.pause()
        assert lines.scroll_y > 10
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is live


async def test_a_word_filters_and_a_key_comes_first(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("question_mark", "d")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        assert "Drain replica" in told(app)[0]
        await pilot.press(*"rain", "space", *"sampl")
        await pilot.pause()
        assert len(told(app)) == 1
        app.screen.query_one(Input).value = "zzz"
        await pilot.pause()
        assert told(app) == ["no key and no action has 'zzz' in it"]
        assert app.session.feed.sent == []  # type: ignore[attr-defined]


async def test_only_what_can_be_typed_has_a_command(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("question_mark")
        await pilot.pause()
        text = "\n".join(told(app))
        assert ":evict SLOT" in text
        assert ":page-up" not in text
