"""Sample rows: every field arrives as it was, relative to the schedule's zero, and no row is lost between two batches."""

from __future__ import annotations

import numpy as np

from harness.driver.ledger import Member, Sample
from harness.driver.rows import RowBuffer
from harness.driver.staged import StagedSample
from harness.wire.attempt import SAMPLE_DTYPE
from harness.wire.data import DECODE

ZERO_NS = 1_000_000_000


def a_sample(seq: int) -> Sample:
    sample = Sample(seq, 77, 3, ZERO_NS + 100, ZERO_NS + 150)
    sample.tries, sample.dispatched_ns, sample.first_ns = 2, ZERO_NS + 200, ZERO_NS + 900
    sample.queue_us, sample.prefill_us = 11, 12
    return sample


def rows_of(taken: bytes) -> np.ndarray:
    return np.frombuffer(taken, SAMPLE_DTYPE)


def test_a_completed_sample_becomes_a_row_in_times_of_the_attempt() -> None:
    buffer = RowBuffer()
    buffer.add(a_sample(5), Member(9, "node001/gpu1", "a", 4, b""), 40, 120, ZERO_NS, ZERO_NS + 5000, 13)
    (row,) = rows_of(buffer.take())
    assert dict(zip(SAMPLE_DTYPE.names or (), row.item(), strict=True)) == {
        "seq": 5, "index": 3, "slot": 9, "incarnation": 4, "tries": 2, "n_prompt": 40, "n_tokens": 120,
        "scheduled_ns": 100, "issued_ns": 150, "dispatched_ns": 200, "first_ns": 900, "done_ns": 5000,
        "queue_us": 11, "prefill_us": 12, "decode_us": 13, "prefill_slot": -1, "prefilled_ns": -1, "transfer_us": -1,
    }  # fmt: skip


def test_a_sample_in_two_stages_tells_its_prefill_replica_and_its_transfer() -> None:
    buffer = RowBuffer()
    sample = StagedSample(5, 77, 3, ZERO_NS + 100, ZERO_NS + 150)
    buffer.add(sample, None, 40, 0, ZERO_NS, -1, -1)
    sample.stage, sample.prefill_slot, sample.prefilled_ns = DECODE, 4, ZERO_NS + 300
    sample.note_durations(7, 10**10)
    buffer.add(sample, Member(9, "node001/gpu1", "a", 4, b""), 40, 120, ZERO_NS, ZERO_NS + 5000, 13)
    left, done = rows_of(buffer.take())[["prefill_slot", "prefilled_ns", "transfer_us"]].tolist()
    assert left == (-1, -1, -1)
    assert done == (4, 300, 2**31 - 1), "a claim beyond all bounds is cut"


def test_what_did_not_happen_is_minus_one() -> None:
    buffer = RowBuffer()
    buffer.add(Sample(0, 77, 3, ZERO_NS, ZERO_NS), None, 40, 0, ZERO_NS, -1, -1)
    (row,) = rows_of(buffer.take())
    for name in ("slot", "dispatched_ns", "first_ns", "done_ns", "queue_us", "prefill_us", "decode_us"):
        assert row[name] == -1, name
    assert row["incarnation"] == row["tries"] == 0


def test_more_rows_than_the_buffer_holds_arrive_all_and_in_order() -> None:
    buffer = RowBuffer(capacity=4)
    for count in (0, 3, 4, 5, 8, 19):
        for seq in range(count):
            buffer.add(a_sample(seq), None, 1, 2, ZERO_NS, ZERO_NS, 0)
        assert rows_of(buffer.take())["seq"].tolist() == list(range(count))
    assert buffer.take() == b""
