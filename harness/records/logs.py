"""Reading a run's logs from their ends: the tail of one, and the newest lines of all merged by time.

Files are never read whole: a tail takes at most 256 KB, a merge at most 64 KB a file and 4 MB in all, newest files first.
Our processes begin a line with a time (`2026-03-01 10:00:00,123+0100 WARNING text`; local where no zone is named, as in a
worker's own lines and in its note about a process,
`--- 2026-03-01 10:00:00.123 worker: text`); engines may print anything. vLLM's lines name process and level first and
leave the year out (`(EngineCore pid=12) WARNING 11-29 10:00:00 [core.py:12] text`): the year is the last in which that day
was not after the file's last write. A line without a time belongs to the one before it and has its time and level; above
the first time of a file it has that time, and in a file without any the time of its last write. Reads block: call from a
thread.
"""

from __future__ import annotations

import datetime
import logging
import math
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import nlargest
from pathlib import Path
from typing import NamedTuple

from harness.wire.inquiry import LogLine

TAIL_BYTES = 256 * 1024
FILE_BYTES = 64 * 1024
ALL_BYTES = 4 * 1024 * 1024
LINE_CHARACTERS = 2000

_TIME = re.compile(
    r"(?:--- )?\[?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?\]?"
    r"(?:\s+paceline\.\w+)?(?:\s+(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b)?:?\s*"
)
_VLLM_TIME = re.compile(
    r"(\([A-Za-z][^()]{0,60} pid=\d+\) )?(DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d-\d\d) (\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s+"
)
_LEVELS = {"WARN": "warn", "WARNING": "warn", "ERROR": "error", "CRITICAL": "error", "FATAL": "error"}
_ERROR = re.compile(
    r"\b(ERROR|CRITICAL|FATAL|[Ff]atal|Traceback \(most|\w*(?:Error|Exception):|[Ss]egmentation fault|CUDA error)"
)
_WARN = re.compile(r"\b(WARN|WARNING|[Ww]arning)\b")
_OF_SLOT = re.compile(r"(node\d+/gpu\d+) ")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


class LineFormatter(logging.Formatter):
    """Of what our processes log. With the zone: logs of pods are read on machines elsewhere."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        at = time.localtime(record.created)
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', at)},{int(record.msecs):03d}{time.strftime('%z', at)}"


def log_to_stderr() -> None:
    """For the main function of a process."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


@dataclass(frozen=True, slots=True)
class Tail:
    """The last lines of a file. `left_out`: bytes before the first of them."""

    lines: list[str]
    size: int
    left_out: int
    written_unix: float


def tail_of(path: Path, lines: int, most_bytes: int = TAIL_BYTES) -> Tail:
    """Raises OSError. A line that the bound cuts in its middle is left out, unless it is the only one."""
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        begin = max(0, about.st_size - most_bytes)
        file.seek(begin)
        read = file.read(most_bytes)
    parts = read.splitlines(keepends=True)
    if begin and len(parts) > 1:
        parts = parts[1:]
    parts = parts[-lines:] if lines > 0 else []
    kept = sum(map(len, parts))
    return Tail([_clean(part) for part in parts], about.st_size, begin + len(read) - kept, about.st_mtime)


def _clean(line: bytes | str) -> str:
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    return _CONTROL.sub("", text.rstrip("\r\n")).replace("\t", "    ")[:LINE_CHARACTERS]


# --- all logs, merged -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Merged:
    lines: list[LogLine] = field(default_factory=list)
    left_out: int = 0  # older lines that were read and did not fit
    problem: str = ""


def merge_logs(folder: Path, since_unix: float, limit: int) -> Merged:
    """The newest `limit` lines at or after `since_unix` of all `*.log`, oldest first. Never raises."""
    merged, found, cut, unread, budget = Merged(), [], 0, 0, ALL_BYTES
    problems: list[str] = []
    for written_unix, path in _written_since(folder, since_unix, problems):
        if budget <= 0:
            unread += 1
            continue
        try:
            tail = tail_of(path, FILE_BYTES, min(FILE_BYTES, budget))
        except OSError as error:
            problems.append(f"{path.name} cannot be read: {error.strerror or error}")
            continue
        budget -= tail.size - tail.left_out
        lines, reached = _lines_since(tail, _source(path.name), since_unix, written_unix)
        cut += bool(tail.left_out) and not reached
        found.append(lines)
    every = [line for lines in found for line in lines]
    # Sorting is stable, so the lines of a file keep their order and what belongs to a line stays behind it.
    every.sort(key=lambda line: line.unix)
    merged.lines = every[-limit:] if limit > 0 else []
    merged.left_out = len(every) - len(merged.lines)
    if cut:
        problems.append(f"{cut} {'log is' if cut == 1 else 'logs are'} longer than the {FILE_BYTES // 1024} KB read of each")
    if unread:
        problems.append(f"{unread} less recent logs were not read: {ALL_BYTES >> 20} MB is the most at once")
    merged.problem = "; ".join(problems)
    return merged


