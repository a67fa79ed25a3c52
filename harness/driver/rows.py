"""Sample rows on their way to the supervisor: filled one by one, taken ten times a second.

One assignment of a tuple to a structured row costs about 1 µs; building arrays of a batch at once would save half of
it but put the whole cost of 400 samples into one pause of the dispatcher.
"""

from __future__ import annotations

import numpy as np

from harness.driver.ledger import Member, Sample
from harness.wire.attempt import SAMPLE_DTYPE

_MAX_US = 2**31 - 1


class RowBuffer:
    def __init__(self, capacity: int = 8192) -> None:
        self._rows = np.zeros(capacity, SAMPLE_DTYPE)
        self._n = 0
        self._full: list[bytes] = []

    def add(
        self, sample: Sample, member: Member | None, n_prompt: int, n_tokens: int, zero_ns: int, done_ns: int, decode_us: int
    ) -> None:
        first_ns = sample.first_ns
        split = sample.stage  # 0 where prefill and decode are not split: the columns of a split cost those runs nothing
        row = (
            sample.seq,
            sample.index,
            member.index if member is not None else -1,
            member.nth if member is not None else 0,
            sample.tries,
            n_prompt,
            n_tokens,
            sample.scheduled_ns - zero_ns,
            sample.issued_ns - zero_ns,
            sample.dispatched_ns - zero_ns if sample.dispatched_ns >= 0 else -1,
            first_ns - zero_ns if first_ns >= 0 else -1,
            done_ns - zero_ns if done_ns >= 0 else -1,
            sample.queue_us,
            sample.prefill_us,
            decode_us,
            sample.prefill_slot if split else -1,
            sample.prefilled_ns - zero_ns if split and sample.prefilled_ns >= 0 else -1,
            sample.transfer_us if split else -1,
        )
        try:
            self._rows[self._n] = row
        except OverflowError:  # a replica's durations are its own claim; they must not end an attempt
            queue_us, prefill_us, decode_us, transfer_us = (min(max(us, -1), _MAX_US) for us in (*row[12:15], row[17]))
            self._rows[self._n] = (*row[:12], queue_us, prefill_us, decode_us, *row[15:17], transfer_us)
        self._n += 1
        if self._n == len(self._rows):
            self._full.append(self._rows.tobytes())
            self._n = 0

    def take(self) -> bytes:
        taken = b"".join([*self._full, self._rows[: self._n].tobytes()])
        self._full.clear()
        self._n = 0
        return taken
