"""The kinds that the fake API server knows, with what is special about each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from .errors import Json

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind:
    kind: str
    group: str
    version: str
    plural: str
    namespaced: bool = True
    status: bool = False  # has the subresource /status
    generation: bool = False  # metadata.generation counts changes of the spec
    short: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


_RBAC = "rbac.authorization.k8s.io"
KINDS: tuple[Kind, ...] = (
    Kind("Pod", "", "v1", "pods", status=True, generation=True, short=("po",)),
    Kind("Node", "", "v1", "nodes", namespaced=False, status=True, short=("no",)),
    Kind("Namespace", "", "v1", "namespaces", namespaced=False, status=True, short=("ns",)),
    Kind("Event", "", "v1", "events", short=("ev",)),
    Kind("Service", "", "v1", "services", status=True, short=("svc",)),
    Kind("ConfigMap", "", "v1", "configmaps", short=("cm",)),
    Kind("Secret", "", "v1", "secrets"),
    Kind("ServiceAccount", "", "v1", "serviceaccounts", short=("sa",)),
    Kind("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims", status=True, short=("pvc",)),
    Kind("ResourceQuota", "", "v1", "resourcequotas", status=True, short=("quota",)),
    Kind("Job", "batch", "v1", "jobs", status=True, generation=True),
    Kind("DaemonSet", "apps", "v1", "daemonsets", status=True, generation=True, short=("ds",)),
    Kind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets", status=True, generation=True, short=("pdb",)),
    Kind("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies", generation=True, short=("netpol",)),
    Kind("Role", _RBAC, "v1", "roles"),
    Kind("RoleBinding", _RBAC, "v1", "rolebindings"),
    Kind("ClusterRole", _RBAC, "v1", "clusterroles", namespaced=False),
    Kind("ClusterRoleBinding", _RBAC, "v1", "clusterrolebindings", namespaced=False),
    Kind("EndpointSlice", "discovery.k8s.io", "v1", "endpointslices", generation=True),
    Kind("Lease", "coordination.k8s.io", "v1", "leases"),
)


class Registry:
    """By name of the kind, or by the parts of a path."""

    def __init__(self, kinds: tuple[Kind, ...] = KINDS) -> None:
        self._by_kind = {kind.kind: kind for kind in kinds}
        self._by_path = {(kind.group, kind.version, kind.plural): kind for kind in kinds}

    def __getitem__(self, kind: str) -> Kind:
        return self._by_kind[kind]

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._by_kind.values())

    def at(self, group: str, version: str, plural: str) -> Kind | None:
        return self._by_path.get((group, version, plural))

    def add(self, kind: Kind) -> None:
        """As a CustomResourceDefinition would: for JobSet or Kueue in a test."""
        self._by_kind[kind.kind] = kind
        self._by_path[(kind.group, kind.version, kind.plural)] = kind

    def groups(self) -> list[tuple[str, str]]:
        return sorted({(kind.group, kind.version) for kind in self._by_kind.values()})

    def of(self, group: str, version: str) -> list[Kind]:
        return [kind for kind in self._by_kind.values() if (kind.group, kind.version) == (group, version)]


def copied(value: T) -> T:
    """A deep copy of JSON data; ten times faster than copy.deepcopy."""
    return cast(T, _copied(value))


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner) for inner in value]
    return value


def meta(obj: Json) -> Json:
    found: Json = obj.setdefault("metadata", {})
    return found


def key_of(obj: Json) -> tuple[str, str]:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
