"""Server-sent events of a streamed answer: bytes in, tokens out.

Two uses. `FirstFragment` looks at what has come so far, only until the first non-empty fragment. `read_answer` decodes the
whole answer at its end, all events in one call: what a chunk costs in between is appending its bytes.

Tolerated: chunks split anywhere (also inside a character), many events in a chunk, CRLF, comments, keep-alives, other
fields, an end without [DONE] after a finish_reason. Never taken for success: an error event, a finish_reason that tells of
an abort or an error, an end before either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

DONE = b"[DONE]"
ERROR_CHARACTERS = 200
_NOTHING = (b"", b"null")
_DATA, _BETWEEN, _END = b"data: ", b"\n\ndata: ", b"\n\ndata: [DONE]\n\n"
_BAD_ENDINGS = frozenset({"abort", "error"})


class StreamError(Exception):
    """The answer cannot count; the text says why."""


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    def text(self) -> str:
        return (self.reasoning_content or self.reasoning or "") + (self.content or "")


class Choice(msgspec.Struct):
    text: str | None = None
    delta: Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    def fragment(self) -> str:
        return self.text or (self.delta.text() if self.delta is not None else "")


class Usage(msgspec.Struct):
    completion_tokens: int = 0


class Event(msgspec.Struct):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None
    object: str | None = None
    message: str | None = None


class Prefilled(Event):
    kv_transfer_params: msgspec.Raw = msgspec.Raw()


@dataclass(frozen=True, slots=True)
class Answer:
    ids: list[int]  # as the server gave them; empty when it gives none
    text: str
    usage_tokens: int | None  # output tokens as the server counts them


_EVENT = msgspec.json.Decoder(Event)
_EVENTS = msgspec.json.Decoder(list[Event])


def payloads(raw: bytes, *, ended: bool) -> tuple[list[bytes], int, bool]:
    """Data of the events in `raw`, how many bytes they took, and whether [DONE] was among them (nothing after it counts).

    Without `ended` an event counts once its blank line is there; with it the rest is an event too.
    """
    plain = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in raw else raw
    end = len(plain) if ended else plain.rfind(b"\n\n") + 2
    if end < 2:
        return [], 0, False
    found: list[bytes] = []
    for block in plain[:end].split(b"\n\n"):
        if not block or (block.startswith(b":") and b"\n" not in block):
            continue
        if block.startswith(b"data:") and b"\n" not in block:
            data = block[5:].strip()
        else:
            data = b"\n".join(line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:"))
        if data == DONE:
            return found, end, True
        if data:
            found.append(data)
    return found, end, False


def decode(data: list[bytes]) -> list[Event]:
    try:
        events = _EVENTS.decode(b"[" + b",".join(data) + b"]")
    except msgspec.MsgspecError:
        events = [_one(part) for part in data]
    return _checked(events)


def _checked(events: list[Event]) -> list[Event]:
    for event in events:
        if event.error is not None or event.object == "error":
            raise _error_event(event)
    return events


def _error_event(event: Event) -> StreamError:
    told = event.error if event.error is not None else event
    return StreamError(f"an error event in the stream: {shortened(msgspec.json.encode(told))}")


def _at_once(raw: bytes) -> list[Event] | None:
    """The usual answer, data lines and [DONE] and nothing else, without a loop over its events; None for any other."""
    if not (raw.startswith(_DATA) and raw.endswith(_END)):
        return None
    try:
        return _EVENTS.decode(b"[" + raw[len(_DATA) : -len(_END)].replace(_BETWEEN, b",") + b"]")
    except msgspec.MsgspecError:
        return None


def _one(data: bytes) -> Event:
    try:
        return _EVENT.decode(data)
    except msgspec.MsgspecError as error:
        raise StreamError(f"an event that cannot be read ({error}): {shortened(data)}") from None


class FirstFragment:
    """Fed with chunks until one brings the first token ids or text."""

    def __init__(self) -> None:
        self._unread = b""

    def feed(self, chunk: bytes) -> Choice | None:
        self._unread += chunk
        raw = self._unread
        if raw.endswith(b"\r"):  # half of a line end perhaps
            return None
        if b"\r" in raw:
            raw = self._unread = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        data, taken, _ = payloads(raw, ended=False)
        self._unread = raw[taken:]
        for event in decode(data) if data else ():
            for choice in event.choices[:1]:
                if choice.token_ids or choice.fragment():
                    return choice
        return None


def read_answer(raw: bytes) -> Answer:
    """The whole answer; StreamError when it may not count."""
    events, done = _at_once(raw), True
    if events is None:
        data, _, done = payloads(raw, ended=True)
        try:
            events = decode(data)
        except StreamError as error:
            if done or str(error).startswith("an error event"):
                raise
            raise StreamError(f"the stream ended early, after {len(raw):,d} bytes") from error
    ids: list[int] = []
    texts: list[str] = []
    usage: Usage | None = None
    reason: str | None = None
    for event in events:
        if event.error is not None or event.object == "error":
            raise _error_event(event)
        if event.choices:
            choice = event.choices[0]
            if choice.token_ids:
                ids += choice.token_ids
            if choice.text:
                texts.append(choice.text)
            elif choice.delta is not None:
                texts.append(choice.delta.text())
            if choice.finish_reason is not None:
                reason = choice.finish_reason
        if event.usage is not None:
            usage = event.usage
    if reason in _BAD_ENDINGS:
        raise StreamError(f'the server ended the answer with finish_reason "{reason}"')
    if not done and reason is None:
        raise StreamError(f"the stream ended early, after {len(raw):,d} bytes: neither [DONE] nor a finish_reason")
    return Answer(ids, "".join(texts), usage.completion_tokens if usage is not None else None)


def read_handoff(raw: bytes) -> bytes:
    """kv_transfer_params of a whole (not streamed) answer, as JSON."""
    try:
        answer = msgspec.json.decode(raw, type=Prefilled)
    except msgspec.MsgspecError as error:
        raise StreamError(f"an answer that cannot be read ({error}): {shortened(raw)}") from None
    _checked([answer])
    handoff = bytes(answer.kv_transfer_params)
    if handoff in _NOTHING:
        raise StreamError(
            "the prefill server gave no kv_transfer_params; it needs a KV connector (vllm serve --kv-transfer-config)"
        )
    return handoff


def looks_done(raw: bytes) -> bool:
    """The last event there is [DONE]: a server that then leaves the connection open has answered all the same."""
    return raw.rstrip().endswith(DONE)


def shortened(text: bytes | str) -> str:
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    words = " ".join(words.split())
    return words if len(words) <= ERROR_CHARACTERS else words[: ERROR_CHARACTERS - 1] + "…"
