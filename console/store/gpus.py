"""What is known of the fleet's GPUs: the head's newest word as columns, what alerts say, and how values went.

The head sends everything it knows after each round of the source, 1 to 300 s apart; ages are against its clock. A value that
is missing or too old to be shown is NaN, which is drawn as a dash, never 0. Sums over the GPUs of a replica need all of them.
Measured at 512 replicas with 13 roles: 0.4 ms for each word of the head, nothing at all for ticks in between.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from console.store.rings import History
from console.store.words import Unit
from harness.metrics.gpu.roles import GPU_ROLES, ROLES, Across, Role
from harness.spec import RunSpec
from harness.wire.gpus import AlertRow, GpuView, RoleColumn

Floats = NDArray[np.float32]

#: Roles whose past is kept for charts.
REMEMBERED: Final = (
    "gpu_util", "power", "junction_temp", "clock", "clock_ratio", "throttle_power", "throttle_thermal", "hbm_used",
)  # fmt: skip
ROUNDS: Final = 180
STALE_AFTER_S: Final = 90.0  # before the spec is known
SLOW_INTERVAL_S: Final = 60.0
SEVERITIES: Final = ("info", "warn", "crit")
_ENGINE: Final = "eng."  # before what an engine says of itself: replicas report the same to the head, under the plain name
#: Role → its column in tables, filters and orders.
COLUMN_OF: Final = {
    role.name: f"{_ENGINE}{role.label}" if role.name in ("kv_use", "running", "waiting") else role.label
    for role in ROLES.values()
}
ROLE_OF: Final = {column: role for role, column in COLUMN_OF.items()}
_UNITS: Final[dict[str, Unit]] = {
    "percent": "percent", "share": "share", "watt": "watt", "joule": "joule", "celsius": "celsius", "byte": "byte", "mhz": "mhz",
}  # fmt: skip


def unit_of(role: Role) -> Unit:
    """For filters; flags and codes are compared as numbers."""
    return _UNITS.get(role.unit, "count")


class Rounds(History):
    """One role of every replica, a point for each round of the source, whenever those were."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots, ROUNDS)
        self._times: deque[float] = deque(maxlen=ROUNDS)

    @property
    def unix(self) -> NDArray[np.float64]:
        """Of rounds before the first one, as if they had come as often."""
        times = np.fromiter(self._times, dtype=np.float64, count=len(self._times))
        every_s = float(np.median(np.diff(times))) if len(times) > 1 else 1.0
        first = float(times[0]) if len(times) else 0.0
        before = first - every_s * np.arange(ROUNDS - len(times), 0, -1, dtype=np.float64)
        return np.concatenate([before, times])

    def push(self, unix: float, column: Floats, serving: NDArray[np.bool_] | None = None) -> bool:
        """Only what is newer than the last round."""
        if self._times and unix <= self._times[-1]:
            return False
        self._advance(1)
        self._times.append(unix)
        self._put(column, serving)
        return True


