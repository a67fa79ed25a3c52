"""A record as arrays that can be asked about any second: what replay plays from. Polars and disk only while it is read.

Read once, in a thread: every sample as its place in time (0.1 ms steps, int32) and its latency as a cell of the histogram
grid, kept in the order in which the head learned of it. Whatever is asked of a moment is then a search in sorted times and
the difference of two histograms, each made of the nearest kept one (one every `STRIDE` samples) and the few samples after
it: a moment costs the same at the start and at the end of a run, so seeking anywhere costs no more than the next second.
Memory is bounded: 48 bytes a sample, and at most `TIMELINE_CELLS` slot-seconds of the timeline (longer runs or larger fleets
keep every second, third … second of it). Columns are read one after the other, so that no whole table is ever held: 2.4
million samples of 512 slots are read in 4 s on one slow core, with a peak of 280 MB above an idle process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from harness.metrics.histogram import CELLS, cells_of, ms_at, percentiles
from harness.records.runfile import AttemptRecord
from harness.wire.attempt import SAMPLE_DTYPE
from harness.wire.control import Percentiles
from harness.wire.states import REPLICA_STATES

if TYPE_CHECKING:
    import polars as pl

    from harness.records.reader import Record

TICK_NS: Final = 100_000
PER_S: Final = 1_000_000_000 // TICK_NS
STRIDE: Final = 1 << 16
TIMELINE_CELLS: Final = 4_000_000
FLOATS: Final = ("kv_use", "tokens_s", "step_ms", "batch", "ratio", "z")
INTS: Final = ("outstanding", "running", "waiting")

Progress = Callable[[str], None]


class LatencyTape:
    """One latency of one attempt: samples in the order in which their value became known."""

    def __init__(self, at: NDArray[np.int32], values_ms: NDArray[np.float32], slot: NDArray[np.uint16], slots: int,
                 limit_ms: float | None) -> None:  # fmt: skip
        order = np.argsort(at, kind="stable")
        self.at = at[order]
        values_ms = values_ms[order]
        self.cell: NDArray[np.uint16] = cells_of(values_ms).astype(np.uint16)
        self.slot = slot[order]
        self.slots = slots
        self.limit_ms = limit_ms
        #: places of the samples over the limit
        self.over: NDArray[np.int32] = np.flatnonzero(values_ms > (math.inf if limit_ms is None else limit_ms)).astype(np.int32)
        stops = range(STRIDE, len(at) + 1, STRIDE)
        steps = [np.bincount(self.cell[stop - STRIDE : stop], minlength=CELLS) for stop in stops]
        placed = [np.bincount(self.slot[stop - STRIDE : stop], minlength=slots + 1) for stop in stops]
        self._cells = np.cumsum([np.zeros(CELLS, np.int64), *steps], axis=0)
        self._placed = np.cumsum([np.zeros(slots + 1, np.int64), *placed], axis=0).astype(np.int32)

    def known(self, tick: float) -> int:
        """How many samples were known by then."""
        return int(np.searchsorted(self.at, tick, side="right"))

    def counts(self, n: int) -> NDArray[np.int64]:
        """The histogram of the first n samples."""
        at = n // STRIDE
        rest = np.bincount(self.cell[at * STRIDE : n], minlength=CELLS)
        counts: NDArray[np.int64] = self._cells[at] + rest
        return counts

    def by_slot(self, n: int) -> NDArray[np.int32]:
        """How many of the first n samples each slot has; those of no slot are left out."""
        at = n // STRIDE
        rest = np.bincount(self.slot[at * STRIDE : n], minlength=self.slots + 1)
        found: NDArray[np.int32] = (self._placed[at] + rest).astype(np.int32)[: self.slots]
        return found

    def over_by(self, n: int) -> int:
        return int(np.searchsorted(self.over, n))

    def over_by_slot(self, first: int, last: int) -> NDArray[np.int32]:
        places = self.over[self.over_by(first) : self.over_by(last)]
        return np.bincount(self.slot[places], minlength=self.slots + 1).astype(np.int32)[: self.slots]

    def quantile_by_slot(self, first: int, last: int, q: float) -> NDArray[np.float32]:
        """The q-quantile of every slot over these samples, in ms; NaN for a slot without one."""
        result = np.full(self.slots, np.nan, dtype=np.float32)
        cell, slot = self.cell[first:last], self.slot[first:last]
        placed = slot < self.slots
        if not placed.any():
            return result
        low, high = int(cell.min()), int(cell.max()) + 1
        width = high - low
        flat = slot[placed].astype(np.intp) * width + (cell[placed] - low)
        counts = np.bincount(flat, minlength=self.slots * width).reshape(self.slots, width)
        cumulative = np.cumsum(counts, axis=1)
        total = cumulative[:, -1]
        rows = np.flatnonzero(total)
        rank = np.maximum(total[rows] * q, 1e-9)
        at = np.argmax(cumulative[rows] >= rank[:, None], axis=1)
        fraction = 1.0 - (cumulative[rows, at] - rank) / counts[rows, at]
        result[rows] = ms_at(low + at + fraction)
        return result

    def percentiles_each_s(self, ticks: NDArray[np.float64], window_ticks: float) -> list[Percentiles]:
        """Of the moving window at each of these (rising) times."""
        ends = np.searchsorted(self.at, ticks, side="right")
        starts = np.searchsorted(self.at, ticks - window_ticks, side="right")
        counts = np.zeros(CELLS, dtype=np.int64)
        first = last = 0
        found = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            counts += np.bincount(self.cell[last:end], minlength=CELLS)
            counts -= np.bincount(self.cell[first:start], minlength=CELLS)
            first, last = start, end
            found.append(percentiles(counts))
        return found


class AttemptTape:
    """The samples of one attempt. All times are ticks since its time zero."""

    def __init__(self, attempt: AttemptRecord, slots: list[str], limits: tuple[float | None, float | None]) -> None:
        self.attempt = attempt
        self._slots, self._limits = slots, limits
        nothing = np.zeros(0, dtype=np.int32)
        self.issued = self.scheduled = self.dispatched = self.done = nothing
        self.tokens: NDArray[np.int64] = np.zeros(1, dtype=np.int64)  # of the first n completed samples
        self.lag_ms: NDArray[np.float32] = np.zeros(0, dtype=np.float32)  # in the order of `done`
        self.redispatched: NDArray[np.int32] = np.zeros(1, dtype=np.int32)
        empty = (nothing, np.zeros(0, np.float32), np.zeros(0, np.uint16), len(slots))
        self.ttft, self.tpot = LatencyTape(*empty, limits[0]), LatencyTape(*empty, limits[1])

    @property
    def samples(self) -> int:
        return len(self.issued)

    def read(self, record: Record, tell: Progress) -> None:
        """Raises polars' errors and RecordError."""
        tell("issue times")
        self.issued, self.scheduled = self._times(record, "issued_ns"), self._times(record, "scheduled_ns")
        tell("dispatch times")
        self.dispatched = self._times(record, "dispatched_ns")
        tell("completions")
        self._read_done(record)
        tell("TTFT")
        self.ttft = self._latency(record, "first_ns", "ttft_ms", self._limits[0])
        tell("TPOT")
        self.tpot = self._latency(record, "done_ns", "tpot_ms", self._limits[1])

    def _columns(self, record: Record, *columns: pl.Expr | str, needs: str) -> pl.DataFrame:
        import polars as pl

        return record.collect(lambda rows: rows.filter(pl.col(needs).is_not_null()).select(*columns), self.attempt.number)

    def _times(self, record: Record, name: str) -> NDArray[np.int32]:
        frame = self._columns(record, _ticks(name), needs=name)
        return np.sort(frame[name].to_numpy())

    def _read_done(self, record: Record) -> None:
        import polars as pl

        again = (pl.col("tries").cast(pl.Int32) - 1).clip(lower_bound=0).alias("again")
        frame = self._columns(
            record, _ticks("done_ns"), "n_tokens", pl.col("lag_ms").cast(pl.Float32), again, needs="done_ns"
        )  # fmt: skip
        done = frame["done_ns"].to_numpy()
        order = np.argsort(done, kind="stable")
        self.done = done[order]
        self.lag_ms = frame["lag_ms"].to_numpy()[order]
        self.tokens = np.concatenate([[0], np.cumsum(frame["n_tokens"].to_numpy()[order], dtype=np.int64)])
        self.redispatched = np.concatenate([[0], np.cumsum(frame["again"].to_numpy()[order], dtype=np.int32)])

    def _latency(self, record: Record, known: str, name: str, limit_ms: float | None) -> LatencyTape:
        import polars as pl

        place = pl.col("slot").cast(pl.Enum(self._slots), strict=False).to_physical()
        frame = self._columns(
            record,
            _ticks(known),
            pl.col(name).cast(pl.Float32),
            place.fill_null(len(self._slots)).cast(pl.UInt16).alias("slot"),
            needs=known,
        )
        frame = frame.filter(pl.col(name).is_not_null())
        at, values, slot = frame[known].to_numpy(), frame[name].to_numpy(), frame["slot"].to_numpy()
        return LatencyTape(at, values, slot, len(self._slots), limit_ms)


