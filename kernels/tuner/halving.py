"""Successive halving: many configurations measured shortly, the best third of them three times as long, until one is left.

Pure logic over a function that measures. Whoever is dropped in a round was measured slower than all that were kept, so the one
that is returned is never slower than the best by more than the spread of the noise, however many rounds there were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)

ETA = 3
FIRST_REPETITIONS = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians of `repetitions` samples. What is ranked is the mean of both routings: neither may be bought with the other."""

    uniform_us: float
    zipf_us: float
    spread_us: float  # distance of the quartiles under uniform routing
    repetitions: int
    error: float = 0.0  # relative, against float32
    experts: float = 0.0  # of this device that the uniform calls touched, in the mean
    rehearsal: bool = False

    @property
    def us(self) -> float:
        return (self.uniform_us + self.zipf_us) / 2


@dataclass(frozen=True, slots=True)
class Failed:
    why: str


@dataclass(frozen=True, slots=True)
class Step:
    """Told after each measurement."""

    round: int  # from 1
    done: int
    of: int
    best: Measured | None


@dataclass(slots=True)
class Ranking(Generic[C]):
    order: list[tuple[C, Measured]] = field(default_factory=list)  # best first; who got further stands before who did not
    failed: dict[C, str] = field(default_factory=dict)
    skipped: list[C] = field(default_factory=list)  # cannot beat the best that was measured
    complete: bool = True  # False: stopped before the last round


def halve(
    candidates: Sequence[C],
    measure: Callable[[C, int], Measured | Failed],
    *,
    first: int = FIRST_REPETITIONS,
    least_us: Callable[[C], float] = lambda _: 0.0,
    keep_on: Callable[[], bool] = lambda: True,
    told: Callable[[Step], None] = lambda _: None,
) -> Ranking[C]:
    """`least_us`: what a configuration needs at least under uniform routing; one whose least is above what the best took is not
    measured at all."""
    alive = sorted(dict.fromkeys(candidates), key=least_us)
    latest: dict[C, Measured] = {}
    dropped: list[C] = []
    found: Ranking[C] = Ranking()

    def us(candidate: C) -> float:
        return latest[candidate].us

    repetitions, number = first, 1
    while alive:
        for done, candidate in enumerate(alive, 1):
            if not keep_on():
                found.complete = False
                break
            best = min(latest.values(), key=lambda one: one.us, default=None)
            if number == 1 and best is not None and least_us(candidate) > best.uniform_us:
                found.skipped.append(candidate)
                continue
            outcome = measure(candidate, repetitions)
            if isinstance(outcome, Failed):
                found.failed[candidate] = outcome.why
                latest.pop(candidate, None)
            else:
                latest[candidate] = outcome
                best = outcome if best is None or outcome.us < best.us else best
            told(Step(number, done, len(alive), best))
        alive = sorted((one for one in alive if one in latest), key=us)
        if len(alive) <= 1 or not found.complete:
            break
        kept = math.ceil(len(alive) / ETA)
        dropped[:0] = alive[kept:]
        alive = alive[:kept]
        repetitions *= ETA
        number += 1
    found.order = [(one, latest[one]) for one in (*alive, *dropped) if one in latest]
    return found
