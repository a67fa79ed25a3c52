"""What each figure is: its formula, the time it is of, and where it comes from. One text for screens, tables, exports, reports.

Ids are the names of fields (`completed_qps`, `head_room`); a percentile of a time is found under its own name as well
(`ttft_p99_ms`). Time zero is the start of an attempt's load: the moment from which LoadGen's schedule counts.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from harness.analysis.shape import number
from harness.records.runfile import AttemptRecord


class Definition(msgspec.Struct, frozen=True):
    id: str
    title: str
    unit: str  # "" = a plain number
    formula: str
    window: str
    source: str


class NoSuchDefinition(Exception):
    """No figure of that name; the text names the nearest ones."""


def _shipped() -> dict[str, Definition]:
    tables = tomllib.loads((Path(__file__).parent / "definitions.toml").read_text(encoding="utf-8"))
    return {name: msgspec.convert({"id": name, **table}, Definition) for name, table in tables.items()}


DEFINITIONS: Final[Mapping[str, Definition]] = _shipped()

_PLACES: Final = {
    "min": ("minimum", "the least value"), "avg": ("mean", "the mean of the values"), "max": ("maximum", "the largest value"),
    "p50": ("p50", ".5"), "p90": ("p90", ".9"), "p95": ("p95", ".95"), "p99": ("p99", ".99"), "p99_9": ("p99.9", ".999"),
}  # fmt: skip
_PLACED: Final = re.compile(rf"(?P<base>[a-z_]+?)_(?P<place>{'|'.join(_PLACES)})_ms")


def define(id: str) -> Definition:
    """Also of a percentile, mean or extreme of a time: `ttft_p99_ms`, `latency_avg_ms`. Raises NoSuchDefinition."""
    known = DEFINITIONS.get(id)
    if known is not None:
        return known
    parts = _PLACED.fullmatch(id)
    base = DEFINITIONS.get(f"{parts['base']}_ms") if parts else None
    if parts is None or base is None:
        near = difflib.get_close_matches(id, DEFINITIONS, n=3, cutoff=0.4)
        raise NoSuchDefinition(f"no figure is called {id!r}" + (f"; near it are {', '.join(near)}" if near else ""))
    name, rule = _PLACES[parts["place"]]
    how = f"sorted values[int(n x {rule})]" if rule.startswith(".") else rule
    return Definition(id, f"{base.title} {name}", base.unit, f"{how} of: {base.formula}", base.window, base.source)


def find(word: str) -> list[Definition]:
    """The one of that id, else all in whose id or title the word occurs; empty where there is none."""
    try:
        return [define(word)]
    except NoSuchDefinition:
        wanted = word.lower()
        return [one for one in DEFINITIONS.values() if wanted in one.id or wanted in one.title.lower()]


class Beside(msgspec.Struct):
    """One thing, as we and as LoadGen measured it."""

    id: str  # of our figure
    title: str
    unit: str
    ours: float | None
    loadgens: float
    why: str  # they may differ


def beside_loadgen(attempt: AttemptRecord) -> list[Beside]:
    """LoadGen's own figures, each beside ours of the same thing; empty for an attempt without LoadGen."""
    rows = []
    for name, field, place, why in _BESIDE:
        found = attempt.loadgen.get(field)
        theirs = number(found.get(place) if isinstance(found, dict) else found)
        if theirs is None:
            continue
        ours = (
            {"ttft_ms": attempt.ttft_ms, "tpot_ms": attempt.tpot_ms}[field].get(_OUR_PLACES[place])
            if place
            else attempt.rates.get(name)
        )
        what = define(name)
        rows.append(Beside(name, what.title, what.unit, ours, theirs, why))
    return rows


_ENDS: Final = "LoadGen's clock stops when the last issued query is complete, ours at the last completion of all"
_SAME: Final = "the same rule and samples; LoadGen's clock also counts the way from the head's socket into its process"
_OUR_PLACES: Final = {"50.00": "p50", "90.00": "p90", "99.00": "p99", "99.90": "p99_9"}
_BESIDE: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("completed_qps", "samples_per_s", "", _ENDS),
    ("tokens_per_s", "tokens_per_s", "", _ENDS),
    *((f"{name}_{ours}_ms", f"{name}_ms", theirs, _SAME) for name in ("ttft", "tpot") for theirs, ours in _OUR_PLACES.items()),
)


def used_ids(names: Iterable[str]) -> list[Definition]:
    """Definitions of those names that have one, each once: for the foot of a table or report."""
    found: dict[str, Definition] = {}
    for name in names:
        try:
            one = define(name)
        except NoSuchDefinition:
            continue
        found.setdefault(one.id, one)
    return list(found.values())
