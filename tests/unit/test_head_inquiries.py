"""What a console asks the head: answered from real counts, a real driver's watch and real files, bounded, and in words."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
from head_kit import Fleet, a_spec
from pace_kit import times_slower

from harness.driver.ledger import Member, Sample
from harness.driver.watch import look
from harness.head.attempt import Attempt
from harness.head.inquiries import Inquiries
from harness.head.live import Live
from harness.head.recordserver import files_of
from harness.records.layout import RunFolder
from harness.wire import attempt as down
from harness.wire import control
from harness.wire.attempt import SAMPLE_DTYPE
from harness.wire.frames import encode
from harness.wire.inquiry import (
    FileInfo,
    Files,
    GetFiles,
    GetLogs,
    GetReplica,
    GetSla,
    LogLines,
    Question,
    ReplicaDetail,
    SlaDetail,
)

N = 6
A = TypeVar("A")


class ADriver:
    """The supervisor's end of a driver that holds samples: what is told to it is answered as the dispatcher does."""

    def __init__(self, answer: Callable[[down.Held], None]) -> None:
        self.running, self.endpoint = True, "tcp://somewhere"
        self.members: dict[str, Member] = {}
        self.silent = False
        self.now_ns = time.monotonic_ns()  # of its looks: a busy machine takes its time between dispatch and question
        self.told: list[down.ToDriver] = []
        self._answer = answer

    def tell(self, message: down.ToDriver) -> None:
        self.told.append(message)
        if isinstance(message, down.Watch) and not self.silent:
            held = look(message, self.members.get(message.slot), [50] * 100, self.now_ns)
            asyncio.get_running_loop().call_soon(self._answer, held)


