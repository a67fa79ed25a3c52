"""What is said before a run on a cluster gets another number of nodes. No Textual, no I/O.

The head only lets replicas go or waits for them again; the pods come and go because the workers' Job is changed, with the
rights of whoever asks. What stands here of guards foretells the head's answer.
"""

from __future__ import annotations

import math

from console.screens.acts import SERVING, Fact, verdict_fact
from console.store import roles
from console.store.fleet import FleetStore
from console.widgets import fmt, pods
from console.widgets.fmt import plural
from console.widgets.pending import some_names
from harness.wire.states import ALIVE


def why_no_scale(store: FleetStore) -> str:
    """Why this run's fleet cannot change its size, in words."""
    if store.cluster.view is not None:
        return ""
    if store.spec is not None and store.spec.cluster.kind == "kubernetes":
        return "the head has not told of its cluster yet: how many nodes there are is not known"
    return "the workers of this run are processes of the head's machine: only a run on a cluster changes its number of nodes"


def nodes_now(store: FleetStore) -> int:
    view = store.cluster.view
    return (view.wanted if view is not None else 0) or len(store.node_names)


def most_nodes(store: FleetStore) -> int:
    return store.spec.fleet.nodes if store.spec is not None else len(store.node_names)


def scale_facts(store: FleetStore, typed_command: str) -> list[Fact]:
    now, most = nodes_now(store), most_nodes(store)
    return [
        ("now", f"{now} of at most {plural(most, 'node')} (fleet.nodes when it was started) · {pods.pods_now(store)}"),
        ("fewer", "the last nodes go: their replicas drain and are not waited for, then their pods end"),
        ("more", "pods are asked for first; replicas join once they are warm, a running attempt goes on"),
        ("rights", f"the workers' Job is changed with yours, by {typed_command}"),
        ("verdict", verdict_fact(store, "scale")),
    ]


def judged_nodes(store: FleetStore, text: str) -> tuple[int | None, str, str]:
    """(the number, what it would mean, what the head has against it); (None, what is wrong, "") for what is no new size."""
    now, most = nodes_now(store), most_nodes(store)
    text = text.strip()
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        return None, f"{text!r} is not a size of this fleet: 1 to {most}", ""
    nodes = int(text)
    if nodes == now:
        left_over = _left_over(store, now)
        if not left_over:
            return None, f"it has {plural(now, 'node')} already", ""
        return nodes, f"{plural(left_over, 'pod')} of nodes that are not wanted any more would end: asked for again", ""
    leaving = [at for at, info in enumerate(store.slots) if nodes <= store.node_names.index(info.node)]
    names = store.node_names[min(nodes, now) : max(nodes, now)]
    if nodes > now:
        return nodes, f"{now} → {nodes} nodes: {some_names(names)} {'come' if len(names) > 1 else 'comes'}", ""
    serving = [at for at in leaving if store.state_name(at) in SERVING]
    held = int(store.ints("outstanding")[leaving].sum()) if leaving else 0
    left = sum(store.count_states().get(name, 0) for name in SERVING) - len(serving)
    what = (
        f"{now} → {nodes} nodes: {some_names(names)} {'go' if len(names) > 1 else 'goes'} with "
        f"{plural(len(serving), 'serving replica')} ({plural(held, 'sample')} in flight finish first); {fmt.count(left)} serve on"
    )
    going = set(leaving)
    expected = sum(
        not info.waived or store.state_name(at) in {*ALIVE, *SERVING} for at, info in enumerate(store.slots) if at not in going
    )
    return nodes, what, _objection(store, serving, left, expected)


def _left_over(store: FleetStore, now: int) -> int:
    """Pods whose nodes are let go already: whoever scaled the run was interrupted before their Job was made smaller."""
    view = store.cluster.view
    rows = view.pods if view is not None else []
    return sum(row.node >= now and row.phase in ("Running", "Pending") for row in rows)


def _objection(store: FleetStore, serving: list[int], left: int, expected: int) -> str:
    """`expected`: how many replicas the fleet is to have by then."""
    barrier = store.spec.fleet.barrier if store.spec is not None else None
    floor = (barrier.min_ready if barrier is not None else None) or max(1, math.ceil(expected / 2))
    objections = [f"the quorum of {floor}" if serving and left < floor else ""]
    if store.split and serving:
        objections.append(roles.left_of_roles(store, serving)[1])
    return " and ".join(filter(None, objections))
