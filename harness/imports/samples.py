"""Samples of somebody else's run as rows of ours: chunks of the samples table, under one replica's name.

What the source does not say is what a head writes for it: -1 for a time (null in the record), 0 tokens for a number of
tokens that is not known. A row whose times run backwards is no measurement; such rows are left out and counted.
"""

from __future__ import annotations

import dataclasses
from array import array
from typing import Any, Final

import numpy as np

from harness.records.layout import RunFolder
from harness.wire.attempt import SAMPLE_DTYPE

_CHUNK_ROWS: Final = 200_000
NEVER: Final = -1
UNKNOWN_INDEX: Final = -1


def _int64() -> array[int]:
    return array("q")


def _int32() -> array[int]:
    return array("i")


@dataclasses.dataclass(slots=True)
class Columns:
    """Parallel columns, 48 bytes a sample. Times are ns on the source's clock; NEVER where there is none."""

    seq: array[int] = dataclasses.field(default_factory=_int64)
    index: array[int] = dataclasses.field(default_factory=_int32)
    tries: array[int] = dataclasses.field(default_factory=_int32)
    n_prompt: array[int] = dataclasses.field(default_factory=_int32)
    n_tokens: array[int] = dataclasses.field(default_factory=_int32)
    scheduled_ns: array[int] = dataclasses.field(default_factory=_int64)
    issued_ns: array[int] = dataclasses.field(default_factory=_int64)
    first_ns: array[int] = dataclasses.field(default_factory=_int64)
    done_ns: array[int] = dataclasses.field(default_factory=_int64)

    def __len__(self) -> int:
        return len(self.seq)


def write_samples(
    folder: RunFolder, attempt: int, slot: str, columns: Columns, zero_ns: int, keep: np.ndarray[Any, Any] | None = None
) -> tuple[int, int]:
    """Rows (of those in `keep`) relative to `zero_ns`; how many were written, and how many had impossible times."""
    from harness.records.writer import RecordWriter

    writer = RecordWriter(folder, waiting_rows=2 * _CHUNK_ROWS)
    written = odd = 0
    for start in range(0, len(columns), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        rows = _rows(columns, part, zero_ns)
        if keep is not None:
            rows = rows[keep[part]]
        whole = _in_order(rows)
        odd += int(len(rows) - whole.sum())
        rows = rows[whole]
        written += len(rows)
        writer.samples(attempt, 1, rows, [slot])
        writer.flush()
    writer.flush(final=True)
    return written, odd


def _rows(columns: Columns, part: slice, zero_ns: int) -> np.ndarray[Any, Any]:
    rows = np.zeros(len(columns.seq[part]), SAMPLE_DTYPE)
    for name in ("seq", "index", "tries", "n_prompt", "n_tokens"):
        rows[name] = np.array(getattr(columns, name)[part], dtype=np.int64)
    for name in ("scheduled_ns", "issued_ns", "first_ns", "done_ns"):
        times = np.array(getattr(columns, name)[part], dtype=np.int64)
        rows[name] = np.where(times == NEVER, NEVER, times - zero_ns)
    rows["incarnation"] = 1
    for name in ("dispatched_ns", "queue_us", "prefill_us", "decode_us", "prefill_slot", "prefilled_ns", "transfer_us"):
        rows[name] = -1
    return rows


def _in_order(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Scheduled, issued, first token, last token, from time zero on."""
    scheduled, issued, first, done = (rows[name] for name in ("scheduled_ns", "issued_ns", "first_ns", "done_ns"))
    in_order = (scheduled >= 0) & (issued >= scheduled) & ((done == NEVER) | (done >= issued))
    both: np.ndarray[Any, Any] = in_order & ((first == NEVER) | ((first >= issued) & ((done == NEVER) | (done >= first))))
    return both
