"""Data messages: one attempt's driver (ROUTER) with its replicas (DEALER). The hot path.

Frames: [header] or [header, payload]; the payload is raw little-endian int32 token ids. Where prefill and decode are
split, a sample goes to a prefill replica (QUERY with stage 1), which answers PREFILLED with what the decode replica needs
to fetch the KV cache (`handoff`: the engine's own bytes, of no meaning to us); the decode replica gets QUERY with stage 2
and that as a third frame, and answers with FIRST and COMPLETE like any other. Headers are positional
(array-like) to keep them at about 30 bytes. A sample is `(epoch, seq)`; `attempt_try` counts its dispatches, and
only a reply that carries the current one counts.
"""

from __future__ import annotations

import msgspec

from harness.wire.frames import Codec

#: `Query.stage`
WHOLE, PREFILL, DECODE = 0, 1, 2


class _Header(msgspec.Struct, array_like=True, tag=True):
    pass


class Hello(_Header, tag=1):
    """replica → driver, after connecting and until Ping: one for every incarnation behind this connection."""

    epoch: int
    slot: str
    incarnation: str


class Ping(_Header, tag=2):
    epoch: int
    slot: str


class Pong(_Header, tag=3):
    epoch: int
    slot: str
    incarnation: str


class Query(_Header, tag=4):
    """driver → replica; payload: prompt ids. The reply names the same try."""

    epoch: int
    seq: int
    attempt_try: int
    slot: str
    max_tokens: int
    expected_tokens: int  # output length known to the dataset, 0 if not; only synthetic engines look at it
    index: int  # QSL index
    stage: int = 0  # WHOLE, PREFILL or DECODE; DECODE has a third frame, the handoff


class First(_Header, tag=5):
    """replica → driver; payload: the first token id."""

    epoch: int
    seq: int
    attempt_try: int
    queue_us: int
    prefill_us: int


class Complete(_Header, tag=6):
    """replica → driver; payload: all token ids, the first one included."""

    epoch: int
    seq: int
    attempt_try: int
    queue_us: int
    prefill_us: int
    decode_us: int


class Failed(_Header, tag=7):
    """replica → driver: this try ended without an answer; the driver dispatches the sample again."""

    epoch: int
    seq: int
    attempt_try: int
    reason: str


class Cancel(_Header, tag=8):
    """driver → replica: nobody waits for this try any more."""

    epoch: int
    seq: int
    attempt_try: int


class Refused(_Header, tag=9):
    """driver → replica: HELLO not accepted (old epoch, unknown incarnation)."""

    reason: str


class Prefilled(_Header, tag=10):
    """prefill replica → driver; payload: the handoff. The decode replica may fetch the KV cache from now on."""

    epoch: int
    seq: int
    attempt_try: int
    queue_us: int
    prefill_us: int


ToDriver = Hello | Pong | First | Complete | Failed | Prefilled
ToReplica = Ping | Query | Cancel | Refused

TO_DRIVER: Codec[ToDriver] = Codec(ToDriver)
TO_REPLICA: Codec[ToReplica] = Codec(ToReplica)
