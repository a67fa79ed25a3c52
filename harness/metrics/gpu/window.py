"""The last ten minutes of every role, by GPU of the fleet: what alert rules without a PromQL server look back on.

Columns are those of the join: one place for each GPU, NaN where nothing is known. A window ends at the newest column of any
role, so that a role that is not pushed any more grows old instead of standing still. Kept by time and by number of columns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float32]
Floats = NDArray[np.float64]

KEEP_S: Final = 660.0  # ten minutes, and a round more
MOST_COLUMNS: Final = 720


class RoleHistory:
    """Answers are None for a role that never came, and NaN for a GPU that nothing is known of in the window."""

    def __init__(self, keep_s: float = KEEP_S) -> None:
        self._keep_s = keep_s
        self._rows: dict[str, deque[tuple[float, Column]]] = {}
        self._now_unix = float("-inf")

    def push(self, unix: float, columns: Mapping[str, Column]) -> None:
        """Of one round; roles that were not read are not there. A column of another length begins its role anew."""
        self._now_unix = max(self._now_unix, unix)
        for role, column in columns.items():
            rows = self._rows.setdefault(role, deque(maxlen=MOST_COLUMNS))
            if rows and len(rows[-1][1]) != len(column):
                rows.clear()
            if rows and unix <= rows[-1][0]:  # a clock that was set back: the order must hold
                rows.pop()
            rows.append((unix, np.array(column, np.float32)))
        for rows in self._rows.values():
            while len(rows) > 1 and rows[0][0] < self._now_unix - self._keep_s:
                rows.popleft()

    def forget(self, places: Sequence[int]) -> None:
        """Other GPUs are there now: nothing is known of them."""
        for rows in self._rows.values():
            for _, column in rows:
                column[places] = np.nan

    def last(self, role: str) -> Column | None:
        rows = self._rows.get(role)
        return rows[-1][1] if rows else None

    def span_s(self, role: str) -> float:
        """How far back it goes; 0 with one column or none."""
        rows = self._rows.get(role)
        return rows[-1][0] - rows[0][0] if rows else 0.0

    def delta(self, role: str, window_s: float) -> Floats | None:
        """By how much a count grew; a fall is a restart from 0. NaN with fewer than two values in the window."""
        rows = self._window(role, window_s)
        if rows is None:
            return None
        grown, before = np.zeros(rows.shape[1]), np.full(rows.shape[1], np.nan)
        number = np.zeros(rows.shape[1], np.intp)
        for row in rows:
            known = ~np.isnan(row)
            step = row - before
            grown += np.where(known & (number > 0), np.where(step < 0, row, step), 0.0)
            before = np.where(known, row, before)
            number += known
        return np.where(number >= 2, grown, np.nan)

    def mean(self, role: str, window_s: float) -> Floats | None:
        rows = self._window(role, window_s)
        if rows is None:
            return None
        known = ~np.isnan(rows)
        with np.errstate(invalid="ignore"):
            made: Floats = np.where(known, rows, 0.0).sum(axis=0) / known.sum(axis=0)
        return made

    def max(self, role: str, window_s: float) -> Floats | None:
        rows = self._window(role, window_s)
        if rows is None:
            return None
        made: Floats = np.fmax.reduce(rows, axis=0, initial=np.nan)
        return made

    def _window(self, role: str, window_s: float) -> Floats | None:
        rows = self._rows.get(role)
        if not rows:
            return None
        start = self._now_unix - window_s
        inside = [column for unix, column in rows if unix >= start]
        return np.array(inside, np.float64) if inside else np.full((1, len(rows[-1][1])), np.nan)
