"""Help: complete, as wide as the terminal, filtered as it is typed."""

from __future__ import annotations

import pytest
from console_helpers import AppMaker, settle
from textual.containers import VerticalScroll
from textual.widgets import Input

from console.actions import ACTIONS, of
from console.app import PacelineApp
from console.screens.help import HelpScreen, KeyTable, StateLines
from console.store.fleet import SHOWN_STATES
from console.widgets.paint import GLYPHS


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
        own = [action for action in of("sla") if not action.id.startswith("replay_")]  # those of a replay come last
        for action, line in zip(own, lines[1:], strict=False):
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


async def test_every_action_is_explained_and_the_palette_names_its_key(make_app: AppMaker) -> None:
    assert [action.id for action in ACTIONS if not action.help] == []
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        told = {command.title: command.help for command in app.get_system_commands(app.screen)}
    assert told["Evict replica"].startswith("e · take it out")


async def test_keys_of_a_replay_come_last_where_nothing_is_replayed(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("question_mark")
        await pilot.pause()
        lines = told(app)
        titles = [line for line in lines if line and not line.startswith(" ")]
        assert titles[-1] == "Replay of a record"
        assert not any("Next act or alert" in line for line in lines[: lines.index("Replay of a record")])


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_a_state_keeps_its_glyph_beside_its_word(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        await pilot.press("question_mark")
        await pilot.pause()
        states = app.screen.query_one(StateLines)
        lines = str(states.render()).splitlines()
        assert max(map(len, lines)) <= states.content_size.width
        await pilot.pause()
        app.screen.query_one("#help-lines", VerticalScroll).scroll_end(animate=False)
        await pilot.pause()
        assert states.region.bottom < app.screen.query_one("#help").region.bottom
    assert "  ".join(lines).split("  ") == [f"{GLYPHS[name]} {name}" for name in SHOWN_STATES]
