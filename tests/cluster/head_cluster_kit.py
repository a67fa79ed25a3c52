"""The head's side of a fake cluster without a head: its KubernetesCluster, with the rights of its ServiceAccount, polled as
the head does it. The fake runs in a thread of its own, so that tests may block it or be blocked by it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster_kit import ClusterKit

from harness.cluster.base import NodeEvent, Place
from harness.cluster.kube.access import access
from harness.cluster.kube.cluster import KubernetesCluster
from harness.cluster.kube.reflector import Pace
from harness.cluster.kube.render import render
from harness.records.layout import RunFolder
from harness.spec import RunSpec
from harness.wire.clusterview import ClusterView, PodRow

PATIENCE_S = 60.0
RUN = "run-a"
QUICK = Pace(first_pause_s=0.05, longest_pause_s=0.5, forbidden_pause_s=1.0)
_CLUSTER_ROLE: dict[str, Any] = {
    "metadata": {"name": "paceline-nodes"},
    "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]}],
}


def spec_of(nodes: int, **kube: Any) -> RunSpec:
    fleet = {"engine": "synthetic", "nodes": nodes, "replicas_per_node": 2}
    settings = {"namespace": "paceline", "grace_s": 5, **kube}
    return RunSpec.model_validate({"fleet": fleet, "cluster": {"kind": "kubernetes", "kubernetes": settings}})


@dataclass
class HeadSide:
    cluster: KubernetesCluster
    kit: ClusterKit
    folder: RunFolder
    events: list[NodeEvent] = field(default_factory=list)

    @property
    def view(self) -> ClusterView:
        found = self.cluster.view()
        assert found is not None
        return found

    def row(self, node: int) -> PodRow:
        return next((row for row in self.view.pods if row.node == node), PodRow(node))

    def ready(self) -> int:
        return sum(row.ready for row in self.view.pods if row.node >= 0)

    def told(self, *parts: str, kind: str = "") -> list[NodeEvent]:
        return [e for e in self.events if kind in ("", e.kind) and all(part in e.reason for part in parts)]

    def log(self, name: str) -> list[str]:
        path = self.folder.log(name)
        return path.read_text().splitlines() if path.exists() else []

    def write(self, node: int, *lines: str) -> None:
        """What the worker of this node prints."""
        pod = self.kit.pods("worker", node)[0]
        for line in lines:
            self.kit.on(lambda line=line: self.kit.cluster.logs.write(pod["metadata"]["uid"], line, "worker"))  # type: ignore[misc]

    async def until(self, holds: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> float:
        began_s = time.monotonic()
        while not holds():
            if time.monotonic() > began_s + within_s:
                said = "\n".join(f"{e.kind} {e.worker}: {e.reason}" for e in self.events)
                raise AssertionError(f"not within {within_s} s: {what}\n{self.view}\n{said}\n{self.kit.situation()}")
            await asyncio.sleep(0.05)
        return time.monotonic() - began_s

    async def poll_for_ever(self) -> None:
        while True:
            self.events += self.cluster.poll(time.monotonic())
            await asyncio.sleep(0.1)


def place_run(kit: ClusterKit, spec: RunSpec, run: str = RUN) -> None:
    for obj in render(spec, run):
        kit.create(obj["kind"], obj)


def may_see_nodes(kit: ClusterKit) -> None:
    """What manifests/components/nodes gives to the head."""
    subject = {"kind": "ServiceAccount", "name": "paceline-head", "namespace": kit.namespace}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "paceline-nodes"}
    kit.create("ClusterRole", {"kind": "ClusterRole", **_CLUSTER_ROLE})
    kit.create("ClusterRoleBinding", {"metadata": {"name": "paceline-nodes"}, "roleRef": ref, "subjects": [subject]})


@contextlib.asynccontextmanager
async def head_side(kit: ClusterKit, spec: RunSpec, place: Path, run: str = RUN, token: str = "") -> AsyncIterator[HeadSide]:
    """`token`: "" is the one of the head's ServiceAccount."""
    folder = RunFolder(place / run)
    folder.path.mkdir(exist_ok=True)
    own = token or kit.on(lambda: kit.cluster.access.account_token(kit.namespace, "paceline-head"))
    kubeconfig = kit.cluster.kubeconfig(place / "head-kubeconfig", token=own, namespace=kit.namespace)
    cluster = KubernetesCluster(folder, spec, access=access(kubeconfig=kubeconfig), pace=QUICK)
    cluster.start(Place("tcp://127.0.0.1:1"))
    side = HeadSide(cluster, kit, folder)
    polling = asyncio.create_task(side.poll_for_ever())
    try:
        yield side
    finally:
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        await asyncio.to_thread(cluster.stop, 0.5)
