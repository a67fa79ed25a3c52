"""A fake cluster with everything in it, for system tests: nodes with GPUs, controllers, and pods that are status or processes.

    with cluster_of(4, tmp_path, processes=True) as kit:
        kit.kubeconfig          # for `paceline …` and for kubectl; an administrator's
        kit.until(lambda: kit.ready("worker") == 4, 60, "four workers ready")

Controllers run by the real clock in the cluster's thread. All waits have a deadline, and say what the pods were at when it came.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped]
from fake.access import Rule
from fake.cluster import FakeCluster
from fake.disruption import DisruptionLoop
from fake.jobs import JobLoop
from fake.jobsets import JOB_SET, JobSetLoop
from fake.kubelet import Fate, InStore, Kubelet, StubKubelet
from fake.loops import ControlPlane, Runs, going, is_true
from fake.nodes import ClaimLoop, NodeLoop
from fake.processes import ProcessKubelet
from fake.quota import QuotaLoop
from fake.scheduler import SchedulerLoop
from job_targets import node

from harness.cluster.kube.names import COMPONENT, INDEX

Json = dict[str, Any]
T = TypeVar("T")
NAMESPACE = "paceline"
_INSTALL = Path(__file__).parents[2] / "manifests" / "install"


@contextlib.contextmanager
def cluster_of(
    nodes: int,
    place: Path,
    *,
    processes: bool = False,
    gpus: int = 8,
    racks: int = 0,
    backoff_s: float = 10.0,
    namespace: str = NAMESPACE,
    job_sets: bool = False,
) -> Iterator[ClusterKit]:
    """`racks`: so many zones in turn. `backoff_s`: what a real Job controller makes 10 s before it replaces a pod."""
    # Not in `place`, whose path may be too long for the sockets of what runs in the pods.
    folder = Path(tempfile.mkdtemp(prefix="pods-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        cluster = stack.enter_context(FakeCluster())

        def build() -> ClusterKit:
            store = cluster.store
            kubelet: Kubelet
            if processes:
                kubelet = ProcessKubelet(store, folder, logs=cluster.logs, kubeconfig=_credentials(cluster))
            else:
                kubelet = StubKubelet(InStore(store))
            jobs = JobLoop(store, first_backoff_s=backoff_s)
            loops: list[Runs] = [loop(store) for loop in (QuotaLoop, NodeLoop, ClaimLoop, SchedulerLoop, DisruptionLoop)]
            if job_sets:
                store.kinds.add(JOB_SET)
                loops.append(JobSetLoop(store))
            return ClusterKit(
                cluster, kubelet, ControlPlane(store, [*loops, jobs, kubelet]), namespace, place / "kubeconfig", folder
            )

        kit = cluster.call(build)
        stack.callback(cluster.call, kit.plane.close)
        kit.install()
        kit.add_nodes(nodes, gpus=gpus, racks=racks)
        cluster.kubeconfig(kit.kubeconfig, namespace=namespace)
        task = cluster.in_background(kit.plane.run)
        stack.callback(cluster.call, task.cancel)  # before the kubelet closes, or it would start its pods again
        yield kit
        failed = cluster.call(lambda: task.exception() if task.done() and not task.cancelled() else None)
        if failed is not None:
            raise failed


def _credentials(cluster: FakeCluster) -> Callable[[Path, str, str], None]:
    def write(path: Path, namespace: str, account: str) -> None:
        cluster.kubeconfig(path, token=cluster.access.account_token(namespace, account), namespace=namespace)

    return write


@dataclass
class ClusterKit:
    cluster: FakeCluster
    kubelet: Kubelet
    plane: ControlPlane
    namespace: str
    kubeconfig: Path
    folder: Path  # claims/NAMESPACE/NAME is what is on a claim, pods/… what a pod has to itself
    nodes: int = 0

    # --- what is there ---------------------------------------------------------------------------------------

    def get(self, kind: str, name: str) -> Json | None:
        return self.cluster.call(lambda: self.cluster.store.get(kind, self.namespace, name))

    def listed(self, kind: str, **labels: str) -> list[Json]:
        return self.cluster.call(lambda: self.cluster.store.list(kind, self.namespace, labels))

    def pods(self, component: str = "", index: int | None = None, *, living: bool = True) -> list[Json]:
        """Of a component of the run ("worker"), of one node of the fleet; `living`: neither ended nor going."""
        found = []
        for pod in self.listed("Pod"):
            labels = pod["metadata"].get("labels") or {}
            if living and (going(pod) or pod["status"]["phase"] not in ("Pending", "Running")):
                continue
            if component in ("", labels.get(COMPONENT)) and (index is None or labels.get(INDEX) == str(index)):
                found.append(pod)
        return found

    def ready(self, component: str = "") -> int:
        return sum(is_true(pod, "Ready") for pod in self.pods(component))

    def log(self, pod: str) -> list[str]:
        """Of its only container; empty once it is gone."""
        found = self.get("Pod", pod)
        if found is None:
            return []
        uid, container = found["metadata"]["uid"], found["spec"]["containers"][0]["name"]
        return [line.text for line in self.cluster.call(lambda: self.cluster.logs.lines(uid, container)) or ()]

    def claim(self, name: str) -> Path:
        return self.folder / "claims" / self.namespace / name

    def until(self, holds: Callable[[], object], within_s: float, what: str) -> float:
        """Seconds that it took."""
        began_s = time.monotonic()
        while not holds():
            if time.monotonic() > began_s + within_s:
                raise AssertionError(f"not within {within_s} s: {what}\n{self.situation()}")
            time.sleep(0.05)
        return time.monotonic() - began_s

    def situation(self) -> str:
        """Every pod with its state and the end of its log, and the warnings: what a failed wait shows."""
        lines = []
        for pod in self.pods(living=False):
            states = [status["state"] for status in pod["status"].get("containerStatuses") or ()]
            where = pod["spec"].get("nodeName", "no node")
            lines.append(f"{pod['metadata']['name']} on {where}: {pod['status']['phase']} {states}")
            lines += [f"    | {line}" for line in self.log(pod["metadata"]["name"])[-8:]]
        for event in self.listed("Event"):
            if event["type"] == "Warning":
                lines.append(f"{event['involvedObject']['name']}: {event['reason']}: {event['message']}")
        return "\n".join(lines)

    # --- what tests do to it ---------------------------------------------------------------------------------

    def on(self, work: Callable[[], T]) -> T:
        """In the cluster's thread: anything with `cluster.store` or `kubelet`."""
        return self.cluster.call(work)

    def create(self, kind: str, obj: Json) -> Json:
        return self.cluster.call(lambda: self.cluster.store.create(kind, self.namespace, obj))

    def update(self, kind: str, name: str, mutate: Callable[[Json], None], *, status: bool = False) -> None:
        self.cluster.call(lambda: self.cluster.store.update(kind, self.namespace, name, mutate, status=status))

    def add_nodes(self, count: int, *, gpus: int = 8, racks: int = 0) -> list[str]:
        names = [f"node-{self.nodes + number}" for number in range(count)]

        def add() -> None:
            for number, name in enumerate(names, self.nodes):
                labels = {"topology.kubernetes.io/zone": f"rack-{number % racks}"} if racks else {}
                self.cluster.store.create("Node", "", node(name, gpus=gpus, labels=labels))

        self.cluster.call(add)
        self.nodes += count
        return names

    def cordon(self, name: str, yes: bool = True) -> None:
        self.update("Node", name, lambda found: found["spec"].__setitem__("unschedulable", yes))

    def node_down(self, name: str) -> None:
        self.cluster.call(lambda: self.kubelet.node_down(name))

    def node_up(self, name: str) -> None:
        self.cluster.call(lambda: self.kubelet.node_up(name))

    def befalls(self, fate: Fate, pod: str = "", *, node: str = "", times: int | None = None) -> None:
        """Only where pods are status: see StubKubelet."""
        kubelet = self.kubelet
        assert isinstance(kubelet, StubKubelet), "pods that are processes have no fates; kill them"
        self.cluster.call(lambda: kubelet.befalls(fate, pod, node=node, times=times))

    def replaces_after(self, backoff_s: float) -> None:
        """From now on; also pods that have ended already and have no successor yet."""

        def change() -> None:
            for loop in self.plane.loops:
                if isinstance(loop, JobLoop):
                    loop.first_backoff_s = backoff_s
                    loop.again_at(0.0)

        self.cluster.call(change)

    def gets_well(self) -> None:
        """No fate befalls anybody any more, and who waited because of one goes on."""
        kubelet = self.kubelet
        assert isinstance(kubelet, StubKubelet), "pods that are processes have no fates"
        self.cluster.call(kubelet.forget_fates)

    def kill(self, pod: str, *, oom: bool = False) -> None:
        """Only where pods are processes."""
        kubelet = self.kubelet
        assert isinstance(kubelet, ProcessKubelet), "pods that are status have fates; nothing runs in them"
        self.cluster.call(lambda: kubelet.kill(pod, oom=oom))

    def pids(self, pod: str) -> list[int]:
        kubelet = self.kubelet
        assert isinstance(kubelet, ProcessKubelet)
        return self.cluster.call(lambda: kubelet.pids(pod))

    def operator(self, path: Path, *rules: Rule) -> Path:
        """A kubeconfig of somebody with these rights and no others; without any, those of the example in manifests/install."""
        token = self.cluster.token("operator", *(rules or self._operator_rules()))
        return self.cluster.kubeconfig(path, token=token, namespace=self.namespace)

    def install(self) -> None:
        """What an administrator applies once: manifests/install, in the kit's namespace."""
        for obj in _installed(self.namespace):
            self.cluster.call(lambda obj=obj: self.cluster.store.create(obj["kind"], self.namespace, obj))  # type: ignore[misc]

    def _operator_rules(self) -> list[Rule]:
        role = self.get("Role", "paceline-operator")
        assert role is not None
        return [Rule(tuple(r["verbs"]), tuple(r["apiGroups"]), tuple(r["resources"]), self.namespace) for r in role["rules"]]


