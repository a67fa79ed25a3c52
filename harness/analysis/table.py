"""One attempt's samples in memory: narrow numpy columns, read once, from which every view is some tenths of a second's work.

A sample costs some 90 bytes here: 2.4 million are 220 MB. Times are what `harness.records.columns.with_times` makes, NaN where
a sample has none; the three metrics are kept in double precision, so that percentiles agree with run.json to the last digit.
Samples that failed have no metric, whatever first token they had. What is derived (parts, codes of groups, sorted values) is
made when a view asks for it, and kept.

Measured (two shared cores, 2.4 million samples in 60 chunks, in 600): see tests/bench/bench_drill.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from harness.analysis.intervals import percentile_ranks
from harness.analysis.views import METRICS, By, Metric, Where
from harness.metrics.parts import NAMES, SPLIT_NAMES

if TYPE_CHECKING:
    import polars as pl

    from harness.records.reader import Record

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]
Flags = npt.NDArray[np.bool_]
_Made = TypeVar("_Made")

RE_DISPATCH: Final = "re-dispatch"
DECODE: Final = "decode"
OTHER: Final = "other"
#: Equal stretches of time that a tail is put together by, about.
STRETCHES: Final = 30
MOST_TRIES: Final = 8
#: No time of a run is longer than ten years; what a damaged record says beyond that is no number.
_LONGEST_MS: Final = 3e11


class AttemptTable:
    def __init__(self, record: Record, attempt: int) -> None:
        frame = record.collect(_narrow, attempt)
        self.n: int = frame.height
        self.slots, self.nodes, codes = _named(frame, ("slot", "prefill_slot"))
        self.node_of = np.array([self.nodes.index(node_of(slot)) for slot in self.slots] or [0], np.int32)
        self.slot, self.prefill_slot = codes["slot"], codes["prefill_slot"]
        self.seq, self.index = frame["seq"].to_numpy(), frame["index"].to_numpy()
        self.incarnation, self.tries = frame["incarnation"].to_numpy(), frame["tries"].to_numpy()
        self.n_prompt, self.n_tokens = frame["n_prompt"].to_numpy(), frame["n_tokens"].to_numpy()
        self.scheduled_s = frame["scheduled_s"].to_numpy()
        self.lag_ms, self.head_ms = frame["lag_ms"].to_numpy(), frame["head_ms"].to_numpy()
        self.first_ms, self.latency_ms = frame["first_ms"].to_numpy(), frame["latency_ms"].to_numpy()
        self.tpot_ms = frame["tpot_ms"].to_numpy()
        self.queue_ms, self.prefill_ms, self.decode_ms = (
            frame[f"{name}_ms"].to_numpy() for name in ("queue", "prefill", "decode")
        )
        self.split = bool(frame["prefilled_ms"].null_count() < self.n)
        self.prefilled_ms, self.transfer_ms = (
            frame[name].to_numpy() if self.split else np.zeros(0, np.float32) for name in ("prefilled_ms", "transfer_ms")
        )
        self.done: Flags = ~np.isnan(self.latency_ms)
        self.completed = int(np.count_nonzero(self.done))
        self._kept: dict[tuple[str, Any], Any] = {}

    def keep(self, what: str, which: Any, make: Callable[[], _Made]) -> _Made:
        """Made the first time that it is asked for."""
        found = self._kept.get((what, which))
        if found is None:
            found = self._kept[what, which] = make()
        return found

    # --- what people ask for -----------------------------------------------------------------------------------

    def metric(self, name: Metric) -> Floats:
        """In ms, of completed samples; NaN for all others."""
        return self.keep("metric", name, lambda: self._metric(name))

    def _metric(self, name: Metric) -> Floats:
        if name == "ttft":
            return self.first_ms if self.completed == self.n else np.where(self.done, self.first_ms, np.nan)
        return self.tpot_ms if name == "tpot" else self.latency_ms

    def ordered(self, name: Metric) -> Floats:
        """The metric's values, ascending."""
        return self.keep("ordered", name, lambda: self._ordered(name))

    def _ordered(self, name: Metric) -> Floats:
        values = self.metric(name)
        if ("order", name) in self._kept:
            return values[self.order(name)]
        known = np.sort(values)  # NaN last
        return known[: len(known) - int(np.count_nonzero(np.isnan(values)))]

    def placed(self, name: Metric) -> Floats:
        """The metric's values, of which those at p50, at p99 and at the ends of p99's interval stand where they would in order: a
        third of the time that it takes to order all, where no more is asked for."""
        if ("ordered", name) in self._kept or ("order", name) in self._kept:
            return self.ordered(name)
        return self.keep("placed", name, lambda: self._placed_values(name))

    def _placed_values(self, name: Metric) -> Floats:
        values = self.metric(name)
        values = values if self.completed == self.n and not np.isnan(values).any() else values[~np.isnan(values)]
        n = len(values)
        positions = {int(n * q) for q in (0.5, 0.99)} | set(percentile_ranks(n, 0.99) or ())
        return np.partition(values, sorted(positions)) if n else values

    def order(self, name: Metric) -> npt.NDArray[np.int32]:
        """Rows by that metric, ascending; those that have none are left out."""
        return self.keep("order", name, lambda: self._order(name))

    def _order(self, name: Metric) -> npt.NDArray[np.int32]:
        values = self.metric(name)
        return np.argsort(values)[: self.n - int(np.count_nonzero(np.isnan(values)))].astype(np.int32)

    def first_s(self) -> Floats:
        """When the first token came; NaN for samples without a TTFT."""
        found: Floats = self.scheduled_s + self.metric("ttft") / 1e3
        return found

    def done_s(self) -> Floats:
        return self.keep("done_s", None, lambda: self.scheduled_s + self.latency_ms / 1e3)

    def issued_s(self) -> Floats:
        return self.keep("issued_s", None, lambda: self.scheduled_s + np.nan_to_num(self.lag_ms) / 1e3)

    def end_s(self) -> float:
        """Of the last thing that happened to any sample."""
        return self.keep("end_s", None, lambda: max((_largest(each) for each in (self.done_s(), self.issued_s())), default=0.0))

    def tokens(self) -> Ints:
        """Output tokens that reached somebody: of completed samples."""
        return self.keep("tokens", None, lambda: np.where(self.done, np.maximum(self.n_tokens, 0), 0).astype(np.int32))

    def again(self) -> Ints:
        """Dispatches beyond a sample's first."""
        found: Ints = np.maximum(self.tries.astype(np.int32) - 1, 0)
        return found

    # --- which samples -----------------------------------------------------------------------------------------

    def chosen(self, where: Where) -> Flags | None:
        """None: all of them."""
        flags: list[Flags] = []
        if where.slot is not None:
            flags.append(self._placed([i for i, slot in enumerate(self.slots) if slot == where.slot]))
        if where.node is not None:
            flags.append(self._placed([i for i, slot in enumerate(self.slots) if node_of(slot) == where.node]))
        for values, low, high in (
            (self.scheduled_s, where.from_s, where.to_s),
            (self.n_prompt, where.prompt_from, where.prompt_to),
            (self.n_tokens, where.output_from, where.output_to),
            (self.tries, where.tries_from, where.tries_to),
        ):
            flags += [values >= low] if low is not None else []
            flags += [values < high] if high is not None else []
        return np.logical_and.reduce(flags) if flags else None

    def _placed(self, slots: list[int]) -> Flags:
        """Where roles are split, of either replica that a sample had."""
        flags: Flags = np.isin(self.slot, slots)
        return flags | np.isin(self.prefill_slot, slots) if self.split else flags

    # --- groups ------------------------------------------------------------------------------------------------

    def replica_codes(self, metric: Metric) -> Ints:
        """Position in `slots` of the replica that answers for the metric: with split roles the prefill replica for TTFT."""
        return self.prefill_slot if self.split and metric == "ttft" else self.slot

    def codes(self, by: By, metric: Metric) -> tuple[Ints, list[tuple[str, Where]]]:
        """The group of each sample (-1: of none), and of each group its name and which samples it is."""
        own = metric == "ttft" if by in ("replica", "node") else None
        return self.keep("codes", (by, own), lambda: self._codes(by, metric))

    def _codes(self, by: By, metric: Metric) -> tuple[Ints, list[tuple[str, Where]]]:
        if by == "replica":
            return self.replica_codes(metric), [(slot, Where(slot=slot)) for slot in self.slots]
        if by == "node":
            codes = self.replica_codes(metric)
            nodes = np.append(self.node_of, -1).astype(_small(len(self.nodes)))
            return nodes[codes], [(node, Where(node=node)) for node in self.nodes]
        if by == "time":
            return self._stretches()
        if by == "tries":
            most = min(int(self.tries.max(initial=0)), MOST_TRIES)
            groups = [(str(tries), Where(tries_from=tries, tries_to=tries + 1)) for tries in range(most + 1)]
            if most == MOST_TRIES:
                groups[-1] = (f"{most} and more", Where(tries_from=most))
            return np.minimum(self.tries, most).astype(np.int8), groups
        lengths = self.n_prompt if by == "prompt length" else self.n_tokens
        bits = np.frexp(np.maximum(lengths, 0).astype(np.float64))[1].astype(np.int8)
        groups = [_lengths(by, int(bit)) for bit in range(int(bits.max(initial=0)) + 1)]
        return bits, groups

    def _stretches(self) -> tuple[Ints, list[tuple[str, Where]]]:
        if not self.n:
            return np.zeros(0, np.int16), []
        first, last = float(self.scheduled_s.min()), float(self.scheduled_s.max())
        step_s = round_step(max(last - min(first, 0.0), 1e-3) / STRETCHES)
        begin = math.floor(min(first, 0.0) / step_s)
        codes = (np.floor(self.scheduled_s / step_s) - begin).astype(np.int16)
        groups = []
        for number in range(int(codes.max()) + 1):
            low, high = round((begin + number) * step_s, 6), round((begin + number + 1) * step_s, 6)
            groups.append((f"{low:,g}–{high:,g} s", Where(from_s=low, to_s=high)))
        return codes, groups

    # --- parts -------------------------------------------------------------------------------------------------

    def part_names(self, metric: Metric) -> tuple[str, ...]:
        if metric == "tpot":
            return (DECODE, OTHER)
        names = SPLIT_NAMES if self.split else NAMES
        again = (RE_DISPATCH,) if int(self.tries.max(initial=0)) > 1 else ()
        names = (*names[:2], *again, *names[2:])
        return (*names, DECODE) if metric == "latency" else names

    def parted(self, metric: Metric) -> Flags:
        """Samples whose metric can be taken apart. First tokens of an earlier try than the one that counted cannot."""
        return self.keep("parted", metric, lambda: self._parted(metric))

    def _parted(self, metric: Metric) -> Flags:
        known: Flags = ~np.isnan(self.metric(metric))
        if metric == "tpot":
            known &= ~np.isnan(self.decode_ms)
            return known
        known &= self.lag_ms + self.head_ms <= self.first_ms.astype(np.float32) + np.float32(1e-3)  # False for NaN
        known &= ~np.isnan(self.queue_ms) & ~np.isnan(self.prefill_ms)
        if self.split:
            known &= self.prefilled_ms <= self.first_ms
        return known

    def part(self, metric: Metric, name: str) -> Floats:
        """In ms; to be read at samples that are `parted` only."""
        shared = "ttft" if metric == "latency" and name not in (DECODE,) else metric
        return self.keep("part", (shared, name), lambda: self._part(shared, name))

    def _part(self, metric: Metric, name: str) -> Floats:
        if metric == "tpot":
            tpot = self.metric("tpot").astype(np.float32)
            own = np.clip(self.decode_ms / np.maximum(self.n_tokens - 1, 1).astype(np.float32), 0, np.maximum(tpot, 0))
            return _positive(own if name == DECODE else tpot - own)
        if name in ("head queue", RE_DISPATCH):
            lost = self.tries > 1
            return np.where(lost if name == RE_DISPATCH else ~lost, _positive(self.head_ms), np.float32(0))
        if name == "decode wait":
            return _positive((self.first_ms - self.prefilled_ms).astype(np.float32) - self.part("ttft", "KV transfer"))
        if name == OTHER:
            told = [self.part("ttft", each) for each in self.part_names("ttft") if each != OTHER]
            return _positive(self.first_ms.astype(np.float32) - sum(told))
        if name == DECODE:
            return _positive((self.latency_ms - self.first_ms).astype(np.float32))
        if name == "KV transfer":
            return _positive(np.nan_to_num(self.transfer_ms))
        own_words = {"schedule lag": self.lag_ms, "prefill": self.prefill_ms}
        return _positive(own_words.get(name, self.queue_ms))


