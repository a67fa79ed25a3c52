"""Lines between a worker and its replica processes, their logs, and the waits between tries."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.cluster.procinfo import ended_in_words
from harness.worker.backoff import LEAST_S, full_jitter
from harness.worker.hearing import SLOW_PACE_S, UNANSWERED_LIMIT, Hearing
from harness.worker.launch import read_first_line
from harness.worker.logs import ReplicaLog
from harness.worker.pipes import LineReader, LineWriter


async def until(condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
    deadline = asyncio.get_running_loop().time() + deadline_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.001)


async def test_more_than_a_pipe_holds_is_written_without_blocking_and_read_whole() -> None:
    loop, (read, write) = asyncio.get_running_loop(), os.pipe()
    got: list[dict[str, Any]] = []
    ended = asyncio.Event()
    writer = LineWriter(loop, write)
    sent = [{"n": number, "text": "x" * 1000} for number in range(300)]
    for message in sent:
        writer.write(message)  # nobody reads yet
    LineReader(loop, read, got.append, ended.set)
    await until(lambda: len(got) == len(sent))
    writer.close()
    await until(ended.is_set)
    assert got == sent


async def test_a_writer_whose_reader_is_gone_stays_quiet() -> None:
    read, write = os.pipe()
    writer = LineWriter(asyncio.get_running_loop(), write)
    os.close(read)
    writer.write({"a": 1})
    writer.write({"a": 2})


async def test_commands_that_came_with_the_first_line_are_kept() -> None:
    read, write = os.pipe()
    os.write(write, b'{"config": 1}\n{"stop": "a"}\n{"st')
    line, rest = read_first_line(read)
    assert line == b'{"config": 1}'
    got: list[dict[str, Any]] = []
    reader = LineReader(asyncio.get_running_loop(), read, got.append, lambda: None, head=rest)
    os.write(write, b'op": "b"}\n')
    await until(lambda: len(got) == 2)
    assert got == [{"stop": "a"}, {"stop": "b"}]
    reader.close()
    os.close(write)


def test_a_log_stays_bounded_and_its_tail_is_this_process_s(tmp_path: Path) -> None:
    path = tmp_path / "node000.log"
    path.write_text("an older life\n")
    log = ReplicaLog(path, limit_bytes=10_000)
    os.write(log.fd, b"".join(b"line %d\n" % number for number in range(5)))
    assert log.tail(3) == ["line 2", "line 3", "line 4"]
    assert "an older life" not in log.tail()
    os.write(log.fd, b"y" * 99 + b"\n" + b"x" * 20_000 + b"\nlast\n")
    log.keep_bounded()
    assert path.stat().st_size == 0
    assert (tmp_path / "node000.log.1").stat().st_size == 10_000
    os.write(log.fd, b"after\n")
    assert path.read_text() == "after\n"
    assert log.tail() == ["after"]
    log.close()


def test_waits_grow_to_their_cap_and_are_drawn_over_the_whole_interval() -> None:
    waits = full_jitter(random.Random(1))
    drawn = [next(waits) for _ in range(400)]
    assert drawn[0] <= 0.5
    assert min(drawn) >= LEAST_S
    assert max(drawn) <= 8.0
    late = drawn[10:]
    assert min(late) < 1.0 < 7.0 < max(late)


def test_beats_slow_down_while_nobody_answers_and_recover_at_once() -> None:
    now_s = [0.0]
    hearing = Hearing(lambda: now_s[0])
    for _ in range(UNANSWERED_LIMIT):
        assert hearing.pace_s(1.5) == 1.5
        hearing.asked()
    now_s[0] = 20.0
    assert (hearing.pace_s(1.5), hearing.silent_s()) == (SLOW_PACE_S, 20.0)
    hearing.heard()
    assert (hearing.pace_s(1.5), hearing.silent_s()) == (1.5, 0.0)


def test_ends_of_processes_are_told_in_words() -> None:
    assert ended_in_words(-9) == "was killed by SIGKILL"
    assert ended_in_words(-11) == "was killed by SIGSEGV"
    assert ended_in_words(3) == "ended with exit code 3"
    assert ended_in_words(143) == "ended after SIGTERM"
