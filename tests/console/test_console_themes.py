"""Theme files: what is shipped is readable by everybody, what is broken is named and skipped, what changes is taken over."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import pytest
from colour_vision import MACHADO, apart
from console_helpers import AppMaker, HandClock, rewritten, settle, text_of
from textual.color import Color
from textual.theme import Theme

from console.app import PacelineApp
from console.cli import main
from console.contrast import AA_TEXT, LINUX_CONSOLE, contrast, grounds, weak_pairs
from console.feeds.scripted import ScriptedFeed, ScriptedFleet
from console.themes import ThemeFolders, ThemeProblem, load_theme, load_themes, shipped_folder

SHIPPED = {path.stem: load_theme(path) for path in sorted(shipped_folder().glob("*.toml"))}
AAA_TEXT = 7.0
OF_ONE_HUE = ("amber",)
#: Theme and the vision it is made for: its states must be well apart there, not merely apart.
MADE_FOR = {"deuteranopia": ("deuteranopia", "protanopia"), "tritanopia": ("tritanopia",)}

each_theme = pytest.mark.parametrize("theme", SHIPPED.values(), ids=SHIPPED.keys())


def copied(folder: Path, file: str = "mine.toml", **instead: str) -> Path:
    """The default theme under the name `mine`, with some lines changed."""
    text = (shipped_folder() / "paceline-dark.toml").read_text()
    for old, new in {'name = "paceline-dark"': 'name = "mine"', **instead}.items():
        assert old in text, old
        text = text.replace(old, new, 1)
    path = folder / file
    if path.exists():
        rewritten(path, text)
    else:
        path.write_text(text)
    return path


# --- what ships --------------------------------------------------------------------------------------------


def test_seven_themes_ship_and_the_default_comes_first() -> None:
    themes, problems = load_themes([shipped_folder()])
    assert problems == []
    assert [theme.name for theme in themes] == [
        "paceline-dark", "paceline-light", "high-contrast", "deuteranopia", "tritanopia", "amber", "ansi-16",
    ]  # fmt: skip


def test_contrast_is_measured_as_wcag_says() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)  # the best known near miss of AA
    assert contrast("#767676", "#FFFFFF") == pytest.approx(4.54, abs=0.01)


@each_theme
def test_every_word_can_be_read_on_every_ground_and_every_mark_be_seen(theme: Theme) -> None:
    assert weak_pairs(theme, text=AAA_TEXT if theme.name == "high-contrast" else AA_TEXT) == []


def test_sixteen_colours_can_be_read_on_a_linux_console_too() -> None:
    assert weak_pairs(SHIPPED["ansi-16"], palette=LINUX_CONSOLE) == []


@each_theme
def test_the_row_under_the_cursor_is_seen_to_be_another(theme: Theme) -> None:
    if theme.variables["ink-cursor-text-style"] != "reverse":
        assert apart(grounds(theme)["cursor row"], str(theme.background)) >= 8


@each_theme
def test_neighbouring_heat_steps_differ(theme: Theme) -> None:
    ramp = [theme.variables[f"heat-{step}"] for step in range(8)]
    for vision in ("normal", *MADE_FOR.get(theme.name, ())):
        steps = [round(apart(one, two, vision), 1) for one, two in pairwise(ramp)]
        assert min(steps) >= 5, (vision, steps)


@each_theme
@pytest.mark.parametrize("vision", MACHADO)
def test_ready_slow_and_lost_stay_apart_in_every_vision(theme: Theme, vision: str) -> None:
    ready, slow, lost = (theme.variables[f"state-{name}"] for name in ("ready", "slow", "lost"))
    needed = 30 if vision in MADE_FOR.get(theme.name, ()) else 12
    pairs = {"ready-slow": (ready, slow), "slow-lost": (slow, lost), "ready-lost": (ready, lost)}
    near = {name: round(apart(*pair, vision), 1) for name, pair in pairs.items()}
    assert min(near.values()) >= needed, near


def test_sixteen_colours_are_all_that_the_ansi_theme_uses() -> None:
    theme = SHIPPED["ansi-16"]
    used = {str(theme.background), str(theme.primary), *theme.variables.values()} - {"reverse"}
    assert theme.ansi
    assert all(Color.parse(value).ansi is not None for value in used), used


# --- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('primary = "#56B4E9"', 'primary = "no colour"', "colors.primary"),
        ('primary = "#56B4E9"', 'primary = "#56B4E980"', "opaque"),
        ('primary = "#56B4E9"', 'primary = "ansi_cyan"', "ansi = true"),
        ("dark = true", "dark = true\nansi = true", "ansi_red"),
        ("[text]", "[text]\nmutde = 1", "text.mutde; did you mean muted?"),
        ("[chart]", "[charts]", "did you mean chart?"),
        ("faint = ", "fade = 1 # ", "text.fade"),
        ("dark = true", 'dark = "yes"', "dark"),
        ("ramp = [", 'ramp = ["#000000", ', "heat.ramp"),
        ("[states]", "[states", "bad.toml"),
    ],
)
def test_a_bad_file_is_refused_naming_the_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    bad = copied(tmp_path, "bad.toml", **{old: new})
    with pytest.raises(ThemeProblem, match=r"bad\.toml") as caught:
        load_theme(bad)
    assert said in str(caught.value)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    text = copied(tmp_path).read_text()
    bad = tmp_path / "bad.toml"
    bad.write_text("\n".join(line for line in text.splitlines() if not line.startswith("muted")))
    with pytest.raises(ThemeProblem, match=r"text\.muted is missing"):
        load_theme(bad)


def test_a_bad_file_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("name = 3")
    themes, problems = load_themes([shipped_folder(), tmp_path])
    assert len(themes) == len(SHIPPED)
    assert len(problems) == 1
    assert "broken.toml" in problems[0]


def test_a_watched_folder_tells_what_is_new_changed_and_gone(tmp_path: Path) -> None:
    folders = ThemeFolders([shipped_folder(), tmp_path])
    assert folders.changes() is None
    mine = copied(tmp_path)
    assert (news := folders.changes()) is not None
    assert (news.renewed, news.gone, news.problems) == (["mine"], [], [])
    assert folders.changes() is None
    copied(tmp_path, **{'primary = "#56B4E9"': 'primary = "#123456"'})
    assert (news := folders.changes()) is not None
    assert news.renewed == ["mine"]
    assert next(theme for theme in news.themes if theme.name == "mine").primary == "#123456"
    mine.unlink()
    assert (news := folders.changes()) is not None
    assert (news.renewed, news.gone) == ([], ["mine"])


def test_a_theme_that_replaces_a_shipped_one_gives_it_back_when_it_goes(tmp_path: Path) -> None:
    own = copied(tmp_path, **{'name = "mine"': 'name = "amber"'})
    folders = ThemeFolders([shipped_folder(), tmp_path])
    assert next(theme for theme in folders.themes if theme.name == "amber").primary == SHIPPED["paceline-dark"].primary
    own.unlink()
    news = folders.changes()
    assert news is not None
    assert (news.renewed, news.gone) == (["amber"], [])
    assert next(theme for theme in news.themes if theme.name == "amber").primary == SHIPPED["amber"].primary


def test_a_file_that_breaks_keeps_its_last_good_version_and_is_told_once_it_stays_broken(tmp_path: Path) -> None:
    mine = copied(tmp_path)
    folders = ThemeFolders([shipped_folder(), tmp_path])
    mine.write_text("name = ")
    assert folders.changes() is None  # perhaps still being written
    news = folders.changes()
    assert news is not None
    assert "mine.toml" in news.problems[0]
    assert "mine" in [theme.name for theme in news.themes]
    assert folders.changes() is None
    copied(tmp_path, **{'primary = "#56B4E9"': 'primary = "#123456"'})
    assert (news := folders.changes()) is not None
    assert (news.renewed, folders.problems) == (["mine"], [])


# --- in the console ----------------------------------------------------------------------------------------


def app_of(clock: HandClock, *folders: Path) -> PacelineApp:
    return PacelineApp(feed=ScriptedFeed(ScriptedFleet(), hz=0), fps=1, now_s=clock, theme_folders=folders)


def shown_colours(app: PacelineApp) -> set[str]:
    """Foregrounds of the footer as it stands on screen."""
    line = app.screen.query_one("#footer").render_line(0)
    return {str(segment.style.color.name) for segment in line if segment.style and segment.style.color}


async def test_a_changed_file_is_taken_over_by_a_running_console(hand_clock: HandClock, tmp_path: Path) -> None:
    mine = copied(tmp_path)
    app = app_of(hand_clock, shipped_folder(), tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        app.theme = "mine"
        await settle(pilot, app)
        assert "#56b4e9" in shown_colours(app)
        copied(tmp_path, **{'primary = "#56B4E9"': 'primary = "#12ab34"'})
        async with asyncio.timeout(60):
            while "#12ab34" not in shown_colours(app):
                await pilot.pause(0.1)
        assert "#56b4e9" not in shown_colours(app)
        mine.unlink()
        async with asyncio.timeout(60):
            while app.theme != "paceline-dark":
                await pilot.pause(0.1)
        assert "mine" not in app.theme_names


async def test_a_file_that_breaks_under_a_running_console_is_told_in_a_toast(hand_clock: HandClock, tmp_path: Path) -> None:
    mine = copied(tmp_path)
    app = app_of(hand_clock, shipped_folder(), tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        app.theme = "mine"
        mine.write_text("name = ")
        async with asyncio.timeout(60):
            while not app._notifications:
                await pilot.pause(0.1)
        assert "mine.toml" in next(iter(app._notifications)).message
        assert app.theme == "mine"


@each_theme
async def test_states_read_without_colour_in_every_theme(make_app: AppMaker, theme: Theme) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        app.theme = theme.name
        await settle(pilot, app)
        text = text_of(app.screen.query_one("#table"))
        assert "▲ SLOW" in text
        assert "× LOST" in text


# --- on the command line -----------------------------------------------------------------------------------


def test_the_command_lists_themes_and_names_broken_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "paceline" / "themes"
    folder.mkdir(parents=True)
    assert main(["themes"]) == 0
    assert "tritanopia" in capsys.readouterr().out
    copied(folder, "night.toml", **{'name = "mine"': 'name = "amber"'})
    (folder / "broken.toml").write_text("name = 3")
    assert main(["themes"]) == 1
    told = capsys.readouterr().out
    assert "replaced by a later one" in told
    assert "broken.toml: dark is missing" in told
    assert main(["themes", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert [row["file"] for row in facts["themes"] if row["name"] == "amber" and row["in_use"]] == [str(folder / "night.toml")]
    assert len(facts["problems"]) == 1


def test_checking_a_file_says_what_is_hard_to_read_or_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = shipped_folder() / "amber.toml"
    assert main(["themes", "--check", str(good)]) == 0
    assert "amber can be used; every ink" in capsys.readouterr().out
    weak = copied(tmp_path, **{'primary = "#56B4E9"': 'primary = "#123456"'})
    assert main(["themes", "--check", str(weak)]) == 0
    assert "primary on background has" in capsys.readouterr().out
    weak.write_text("nmae = 1")
    assert main(["themes", "--check", str(weak)]) == 2
    assert "unknown key nmae; did you mean name?" in capsys.readouterr().err
    assert main(["themes", "--check", str(tmp_path / "none.toml")]) == 2
    assert "none.toml: No such file" in capsys.readouterr().err
