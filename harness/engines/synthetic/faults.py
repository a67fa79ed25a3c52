"""Plantable faults: what a synthetic replica can be told to do wrong, and when.

    faults = [
      {slot = "node003/gpu1", kind = "slow", percent = 25, at_s = 10, for_s = 60, because = "power"},
      {slot = "node002/*", kind = "stall", at_s = 30, for_s = 5},
      {slot = "node000/gpu0", kind = "crash", at_s = 40},
      {slot = "node001/gpu2", kind = "flaky_start", times = 2},
      {slot = "node001/gpu3", kind = "slow_start", delay_s = 3},
      {slot = "node001/gpu4", kind = "ecc", at_s = 20},
    ]

`at_s` counts from the moment the incarnation has started; without `for_s` a fault lasts. slow, stall, crash and ecc strike
the first life of a slot only, so that a recycled replica is healthy, unless `every_life = true`. flaky_start fails the
first `times` lives; slow_start delays every one. `slot` may be a shell pattern.

What the GPU of such a replica shows (the simulated exporter, harness/metrics/gpu/simulated.py): `because` is the cause of a
slow one, "power" (at a lower power cap), "heat" (throttled by temperature) or "clock" (low for no reason that is told);
without it nothing is to be seen there. ecc slows nothing: uncorrectable memory errors are counted from `at_s` on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf, isfinite
from typing import Any

from harness.engines.base import EngineError, nearest

#: kind → (fields it needs, fields it may have)
_FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "slow": (frozenset({"percent"}), frozenset({"at_s", "for_s", "every_life", "because"})),
    "stall": (frozenset(), frozenset({"at_s", "for_s", "every_life"})),
    "crash": (frozenset(), frozenset({"at_s", "every_life"})),
    "flaky_start": (frozenset({"times"}), frozenset()),
    "slow_start": (frozenset({"delay_s"}), frozenset()),
    "ecc": (frozenset(), frozenset({"at_s", "every_life"})),
}
CAUSES = ("power", "heat", "clock")


@dataclass(frozen=True, slots=True)
class Fault:
    slot: str
    kind: str
    percent: float = 0.0  # slow: step times grow by this
    at_s: float = 0.0
    for_s: float = inf
    times: int = 0
    delay_s: float = 0.0
    every_life: bool = False
    because: str = ""  # slow: what its GPU shows, one of CAUSES

    def describe(self) -> str:
        """One line for facts and logs: `slow +25 % at 10 s for 60 s, because of power`."""
        if self.kind == "flaky_start":
            return f"flaky_start, first {self.times} lives"
        if self.kind == "slow_start":
            return f"slow_start by {self.delay_s:g} s"
        amount = f" {self.percent:+g} %" if self.kind == "slow" else ""
        duration = "" if self.for_s == inf else f" for {self.for_s:g} s"
        cause = f", because of {self.because}" if self.because else ""
        return f"{self.kind}{amount} at {self.at_s:g} s{duration}{cause}"

    def strikes(self, slot: str, life: int) -> bool:
        if not fnmatchcase(slot, self.slot):
            return False
        if self.kind == "flaky_start":
            return life < self.times
        return self.kind == "slow_start" or self.every_life or life == 0


def number(where: str, value: Any, *, low: float, above: bool = False, high: float = inf) -> float:
    """A finite number in range; EngineError names `where` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise EngineError(f"{where} = {value!r}: must be a number")
    if value < low or (above and value == low) or value > high:
        limit = f"above {low:g}" if above else f"at least {low:g}"
        limit += "" if high == inf else f" and at most {high:g}"
        raise EngineError(f"{where} = {value!r}: must be {limit}")
    return float(value)


def whole(where: str, value: Any, *, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise EngineError(f"{where} = {value!r}: must be a whole number")
    return int(number(where, value, low=low))


def parse_faults(value: Any, slots: Sequence[str], where: str = "fleet.engine_args.faults") -> tuple[Fault, ...]:
    """Validate; EngineError names the field, its value and what would have been right."""
    if not isinstance(value, list | tuple):
        raise EngineError(f"{where} = {value!r}: must be a list of tables, each with slot and kind")
    return tuple(_parse_one(entry, slots, f"{where}[{i}]") for i, entry in enumerate(value))


def _parse_one(entry: Any, slots: Sequence[str], where: str) -> Fault:
    if not isinstance(entry, dict):
        raise EngineError(f"{where} = {entry!r}: must be a table with slot and kind")
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise EngineError(f"{where}.kind = {kind!r}: unknown kind of fault{nearest(str(kind), list(_FIELDS))}")
    needed, optional = _FIELDS[kind]
    allowed = [*sorted(needed | optional), "slot", "kind"]
    for name in entry:
        if name not in allowed:
            an, known = "an" if kind[0] in "aeiou" else "a", nearest(str(name), allowed)
            raise EngineError(f"{where}.{name} = {entry[name]!r}: not a field of {an} {kind} fault{known}")
    for name in sorted(needed - entry.keys()):
        raise EngineError(f"{where}.{name}: needed by a {kind} fault")
    return Fault(
        slot=_slot(entry.get("slot"), slots, f"{where}.slot"),
        kind=kind,
        percent=number(f"{where}.percent", entry["percent"], low=-90, above=True) if "percent" in entry else 0.0,
        at_s=number(f"{where}.at_s", entry.get("at_s", 0), low=0),
        for_s=number(f"{where}.for_s", entry["for_s"], low=0, above=True) if "for_s" in entry else inf,
        times=whole(f"{where}.times", entry["times"], low=1) if "times" in entry else 0,
        delay_s=number(f"{where}.delay_s", entry["delay_s"], low=0) if "delay_s" in entry else 0.0,
        every_life=_flag(f"{where}.every_life", entry.get("every_life", False)),
        because=_cause(entry, where) if "because" in entry else "",
    )


def _cause(entry: dict[str, Any], where: str) -> str:
    value = entry["because"]
    if not isinstance(value, str) or value not in CAUSES:
        raise EngineError(f"{where}.because = {value!r}: no cause that a GPU shows{nearest(str(value), CAUSES)}")
    if entry["percent"] <= 0:
        raise EngineError(f"{where}.because = {value!r}: is for a percent above 0, and {entry['percent']:g} makes it no slower")
    return value


def _slot(value: Any, slots: Sequence[str], where: str) -> str:
    if not isinstance(value, str) or not value:
        raise EngineError(f'{where} = {value!r}: must name a slot, such as "{slots[0]}"')
    if not any(fnmatchcase(slot, value) for slot in slots):
        raise EngineError(f"{where} = {value!r}: no such slot in this fleet{nearest(value, slots)}")
    return value


def _flag(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise EngineError(f"{where} = {value!r}: must be true or false")
    return value
