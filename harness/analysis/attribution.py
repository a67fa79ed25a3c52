"""Where a tail comes from: the samples over a threshold put together by replica, node, time, lengths and tries, and what their
time is made of.

The tail of a metric is its slowest 1 %, or what is over the limit. A group matters when its share of the tail is more than
chance gives it (three standard deviations of a Poisson count). An *origin* is a set of such groups of one kind that holds much
of the tail in little of the load; kinds are compared by the difference of the two shares, so that of a slow node and its eight
slow replicas the one is named that says more with fewer words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from harness.analysis.distributions import short
from harness.analysis.table import OTHER, AttemptTable, round_step
from harness.analysis.views import BYS, CALLED, By, Finding, Metric, PartShare, Tail, TailGroup, Where

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]
Flags = npt.NDArray[np.bool_]

TAIL: Final = 0.01
IN_OWN_ORDER: Final = frozenset({"time", "prompt length", "output length", "tries"})
#: An origin holds this much more of the tail than of all samples, in at most so much of the load.
_SAYS_ENOUGH: Final = 0.3
_MOST_OF_LOAD: Final = 0.5
_LIFT: Final = 1.5
_AS_GOOD: Final = 0.03
#: From this share of the tail's excess on a part is named.
_MUCH: Final = 0.5


@dataclass(frozen=True)
class TailOf:
    """The rows looked at (with that metric, in no order), and those of them that are the tail."""

    metric: Metric
    rule: str
    threshold_ms: float | None
    rows: Ints
    tail: Ints

    @property
    def tail_n(self) -> int:
        return len(self.tail)


@dataclass(frozen=True)
class Origin:
    by: By
    groups: list[int]
    names: list[str]
    wheres: list[Where]
    of_tail: float
    of_all: float

    @property
    def says(self) -> float:
        return self.of_tail - self.of_all


def tail_of(table: AttemptTable, metric: Metric, limit_ms: float | None, *, over_limit: bool, where: Where) -> TailOf:
    """Samples that tie with the threshold are of the tail."""
    values, chosen = table.metric(metric), table.chosen(where)
    rows = table.keep("rows", metric, lambda: np.flatnonzero(~np.isnan(values)))
    theirs = values
    if chosen is not None:
        rows = rows[chosen[rows]]
    if len(rows) < table.n:
        theirs = values[rows]
    if over_limit:
        if limit_ms is None:
            return TailOf(metric, f"over the limit: this attempt has no limit of {CALLED[metric]}", None, rows, rows[:0])
        return TailOf(metric, f"over the limit of {limit_ms:,g} ms", limit_ms, rows, rows[theirs > limit_ms])
    if not len(rows):
        return TailOf(metric, "slowest 1 %", None, rows, rows)
    place = int(len(rows) * (1 - TAIL))
    threshold = float(table.placed(metric)[place] if chosen is None else np.partition(theirs, place)[place])
    return TailOf(metric, "slowest 1 %", threshold, rows, rows[theirs >= threshold])


def tail_view(table: AttemptTable, tail: TailOf, where: Where) -> Tail:
    parts, without = parts_of(table, tail)
    return Tail(
        metric=tail.metric,
        rule=tail.rule,
        threshold_ms=tail.threshold_ms,
        n=len(tail.rows),
        tail_n=tail.tail_n,
        groups={by: groups_of(table, tail, by, where) for by in BYS},
        parts=parts,
        without_parts=without,
        findings=findings_of(table, tail, parts),
    )


# --- groups -----------------------------------------------------------------------------------------------------------


def groups_of(table: AttemptTable, tail: TailOf, by: By, within: Where) -> list[TailGroup]:
    """A stable sort of the groups of rows in the metric's order leaves each group's values ascending."""
    codes, groups = table.codes(by, tail.metric)
    order, chosen = table.order(tail.metric), table.chosen(within)
    rows = order if chosen is None else order[chosen[order]]
    mine = codes[rows]
    every, of_tail = _counts(codes, tail, len(groups))
    together = np.argsort(mine, kind="stable")
    ends = np.searchsorted(mine[together], np.arange(len(groups)), side="right")
    values = table.metric(tail.metric)
    found: list[tuple[bool, TailGroup]] = []
    for number, (key, where) in enumerate(groups):
        n = int(every[number])
        if not n:
            continue
        first = int(ends[number]) - n
        p50, p99 = (float(values[rows[together[first + int(n * q)]]]) for q in (0.5, 0.99))
        share = _share(of_tail[number], tail.tail_n)
        lift = share / (n / len(tail.rows))
        found.append((_matters(n, of_tail[number], tail), TailGroup(
            by, key, n, int(of_tail[number]), share, lift, p50, p99, where.within(within)
        )))  # fmt: skip
    if by not in IN_OWN_ORDER:
        found.sort(key=lambda each: (not each[0], -each[1].lift, -each[1].tail))
    return [group for _, group in found]


def _counts(codes: Ints, tail: TailOf, groups: int) -> tuple[Ints, Ints]:
    """Of all rows and of the tail, by group; who is of no group does not count."""
    mine, last = codes if len(tail.rows) == len(codes) else codes[tail.rows], codes[tail.tail]
    return np.bincount(mine[mine >= 0], minlength=groups), np.bincount(last[last >= 0], minlength=groups)


def _matters(n: int, in_tail: int, tail: TailOf) -> bool:
    expected = tail.tail_n * n / max(len(tail.rows), 1)
    return bool(in_tail >= 3 and in_tail > expected + 3 * np.sqrt(expected + 1))


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


def origins(table: AttemptTable, tail: TailOf, bys: Sequence[By] = BYS) -> list[Origin]:
    """What says most first. None where the tail is spread as the load is."""
    if tail.tail_n < 5:
        return []
    found = [origin for by in bys if (origin := _origin(table, tail, by)) is not None]
    found.sort(key=lambda origin: -origin.says)
    places = [origin for origin in found if origin.by in ("node", "replica")]
    if len(places) == 2:  # the same fault twice: of a node, and of its replicas
        first, second = places
        fewer = min(places, key=lambda origin: len(origin.groups))
        found.remove(second if first.says - second.says > _AS_GOOD or fewer is first else first)
    return found


def _origin(table: AttemptTable, tail: TailOf, by: By) -> Origin | None:
    codes, groups = table.codes(by, tail.metric)
    every, of_tail = _counts(codes, tail, len(groups))
    if np.count_nonzero(every) < 2:
        return None
    n, tail_n = len(tail.rows), tail.tail_n
    lift = (of_tail / tail_n) / np.maximum(every / n, 1e-12)
    picked = [
        int(group)
        for group in np.argsort(-lift, kind="stable")
        if lift[group] >= _LIFT and _matters(int(every[group]), int(of_tail[group]), tail)
    ]
    while picked and (every[picked].sum() / n > _MOST_OF_LOAD):
        picked.pop()
    if not picked:
        return None
    of_tail_share, of_all = float(of_tail[picked].sum() / tail_n), float(every[picked].sum() / n)
    if of_tail_share - of_all < _SAYS_ENOUGH:
        return None
    picked.sort(key=(lambda group: group) if by in IN_OWN_ORDER else (lambda group: -of_tail[group]))
    origin = Origin(by, picked, [groups[i][0] for i in picked], [groups[i][1] for i in picked], of_tail_share, of_all)
    return _closer(table, tail, origin) if by == "time" and picked[-1] - picked[0] + 1 == len(picked) else origin


def _closer(table: AttemptTable, tail: TailOf, origin: Origin) -> Origin:
    """A stretch of time within coarse ones, from where the tail is dense: `299.5–304 s` rather than `280–320 s`."""
    begin, end = origin.wheres[0].from_s or 0.0, origin.wheres[-1].to_s or 0.0
    step_s = round_step((end - begin) / 80)
    n = round((end - begin) / step_s) + 1
    at_s = table.scheduled_s[tail.tail]
    counts = np.bincount(((at_s[(at_s >= begin) & (at_s < end)] - begin) / step_s).astype(np.intp), minlength=n)
    dense = np.flatnonzero(counts > max(2.0, 0.1 * counts.max(initial=0)))
    if not len(dense):
        return origin
    low, high = round(begin + float(dense[0]) * step_s, 6), round(begin + float(dense[-1] + 1) * step_s, 6)
    all_s = table.scheduled_s[tail.rows]
    of_tail = float(np.count_nonzero((at_s >= low) & (at_s < high)) / tail.tail_n)
    of_all = float(np.count_nonzero((all_s >= low) & (all_s < high)) / len(tail.rows))
    closer = Origin("time", [0], [f"{low:,g}–{high:,g} s"], [Where(from_s=low, to_s=high)], of_tail, of_all)
    return closer if closer.says >= origin.says - _AS_GOOD else origin


# --- parts ------------------------------------------------------------------------------------------------------------


def parts_of(table: AttemptTable, tail: TailOf) -> tuple[list[PartShare], int]:
    """Of samples that can be taken apart; and how many cannot."""
    parted = table.parted(tail.metric)
    rows, last = tail.rows, tail.tail
    whole = len(rows) == table.n and bool(parted.all())
    rows, last = (rows if whole else rows[parted[rows]]), last[parted[last]]
    without = len(tail.rows) - len(rows)
    if not len(rows):
        return [], without
    found = []
    for name in table.part_names(tail.metric):
        part = table.part(tail.metric, name)
        values, of_tail = part if whole else part[rows], part[last]
        n = len(values)
        p50, p99 = int(n * 0.5), int(n * 0.99)
        placed = np.partition(values, (p50, p99))
        mean = float(values.mean(dtype=np.float64))
        tail_mean = float(of_tail.mean(dtype=np.float64)) if len(of_tail) else None
        found.append(PartShare(name, mean, float(placed[p50]), float(placed[p99]), tail_mean, None))
    excess = sum(part.tail_mean_ms - part.mean_ms for part in found if part.tail_mean_ms is not None)
    for each in found:
        if each.tail_mean_ms is not None and excess > 0:
            each.share_of_excess = (each.tail_mean_ms - each.mean_ms) / excess
    return found, without


def main_part(parts: list[PartShare]) -> PartShare | None:
    """Which makes the tail slow, if one does."""
    told = [part for part in parts if part.share_of_excess is not None and part.share_of_excess >= _MUCH]
    return max(told, key=lambda part: part.share_of_excess or 0.0, default=None)


# --- in words ---------------------------------------------------------------------------------------------------------


def findings_of(table: AttemptTable, tail: TailOf, parts: list[PartShare]) -> list[Finding]:
    if not tail.tail_n:
        return []
    from_where = origins(table, tail)[:3]
    found = [_of_origin(tail, origin) for origin in from_where]
    if (part := main_part(parts)) is not None and tail.metric != "tpot":  # which is decode, or nothing of a replica
        of_everywhere = not any(origin.by in _OF_A_FAULT and origin.of_tail >= 0.5 for origin in from_where)
        found.append(_of_part(tail, part, of_everywhere=of_everywhere))
    if not found and tail.tail_n >= 5:
        text = f"Nothing sticks out: the {_tail_words(tail)} spread over replicas, nodes, time and lengths as all samples do."
        found.append(Finding("info", text, "tail", tail.metric))
    return found


def _of_origin(tail: TailOf, origin: Origin) -> Finding:
    level, do = _ADVICE[origin.by]
    if origin.by == "output length" and tail.metric != "latency":
        do = "See which replicas ran them."
    where = origin.wheres[0] if len(origin.wheres) == 1 or origin.by in ("node", "replica") else _spanning(origin)
    share = f"{origin.of_tail:.0%} of the {_tail_words(tail)} {_named(origin)}"
    text = f"{share} ({_percent(origin.of_all)} of all samples). {do}"
    return Finding(level, text, "tail", tail.metric, origin.by, where)  # type: ignore[arg-type]


#: What an origin calls for. Long prompts and outputs are the load's nature, not a fault.
_ADVICE: Final[dict[By, tuple[str, str]]] = {
    "replica": ("warn", "Look at the GPU and log there."),
    "node": ("warn", "Look at the GPUs, host and network there."),
    "time": ("warn", "See what the timeline, acts, alerts and logs say of that time."),
    "prompt length": (
        "info",
        "Long prefills are the load's own: more prefill capacity shortens them, a lower target QPS only their queue.",
    ),
    "output length": ("info", "Long outputs take long: that is the load's own, not a fault."),
    "tries": ("warn", "They had to be dispatched again: see which replicas were lost, and why."),
}


def _named(origin: Origin) -> str:
    """`come from node001`; `were scheduled at 28–34 s`; `have prompts of 4,096–8,191 tokens`."""
    if origin.by in ("replica", "node"):
        more = len(origin.names) - 1
        return f"come from {origin.names[0]}" + (f" and {more} more {origin.by}{'s' * (more > 1)}" if more else "")
    if origin.by == "tries":
        return "were dispatched more than once" if origin.wheres[0].tries_from != 1 else "were dispatched once"
    if origin.by == "time":
        return f"were scheduled at {_runs(origin)}"
    return f"have {origin.by.partition(' ')[0]}s of {_runs(origin)} tokens"


def _runs(origin: Origin) -> str:
    """Neighbouring groups as one: `28–34 s and 40–42 s`."""
    runs: list[list[int]] = []
    for place, group in enumerate(origin.groups):
        if runs and origin.groups[runs[-1][-1]] == group - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    words = []
    for run in runs:
        first, last = origin.names[run[0]], origin.names[run[-1]]
        words.append(first if len(run) == 1 else f"{first.partition('–')[0]}–{last.partition('–')[2] or last}")
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _spanning(origin: Origin) -> Where:
    first, last = origin.wheres[0], origin.wheres[-1]
    return Where(
        from_s=first.from_s, to_s=last.to_s, prompt_from=first.prompt_from, prompt_to=last.prompt_to,
        output_from=first.output_from, output_to=last.output_to, tries_from=first.tries_from, tries_to=last.tries_to,
    )  # fmt: skip


def _of_part(tail: TailOf, part: PartShare, *, of_everywhere: bool) -> Finding:
    level, what, do = _OF_PART.get(part.name, ("info", "", ""))
    do = f"{what}: {do}." if do and of_everywhere else f"{what}." if what else ""
    text = (
        f"{min(part.share_of_excess or 0.0, 1.0):.0%} of what the {_tail_words(tail)} take longer is {part.name}: "
        f"{short(part.tail_mean_ms)} ms on average against {short(part.mean_ms)} ms of all samples."
    )
    return Finding(level, f"{text} {do}".rstrip(), "tail", tail.metric)  # type: ignore[arg-type]


#: What a long part means, and what would shorten it: more of the fleet helps only where no one place or moment is to blame.
_OF_PART: Final[dict[str, tuple[str, str, str]]] = {
    "schedule lag": ("warn", "The head issued late, the replicas have no part in it", ""),
    "head queue": (
        "warn",
        "Samples waited in the head for a replica",
        "more replicas, a higher cap of each, or a lower target QPS",
    ),
    "re-dispatch": ("warn", "Earlier tries were lost: see which replicas went, and why", ""),
    "replica queue": ("warn", "Prompts waited at their replica", "more replicas, or a lower target QPS"),
    "prefill queue": ("warn", "Prompts waited at their prefill replica", "more prefill replicas, or a lower target QPS"),
    "decode wait": ("warn", "Prefilled samples waited for decode", "more decode replicas, or a lower target QPS"),
    "KV transfer": ("warn", "Look at the network between prefill and decode replicas", ""),
    OTHER: ("warn", "It is in no replica: look at the network, and at the CPU of the head", ""),
}
_OF_A_FAULT: Final[tuple[By, ...]] = ("replica", "node", "time", "tries")


def _tail_words(tail: TailOf) -> str:
    if tail.rule.startswith("slowest"):
        return f"slowest 1 % by {CALLED[tail.metric]} ({tail.tail_n:,} from {short(tail.threshold_ms)} ms)"
    return f"{tail.tail_n:,} samples over the {CALLED[tail.metric]} limit"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
