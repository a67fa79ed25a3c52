"""What contract tests of controllers talk to: the fake with a clock that tests push, or the server of PACELINE_KUBECONFIG.

Both give the same few verbs. `until` pushes the clock of the fake, and really waits at a server.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import httpx
import pytest
from fake.clock import ManualClock
from fake.disruption import DisruptionLoop
from fake.errors import ApiError
from fake.evicting import evict
from fake.jobs import JobLoop
from fake.kinds import Registry
from fake.kubelet import InStore, StubKubelet
from fake.loops import ControlPlane
from fake.nodes import ClaimLoop, NodeLoop
from fake.over_http import OverHttp, SimulatedNodes
from fake.patches import merge_patch
from fake.quota import QuotaLoop
from fake.scheduler import SchedulerLoop
from fake.store import Store

from harness.cluster.kube.access import access

Json = dict[str, Any]
KUBECONFIG = "PACELINE_KUBECONFIG"
GPU = "amd.com/gpu"
_MINE = "paceline.test/simulated"
_TURN_S = 0.1


class Target(Protocol):
    live: bool  # a real server: time passes by itself, and nothing is as exact
    namespace: str
    kubelet: StubKubelet

    def create(self, kind: str, obj: Json) -> Json: ...

    def get(self, kind: str, name: str) -> Json | None: ...

    def listed(self, kind: str, **labels: str) -> list[Json]: ...

    def patch(self, kind: str, name: str, changes: Json, *, status: bool = False) -> Json: ...

    def delete(self, kind: str, name: str, propagation: str = "Background") -> None: ...

    def evict(self, pod: str, **options: Any) -> None:
        """Raises ApiError."""

    def add_nodes(self, count: int, *, gpus: int = 8, labels: dict[str, str] | None = None) -> list[str]: ...

    def until(self, holds: Callable[[], object], within_s: float, what: str) -> float:
        """How long it took."""

    def close(self) -> None: ...


class FakeTarget:
    live = False
    namespace = "contract"

    def __init__(self) -> None:
        self.clock = PushedClock()
        self.store = Store(self.clock)
        self.store.create("Namespace", "", {"metadata": {"name": self.namespace}})
        self.kubelet = StubKubelet(InStore(self.store))
        loops = [QuotaLoop, NodeLoop, ClaimLoop, JobLoop, SchedulerLoop, DisruptionLoop]
        self.plane = ControlPlane(self.store, [*(loop(self.store) for loop in loops), self.kubelet])
        self._nodes = 0

    def create(self, kind: str, obj: Json) -> Json:
        made = self.store.create(kind, self._ns(kind), obj)
        self.plane.settle()
        return made

    def get(self, kind: str, name: str) -> Json | None:
        return self.store.get(kind, self._ns(kind), name)

    def listed(self, kind: str, **labels: str) -> list[Json]:
        return self.store.list(kind, self._ns(kind), labels)

    def patch(self, kind: str, name: str, changes: Json, *, status: bool = False) -> Json:
        def change(target: Json) -> None:
            patched = merge_patch(target, changes)
            target.clear()
            target.update(patched)

        made = self.store.update(kind, self._ns(kind), name, change, status=status)
        self.plane.settle()
        return made

    def delete(self, kind: str, name: str, propagation: str = "Background") -> None:
        self.store.delete(kind, self._ns(kind), name, propagation=propagation)  # type: ignore[arg-type]
        self.plane.settle()

    def evict(self, pod: str, **options: Any) -> None:
        evict(self.store, self.namespace, pod, {"deleteOptions": options}, dry_run=False)
        self.plane.settle()

    def add_nodes(self, count: int, *, gpus: int = 8, labels: dict[str, str] | None = None) -> list[str]:
        names = []
        for _ in range(count):
            self.create("Node", node(f"node-{self._nodes}", gpus=gpus, labels=labels))
            names.append(f"node-{self._nodes}")
            self._nodes += 1
        return names

    def until(self, holds: Callable[[], object], within_s: float, what: str) -> float:
        began_s = self.clock.now_s()
        while True:
            self.plane.settle()
            elapsed_s = self.clock.now_s() - began_s
            if holds():
                return elapsed_s
            assert elapsed_s < within_s, f"not within {within_s} s: {what}"
            self.clock.push(_TURN_S)

    def close(self) -> None:
        self.plane.close()

    def _ns(self, kind: str) -> str:
        return self.namespace if self.store.kinds[kind].namespaced else ""


class ServerTarget:
    """A namespace of a real API server, and Nodes that are simulated. Only on a cluster that has no Nodes of its own."""

    live = True

    def __init__(self, api: httpx.Client) -> None:
        self._api = api
        self.namespace = f"paceline-jobs-{secrets.token_hex(3)}"
        self._kinds = Registry()
        self._simulated: SimulatedNodes | None = None
        foreign = [found["metadata"]["name"] for found in self._nodes() if _MINE not in (found["metadata"].get("labels") or {})]
        if foreign:
            pytest.skip(f"the cluster has Nodes that no test made ({', '.join(foreign[:3])}): its pods could land there")
        self.create("Namespace", {"metadata": {"name": self.namespace}})
        self.until(lambda: self.get("ServiceAccount", "default"), 20, "the namespace's ServiceAccount")
        objects = OverHttp(self._api, self.namespace)
        self.kubelet = StubKubelet(objects)
        self._simulated = SimulatedNodes(self._api, self.kubelet, objects)
        self._suffix = secrets.token_hex(2)
        self._made_nodes = 0

    def create(self, kind: str, obj: Json) -> Json:
        if kind == "Node":
            assert self._simulated is not None
            self._simulated.add(obj)
            return _answered(self._api.get(self._path(kind, obj["metadata"]["name"])))
        about = self._kinds[kind]
        return _answered(self._api.post(self._path(kind), json={"kind": kind, "apiVersion": about.api_version} | obj))

    def get(self, kind: str, name: str) -> Json | None:
        answer = self._api.get(self._path(kind, name))
        return None if answer.status_code == 404 else _answered(answer)

    def listed(self, kind: str, **labels: str) -> list[Json]:
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        found: list[Json] = _answered(self._api.get(self._path(kind), params={"labelSelector": selector}))["items"]
        return found

    def patch(self, kind: str, name: str, changes: Json, *, status: bool = False) -> Json:
        path = self._path(kind, name) + ("/status" if status else "")
        return _answered(self._api.patch(path, json=changes, headers={"Content-Type": "application/merge-patch+json"}))

    def delete(self, kind: str, name: str, propagation: str = "Background") -> None:
        _answered(self._api.request("DELETE", self._path(kind, name), json={"propagationPolicy": propagation}))

    def evict(self, pod: str, **options: Any) -> None:
        about = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": self.namespace}}
        _answered(self._api.post(f"{self._path('Pod', pod)}/eviction", json=about | {"deleteOptions": options}))

    def add_nodes(self, count: int, *, gpus: int = 8, labels: dict[str, str] | None = None) -> list[str]:
        names = [f"contract-{self._suffix}-{self._made_nodes + number}" for number in range(count)]
        for name in names:
            self.create("Node", node(name, gpus=gpus, labels={_MINE: self.namespace, **(labels or {})}))
        self._made_nodes += count
        return names

    def until(self, holds: Callable[[], object], within_s: float, what: str) -> float:
        began_s = time.monotonic()
        while not holds():
            assert self._problem() is None, f"the stub kubelet failed: {self._problem()!r}"
            assert time.monotonic() < began_s + within_s, f"not within {within_s} s: {what}"
            time.sleep(_TURN_S)
        return time.monotonic() - began_s

    def close(self) -> None:
        self.kubelet.stop_after_s = 0.0
        for job in self.listed("Job"):
            self.delete("Job", job["metadata"]["name"], "Foreground")
        with contextlib.suppress(AssertionError):
            self.until(lambda: not self.listed("Job") and not self.listed("Pod"), 60, "what the test made is gone")
        if self._simulated is not None:
            self._simulated.close()
        self.delete("Namespace", self.namespace)

    def _problem(self) -> Exception | None:
        return self._simulated.problem if self._simulated is not None else None

    def _nodes(self) -> list[Json]:
        found: list[Json] = _answered(self._api.get("/api/v1/nodes"))["items"]
        return found

    def _path(self, kind: str, name: str = "") -> str:
        about = self._kinds[kind]
        root = f"/apis/{about.api_version}" if about.group else f"/api/{about.version}"
        space = f"/namespaces/{self.namespace}" if about.namespaced else ""
        return f"{root}{space}/{about.plural}" + (f"/{name}" if name else "")


def _answered(answer: httpx.Response) -> Json:
    body: Json = answer.json()
    if answer.is_error:
        raise ApiError(answer.status_code, body.get("reason", ""), body.get("message", ""), body.get("details"))
    return body


#: On a server a test takes as long as back-offs there do.
NAMES = [
    "fake",
    *([pytest.param("server", marks=[pytest.mark.cluster, pytest.mark.timeout(600)])] if os.environ.get(KUBECONFIG) else []),
]


@contextlib.contextmanager
def opened(name: str) -> Iterator[Target]:
    with contextlib.ExitStack() as stack:
        made: FakeTarget | ServerTarget
        made = FakeTarget() if name == "fake" else ServerTarget(stack.enter_context(_server()))
        stack.callback(made.close)
        yield made


def _server() -> httpx.Client:
    found = access(kubeconfig=os.environ[KUBECONFIG])
    return httpx.Client(base_url=found.server, verify=found.ssl_context() or True, headers=found.headers(), timeout=20)


class PushedClock(ManualClock):
    """For controllers that are stepped, not awaited."""

    def push(self, by_s: float) -> None:
        self._now_s += by_s


def node(name: str, *, gpus: int, labels: dict[str, str] | None = None) -> Json:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"} | ({GPU: str(gpus)} if gpus else {})
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def worker_job(nodes: int, *, name: str = "worker", gpus: int = 8, **spec: Any) -> Json:
    """As a run's worker Job is, unless `spec` says otherwise; a value of None leaves a field out."""
    labels = {"app": name}
    limits = {GPU: str(gpus)} if gpus else {"cpu": "1"}
    container = {"name": "worker", "image": "registry.example.com/worker:1", "resources": {"limits": limits, "requests": limits}}
    fields: Json = {
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        "backoffLimitPerIndex": 6,
        "maxFailedIndexes": min(8, nodes),
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [42]}},
            ]
        },
        "template": {
            "metadata": {"labels": labels},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 8, "containers": [container]},
        },
    }
    fields |= spec
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {field: value for field, value in fields.items() if value is not None},
    }


def budget(minimum: int | str | None, *, name: str = "worker", **spec: Any) -> Json:
    """minAvailable, with the policy of ours."""
    fields: Json = {"selector": {"matchLabels": {"app": name}}, "unhealthyPodEvictionPolicy": "AlwaysAllow", **spec}
    if minimum is not None:
        fields["minAvailable"] = minimum
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": fields}


def refusal(call: Callable[[], object]) -> ApiError:
    try:
        call()
    except ApiError as problem:
        return problem
    raise AssertionError("it was allowed")
