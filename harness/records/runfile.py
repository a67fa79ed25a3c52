"""run.json: what the run was, its attempts with their results, and the verdict. Replaced whole, never edited.

Numbers that do not exist (a percentile without samples) are null in the file and None here: JSON has no NaN.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import msgspec

from harness.records.errors import RecordError
from harness.records.files import read_plain, write_atomically
from harness.wire import control

__all__ = ["AttemptRecord", "HeadEpoch", "Imported", "RunFile", "read_run", "write_atomically", "write_run"]

#: How Python spells bytes of a path that are no UTF-8.
NOT_UTF8 = re.compile("[\ud800-\udfff]")

#: min, avg, p50, p90, p95, p99, p99_9, max in milliseconds.
Latencies = dict[str, float | None]


class HeadEpoch(msgspec.Struct):
    """One life of the head; a restarted head adds the next."""

    epoch: int
    pid: int
    started_unix: float


class AttemptRecord(control.AttemptInfo, kw_only=True):
    """One attempt. `started_unix` is the wall clock of the samples' time zero; `totals` as in AttemptInfo."""

    settings_asked: dict[str, Any] = msgspec.field(default_factory=dict)
    settings_effective: dict[str, Any] = msgspec.field(default_factory=dict)
    loadgen: dict[str, Any] = msgspec.field(default_factory=dict)  # LoadGen's own result, as its detail log states it
    rates: dict[str, float | None] = msgspec.field(default_factory=dict)
    ttft_ms: Latencies = msgspec.field(default_factory=dict)
    tpot_ms: Latencies = msgspec.field(default_factory=dict)
    latency_ms: Latencies = msgspec.field(default_factory=dict)


class Imported(msgspec.Struct):
    """A record made of somebody else's files. `read`: files and what was taken from each; `missing`: what they do not say."""

    kind: str  # loadgen, endpoints
    source: str  # path as given
    unix: control.Unix
    read: list[str]
    missing: list[str]


class RunFile(msgspec.Struct, kw_only=True):
    run: str
    spec: dict[str, Any]
    phase: str
    synthetic: bool
    versions: dict[str, str] = {}
    host: str = ""
    started_unix: control.Unix = 0.0
    ended_unix: control.Unix = 0.0  # 0 = still going, or killed
    head_epochs: list[HeadEpoch] = []
    attempts: list[AttemptRecord] = []
    verdict: str = ""
    reasons: list[str] = []
    acts: int = 0
    imported: Imported | None = None  # None: recorded by a head


_decoder = msgspec.json.Decoder(RunFile)


def write_run(folder: Path, run: RunFile) -> None:
    """Raises RecordError."""
    content = msgspec.json.format(msgspec.json.encode(run, enc_hook=plain), indent=2) + b"\n"
    write_atomically(folder / "run.json", content)


def read_run(folder: Path) -> RunFile:
    """Raises RecordError, which says what is wrong with the file; nothing else, whatever the bytes."""
    path = folder / "run.json"
    try:
        content = read_plain(path)
    except OSError as error:
        raise RecordError.from_os(path, "read", error) from error
    if not content.strip():
        raise RecordError(path, "is empty")
    if (found := NOT_UTF8.search(str(path))) is not None:
        raise RecordError(path, f"its path is not UTF-8 (at {found[0]!r}), as tables need it; rename that folder")
    try:
        return _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(path, f"is not a run record: {error}") from error


def end_open_attempts(run: RunFile, verdict: str, reason: str) -> None:
    for attempt in run.attempts:
        if attempt.state != "ENDED":
            attempt.state, attempt.verdict, attempt.reasons = "ENDED", verdict, [reason]
            attempt.ended_unix = time.time()


def close_run(folder: Path, phase: str, verdict: str, reason: str) -> None:
    """End a run whose head was killed on purpose: its record says so, and nobody takes it up again. Raises RecordError."""
    run = read_run(folder)
    end_open_attempts(run, verdict, reason)
    run.phase, run.verdict, run.reasons, run.ended_unix = phase, verdict, [reason], time.time()
    write_run(folder, run)


def plain(value: Any) -> Any:
    """For JSON: numpy numbers as numbers, tuples' and paths' kin as text; facts of engines may hold anything."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)
