"""The run's journal: written to disk, kept in memory for those who attach, published as it happens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from harness.records.journal import JournalWriter
from harness.wire.control import JournalEntry


class Journal:
    def __init__(self, writer: JournalWriter, publish: Callable[[JournalEntry], None], unix: Callable[[], float]) -> None:
        self._writer = writer
        self._publish = publish
        self._unix = unix
        self.attempt = 0
        self.tail: deque[JournalEntry] = deque(maxlen=5000)
        self.trouble: str | None = None  # the disk refused an entry

    def note(
        self,
        what: str,
        *,
        who: str = "head",
        subject: str = "",
        why: str = "",
        before: str = "",
        after: str = "",
        level: str = "info",
        **data: Any,
    ) -> JournalEntry:
        entry = JournalEntry(
            seq=self._writer.next_seq,
            unix=self._unix(),
            who=who,
            what=what,
            subject=subject,
            why=why,
            before=before,
            after=after,
            level=level,
            data=data,
            attempt=self.attempt,
        )
        self.tail.append(entry)
        try:
            self._writer.append(entry)
        except Exception as error:
            self.trouble = self.trouble or str(error)
        self._publish(entry)
        return entry
