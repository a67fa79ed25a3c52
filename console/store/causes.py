"""The likely cause beside a straggler, in a few words: what an alert says of it or of its node, else in what it differs from its
fellows, else what replicas report themselves. A hint, never a reason to evict."""

from __future__ import annotations

from typing import Final

from console.store.fleet import FleetStore

KV_FULL: Final = 0.95
YOUNG_S: Final = 120.0


def reason_of(store: FleetStore, at: int) -> str:
    """Why a replica is in the state that is shown. The roster's reason is of the last change of a state of its own; SLOW is
    none, so a slow one's is what its straggler's entry in the journal says. Of one without a reason: what its pod waits for."""
    if store.state_name(at) != "SLOW":
        return store.slots[at].reason or store.cluster.pod_reason(store.slots[at].node)
    slot = store.slots[at].slot
    found = (entry.why for entry in reversed(store.journal) if entry.subject == slot and entry.what == "straggler.slow")
    return next(found, "")


def likely_cause(store: FleetStore, at: int) -> str:
    """Empty when nothing that is known here explains it."""
    info, snap = store.slots[at], store.snapshot
    if cause := store.gpus.cause_of(info.slot, info.node):
        return cause
    if (odd := store.odd_kernels.get(info.slot)) is not None:
        return odd.cause
    if snap is not None and store.node_names[int(store.node_of[at])] in snap.slow_nodes:
        return "whole node"
    if float(store.floats("kv_use")[at]) >= KV_FULL:
        return "KV cache full"
    if int(store.ints("restarts")[at]) > 0 and float(store.floats("state_age_s")[at]) < YOUNG_S:
        return "just restarted"
    return ""
