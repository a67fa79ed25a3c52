"""Messages between the supervisor and the driver of one attempt (PAIR over ipc, private folder).

The driver sends what happened (batches of sample rows ten times a second); the supervisor sends which
incarnations may receive work. Sample rows travel as the bytes of a numpy array of SAMPLE_DTYPE.
"""

from __future__ import annotations

import msgspec
import numpy as np

from harness.wire.frames import Codec
from harness.wire.inquiry import InFlight

#: One completed (or failed) sample. All times are the driver's monotonic clock, in ns, relative to the attempt's start.
SAMPLE_DTYPE = np.dtype(
    [
        ("seq", "<u4"),
        ("index", "<i4"),  # QSL index
        ("slot", "<i4"),  # position in the roster, -1 = never dispatched
        ("incarnation", "<u2"),  # nth incarnation of that slot, as the roster counts them
        ("tries", "<u2"),  # dispatches; 1 = no re-dispatch
        ("n_prompt", "<i4"),
        ("n_tokens", "<i4"),  # output tokens, the first one included
        ("scheduled_ns", "<i8"),  # when the schedule wanted it issued
        ("issued_ns", "<i8"),  # when LoadGen's callback (or our issuer) handed it over
        ("dispatched_ns", "<i8"),  # last try sent to a replica; with split roles its prefill
        ("first_ns", "<i8"),  # -1 = none
        ("done_ns", "<i8"),  # -1 = failed
        ("queue_us", "<i4"),  # replica's own durations of the counted try, -1 = unknown
        ("prefill_us", "<i4"),
        ("decode_us", "<i4"),
        ("prefill_slot", "<i4"),  # roster position of the replica that prefilled it, -1 = the same as `slot`
        ("prefilled_ns", "<i8"),  # its PREFILLED came in, -1 = not split
        ("transfer_us", "<i4"),  # KV transfer as the decode replica reports it, -1 = not split
    ]
)


class _Message(msgspec.Struct, tag=True, omit_defaults=True):
    pass


# --- supervisor → driver -----------------------------------------------------------------------------------


class Admit(_Message):
    """This incarnation may receive work once its HELLO/PING/PONG on the data socket has passed; ends a Hold."""

    slot: str
    index: int
    incarnation: str
    nth: int
    role: str = "both"


class Hold(_Message):
    """No new work for this slot (drain, suspect); what it has stays with it."""

    slot: str
    incarnation: str


class Drop(_Message):
    """The incarnation is gone: dispatch its samples again, ignore what still arrives."""

    slot: str
    incarnation: str
    reason: str


class SetRate(_Message):
    qps: float  # 0 = pause


class Finish(_Message):
    """Stop issuing and drain what is in flight (explore only)."""

    drain_s: float


class Watch(_Message):
    """Somebody looks at this slot: Held at once and then once a second, until nobody has asked for 5 s. "" ends all."""

    slot: str
    limit: int = 64  # samples told


class Quit(_Message):
    """Flush rows and end the process now."""

    reason: str


# --- driver → supervisor -----------------------------------------------------------------------------------


class DriverUp(_Message):
    """The data socket listens; `endpoint` is what replicas connect to."""

    pid: int
    endpoint: str
    loadgen_version: str


class DriverPhase(_Message):
    """loading · waiting for replicas · warming pairs: 3 of 20 · generating schedule · issuing · draining · logging"""

    phase: str


class InPool(_Message):
    slot: str
    incarnation: str


class Drained(_Message):
    """A held slot has nothing left in flight."""

    slot: str
    incarnation: str


class Batch(_Message):
    """Ten times a second. `outstanding` int32 and `oldest_ms` int32 per roster position; `rows` SAMPLE_DTYPE."""

    now_ns: int  # since the attempt's start; negative before the first issue
    started_unix: float
    issued: int
    scheduled: int  # due by now according to the reproduced schedule
    completed: int
    failed: int
    redispatched: int
    held: int  # in the head, for the first (or only) replica
    in_flight: int
    stale: int  # replies dropped by the exactly-once gate
    target_qps: float
    cpu_s: float
    planned: int  # queries the attempt will issue at least, LoadGen's own minimum included; 0 = unknown
    ttfts: bytes  # int32 pairs (roster position, µs) of first tokens since the last batch: long before their samples complete
    rows: bytes
    outstanding: bytes
    oldest_ms: bytes
    held_decode: int = 0  # prefilled, waiting for a decode replica
    prefilled: int = 0  # samples that left their prefill replica
    prefilled_tokens: int = 0  # their input tokens


class Redispatched(_Message):
    slot: str
    incarnation: str
    samples: int
    reason: str


class Silent(_Message):
    """A sample passed its deadline at a replica that has answered nothing since: it hangs. It gets no more work.

    Or a newcomer that did not warm up with a replica of the other role; `why` says so then.
    """

    slot: str
    incarnation: str
    waited_s: float
    why: str = ""


class PairsWarmed(_Message):
    """Prefill replicas have each sent a sample to decode replicas: all with all before the load, a newcomer with all later."""

    count: int
    seconds: float
    slowest_ms: float
    slowest_pair: str  # "node000/gpu0 → node001/gpu3"


class Held(_Message):
    """What a watched slot holds, oldest dispatch first; no incarnation: the slot is not in the pool."""

    slot: str
    incarnation: str
    total: int
    samples: list[InFlight]


class DriverEnd(_Message):
    """Last message of an attempt that ended by itself. ok = the load ran to its end."""

    ok: bool
    reason: str
    issued: int
    completed: int


ToDriver = Admit | Hold | Drop | SetRate | Finish | Watch | Quit
ToSupervisor = DriverUp | DriverPhase | InPool | Drained | Batch | Redispatched | Silent | PairsWarmed | Held | DriverEnd

TO_DRIVER: Codec[ToDriver] = Codec(ToDriver)
TO_SUPERVISOR: Codec[ToSupervisor] = Codec(ToSupervisor)
