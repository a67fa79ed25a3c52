"""An attempt over time: rates and percentiles in equal stretches, and what was done and what happened, as marks.

Each figure goes by the time of its own event: samples scheduled, issued and completed in the stretch, TTFT by when first tokens
came, TPOT by completions. A sample that failed leaves at the last thing that is known of it. The p99 of fewer than 20 samples
is not told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from harness.analysis.fleet import grouped, known
from harness.analysis.table import AttemptTable, round_step
from harness.analysis.views import Mark, Tick, Timeline
from harness.wire.control import JournalEntry
from harness.wire.states import DRAINED, DRAINING, EVICTED, LOST, READY, REJECTED, SUSPECT

if TYPE_CHECKING:
    from harness.analysis.moment import Story

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]

MOST_MARKS: Final = 400
MOST_TICKS: Final = 5_000
_FEW: Final = 20
_SHOWN_STATES: Final = frozenset({LOST, EVICTED, REJECTED, SUSPECT, DRAINING, DRAINED})
#: The grades by which marks are cut; acts and the run's own turns always stay longest.
_WEIGHT: Final = {"act": 5, "attempt": 5, "phase": 4, "alert": 3, "straggler": 2, "replica": 1}
_LEVEL: Final = {"error": 3, "warn": 1}
#: Alerts have grades of their own; marks have the journal's levels.
_OF_ALERT: Final = {"crit": "error"}


def timeline(table: AttemptTable, story: Story, ticks: int) -> Timeline:
    marks, cut = marks_of(story)
    if not table.n:
        return Timeline(0.0, [], marks, cut)
    step_s = round_step(max(table.end_s(), 1e-3) / min(max(ticks, 1), MOST_TICKS))
    return Timeline(step_s, _ticks(table, story, step_s), marks, cut)


def _ticks(table: AttemptTable, story: Story, step_s: float) -> list[Tick]:
    n = int(table.end_s() / step_s) + 1
    done = table.done
    done_at, issued_at = stretch(table.done_s(), step_s, n), stretch(table.issued_s(), step_s, n)
    scheduled = counted(stretch(table.scheduled_s, step_s, n), n)
    issued, completed = counted(issued_at, n), counted(done_at, n)
    tokens = np.bincount(done_at[done], weights=table.tokens()[done], minlength=n)
    left = completed if table.completed == table.n else counted(stretch(left_s(table), step_s, n), n)
    in_flight = np.maximum(np.cumsum(issued) - np.cumsum(left), 0)
    first_at = stretch(table.first_s(), step_s, n)
    ttft, tpot = grouped(table.metric("ttft"), first_at, n), grouped(table.metric("tpot"), done_at, n)
    enough = [counted(first_at, n) >= _FEW, completed >= _FEW]
    ready = _ready(story, step_s, n)
    return [
        Tick(
            from_s=round(i * step_s, 6),
            to_s=round((i + 1) * step_s, 6),
            scheduled_qps=float(scheduled[i] / step_s),
            issued_qps=float(issued[i] / step_s),
            completed_qps=float(completed[i] / step_s),
            tokens_per_s=float(tokens[i] / step_s),
            in_flight=int(in_flight[i]),
            ttft_p50_ms=known(ttft[0, i]),
            ttft_p99_ms=known(ttft[1, i]) if enough[0][i] else None,
            tpot_p50_ms=known(tpot[0, i]),
            tpot_p99_ms=known(tpot[1, i]) if enough[1][i] else None,
            ready=ready.get(i),
        )
        for i in range(n)
    ]


def stretch(at_s: Floats, step_s: float, n: int) -> Ints:
    """In which stretch each time lies; -1: it is no time. What is before the first or after the last counts there."""
    with np.errstate(invalid="ignore"):
        places = np.clip(np.floor(at_s / step_s), 0, n - 1)
    return np.where(np.isnan(places), -1, places).astype(np.int16 if n < 32768 else np.int32)


def counted(places: Ints, n: int) -> npt.NDArray[np.intp]:
    return np.bincount(places[places >= 0], minlength=n)


def left_s(table: AttemptTable) -> Floats:
    """When samples completed; those that failed, when they were last heard of."""
    if table.completed == table.n:
        return table.done_s()
    last_ms = np.fmax(np.fmax(table.first_ms, (table.lag_ms + table.head_ms).astype(np.float64)), 0.0)
    return np.where(table.done, table.done_s(), table.scheduled_s + last_ms / 1e3)


def _ready(story: Story, step_s: float, n: int) -> dict[int, int]:
    """As it was told last by the end of each stretch."""
    import polars as pl

    frame = story.timeline.filter(pl.col("unix") >= story.zero_unix)
    by_second = frame.group_by("unix", maintain_order=True).agg((pl.col("state") == READY).sum().alias("ready"))
    found: dict[int, int] = {}
    for unix, ready in by_second.sort("unix").iter_rows():
        place = int(story.at_s(unix) / step_s)
        if place < n:
            found[place] = int(ready)
    last = None
    for place in range(max(found, default=-1) + 1):
        last = found.setdefault(place, last) if last is not None else found.get(place)
    return found


# --- marks ------------------------------------------------------------------------------------------------------------


def marks_of(story: Story) -> tuple[list[Mark], int]:
    """By time, and how many were left out: the least important, and of those the later ones."""
    if story.attempt is None:
        return [], 0
    marks = [mark for mark in _marks(story) if mark is not None]
    kept = sorted(enumerate(marks), key=lambda each: (-_weight(each[1]), each[0]))[:MOST_MARKS]
    return [mark for _, mark in sorted(kept, key=lambda each: (each[1].at_s, each[0]))], len(marks) - len(kept)


def _weight(mark: Mark) -> int:
    return _WEIGHT[mark.kind] + _LEVEL.get(mark.level, 0)


def _marks(story: Story) -> Iterator[Mark | None]:
    firing: dict[tuple[str, str], Mark] = {}
    for entry in story.journal:
        what = entry.what
        if what.startswith("act."):
            yield _mark(story, entry, "act", act_words(entry))
        elif what == "alert.start":
            rule = str(entry.data.get("rule", ""))
            mark = _mark(story, entry, "alert", f"{rule}: {entry.why}" if entry.why else rule)
            severity = str(entry.data.get("severity", "") or mark.level)
            mark.level = _OF_ALERT.get(severity, severity)
            firing[rule, entry.subject] = mark
            yield mark
        elif what == "alert.end":
            if (mark_of := firing.pop((str(entry.data.get("rule", "")), entry.subject), None)) is not None:
                mark_of.until_s = story.at_s(entry.unix)
        elif what in ("run.phase", "attempt.phase"):
            yield _mark(story, entry, "phase", entry.after)
        elif what in ("attempt.start", "attempt.end"):
            yield _mark(story, entry, "attempt", f"attempt {entry.subject} {'begins' if what.endswith('start') else entry.after}")
        elif what.startswith("straggler."):
            flag = what.removeprefix("straggler.")
            yield _mark(story, entry, "straggler", f"{entry.subject or 'fleet'} {flag}" + (f": {entry.why}" if entry.why else ""))
        elif what == "replica.state" and (entry.after in _SHOWN_STATES or entry.before in _SHOWN_STATES):
            why = f": {entry.why}" if entry.why else ""
            yield _mark(story, entry, "replica", f"{entry.subject} {entry.before} → {entry.after}{why}")
        elif what == "samples.redispatched":
            yield _mark(story, entry, "replica", f"{entry.data.get('samples', 'some')} samples dispatched again: {entry.why}")


def act_words(entry: JournalEntry) -> str:
    """`evict node001/gpu0 by operator:kim: slow`."""
    turn = f" {entry.before} → {entry.after}" if entry.before and entry.after else ""
    words = [entry.what.removeprefix("act.").replace("_", " "), entry.subject]
    return " ".join(word for word in words if word) + turn + f" by {entry.who}" + (f": {entry.why}" if entry.why else "")


def _mark(story: Story, entry: JournalEntry, kind: Any, text: str) -> Mark:
    return Mark(story.at_s(entry.unix), entry.unix, kind, entry.level, text, subject=entry.subject)
