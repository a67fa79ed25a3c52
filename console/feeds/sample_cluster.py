"""SAMPLE DATA, never measurements: the pods and Kubernetes nodes under a `ScriptedFleet`, as a head would tell of them.

Measuring: one pod evicted for the third time and not yet replaced, a node that is not ready, one that is cordoned, one that
is short of an accelerator, two spare ones. Starting: more than half of the pods wait for accelerators, two for an image.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from harness.spec import node_name
from harness.wire.clusterview import BudgetRow, ClusterView, HostRow, PodRow
from harness.wire.states import REPLICA_CODE

if TYPE_CHECKING:
    from console.feeds.scripted import ScriptedFleet

NO_ROOM: Final = "0/64 nodes are available: 29 Insufficient amd.com/gpu, 35 node(s) didn't match pod anti-affinity rules"
NO_IMAGE: Final = "ImagePullBackOff: registry.example.com/team/paceline-worker:0.1.0: 429 Too Many Requests"
EVICTED, UNREADY, CORDONED, SHORT, SLOW = 12, 10, 20, 33, 15  # nodes of the fleet
_FIRST_DELAY_S: Final = 10.0


class SampleCluster:
    def __init__(self, fleet: ScriptedFleet) -> None:
        self._fleet = fleet
        self._nodes = fleet.spec.fleet.nodes
        self._wanted = self._nodes
        self._gpus = fleet.spec.fleet.replicas_per_node
        self.problem = ""
        self.denied: dict[str, str] = {}
        self.seen_s = 0.4  # since the API server's last word
        self.budget = BudgetRow("sample-worker", 2, self._nodes, max(1, self._nodes - 2), self._nodes)
        self.pods = [self._pod(node) for node in range(self._nodes)]
        self.hosts = [self._host(node) for node in range(self._nodes)]
        self.hosts += [HostRow(f"mi355x-{spare:03d}", rack="r9", gpus=8, gpus_there=8) for spare in (90, 91)]
        if fleet.phase in ("PLACING", "REGISTERING", "WARMING"):
            self._keep_waiting()
        elif self._nodes >= 64:
            self._plant()

    def view(self) -> ClusterView:
        return ClusterView(
            "kubernetes", "bench", "gptoss-120b-20261118", self._wanted, self._unix() - self.seen_s, self.problem,
            list(self.pods), list(self.hosts), self.budget, dict(self.denied),
        )  # fmt: skip

    def _unix(self) -> float:
        return self._fleet.unix_at(self._fleet.t_s)

    def _pod(self, node: int) -> PodRow:
        return PodRow(
            node, f"sample-worker-{node}-x{node * 7919 % 4096:03x}", f"uid-{node}", "Running", True, _host_name(node),
            _rack(node), since_unix=self._fleet.unix_at(-94.0), next_delay_s=_FIRST_DELAY_S,
        )  # fmt: skip

    def _host(self, node: int) -> HostRow:
        return HostRow(_host_name(node), rack=_rack(node), gpus=8, gpus_there=8, pods=[self.pods[node].pod])

    # --- what is wrong -------------------------------------------------------------------------------------

    def _plant(self) -> None:
        self.change(SLOW, evictions=2, next_delay_s=40.0)
        self.change(
            EVICTED, pod="", ready=False, phase="", host="", evictions=3, next_delay_s=80.0,
            replacement_unix=self._unix() + 32.0, reason="evicted for the third time by kim@head",
        )  # fmt: skip
        self.change(UNREADY, ready=False, reason="its node is NotReady")
        self.change(SHORT, restarts=2)
        self.budget = msgspec.structs.replace(self.budget, allowed=1, healthy=self._nodes - 1)
        since = time.strftime("%H:%M:%S", time.localtime(self._fleet.unix_at(408.0)))
        self.change_host(UNREADY, ready=False, reason=f"NotReady since {since}: kubelet stopped posting node status")
        self.change_host(CORDONED, cordoned=True, taints=["node.kubernetes.io/unschedulable:NoSchedule"])
        self.change_host(SHORT, gpus=7)
        self.change_host(EVICTED, pods=[])
        self._fleet.state[[EVICTED * self._gpus + gpu for gpu in range(self._gpus)]] = REPLICA_CODE["EVICTED"]
        self._fleet.state_since_s[[EVICTED * self._gpus + gpu for gpu in range(self._gpus)]] = self._fleet.t_s - 8.0

    def _keep_waiting(self) -> None:
        placed = self._nodes - max(1, self._nodes * 37 // 64)
        for node in range(placed, self._nodes):
            self.change(node, ready=False, phase="Pending", host="", reason=NO_ROOM, since_unix=self._unix() - 252.0)
        for node in range(max(0, placed - 2), placed):
            self.change(node, ready=False, phase="Pending", reason=NO_IMAGE, since_unix=self._unix() - 95.0)
        self.budget = msgspec.structs.replace(self.budget, allowed=0, healthy=max(0, placed - 2))
        for node in range(max(0, placed - 2), self._nodes):
            self._fleet.state[node * self._gpus : (node + 1) * self._gpus] = REPLICA_CODE["NEW"]

    def change(self, node: int, **fields: object) -> None:
        self.pods[node] = msgspec.structs.replace(self.pods[node], **fields)

    def change_host(self, node: int, **fields: object) -> None:
        self.hosts[node] = msgspec.structs.replace(self.hosts[node], **fields)

    # --- as a head does ------------------------------------------------------------------------------------

    def evict(self, node: int, *, cordon: bool) -> list[int]:
        """Which replicas go."""
        row = self.pods[node]
        self.change(
            node, phase="Terminating", ready=False, reason="evicted", evictions=row.evictions + 1,
            next_delay_s=row.next_delay_s * 2, replacement_unix=self._unix() + row.next_delay_s + 2,
        )  # fmt: skip
        if cordon:
            self.change_host(node, cordoned=True)
        healthy = self.budget.healthy - 1
        self.budget = msgspec.structs.replace(self.budget, healthy=healthy, allowed=max(0, healthy - self.budget.desired))
        return [node * self._gpus + gpu for gpu in range(self._gpus)]

    def scale(self, nodes: int) -> None:
        """Its pods go or come; those that go have drained."""
        for node in range(nodes, self._wanted):
            self.change(node, phase="Terminating", ready=False, reason="scaled down")
        for node in range(self._wanted, nodes):
            self.change(node, phase="Pending", ready=False, reason=NO_ROOM, since_unix=self._unix())
        self._wanted = nodes

    def why_missing(self, node: int) -> str:
        row = self.pods[node]
        return "" if row.phase == "Running" else f"{row.phase or 'no pod'}: {row.reason}"

    def describe(self, node: int) -> list[str]:
        """Made-up, in the order and the words of a head."""
        row = self.pods[node]
        lines = [f"Pod {row.pod or '(none)'} of {node_name(node)}, uid {row.uid}", f"  phase {row.phase}, ready {row.ready}"]
        lines += [f"  on {row.host or 'no node yet'}, rack {row.rack}", f"  reason: {row.reason or '–'}", "", "Container worker"]
        lines += [
            "  image registry.example.com/team/paceline-worker:0.1.0",
            "  limits amd.com/gpu: 8, memory 512Gi",
            "",
            "Conditions",
        ]
        lines += [f"  {name:<28} {row.ready!s:<6} since 14:02:{second:02d}" for name, second in _CONDITIONS]
        lines += ["", "Events"]
        lines += [
            f"  14:0{2 + number // 20}:{10 + number % 20 * 2:02d}  {_EVENTS[number % len(_EVENTS)]}" for number in range(30)
        ]
        return lines


_CONDITIONS: Final = (
    ("PodScheduled", 12), ("PodReadyToStartContainers", 14), ("Initialized", 14), ("ContainersReady", 51), ("Ready", 51),
)  # fmt: skip
_EVENTS: Final = (
    "Normal   Scheduled  assigned bench/sample-worker to a node",
    "Normal   Pulling    registry.example.com/team/paceline-worker:0.1.0",
    "Normal   Pulled     in 41.2 s, 18.4 GB",
    "Normal   Created    container worker",
    "Normal   Started    container worker",
    "Warning  Unhealthy  Startup probe failed: test -f /run/paceline/registered",
)


def _host_name(node: int) -> str:
    return f"mi355x-{node + 1:03d}"


def _rack(node: int) -> str:
    return f"r{1 + node // 8}"
