"""journal.jsonl: one JournalEntry a line, appended; the story of a run, readable with any text tool.

Written as `harness.records.lines` does it. The next head counts on from the last whole entry.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.records.lines import LineFile, read_lines
from harness.records.runfile import plain
from harness.wire.control import JournalEntry

#: Bytes that may wait for a disk with room (some 20,000 entries); later entries are then dropped and counted.
WAITING_BYTES = 4 << 20

#: Entries that were made about a run after its end, when its answers were judged: no part of what happened in it.
AFTER_THE_RUN = frozenset({"attempt.scored", "attempt.verified"})

_encoder = msgspec.json.Encoder(enc_hook=plain)
_decoder = msgspec.json.Decoder(JournalEntry)


class Journal(list[JournalEntry]):
    """Entries in the file's order. `damaged`: whole lines that are no entry; `truncated`: the last line is unfinished."""

    damaged: int = 0
    truncated: bool = False


class JournalWriter:
    """Appends entries and numbers them."""

    def __init__(self, path: Path) -> None:
        """Raises RecordError."""
        self.path = path
        self.dropped = 0
        self.next_seq = 1 + max((entry.seq for entry in read_journal(path)), default=0)
        self._lines = LineFile(path)

    def append(self, entry: JournalEntry) -> JournalEntry:
        """Give the entry its seq and write it. Raises RecordError; the entry then waits, numbered, for a later append."""
        entry.seq = self.next_seq
        self.next_seq += 1
        line = _encoder.encode(entry)
        if self._lines.waiting_bytes + len(line) >= WAITING_BYTES:
            self.dropped += 1
        else:
            self._lines.add(line)
        self.flush()
        return entry

    def flush(self) -> None:
        """Write what waits. Raises RecordError."""
        self._lines.flush()

    def close(self) -> None:
        self._lines.close()


def read_journal(path: Path) -> Journal:
    """A missing file is an empty journal. Raises RecordError only when the file cannot be read at all."""
    journal = Journal()
    lines, last = read_lines(path)
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
