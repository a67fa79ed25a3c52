"""A sample on its way through two stages: what it carries beyond one that a single replica answers. See stages.py."""

from __future__ import annotations

from harness.driver.ledger import Member, Sample
from harness.wire.data import PREFILL


class StagedSample(Sample):
    __slots__ = ("handoff", "holder", "prefill_slot", "prefilled_ns", "round_ns", "stage", "transfer_us")

    def __init__(self, seq: int, handle: int, index: int, scheduled_ns: int, issued_ns: int, cost: int = 0) -> None:
        super().__init__(seq, handle, index, scheduled_ns, issued_ns, cost)
        self.round_ns = -1  # when this round's prefill was sent
        self.begin_round()

    def begin_round(self) -> None:
        self.stage = PREFILL
        self.handoff = b""
        self.holder: Member | None = None  # has its KV cache, beside whoever has the sample
        self.prefill_slot = -1
        self.prefilled_ns = -1
        self.transfer_us = -1

    def note_durations(self, queue_us: int, prefill_us: int) -> None:
        """From the decode replica: `prefill_us` is its KV transfer. What the prefill replica told stays."""
        self.transfer_us = prefill_us