def _positive(values: Floats) -> Floats:
    found: Floats = np.maximum(values, 0)
    return found


def node_of(slot: str) -> str:
    return slot.partition("/")[0]


def round_step(least: float) -> float:
    """The next larger round number, such as 2, 2.5 or 30."""
    scale = 10.0 ** np.floor(np.log10(least))
    return round(
        float(scale * next(step for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15) if step * scale >= least * (1 - 1e-9))), 9
    )


def checked_metric(name: str) -> Metric:
    from harness.analysis.errors import NoSuchColumn

    if name not in METRICS:
        raise NoSuchColumn(f"{name!r} is no metric of a sample; choose one of {', '.join(METRICS)}")
    return name


def _lengths(by: By, bit: int) -> tuple[str, Where]:
    """Lengths from a power of two until below the next; the first group has no tokens."""
    low, high = (0, 1) if not bit else (1 << (bit - 1), 1 << bit)
    key = f"{low:,}" if high - low == 1 else f"{low:,}–{high - 1:,}"
    return key, Where(prompt_from=low, prompt_to=high) if by == "prompt length" else Where(output_from=low, output_to=high)


def _largest(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.max(initial=0.0))


def _small(highest: int) -> type[np.signedinteger[Any]]:
    return np.int8 if highest < 127 else np.int16 if highest < 32767 else np.int32