class GpuPicture:
    def __init__(self) -> None:
        self.view: GpuView | None = None  # None: this run has no word of a source
        self.version = 0  # grows with every word of the head
        self._slots = 0
        self._stale_after_s, self._slow_interval_s = STALE_AFTER_S, SLOW_INTERVAL_S
        self._told: dict[str, RoleColumn] = {}
        self._devices: dict[str, Floats] = {}
        self._columns: dict[str, Floats] = {}
        self.rounds: dict[str, Rounds] = {}
        self._by_subject: dict[str, list[AlertRow]] = {}
        self._levels: tuple[int, NDArray[np.uint8]] = (-1, np.zeros(0, dtype=np.uint8))

    # --- what the store calls --------------------------------------------------------------------------------

    def fit(self, slots: int, spec: RunSpec | None) -> None:
        """Another roster: what was known was of other replicas."""
        self._slots = slots
        if spec is not None:
            told = spec.metrics.gpu
            self._stale_after_s, self._slow_interval_s = told.stale_after_s, told.slow_interval_s
        self.forget()

    def forget(self) -> None:
        self.view, self.rounds = None, {}
        self._told, self._devices, self._columns, self._by_subject = {}, {}, {}, {}
        self.version += 1

    def take(self, view: GpuView | None) -> None:
        if view is None:
            if self.view is not None:
                self.forget()
            return
        self.view = view
        self._told = {told.role: told for told in view.roles if told.role in ROLES}
        self._devices = {}
        for role, told in self._told.items():
            values = np.frombuffer(told.values, dtype="<f4")
            if len(values) == self._slots * max(1, view.devices):
                self._devices[role] = values.reshape(self._slots, max(1, view.devices))
        self._columns = {role: _across(values, ROLES[role]) for role, values in self._devices.items()}
        self._by_subject = {}
        for row in sorted(view.alerts, key=lambda row: (-_gravity(row), row.since_unix)):
            self._by_subject.setdefault(row.subject, []).append(row)
        self.version += 1
        self.remember(view.unix)

    def remember(self, unix: float) -> None:
        """A point of each chart, at the time at which the source had measured."""
        for role in REMEMBERED:
            column = self._columns.get(role)
            if column is not None:
                rounds = self.rounds.setdefault(role, Rounds(self._slots))
                rounds.push(self._told[role].sampled_unix or unix, column)

    # --- values ----------------------------------------------------------------------------------------------

    @property
    def there(self) -> bool:
        """A source has been found, whatever its state is now."""
        return self.view is not None and self.view.state != "none"

    @property
    def devices(self) -> int:
        return max(1, self.view.devices) if self.view is not None else 1

    def roles(self) -> list[Role]:
        """Those that the source has, in the registry's order."""
        return [role for name, role in ROLES.items() if name in self._columns]

    def gpu_roles(self) -> list[Role]:
        return [role for role in self.roles() if role.name in GPU_ROLES]

    def has(self, role: str) -> bool:
        return role in self._columns

    def column(self, role: str, unix: float) -> Floats:
        """One value a replica: of its GPUs the one that an operator looks for."""
        column = self._columns.get(role)
        return column if column is not None and not self.stale(role, unix) else np.full(self._slots, np.nan, dtype=np.float32)

    def of_replica(self, role: str, at: int, unix: float) -> Floats:
        """A value for each of its GPUs."""
        values = self._devices.get(role)
        if values is None or at >= len(values) or self.stale(role, unix):
            return np.full(self.devices, np.nan, dtype=np.float32)
        own: Floats = values[at]
        return own

    def metric(self, role: str) -> str:
        """As the exporter calls it."""
        told = self._told.get(role)
        return told.metric if told is not None else ""

    def why_missing(self, role: str) -> str:
        """Why the source does not collect it; empty when it does, or when nobody said."""
        return self.view.not_collected.get(role, "") if self.view is not None else ""

    # --- ages ------------------------------------------------------------------------------------------------

    def age_s(self, role: str, unix: float) -> float:
        """Of its newest value, by the head's clock."""
        told = self._told.get(role)
        return max(0.0, unix - told.sampled_unix) if told is not None and told.sampled_unix else math.nan

    def newest_age_s(self, unix: float) -> float:
        sampled = [told.sampled_unix for told in self._told.values() if told.sampled_unix]
        return max(0.0, unix - max(sampled)) if sampled else math.nan

    def stale(self, role: str, unix: float) -> bool:
        """Too old to be shown; of slow roles two of their turns are too old."""
        slow = ROLES[role].slow
        return self.age_s(role, unix) > max(self._stale_after_s, 2 * self._slow_interval_s if slow else 0.0)

    def old(self, role: str, unix: float) -> bool:
        """Older than its source makes it: shown, but greyed."""
        every_s = max(self.resolution_s, self._slow_interval_s if ROLES[role].slow else 0.0)
        return self.age_s(role, unix) > 3 * every_s

    @property
    def resolution_s(self) -> float:
        """How often values can change: by the source, else by how often it is asked."""
        view = self.view
        if view is None:
            return math.nan
        return view.interval_s if math.isnan(view.resolution_s) else max(view.resolution_s, view.interval_s)

    # --- alerts ----------------------------------------------------------------------------------------------

    @property
    def alerts(self) -> list[AlertRow]:
        """The gravest first."""
        rows = [row for found in self._by_subject.values() for row in found]
        return sorted(rows, key=lambda row: (-_gravity(row), row.since_unix))

    def alerts_of(self, slot: str, node: str) -> list[AlertRow]:
        """Of the replica, then of its node."""
        return [*self._by_subject.get(slot, ()), *self._by_subject.get(node, ())]

    def cause_of(self, slot: str, node: str) -> str:
        return next((row.cause for row in self.alerts_of(slot, node) if row.cause), "")

    def proposals(self) -> list[AlertRow]:
        """Those after which an operator should evict."""
        return [row for row in self.alerts if row.act == "evict"]

    def levels(self, slots: Iterable[tuple[str, str]]) -> NDArray[np.uint8]:
        """Of each (slot, node): 0 no alert, 1 info, 2 warn, 3 crit; made anew with every word of the head."""
        if self._levels[0] != self.version:
            if self._by_subject:
                found = [max((_gravity(row) for row in self.alerts_of(*place)), default=0) for place in slots]
            else:
                found = [0] * self._slots
            self._levels = (self.version, np.array(found, dtype=np.uint8))
        return self._levels[1]


def _gravity(row: AlertRow) -> int:
    return SEVERITIES.index(row.severity) + 1 if row.severity in SEVERITIES else 2


def _across(values: Floats, role: Role) -> Floats:
    """What a replica's GPUs come to. Engine roles use the first entry."""
    if role.engine or values.shape[1] == 1:
        first: Floats = values[:, 0]
        return first
    how: Across = role.across
    if how == "sum":
        return np.asarray(values.sum(axis=1), dtype=np.float32)  # NaN if one is missing
    if how in ("max", "min"):
        reduce = np.fmax.reduce if how == "max" else np.fmin.reduce
        return np.asarray(reduce(values, axis=1), dtype=np.float32)
    known = ~np.isnan(values)
    counted = known.sum(axis=1)
    total = np.where(known, values, np.float32(0)).sum(axis=1)
    return np.where(counted > 0, total / np.maximum(counted, 1), np.float32(np.nan)).astype(np.float32)