def time_of(line: bytes, written_unix: float) -> float | None:
    """When a line of a log says that it was written; None for one that begins with no time. `written_unix`: of the file."""
    begun = _begin(_clean(line), written_unix)
    return None if begun is None else begun.unix


def told(lines: Iterable[bytes], name: str, written_unix: float) -> list[LogLine]:
    """Lines of the log of that file name, in its order."""
    cleaned = Tail([_clean(line) for line in lines], 0, 0, written_unix)
    return _lines_since(cleaned, _source(name), -math.inf, written_unix)[0]


def _written_since(folder: Path, since_unix: float, problems: list[str]) -> list[tuple[float, Path]]:
    """Newest first. A file system's times may be a little behind the clock."""
    found: list[tuple[float, Path]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".log"):
                    about = entry.stat()
                    if about.st_size and about.st_mtime >= since_unix - 1:
                        found.append((about.st_mtime, Path(entry.path)))
    except OSError as error:
        problems.append(f"{folder} cannot be read: {error.strerror or error}")
    return nlargest(len(found), found)


def _source(name: str) -> str:
    """`head`, `driver 2`, `node003`, `node003/gpu1`, `w003` (a worker)."""
    stem = name.removesuffix(".log")
    if re.fullmatch(r"driver-\d+", stem):
        return stem.replace("-", " ")
    return stem.replace("-", "/", 1) if re.fullmatch(r"node\d+-gpu\d+", stem) else stem


def _lines_since(tail: Tail, source: str, since_unix: float, written_unix: float) -> tuple[list[LogLine], bool]:
    """A file's lines at or after the time, in its order, and whether an older one was met: then nothing is missing.

    Read backwards, so that following a log costs its new lines.
    """
    lines: list[LogLine] = []
    following: list[str] = []  # lines without a time, newest first, that belong to the one still to come
    unix = written_unix
    for text in reversed(tail.lines):
        begun = _begin(text, written_unix)
        if begun is None:
            if text.strip():
                following.append(text)
            continue
        unix = begun.unix
        if unix < since_unix:
            return lines[::-1], True
        line = _line(unix, source, begun.text, _level(text, begun.level))
        lines += [LogLine(unix, line.source, rest, _worse(line.level, _level(rest, None))) for rest in following]
        lines.append(line)
        following.clear()
    lines += [LogLine(unix, source, rest, level) for rest, level in _untimed(following)]
    return lines[::-1], False


def _untimed(newest_first: list[str]) -> Iterator[tuple[str, str]]:
    for text in newest_first:
        yield text, _level(text, None)


def _line(unix: float, source: str, text: str, level: str) -> LogLine:
    """A process that carries a whole node names the replica at the start of its lines."""
    of_slot = _OF_SLOT.match(text)
    if of_slot is not None and of_slot[1].startswith(source):
        return LogLine(unix, of_slot[1], text[of_slot.end() :], level)
    return LogLine(unix, source, text, level)


def level_of(line: str) -> str:
    """info, warn or error: the level that the line itself names beside its time, else what the words in it tell."""
    found, of_vllm = _TIME.match(line), _VLLM_TIME.match(line)
    return _level(line, found[5] if found else of_vllm[2] if of_vllm else None)


def _level(text: str, named: str | None) -> str:
    """A line that says INFO or DEBUG is that, whatever words follow."""
    if named:
        return _LEVELS.get(named, "info")
    return "error" if _ERROR.search(text) else "warn" if _WARN.search(text) else "info"


def _worse(one: str, other: str) -> str:
    return max(one, other, key=("info", "warn", "error").index)


class _Begun(NamedTuple):
    """A line that begins with a time."""

    unix: float
    level: str | None
    text: str


def _begin(text: str, written_unix: float) -> _Begun | None:
    found = _TIME.match(text)
    if found is not None:
        second = _second(found[1], found[2], found[4] or "")
        return None if second is None else _Begun(second + _fraction(found[3]), found[5], text[found.end() :])
    found = _VLLM_TIME.match(text)
    if found is None:
        return None
    second = _second_without_year(found[3], found[4], int(written_unix // 3600))
    return None if second is None else _Begun(second + _fraction(found[5]), found[2], (found[1] or "") + text[found.end() :])


def _fraction(digits: str | None) -> float:
    return float(f"0.{digits}") if digits else 0.0


@lru_cache(maxsize=4096)
def _second_without_year(day: str, clock: str, written_hour: int) -> float | None:
    """A clock may have been set back by up to a day since the line was written. Four years back for a 29th of February."""
    latest = written_hour * 3600 + 86_400
    year = time.localtime(latest).tm_year
    candidates = (_second(f"{year - back}-{day}", clock, "") for back in range(5))
    return next((second for second in candidates if second is not None and second <= latest), None)


@lru_cache(maxsize=4096)
def _second(day: str, clock: str, zone: str) -> float | None:
    """Lines come in crowds of one second, and taking a date apart is most of what a line costs."""
    try:
        if zone:
            return datetime.datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone == 'Z' else zone}").timestamp()
        return time.mktime(time.strptime(f"{day} {clock}", "%Y-%m-%d %H:%M:%S"))
    except (ValueError, OverflowError):
        return None
