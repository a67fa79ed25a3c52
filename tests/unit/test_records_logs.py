"""Logs from their ends: a tail with what it leaves out, and all logs of a run merged by the times they wrote."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from harness.records.logs import FILE_BYTES, level_of, merge_logs, tail_of
from harness.worker.logs import ReplicaLog

DAY = "2026-03-01"
MIDNIGHT = time.mktime(time.strptime(DAY, "%Y-%m-%d"))


def write(folder: Path, name: str, text: str, written_unix: float = MIDNIGHT + 3600) -> Path:
    path = folder / name
    path.write_text(text)
    os.utime(path, (written_unix, written_unix))
    return path


def at(unix: float) -> float:
    return round(unix - MIDNIGHT, 3)


# --- tails -------------------------------------------------------------------------------------------------


def test_a_tail_has_the_last_lines_and_says_how_many_bytes_come_before(tmp_path: Path) -> None:
    path = write(tmp_path, "a.log", "".join(f"line {n:03d}\n" for n in range(100)))
    tail = tail_of(path, 3)
    assert tail.lines == ["line 097", "line 098", "line 099"]
    assert (tail.size, tail.left_out, tail.written_unix) == (900, 873, MIDNIGHT + 3600)
    whole = tail_of(path, 1000)
    assert (len(whole.lines), whole.left_out) == (100, 0)
    assert (tail_of(path, 0).lines, tail_of(path, 0).left_out) == ([], 900)


def test_a_line_that_the_bound_cuts_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "a.log", "".join(f"line {n:03d}\n" for n in range(100)))
    tail = tail_of(path, 1000, most_bytes=31)
    assert tail.lines == ["line 097", "line 098", "line 099"]
    assert tail.left_out == 873


def test_what_is_no_text_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"\x1b[31mred\x1b[0m \xff\ttab\x07\r\nunfinished")
    assert tail_of(path, 9).lines == ["red \ufffd    tab", "unfinished"]
    path.write_bytes(b"x" * 10_000)
    assert [len(line) for line in tail_of(path, 9).lines] == [2000]


# --- merged ------------------------------------------------------------------------------------------------


def test_lines_of_all_logs_are_merged_by_time_under_their_sources(tmp_path: Path) -> None:
    write(tmp_path, "head.log", f"{DAY} 00:00:02,500 INFO head of demo\n")
    write(tmp_path, "driver-2.log", f"{DAY} 00:00:04,000 ERROR the driver failed\nTraceback (most recent call last):\n  File x\n")
    write(tmp_path, "w003.log", f"{DAY} 00:00:01,250 paceline.worker INFO registered with head epoch 1: 8 slots\n")
    write(tmp_path, "node003-gpu1.log", f"--- {DAY} 00:00:03 worker: process 7 starts\n")
    node = f"--- {DAY} 00:00:03,100 worker: process 8 starts\n{DAY} 00:00:05,000 WARNING node004/gpu7 6c67: warm at last\n"
    write(tmp_path, "node004.log", node)
    write(tmp_path, "notes.txt", f"{DAY} 00:00:05,000 INFO no log\n")
    merged = merge_logs(tmp_path, 0.0, 100)
    assert [(at(line.unix), line.source, line.text, line.level) for line in merged.lines] == [
        (1.25, "w003", "registered with head epoch 1: 8 slots", "info"),
        (2.5, "head", "head of demo", "info"),
        (3.0, "node003/gpu1", "worker: process 7 starts", "info"),
        (3.1, "node004", "worker: process 8 starts", "info"),
        (4.0, "driver 2", "the driver failed", "error"),
        (4.0, "driver 2", "Traceback (most recent call last):", "error"),
        (4.0, "driver 2", "  File x", "error"),
        (5.0, "node004/gpu7", "6c67: warm at last", "warn"),
    ]
    assert (merged.left_out, merged.problem) == (0, "")


def test_what_a_worker_notes_of_a_process_is_read_with_its_time(tmp_path: Path) -> None:
    log = ReplicaLog(tmp_path / "node000-gpu0.log")
    before = time.time()
    log.note("process 12 starts")
    log.close()
    (line,) = merge_logs(tmp_path, before - 1, 10).lines
    assert (line.source, line.text) == ("node000/gpu0", "worker: process 12 starts")
    assert line.unix == pytest.approx(before, abs=0.5)


def test_the_newest_lines_are_kept_and_the_others_counted(tmp_path: Path) -> None:
    write(tmp_path, "w000.log", "".join(f"{DAY} 00:00:{s:02d},000 INFO a{s}\n" for s in range(0, 60, 2)))
    write(tmp_path, "w001.log", "".join(f"{DAY} 00:00:{s:02d},000 INFO b{s}\n" for s in range(1, 60, 2)))
    merged = merge_logs(tmp_path, MIDNIGHT + 10, 4)
    assert [line.text for line in merged.lines] == ["a56", "b57", "a58", "b59"]
    assert merged.left_out == 50 - 4


def test_only_logs_written_since_are_opened_and_only_lines_since_are_told(tmp_path: Path) -> None:
    write(
        tmp_path,
        "w000.log",
        f"{DAY} 00:59:00,000 INFO old\n  and its second line\n{DAY} 01:00:00,000 INFO new\n",
        MIDNIGHT + 3600,
    )
    unread = write(tmp_path, "w001.log", f"{DAY} 01:00:00,000 INFO of a file that looks older\n", MIDNIGHT + 3000)
    unread.chmod(0)
    merged = merge_logs(tmp_path, MIDNIGHT + 3600, 100)
    assert [line.text for line in merged.lines] == ["new"]
    assert merged.problem == ""


def test_a_log_without_times_has_that_of_its_last_write(tmp_path: Path) -> None:
    write(tmp_path, "node000.log", "starting\nCUDA error: out of memory\n", MIDNIGHT + 77)
    assert [(at(line.unix), line.text, line.level) for line in merge_logs(tmp_path, 0.0, 9).lines] == [
        (77.0, "starting", "info"),
        (77.0, "CUDA error: out of memory", "error"),
    ]


def test_a_long_log_is_read_from_its_end_and_that_is_said(tmp_path: Path) -> None:
    line = f"{DAY} 00:00:00,000 INFO {'x' * 70}\n"
    write(tmp_path, "w000.log", line * (FILE_BYTES // len(line) + 100) + f"{DAY} 00:10:00,000 INFO last\n")
    merged = merge_logs(tmp_path, 0.0, 5000)
    assert merged.lines[-1].text == "last"
    assert len(merged.lines) <= FILE_BYTES // len(line) + 1
    assert merged.problem == "1 log is longer than the 64 KB read of each"
    assert merge_logs(tmp_path, MIDNIGHT + 60, 5000).problem == ""


def test_iso_times_with_a_zone_are_understood_and_nonsense_belongs_to_the_line_before(tmp_path: Path) -> None:
    write(tmp_path, "w000.log", "2026-03-01T12:00:00.250Z warn: low\n2026-13-41 99:99:99,000 INFO never\n")
    lines = merge_logs(tmp_path, 0.0, 9).lines
    assert {line.unix for line in lines} == {1772366400.25}
    assert lines[0].text == "warn: low"


def test_lines_of_vllm_are_sorted_among_ours_with_their_level_and_the_process_that_wrote_them(tmp_path: Path) -> None:
    engine = (
        "(EngineCore pid=123) INFO 03-01 00:00:01 [core.py:12] loading weights\n"
        "WARNING 03-01 00:00:03 [interface.py:9] no ERROR yet\n"
        "(EngineCore_DP0 pid=123) ERROR 03-01 00:00:04 [core.py:700] EngineCore failed\n"
        "(EngineCore_DP0 pid=123) Traceback (most recent call last):\n"
        "(EngineCore_DP0 pid=123)   File x\n"
    )
    write(tmp_path, "node000-gpu0.log", f"{DAY} 00:00:00,500 INFO starting\n{engine}")
    write(tmp_path, "w000.log", f"{DAY} 00:00:02,000 paceline.worker INFO between\n")
    assert [(at(line.unix), line.source, line.text, line.level) for line in merge_logs(tmp_path, 0.0, 100).lines] == [
        (0.5, "node000/gpu0", "starting", "info"),
        (1.0, "node000/gpu0", "(EngineCore pid=123) [core.py:12] loading weights", "info"),
        (2.0, "w000", "between", "info"),
        (3.0, "node000/gpu0", "[interface.py:9] no ERROR yet", "warn"),
        (4.0, "node000/gpu0", "(EngineCore_DP0 pid=123) [core.py:700] EngineCore failed", "error"),
        (4.0, "node000/gpu0", "(EngineCore_DP0 pid=123) Traceback (most recent call last):", "error"),
        (4.0, "node000/gpu0", "(EngineCore_DP0 pid=123)   File x", "error"),
    ]


@pytest.mark.parametrize(
    ("written", "line", "second"),
    [
        ("2026-01-01 00:10:00", "12-31 23:59:58", "2025-12-31 23:59:58"),
        ("2026-03-01 00:00:00", "03-01 04:00:00", "2026-03-01 04:00:00"),  # a clock a few hours ahead of the file's
        ("2026-03-01 00:00:00", "03-05 00:00:00", "2025-03-05 00:00:00"),
        ("2026-02-01 00:00:00", "02-29 12:00:00", "2024-02-29 12:00:00"),
    ],
)
def test_a_time_without_a_year_is_the_last_one_before_the_file_was_written(
    tmp_path: Path, written: str, line: str, second: str
) -> None:
    def unix(text: str) -> float:
        return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))

    write(tmp_path, "node000-gpu0.log", f"INFO {line} [core.py:1] x\n", unix(written))
    assert [found.unix for found in merge_logs(tmp_path, 0.0, 9).lines] == [unix(second)]


def test_no_folder_is_a_problem_in_words(tmp_path: Path) -> None:
    merged = merge_logs(tmp_path / "nowhere", 0.0, 9)
    assert merged.lines == []
    assert "nowhere cannot be read: No such file" in merged.problem


def test_a_whole_fleets_logs_are_bounded_newest_first(tmp_path: Path) -> None:
    text = f"{DAY} 00:00:01,000 INFO {'x' * 200}\n" * 400
    for number in range(80):
        write(tmp_path, f"node{number:03d}.log", text, MIDNIGHT + 10 + number)
    began = time.process_time()
    merged = merge_logs(tmp_path, 0.0, 500)
    assert time.process_time() - began < 2
    assert len(merged.lines) == 500
    assert "less recent logs were not read" in merged.problem
    assert merged.left_out > 10_000


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2026-03-01 10:00:00,123 WARNING slow", "warn"),
        ("2026-03-01 10:00:00,123 INFO no ERROR was found", "info"),
        ("2026-03-01 10:00:00,123 FATAL gone", "error"),
        ("2026-03-01 10:00:00 ValueError: no", "error"),
        ("INFO 03-01 10:00:00 [core.py:12] no ERROR was found", "info"),
        ("(Worker pid=7) CRITICAL 03-01 10:00:00 [core.py:12] gone", "error"),
        ("CUDA error: out of memory", "error"),
        ("Warning: slow", "warn"),
        ("no errors were found", "info"),
    ],
)
def test_a_line_has_one_level_by_itself_and_among_all_logs(tmp_path: Path, line: str, level: str) -> None:
    (tmp_path / "node000.log").write_text(f"{line}\n")
    (merged,) = merge_logs(tmp_path, 0.0, 10).lines
    assert (level_of(line), merged.level) == (level, level)
