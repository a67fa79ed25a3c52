"""One side of a comparison: an attempt's figures, each with its interval, and its distributions, small enough to keep eight.

Samples are read narrow and let go before the next side is read: 2.4 million cost some 170 MB and two seconds (two slow cores).
A record without samples gives what run.json has, without intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from harness.analysis.distributions import at, interval_of
from harness.analysis.errors import NoSuchAttempt
from harness.analysis.intervals import rate_interval, share_interval
from harness.analysis.shape import Shape, number, shape_of
from harness.analysis.views import METRICS, Interval, Metric
from harness.metrics.histogram import EDGES_MS
from harness.records.reader import Record
from harness.records.runfile import AttemptRecord, RunFile
from harness.records.summary import PERCENTILES

#: Stretches of the load behind the interval of a rate or mean, and those left out at either end (ramps).
BLOCKS: Final = 20
_RAMP: Final = 1
#: Fewer samples have no interval of a rate or mean: stretches would hold a handful each.
_LEAST: Final = 100
#: Shares of samples at which a CDF has a point: dense at the upper end.
CDF_SHARES: Final = (*(step / 50 for step in range(50)), 0.99, 0.995, 0.999, 0.9995, 0.9999, 1.0)

Floats = npt.NDArray[np.float64]


class Measured(msgspec.Struct):
    value: float | None
    interval: Interval = None


class Curve(msgspec.Struct):
    """A distribution. `below`: how many samples lie below each of EDGES_MS; `cdf`: (ms, share at or below)."""

    n: int
    below: list[int]
    cdf: list[tuple[float, float]]


class Side(msgspec.Struct):
    """What was measured of one attempt, and the run around it."""

    run: RunFile
    attempt: AttemptRecord
    folder: str
    shape: Shape
    samples: int  # rows that were read
    figures: dict[str, Measured]
    curves: dict[Metric, Curve]
    problems: list[str]


def read_side(record: Record, number: int | None = None) -> Side:
    """None: the last attempt that completed samples, else the last. Raises NoSuchAttempt, RecordError."""
    run = record.run
    attempt = chosen_attempt(run, number)
    shape = shape_of(run.spec)
    frame = record.collect(_narrow, attempt.number)
    columns = {name: frame[name].to_numpy() for name in frame.columns}
    del frame
    side = Side(run, attempt, str(record.folder.path), shape, len(columns["done_s"]), _stated(attempt), {}, [])
    if side.samples:
        side.figures |= _rates(columns, shape)
        for metric in METRICS:
            _of_metric(side, metric, columns)
        side.figures |= _counts(columns, attempt)
    side.figures |= _shared_out(side.figures, shape)
    side.problems = list(record.problems)
    return side


def chosen_attempt(run: RunFile, number: int | None) -> AttemptRecord:
    if not run.attempts:
        raise NoSuchAttempt(f"{run.run} has no attempts: it ended before any load (or its record is not whole)")
    if number is None:
        measured = [attempt for attempt in run.attempts if attempt.totals.get("completed")]
        return (measured or run.attempts)[-1]
    found = next((attempt for attempt in run.attempts if attempt.number == number), None)
    if found is None:
        there = ", ".join(str(attempt.number) for attempt in run.attempts)
        raise NoSuchAttempt(f"{run.run} has no attempt {number}; there is {there}")
    return found


def _narrow(samples: Any) -> Any:
    import polars as pl

    done = pl.col("done_ns").is_not_null()
    kept = {"done_s": pl.col("done_ns") / 1e9, "scheduled_s": pl.col("scheduled_ns") / 1e9}
    # a failed sample may have had its first token; its TTFT is no result
    kept |= {name: pl.when(done).then(pl.col(name)) for name in ("ttft_ms", "tpot_ms", "latency_ms")}
    return samples.select(
        *(each.fill_null(float("nan")).alias(name) for name, each in kept.items()),
        pl.when(done).then(pl.col("n_tokens")).otherwise(0).fill_null(0).alias("tokens"),
        pl.when(done).then(pl.col("n_prompt")).otherwise(0).fill_null(0).alias("prompt"),
        (pl.col("tries").cast(pl.Int32) - 1).clip(lower_bound=0).fill_null(0).alias("again"),
    )


# --- figures -------------------------------------------------------------------------------------------------


def _stated(attempt: AttemptRecord) -> dict[str, Measured]:
    """As run.json has them."""
    values: dict[str, Any] = {"target_qps": attempt.target_qps, "acts": attempt.acts, **attempt.results, **attempt.rates}
    for metric, latencies in (("ttft", attempt.ttft_ms), ("tpot", attempt.tpot_ms), ("latency", attempt.latency_ms)):
        values |= {f"{metric}_{place}_ms": value for place, value in latencies.items()}
    values |= {name: attempt.totals.get(name) for name in ("issued", "completed", "failed", "lost", "redispatched", "tokens")}
    values |= {f"loadgen_{name}": attempt.loadgen.get(name) for name in ("samples_per_s", "tokens_per_s")}
    return {name: Measured(number(value)) for name, value in values.items() if number(value) is not None}


class _Blocks:
    """Equal stretches of the load, and how far sums in them lie apart."""

    def __init__(self, at_s: Floats, end_s: float, load_s: float) -> None:
        # an Offline attempt is scheduled all at once: its load lasts as long as it does
        self.span_s = load_s if load_s > 0.5 * end_s else end_s
        known = ~np.isnan(at_s)
        place = np.full(len(at_s), -1, np.int32)
        if self.span_s > 0:
            place[known] = np.clip(at_s[known] / self.span_s * (BLOCKS + 2 * _RAMP), -1, 1e6).astype(np.int32)
        self._inside = (place >= _RAMP) & (place < BLOCKS + _RAMP)
        self._place = place[self._inside] - _RAMP

    def sums(self, weights: npt.NDArray[Any] | None = None) -> Floats:
        kept = None if weights is None else np.nan_to_num(weights[self._inside].astype(np.float64))
        return np.bincount(self._place, weights=kept, minlength=BLOCKS).astype(np.float64)

    def about(self, value: float | None, per_block: Floats) -> Interval:
        """The blocks' relative interval, about the figure of the whole attempt."""
        if value is None or len(self._place) < _LEAST:
            return None
        mean, found = float(np.nanmean(per_block)), rate_interval(per_block)
        return None if found is None or mean <= 0 else (value * max(0.0, found[0] / mean), value * found[1] / mean)


