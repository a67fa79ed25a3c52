"""Colours by what they mean. Charts are drawn once with marks for colours, which a page turns into CSS variables and a file
into plain colours: one picture for light, dark and print.

The series are blue, orange, green and purple of different lightness, told apart with any kind of colour vision; nothing is
said by colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True)
class Palette:
    paper: str  # behind everything
    ink: str  # text that is read
    muted: str  # axes and their numbers
    grid: str
    c1: str
    c2: str
    c3: str
    c4: str
    c5: str
    c6: str
    c7: str
    c8: str
    limit: str
    cold3: str  # robust z below: better than the fleet
    cold2: str
    cold1: str
    even: str
    warm1: str
    warm2: str
    warm3: str  # far above: worse

    @property
    def series(self) -> tuple[str, ...]:
        return (self.c1, self.c2, self.c3, self.c4, self.c5, self.c6, self.c7, self.c8)

    @property
    def heat(self) -> tuple[str, ...]:
        return (self.cold3, self.cold2, self.cold1, self.even, self.warm1, self.warm2, self.warm3)


LIGHT: Final = Palette(
    paper="#ffffff", ink="#17202b", muted="#566270", grid="#dfe4ea",
    c1="#0b66b5", c2="#c2570c", c3="#0a7d5c", c4="#8a3f9c", c5="#5f6b00", c6="#b0306a", c7="#3d4f5f", c8="#8c5a2b",
    limit="#b3261e",
    cold3="#1f5f9e", cold2="#6da3d3", cold1="#c3d9ec", even="#eceff2", warm1="#f6d3b3", warm2="#e8924a", warm3="#b3470a",
)  # fmt: skip
DARK: Final = Palette(
    paper="#12171d", ink="#e6ebf1", muted="#9aa7b5", grid="#2c3641",
    c1="#6bb3f5", c2="#f3a25c", c3="#4fd0a4", c4="#d49be6", c5="#c9d15a", c6="#f58ab9", c7="#a9bccd", c8="#d6a878",
    limit="#ff8b82",
    cold3="#7cbcf7", cold2="#4580b5", cold1="#2a4a66", even="#2b333c", warm1="#5e4229", warm2="#b56a2a", warm3="#ffa04d",
)  # fmt: skip
#: What the charts of a page are drawn with: colours that occur nowhere else, one for each name.
MARKS: Final = Palette(*(f"#01fe{number:02x}" for number in range(len(fields(Palette)))))


def to_variables(svg: str) -> str:
    for field in fields(Palette):
        svg = svg.replace(getattr(MARKS, field.name), f"var(--{field.name})")
    return svg


def to_plain(svg: str) -> str:
    for field in fields(Palette):
        svg = svg.replace(getattr(MARKS, field.name), getattr(LIGHT, field.name))
    return svg


def css(palette: Palette) -> str:
    return " ".join(f"--{field.name}: {getattr(palette, field.name)};" for field in fields(Palette))