class Desk:
    def __init__(self, folder: Path) -> None:
        self.folder = RunFolder(folder)
        self.folder.logs.mkdir()
        self.fleet = Fleet(a_spec(3, 2, limits={"ttft_p99_ms": 2000, "tpot_p99_ms": 80}))
        self.fleet.ready()
        self.roster, self.clock = self.fleet.roster, self.fleet.clock
        self.live = Live(self.fleet.spec, N)
        self.attempt: Attempt | None = None
        self.sent: asyncio.Queue[tuple[bytes, Any]] = asyncio.Queue()
        self.inquiries = Inquiries(self, self._send, self.clock)

    def _send(self, peer: bytes, message: msgspec.Struct) -> None:
        self.sent.put_nowait((peer, control.TO_CONSOLE.decode(encode(message))))

    def start(self) -> ADriver:
        driver = ADriver(self.inquiries.note_held)
        self.attempt = driver  # type: ignore[assignment]
        return driver

    async def ask(self, question: Question, kind: type[A]) -> A:
        self.inquiries.ask(b"console", question)
        peer, answer = await asyncio.wait_for(self.sent.get(), 30)
        assert peer == b"console"
        assert isinstance(answer, kind)
        assert answer.request_id == question.request_id  # type: ignore[attr-defined]
        return answer

    def complete(self, slot: int, ttft_ms: float, count: int, tpot_ms: float = 10.0) -> None:
        rows = np.zeros(count, SAMPLE_DTYPE)
        rows["slot"], rows["n_tokens"], rows["issued_ns"], rows["dispatched_ns"] = slot, 11, 1_000_000, 2_000_000
        rows["queue_us"], rows["prefill_us"] = 4000, 8000
        rows["first_ns"] = int(ttft_ms * 1e6)
        rows["done_ns"] = rows["first_ns"] + int(10 * tpot_ms * 1e6)
        ttfts = np.column_stack([rows["slot"], rows["first_ns"] // 1000]).astype("<i4").tobytes()
        nothing = np.zeros(N, "<i4").tobytes()
        batch = down.Batch(
            20_000_000_000, 1.0, count, count, count, 0, 0, 0, 0, 0, 10.0, 1.0, 0, ttfts, rows.tobytes(), nothing, nothing
        )  # fmt: skip
        self.live.take(batch, self.clock())


@pytest.fixture
async def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


# --- the SLA -----------------------------------------------------------------------------------------------


async def test_the_sla_in_full_agrees_with_the_snapshots_view_of_it(desk: Desk) -> None:
    desk.live.begin(10.0, 3)
    desk.complete(0, 500, 5000)
    desk.complete(4, 3000, 100)
    view = desk.live.ttft.view(desk.clock(), 0)
    answer = await desk.ask(GetSla("q1", ["node002/gpu0"]), SlaDetail)
    assert (answer.attempt, answer.window_s, answer.problem) == (3, 60.0, "")
    ttft = answer.ttft
    assert (ttft.limit_ms, ttft.window_n, ttft.whole_n) == (2000, 5100, 5100)
    assert (ttft.window_ms["p99"], ttft.whole_ms["p50"]) == (view.window.p99, view.whole.p50)
    assert set(ttft.window_ms) == {"p50", "p90", "p95", "p99"}
    assert sum(np.frombuffer(ttft.over_whole, "<i4")) == view.over == 100
    assert np.frombuffer(ttft.over_window, "<i4").tolist() == [0, 0, 0, 0, 100, 0]
    assert np.frombuffer(ttft.samples_whole, "<i4").tolist() == [5000, 0, 0, 0, 100, 0]
    assert ttft.window_ms["p99"] == pytest.approx(3000, rel=0.02)
    assert ttft.without_p99_ms == pytest.approx(500, rel=0.02)
    assert answer.tpot.whole_ms["p99"] == pytest.approx(10, rel=0.02)
    assert (answer.parts_n, answer.parts_tail_n) == (5100, 51)
    assert [round(part.p50_ms) for part in answer.parts] == [1, 1, 4, 8, 486]
    assert answer.parts[4].tail_ms == pytest.approx(2986, abs=1)


async def test_slots_that_the_run_does_not_have_are_named(desk: Desk) -> None:
    answer = await desk.ask(GetSla("q1", ["node099/gpu0", "x" * 500]), SlaDetail)
    assert answer.problem == f"not of this run: node099/gpu0, {'x' * 80}"
    assert math.isnan(answer.ttft.without_p99_ms)
    assert (answer.attempt, answer.ttft.whole_n, answer.ttft.edges_ms) == (0, 0, [])


async def test_an_attempts_figures_stay_after_its_end_until_the_next_begins(desk: Desk) -> None:
    desk.live.begin(10.0, 1)
    desk.complete(1, 500, 2000)
    desk.live.end()
    desk.clock.passes(3600)
    desk.live.ttft.view(desk.live.latency_now_s(desk.clock()), 0)  # as the snapshots between attempts do
    answer = await desk.ask(GetSla("q1"), SlaDetail)
    assert (answer.attempt, answer.ttft.window_n, answer.parts_n) == (1, 2000, 2000)
    desk.live.begin(10.0, 2)
    answer = await desk.ask(GetSla("q2"), SlaDetail)
    assert (answer.attempt, answer.ttft.window_n, answer.ttft.whole_n, answer.parts_n) == (2, 0, 0, 0)


async def test_what_fell_out_of_the_window_stays_in_the_attempt(desk: Desk) -> None:
    desk.live.begin(10.0, 1)
    desk.complete(1, 5000, 2000)
    desk.clock.passes(90)
    desk.complete(1, 500, 30)
    answer = await desk.ask(GetSla("q1"), SlaDetail)
    assert (answer.ttft.window_n, answer.ttft.whole_n, answer.parts_n) == (30, 2030, 30)
    assert np.frombuffer(answer.ttft.over_window, "<i4").tolist() == [0] * N
    assert np.frombuffer(answer.ttft.over_whole, "<i4")[1] == 2000


async def test_an_answer_at_4_000_samples_a_second_takes_less_than_50_ms(desk: Desk) -> None:
    desk.live.begin(4000.0, 1)
    for _ in range(600):
        desk.complete(2, 700, 400)
        desk.clock.passes(0.1)
    began = time.process_time()
    answer = await desk.ask(GetSla("q1", ["node000/gpu0"]), SlaDetail)
    spent = time.process_time() - began
    assert answer.parts_n >= 239_000
    assert spent < 0.05 * times_slower()  # 16 to 33 ms on one slow core


# --- one replica -------------------------------------------------------------------------------------------


async def test_a_replica_is_told_with_what_it_holds_and_the_end_of_its_log(desk: Desk) -> None:
    driver = desk.start()
    member = driver.members["node000/gpu1"] = Member(1, "node000/gpu1", "a", 1, b"")
    for seq in range(70):
        sample = Sample(seq, 0, 0, 0, 0)
        sample.dispatched_ns, sample.tries = driver.now_ns - (100 - seq) * 1_000_000_000, 1
        member.inflight[seq] = sample
    log = desk.folder.log("node000/gpu1")
    log.write_text("".join(f"line {n}\n" for n in range(50)))
    answer = await desk.ask(GetReplica("q1", "node000/gpu1", log_lines=3, in_flight=5), ReplicaDetail)
    assert (answer.slot, answer.incarnation, answer.problem) == ("node000/gpu1", "a", "")
    assert [(one.seq, one.age_s, one.n_prompt) for one in answer.in_flight] == [(n, 100 - n, 50) for n in range(5)]
    assert (answer.in_flight_total, answer.in_flight_age_s) == (70, 0.0)
    assert answer.log == str(log)
    assert answer.log_lines == ["line 47", "line 48", "line 49"]
    assert (answer.log_size, answer.log_left_out) == (log.stat().st_size, log.stat().st_size - 24)
    assert 0 <= answer.log_written_s < 60
    assert driver.told == [down.Watch("node000/gpu1", 5)]


async def test_a_list_that_the_driver_told_before_says_how_old_it_is(desk: Desk) -> None:
    driver = desk.start()
    driver.members["node000/gpu0"] = Member(0, "node000/gpu0", "a", 1, b"")
    assert (await desk.ask(GetReplica("q1", "node000/gpu0"), ReplicaDetail)).in_flight_age_s == 0
    driver.silent = True
    desk.clock.passes(1.5)
    assert (await desk.ask(GetReplica("q2", "node000/gpu0"), ReplicaDetail)).in_flight_age_s == 1.5
    desk.clock.passes(30)
    answer = await desk.ask(GetReplica("q3", "node000/gpu0"), ReplicaDetail)
    assert answer.in_flight_age_s == 31.5


async def test_a_missing_part_is_explained(desk: Desk) -> None:
    answer = await desk.ask(GetReplica("q1", "node000/gpu0"), ReplicaDetail)
    assert answer.problem.startswith("no attempt is running: nothing is in flight; it has written no log yet")
    assert math.isnan(answer.in_flight_age_s)
    assert math.isnan(answer.log_written_s)
    driver = desk.start()
    driver.endpoint = ""
    assert "driver is starting" in (await desk.ask(GetReplica("q2", "node000/gpu0"), ReplicaDetail)).problem
    driver.endpoint, driver.silent = "tcp://somewhere", True
    assert "has not told yet" in (await desk.ask(GetReplica("q3", "node000/gpu0"), ReplicaDetail)).problem
    assert driver.told == [down.Watch("node000/gpu0", 64)]


async def test_a_slot_that_is_not_there_names_the_nearest(desk: Desk) -> None:
    answer = await desk.ask(GetReplica("q1", "node001/gpu9"), ReplicaDetail)
    assert (answer.slot, answer.incarnation) == ("node001/gpu9", "")
    assert answer.problem.startswith("no slot 'node001/gpu9' in this run; did you mean node001/gpu")


async def test_the_end_of_an_attempt_empties_what_was_in_flight(desk: Desk) -> None:
    driver = desk.start()
    driver.members["node000/gpu0"] = Member(0, "node000/gpu0", "a", 1, b"")
    await desk.ask(GetReplica("q1", "node000/gpu0"), ReplicaDetail)
    desk.inquiries.attempt_over()
    driver.silent = True
    assert "has not told yet" in (await desk.ask(GetReplica("q2", "node000/gpu0"), ReplicaDetail)).problem


# --- logs, and too many questions --------------------------------------------------------------------------


async def test_logs_are_merged_and_bounded(desk: Desk) -> None:
    desk.folder.log("head").write_text("2026-03-01 10:00:00,000 INFO one\n2026-03-01 10:00:02,000 ERROR three\n")
    desk.folder.log("w000").write_text("2026-03-01 10:00:01,000 paceline.worker WARNING two\n")
    answer = await desk.ask(GetLogs("q1", 0.0, 2), LogLines)
    assert [(line.source, line.level, line.text) for line in answer.lines] == [
        ("w000", "warn", "two"),
        ("head", "error", "three"),
    ]
    assert answer.left_out == 1
    assert (await desk.ask(GetLogs("q2", 0.0, -1), LogLines)).lines == []


async def test_a_question_that_is_repeated_while_it_is_answered_is_answered_once(desk: Desk) -> None:
    for _ in range(3):
        desk.inquiries.ask(b"console", GetLogs("same"))
    await asyncio.wait_for(desk.sent.get(), 30)
    await asyncio.sleep(0.2)
    assert desk.sent.empty()


async def test_more_questions_than_can_be_answered_at_once_are_told_so(desk: Desk) -> None:
    desk.start().silent = True
    for number in range(20):
        desk.inquiries.ask(b"console", GetReplica(f"q{number}", "node000/gpu0"))
    answers = [(await asyncio.wait_for(desk.sent.get(), 30))[1] for _ in range(20)]
    busy = [answer.request_id for answer in answers if "other questions" in answer.problem]
    assert busy == ["q16", "q17", "q18", "q19"]


# --- the record for a copy -----------------------------------------------------------------------------------


async def test_a_list_of_files_made_before_the_last_word_is_not_the_last_list(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing a large record on a slow volume takes longer than the head's last steps do."""
    listed, written = threading.Event(), threading.Event()

    def slow(folder: RunFolder) -> list[FileInfo]:
        found = files_of(folder)
        listed.set()
        assert written.wait(60)
        return found

    monkeypatch.setattr("harness.head.inquiries.files_of", slow)
    desk.folder.journal.write_text("first\n")
    desk.inquiries.ask(b"console", GetFiles("q1"))
    assert await asyncio.to_thread(listed.wait, 60)
    desk.folder.journal.write_text("first\nlast\n")
    waiting = asyncio.create_task(desk.inquiries.until_record_taken(60.0, lambda: None))
    await asyncio.sleep(0)
    written.set()
    _, early = await asyncio.wait_for(desk.sent.get(), 30)
    assert [about.size for about in early.files] == [6]
    assert not early.ended
    late = await desk.ask(GetFiles("q2"), Files)
    assert ([about.size for about in late.files], late.ended) == ([11], True)
    desk.inquiries.leave_record()
    await asyncio.wait_for(waiting, 30)
