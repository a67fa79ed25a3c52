"""Reading a record: the same for a run that ended, one that goes on, and one that was killed.

Everything is read from the run's folder; nothing asks a head. What cannot be read is named in `problems` and left
out, the rest still counts. Chunks never change once they are visible, so each is checked once a Record: `samples` and
`timeline` read its footer and columns (0.35 ms a chunk), `collect` only the marks at both ends (0.02 ms) and looks
closer, pages included, when the query then fails.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import polars as pl

from harness.records.columns import ADDED_LATER, GPU_SCHEMA, SAMPLE_SCHEMA, TIMELINE_SCHEMA, TIMES, with_times
from harness.records.errors import RecordError
from harness.records.files import open_plain
from harness.records.journal import Journal, read_journal
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, read_run
from harness.records.summary import ReplicaSummary, Summary, summarise_samples
from harness.records.writer import chunk_number

__all__ = ["UNREADABLE", "Record", "ReplicaSummary", "Summary", "slowest", "summarise"]

Query = Callable[[pl.LazyFrame], pl.LazyFrame]
Table = Literal["samples", "timeline", "gpus"]
#: What polars makes of a damaged file. Its panics are BaseExceptions: nobody else would catch them.
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


class Record:
    """One run's folder. Frames are made from what is there at the time of the call."""

    def __init__(self, path: Path | str | RunFolder) -> None:
        self.folder = path if isinstance(path, RunFolder) else RunFolder(Path(path))
        self.problems: list[str] = []
        self._checked: dict[Path, bool] = {}

    @property
    def run(self) -> RunFile:
        """run.json as it is now. Raises RecordError."""
        return read_run(self.folder.path)

    def attempts(self) -> list[AttemptRecord]:
        """As run.json lists them; without a readable run.json none (and a problem)."""
        try:
            return self.run.attempts
        except RecordError as error:
            self._problem(str(error))
            return []

    def attempt(self, number: int) -> AttemptRecord | None:
        return next((attempt for attempt in self.attempts() if attempt.number == number), None)

    def journal(self) -> Journal:
        try:
            journal = read_journal(self.folder.journal)
        except RecordError as error:
            self._problem(str(error))
            return Journal()
        if journal.damaged:
            self._problem(f"{self.folder.journal}: {journal.damaged} damaged lines left out")
        return journal

    def samples(self, attempt: int | None = None) -> pl.LazyFrame:
        """One row a sample that completed or failed, in no order: SAMPLE_SCHEMA and the times of `with_times`."""
        return with_times(self._scan(self.folder.samples, SAMPLE_SCHEMA, attempt))

    def timeline(self, attempt: int | None = None) -> pl.LazyFrame:
        """One row a slot a second: TIMELINE_SCHEMA."""
        return self._scan(self.folder.timeline, TIMELINE_SCHEMA, attempt)

    def gpus(self, attempt: int | None = None) -> pl.LazyFrame:
        """One row a GPU, role and round: GPU_SCHEMA. Empty where the run had no source of GPU metrics."""
        return self._scan(self.folder.gpus, GPU_SCHEMA, attempt)

    def collect(self, query: Query, attempt: int | None = None, table: Table = "samples") -> pl.DataFrame:
        """The query's result over a table, without the chunks that turn out to be damaged. A frame of `samples`, `timeline` or
        `gpus` that is collected by its caller raises for those, or even panics."""
        folder = getattr(self.folder, table)
        quick = {"samples": self._quick_samples}.get(table, getattr(self, table))
        try:
            return query(quick(attempt)).collect()
        except UNREADABLE:
            getattr(self, table)()
            for path in _chunks(folder):
                if self._checked.get(path):
                    self._decode(path)
            return query(getattr(self, table)(attempt)).collect()

    def _quick_samples(self, attempt: int | None) -> pl.LazyFrame:
        return with_times(self._scan(self.folder.samples, SAMPLE_SCHEMA, attempt, self._marked))

    def _scan(
        self, folder: Path, schema: pl.Schema, attempt: int | None, check: Callable[[Path, pl.Schema], bool] | None = None
    ) -> pl.LazyFrame:
        check = check or self._usable
        if folder != self.folder.gpus and not folder.is_dir() and any(known.totals.get("issued") for known in self.attempts()):
            self._problem(f"{folder}: missing, though the run issued samples")
        try:
            whole = [path for path in _chunks(folder) if check(path, schema)]
        except OSError as error:
            self._problem(str(RecordError.from_os(folder, "read", error)))
            whole = []
        frame = pl.LazyFrame(schema=schema)
        if whole:
            frame = pl.scan_parquet(whole, glob=False, schema=schema, missing_columns="insert")
        return frame if attempt is None else frame.filter(pl.col("attempt") == attempt)

    def _marked(self, path: Path, schema: pl.Schema) -> bool:
        """Cheap: begins and ends as parquet does. Anything else goes through the closer look, which names the trouble."""
        if path not in self._checked:
            with contextlib.suppress(OSError), open_plain(path) as file:
                start = file.read(4)
                file.seek(max(0, os.fstat(file.fileno()).st_size - 4))
                if start == file.read(4) == b"PAR1":
                    return True
        return self._usable(path, schema)

    def _usable(self, path: Path, schema: pl.Schema) -> bool:
        known = self._checked.get(path)
        if known is not None:
            return known
        try:
            with open_plain(path) as file:  # by its path, polars takes brackets in a folder's name for a pattern
                found = pl.read_parquet_schema(file)
        except UNREADABLE as error:
            self._problem(f"{path}: damaged, left out ({_first_line(error)})")
            found = None
        usable = found is not None and _reads(dict(found), schema)
        if found is not None and not usable:
            self._problem(f"{path}: has other columns than this version reads, left out")
        self._checked[path] = usable
        return usable

    def _decode(self, path: Path) -> None:
        try:
            pl.read_parquet(path, glob=False)
        except UNREADABLE as error:
            self._problem(f"{path}: damaged, left out ({_first_line(error)})")
            self._checked[path] = False

    def _problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)


def summarise(record: Record, attempt: int) -> Summary:
    """Totals, rates, percentiles and the table of replicas of one attempt, from its samples alone; `issued` also
    counts those that the head knew of and that left no row."""
    known = record.attempt(attempt)
    issued = known.totals.get("issued", 0) if known else 0
    return summarise_samples(lambda query: record.collect(query, attempt), attempt, issued)


def slowest(record: Record, n: int, attempt: int | None = None, by: str = "latency_ms") -> pl.DataFrame:
    """The n samples with the largest `by` (one of TIMES), largest first."""
    if by not in TIMES:
        raise ValueError(f"{by!r} is not a time of a sample; choose one of {', '.join(TIMES)}")
    return record.collect(lambda samples: samples.filter(pl.col(by).is_not_null()).top_k(n, by=by), attempt).sort(
        by, descending=True
    )


def _reads(found: dict[str, pl.DataType], schema: pl.Schema) -> bool:
    """Chunks of today, and those of before the columns of ADDED_LATER."""
    missing = schema.keys() - found.keys()
    return missing <= ADDED_LATER and all(schema.get(name) == kind for name, kind in found.items())


def _chunks(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if chunk_number(path) is not None)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
