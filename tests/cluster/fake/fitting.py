"""Whether a pod fits on a node, and if not why, in the scheduler's own words. One function a plugin, in the order they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from .errors import Json
from .loops import ended, meets
from .quantities import amounts, asked_by
from .selectors import selects

_HOST = "kubernetes.io/hostname"
_HARD = ("NoSchedule", "NoExecute")


@dataclass
class Host:
    """A node with the pods that take room on it."""

    node: Json
    pods: list[Json] = field(default_factory=list)
    used: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.has = amounts((self.node.get("status") or {}).get("allocatable"))

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    @property
    def labels(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.node["metadata"].get("labels") or {}
        return found

    def take(self, pod: Json) -> None:
        self.pods.append(pod)
        for name, value in asked_by(pod).items():
            self.used[name] = self.used.get(name, 0.0) + value


def hosts_of(nodes: Iterable[Json], pods: Iterable[Json]) -> list[Host]:
    hosts = {node["metadata"]["name"]: Host(node) for node in nodes}
    for pod in pods:
        host = hosts.get(pod["spec"].get("nodeName") or "")
        if host is not None and not ended(pod):
            host.take(pod)
    return list(hosts.values())


def why_not(pod: Json, host: Host, hosts: list[Host]) -> list[str]:
    """Empty: it fits."""
    for plugin in _PLUGINS:
        reasons = plugin(pod, host, hosts)
        if reasons:
            return reasons
    return []


def _unschedulable(pod: Json, host: Host, hosts: list[Host]) -> list[str]:
    cordoned = (host.node.get("spec") or {}).get("unschedulable")
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    return ["node(s) were unschedulable"] if cordoned and not tolerated(pod, taint) else []


def _taints(pod: Json, host: Host, hosts: list[Host]) -> list[str]:
    for taint in (host.node.get("spec") or {}).get("taints") or ():
        if taint["effect"] in _HARD and not tolerated(pod, taint):
            return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    return []


def tolerated(pod: Json, taint: Json) -> bool:
    return toleration_of(pod, taint) is not None


def toleration_of(pod: Json, taint: Json) -> Json | None:
    for toleration in pod["spec"].get("tolerations") or ():
        if toleration.get("effect") not in (None, "", taint["effect"]):
            continue
        key, operator = toleration.get("key"), toleration.get("operator", "Equal")
        if key not in (None, "", taint["key"]) or (not key and operator != "Exists"):
            continue
        if operator == "Exists" or toleration.get("value", "") == taint.get("value", ""):
            found: Json = toleration
            return found
    return None


def _affinity(pod: Json, host: Host, hosts: list[Host]) -> list[str]:
    return [] if _wants(pod, host) else ["node(s) didn't match Pod's node affinity/selector"]


def _wants(pod: Json, host: Host) -> bool:
    spec = pod["spec"]
    if not (spec.get("nodeSelector") or {}).items() <= host.labels.items():
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    fields = {"metadata.name": host.name}
    for term in required.get("nodeSelectorTerms") or ():
        by_labels, by_fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
        if (
            (by_labels or by_fields)
            and all(meets(host.labels, e) for e in by_labels)
            and all(meets(fields, e) for e in by_fields)
        ):
            return True
    return False


def _room(pod: Json, host: Host, hosts: list[Host]) -> list[str]:
    reasons = ["Too many pods"] if len(host.pods) + 1 > host.has.get("pods", float("inf")) else []
    for name, wanted in asked_by(pod).items():
        if wanted and wanted > host.has.get(name, 0.0) - host.used.get(name, 0.0):
            reasons.append(f"Insufficient {name}")
    return reasons


def _spread(pod: Json, host: Host, hosts: list[Host]) -> list[str]:
    for constraint in pod["spec"].get("topologySpreadConstraints") or ():
        if constraint.get("whenUnsatisfiable", "DoNotSchedule") != "DoNotSchedule":
            continue
        key = constraint["topologyKey"]
        mine = host.labels.get(key)
        if mine is None:
            return ["node(s) didn't match pod topology spread constraints (missing required label)"]
        counts: dict[str, int] = {}
        for other in hosts:
            domain = other.labels.get(key)
            if domain is not None and _wants(pod, other):
                met = sum(_same_place(pod, p) and selects(constraint.get("labelSelector"), _labels(p)) for p in other.pods)
                counts[domain] = counts.get(domain, 0) + met
        own = 1 if selects(constraint.get("labelSelector"), _labels(pod)) else 0
        if counts.get(mine, 0) + own - min(counts.values(), default=0) > constraint["maxSkew"]:
            return ["node(s) didn't match pod topology spread constraints"]
    return []


def _anti_affinity(pod: Json, host: Host, hosts: list[Host]) -> list[str]:
    for term in _anti_terms(pod):
        if any(selects(term.get("labelSelector"), _labels(p)) for p in _neighbours(term, pod, host, hosts)):
            return ["node(s) didn't match pod anti-affinity rules"]
    for other in hosts if _any_anti_terms(hosts) else ():
        for placed in other.pods:
            for term in _anti_terms(placed):
                key = term["topologyKey"]
                near = key in host.labels and host.labels.get(key) == other.labels.get(key)
                if near and _same_place(pod, placed) and selects(term.get("labelSelector"), _labels(pod)):
                    return ["node(s) didn't satisfy existing pods anti-affinity rules"]
    return []


def _any_anti_terms(hosts: list[Host]) -> bool:
    return any(_anti_terms(pod) for host in hosts for pod in host.pods)


def _anti_terms(pod: Json) -> list[Json]:
    affinity = (pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    return list(affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ())


def _neighbours(term: Json, pod: Json, host: Host, hosts: list[Host]) -> Iterable[Json]:
    key = term["topologyKey"]
    if key not in host.labels:
        return
    for other in [host] if key == _HOST else hosts:
        if other.labels.get(key) == host.labels[key]:
            yield from (placed for placed in other.pods if _same_place(pod, placed))


def _same_place(one: Json, other: Json) -> bool:
    return bool(one["metadata"]["namespace"] == other["metadata"]["namespace"])


def _labels(pod: Json) -> Json:
    found: Json = pod["metadata"].get("labels") or {}
    return found


_PLUGINS: tuple[Callable[[Json, Host, list[Host]], list[str]], ...] = (
    _unschedulable,
    _taints,
    _affinity,
    _room,
    _spread,
    _anti_affinity,
)
