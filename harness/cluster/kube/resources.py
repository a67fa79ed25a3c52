"""Kinds of objects and their paths, and what a user may do with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote

from harness.cluster.base import ClusterError


class Resource(NamedTuple):
    version: str  # v1, batch/v1
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        return self.version.rpartition("/")[0]


_CORE, _BATCH, _RBAC = "v1", "batch/v1", "rbac.authorization.k8s.io/v1"
ACCESS_REVIEWS = "authorization.k8s.io/v1"
RESOURCES: dict[str, Resource] = {
    "ConfigMap": Resource(_CORE, "configmaps"),
    "Event": Resource(_CORE, "events"),
    "Namespace": Resource(_CORE, "namespaces", False),
    "Node": Resource(_CORE, "nodes", False),
    "PersistentVolumeClaim": Resource(_CORE, "persistentvolumeclaims"),
    "Pod": Resource(_CORE, "pods"),
    "ResourceQuota": Resource(_CORE, "resourcequotas"),
    "Secret": Resource(_CORE, "secrets"),
    "Service": Resource(_CORE, "services"),
    "ServiceAccount": Resource(_CORE, "serviceaccounts"),
    "DaemonSet": Resource("apps/v1", "daemonsets"),
    "Job": Resource(_BATCH, "jobs"),
    "PodDisruptionBudget": Resource("policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": Resource("networking.k8s.io/v1", "networkpolicies"),
    "Role": Resource(_RBAC, "roles"),
    "RoleBinding": Resource(_RBAC, "rolebindings"),
    "ClusterRole": Resource(_RBAC, "clusterroles", False),
    "ClusterRoleBinding": Resource(_RBAC, "clusterrolebindings", False),
    "PriorityClass": Resource("scheduling.k8s.io/v1", "priorityclasses", False),
    "JobSet": Resource("jobset.x-k8s.io/v1alpha2", "jobsets"),
}


class Allowed(NamedTuple):
    allowed: bool
    reason: str = ""  # of the server, may be empty

    def __bool__(self) -> bool:
        return self.allowed


class Rule(NamedTuple):
    verbs: frozenset[str]
    groups: frozenset[str]
    resources: frozenset[str]
    names: frozenset[str]


class Rules:
    """All that the user may do in one namespace, from one SelfSubjectRulesReview. Where the cluster could not tell all
    (`incomplete`), a right that is not listed may still exist: ask can_i."""

    def __init__(self, rules: Iterable[Rule], incomplete: bool = False) -> None:
        self._rules, self.incomplete = tuple(rules), incomplete

    def may(self, verb: str, resource: str, group: str = "", *, name: str = "") -> bool:
        """`resource` as in roles: pods, pods/eviction."""
        sub = f"*/{resource.partition('/')[2]}" if "/" in resource else resource
        return any(
            rule.verbs & {verb, "*"}
            and rule.groups & {group, "*"}
            and rule.resources & {resource, sub, "*"}
            and (not rule.names or name in rule.names)
            for rule in self._rules
        )


def resource_of(kind: str) -> Resource:
    try:
        return RESOURCES[kind]
    except KeyError:
        raise ClusterError(f"kind {kind!r} is not one that Paceline handles; it knows {', '.join(RESOURCES)}") from None


def path_of(kind: str, name: str = "", subresource: str = "", *, namespace: str = "", version: str = "") -> str:
    """`version` as an object's apiVersion, when it is not the usual one. `namespace` "*": all of them."""
    resource = resource_of(kind)
    version = version or resource.version
    path = f"/apis/{version}" if "/" in version else f"/api/{version}"
    if resource.namespaced and namespace != "*":
        path += f"/namespaces/{quote(namespace, safe='')}"
    path += f"/{resource.plural}"
    if name:
        path += f"/{quote(name, safe='')}"
    return f"{path}/{subresource}" if subresource else path
