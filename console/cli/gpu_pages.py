"""What pages of text say of GPUs and alerts; nothing of it for a run without a source of GPU metrics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from console.cli.page import Column, Page
from console.store.gpus import COLUMN_OF
from console.store.tables import Row, Tables
from console.widgets import fmt
from console.widgets.gpu_figures import written
from harness.metrics.gpu.roles import ROLES

_STATES: Final = {"down": "DOWN", "stale": "STALE"}  # in capitals: read without colour
_SHOWN: Final = 8


def _as(key: str, role: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        value = row.get(key)
        return fmt.UNKNOWN if value is None else written(float(value), ROLES[role])

    return text


def _alerts(row: Row) -> str:
    return ", ".join(row.get("alerts") or [])


#: Of replicas and of nodes; a column without a value is left away.
GPU_COLUMNS: Final = (
    Column("UTIL", _as("gpu_util_percent", "gpu_util"), keep=5),
    Column("POWER", _as("power_w", "power"), keep=8),
    Column("TEMP", _as("junction_temp_celsius", "junction_temp"), keep=6),
    Column("CLOCK", _as("clock_mhz", "clock"), keep=5),
    Column("AT CAP", _as("throttle_power_fraction", "throttle_power"), keep=7),
    Column("TOO HOT", _as("throttle_thermal_fraction", "throttle_thermal"), keep=6),
    Column("ALERTS", _alerts, right=False, keep=8),
)
NODE_GPU_COLUMNS: Final = (
    Column("UTIL", _as("gpu_util_percent_mean", "gpu_util"), keep=4),
    Column("POWER", _as("power_w", "power"), keep=7),
    Column("TEMP", _as("junction_temp_celsius_max", "junction_temp"), keep=5),
    Column("CLOCK", _as("clock_mhz_min", "clock"), keep=4),
    Column("THROTTLE", _as("throttle_fraction_max", "throttle_power"), keep=6),
)
_ALERT_COLUMNS: Final = (
    Column("ALERT", lambda row: str(row["rule"]), right=False),
    Column("OF", lambda row: str(row["subject"]), right=False),
    Column("SEVERITY", lambda row: str(row["severity"]).replace("crit", "CRIT"), right=False),
    Column("FOR", lambda row: fmt.age(math.nan if row["for_s"] is None else row["for_s"]), keep=7),
    Column("WHAT", lambda row: str(row["text"] or row["cause"]), right=False, keep=8),
    Column("DO", lambda row: "evict it" if row["act"] == "evict" else "", right=False),
)


def gpu_lines(page: Page, tables: Tables) -> None:
    """The source in a line, what is wrong with it, then the alerts that fire."""
    for row in tables.get("gpu_source", []):
        _source(page, row)
        if tables.get("alerts"):
            page.title(f"Alerts {len(tables['alerts'])}, of {fmt.plural(row['alert_rules'], 'rule')}")
            _alert_table(page, tables["alerts"])


def _source(page: Page, row: Row) -> None:
    if row["state"] == "none":
        page.prose(f"no GPU metrics: {row['problem']}" if row["problem"] else "no GPU metrics")
        return
    resolution = f"values change every {row['resolution_s']:.0f} s" if row["resolution_s"] else ""
    age = f"newest {fmt.age(row['newest_age_s'])} old" if row["newest_age_s"] is not None else "nothing measured yet"
    missing = f"{row['gpus_unmatched']:,d} GPUs without a series" if row["gpus_unmatched"] else ""
    strangers = f"{row['series_unmatched']:,d} series of no replica" if row["series_unmatched"] else ""
    page.line(
        f"GPU metrics {_STATES.get(row['state'], row['state'])}", row["source"], ", ".join(row["profiles"]), resolution, age,
        f"{row['gpus_matched']:,d} GPUs", missing, strangers,
    )  # fmt: skip
    for text in filter(None, (row["problem"], *row["warnings"])):
        page.prose(text)
    if row["not_collected"]:
        page.prose("not collected: " + ", ".join(COLUMN_OF.get(name, name) for name in row["not_collected"]))


def _alert_table(page: Page, rows: list[Row]) -> None:
    page.table(_ALERT_COLUMNS, rows[:_SHOWN])
    if len(rows) > _SHOWN:
        page.line(f"and {len(rows) - _SHOWN:,d} more")


def gpus_of_replica(page: Page, tables: Tables) -> None:
    """Role by role: one line a role, one figure a GPU, how old it is; why the others are not collected."""
    rows = tables.get("gpus") or []
    measured = [row for row in rows if not row["not_collected"]]
    for row in tables.get("gpu_source", []):
        page.title("GPUs")
        _source(page, row)
    for role in dict.fromkeys(row["role"] for row in measured):
        mine = [row for row in measured if row["role"] == role]
        values = "  ".join(f"{fmt.UNKNOWN if row['value'] is None else written(row['value'], ROLES[role]):>8}" for row in mine)
        age = fmt.age(math.nan if mine[0]["age_s"] is None else mine[0]["age_s"])
        stale = "  too old to show" if mine[0]["stale"] else ""
        page.line(f"{COLUMN_OF[role]:<9}{values}", f"{age:>4} old{stale}", ROLES[role].title)
    for row in rows:
        if row["not_collected"]:
            page.line(f"{COLUMN_OF[row['role']]:<9}{fmt.UNKNOWN:>8}", f"not collected: {row['not_collected']}")
    if tables.get("alerts"):
        page.title("Alerts about it")
        _alert_table(page, tables["alerts"])
