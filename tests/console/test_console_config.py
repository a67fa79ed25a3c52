"""The user's console.toml: what it may say, what is said of what it may not, and that a key map reaches the keys."""

from __future__ import annotations

import string
import tomllib
from pathlib import Path

import pytest
from console_helpers import AppMaker, settle, text_of
from hypothesis import given
from hypothesis import strategies as st

from console.actions import ACTIONS, BY_ID
from console.config import BadWish, as_toml, console_config, keymap, load_config, shown_key
from console.screens.dialogs import ConfirmAct
from console.screens.help import HelpScreen, KeyTable


@pytest.fixture
def console_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "console.toml"
    monkeypatch.setenv("PACELINE_CONFIG", str(path))
    monkeypatch.delenv("PACELINE_THEME", raising=False)
    return path


def test_without_a_file_everything_is_as_shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PACELINE_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    config = load_config()
    assert (config.fps, config.armed, config.keys, config.problems) == (4, True, {}, [])


def test_a_file_that_is_named_and_missing_is_told(console_toml: Path) -> None:
    assert "which is not there" in load_config().problems[0]


def test_good_settings_apply_beside_bad_ones(console_toml: Path) -> None:
    console_toml.write_text('fps = 2\narmed = "no"\nthem = "amber"\n[keys]\nevict = "ctrl+k"\nevikt = "x"\n')
    config = load_config()
    assert (config.fps, config.armed, config.keys) == (2, True, {"evict": "ctrl+k"})
    assert config.problems == [
        "console.toml: armed = 'no' must be true or false",
        "console.toml: unknown setting 'them'; did you mean theme?",
        "console.toml: keys.evikt: no such action; did you mean evict?",
    ]


@pytest.mark.parametrize("content", [b"fps = ", b"\xff\xfe", b"keys = 3", b"fps = true", b"fps = 3", b"theme = 1"])
def test_a_broken_file_costs_its_settings_and_is_told_in_words(console_toml: Path, content: bytes) -> None:
    console_toml.write_bytes(content)
    config = load_config()
    assert (config.fps, config.theme, config.keys) == (4, "", {})
    assert len(config.problems) == 1
    assert config.problems[0].startswith("console.toml: ")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"drain": "e"}, "keys.drain = 'e' is the key of evict already"),
        ({"rate": "q"}, "keys.rate = 'q' is the key of leave already"),
        ({"nodes": "+"}, "keys.nodes = 'plus' is the key of rate_up already"),
        ({"evikt": "x"}, "keys.evikt: no such action; did you mean evict?"),
        ({"sort": "tab"}, "keys.sort: 'tab' belongs to text fields and to leaving"),
        ({"sort": "pgup"}, "keys.sort: 'pgup' is no key; did you mean 'pageup'?"),
        ({"sort": "strg+k"}, "keys.sort: 'strg+k' is no key; did you mean 'ctrl+k'?"),
        ({"sort": "ctrl+K"}, "keys.sort: 'ctrl+K' is no key; did you mean 'ctrl+k'?"),
        ({"sort": ""}, "keys.sort = '' must be key names with commas between them, such as 'ctrl+k'"),
        ({"sort": 3}, "keys.sort = 3 must be key names with commas between them, such as 'ctrl+k'"),
        ({"sort": "x,,y"}, "keys.sort = 'x,,y' must be key names with commas between them, such as 'ctrl+k'"),
    ],
)
def test_a_key_that_cannot_be_is_refused_in_words(keys: dict[str, object], said: str) -> None:
    assert keymap(keys) == ({}, [said])


def test_two_actions_may_swap_their_keys() -> None:
    assert keymap({"evict": "d", "drain": "e"}) == ({"evict": "d", "drain": "e"}, [])


@pytest.mark.parametrize("keys", [{"drain": "e", "evict": "q"}, {"evict": "q", "drain": "e"}])
def test_a_key_given_back_by_a_refusal_is_looked_at_again(keys: dict[str, object]) -> None:
    good, problems = keymap(keys)
    assert good == {}
    assert len(problems) == 2


def test_one_key_may_mean_two_things_on_two_screens() -> None:
    assert keymap({"metric": "e"})[1] == []  # only on SLA, where no replica can be evicted


def test_a_character_is_the_key_that_textual_calls_by_name() -> None:
    assert keymap({"rate": "?,="})[1] == ["keys.rate = 'question_mark,equals_sign' is the key of help already"]
    assert keymap({"rate": "%"})[0] == {"rate": "percent_sign"}