def _narrow(samples: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl

    def ms(later: str, earlier: str, kind: Any) -> pl.Expr:
        """Differences of numbers that are no times overflow: those are none."""
        told = (pl.col(later).cast(pl.Float64) - pl.col(earlier).cast(pl.Float64)) / 1e6
        return pl.when(told.abs() < _LONGEST_MS).then(told).cast(kind).fill_null(float("nan"))

    single, double = pl.Float32(), pl.Float64()
    scheduled_s = pl.col("scheduled_ns") / 1e9
    return samples.select(
        pl.col("slot", "prefill_slot").cast(pl.Categorical),
        pl.col("seq", "incarnation", "tries", "n_prompt", "n_tokens").fill_null(0),
        pl.col("index").fill_null(-1),
        scheduled_s=pl.when(scheduled_s.abs() < _LONGEST_MS / 1e3).then(scheduled_s).otherwise(0.0),
        lag_ms=ms("issued_ns", "scheduled_ns", single),
        head_ms=ms("dispatched_ns", "issued_ns", single),
        first_ms=ms("first_ns", "scheduled_ns", double),
        latency_ms=ms("done_ns", "scheduled_ns", double),
        tpot_ms=pl.when(pl.col("tpot_ms").abs() < _LONGEST_MS).then("tpot_ms").fill_null(float("nan")),
        prefilled_ms=((pl.col("prefilled_ns") - pl.col("scheduled_ns")) / 1e6).cast(single),
        transfer_ms=(pl.col("transfer_us") / 1e3).cast(single),
        **{
            f"{name}_ms": (pl.col(f"{name}_us") / 1e3).cast(single).fill_null(float("nan"))
            for name in ("queue", "prefill", "decode")
        },
    )


def _named(frame: pl.DataFrame, columns: tuple[str, ...]) -> tuple[list[str], list[str], dict[str, Ints]]:
    """Names of the replicas and their nodes, sorted, and each column as positions among the former; -1: none."""
    import polars as pl

    names = sorted(
        {name for column in columns for name in frame[column].unique().drop_nulls().cast(pl.String).to_list()}, key=in_order
    )
    position = {name: number for number, name in enumerate(names)}
    codes = {}
    for column in columns:
        distinct = frame[column].unique().drop_nulls()
        physical = distinct.to_physical().to_numpy()
        none = int(physical.max()) + 1 if len(physical) else 0
        places = np.full(none + 1, -1, _small(len(names)))
        places[physical] = [position[name] for name in distinct.cast(pl.String).to_list()]
        codes[column] = places[frame[column].to_physical().fill_null(none).to_numpy()]
    return names, sorted({node_of(name) for name in names}, key=in_order), codes


def in_order(slot: str) -> tuple[str, int, str]:
    """`node002/gpu10` after `node002/gpu9`."""
    node, _, place = slot.partition("/")
    number = place.lstrip("abcdefghijklmnopqrstuvwxyz")
    return node, int(number) if number.isascii() and number.isdigit() else -1, place
