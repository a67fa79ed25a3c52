"""Writing samples and timeline: immutable parquet chunks, a new one a second.

Invariant: what is visible under NNNNNN.parquet is whole and never changes; numbers go on after a restart. Rows that
a disk refuses stay in memory (bounded; beyond that the newest are dropped and counted) and go out with a later flush.
`samples` and `timeline` only append to a list, so the event loop pays microseconds; `flush` builds, packs and writes,
and may run in a thread at the same time.

zstd level 1, measured on 4,000-row chunks: 45 bytes a sample and 2 ms of CPU; lz4 60 bytes and as slow, level 3
43 bytes and 3 ms, uncompressed 72 bytes.
"""

from __future__ import annotations

import contextlib
import io
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from harness.records.columns import TIMELINE_COLUMNS, gpu_frame, samples_frame, timeline_frame
from harness.records.errors import RecordError
from harness.records.files import write_atomically
from harness.records.layout import RunFolder
from harness.wire.attempt import SAMPLE_DTYPE
from harness.wire.states import REPLICA_STATES

#: Rows of each table that may wait for a disk with room: 76 MB of samples, four minutes at 4,000 a second.
WAITING_ROWS = 1_000_000

GPU_CHUNK_S = 15.0

_CHUNK = re.compile(r"(\d{6,})\.parquet")
_ASIDE = re.compile(r"\.\d{6,}\.parquet\.tmp")


def chunk_number(path: Path) -> int | None:
    """The number of a finished chunk, None for any other file."""
    match = _CHUNK.fullmatch(path.name)
    return int(match[1]) if match else None


class ChunkWriter:
    """One table. Batches are handed over as functions that build their rows, called when the chunk is written."""

    def __init__(self, folder: Path, chunk_s: float, clock: Callable[[], float], waiting_rows: int) -> None:
        self.folder = folder
        self.dropped_rows = 0
        self.written_rows = 0
        self._chunk_s = chunk_s
        self._clock = clock
        self._limit = waiting_rows
        self._batches: list[Callable[[], pl.DataFrame]] = []
        self._held = 0  # rows in _batches and in the chunk being written
        self._due_at: float | None = None
        self._guard = threading.Lock()  # the fields above; held for list operations only
        self._writing = threading.Lock()  # one flush at a time
        try:
            folder.mkdir(parents=True, exist_ok=True)
            names = list(folder.iterdir())
            for name in names:
                if _ASIDE.fullmatch(name.name):  # a killed writer's
                    name.unlink()
        except OSError as error:
            raise RecordError.from_os(folder, "prepare the folder", error) from error
        self._next = 1 + max((chunk_number(name) or 0 for name in names), default=0)

    def add(self, rows: int, build: Callable[[], pl.DataFrame]) -> None:
        with self._guard:
            if self._held + rows > self._limit:
                self.dropped_rows += rows
                return
            self._held += rows
            self._batches.append(build)
            if self._due_at is None:
                self._due_at = self._clock() + self._chunk_s

    def due(self) -> bool:
        """A chunk's time has come (after a failed flush: its next try)."""
        with self._guard:
            return self._due_at is not None and self._clock() >= self._due_at

    def flush(self) -> None:
        """Write all that waits as one chunk. Raises RecordError, and then keeps the rows."""
        with self._writing:
            with self._guard:
                batches, self._batches = self._batches, []
                self._due_at = None
            if not batches:
                return
            try:
                frame = pl.concat([build() for build in batches])
                packed = io.BytesIO()
                frame.write_parquet(packed, compression="zstd", compression_level=1)
                write_atomically(self.folder / f"{self._next:06d}.parquet", packed.getvalue())
            except BaseException:
                with self._guard:
                    self._batches = batches + self._batches
                    self._due_at = self._clock() + self._chunk_s
                raise
            self._next += 1
            with self._guard:
                self._held -= frame.height
                self.written_rows += frame.height


