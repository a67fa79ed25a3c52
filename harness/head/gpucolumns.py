"""The newest value of each role of each GPU of the fleet, with when it was sampled: what rounds of a source leave behind.

A round that lacks a role (a slow one between two ticks, a source that is down) leaves the older values in place; they age, and
past `stale_after_s` they are unknown again. Nothing that is missing is ever a 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from harness.wire.gpus import RoleColumn

Floats = npt.NDArray[np.float32]
Times = npt.NDArray[np.float64]

_SAME_S = 0.5  # between two estimates of when one sample was taken, of a server whose clock is not ours


class GpuColumns:
    def __init__(self, entries: int, stale_after_s: float, slow: Mapping[str, float] | None = None) -> None:
        """`entries`: slots x devices a slot; `slow`: when roles are stale that are asked for less often."""
        self.entries = entries
        self._stale_after_s, self._slow = stale_after_s, slow or {}
        self._values: dict[str, tuple[Floats, Times]] = {}
        self._metrics: dict[str, str] = {}

    def take(self, role: str, values: Floats, sampled_unix: Times, metric: str = "") -> None:
        """One role of a round: where it has a value, that counts from now on."""
        old, old_unix = self._values.get(role) or (np.full(self.entries, np.nan, "f4"), np.full(self.entries, np.nan))
        there = ~np.isnan(values)
        self._values[role] = np.where(there, values, old).astype("<f4"), np.where(there, sampled_unix, old_unix)
        self._metrics[role] = metric or self._metrics.get(role, "")

    def forget(self, entries: Sequence[int]) -> None:
        """These are other GPUs now."""
        theirs = np.zeros(self.entries, bool)
        theirs[list(entries)] = True
        for role, (values, unix) in self._values.items():  # anew: a record that is not written yet has the old ones
            self._values[role] = np.where(theirs, np.float32(np.nan), values), np.where(theirs, np.nan, unix)

    def fresh(self, now_unix: float) -> dict[str, tuple[Floats, Times]]:
        """Without what is too old."""
        found = {}
        for role, (values, unix) in self._values.items():
            young = now_unix - unix <= self._stale_s(role)
            found[role] = np.where(young, values, np.float32(np.nan)), unix
        return found

    def value(self, role: str, entry: int, now_unix: float) -> float:
        values, unix = self._values.get(role, (None, None))
        if values is None or unix is None or not now_unix - unix[entry] <= self._stale_s(role):
            return float("nan")
        return float(values[entry])

    def _stale_s(self, role: str) -> float:
        return self._slow.get(role, self._stale_after_s)

    def rows(self, now_unix: float) -> list[RoleColumn]:
        """For the wire: only roles of which something is known."""
        told = []
        for role, (values, unix) in self.fresh(now_unix).items():
            known = unix[~np.isnan(values)]
            if len(known):
                told.append(
                    RoleColumn(role, values.astype("<f4").tobytes(), self._metrics[role], float(known.max()), float(known.min()))
                )
        return told


def recorded(
    before: Mapping[str, Times], fresh: Mapping[str, tuple[Floats, Times]]
) -> tuple[dict[str, tuple[Floats, Times]], dict[str, Times]]:
    """Of `fresh` what was sampled since the last round that was recorded, and the times to compare with next time.

    A source slower than our rounds gives the same sample again and again: once is enough for a record.
    """
    news = {}
    for role, (values, unix) in fresh.items():
        last = before.get(role)
        new = ~np.isnan(values) & (unix > last + _SAME_S if last is not None else True)
        if new.any():
            news[role] = np.where(new, values, np.float32(np.nan)), unix
    return news, {role: np.nan_to_num(unix, nan=0.0) for role, (_, unix) in fresh.items()}
