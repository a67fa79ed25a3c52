"""Numbers to eight heat levels. Quantised with hysteresis: noise around a threshold is the largest share of what a
truecolor heat map writes to the terminal (17 KB a tick without), and flicker hides the one cell that matters.

Besides what replicas report there is a metric for each role that the source of GPU metrics has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from console.store.fleet import FleetStore
from console.store.gpus import COLUMN_OF
from harness.metrics.gpu.roles import GPU_ROLES, ROLES, Role

LEVELS: Final = 8
MARGIN: Final = 0.25  # of a level: how far past a threshold a value must go to change its level
UNKNOWN: Final = 255
_STEPS: Final = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0)  # where a scale by the fleet may end: it must not move with every value


@dataclass(frozen=True, slots=True)
class HeatMetric:
    name: str
    label: str
    low_text: str
    high_text: str
    high_is_bad: bool = True
    role: str = ""  # of a GPU; empty: of a replica


#: The first one is shown at the start: it names a slow replica whatever the load, where tok/s is noisy below saturation.
METRICS: Final = (
    HeatMetric("ratio", "step-time ratio", "0.9", "1.3"),
    HeatMetric("tok", "tok/s vs median", "50%", "115%", high_is_bad=False),
    HeatMetric("ttft", "TTFT p99", "0", "limit"),
    HeatMetric("batch", "batch", "0", "fleet max"),
    HeatMetric("waiting", "waiting", "0", "fleet max"),
)
#: Ends of a scale that the registry of roles has for one GPU; the others end where the fleet does.
_SCALES: Final = {"watt": (1.0, " W"), "joule": (1e6, " MJ"), "byte": (1e9, " GB"), "mhz": (1.0, " MHz")}
_FIXED: Final = ("percent", "share", "celsius", "flag")


def metrics_of(store: FleetStore) -> list[HeatMetric]:
    """All that can be shown now."""
    return [*METRICS, *(_of_role(store, role) for role in store.gpus.gpu_roles())]


def fresh(store: FleetStore, metric: HeatMetric) -> HeatMetric:
    """With the ends that its scale has now."""
    return _of_role(store, ROLES[metric.role]) if metric.role else metric


def named(store: FleetStore, text: str) -> HeatMetric | None:
    """By its name, its role's name, or a beginning that fits only one."""
    low = text.strip().lower()
    known = metrics_of(store)
    exact = [metric for metric in known if low in (metric.name, metric.role)]
    begun = [metric for metric in known if metric.name.startswith(low) or metric.role.startswith(low)]
    found = exact or begun
    return found[0] if len(found) == 1 or exact else None


def _of_role(store: FleetStore, role: Role) -> HeatMetric:
    low, high = _ends(store, role)
    return HeatMetric(COLUMN_OF[role.name], role.title, _written(low, role), _written(high, role), role.high_is_bad, role.name)


def _ends(store: FleetStore, role: Role) -> tuple[float, float]:
    if role.unit in _FIXED:
        return role.low, role.high
    peak = _peak(store.gpus.column(role.name, store.unix))
    whole = 10.0 ** math.floor(math.log10(peak)) if peak > 0 else 1.0
    return 0.0, next(step * whole for step in _STEPS if step * whole >= peak * 0.999)


def _written(value: float, role: Role) -> str:
    """With its unit: what the end of a scale stands for."""
    if role.unit == "percent":
        return f"{value:.0f}%"
    if role.unit == "share":
        return f"{value * 100:.0f}%"
    if role.unit == "celsius":
        return f"{value:.0f} °C"
    scale, unit = _SCALES.get(role.unit, (1.0, ""))
    return f"{value / scale:g}{unit}"


def scaled(store: FleetStore, metric: HeatMetric) -> NDArray[np.float32]:
    """The metric as 0..1 on its scale, NaN where unknown."""
    if metric.role:
        low, high = _ends(store, ROLES[metric.role])
        return (store.gpus.column(metric.role, store.unix) - np.float32(low)) / np.float32(high - low)
    if metric.name == "tok":
        return (store.floats("tokens_s") / (store.median("tokens_s") or math.nan) - 0.5) / 0.65
    if metric.name == "ratio":
        return (store.floats("ratio") - 0.9) / 0.4
    if metric.name == "ttft":
        limit_ms = store.snapshot.ttft.limit_ms if store.snapshot else None
        values = store.floats("ttft_p99_ms")
        return values / (limit_ms or _peak(values))
    values = store.floats("batch") if metric.name == "batch" else store.ints("waiting").astype(np.float32)
    return values / _peak(values)


def _peak(values: NDArray[np.float32]) -> float:
    known = values[~np.isnan(values)]
    return max(1.0, float(known.max())) if len(known) else 1.0


def names(store: FleetStore) -> Sequence[str]:
    """What `:heat` takes."""
    return [metric.name for metric in metrics_of(store)]


def missing(store: FleetStore, text: str) -> str:
    """Why there is no such metric, in words."""
    low = text.strip().lower()
    role = next((name for name in GPU_ROLES if low in (name, COLUMN_OF[name])), "")
    if role:
        why = store.gpus.why_missing(role)
        source = store.gpus.view.source if store.gpus.there and store.gpus.view is not None else ""
        return (
            f"{role} is not collected"
            + (f" by {source}" if source else ": there is no source of GPU metrics")
            + (f": {why}" if why else "")
        )
    return f"no heat metric {text.strip()!r}; there are {', '.join(names(store))}"


class HeatLevels:
    def __init__(self) -> None:
        self._levels: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self._metric = ""

    def update(self, store: FleetStore, metric: HeatMetric) -> NDArray[np.uint8]:
        """Level of each slot, UNKNOWN where there is no value."""
        raw = scaled(store, metric) * LEVELS
        known = ~np.isnan(raw)
        fresh = np.full(len(raw), UNKNOWN, dtype=np.uint8)
        fresh[known] = np.clip(raw[known], 0, LEVELS - 1).astype(np.uint8)
        if len(self._levels) == len(raw) and self._metric == metric.name:
            old = self._levels.astype(np.float32)
            near = known & (self._levels != UNKNOWN) & (raw > old - MARGIN) & (raw < old + 1 + MARGIN)
            fresh[near] = self._levels[near]
        self._levels, self._metric = fresh, metric.name
        return fresh
