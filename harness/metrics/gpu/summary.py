"""What a record's GPU metrics come to: of each role its range over the fleet, the replicas at the bad end, how much is there.

Gauges have a median and ends; running counts (errors, energy) have how much they grew while they were watched, because where
they stood before the run says nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from harness.metrics.gpu.roles import ROLES

if TYPE_CHECKING:
    import polars as pl

    from harness.records.reader import Record

COUNTS: Final = ("energy", "ecc_correctable", "ecc_uncorrectable", "pcie_replay", "link_down", "preemptions")
#: Whose highest value is no worse than its lowest: of a fleet that works alike, the odd one is looked for.
_ODD_IS_BAD: Final = ("power", "mem_bw", "hbm_used", "hbm_total", "running")
WORST: Final = 3


@dataclass(frozen=True)
class RoleSummary:
    role: str
    title: str
    unit: str
    count: bool  # a running count: `grew` instead of a range
    values: int
    gpus: int  # (replicas for roles of engines) that have a value
    every_s: float | None  # between two samples of a GPU
    p50: float | None = None
    min: float | None = None
    max: float | None = None
    grew: float | None = None  # the whole fleet
    worst: list[tuple[str, float]] = field(default_factory=list)  # slot and its mean (or growth), the worst or oddest first


def summarise_gpus(record: Record, attempt: int | None = None) -> list[RoleSummary]:
    """In the order of the roles; those of which the record has nothing are not there."""
    frame = record.collect(lambda gpus: gpus.sort("sampled_unix"), attempt, "gpus")
    parts = {str(key[0]): part for key, part in frame.partition_by("role", as_dict=True).items()}
    found = []
    for name in [*ROLES, *(name for name in parts if name not in ROLES)]:
        if name in parts:
            found.append(_count(name, parts[name]) if name in COUNTS else _gauge(name, parts[name]))
    return found


def _gauge(name: str, rows: pl.DataFrame) -> RoleSummary:
    import polars as pl

    ends = rows.select(p50=pl.col("value").median(), min=pl.col("value").min(), max=pl.col("value").max()).row(0, named=True)
    by_slot = rows.group_by("slot").agg(pl.col("value").mean())
    if name in _ODD_IS_BAD:
        badness = (pl.col("value") - pl.col("value").median()).abs()
    else:
        badness = pl.col("value") if name not in ROLES or ROLES[name].high_is_bad else -pl.col("value")
    worst = by_slot.sort(badness, "slot", descending=[True, False]).head(WORST)
    alike = ends["min"] == ends["max"]
    return RoleSummary(**_common(name, rows), **ends, worst=[] if alike else list(worst.iter_rows()))


def _count(name: str, rows: pl.DataFrame) -> RoleSummary:
    """A fall is a restart from 0."""
    import polars as pl

    step = pl.col("value").diff().over("slot", "device")
    grown = rows.with_columns(grew=pl.when(step < 0).then(pl.col("value")).otherwise(step.fill_null(0.0)))
    by_slot = grown.group_by("slot").agg(pl.col("grew").sum()).filter(pl.col("grew") > 0)
    worst = by_slot.sort("grew", "slot", descending=[True, False]).head(WORST)
    return RoleSummary(**_common(name, rows), grew=float(grown["grew"].sum()), worst=list(worst.iter_rows()))


def _common(name: str, rows: pl.DataFrame) -> dict[str, Any]:
    import polars as pl

    known = ROLES.get(name)
    gaps = rows.select(pl.col("sampled_unix").diff().over("slot", "device").median()).item()
    return {
        "role": name,
        "title": known.title if known else name,
        "unit": known.unit if known else "",
        "count": name in COUNTS,
        "values": rows.height,
        "gpus": rows.select("slot", "device").n_unique(),
        "every_s": gaps,
    }
