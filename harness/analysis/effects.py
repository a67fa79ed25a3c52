"""Acts and what was measured before and after them: equal windows, each figure with its interval, and what that tells.

The window before ends with the act. The window after begins when the samples that were under way have settled: two median
latencies later. Both are as long as there is room between the neighbouring acts, up to a minute; acts that follow one another
within the settling time (the replicas of a node, one by one) are taken as one. Everything goes by the time of its own event:
completions, first tokens. Rates have batch-means intervals over blocks of a second or more, twenty at the most; percentiles
order statistics; differences MOVER (`harness.analysis.intervals`): an interval of the difference that does not hold zero is
called a change. Of six figures an act, one in twenty "changes" is chance; and blocks shorter than a sample takes are not quite
independent, so that rates near saturation vary more than their intervals say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from harness.analysis.distributions import at, interval_of
from harness.analysis.fleet import duration_of
from harness.analysis.intervals import difference_interval, rate_interval
from harness.analysis.table import AttemptTable
from harness.analysis.views import Change, Effect, Interval, Metric
from harness.wire.control import JournalEntry

if TYPE_CHECKING:
    from harness.analysis.moment import Story

Floats = npt.NDArray[np.floating[Any]]
Span = tuple[float, float]
Measured = tuple[int, int, list[Change]]  # samples before and after, and what changed

LONGEST_S: Final = 60.0
SHORTEST_S: Final = 2.0
BLOCKS: Final = 20
#: Of the console's lease, and of the record: they touch no load.
_NO_LOAD: Final = frozenset({"act.take_control", "act.release_control", "act.waive"})


def effects(table: AttemptTable, story: Story, window_s: float | None) -> list[Effect]:
    acts = [entry for entry in story.journal if entry.what.startswith("act.") and entry.what not in _NO_LOAD]
    if story.attempt is None or not acts:
        return []
    acts = [entry for entry in acts if entry.attempt in (0, story.number)]
    settle_s = 2 * (at(table.placed("latency"), 0.5) or 0.0) / 1e3
    end_s = duration_of(table) or 0.0
    last_s = min(end_s, float(table.scheduled_s.max())) if table.n else 0.0
    groups = _together(acts, settle_s)
    found: list[Effect] = []
    for number, group in enumerate(groups):
        first_s, after_s = story.at_s(group[0].unix), story.at_s(group[-1].unix) + settle_s
        begin_s = story.at_s(groups[number - 1][-1].unix) + settle_s if number else min(settle_s, max(first_s, 0.0))
        until_s = story.at_s(groups[number + 1][0].unix) if number + 1 < len(groups) else last_s
        room_s = min(first_s - max(begin_s, 0.0), until_s - after_s)
        length_s = min(room_s, LONGEST_S if window_s is None else max(window_s, 0.0))
        measured = _measured(table, first_s, after_s, length_s)
        found += [_effect(table, story, entry, len(group) - 1, length_s, settle_s, measured) for entry in group]
    return found


def _together(acts: list[JournalEntry], settle_s: float) -> list[list[JournalEntry]]:
    groups: list[list[JournalEntry]] = []
    for entry in acts:
        if groups and entry.unix - groups[-1][-1].unix <= settle_s:
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


def _measured(table: AttemptTable, first_s: float, after_s: float, length_s: float) -> Measured | None:
    """None: too little time, or nothing completed."""
    if not table.completed or length_s < SHORTEST_S:
        return None
    before, after = (first_s - length_s, first_s), (after_s, after_s + length_s)
    return _count(table, before), _count(table, after), _changes(table, before, after, length_s)


def _effect(
    table: AttemptTable,
    story: Story,
    entry: JournalEntry,
    others: int,
    length_s: float,
    settle_s: float,
    measured: Measured | None,
) -> Effect:
    at_s = story.at_s(entry.unix)
    before_n, after_n, changes = measured or (0, 0, [])
    if measured is None:
        remark = _why_none(table, at_s, length_s, settle_s)
    else:
        remark = f"measured together with {others} other act{'s' * (others > 1)} at that time" if others else ""
    return Effect(
        at_s=at_s,
        unix=entry.unix,
        who=entry.who,
        act=entry.what.removeprefix("act."),
        subject=entry.subject,
        why=entry.why,
        window_s=length_s if measured is not None else 0.0,
        settle_s=settle_s,
        before_n=before_n,
        after_n=after_n,
        changes=changes,
        remark=remark,
    )


def _why_none(table: AttemptTable, at_s: float, length_s: float, settle_s: float) -> str:
    if not table.completed:
        return "no sample completed"
    if at_s <= 0:
        return "it came before the load began"
    room = f"{max(length_s, 0.0):.1f} s"
    return (
        f"too little time for windows: {room} between the start, the neighbouring acts and the end of the load, less "
        f"{settle_s:.1f} s to settle; at least {SHORTEST_S:g} s are needed"
    )


def _count(table: AttemptTable, span: Span) -> int:
    done_s = table.done_s()
    return int(np.count_nonzero((done_s >= span[0]) & (done_s < span[1])))


def _changes(table: AttemptTable, before: Span, after: Span, length_s: float) -> list[Change]:
    done_s, first_s = table.done_s(), table.first_s()
    weights = table.tokens().astype(np.float64)
    found = [
        _change("completed_qps", "1/s", True, *(_rate(done_s, None, span, length_s) for span in (before, after))),
        _change("tokens_per_s", "tokens/s", True, *(_rate(done_s, weights, span, length_s) for span in (before, after))),
    ]
    metrics: tuple[tuple[Metric, Floats], ...] = (("ttft", first_s), ("tpot", done_s))
    for metric, when_s in metrics:
        values = table.metric(metric)
        sides = [np.sort(_within(values, when_s, span)) for span in (before, after)]
        for name, q in (("p50", 0.5), ("p99", 0.99)):
            told = [(at(side, q), interval_of(side, q)) for side in sides]
            found.append(_change(f"{metric}_{name}_ms", "ms", False, *told))
    return found


def _within(values: Floats, when_s: Floats, span: Span) -> Floats:
    theirs = values[(when_s >= span[0]) & (when_s < span[1])]
    return theirs[~np.isnan(theirs)]


def _rate(when_s: Floats, weights: Floats | None, span: Span, length_s: float) -> tuple[float | None, Interval]:
    mine = (when_s >= span[0]) & (when_s < span[1])
    blocks = min(BLOCKS, max(1, int(length_s)))
    block_s = length_s / blocks
    places = np.minimum(((when_s[mine] - span[0]) / block_s).astype(np.intp), blocks - 1)
    per_block = np.bincount(places, weights=None if weights is None else weights[mine], minlength=blocks) / block_s
    return float(per_block.mean()), rate_interval(per_block)


def _change(
    figure: str, unit: str, more_is_better: bool, before: tuple[float | None, Interval], after: tuple[float | None, Interval]
) -> Change:
    between = difference_interval(*before, *after)
    if between is None:
        told = "too few samples"
    elif between[0] <= 0 <= between[1]:
        told = "no clear change"
    else:
        told = "better" if (between[0] > 0) == more_is_better else "worse"
    return Change(figure, unit, *before, *after, between, told)
