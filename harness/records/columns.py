"""The tables of a record: samples (one row a sample), timeline (one row a slot a second), gpus (one row a GPU, role and round).

Samples carry the names and units of SAMPLE_DTYPE, with the slot as its name and "none" (-1 on the wire) as null,
so that no query must remember which number means nothing. Times are ns since the attempt's time zero.
Where prefill and decode are split, `slot` is the decode replica and `prefill_slot` the other one.
Text columns become dictionaries in parquet: a fleet's names cost some 1.5 bytes a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from harness.wire.attempt import SAMPLE_DTYPE
from harness.wire.states import REPLICA_STATES

SAMPLE_SCHEMA = pl.Schema(
    {
        "attempt": pl.UInt16(),
        "epoch": pl.UInt32(),
        "seq": pl.UInt32(),
        "index": pl.Int32(),
        "slot": pl.String(),  # null: never dispatched
        "incarnation": pl.UInt16(),  # nth of that slot
        "tries": pl.UInt16(),
        "n_prompt": pl.Int32(),
        "n_tokens": pl.Int32(),
        "scheduled_ns": pl.Int64(),
        "issued_ns": pl.Int64(),
        "dispatched_ns": pl.Int64(),
        "first_ns": pl.Int64(),
        "done_ns": pl.Int64(),  # null: failed
        "queue_us": pl.Int32(),
        "prefill_us": pl.Int32(),
        "decode_us": pl.Int32(),
        "prefill_slot": pl.String(),  # this and what follows: null where prefill and decode are not split
        "prefilled_ns": pl.Int64(),
        "transfer_us": pl.Int32(),
    }
)
_SLOTS = ("slot", "prefill_slot")
_MAY_BE_NONE = (
    "dispatched_ns", "first_ns", "done_ns", "queue_us", "prefill_us", "decode_us", "prefilled_ns", "transfer_us",
)  # fmt: skip
#: Columns that records of earlier versions do not have; they are read as null.
ADDED_LATER = frozenset({"prefill_slot", "prefilled_ns", "transfer_us"})

TIMELINE_SCHEMA = pl.Schema(
    {
        "attempt": pl.UInt16(),  # 0: between attempts
        "unix": pl.Float64(),
        "slot": pl.String(),
        "state": pl.String(),
        "outstanding": pl.Int32(),
        "running": pl.Int32(),
        "waiting": pl.Int32(),
        "kv_use": pl.Float32(),
        "tokens_s": pl.Float32(),
        "step_ms": pl.Float32(),
        "batch": pl.Float32(),
        "ratio": pl.Float32(),
        "z": pl.Float32(),
    }
)
#: What `timeline` takes as columns; `state` as codes (positions in REPLICA_STATES).
TIMELINE_COLUMNS = tuple(name for name in TIMELINE_SCHEMA if name not in ("attempt", "unix", "slot"))

#: GPU metrics: a row a value, because which roles there are depends on the exporter. Values are in the role's unit.
GPU_SCHEMA = pl.Schema(
    {
        "attempt": pl.UInt16(),  # 0: between attempts
        "unix": pl.Float64(),  # when the source was asked
        "sampled_unix": pl.Float64(),  # when it had measured
        "slot": pl.String(),
        "device": pl.UInt8(),  # of the GPUs of that replica
        "role": pl.String(),
        "value": pl.Float64(),
    }
)

#: Added by `with_times`.
TIMES = ("ttft_ms", "tpot_ms", "latency_ms", "lag_ms", "head_queue_ms")


def samples_frame(attempt: int, epoch: int, rows: np.ndarray[Any, Any], slots: Sequence[str]) -> pl.DataFrame:
    """Rows of SAMPLE_DTYPE as a table; `slots` names the roster's positions."""
    columns: dict[str, Any] = {name: np.ascontiguousarray(rows[name]) for name in SAMPLE_DTYPE.names or () if name not in _SLOTS}
    names = pl.Series([*slots, None], dtype=pl.String)
    for name in _SLOTS:
        columns[name] = names.gather(np.where(rows[name] < 0, len(slots), rows[name]))
    frame = pl.DataFrame(columns).with_columns(
        pl.lit(attempt, dtype=pl.UInt16).alias("attempt"),
        pl.lit(epoch, dtype=pl.UInt32).alias("epoch"),
        *(pl.when(pl.col(name) != -1).then(pl.col(name)).alias(name) for name in _MAY_BE_NONE),
    )
    return frame.select(pl.col(name).cast(kind) for name, kind in SAMPLE_SCHEMA.items())


def timeline_frame(attempt: int, unix: float, columns: Mapping[str, np.ndarray[Any, Any]], slots: Sequence[str]) -> pl.DataFrame:
    """One second of the fleet; columns that are absent, and NaN, become null."""
    data: dict[str, Any] = {"slot": pl.Series(slots, dtype=pl.String)}
    for name, values in columns.items():
        data[name] = np.ascontiguousarray(values)
    if "state" in data:
        data["state"] = pl.Series(REPLICA_STATES, dtype=pl.String).gather(data["state"].astype(np.uint32))
    frame = pl.DataFrame(data).with_columns(
        pl.lit(attempt, dtype=pl.UInt16).alias("attempt"),
        pl.lit(unix, dtype=pl.Float64).alias("unix"),
        *(pl.lit(None).alias(name) for name in TIMELINE_COLUMNS if name not in data),
    )
    whole = frame.select(pl.col(name).cast(kind) for name, kind in TIMELINE_SCHEMA.items())
    return whole.with_columns(pl.col(pl.Float32).fill_nan(None))


def gpu_frame(
    attempt: int,
    unix: float,
    roles: Mapping[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]],
    slots: Sequence[str],
    devices: int,
) -> pl.DataFrame:
    """Of each role its values and times, `devices` entries a slot; what is NaN has no row."""
    names, frames = np.repeat(np.array(slots, dtype=object), devices), []
    of_slot = np.tile(np.arange(devices, dtype=np.uint8), len(slots))
    for role, (values, sampled_unix) in roles.items():
        there = np.flatnonzero(~np.isnan(values))
        columns = {"sampled_unix": sampled_unix[there], "slot": pl.Series(names[there], dtype=pl.String)}
        frames.append(pl.DataFrame({**columns, "device": of_slot[there], "role": role, "value": values[there]}))
    whole = pl.concat(frames) if frames else pl.DataFrame(schema=GPU_SCHEMA)
    whole = whole.with_columns(attempt=pl.lit(attempt, dtype=pl.UInt16), unix=pl.lit(unix, dtype=pl.Float64))
    return whole.select(pl.col(name).cast(kind) for name, kind in GPU_SCHEMA.items())


def with_times(samples: pl.LazyFrame) -> pl.LazyFrame:
    """Add what people ask for, in ms: TTFT and latency from the scheduled time (as LoadGen's Server does), TPOT, issue
    lag, and the head's own queue (issued until the last dispatch). Null where a sample has no such time."""

    def ms(later: str, earlier: str) -> pl.Expr:
        return (pl.col(later) - pl.col(earlier)) / 1e6

    decoded = pl.when(pl.col("n_tokens") > 1).then(pl.col("n_tokens") - 1)
    return samples.with_columns(
        ttft_ms=ms("first_ns", "scheduled_ns"),
        tpot_ms=ms("done_ns", "first_ns") / decoded,
        latency_ms=ms("done_ns", "scheduled_ns"),
        lag_ms=ms("issued_ns", "scheduled_ns"),
        head_queue_ms=ms("dispatched_ns", "issued_ns"),
    )