def _installed(namespace: str) -> list[Json]:
    found = [obj for path in _INSTALL.glob("*.yaml") for obj in yaml.safe_load_all(path.read_text()) if obj]
    order = ["Namespace", "ServiceAccount", "Role", "RoleBinding", "PersistentVolumeClaim"]
    objects = sorted((obj for obj in found if obj["kind"] in order), key=lambda obj: order.index(obj["kind"]))
    for obj in objects:
        if obj["kind"] == "Namespace":
            obj["metadata"]["name"] = namespace
        else:
            obj["metadata"]["namespace"] = namespace
        for subject in obj.get("subjects") or ():
            if "namespace" in subject:
                subject["namespace"] = namespace
    return objects


#: Bound and never listening, by sockets that share: a head can listen there, and nobody else is given the port meanwhile.
_PLACES: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """All pods share this machine's 127.0.0.1: every run in a test needs ports of its own (cluster.kubernetes.control_port …).
    They are kept for heads to come, until the tests' process ends: a successor listens where its predecessor did."""
    places = [socket.socket() for _ in range(count)]
    for place in places:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("0.0.0.0", 0))
    _PLACES.extend(places)
    return [int(place.getsockname()[1]) for place in places]


def environment(kubeconfig: Path, **more: str) -> dict[str, str]:
    """Of a `paceline …` process of somebody at a laptop."""
    return {**os.environ, "KUBECONFIG": str(kubeconfig), **more}
