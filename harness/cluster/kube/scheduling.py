"""The scheduler's message, in words: how many nodes cannot take a pod, for which cause, and what can be done about it.

It reads like `0/65 nodes are available: 1 node(s) had untolerated taint {a: b}, 64 Insufficient amd.com/gpu. preemption: …`:
true, but the cause is buried, and nothing says what to change.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_WHOLE = re.compile(r"^(?P<free>\d+)/(?P<all>\d+) nodes are available:?\s*(?P<causes>.*)$", re.S)
_PART = re.compile(r"(?:^|,\s+)(?=\d+ )")  # not at the commas inside of a cause
_PREEMPTION = re.compile(r"[.,]?\s*\bpreemption:", re.I)
_TAINT = re.compile(r"taint(?:\(s\))? \{(?P<key>[^:}]*):?\s*(?P<value>[^}]*)\}")


class Cause(NamedTuple):
    nodes: int  # 0: of the pod itself, whatever the node
    words: str
    step: str = ""


def causes(message: str) -> tuple[int, list[Cause]]:
    """Nodes in the cluster (0 when not told), and why each cannot take the pod, the largest cause first."""
    flat = " ".join(message.split())
    whole = _WHOLE.match(flat)
    text = _PREEMPTION.split(whole["causes"] if whole else flat, maxsplit=1)[0].strip().rstrip(".")
    found = [_cause(part.strip().rstrip(".,")) for part in _PART.split(text) if part.strip(" .,")]
    return int(whole["all"]) if whole else 0, sorted(found, key=lambda cause: -cause.nodes if cause.nodes else -1_000_000)


def in_words(message: str) -> str:
    """`none of 65 nodes can take it: 64 lack free amd.com/gpu, 1 has the taint a=b; free nodes or …`."""
    nodes, found = causes(message)
    if not found:
        return "the scheduler has not said why"
    listed = ", ".join(f"{cause.nodes} {cause.words}" if cause.nodes else cause.words for cause in found)
    step = next((cause.step for cause in found if cause.step), "")
    opening = f"none of {nodes} nodes can take it: " if nodes else ""
    return f"{opening}{listed}{'; ' + step if step else ''}"


def _cause(part: str) -> Cause:
    count, _, rest = part.partition(" ")
    if not count.isdigit():
        return _of_the_pod(part)
    nodes = int(count)
    rest = rest.removeprefix("node(s) ")
    one = nodes == 1
    if rest.startswith("Insufficient "):
        resource = rest.removeprefix("Insufficient ")
        return Cause(nodes, f"{'lacks' if one else 'lack'} free {resource}", _step_for(resource))
    if taint := _TAINT.search(rest):
        shown = taint["key"] + (f"={taint['value']}" if taint["value"] else "")
        step = f"wait until the taint goes, or tolerate {taint['key']} by cluster.kubernetes.tolerations"
        if "control-plane" in shown or "/master" in shown:
            step = ""  # nobody wants a worker there
        return Cause(nodes, f"{'has' if one else 'have'} the taint {shown}", step)
    for said, (singular, plural, step) in _KNOWN.items():
        if said in rest:
            return Cause(nodes, singular if one else plural, step)
    return Cause(nodes, f"node: {rest}" if one else f"nodes: {rest}")


def _of_the_pod(part: str) -> Cause:
    lower = part.lower()
    if "persistentvolumeclaim" in lower:
        claim = re.search(r'persistentvolumeclaim "([^"]+)"', part)
        name = f" {claim[1]}" if claim else ""
        state = "does not exist" if "not found" in lower else "is not bound to a volume"
        return Cause(0, f"its PersistentVolumeClaim{name} {state}", f"look at `kubectl get pvc{name}`: class, size, access mode")
    return Cause(0, part)


def _step_for(resource: str) -> str:
    if "/" in resource:  # an accelerator
        return "free nodes, or start with fewer (fleet.nodes, cluster.kubernetes.gpus_per_worker)"
    return f"free nodes, or ask for less (cluster.kubernetes.worker_{resource}, head_{resource})" if resource in _ASKED else ""


_ASKED = ("cpu", "memory")
_SELECT = "look at cluster.kubernetes.node_selector and avoid_nodes"
_SPREAD = "add nodes, or start with fewer (fleet.nodes)"
_KNOWN: dict[str, tuple[str, str, str]] = {
    "were unschedulable": ("is cordoned", "are cordoned", "`kubectl uncordon NODE` when it is sound again"),
    "didn't match Pod's node affinity": ("is not among the chosen nodes", "are not among the chosen nodes", _SELECT),
    "didn't match pod anti-affinity": ("has a worker already", "have a worker already", _SPREAD),
    "didn't match pod topology spread": ("has a worker already", "have a worker already", _SPREAD),
    "volume node affinity conflict": ("cannot reach its volume", "cannot reach its volume", "look at the zones of its volumes"),
    "Too many pods": ("is full of pods", "are full of pods", ""),
    "didn't have free ports": ("has the port taken", "have the port taken", ""),
}