class RecordWriter:
    """Both tables of a run's folder. One writer a folder (the head that holds its lock). Raises RecordError."""

    def __init__(
        self,
        folder: RunFolder,
        chunk_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        waiting_rows: int = WAITING_ROWS,
    ) -> None:
        self._samples = ChunkWriter(folder.samples, chunk_s, clock, waiting_rows)
        self._timeline = ChunkWriter(folder.timeline, chunk_s, clock, waiting_rows)
        # Rounds are seconds apart, and a file for each would be mostly its footer.
        self._gpus = ChunkWriter(folder.gpus, max(chunk_s, GPU_CHUNK_S), clock, waiting_rows)

    @property
    def dropped_rows(self) -> int:
        return self._samples.dropped_rows + self._timeline.dropped_rows + self._gpus.dropped_rows

    @property
    def written_samples(self) -> int:
        return self._samples.written_rows

    def samples(self, attempt: int, epoch: int, rows: np.ndarray[Any, Any], slots: Sequence[str]) -> None:
        """Rows of SAMPLE_DTYPE; `slots` names the roster's positions as they are now (it may grow, never be reordered)."""
        if rows.dtype != SAMPLE_DTYPE:
            raise ValueError(f"sample rows have dtype {rows.dtype}, not SAMPLE_DTYPE")
        if not len(rows):
            return
        for column in ("slot", "prefill_slot"):
            if (position := int(rows[column].max())) >= len(slots):
                raise ValueError(f"sample rows name {column} position {position}, the roster has {len(slots)}")
        kept = rows.copy() if rows.flags.writeable else rows
        names = tuple(slots)
        self._samples.add(len(kept), lambda: samples_frame(attempt, epoch, kept, names))

    def timeline(self, attempt: int, unix: float, columns: Mapping[str, np.ndarray[Any, Any]], slots: Sequence[str]) -> None:
        """One row a slot: arrays by name (any of TIMELINE_COLUMNS), one entry a slot; `state` as state codes."""
        names = tuple(slots)
        for name, values in columns.items():
            if name not in TIMELINE_COLUMNS:
                raise ValueError(f"timeline has no column {name!r}; it has {', '.join(TIMELINE_COLUMNS)}")
            if len(values) != len(names):
                raise ValueError(f"timeline column {name} has {len(values)} values for {len(names)} slots")
        if "state" in columns and len(names) and int(np.max(columns["state"])) >= len(REPLICA_STATES):
            raise ValueError(f"state code {int(np.max(columns['state']))} is none of {len(REPLICA_STATES)} replica states")
        kept = {name: np.array(values) for name, values in columns.items()}
        if names:
            self._timeline.add(len(names), lambda: timeline_frame(attempt, unix, kept, names))

    def gpus(
        self,
        attempt: int,
        unix: float,
        roles: Mapping[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]],
        slots: Sequence[str],
        devices: int,
    ) -> None:
        """A round of GPU metrics: role → values and when each was sampled, `devices` entries a slot. Keeps the arrays."""
        names = tuple(slots)
        for role, (values, sampled_unix) in roles.items():
            if not len(values) == len(sampled_unix) == len(names) * devices:
                raise ValueError(f"role {role} has {len(values)} values for {len(names)} slots x {devices} GPUs")
        rows = sum(int(np.count_nonzero(~np.isnan(values))) for values, _ in roles.values())
        if rows:
            self._gpus.add(rows, lambda: gpu_frame(attempt, unix, roles, names, devices))

    def due(self) -> bool:
        return self._samples.due() or self._timeline.due() or self._gpus.due()

    def flush(self, *, final: bool = False) -> None:
        """Write the rows handed over so far, due or not (GPU metrics only when due, or at the end). Trouble with one table
        does not keep back the others."""
        with contextlib.ExitStack() as all_of_them:
            if final or self._gpus.due():
                all_of_them.callback(self._gpus.flush)
            all_of_them.callback(self._timeline.flush)
            self._samples.flush()