def _rates(columns: Mapping[str, npt.NDArray[Any]], shape: Shape) -> dict[str, Measured]:
    done_s, scheduled_s = columns["done_s"], columns["scheduled_s"]
    done = ~np.isnan(done_s)
    completed = int(np.count_nonzero(done))
    end_s, load_s = _latest(done_s), _latest(scheduled_s)
    rates: dict[str, Measured] = {"scheduled_qps": Measured(len(done_s) / load_s)} if load_s > 0 else {}
    if end_s <= 0:
        return rates
    blocks = _Blocks(done_s, end_s, load_s)
    tokens, prompt = columns["tokens"], columns["prompt"]

    def rate(total: float, per_block: Floats) -> Measured:
        return Measured(total / end_s, blocks.about(total / end_s, per_block))

    per_block = blocks.sums(tokens)
    rates["duration_s"] = Measured(end_s)
    rates["completed_qps"] = rate(completed, blocks.sums())
    rates["tokens_per_s"] = rate(float(tokens.sum(dtype=np.int64)), per_block)
    both = tokens.astype(np.int64) + prompt
    rates["input_output_tokens_per_s"] = rate(float(both.sum()), blocks.sums(both))
    waited_s = columns["latency_ms"] / 1e3
    turns = float(tokens.sum(dtype=np.int64)) / float(np.nansum(waited_s)) if float(np.nansum(waited_s)) > 0 else None
    with np.errstate(divide="ignore", invalid="ignore"):
        rates["tokens_per_user_turns"] = Measured(turns, blocks.about(turns, per_block / blocks.sums(waited_s)))
    if shape.ttft_limit_ms is not None and shape.tpot_limit_ms is not None:
        # a sample of one token has no TPOT that could break a limit
        kept = done & ~(columns["ttft_ms"] > shape.ttft_limit_ms) & ~(columns["tpot_ms"] > shape.tpot_limit_ms)
        rates["goodput"] = rate(float(np.count_nonzero(kept)), blocks.sums(kept))
    return rates


