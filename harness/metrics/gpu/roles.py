"""Roles: what can be known of a GPU (or of an engine), whatever its exporter calls it. Screens, record and alerts speak of these.

A value of a role is in the role's unit, always: profiles scale. Error counters keep the exporter's running count;
`throttle_*` are shares of the last minute spent throttled, because an accumulated residency says nothing by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Unit = Literal["percent", "share", "watt", "joule", "celsius", "byte", "mhz", "count", "flag", "code"]
Across = Literal["mean", "max", "min", "sum"]


@dataclass(frozen=True, slots=True)
class Role:
    name: str
    label: str  # of a column: at most 7 characters
    title: str  # of a panel
    unit: Unit
    across: Across  # of a replica that owns several GPUs, one value: the one an operator looks for
    high_is_bad: bool = True
    low: float = 0.0  # ends of a heat map's scale
    high: float = 100.0
    slow: bool = False  # asked for every slow_interval_s only
    engine: bool = False  # of a replica, not of a GPU


_ALL: Final = (
    Role("gpu_util", "util", "GPU busy", "percent", "mean", high_is_bad=False),
    Role("mem_bw", "membw", "memory bandwidth", "percent", "mean", high_is_bad=False),
    Role("power", "power", "power", "watt", "sum", high=1400.0),
    Role("energy", "energy", "energy", "joule", "sum", high=1e9, slow=True),
    Role("junction_temp", "temp", "junction temperature", "celsius", "max", low=30.0, high=105.0),
    Role("memory_temp", "memtemp", "memory temperature", "celsius", "max", low=30.0, high=105.0),
    Role("hbm_used", "hbm", "memory used", "byte", "sum", high=288e9),
    Role("hbm_total", "hbmtot", "memory", "byte", "sum", high=288e9, slow=True),
    Role("clock", "clock", "engine clock", "mhz", "min", high_is_bad=False, high=2400.0),
    Role("clock_ratio", "clock%", "clock against its maximum", "share", "min", high_is_bad=False, low=0.5, high=1.0),
    Role("throttle_power", "thr.pwr", "time at the power cap", "share", "max", high=1.0),
    Role("throttle_thermal", "thr.tmp", "time throttled by heat", "share", "max", high=1.0),
    Role("ecc_correctable", "ecc", "correctable memory errors", "count", "sum", slow=True),
    Role("ecc_uncorrectable", "ecc.unc", "uncorrectable memory errors", "count", "sum", high=1.0, slow=True),
    Role("health", "health", "health as the exporter judges it (1: well)", "flag", "min", high_is_bad=False, high=1.0, slow=True),
    Role("error_code", "error", "last error (XID, AFID)", "code", "max", slow=True),
    Role("pcie_replay", "pcie", "PCIe replays", "count", "sum", slow=True),
    Role("link_down", "nic", "NIC link losses", "count", "sum", high=1.0, slow=True),
    Role("kv_use", "kv", "KV cache in use", "share", "max", high=1.0, engine=True),
    Role("running", "run", "requests running", "count", "sum", engine=True, high_is_bad=False),
    Role("waiting", "wait", "requests waiting", "count", "sum", engine=True),
    Role("preemptions", "preempt", "preemptions", "count", "sum", engine=True),
)

ROLES: Final[dict[str, Role]] = {role.name: role for role in _ALL}
GPU_ROLES: Final = tuple(role.name for role in _ALL if not role.engine)
