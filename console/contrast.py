"""How well text of a theme can be read: contrast ratios after WCAG 2.2 (success criteria 1.4.3 and 1.4.11).

What is measured is what is drawn: every ink that writes words, on every ground that words stand on, which are the
background, header and footer (`panel`, `surface`) and the row under the cursor. Rules and grids are ornament.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from textual.color import Color
from textual.theme import Theme

AA_TEXT: Final = 4.5
AA_GRAPHIC: Final = 3.0

Palette = tuple[str, ...]

#: What `ansi_red` and the others are taken for. Terminals differ, which is why a user chooses such a theme.
XTERM: Final[Palette] = (
    "#000000", "#CD0000", "#00CD00", "#CDCD00", "#0000EE", "#CD00CD", "#00CDCD", "#E5E5E5",
    "#7F7F7F", "#FF0000", "#00FF00", "#FFFF00", "#5C5CFF", "#FF00FF", "#00FFFF", "#FFFFFF",
)  # fmt: skip

LINUX_CONSOLE: Final[Palette] = (
    "#000000", "#AA0000", "#00AA00", "#AA5500", "#0000AA", "#AA00AA", "#00AAAA", "#AAAAAA",
    "#555555", "#FF5555", "#55FF55", "#FFFF55", "#5555FF", "#FF55FF", "#55FFFF", "#FFFFFF",
)  # fmt: skip

_TEXT_COLORS: Final = ("foreground", "primary", "success", "warning", "error")


@dataclass(frozen=True, slots=True)
class Weak:
    """A pair that is too hard to read."""

    ink: str
    ground: str
    ratio: float
    needed: float

    def __str__(self) -> str:
        return f"{self.ink} on {self.ground} has {self.ratio:.2f}:1, {self.needed:g}:1 is needed"


def rgb(colour: str, palette: Palette = XTERM) -> tuple[int, int, int]:
    parsed = Color.parse(colour)
    if parsed.ansi is not None and parsed.ansi >= 0:
        parsed = Color.parse(palette[parsed.ansi])
    return parsed.r, parsed.g, parsed.b


def linear(part: int) -> float:
    """One channel of sRGB as light."""
    value = part / 255
    return value / 12.92 if value <= 0.04045 else float(((value + 0.055) / 1.055) ** 2.4)


def luminance(colour: str, palette: Palette = XTERM) -> float:
    red, green, blue = map(linear, rgb(colour, palette))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, two: str, palette: Palette = XTERM) -> float:
    """1 (the same) to 21 (black and white)."""
    high, low = sorted((luminance(one, palette), luminance(two, palette)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def grounds(theme: Theme) -> dict[str, str]:
    """What text stands on. In reverse video each ink changes places with the background: the ratio is the same."""
    found = {name: str(getattr(theme, name)) for name in ("background", "surface", "panel")}
    if theme.variables["ink-cursor-text-style"] != "reverse":
        found["cursor row"] = theme.variables["ink-cursor"]
    return found


def text_inks(theme: Theme) -> dict[str, str]:
    inks = {name: str(getattr(theme, name)) for name in _TEXT_COLORS}
    inks |= {name: theme.variables[f"ink-{name}"] for name in ("muted", "faint")}
    return inks | {name: value for name, value in theme.variables.items() if name.startswith("state-")}


def weak_pairs(theme: Theme, text: float = AA_TEXT, graphic: float = AA_GRAPHIC, palette: Palette = XTERM) -> list[Weak]:
    """Words that are too weak on some ground, and charts and heat that are on the background."""
    pairs = [(ink, name, a, b, text) for ink, a in text_inks(theme).items() for name, b in grounds(theme).items()]
    ground = str(theme.background)
    for name, value in theme.variables.items():
        if name.startswith("chart-"):  # its name in the title has the same ink, and is text
            pairs.append((name, "background", value, ground, text))
        elif name.startswith("heat-"):
            pairs.append((name, "background", value, ground, graphic))
    measured = [Weak(ink, name, contrast(a, b, palette), needed) for ink, name, a, b, needed in pairs]
    return [pair for pair in measured if pair.ratio < pair.needed]
