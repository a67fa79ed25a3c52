"""How an attempt ended: the verdict, what it measured as a whole against the limits, what was counted, why, and what came before.

Every line carries a bar in the verdict's colour. The figures are those that the head gives at the end of the attempt;
nothing here moves, nothing is forecast.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable
from typing import Final

from rich.style import Style
from textual.strip import Strip

from console.store.fleet import FleetStore
from console.store.rates import rate_words
from console.widgets import fmt
from console.widgets.paint import Paint, Painted, Run, size_of, spread, strip_of
from console.widgets.sla import judged
from harness.wire.control import AttemptInfo

REASON_LINES = 3
_OF_ACTS: Final = re.compile(r"ACTS (\d+): ")
GLYPH = {"VALID": "●", "EXPLORATION": "◇", "SUPERSEDED": "»"}


def verdict_style(verdict: str, ink: Paint) -> Style:
    return {"VALID": ink.good, "EXPLORATION": ink.primary, "SUPERSEDED": ink.muted}.get(verdict, ink.bad)


class VerdictBanner(Painted):
    """Shown once the attempt has a verdict."""

    def __init__(
        self,
        store: FleetStore,
        *,
        hint: Callable[[], str] = lambda: "",
        whole: bool = False,
        attempt: Callable[[], int | None] = lambda: None,
        id: str | None = None,
    ) -> None:
        """`hint`: where there is more to see, in words; may be empty. `whole`: reasons take the lines that they need, up to a
        third of the screen. `attempt`: its number; None is the one that the picture is about."""
        super().__init__(4, id=id)
        self._store, self._hint, self._whole, self._number = store, hint, whole, attempt

    def _attempt(self) -> AttemptInfo | None:
        number = self._number()
        return self._store.attempt if number is None else self._store.attempts.get(number)

    @property
    def wanted(self) -> bool:
        attempt = self._attempt()
        return bool(attempt and attempt.verdict and (self._store.ended or attempt.state == "ENDED"))

    def draw(self, width: int, height: int) -> list[Strip]:
        attempt, ink = self._attempt(), self.inks
        if attempt is None:
            return []
        style = verdict_style(attempt.verdict, ink)
        lines = [self._title(attempt, width - 2), *_rows(_results(attempt, self._store, ink), width - 2)]
        lines += _rows(_totals(attempt, ink), width - 2)
        lines += [[(text, ink.plain)] for text in self._reasons(attempt, width - 3)]
        lines += [[(text, ink.muted)] for text in self._before(attempt.number, width - 2)]
        if self._hint():
            lines.append([(self._hint(), ink.primary)])
        self.set_lines(len(lines))
        return [strip_of([("▌ ", style), *line], width) for line in lines]

    def _title(self, attempt: AttemptInfo, width: int) -> list[Run]:
        ink, store = self.inks, self._store
        runs: list[Run] = [
            (f"{GLYPH.get(attempt.verdict, '×')} {attempt.verdict}", verdict_style(attempt.verdict, ink) + ink.bold)
        ]
        if attempt.acts:
            runs.append((f"  ACTS {attempt.acts}", ink.warn))
        rates = rate_words(attempt, store.journal)
        runs.append((f"  attempt {attempt.number}, {attempt.kind} at {rates}", ink.muted))
        words = ("  synthetic: says nothing about hardware", "  synthetic") if store.synthetic else ()
        runs += [(word, ink.warn) for word in words if size_of(runs) + len(word) <= width][:1]
        record: list[Run] = [(f"{store.record} ", ink.faint)] if store.record else []
        return spread(runs, record, width) if size_of(runs) + size_of(record) + 2 <= width else runs

    def _reasons(self, attempt: AttemptInfo, width: int) -> list[str]:
        reasons = "; ".join(attempt.reasons) or ("all limits hold" if attempt.verdict == "VALID" else "no reason given")
        most = max(REASON_LINES, self.screen.size.height // 3) if self._whole else REASON_LINES
        said = [_note(note, attempt.acts) for note in attempt.notes]
        notes = f"   ({'; '.join(said)})" if said else ""
        return textwrap.wrap(reasons + notes, max(10, width), max_lines=most, placeholder=" …")

    def _before(self, number: int, width: int) -> list[str]:
        earlier = [
            f"attempt {attempt.number} {attempt.verdict or 'without a verdict'} at {rate_words(attempt, self._store.journal)}"
            + (f" (ACTS {attempt.acts})" if attempt.acts else "")
            for attempt in sorted(self._store.attempts.values(), key=lambda attempt: -attempt.number)
            if attempt.number < number
        ]
        return [fmt.clip("before it: " + " · ".join(earlier), width)] if earlier else []


def _note(note: str, acts: int) -> str:
    """`ACTS 2: replicas were drained` is about some of all acts: `2 of 11 acts: …`, so that the two counts do not compete."""
    found = _OF_ACTS.match(note)
    if found is None:
        return note
    count = int(found[1])
    which = f"{count} of {acts} acts" if acts > count else "this act" if count == 1 else "these acts"
    return f"{which}: {note[found.end() :]}"


def _rows(groups: list[list[Run]], width: int) -> list[list[Run]]:
    """Whole groups, on as many lines as they need."""
    lines: list[list[Run]] = []
    for group in groups:
        if lines and size_of(lines[-1]) + 3 + size_of(group) <= width:
            lines[-1] += [("   ", group[0][1]), *group]
        else:
            lines.append(list(group))
    return lines


def _results(attempt: AttemptInfo, store: FleetStore, ink: Paint) -> list[list[Run]]:
    def value(name: str) -> float:
        return float(attempt.results.get(name, math.nan))

    groups: list[list[Run]] = []
    if not math.isnan(value("completed_qps")):
        groups.append([("completed ", ink.muted), (fmt.rate(value("completed_qps")), ink.bold), (" qps", ink.muted)])
    if not math.isnan(value("tokens_per_s")):
        groups.append([(fmt.count(value("tokens_per_s")), ink.bold), (" tok/s", ink.muted)])
    limits = store.spec.limits if store.spec is not None else None
    for name, key, limit_ms in (
        ("TTFT", "ttft_p99_ms", limits.ttft_p99_ms if limits else None),
        ("TPOT", "tpot_p99_ms", limits.tpot_p99_ms if limits else None),
    ):
        if math.isnan(value(key)):
            continue
        word, style = judged(value(key), limit_ms, ink)
        group: list[Run] = [(f"{name} p99 ", ink.muted), (fmt.millis(value(key)), ink.bold)]
        if limit_ms is not None:
            group += [(f" of {fmt.millis(limit_ms)} ", ink.muted), (word, style)]
        groups.append(group)
    return groups


def _totals(attempt: AttemptInfo, ink: Paint) -> list[list[Run]]:
    shown = (("issued", ""), ("completed", ""), ("redispatched", "re-dispatched"), ("failed", ""), ("lost", ""))
    groups: list[list[Run]] = []
    for key, name in shown:
        number = attempt.totals.get(key)
        if number is None or (not number and key in ("failed", "lost")):
            continue
        bad = key in ("failed", "lost")
        groups.append([(f"{name or key} ", ink.muted), (fmt.count(number), ink.bad if bad else ink.plain)])
    return groups