NAMES = st.sampled_from([*(action.id for action in ACTIONS), "evikt", ""]) | st.text(max_size=8)
PIECES = st.sampled_from([*string.ascii_letters, "ctrl+k", "f5", "+", "=", ",", " ", "escape", "tab", "ctrl+", "+k", "é", "\x00"])
KEYS = st.lists(PIECES, max_size=4).map("".join) | st.integers() | st.none() | st.text(max_size=6)


@given(st.dictionaries(NAMES, KEYS, max_size=6))
def test_whatever_a_key_map_says_its_usable_part_never_clashes(wanted: dict[str, object]) -> None:
    good, problems = keymap(wanted)
    assert len(good) + len(problems) == len(wanted)
    assert keymap(dict(good)) == (good, [])
    for name in good:
        for key in good[name].split(","):
            for other in ACTIONS:
                together = {"app"} & {*other.where, *BY_ID[name].where} or set(other.where) & set(BY_ID[name].where)
                assert other.id == name or not together or key not in good.get(other.id, other.keys).split(",")


def test_the_shipped_keys_are_a_key_map_without_problems() -> None:
    lines = [line.removeprefix("# ") if " = " in line else line for line in as_toml({}).splitlines()]
    keys = tomllib.loads("\n".join(lines))["keys"]
    assert set(keys) == set(BY_ID)
    assert keymap(keys)[1] == []


def test_a_reserved_key_stays_with_the_action_that_is_shipped_with_it_and_goes_to_no_other() -> None:
    assert keymap({"view_next": "tab,f5"}) == ({"view_next": "tab,f5"}, [])
    assert keymap({"evict": "tab"})[1] == ["keys.evict: 'tab' belongs to text fields and to leaving"]


def test_the_starting_key_map_changes_nothing_until_it_is_edited() -> None:
    assert tomllib.loads(as_toml({})) == {"keys": {}}
    assert tomllib.loads(as_toml({"evict": "ctrl+k"})) == {"keys": {"evict": "ctrl+k"}}


def test_keys_are_shown_as_they_are_pressed() -> None:
    assert shown_key(BY_ID["evict"], {}) == "e"
    assert shown_key(BY_ID["evict"], {"evict": "ctrl+k,f5,percent_sign"}) == "^k f5 %"


# --- on the command line -----------------------------------------------------------------------------------


def test_an_unknown_theme_asked_for_names_the_known_ones(console_toml: Path) -> None:
    console_toml.write_text("")
    with pytest.raises(
        BadWish, match=r"--theme: there is no theme 'paceline-drak'; did you mean paceline-dark\? \(.*high-contrast"
    ):
        console_config("paceline-drak")


def test_an_unknown_theme_in_the_file_is_told_and_does_not_stop_the_console(console_toml: Path) -> None:
    console_toml.write_text('theme = "nothing"')
    assert console_config().problems[0].startswith("theme: there is no theme 'nothing' (paceline-dark")


def test_the_command_line_goes_before_the_file(console_toml: Path) -> None:
    console_toml.write_text('theme = "paceline-light"\nfps = 2')
    config = console_config("paceline-dark", 1)
    assert (config.theme, config.fps, config.problems) == ("paceline-dark", 1, [])
    assert (console_config().theme, console_config().fps) == ("paceline-light", 2)


# --- in the console ----------------------------------------------------------------------------------------


async def test_a_remapped_key_works_and_the_old_one_does_not(make_app: AppMaker, console_toml: Path) -> None:
    console_toml.write_text('[keys]\nevict = "ctrl+k"\nhelp = "f2"\n')
    app = make_app(config=load_config())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        live = app.screen
        await pilot.press("e", "question_mark")
        await pilot.pause()
        assert app.screen is live
        await pilot.press("ctrl+k")
        await pilot.pause()
        assert isinstance(app.screen, ConfirmAct)
        await pilot.press("escape", "f2")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)


async def test_footer_and_help_show_the_users_own_keys(make_app: AppMaker, console_toml: Path) -> None:
    console_toml.write_text('[keys]\nevict = "ctrl+k"\nmode_live = "f1"\n' + 'help = "f2"\n')
    app = make_app(config=load_config())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        footer = text_of(app.screen.query_one("#footer"))
        assert "^k Evict" in footer
        assert "0f123456 " in footer
        await pilot.press("f2")
        await pilot.pause()
        line = next(line for line in str(app.screen.query_one(KeyTable).render()).splitlines() if "Evict replica" in line)
        assert line.split()[0] == "^k"


async def test_what_is_wrong_with_the_file_is_told_at_the_start(make_app: AppMaker, console_toml: Path) -> None:
    console_toml.write_text('[keys]\nevict = "d"\n')
    app = make_app(config=load_config())
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await settle(pilot, app)
        assert "keys.evict = 'd' is the key of drain already" in " ".join(note.message for note in app._notifications)
