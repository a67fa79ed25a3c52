"""Prefill and decode replicas apart: what each role does now, and whether one of them would run out. Pure.

A head tells its figures in every snapshot. A replay counts states and samples here; of what only a head has counted it says
nothing (NaN, and -1 for a number of samples).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from console.store.fleet import READY_CODE, SLOW_CODE, FleetStore
from harness.wire.control import RoleView
from harness.wire.states import STANDS_STILL

UNTOLD: Final = -1


def views(store: FleetStore) -> list[RoleView]:
    """In the order in which a sample meets them; empty where every replica does both, and once the run has ended."""
    if not store.split or store.ended:
        return []
    if store.snapshot is not None and store.snapshot.roles:
        return store.snapshot.roles
    outstanding = store.ints("outstanding")
    return [
        RoleView(
            role,
            replicas=int((mine := store.role_mask(role)).sum()),
            ready=ready_of(store, role),
            outstanding=int(outstanding[mine].sum()),
            waiting=UNTOLD,
            samples_per_s=store.snapshot.completed_qps if role == "decode" and store.snapshot else math.nan,
            tokens_per_s=store.snapshot.tokens_per_s if role == "decode" and store.snapshot else math.nan,
        )
        for role in ("prefill", "decode")
    ]


def ready_of(store: FleetStore, role: str) -> int:
    """Those that the straggler statistic calls slow are READY too."""
    serves = (store.state == READY_CODE) | (store.state == SLOW_CODE)
    return int(np.count_nonzero(serves & store.role_mask(role)))


def left_of_roles(store: FleetStore, at: Sequence[int]) -> tuple[str, str]:
    """(the figures, the objection) of the rule that a READY replica of each role must remain, if these positions leave."""
    parts, objection = [], ""
    for role in dict.fromkeys(store.slots[position].role for position in at):
        ready = ready_of(store, role)
        leaves = sum(store.slots[p].role == role and int(store.state[p]) in (READY_CODE, SLOW_CODE) for p in at)
        left = ready - leaves
        text = f"{left} {role} {'replica' if left == 1 else 'replicas'} would be READY"
        if leaves and not left:
            refuses = "the head refuses" if len(at) == 1 else "the head refuses the last"
            text = f"no {role} replica would be READY, {STANDS_STILL.get(role, 'nobody is left')}: {refuses}"
            objection = f"the last READY {role} replica"
        else:
            text += ": ok"
        parts.append(text)
    return " · ".join(parts), objection
