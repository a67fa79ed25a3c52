"""events.jsonl of mlcommons/endpoints: what happened to each request, on the client's monotonic clock.

A line is {"event_type": "sample.issued", "timestamp_ns": …, "sample_uuid": …, "data": …}. Issued, first part received and
complete make a sample; an error event that names it makes it a failed one. Only requests between start and stop of performance
tracking count (warm-up and accuracy lie outside), as the client's own report has it. Texts are skipped: the events have
no numbers of output tokens, and prompts as token ids only from clients that send ids.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec

from harness.imports.pieces import Pieces
from harness.imports.samples import NEVER, UNKNOWN_INDEX, Columns
from harness.imports.told import Progress

#: How the lines begin that are by far the most and tell nothing that is kept.
_PARTS: Final = b'{"event_type":"sample.recv_non_first"'
_CATEGORIES: Final = ("session.", "sample.", "error.")


class Event(msgspec.Struct):
    event_type: str
    timestamp_ns: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    sample_uuid: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(slots=True)
class Events:
    """`row_of` holds requests that are on their way. `outside`: requests issued while performance was not tracked."""

    columns: Columns = field(default_factory=Columns)
    failed: array[int] = field(default_factory=lambda: array("b"))
    lines: int = 0
    damaged: int = 0
    first_damage: str = ""
    outside: int = 0
    repeated: int = 0
    with_prompt: int = 0
    parts: int = 0
    tracked_from_ns: int = NEVER
    interrupted: bool = False
    ended: bool = False

    @property
    def zero_ns(self) -> int:
        """Start of tracking; without one the first request."""
        return self.tracked_from_ns if self.tracked_from_ns != NEVER else min(self.columns.issued_ns, default=0)


_decoder = msgspec.json.Decoder(Event)
_prompt = msgspec.json.Decoder(list[str | list[int] | None])


def read_events(path: Path, index_of: dict[str, int], progress: Progress) -> Events:
    """`index_of`: places in the dataset by uuid, where known. Raises ImportProblem for a file that cannot be read."""
    reader = _Reader(index_of)
    lines = Pieces(path, progress)
    for line in lines:
        reader.line(line)
    if lines.rest.strip():
        reader.line(lines.rest)
    events = reader.events
    events.damaged += lines.too_long
    return events


class _Reader:
    def __init__(self, index_of: dict[str, int]) -> None:
        self.events = Events()
        self._index_of = index_of
        self._row_of: dict[str, int] = {}
        self._tracking: bool | None = None  # None: nothing was said of tracking yet

    def line(self, line: bytes) -> None:
        events = self.events
        if not line.strip():
            return
        events.lines += 1
        if line.startswith(_PARTS):
            events.parts += 1
            return
        try:
            event = _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._damaged(str(error))
            return
        if not event.event_type.startswith(_CATEGORIES):
            self._damaged(f"event type {event.event_type[:40]!r}")
        elif event.event_type == "sample.issued":
            self._issued(event)
        elif event.event_type.startswith("session."):
            self._session(event)
        elif event.sample_uuid in self._row_of:
            self._progressed(event, self._row_of[event.sample_uuid])

    def _damaged(self, why: str) -> None:
        self.events.damaged += 1
        self.events.first_damage = self.events.first_damage or f"line {self.events.lines:,d}: {why}"

    def _session(self, event: Event) -> None:
        events, what = self.events, event.event_type.removeprefix("session.")
        if what == "start_performance_tracking":
            if self._tracking is None and len(events.columns):
                self._forget()
            self._tracking = True
            if events.tracked_from_ns == NEVER:
                events.tracked_from_ns = event.timestamp_ns
        elif what == "stop_performance_tracking":
            self._tracking = False
        elif what == "interrupted":
            events.interrupted = True
        elif what == "ended":
            events.ended = True

    def _forget(self) -> None:
        """What was issued before the first start of tracking was warm-up."""
        self.events.outside += len(self.events.columns)
        self.events.columns, self.events.failed, self.events.with_prompt = Columns(), array("b"), 0
        self._row_of.clear()

    def _issued(self, event: Event) -> None:
        events, columns = self.events, self.events.columns
        if self._tracking is False:
            events.outside += 1
            return
        if event.sample_uuid in self._row_of:
            events.repeated += 1
            row = self._row_of[event.sample_uuid]
            columns.tries[row] = min(columns.tries[row] + 1, 65_535)
            return
        self._row_of[event.sample_uuid] = len(columns)
        n_prompt = _token_ids(event.data)
        events.with_prompt += n_prompt is not None
        columns.seq.append(len(columns))
        columns.index.append(self._index_of.get(event.sample_uuid, UNKNOWN_INDEX))
        columns.tries.append(1)
        columns.n_prompt.append(n_prompt or 0)
        columns.n_tokens.append(0)
        columns.scheduled_ns.append(event.timestamp_ns)
        columns.issued_ns.append(event.timestamp_ns)
        columns.first_ns.append(NEVER)
        columns.done_ns.append(NEVER)
        events.failed.append(0)

    def _progressed(self, event: Event, row: int) -> None:
        columns = self.events.columns
        if event.event_type == "sample.recv_first":
            if columns.first_ns[row] == NEVER:
                columns.first_ns[row] = event.timestamp_ns
        elif event.event_type.startswith("error."):
            self.events.failed[row] = 1
        elif event.event_type == "sample.complete":
            del self._row_of[event.sample_uuid]
            if not self.events.failed[row]:
                columns.done_ns[row] = event.timestamp_ns


def _token_ids(data: msgspec.Raw) -> int | None:
    """Their number, of ["PromptData", text, token ids, …]; None where the prompt is text."""
    if b"[" not in bytes(data)[1:]:
        return None
    try:
        values = _prompt.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return next((len(value) for value in values[1:] if isinstance(value, list)), None)
