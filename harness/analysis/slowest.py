"""The slowest samples, and a row of the table in words that people read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from harness.analysis.views import Metric, SampleRow, Where

if TYPE_CHECKING:
    from harness.analysis.table import AttemptTable

MOST = 10_000


def slowest(table: AttemptTable, by: Metric, n: int, where: Where) -> list[SampleRow]:
    """Completed samples with the largest `by`, the largest first; at most 10,000."""
    values, chosen = table.metric(by), table.chosen(where)
    known = ~np.isnan(values)
    rows = np.flatnonzero(known if chosen is None else known & chosen)
    n = min(max(n, 0), len(rows), MOST)
    if not n:
        return []
    largest = rows[np.argpartition(values[rows], len(rows) - n)[len(rows) - n :]]
    return [row_of(table, int(row)) for row in largest[np.lexsort((table.seq[largest], -values[largest]))]]


def row_of(table: AttemptTable, row: int) -> SampleRow:
    return SampleRow(
        seq=int(table.seq[row]),
        index=int(table.index[row]),
        slot=slot_at(table, int(table.slot[row])),
        prefill_slot=slot_at(table, int(table.prefill_slot[row])),
        incarnation=int(table.incarnation[row]),
        tries=int(table.tries[row]),
        n_prompt=int(table.n_prompt[row]),
        n_tokens=int(table.n_tokens[row]),
        scheduled_s=float(table.scheduled_s[row]),
        ttft_ms=_told(table.first_ms[row]),
        tpot_ms=_told(table.tpot_ms[row]),
        latency_ms=_told(table.latency_ms[row]),
        failed=not bool(table.done[row]),
    )


def slot_at(table: AttemptTable, code: int) -> str | None:
    return table.slots[code] if code >= 0 else None


def _told(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
