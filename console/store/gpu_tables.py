"""What tables say of GPUs and alerts; nothing where a run has no word of a source. Part of tables.py, whose rules hold here."""

from __future__ import annotations

import math
from typing import Any, Final

from console.store.fleet import FleetStore
from console.store.nodes import NodeRows
from harness.metrics.gpu.roles import ROLES, Role
from harness.wire.gpus import AlertRow

Row = dict[str, Any]

_UNITS: Final = {
    "percent": "_percent", "share": "_fraction", "watt": "_w", "joule": "_j", "celsius": "_celsius", "byte": "_bytes",
    "mhz": "_mhz",
}  # fmt: skip
_NODE: Final = {"util": "gpu_util_percent_mean", "power": "power_w", "temp": "junction_temp_celsius_max",
                "clock": "clock_mhz_min", "throttle": "throttle_fraction_max"}  # fmt: skip


def key_of(role: Role) -> str:
    """`power_w`, `gpu_util_percent`; an engine's own figures are told apart from what its replica reports."""
    name = f"engine_{role.name}" if role.engine else role.name
    return name + _UNITS.get(role.unit, "")


def source(store: FleetStore) -> list[Row]:
    """One row about where GPU metrics come from. At the end nothing: nobody asks it any more."""
    gpus, view = store.gpus, store.gpus.view
    if view is None or store.ended:
        return []
    return [{
        "state": view.state, "kind": view.kind, "source": view.source, "profiles": list(view.profiles),
        "interval_s": view.interval_s or None, "resolution_s": _known(view.resolution_s), "devices_per_replica": view.devices,
        "newest_age_s": _known(gpus.newest_age_s(store.unix)), "roles": [role.name for role in gpus.roles()],
        "not_collected": dict(view.not_collected), "problem": view.problem, "warnings": list(view.warnings),
        "gpus_matched": view.matched, "gpus_unmatched": view.gpus_unmatched, "series_unmatched": view.series_unmatched,
        "unmatched": list(view.unmatched), "alert_rules": view.rules,
    }]  # fmt: skip


def alerts(store: FleetStore) -> list[Row]:
    """Those that fire, the gravest first."""
    return [_alert(store, row) for row in store.gpus.alerts] if not store.ended else []


def _alert(store: FleetStore, row: AlertRow) -> Row:
    return {
        "rule": row.rule, "subject": row.subject, "severity": row.severity, "since_unix": row.since_unix,
        "for_s": _known(store.unix - row.since_unix), "value": _known(row.value), "text": row.text, "cause": row.cause,
        "act": row.act,
    }  # fmt: skip


def whole(store: FleetStore) -> dict[str, list[Row]]:
    told = source(store)
    return {"gpu_source": told, "alerts": alerts(store)} if told else {}


class OfReplicas:
    """One value a replica for each role that the source has."""

    def __init__(self, store: FleetStore) -> None:
        self._store = store
        self._columns = {key_of(role): store.gpus.column(role.name, store.unix) for role in store.gpus.roles()}

    def at(self, at: int) -> Row:
        gpus, info = self._store.gpus, self._store.slots[at]
        if not gpus.there:
            return {}
        row: Row = {key: _known(float(column[at])) for key, column in self._columns.items()}
        return row | {"alerts": list(dict.fromkeys(alert.rule for alert in gpus.alerts_of(info.slot, info.node)))}


def of_node(rows: NodeRows, at: int) -> Row:
    found = {key: _known(float(rows.columns[name][at])) for name, key in _NODE.items()}
    return found if any(value is not None for value in found.values()) else {}


def of_replica(store: FleetStore, slot: str) -> dict[str, list[Row]]:
    """Each role of each GPU with how old it is, those that are not collected with why; and the alerts about it."""
    gpus, at = store.gpus, store.index.get(slot)
    view = gpus.view
    if view is None or at is None or not gpus.there:
        return {}
    rows: list[Row] = []
    for role in gpus.roles():
        values = gpus.of_replica(role.name, at, store.unix)
        for device in range(1 if role.engine else gpus.devices):
            rows.append({
                "gpu": device, "role": role.name, "unit": role.unit, "value": _known(float(values[device])),
                "age_s": _known(gpus.age_s(role.name, store.unix)), "stale": gpus.stale(role.name, store.unix),
                "metric": gpus.metric(role.name), "not_collected": "",
            })  # fmt: skip
    rows += [
        {"gpu": None, "role": name, "unit": ROLES[name].unit, "value": None, "age_s": None, "stale": False, "metric": "",
         "not_collected": why}
        for name, why in view.not_collected.items()
        if name in ROLES
    ]  # fmt: skip
    info = store.slots[at]
    return {
        "gpus": rows,
        "alerts": [_alert(store, row) for row in gpus.alerts_of(info.slot, info.node)],
        "gpu_source": source(store),
    }


def _known(value: float) -> float | None:
    return round(float(value), 4) if math.isfinite(value) else None
