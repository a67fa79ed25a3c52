"""journal.jsonl: one JournalEntry a line, appended; the story of a run, readable with any text tool.

Lines go to the file with one write(2) each, unbuffered. What a full disk refuses waits in memory and goes out, in
order, with a later entry: half a line at the end of the file is then continued where it stopped. A head that was
killed in the middle of a line leaves it; the next head starts on a new line and counts on from the last whole one.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from harness.records.errors import RecordError
from harness.records.runfile import plain
from harness.wire.control import JournalEntry

#: Bytes that may wait for a disk with room (some 20,000 entries); later entries are then dropped and counted.
WAITING_BYTES = 4 << 20

_encoder = msgspec.json.Encoder(enc_hook=plain)
_decoder = msgspec.json.Decoder(JournalEntry)


class Journal(list[JournalEntry]):
    """Entries in the file's order. `damaged`: whole lines that are no entry; `truncated`: the last line is unfinished."""

    damaged: int = 0
    truncated: bool = False


class JournalWriter:
    """Appends entries and numbers them. One writer a journal (the head that holds the run's lock)."""

    def __init__(self, path: Path) -> None:
        """Raises RecordError."""
        self.path = path
        self.dropped = 0
        self._waiting = bytearray()
        before = read_journal(path)
        self.next_seq = 1 + max((entry.seq for entry in before), default=0)
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            size = os.fstat(self._handle).st_size
            if size and os.pread(self._handle, 1, size - 1) != b"\n":
                self._waiting += b"\n"
        except OSError as error:
            raise RecordError.from_os(path, "open", error) from error

    def append(self, entry: JournalEntry) -> JournalEntry:
        """Give the entry its seq and write it. Raises RecordError; the entry then waits, numbered, for a later append."""
        entry.seq = self.next_seq
        self.next_seq += 1
        line = _encoder.encode(entry) + b"\n"
        if len(self._waiting) + len(line) > WAITING_BYTES:
            self.dropped += 1
        else:
            self._waiting += line
        self.flush()
        return entry

    def flush(self) -> None:
        """Write what waits. Raises RecordError."""
        try:
            while self._waiting:
                del self._waiting[: os.write(self._handle, self._waiting)]
        except OSError as error:
            raise RecordError.from_os(self.path, "write", error) from error

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def read_journal(path: Path) -> Journal:
    """A missing file is an empty journal. Raises RecordError only when the file cannot be read at all."""
    journal = Journal()
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return journal
    except OSError as error:
        raise RecordError.from_os(path, "read", error) from error
    lines = content.split(b"\n")
    last = lines.pop()
    for line in lines:
        entry = _entry(line)
        if entry is not None:
            journal.append(entry)
        elif line.strip():
            journal.damaged += 1
    if last:
        entry = _entry(last)  # whole but for its newline: it counts
        if entry is not None:
            journal.append(entry)
        else:
            journal.truncated = True
    return journal


def _entry(line: bytes) -> JournalEntry | None:
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
