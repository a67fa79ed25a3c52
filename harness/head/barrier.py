"""The registration barrier: a set, never a count. It names who is missing and why.

A count cannot tell a duplicate from a replica, nor say which node to look at. The set of expected slots minus
explicit waivers must be READY; after the deadline a quorum (`min_ready`, `max_missing_nodes`) may do. Where prefill and
decode are split, one READY replica of each role is needed whatever was waived: half a fleet serves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.head import roles
from harness.head.roster import Replica, Roster
from harness.spec import BarrierSpec, node_name
from harness.wire import states


@dataclass(frozen=True, slots=True)
class BarrierView:
    open: bool
    gave_up: str  # not empty: it can no longer open
    missing: list[str]
    phase: str  # REGISTERING or WARMING
    ready: int
    note: str = ""


def look(roster: Roster, barrier: BarrierSpec, *, waited_s: float, why_no_node: Callable[[int], str]) -> BarrierView:
    missing: list[str] = []
    missing_nodes: set[int] = set()
    unregistered = 0
    ready = 0
    for replica in roster.replicas:
        if replica.state == states.READY:
            ready += 1
            continue
        if replica.waived:
            continue
        unregistered += replica.state in (states.NEW, states.LOST, states.REJECTED)
        missing.append(f"{replica.slot}: {_why(replica, why_no_node)}")
        missing_nodes.add(replica.node)
    phase = states.REGISTERING if unregistered else states.WARMING
    absent = roles.without_ready(roster)
    if not missing:
        missing += [f"{role}: no replica is READY, all that are missing are waived" for role in absent]
    if not missing and ready:
        return BarrierView(True, "", missing, phase, ready)
    if not ready and not replicas_to_come(roster):
        why = "no replica came up, and none is started again"
        return BarrierView(False, why, missing, phase, ready)
    if waited_s < barrier.deadline_s:
        return BarrierView(False, "", missing, phase, ready)
    if absent and ready:
        standstill = states.STANDS_STILL[absent[0]]
        why = f"no {absent[0]} replica is READY after {barrier.deadline_s:g} s: {standstill}; no waiver or quorum helps"
        return BarrierView(False, why, missing, phase, ready)
    return _after_deadline(barrier, missing, missing_nodes, phase, ready)


def _after_deadline(barrier: BarrierSpec, missing: list[str], nodes: set[int], phase: str, ready: int) -> BarrierView:
    named = ", ".join(node_name(node) for node in sorted(nodes)[:8])
    if barrier.min_ready is None and barrier.max_missing_nodes is None:
        who = f"{len(missing)} {'replicas are' if len(missing) > 1 else 'replica is'}"
        why = f"{who} missing after {barrier.deadline_s:g} s ({named}); waive them, set a quorum, or wait longer (fleet.barrier)"
        return BarrierView(False, why, missing, phase, ready)
    if ready < (barrier.min_ready or 1):
        why = (
            f"{ready} replicas are READY after {barrier.deadline_s:g} s, the quorum is {barrier.min_ready or 1} ({named} missing)"
        )
        return BarrierView(False, why, missing, phase, ready)
    if barrier.max_missing_nodes is not None and len(nodes) > barrier.max_missing_nodes:
        why = f"{len(nodes)} nodes are incomplete after {barrier.deadline_s:g} s, {barrier.max_missing_nodes} may be: {named}"
        return BarrierView(False, why, missing, phase, ready)
    return BarrierView(True, "", missing, phase, ready, f"quorum: {ready} READY without {len(missing)} of {named}")


def by_reason(missing: list[str]) -> list[str]:
    """Replicas that are missing for the same reason, as those of one pod are, as one line: `node004/gpu0 and 7 more: …`."""
    alike: dict[str, list[str]] = {}
    for line in missing:
        who, _, why = line.partition(": ")
        alike.setdefault(why, []).append(who)
    return [f"{who[0]}{f' and {len(who) - 1} more' if len(who) > 1 else ''}: {why}" for why, who in alike.items()]


def replicas_to_come(roster: Roster) -> bool:
    """Whether any may still become READY by itself. With some READY a human may waive or readmit the rest in the meantime."""
    return any(not replica.given_up for replica in roster.replicas)


def _why(replica: Replica, why_no_node: Callable[[int], str]) -> str:
    state, reason, note = replica.state, replica.reason, replica.note
    if state == states.NEW:
        if replica.reason:  # it ended before REGISTER
            return replica.reason
        return f"loading: {replica.loading}" if replica.loading else why_no_node(replica.node) or "no REGISTER"
    if state == states.REGISTERED:
        return "registered, no beat yet"
    if state == states.WARMING:
        return f"warming: {note}" if note else "warming"
    return f"{state.lower()}: {reason}" if reason else state.lower()
