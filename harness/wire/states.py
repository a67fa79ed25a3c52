"""The state machines of a replica and of a run: names, order and allowed moves; and the verdicts.

One table each, used by the head (to move), by the record (to read) and by screens (to show). Codes are the
positions in these tuples: they travel in columnar snapshots and must only ever be appended to.
"""

from __future__ import annotations

from typing import Final

NEW, REGISTERED, WARMING, READY, SUSPECT, DRAINING, DRAINED, LOST, EVICTED, REJECTED = (
    "NEW", "REGISTERED", "WARMING", "READY", "SUSPECT", "DRAINING", "DRAINED", "LOST", "EVICTED", "REJECTED",
)  # fmt: skip
REPLICA_STATES: Final = (NEW, REGISTERED, WARMING, READY, SUSPECT, DRAINING, DRAINED, LOST, EVICTED, REJECTED)
REPLICA_CODE: Final = {name: code for code, name in enumerate(REPLICA_STATES)}

_ANYWHERE = frozenset({LOST, EVICTED, REJECTED})
REPLICA_MOVES: Final[dict[str, frozenset[str]]] = {
    NEW: frozenset({REGISTERED}) | _ANYWHERE,
    REGISTERED: frozenset({WARMING, READY}) | _ANYWHERE,
    WARMING: frozenset({READY, SUSPECT}) | _ANYWHERE,
    READY: frozenset({SUSPECT, DRAINING}) | _ANYWHERE,
    SUSPECT: frozenset({READY, WARMING, DRAINING}) | _ANYWHERE,
    DRAINING: frozenset({DRAINED, READY}) | _ANYWHERE,
    DRAINED: frozenset({READY}) | _ANYWHERE,
    LOST: frozenset({REGISTERED, EVICTED, REJECTED}),  # a newer incarnation registers
    EVICTED: frozenset({REGISTERED}),
    REJECTED: frozenset({REGISTERED, LOST, EVICTED}),
}
#: States in which a replica may hold samples.
HOLDS_SAMPLES: Final = frozenset({READY, SUSPECT, DRAINING})
#: States in which a live process stands behind the slot.
ALIVE: Final = frozenset({REGISTERED, WARMING, READY, SUSPECT, DRAINING, DRAINED})

PLACING, REGISTERING, MEASURING, DONE, FAILED, ABORTED = "PLACING", "REGISTERING", "MEASURING", "DONE", "FAILED", "ABORTED"
RUN_PHASES: Final = (PLACING, REGISTERING, WARMING, READY, MEASURING, DRAINING, DONE, FAILED, ABORTED)
RUN_ENDED: Final = frozenset({DONE, FAILED, ABORTED})
RUN_MOVES: Final[dict[str, frozenset[str]]] = {
    PLACING: frozenset({REGISTERING, FAILED, ABORTED}),
    REGISTERING: frozenset({WARMING, READY, FAILED, ABORTED}),
    WARMING: frozenset({READY, REGISTERING, FAILED, ABORTED}),
    READY: frozenset({MEASURING, REGISTERING, DONE, FAILED, ABORTED}),
    MEASURING: frozenset({DRAINING, READY, DONE, FAILED, ABORTED}),
    DRAINING: frozenset({READY, DONE, FAILED, ABORTED}),
    DONE: frozenset(),
    FAILED: frozenset(),
    ABORTED: frozenset(),
}

#: What the state of an attempt begins with while prefill and decode replicas meet, before the load: "warming pairs: 3 of 20".
WARMING_PAIRS: Final = "warming pairs"

#: What happens to a fleet that has no READY replica of the role left.
STANDS_STILL: Final = {"prefill": "decode would stand still", "decode": "what is prefilled would find nobody"}

#: Verdicts of an attempt; ABORTED is an operator's stop, CRASHED everything that ended it unasked.
VERDICTS: Final = ("VALID", "INVALID", "SUPERSEDED", "EXPLORATION", "ABORTED", "CRASHED")
