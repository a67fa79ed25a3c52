"""What a fleet that splits prefill from decode adds to the head: neither role may run out, and each has its own figures.

A sample needs one replica of either role, so a fleet without a READY prefill replica is as dead as an empty one, however
many decode replicas it has. Whoever removes replicas, and the barrier, therefore look at roles and not only at numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.head.live import Live
from harness.head.roster import Replica, Roster
from harness.wire import states
from harness.wire.control import RoleView


def roles_of(roster: Roster) -> list[str]:
    """In the order in which a sample meets them; empty where every replica does both."""
    return ["prefill", "decode"] if roster.spec.fleet.split else []


def ready_of(roster: Roster, role: str) -> int:
    return sum(replica.role == role and replica.state == states.READY for replica in roster.replicas)


def without_ready(roster: Roster) -> list[str]:
    return [role for role in roles_of(roster) if not ready_of(roster, role)]


def last_of_role(roster: Roster, going: Sequence[Replica]) -> str:
    """Why these replicas should stay, in words; "" when others of their roles are READY."""
    for role in {replica.role for replica in going if replica.state == states.READY} & set(states.STANDS_STILL):
        ready = [replica for replica in going if replica.role == role and replica.state == states.READY]
        if ready_of(roster, role) == len(ready):
            which = ready[0].slot + (f" with {len(ready) - 1} more" if len(ready) > 1 else "")
            return f"{which} is the last READY {role} replica: {states.STANDS_STILL[role]}"
    return ""


def views(roster: Roster, live: Live) -> list[RoleView]:
    """Of the running attempt; without one its queues and rates are 0."""
    told = []
    for role in roles_of(roster):
        mine = np.array([replica.role == role for replica in roster.replicas])
        flow = live.prefills if role == "prefill" else live.decodes
        p50, p99 = flow.transfer_ms
        told.append(
            RoleView(
                role=role,
                replicas=int(mine.sum()),
                ready=ready_of(roster, role),
                outstanding=int(live.outstanding[mine].sum()) if len(live.outstanding) == len(mine) else 0,
                waiting=flow.waiting,
                samples_per_s=flow.samples_per_s,
                tokens_per_s=flow.tokens_per_s,
                transfer_p50_ms=p50,
                transfer_p99_ms=p99,
            )
        )
    return told