def _latest(at_s: Floats) -> float:
    known = at_s[~np.isnan(at_s)]
    return float(known.max(initial=0.0))


def _of_metric(side: Side, metric: Metric, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    values: Floats = columns[f"{metric}_ms"]
    known = np.sort(values)  # NaN last
    known = known[: len(known) - int(np.count_nonzero(np.isnan(values)))]
    n, figures = len(known), side.figures
    side.curves[metric] = _curve(known)
    if not n:
        return
    for place, q in PERCENTILES.items():
        figures[f"{metric}_{place}_ms"] = Measured(at(known, q), interval_of(known, q))
    at_s = columns["scheduled_s"] if side.attempt.scenario != "Offline" else columns["done_s"]
    blocks = _Blocks(np.where(np.isnan(values), np.nan, at_s), _latest(columns["done_s"]), _latest(at_s))
    with np.errstate(divide="ignore", invalid="ignore"):
        means = blocks.sums(values) / blocks.sums()
    mean = float(known.mean())
    figures[f"{metric}_avg_ms"] = Measured(mean, blocks.about(mean, means))
    figures[f"{metric}_min_ms"], figures[f"{metric}_max_ms"] = Measured(float(known[0])), Measured(float(known[-1]))
    limit_ms = {"ttft": side.shape.ttft_limit_ms, "tpot": side.shape.tpot_limit_ms}.get(metric)
    if limit_ms is not None:
        over = n - int(np.searchsorted(known, limit_ms, side="right"))
        figures[f"over_{metric}_share"] = _share(over, n)
    if metric == "tpot":
        for name, place in (("tokens_per_user_p90", "p90"), ("tokens_per_user_median", "p50")):
            figures[name] = _inverse(figures[f"tpot_{place}_ms"])


def _curve(known: Floats) -> Curve:
    n = len(known)
    below = np.searchsorted(known, EDGES_MS, side="left")
    cdf = [(float(known[min(n - 1, int(n * share))]), share) for share in CDF_SHARES] if n else []
    return Curve(n, below.tolist(), cdf)


def _inverse(of: Measured) -> Measured:
    if not of.value or of.value <= 0:
        return Measured(None)
    turned = (1000.0 / of.interval[1], 1000.0 / of.interval[0]) if of.interval and of.interval[0] > 0 else None
    return Measured(1000.0 / of.value, turned)


def _share(count: int, n: int) -> Measured:
    """In per cent."""
    found = share_interval(count, n)
    return Measured(100.0 * count / n if n else None, (100.0 * found[0], 100.0 * found[1]) if found else None)


def _counts(columns: Mapping[str, npt.NDArray[Any]], attempt: AttemptRecord) -> dict[str, Measured]:
    done = ~np.isnan(columns["done_s"])
    rows, completed = len(done), int(np.count_nonzero(done))
    issued = max(int(number(attempt.totals.get("issued")) or 0), rows)
    failed = rows - completed
    counts = {"issued": issued, "completed": completed, "failed": failed, "lost": issued - rows}
    counts |= {"redispatched": int(columns["again"].sum()), "tokens": int(columns["tokens"].sum(dtype=np.int64))}
    again = int(np.count_nonzero(columns["again"]))
    shares = {"failed_share": _share(failed + issued - rows, issued), "redispatched_share": _share(again, rows)}
    return {name: Measured(float(value)) for name, value in counts.items()} | shares


def _shared_out(figures: Mapping[str, Measured], shape: Shape) -> dict[str, Measured]:
    """Rates over what the fleet is made of."""
    found = {}
    for name in ("tokens_per_s", "completed_qps"):
        whole = figures.get(name)
        for part, n in (("node", shape.nodes), ("replica", shape.replicas), ("gpu", shape.gpus)):
            if whole is not None and whole.value is not None and n:
                interval = (whole.interval[0] / n, whole.interval[1] / n) if whole.interval else None
                found[f"{name}_{part}"] = Measured(whole.value / n, interval)
    return found