def _ticks(name: str) -> pl.Expr:
    import polars as pl

    return (pl.col(name) // TICK_NS).cast(pl.Int32)


@dataclass(slots=True)
class TimelineTape:
    """A row a kept second, a column a slot of the roster."""

    unix: NDArray[np.float64]
    state: NDArray[np.uint8]
    floats: dict[str, NDArray[np.float32]]
    ints: dict[str, NDArray[np.int32]]
    every: int = 1  # of so many recorded seconds one is kept

    def row(self, unix: float) -> int:
        """The newest one by then; -1: none yet."""
        return int(np.searchsorted(self.unix, unix, side="right")) - 1


def read_timeline(record: Record, slots: list[str]) -> TimelineTape:
    """Raises polars' errors and RecordError."""
    import polars as pl

    place = pl.col("slot").cast(pl.Enum(slots), strict=False).to_physical()
    rows = record.timeline()  # once: of a run that goes on, the next look may find a chunk more
    frame = rows.select("unix", place.cast(pl.Int32).fill_null(-1).alias("slot")).collect()
    seen = frame["unix"].to_numpy()
    unix, row = np.unique(seen, return_inverse=True)
    every = max(1, -(-len(unix) * len(slots) // TIMELINE_CELLS))
    slot = frame["slot"].to_numpy()
    kept = (slot >= 0) & (row % every == 0)
    row, slot, unix = (row // every).astype(np.int32)[kept], slot[kept], unix[::every]
    del frame, seen
    shape = (len(unix), len(slots))

    def column(name: str, dtype: Any, missing: float) -> NDArray[Any]:
        values = rows.select(_code(name)).collect()[name]
        grid = np.full(shape, missing, dtype=dtype)
        grid[row, slot] = values.fill_null(missing).to_numpy()[kept]
        return grid

    return TimelineTape(
        unix,
        column("state", np.uint8, 0),
        {name: column(name, np.float32, math.nan) for name in FLOATS},
        {name: column(name, np.int32, 0) for name in INTS},
        every,
    )


def _code(name: str) -> pl.Expr:
    import polars as pl

    if name != "state":
        return pl.col(name)
    return pl.col(name).cast(pl.Enum(REPLICA_STATES), strict=False).to_physical().cast(pl.UInt8)


def rows_between(record: Record, attempt: int, first_tick: float, last_tick: float) -> np.ndarray[Any, Any]:
    """Rows of SAMPLE_DTYPE of the samples that completed in between, without their slots: for figures that only whole rows
    have. Reads the chunks whose times fit; of 2.4 million samples a minute takes a third of a second."""
    import polars as pl

    between = (pl.col("done_ns") > int(first_tick * TICK_NS)) & (pl.col("done_ns") <= int(last_tick * TICK_NS))
    names = [name for name in SAMPLE_DTYPE.names or () if name not in ("slot", "prefill_slot")]
    frame = record.collect(lambda rows: rows.filter(between).select(names), attempt)
    found = np.zeros(frame.height, dtype=SAMPLE_DTYPE)
    for name in names:
        found[name] = frame[name].fill_null(-1).to_numpy()
    return found
