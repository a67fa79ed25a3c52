"""What a dialog says before an act: whom it hits as of the key press, what it does to the verdict, and the figures of now.

No Textual, no I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from console.store.fleet import FleetStore
from console.widgets import fmt

Fact = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """One life of one slot. The incarnation travels with the command: the head refuses a later one."""

    slot: str
    incarnation: str
    state: str


def target_of(store: FleetStore, slot: str | None) -> Target | None:
    at = store.index.get(slot) if slot is not None else None
    if at is None:
        return None
    return Target(store.slots[at].slot, store.slots[at].incarnation, store.state_name(at))


def facts_for(store: FleetStore, act: str, target: Target) -> list[Fact]:
    at = store.index.get(target.slot)
    if at is None:
        return []
    target = replace(target, state=store.state_name(at))
    facts = [("why", _condition(store, at, target))]
    outstanding = int(store.ints("outstanding")[at])
    if act == "evict":
        facts.append(("in flight", f"{fmt.count(outstanding)} samples; what it does not finish is dispatched again to others"))
    elif act in ("drain", "recycle"):
        tail = "it stays warm" if act == "drain" else "then its worker starts the engine again in place"
        facts.append(("in flight", f"{fmt.count(outstanding)} samples are finished first; no new ones, {tail}"))
    if act != "readmit":
        facts += [("effect", _effect(store, target)), ("quorum", _quorum(store, target))]
    else:
        facts.append(("effect", "a drained replica serves again; an evicted one is started anew, warms up and joins"))
    facts.append(("verdict", verdict_fact(store, act)))
    facts.append(("acts on", _life(store, at, target)))
    return facts


def _life(store: FleetStore, at: int, target: Target) -> str:
    life = f"incarnation {target.incarnation[:12] or 'none yet'} of {target.slot}"
    if store.slots[at].incarnation == target.incarnation:
        return f"{life}, and no other"
    return f"{life}, which is gone by now: the head will refuse"


def _condition(store: FleetStore, at: int, target: Target) -> str:
    parts = [f"{target.state} for {fmt.age(store.age_s(at))}"]
    ratio, z = float(store.floats("ratio")[at]), float(store.floats("z")[at])
    if not math.isnan(ratio):
        parts.append(f"step time {ratio:.2f}x the fleet's" + ("" if math.isnan(z) else f" (z {fmt.signed(z)})"))
    tokens, median = float(store.floats("tokens_s")[at]), store.median("tokens_s")
    if not math.isnan(tokens) and median:
        parts.append(f"{fmt.signed_percent(tokens / median - 1)} tok/s against the median")
    if store.slots[at].reason:
        parts.append(store.slots[at].reason)
    return " · ".join(parts)


def _serving_after(store: FleetStore, target: Target) -> int:
    states = store.count_states()
    return states.get("READY", 0) + states.get("SLOW", 0) - (target.state in ("READY", "SLOW"))


def _effect(store: FleetStore, target: Target) -> str:
    after = _serving_after(store, target)
    if target.state not in ("READY", "SLOW"):
        return "it serves nothing now; the others keep their share"
    if after <= 0:
        return "nobody would be left to serve: the attempt would end"
    if store.snapshot is None or not store.snapshot.attempt:
        return f"{fmt.count(after)} replicas would serve the next attempt"
    qps = store.snapshot.target_qps if store.snapshot else 0.0
    return f"{fmt.rate(qps)} qps over {fmt.count(after)} replicas: {100 / after:+.1f}% load each"


def _quorum(store: FleetStore, target: Target) -> str:
    needed = store.spec.fleet.barrier.min_ready if store.spec else None
    after = _serving_after(store, target)
    if needed is None:
        return f"{fmt.count(after)} would serve; the run sets no minimum"
    verdict = "ok" if after >= needed else "NOT ENOUGH, the head will refuse"
    return f"{fmt.count(after)} would serve, {fmt.count(needed)} needed: {verdict}"


#: What load balancing may do by itself anyway: such acts leave the verdict open.
BENIGN: Final = frozenset({"drain", "readmit"})


def verdict_fact(store: FleetStore, act: str) -> str:
    """What the act does to the verdict of the running attempt."""
    snap = store.snapshot
    if snap is None or not snap.attempt or snap.phase not in ("MEASURING", "DRAINING"):
        return "no attempt is running: nothing is at stake"
    if snap.attempt_kind == "explore":
        return "an exploration: no verdict at stake; the act is journalled"
    if act in BENIGN:
        return f"attempt {snap.attempt} stays VALID-able; the act is counted as ACTS ({snap.acts} so far)"
    return f"attempt {snap.attempt} can no longer be VALID: it touches samples or engines of a LoadGen attempt"


def rate_facts(store: FleetStore) -> list[Fact]:
    snap = store.snapshot
    if snap is None:
        return []
    if snap.mechanism == "at once":
        how = "at once (exploration); the verdict can only be EXPLORATION"
    else:
        how = "LoadGen's schedule is fixed: this ends attempt "
        how += f"{snap.attempt} as SUPERSEDED and starts the next one on the same warm replicas"
    return [
        ("now", f"target {fmt.rate(snap.target_qps)} qps, {fmt.rate(snap.completed_qps)} done"),
        ("how", how),
    ]


def stop_facts(store: FleetStore) -> list[Fact]:
    snap = store.snapshot
    in_flight = fmt.count(snap.in_flight) if snap else fmt.UNKNOWN
    if snap is None or not snap.attempt:
        end = "no load is running; all replicas are stopped and the run ends"
    elif snap.attempt_kind == "explore":
        end = f"issuing ends, {in_flight} samples in flight are finished, all replicas are stopped"
    else:
        end = f"the load ends ({in_flight} samples in flight), the attempt becomes ABORTED, all replicas are stopped"
    return [
        ("effect", end),
        ("record", f"stays complete in {store.record}" if store.record else "stays complete"),
    ]
