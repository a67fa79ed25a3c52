"""Theme files: what is shipped is readable, what is broken is named and skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.color import Color

from console.themes import ThemeProblem, load_theme, load_themes, shipped_folder

SHIPPED = sorted(shipped_folder().glob("*.toml"))
AA = 4.5
AAA = 7.0


def luminance(color: Color) -> float:
    def linear(part: int) -> float:
        value = part / 255
        return value / 12.92 if value <= 0.03928 else float(((value + 0.055) / 1.055) ** 2.4)

    return 0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b)


def contrast(one: str, two: str) -> float:
    first, second = sorted((luminance(Color.parse(one)), luminance(Color.parse(two))), reverse=True)
    return (first + 0.05) / (second + 0.05)


def test_three_themes_ship_and_the_default_comes_first() -> None:
    themes, problems = load_themes([shipped_folder()])
    assert problems == []
    assert [theme.name for theme in themes] == ["paceline-dark", "high-contrast", "paceline-light"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_text_is_readable_on_every_background(path: Path) -> None:
    theme = load_theme(path)
    needed = AAA if theme.name == "high-contrast" else AA
    inks = {"foreground": theme.foreground, "primary": theme.primary, "success": theme.success, "warning": theme.warning}
    inks |= {"error": theme.error, "muted": theme.variables["ink-muted"]}
    inks |= {name: value for name, value in theme.variables.items() if name.startswith("state-")}
    for ground in (theme.background, theme.surface, theme.panel):
        weak = {name: round(contrast(str(value), str(ground)), 2) for name, value in inks.items()}
        assert not {name: ratio for name, ratio in weak.items() if ratio < needed}, (theme.name, ground)
    cursor = theme.variables["ink-cursor"]
    assert contrast(str(theme.foreground), cursor) >= AA


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_heat_and_faint_marks_can_be_made_out(path: Path) -> None:
    theme = load_theme(path)
    marks = [theme.variables[f"heat-{step}"] for step in range(8)] + [theme.variables["ink-faint"]]
    assert all(contrast(mark, str(theme.background)) >= 2.0 for mark in marks)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('primary = "#56B4E9"', 'primary = "no colour"', "colors.primary"),
        ("[text]", "[text]\nglow = 1", "text.glow"),
        ('muted = "#8A98AB"', "", "text.muted is missing"),
        ("dark = true", 'dark = "yes"', "dark"),
        ("ramp = [", 'ramp = ["#000000", ', "heat.ramp"),
        ("[states]", "[states", "bad.toml"),
    ],
)
def test_a_bad_file_is_refused_naming_the_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = (shipped_folder() / "paceline-dark.toml").read_text()
    assert old in text
    bad = tmp_path / "bad.toml"
    bad.write_text(text.replace(old, new, 1))
    with pytest.raises(ThemeProblem, match=r"bad\.toml") as caught:
        load_theme(bad)
    assert said in str(caught.value)


def test_a_bad_file_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("name = 3")
    themes, problems = load_themes([shipped_folder(), tmp_path])
    assert len(themes) == 3
    assert len(problems) == 1
    assert "broken.toml" in problems[0]
