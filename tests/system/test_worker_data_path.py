"""The data path of a replica process over CURVE: byte for byte, attempt by attempt, and what a query costs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_kit import DEADLY, SILENT, FakeHead, spec_of

from harness.wire import control, data

SLOTS = ["node000/gpu0", "node000/gpu1"]


@pytest.fixture
def head(tmp_path: Path) -> Iterator[FakeHead]:
    head = FakeHead(tmp_path, spec_of(2, nodes=1, replicas_per_node=2))
    head.start_worker([0], "w0")
    head.wait_ready(2)
    head.open_data(7)
    head.wait("both in the pool", lambda: set(SLOTS) <= head.data_peers.keys())
    yield head
    head.close()


def prompt_of(first: int, count: int = 256) -> bytes:
    return first.to_bytes(4, "little") + os.urandom(4 * (count - 1))


def test_tokens_come_back_byte_for_byte_with_first_before_complete(head: FakeHead) -> None:
    prompts = {seq: prompt_of(seq, 1 + seq * 37) for seq in range(40)}
    for seq, prompt in prompts.items():
        slot = SLOTS[seq % 2]
        head.query(slot, data.Query(7, seq, 1, slot, 512, 0, seq), prompt)
    head.wait("all answers", lambda: len(head.answers(data.Complete)) == len(prompts))
    for seq, prompt in prompts.items():
        (first,), (complete,) = head.answers(data.First, seq), head.answers(data.Complete, seq)
        assert first == (data.First(7, seq, 1, 11, 22), prompt[:4])
        assert complete == (data.Complete(7, seq, 1, 11, 22, 33), prompt)
    kinds = [type(h) for _, h, _ in head.data if getattr(h, "seq", None) == 3]
    assert kinds == [data.First, data.Complete]


def test_a_new_attempt_gets_a_fresh_connection_and_nothing_of_the_old_one(head: FakeHead) -> None:
    head.query(SLOTS[0], data.Query(7, 1, 1, SLOTS[0], 8, 0, 0), prompt_of(SILENT))
    head.serve(0.2)
    old_peers = set(head.data_peers.values())
    head.open_data(8)
    head.wait("both in the new pool", lambda: set(SLOTS) <= head.data_peers.keys())
    assert not old_peers & set(head.data_peers.values())
    head.query(SLOTS[0], data.Query(7, 2, 1, SLOTS[0], 8, 0, 0), prompt_of(5))  # an old epoch is not served
    head.query(SLOTS[0], data.Query(8, 2, 1, SLOTS[0], 8, 0, 0), prompt_of(5))
    head.wait("the answer", lambda: head.answers(data.Complete, 2))
    head.serve(0.5)
    assert {h.epoch for _, h, _ in head.data} == {8}


def test_an_incarnation_that_becomes_ready_in_mid_attempt_joins_it(head: FakeHead) -> None:
    before = head.incarnations[SLOTS[1]]
    head.say("w0", control.RecycleSlot(SLOTS[1], before, "test"))

    def lives() -> list[str]:
        """In the pool, one after the other; each tells again every few seconds that it is there."""
        return list(dict.fromkeys(pong.incarnation for pong, _ in head.answers(data.Pong) if pong.slot == SLOTS[1]))

    head.wait("in the pool again", lambda: len(lives()) > 1)
    assert lives() == [before, head.incarnations[SLOTS[1]]]


def test_an_engine_that_dies_takes_only_its_incarnation_and_its_samples_are_refused(head: FakeHead) -> None:
    head.query(SLOTS[0], data.Query(7, 1, 1, SLOTS[0], 8, 0, 0), prompt_of(SILENT))
    head.query(SLOTS[0], data.Query(7, 2, 1, SLOTS[0], 8, 0, 0), prompt_of(DEADLY))
    head.query(SLOTS[1], data.Query(7, 3, 1, SLOTS[1], 8, 0, 0), prompt_of(9))
    exited = head.wait("ReplicaExited", lambda: head.told(control.ReplicaExited))[0]
    assert (exited.slot, exited.reason) == (SLOTS[0], "told to die")
    head.wait("refusals", lambda: {h.seq for h, _ in head.answers(data.Failed)} == {1, 2})
    assert len(head.answers(data.Complete, 3)) == 1


def test_a_cancelled_sample_is_not_answered_and_an_unknown_slot_is_refused(head: FakeHead) -> None:
    head.query(SLOTS[0], data.Query(7, 1, 1, SLOTS[0], 8, 0, 0), prompt_of(SILENT))
    head.query(SLOTS[0], data.Cancel(7, 1, 1), b"")  # type: ignore[arg-type]
    head.query(SLOTS[0], data.Query(7, 2, 1, "node009/gpu9", 8, 0, 0), prompt_of(1))
    failed = head.wait("a refusal", lambda: head.answers(data.Failed))
    assert [h.seq for h, _ in failed] == [2]
    assert "node009/gpu9" in failed[0][0].reason


@pytest.mark.alone
def test_what_a_query_costs_the_replica_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """512 slots in one process, 1 KB prompts, 5 KB answers. The limit is loose: it catches a task or a log line a query."""
    nodes, count, window = 64, 20_000, 256
    spec = spec_of(512, nodes=nodes, replicas_per_node=8, engine_args={"repeat": 5}, heartbeat_s=1.5)
    head = FakeHead(tmp_path, spec)
    try:
        head.start_worker(list(range(nodes)), "w0")
        head.wait_ready(512, 60)
        head.open_data(1)
        head.wait("512 in the pool", lambda: len(head.data_peers) == 512, 60)
        head.data = []
        slots, prompt, pid = spec.slots(), prompt_of(1), next(iter(head.pids.values()))
        before_s, begun_s, sent = cpu_s(pid), time.monotonic(), 0
        seen = answered = 0
        while answered < 2 * count:
            assert time.monotonic() < begun_s + 60
            answered += sum(isinstance(header, data.First | data.Complete) for _, header, _ in head.data[seen:])
            seen = len(head.data)  # on a slow machine greetings are repeated meanwhile
            while sent < count and sent - answered // 2 < window:
                slot = slots[sent % 512]
                head.query(slot, data.Query(1, sent, 1, slot, 2048, 0, 0), prompt)
                sent += 1
            head.serve(0.002)
        assert len(head.answers(data.First)) == len(head.answers(data.Complete)) == count
        each_us = (cpu_s(pid) - before_s) / count * 1e6
        with capsys.disabled():
            print(f"\nreplica process: {each_us:.0f} µs CPU a query, {count / (time.monotonic() - begun_s):.0f} queries/s")
        assert each_us < 1000
    finally:
        head.close()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
