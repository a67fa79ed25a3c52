"""Log lines around a moment: of every process, by time, and from the middle of a large file with few reads."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from made_run import T0, Made, make_run

from harness.analysis import moment
from harness.analysis.drill import Drill
from harness.analysis.views import LogLine
from harness.records.reader import Record


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = make_run(tmp_path, Made(seconds=2))
    (path / "logs").mkdir()
    return path


def stamped(unix: float, text: str) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(unix))},{int(unix % 1 * 1000):03d}+0000 {text}\n"


def write(run: Path, name: str, lines: list[str]) -> Path:
    path = run / "logs" / name
    path.write_text("".join(lines))
    os.utime(path, (T0 + 90_000, T0 + 90_000))
    return path


def around(run: Path, unix: float, process: str | None = None, span_s: float = 5.0, most: int = 500) -> list[LogLine]:
    return Drill(Record(run)).logs(unix, span_s=span_s, process=process, most=most)


def test_lines_of_all_processes_come_by_time_with_what_belongs_to_them(run: Path) -> None:
    write(run, "head.log", [stamped(T0 + n, f"INFO tick {n}") for n in range(60)])
    trace = [stamped(T0 + 30.5, "ERROR it broke"), "Traceback (most recent call last):\n", "  boom\n"]
    write(run, "node001-gpu0.log", [stamped(T0 + 10, "INFO begins"), *trace, stamped(T0 + 50, "INFO goes on")])
    write(run, "node002.log", [stamped(T0 + 31, "INFO node002/gpu3 of one replica")])
    told = [(line.process, line.text, line.level) for line in around(run, T0 + 30, span_s=1)]
    assert told == [
        ("head", "tick 29", "info"), ("head", "tick 30", "info"), ("node001-gpu0", "it broke", "error"),
        ("node001-gpu0", "Traceback (most recent call last):", "error"), ("node001-gpu0", "  boom", "error"),
        ("head", "tick 31", "info"), ("node002-gpu3", "of one replica", "info"),
    ]  # fmt: skip


def test_one_process_by_any_of_its_names_and_its_nodes_log_where_it_has_none(run: Path) -> None:
    write(run, "node001-gpu0.log", [stamped(T0, "INFO own")])
    write(run, "node002.log", [stamped(T0, "INFO node002/gpu3 shared")])
    assert [line.text for line in around(run, T0, "node001/gpu0")] == ["own"]
    assert [line.text for line in around(run, T0, "node001-gpu0")] == ["own"]
    assert [line.text for line in around(run, T0, "node002/gpu3")] == ["shared"]
    for nobody in ("driver-1", "", "../run", ".."):
        assert around(run, T0, nobody) == []


def test_where_there_are_more_lines_the_nearest_are_told(run: Path) -> None:
    write(run, "head.log", [stamped(T0 + n / 10, f"INFO {n}") for n in range(100)])
    assert [line.text for line in around(run, T0 + 5, most=3)] == ["49", "50", "51"]
    assert around(run, T0 + 5, most=0) == []


def test_the_middle_of_a_large_log_is_found_with_few_reads(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = "".join(stamped(T0 + n / 100, f"INFO line {n} {'x' * 60}") for n in range(100_000))
    path = write(run, "head.log", [block])
    read: list[int] = []
    whole = moment._first_time

    def counted(*args: object) -> float | None:
        read.append(1)
        return whole(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(moment, "_first_time", counted)
    for second in (0, 1, 499, 999):
        lines = around(run, T0 + second, span_s=0.5)
        expected = [n for n in range(100_000) if abs(n / 100 - second) <= 0.5]
        assert [int(line.text.split()[1]) for line in lines] == expected
    assert len(read) <= 4 * 10, f"of {path.stat().st_size >> 10} KB"


def test_a_log_without_times_and_a_folder_without_logs_are_no_errors(run: Path) -> None:
    write(run, "head.log", ["no time at all\n" * 10_000])
    assert around(run, T0) == []
    assert len(around(run, T0 + 90_000, most=7)) == 7, "what has no time has that of its file"
    for path in (run / "logs").iterdir():
        path.unlink()
    (run / "logs").rmdir()
    assert around(run, T0) == []
