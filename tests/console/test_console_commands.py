"""The `:` line: what a typed line means, how it is completed, and that typing is never a key."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from console_helpers import AppMaker, settle
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot
from textual.widgets import Input, Static

from console.actions import ACTIONS
from console.app import PacelineApp
from console.commands import ALIASES, NAMES, BadCommand, Typed, completions, parse, usable
from console.screens import command_line
from console.screens.command_line import CommandLine
from console.screens.dialogs import ConfirmAct

SLOTS = [f"node{node:03d}/gpu{gpu}" for node in range(4) for gpu in range(8)]


def values(takes: str) -> Sequence[str]:
    return {"SLOT": SLOTS, "THEME": ["amber", "paceline-dark"], "COLUMN": ["ttft", "tpot", "z"]}.get(takes, [])


@pytest.mark.parametrize(
    ("line", "action", "argument"),
    [
        ("evict", "evict", ""),
        (":evict node003/gpu1", "evict", "node003/gpu1"),
        ("  ::  EVICT   node003/gpu1  ", "evict", "node003/gpu1"),
        ("rate\t3900", "rate", "3900"),
        ("filter slow !ready", "filter", "slow !ready"),
        ("q", "leave", ""),
        ("set_rate 10", "rate", "10"),
        ("fleet", "mode_fleet", ""),
        ("ev", "events", ""),
        ("detac", "leave", ""),
        ("theme amber", "next_theme", "amber"),
    ],
)
def test_a_line_is_an_action_and_its_argument(line: str, action: str, argument: str) -> None:
    if line == "ev":  # evict and events both begin so
        with pytest.raises(BadCommand, match="ev could be events, evict"):
            parse(line)
        return
    typed = parse(line)
    assert (typed.action.id, typed.argument) == (action, argument)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "type a command; tab completes, esc leaves"),
        (":", "type a command; tab completes, esc leaves"),
        ("evikt", "there is no command 'evikt'; did you mean evict?"),
        ("xyzzy", "there is no command 'xyzzy' (? lists them)"),
        ("pause now", "pause takes nothing; 'now' was not understood"),
        ("r", "r could be rate, rate-down, rate-up, readmit, recycle, replay, "),
    ],
)
def test_what_is_no_command_is_told_in_words(line: str, said: str) -> None:
    with pytest.raises(BadCommand) as caught:
        parse(line)
    assert str(caught.value).startswith(said)


@given(
    st.text(max_size=30)
    | st.lists(st.sampled_from([*NAMES, *ALIASES, ":", " ", "\t", "_", "node000/gpu0", "é", "\x00"])).map("".join)
)
def test_whatever_is_typed_is_a_command_or_a_bad_command(text: str) -> None:
    with contextlib.suppress(BadCommand):
        typed = parse(text)
        assert isinstance(typed, Typed)
        assert typed.action in ACTIONS
        assert not typed.argument or typed.action.takes
    completions(text, values)


@given(st.sampled_from(sorted(NAMES)), st.integers(1, 5))
def test_a_completed_line_can_be_parsed_and_still_begins_or_holds_what_was_typed(name: str, length: int) -> None:
    begun = name[:length]
    offered = completions(begun, values, limit=None)
    assert parse(name).action in [parse(line).action for line in offered]
    assert len({parse(line).action.id for line in offered}) == len(offered)
    assert all(begun in line for line in offered)


def test_every_name_and_alias_means_an_action() -> None:
    for name in [*NAMES, *ALIASES]:
        assert parse(name).action in ACTIONS


def test_names_of_the_screen_come_first_and_acts_count_everywhere() -> None:
    on_events = completions("l", values, "events", limit=None)
    assert on_events.index("level") < on_events.index("log")
    assert usable(NAMES["evict"], "sla")
    assert not usable(NAMES["sort"], "sla")


def test_arguments_are_completed_from_what_is_known() -> None:
    assert completions("evict node003", values)[0] == "evict node003/gpu0"
    assert len(completions("evict node003", values)) == 8
    assert completions("evict 3/gpu1", values)[0] == "evict node003/gpu1"
    assert completions("theme p", values) == ["theme paceline-dark"]
    assert completions("sort t", values) == ["sort ttft", "sort tpot"]
    assert completions("pause x", values) == []
    assert completions("evikt x", values) == []


def test_an_alias_is_offered_only_when_its_action_is_not() -> None:
    assert "qps" in completions("qp", values)
    assert "theme" in completions("them", values)
    assert completions("log", values, limit=None).count("log") == 1


# --- the line itself ---------------------------------------------------------------------------------------


def hints(app: PacelineApp) -> str:
    return str(app.screen.query_one("#command-hints", Static).render())


def box(app: PacelineApp) -> Input:
    return app.screen.query_one("#command", Input)


async def open_line(pilot: Pilot[Any], app: PacelineApp, text: str = "") -> None:
    await settle(pilot, app)
    await pilot.press("colon")
    await pilot.pause()
    assert isinstance(app.screen, CommandLine)
    await pilot.press(*("space" if key == " " else key for key in text))
    await pilot.pause()


@pytest.fixture(autouse=True)
def no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "HISTORY", [])


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_what_it_could_become_stands_above_the_line_best_one_lowest(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await open_line(pilot, app, "evi")
        lines = hints(app).splitlines()
        assert lines[-1].startswith(" evict SLOT   take it out")
        assert max(map(len, lines)) <= size[0]
        assert box(app).region.bottom == size[1]
        row = app.screen.query_one("#command-hints", Static).region
        assert row.bottom == box(app).region.y


async def test_more_than_fit_are_counted(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await open_line(pilot, app, "evict ")
        lines = hints(app).splitlines()
        assert lines[0].startswith(" evict SLOT  take it out")
        assert lines[1] == " 505 more"
        assert lines[-1].strip() == "evict node000/gpu0"


async def test_typing_is_never_a_key(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await open_line(pilot, app, "edrwqSXTfFz123?/")
        assert isinstance(app.screen, CommandLine)
        assert box(app).value == "edrwqSXTfFz123?/"
        assert not app.frozen
        assert app.session.feed.sent == []  # type: ignore[attr-defined]


async def test_tab_completes_as_far_as_the_offers_agree_then_to_the_best(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await open_line(pilot, app, "evi")
        await pilot.press("tab")
        assert box(app).value == "evict "
        await pilot.press(*"node01")
        await pilot.press("5", "tab")
        assert box(app).value == "evict node015/gpu"
        await pilot.press("tab")
        assert box(app).value == "evict node015/gpu0"


async def test_enter_runs_it_on_the_slot_that_was_named(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await open_line(pilot, app, "evict node001/gpu1")
        await pilot.press("enter")
        await settle(pilot, app)
        assert isinstance(app.screen, ConfirmAct)
        assert "node001/gpu1" in str(app.screen.query_one("#dialog").border_title)


async def test_what_is_wrong_is_told_above_the_line_which_stays_open(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await open_line(pilot, app, "evikt")
        await pilot.press("enter")
        await pilot.pause()
        assert hints(app).strip() == "there is no command 'evikt'; did you mean evict?"
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, CommandLine)


async def test_what_cannot_be_done_says_why(make_app: AppMaker) -> None:
    app = make_app(read_only=True)
    async with app.run_test(size=(120, 36)) as pilot:
        await open_line(pilot, app, "evi")
        assert "this console was opened read-only" in hints(app)
        await pilot.press("escape", "colon", *"compa")
        await pilot.pause()
        assert hints(app).strip() == "compare   on runs"


async def test_an_empty_line_leaves(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await open_line(pilot, app)
        await pilot.press("enter")
        await pilot.pause()
        assert not isinstance(app.screen, CommandLine)


async def test_earlier_lines_come_back_and_so_does_what_was_begun(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        for line in ("sort ttft", "sort z", "sort ttft"):
            await open_line(pilot, app, line)
            await pilot.press("enter")
            await pilot.pause()
        assert command_line.HISTORY == ["sort z", "sort ttft"]
        await open_line(pilot, app, "fil")
        await pilot.press("up")
        assert box(app).value == "sort ttft"
        await pilot.press("up", "up", "up")
        assert box(app).value == "sort z"
        await pilot.press("down", "down")
        assert box(app).value == "fil"
