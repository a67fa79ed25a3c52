"""Figures of GPU roles as text, in the unit of each. Without Textual: the text twins write them too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from console.store.gpus import COLUMN_OF, ROLE_OF
from console.widgets import fmt
from harness.metrics.gpu.roles import ROLES, Role

_HEADINGS: Final = {"junction_temp": "TEMP", "throttle_power": "THR.PWR", "throttle_thermal": "THR.TMP", "hbm_used": "MEMORY"}


def written(value: float, role: Role) -> str:
    """As short as it goes: columns are seven wide."""
    if math.isnan(value):
        return fmt.UNKNOWN
    if role.unit == "percent":
        return f"{value:.0f}%"
    if role.unit == "share":
        return fmt.percent(value)
    if role.unit == "watt":
        return f"{value:,.0f} W" if value < 10_000 else f"{value / 1000:.1f} kW"
    if role.unit == "celsius":
        return f"{value:.0f}°C"
    if role.unit == "byte":
        return fmt.size(value)
    if role.unit == "joule":
        return f"{value / 1e6:,.1f} MJ" if value < 1e9 else f"{value / 1e6:,.0f}MJ"
    return fmt.count(value) if abs(value) < 1e6 else fmt.big(value)


def titled(role: str, value: float) -> tuple[str, str]:
    """`power`, `559 W`; of a role that is not known here its name and number."""
    known = ROLES.get(role)
    return (known.title, written(value, known)) if known is not None else (role, f"{value:,.4g}")


def writer(column: str) -> Callable[[float], str]:
    """For a column of a table."""
    role = ROLES[ROLE_OF[column]]
    return lambda value: written(value, role)


def heading(role: Role) -> str:
    return _HEADINGS.get(role.name, COLUMN_OF[role.name].upper())
