"""Pods, nodes and Jobs as the watches reduce them, and a scene with its news that tests change by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from harness.cluster.base import NodeEvent
from harness.cluster.kube.news import News
from harness.cluster.kube.reflector import Change
from harness.cluster.kube.scene import Scene
from harness.cluster.kube.views import Condition, ContainerView, JobView, NodeView, PodView

T0 = 1_700_000_000.0
RUN = "run-a"
EVICTED = Condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting", T0)


def container(state: str = "running", **more: Any) -> ContainerView:
    return ContainerView("worker", image="registry/worker:1", state=state, started_unix=T0, **more)


def a_pod(index: int, suffix: str = "a", **more: Any) -> PodView:
    """Running and ready on gpu-INDEX."""
    fields: dict[str, Any] = {
        "uid": f"uid-{index}-{suffix}",
        "namespace": "paceline",
        "component": "worker",
        "index": index,
        "node": f"gpu-{index}",
        "phase": "Running",
        "ready": True,
        "created_unix": T0,
        "started_unix": T0,
        "containers": (container(),),
    }
    return PodView(f"{RUN}-worker-{index}-{suffix}", **(fields | more))


def ended(pod: PodView, code: int = 1, at_unix: float = T0 + 60, **more: Any) -> PodView:
    one = container("terminated", exit_code=code, finished_unix=at_unix, **more)
    return changed(pod, phase="Failed" if code else "Succeeded", ready=False, containers=(one,))


def changed(pod: PodView, **more: Any) -> PodView:
    return msgspec.structs.replace(pod, **more)


def a_node(name: str, *, ready: bool = True, **more: Any) -> NodeView:
    return NodeView(name, uid=f"uid-{name}", ready=ready, **more)


def a_job(nodes: int, **more: Any) -> JobView:
    return JobView(f"{RUN}-worker", uid="uid-job", component="worker", parallelism=nodes, completions=nodes, **more)


@dataclass
class Stage:
    now_unix: float = T0
    scene: Scene = field(default_factory=lambda: Scene(RUN))
    words: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.news = News(self.scene, lambda uid: self.words.get(uid, []), gpu_resource="amd.com/gpu")

    def pod(self, pod: PodView, change: Change | None = None) -> None:
        old = self.scene.pods.get(pod.uid)
        kind: Change = change or ("ADDED" if old is None else "MODIFIED")
        self.scene.pod_changed(kind, old, pod, self.now_unix)
        self.news.pod_changed(kind, old, pod, self.now_unix)

    def node(self, node: NodeView) -> None:
        old = self.scene.nodes.get(node.uid)
        self.scene.node_changed("MODIFIED" if old else "ADDED", node)
        self.news.node_changed("MODIFIED" if old else "ADDED", old, node, self.now_unix)

    def job(self, job: JobView) -> None:
        old = self.scene.jobs.get(job.uid)
        self.scene.job_changed("MODIFIED" if old else "ADDED", job)
        self.news.job_changed(old, job)

    def poll(self) -> list[NodeEvent]:
        return self.news.poll(self.now_unix)
