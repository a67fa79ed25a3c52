"""What else the record says of an attempt: its journal, its replicas' timeline, where they stood; and logs around a moment."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from harness.analysis.views import LogLine
from harness.records.clusterlog import last_view
from harness.records.errors import RecordError
from harness.records.fleetfile import read_fleet
from harness.records.layout import RunFolder
from harness.records.logs import time_of, told
from harness.records.runfile import AttemptRecord
from harness.spec import node_name
from harness.wire.control import JournalEntry

if TYPE_CHECKING:
    import polars as pl

    from harness.records.reader import Record

#: Before an attempt's time zero its replicas are warmed and its schedule made; after its last sample LoadGen writes its logs.
BEFORE_S: Final = 30.0
AFTER_S: Final = 15.0

_PROBE_BYTES: Final = 4096
_BLOCK_BYTES: Final = 64 * 1024
_MOST_BYTES: Final = 1024 * 1024  # of one log
_ALL_BYTES: Final = 16 * 1024 * 1024


class Story:
    """Around the samples of one attempt; each part is read when it is first asked for."""

    def __init__(self, record: Record, attempt: AttemptRecord | None) -> None:
        self.record, self.attempt = record, attempt
        self.number = attempt.number if attempt is not None else 0

    @cached_property
    def zero_unix(self) -> float:
        """The attempt's time zero; of one that never came to its load, when it began."""
        if self.attempt is not None and self.attempt.started_unix:
            return self.attempt.started_unix
        return min((entry.unix for entry in self.journal), default=0.0)

    def at_s(self, unix: float) -> float:
        return unix - self.zero_unix

    @cached_property
    def journal(self) -> list[JournalEntry]:
        """Of the attempt and the time around it, oldest first."""
        attempt, entries = self.attempt, self.record.journal()
        if attempt is None:
            return sorted(entries, key=lambda entry: entry.unix)
        first, last = attempt.started_unix - BEFORE_S, (attempt.ended_unix or float("inf")) + AFTER_S
        mine = [
            entry
            for entry in entries
            if entry.attempt == attempt.number or (not entry.attempt and attempt.started_unix and first <= entry.unix <= last)
        ]
        return sorted(mine, key=lambda entry: entry.unix)

    @cached_property
    def timeline(self) -> pl.DataFrame:
        """A row a replica a second, by time; `slot` and `state` as categories."""
        import polars as pl

        from harness.records.columns import TIMELINE_SCHEMA
        from harness.records.reader import UNREADABLE

        def rows(timeline: pl.LazyFrame) -> pl.LazyFrame:
            return timeline.with_columns(pl.col("slot", "state").cast(pl.Categorical)).drop("attempt")

        try:
            finite = pl.col("unix").is_finite()
            return self.record.collect(lambda timeline: rows(timeline).filter(finite), self.number, "timeline").sort("unix")
        except UNREADABLE as error:
            self.record.problems.append(f"{self.record.folder.timeline}: cannot be read ({str(error).partition(chr(10))[0]})")
            return rows(pl.LazyFrame(schema=TIMELINE_SCHEMA)).collect()

    @cached_property
    def hosts(self) -> dict[str, str]:
        """Node of the fleet → machine, where the record says it."""
        view = last_view(self.record.folder.cluster)
        if view is not None:
            return {node_name(row.node): row.host for row in view.pods if row.host}
        try:
            fleet = read_fleet(self.record.folder.fleet_json)
        except RecordError:
            return {}
        lives = {slot: lives[-1] for slot, lives in fleet.slots.items() if lives} if fleet is not None else {}
        named = {slot.partition("/")[0]: life.hosts[0] for slot, life in lives.items() if life.hosts}
        return {node: host for node, host in named.items() if host != node}


def attempts_with_samples(record: Record) -> set[int]:
    import polars as pl

    frame = record.collect(lambda samples: samples.select(pl.col("attempt").unique()))
    return {int(number) for number in frame["attempt"].drop_nulls()}


# --- logs -------------------------------------------------------------------------------------------------------------


def logs(folder: RunFolder, unix: float, span_s: float, process: str | None, most: int) -> list[LogLine]:
    """By time. Of each log some ten probes of 4 KB find the place (it is searched by halves), and what lies there is read, at
    most 1 MB; 16 MB of all logs. Where there are more lines than asked for, those nearest to the moment."""
    begin, end = unix - abs(span_s), unix + abs(span_s)
    found: list[LogLine] = []
    budget = _ALL_BYTES
    for path in _paths(folder, process):
        if budget <= 0:
            break
        try:
            lines, read = _around(path, begin, end)
        except OSError:
            continue  # it was deleted, or is closed to us: the others are told
        found += lines
        budget -= read
    found.sort(key=lambda line: line.unix or 0.0)  # stable: lines of one log keep their order
    if len(found) > max(most, 0):
        nearest = sorted(range(len(found)), key=lambda place: (abs((found[place].unix or 0.0) - unix), place))[: max(most, 0)]
        found = [found[place] for place in sorted(nearest)]
    return found


def _paths(folder: RunFolder, process: str | None) -> list[Path]:
    if process is not None:
        name = process.replace("/", "-")
        own, shared = folder.log(name), folder.log(name.partition("-")[0])
        return [path for path in (own, shared) if os.path.isfile(path)][:1] if name and name == os.path.basename(name) else []
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder.logs) if entry.name.endswith(".log"))
    except OSError:
        return []


def _around(path: Path, begin: float, end: float) -> tuple[list[LogLine], int]:
    """And how many bytes were read."""
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        if not about.st_size or about.st_mtime < begin - 1:
            return [], 0
        start = _place_of(file, about.st_size, begin, about.st_mtime)
        file.seek(start)
        text, past = b"", False
        while not past and len(text) < _MOST_BYTES and (block := file.read(_BLOCK_BYTES)):
            text += block
            past = _begins_after(block, end, about.st_mtime)
    lines = text.splitlines(keepends=True)
    if start:  # a line that was cut, and those that belong to one before
        timed = next((i for i, line in enumerate(lines) if i and time_of(line, about.st_mtime) is not None), len(lines))
        lines = lines[timed:]
    return [
        LogLine(line.unix, line.source.replace("/", "-").replace(" ", "-"), line.text, line.level)
        for line in told(lines, path.name, about.st_mtime)
        if begin <= line.unix <= end
    ], len(text)


def _place_of(file: BinaryIO, size: int, begin: float, written_unix: float) -> int:
    """An offset before the first line of that time, not far before it."""
    low, high = 0, size
    while high - low > _BLOCK_BYTES:
        middle = (low + high) // 2
        unix = _first_time(file, middle, high, written_unix)
        if unix is not None and unix < begin:
            low = middle
        else:
            high = middle
    return max(0, low - _PROBE_BYTES) if low else 0


def _first_time(file: BinaryIO, offset: int, end: int, written_unix: float) -> float | None:
    """Of the first line that begins after the offset and has one; None where there is none before `end`."""
    file.seek(offset)
    rest = b""
    while offset < end and len(rest) < _MOST_BYTES:
        block = file.read(_PROBE_BYTES)
        if not block:
            break
        offset, rest = offset + len(block), rest + block
        for line in rest.split(b"\n")[1:-1]:
            if (unix := time_of(line, written_unix)) is not None:
                return unix
    return None


def _begins_after(block: bytes, end: float, written_unix: float) -> bool:
    """Whether a line in the block's last part is of a later time."""
    times = (time_of(line, written_unix) for line in reversed(block.split(b"\n")[1:][-40:]))
    return next((unix > end for unix in times if unix is not None), False)
