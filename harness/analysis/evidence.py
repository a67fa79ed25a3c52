"""What else sets a replica or a node apart: GPU metrics that stand out beside the fleet's in the same time, and settings that
most replicas do not have. It stands beside a finding and proves nothing: two things that are odd at once need not be cause and
effect.

A GPU metric stands out by the robust z of replicas' means over the attempt (as in `harness.analysis.fleet`), in its bad direction
and by 5 % at least; a running count (ECC, PCIe replays) when it grew there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from harness.analysis.distributions import short
from harness.analysis.fleet import robust_z
from harness.analysis.table import node_of
from harness.analysis.views import Where
from harness.metrics.gpu.roles import ROLES

if TYPE_CHECKING:
    from harness.analysis.drill import Drill

_GAUGES: Final = ("clock_ratio", "throttle_power", "throttle_thermal", "junction_temp", "memory_temp", "health")
_COUNTS: Final = ("ecc_uncorrectable", "ecc_correctable", "pcie_replay", "link_down")
_ODD_Z: Final = 3.5
_ODD_SHARE: Final = 0.05
_NAMED: Final = 3

_SHOWN: Final[dict[str, Callable[[float], str]]] = {
    "share": lambda value: f"{value:.0%}",
    "celsius": lambda value: f"{value:.0f} °C",
    "count": lambda value: f"{value:,.0f}",
}


class Evidence:
    def __init__(self, drill: Drill) -> None:
        self._drill = drill

    def of(self, where: Where) -> str:
        """Sentences, each with a blank before it; empty where nothing stands out or nothing was recorded."""
        slots = self._slots(where)
        gpus, settings = self._gpus(slots), self._settings(slots)
        said = f" Its GPUs meanwhile: {'; '.join(gpus[:_NAMED])}." if gpus else ""
        return said + (f" Set up otherwise than most: {'; '.join(settings[:_NAMED])}." if settings else "")

    def _slots(self, where: Where) -> set[str]:
        return {slot for slot in self._drill.table.slots if slot == where.slot or node_of(slot) == where.node}

    @cached_property
    def _means(self) -> dict[str, dict[str, float]]:
        """role → slot → mean over the attempt, or how much a count grew."""
        frame = self._drill.record.collect(
            lambda gpus: (
                gpus.filter(pl.col("role").is_in([*_GAUGES, *_COUNTS]))
                .sort("sampled_unix")
                .group_by("role", "slot", "device")
                .agg(mean=pl.col("value").mean(), grew=(pl.col("value").last() - pl.col("value").first()).clip(0))
                .group_by("role", "slot")
                .agg(pl.col("mean").mean(), pl.col("grew").sum())
            ),
            self._drill.number,
            "gpus",
        )
        means: dict[str, dict[str, float]] = {}
        for role, slot, mean, grew in frame.select("role", "slot", "mean", "grew").iter_rows():
            means.setdefault(role, {})[slot] = grew if role in _COUNTS else mean
        return means

    def _gpus(self, slots: set[str]) -> list[str]:
        found = []
        for name in (*_GAUGES, *_COUNTS):
            of = self._means.get(name, {})
            mine = [value for slot, value in of.items() if slot in slots]
            others = [value for slot, value in of.items() if slot not in slots]
            if not mine or not others:
                continue
            role, here, usual = ROLES[name], float(np.median(mine)), float(np.median(others))
            show = _SHOWN.get(role.unit, short)
            if name in _COUNTS:
                if sum(mine) > 0 and not any(others):
                    found.append(f"{role.title} {show(sum(mine))} new, none elsewhere")
            elif _stands_out(here, others, high_is_bad=role.high_is_bad):
                found.append(f"{role.title} {show(here)} against {show(usual)}")
        return found

    @cached_property
    def _differences(self) -> list[tuple[str, str, str, set[str]]]:
        """field, value, value of most, slots that have it."""
        return [
            (one.field, variant.value, one.variants[0].value, set(variant.slots))
            for one in self._drill.config()
            for variant in one.variants[1:]
            if 2 * len(variant.slots) < sum(len(each.slots) for each in one.variants)
        ]

    def _settings(self, slots: set[str]) -> list[str]:
        return [f"{field} {value}, most {most}" for field, value, most, whose in self._differences if slots and slots <= whose]


def _stands_out(here: float, others: list[float], *, high_is_bad: bool) -> bool:
    z = float(robust_z(np.array([*others, here]))[-1])
    usual = float(np.median(others))
    odd = z > _ODD_Z if high_is_bad else z < -_ODD_Z
    return odd and abs(here - usual) > _ODD_SHARE * max(abs(usual), 1e-9)
