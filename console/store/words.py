"""What the filters of the fleet, of runs and of events have in common: how a line is taken apart, and numbers with units.

Words are ANDed; `|` binds closer than the space, `!` closer than `|`: `!a|b` keeps what is not a, and what is b. Numpy is
not imported here: lists of runs are read without it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Unit = Literal["count", "factor", "share", "ms", "s", "percent", "watt", "joule", "celsius", "byte", "mhz"]

#: A column, how it is compared, and with what.
COMPARISON: Final = re.compile(r"([^<>=~!]*)(<=|>=|==|!=|!~|<|>|=|~)(.*)")
_AROUND: Final = re.compile(r"\s*(\||<=|>=|==|!=|!~|<|>|=|~)\s*")
_AROUND_OR: Final = re.compile(r"\s*(\|)\s*")
_AFTER_NOT: Final = re.compile(r"!\s+")
_NUMBER: Final = re.compile(r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d{1,15})?(?:\.\d{0,15})?)([a-zµ%]*)", re.IGNORECASE)

_SECONDS: Final = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_UNITS: Final[dict[Unit, dict[str, float]]] = {
    "s": _SECONDS,
    "ms": {unit: seconds * 1000 for unit, seconds in _SECONDS.items()} | {"": 1.0},
    "share": {"": 1.0, "%": 0.01},
    "count": {"": 1.0, "k": 1e3, "m": 1e6},
    "factor": {"": 1.0, "x": 1.0},
    "percent": {"": 1.0, "%": 1.0},
    "watt": {"": 1.0, "w": 1.0, "kw": 1e3},
    "joule": {"": 1.0, "j": 1.0, "kj": 1e3, "mj": 1e6},
    "celsius": {"": 1.0, "c": 1.0},
    "byte": {"": 1.0, "b": 1.0, "mb": 1e6, "m": 1e6, "gb": 1e9, "g": 1e9, "gib": float(1 << 30)},
    "mhz": {"": 1.0, "mhz": 1.0, "ghz": 1e3},
}
_LIKE: Final[dict[Unit, str]] = {
    "s": "10s, 5m or 2h",
    "ms": "2500, 2.5s or 80ms",
    "share": "90% or 0.9",
    "count": "500 or 10k",
    "factor": "1.1",
    "percent": "90 or 90%",
    "watt": "700 or 0.7kW",
    "joule": "5000 or 5kJ",
    "celsius": "85",
    "byte": "250GB or 250000000000",
    "mhz": "2100 or 2.1GHz",
}


class BadFilter(Exception):
    """Not a filter. `piece` is what could not be read, `hint` what would be right."""

    def __init__(self, piece: str, hint: str) -> None:
        super().__init__(f"{piece}: {hint}")
        self.piece, self.hint = piece, hint


@dataclass(frozen=True, slots=True)
class Part:
    """One of the alternatives of a word, as typed; `wanted` is False behind an odd number of exclamation marks."""

    typed: str
    text: str
    wanted: bool = True


def words_of(text: str, *, compares: bool = True) -> list[list[Part]]:
    """A list of alternatives for each word. With `compares`, spaces around a sign of comparison do not part words."""
    around = _AROUND if compares else _AROUND_OR
    joined = _AFTER_NOT.sub("!", around.sub(r"\1", text.strip()))
    return [[_part(part) for part in word.split("|")] for word in joined.split()]


def checked(parts: list[Part]) -> list[Part]:
    """Raises BadFilter when a word has nothing beside `|` or behind `!`."""
    for part in parts:
        if not part.typed:
            raise BadFilter("|".join(part.typed for part in parts), "a word is missing beside |, as in slow|lost")
        if not part.text:
            raise BadFilter(part.typed, "what should not match is missing, as in !ready")
    return parts


def _part(part: str) -> Part:
    plain = part.lstrip("!")
    return Part(part, plain, (len(part) - len(plain)) % 2 == 0)


def value_of(word: str, column: str, unit: Unit, right: str) -> float:
    """The number that a column is compared with, in the unit that the column has. Raises BadFilter."""
    like = f"{column} takes a number like {_LIKE[unit]}"
    if not right:
        raise BadFilter(word, like)
    found = _NUMBER.fullmatch(right)
    if found is None or not any(character.isdigit() for character in found[1]):
        raise BadFilter(right, like)
    scale = _UNITS[unit].get(found[2].lower())
    if scale is None:
        raise BadFilter(right, f"no unit {found[2]}; write it like {_LIKE[unit]}")
    value = float(found[1].replace(",", ""))
    if unit == "share" and not found[2] and abs(value) > 1:
        raise BadFilter(right, f"a share is at most 1; write {right}%")
    return value * scale
