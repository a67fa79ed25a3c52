"""One sample from its scheduled time to its last token: parts in the order in which it met them, each beside what is usual."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from harness.analysis.distributions import at, short
from harness.analysis.errors import NoSuchSample
from harness.analysis.slowest import row_of
from harness.analysis.table import DECODE, OTHER, RE_DISPATCH, AttemptTable, node_of
from harness.analysis.views import Life, Metric, SampleRow, Segment
from harness.metrics.gpu.roles import ROLES
from harness.wire.states import READY

if TYPE_CHECKING:
    from harness.analysis.moment import Story

At = Literal["head", "replica", "network"]

AROUND_S: Final = 3.0
GPUS_AROUND_S: Final = 15.0  # an exporter is asked every few seconds only
MOST_ROWS: Final = 240
MOST_ENTRIES: Final = 200
#: A part this much longer than usual, and so rare, is worth a remark.
_MUCH_LONGER: Final = 3.0
_RARE: Final = 0.99
_UNCOMMON: Final = 0.9
_SLOWER: Final = 1.25

_AT: Final[dict[str, At]] = {
    "schedule lag": "head", "head queue": "head", RE_DISPATCH: "head", OTHER: "network", "KV transfer": "network",
}  # fmt: skip
#: With roles split, what is not told otherwise lies between the prefill replica and the head.
_SPLIT_ORDER: Final = ("schedule lag", "head queue", RE_DISPATCH, "prefill queue", "prefill", OTHER, "KV transfer", "decode wait")


def life(table: AttemptTable, story: Story, seq: int) -> Life:
    """Raises NoSuchSample."""
    row = _row(table, seq, story.number)
    sample = row_of(table, row)
    segments = _segments(table, row)
    begin_unix = story.zero_unix + sample.scheduled_s if story.zero_unix else None
    if begin_unix is None:
        return Life(sample, None, segments, _remarks(table, row, sample, segments), [], [], {})
    end_unix = begin_unix + max([0.0, *(segment.end_ms for segment in segments)]) / 1e3
    slots = [slot for slot in dict.fromkeys((sample.slot, sample.prefill_slot)) if slot]
    replica = _replica(story, slots, begin_unix - AROUND_S, end_unix + AROUND_S)
    return Life(
        sample=sample,
        scheduled_unix=begin_unix,
        segments=segments,
        remarks=[*_remarks(table, row, sample, segments), *_states(replica, begin_unix, end_unix)],
        replica=replica,
        journal=_journal(story, slots, begin_unix - AROUND_S, end_unix + AROUND_S),
        gpus=_gpus(story, slots, begin_unix - GPUS_AROUND_S, end_unix + GPUS_AROUND_S),
    )


def _row(table: AttemptTable, seq: int, number: int) -> int:
    found = np.flatnonzero(table.seq == seq) if 0 <= seq <= 0xFFFFFFFF else np.zeros(0, np.intp)
    if not len(found):
        there = f"its samples are {int(table.seq.min()):,} to {int(table.seq.max()):,}" if table.n else "it has none"
        raise NoSuchSample(f"attempt {number} has no row of a sample {seq}: {there}, and those that never ended have no row")
    return int(found[0])


def _segments(table: AttemptTable, row: int) -> list[Segment]:
    if not table.parted("ttft")[row]:
        return _undivided(table, row)
    names: tuple[str, ...] = table.part_names("ttft")
    if table.split:
        names = tuple(name for name in _SPLIT_ORDER if name in names)
    found: list[Segment] = []
    first_ms, at_ms = max(float(table.first_ms[row]), 0.0), 0.0
    for name in names:
        took_ms = float(table.part("ttft", name)[row])
        if name in (RE_DISPATCH, "head queue") and (name == RE_DISPATCH) != (int(table.tries[row]) > 1):
            continue
        end_ms = min(at_ms + took_ms, first_ms)
        usual, rank = _usual(table, "ttft", name, took_ms)
        found.append(Segment(name, at_ms, end_ms, _AT.get(name, "replica"), usual, rank))
        at_ms = end_ms
    decode_ms = float(table.latency_ms[row]) - first_ms
    usual, rank = _usual(table, "latency", DECODE, decode_ms)
    return [*found, Segment(DECODE, first_ms, max(first_ms, float(table.latency_ms[row])), "replica", usual, rank)]


def _undivided(table: AttemptTable, row: int) -> list[Segment]:
    """What is known of a sample that failed, or whose replica told no durations, or whose first token came from a lost try."""
    lag_ms, first_ms, latency_ms = (float(values[row]) for values in (table.lag_ms, table.first_ms, table.latency_ms))
    at_ms = max(lag_ms, 0.0) if not math.isnan(lag_ms) else 0.0
    found = [Segment("schedule lag", 0.0, at_ms, "head", *_usual(table, "ttft", "schedule lag", at_ms))]
    dispatched_ms = at_ms + float(table.head_ms[row])
    early = dispatched_ms > first_ms  # False where either is not known
    if not math.isnan(dispatched_ms) and dispatched_ms > at_ms and not early:
        name = RE_DISPATCH if int(table.tries[row]) > 1 else "head queue"
        found.append(Segment(name, at_ms, dispatched_ms, "head", *_usual(table, "ttft", name, dispatched_ms - at_ms)))
        at_ms = dispatched_ms
    if first_ms > at_ms:
        found.append(Segment("an earlier try" if early else "until the first token", at_ms, first_ms, "replica", None, None))
        at_ms = first_ms
    if latency_ms > at_ms:
        found.append(
            Segment(f"{DECODE}, and tries that were lost" if early else DECODE, at_ms, latency_ms, "replica", None, None)
        )
    return found


def _usual(table: AttemptTable, metric: Metric, name: str, took_ms: float) -> tuple[float | None, float | None]:
    """The median of that part over the attempt, and the share of samples of which it was shorter."""
    values, median = table.keep("usual", (metric, name), lambda: _known(table, metric, name))
    if not len(values):
        return None, None
    return median, float(np.count_nonzero(values < np.float32(took_ms)) / len(values))


def _known(table: AttemptTable, metric: Metric, name: str) -> tuple[npt.NDArray[np.floating[Any]], float]:
    parted = table.parted(metric)
    if name not in table.part_names(metric):
        return np.zeros(0, np.float32), 0.0
    values = table.part(metric, name)
    if name in (RE_DISPATCH, "head queue"):
        parted = parted & ((table.tries > 1) == (name == RE_DISPATCH))
    values = values if parted.all() else values[parted]
    return values, float(np.partition(values, len(values) // 2)[len(values) // 2]) if len(values) else 0.0


def _remarks(table: AttemptTable, row: int, sample: SampleRow, segments: list[Segment]) -> list[str]:
    found = []
    if sample.failed:
        found.append("it failed")
    if sample.tries > 1:
        found.append(f"dispatched {sample.tries} times: earlier tries were lost")
    elif not sample.tries or sample.slot is None:
        found.append("never dispatched to a replica")
    if float(table.lag_ms[row]) + float(table.head_ms[row]) > float(table.first_ms[row]):
        found.append("its first token came from an earlier try than the one that completed it")
    if any(value < 0 for value in (sample.ttft_ms, sample.tpot_ms, sample.latency_ms) if value is not None):
        found.append("a time of it is negative: clocks or the record are wrong")
    if not sample.failed and sample.n_tokens < 2:
        found.append(f"{sample.n_tokens} output tokens: it has no TPOT")
    if sample.incarnation > 1 and sample.slot:
        found.append(f"{sample.slot} was in its incarnation {sample.incarnation}")
    for segment in _much_longer(segments):
        took_ms, usual = segment.end_ms - segment.start_ms, segment.usual_ms or 0.0
        found.append(
            f"{segment.name} took {short(took_ms)} ms, usually {short(usual)} ms: longer than {_share(segment.rank or 0.0)}"
        )
    usual_ms = at(table.placed("tpot"), 0.5)
    if sample.tpot_ms is not None and usual_ms is not None and sample.tpot_ms > _SLOWER * usual_ms > 0:
        found.append(f"it decoded at {short(sample.tpot_ms)} ms a token, usually {short(usual_ms)} ms")
    if sample.n_tokens > 1 and not sample.failed:
        longer = float(np.count_nonzero(table.n_tokens < sample.n_tokens) / table.n)
        if longer >= _RARE:
            found.append(f"its output of {sample.n_tokens:,} tokens is longer than {_share(longer)}")
    return found


def _much_longer(segments: list[Segment]) -> list[Segment]:
    """Parts up to the first token that are rarely so long, and the one that cost the most even where that is less rare; the
    costliest first."""

    def beyond_ms(segment: Segment) -> float:
        return segment.end_ms - segment.start_ms - (segment.usual_ms or 0.0)

    known = [one for one in segments if one.usual_ms is not None and one.rank is not None and one.name != DECODE]
    known.sort(key=beyond_ms, reverse=True)
    return [
        one
        for place, one in enumerate(known)
        if (one.rank or 0.0) >= (_RARE if place else _UNCOMMON)
        and one.end_ms - one.start_ms > max(_MUCH_LONGER * (one.usual_ms or 0.0), 1.0)
    ]


def _share(rank: float) -> str:
    return "almost every other" if rank > 0.99995 else f"{rank:.2%} of all"


def _states(replica: list[dict[str, Any]], begin_unix: float, end_unix: float) -> list[str]:
    seen: dict[str, dict[str, None]] = {}
    for row in replica:
        if begin_unix - 1 <= row["unix"] <= end_unix + 1 and row["state"] not in (READY, None):
            seen.setdefault(str(row["slot"]), {})[str(row["state"])] = None
    return [f"{slot} was {', '.join(states)} meanwhile" for slot, states in seen.items()]


def _replica(story: Story, slots: list[str], begin_unix: float, end_unix: float) -> list[dict[str, Any]]:
    import polars as pl

    rows = story.timeline.filter(pl.col("unix").is_between(begin_unix, end_unix) & pl.col("slot").cast(pl.String).is_in(slots))
    step = -(-rows.height // MOST_ROWS) or 1
    rows = rows.with_columns(pl.col("slot", "state").cast(pl.String)).gather_every(step)
    return [{"at_s": story.at_s(row["unix"]), **row} for row in rows.to_dicts()]


def _journal(story: Story, slots: list[str], begin_unix: float, end_unix: float) -> list[dict[str, Any]]:
    """Of its replicas and their nodes, and what concerns the whole run."""
    subjects = {"", str(story.number), *slots, *map(node_of, slots)}
    return [
        {
            "unix": entry.unix, "at_s": story.at_s(entry.unix), "who": entry.who, "what": entry.what, "subject": entry.subject,
            "why": entry.why, "before": entry.before, "after": entry.after, "level": entry.level,
        }
        for entry in story.journal
        if begin_unix <= entry.unix <= end_unix and (entry.subject in subjects or entry.what.startswith("act."))
    ][:MOST_ENTRIES]  # fmt: skip


def _gpus(story: Story, slots: list[str], begin_unix: float, end_unix: float) -> dict[str, float]:
    """The worst value of each role; running counts (errors) by how much they grew."""
    import polars as pl

    from harness.metrics.gpu.summary import COUNTS
    from harness.records.reader import UNREADABLE

    mine = pl.col("slot").is_in(slots) & pl.col("sampled_unix").is_between(begin_unix, end_unix)
    try:
        rows = story.record.collect(lambda gpus: gpus.filter(mine).sort("sampled_unix"), story.number, "gpus")
    except UNREADABLE:
        return {}
    found: dict[str, float] = {}
    for role in sorted(rows["role"].drop_nulls().unique()):
        part = rows.filter(pl.col("role") == role)
        if role in COUNTS:
            ends = part.group_by("slot", "device").agg(
                (pl.col("value").last() - pl.col("value").first()).clip(lower_bound=0).alias("grew")
            )
            value: Any = ends["grew"].sum()
        else:
            known = ROLES.get(role)
            value = part["value"].max() if known is None or known.high_is_bad else part["value"].min()
        if isinstance(value, int | float) and math.isfinite(value):
            found[role] = float(value)
    return found
