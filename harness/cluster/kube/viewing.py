"""What consoles are told of a run's cluster: the rows of a ClusterView from the scene as it is now.

Sentences with an age in them are made anew every ten seconds, so that a view is equal to the one before while nothing else
has changed; ages of their own are the console's business, by `since_unix`.
"""

from __future__ import annotations

import time

from harness.cluster.kube import words
from harness.cluster.kube.scene import Scene, ended_unix
from harness.cluster.kube.views import BudgetView, NodeView, PodView
from harness.wire.clusterview import BudgetRow, HostRow, PodRow

_AGES_ANEW_S = 10.0
_MOST_HOSTS = 1024


class Rows:
    def __init__(self, scene: Scene, *, gpu_resource: str, node_selector: dict[str, str], queue: str = "") -> None:
        """`gpu_resource` "": workers ask for no accelerator, and nodes that carry none of them are not shown."""
        self._scene, self._gpu_resource, self._node_selector, self._queue = scene, gpu_resource, node_selector, queue
        self._reasons: dict[str, tuple[PodView, NodeView | None, float, str]] = {}  # uid → what the sentence was made of, and it

    def pods(self, wanted: int, now_unix: float) -> list[PodRow]:
        """The head's, then one row for each wanted node and each that still has a pod."""
        newest = self._scene.newest_pods()
        rows = []
        head = self._scene.head_pod()
        if head is not None:
            rows.append(self._row(-1, head, now_unix))
        for node in sorted({*range(wanted), *newest}):
            pod = newest.get(node)
            rows.append(self._row(node, pod, now_unix) if pod is not None else self._no_pod(node))
        self._reasons = {row.uid: self._reasons[row.uid] for row in rows if row.uid in self._reasons}
        return rows

    def hosts(self) -> list[HostRow]:
        """Nodes that carry a pod of the run, or offer what its workers ask for."""
        carried: dict[str, list[str]] = {}
        for pod in self._scene.pods.values():
            if pod.node and not pod.ended:
                carried.setdefault(pod.node, []).append(pod.name)
        found = [node for node in self._scene.nodes.values() if node.name in carried or self._could_carry(node)]
        found.sort(key=lambda node: (node.name not in carried, node.name))
        return sorted((self._host(node, carried.get(node.name, [])) for node in found[:_MOST_HOSTS]), key=lambda row: row.name)

    def budget(self) -> BudgetRow | None:
        budgets = self._scene.worker_budgets()
        return _budget(budgets[0]) if budgets else None

    def why_not_ready(self, pod: PodView, now_unix: float, last_line: str = "") -> str:
        about = self._scene.events_about(pod.uid)
        return words.why_not_ready(pod, node=self._scene.host(pod.node), events=about, now_unix=now_unix, last_line=last_line)

    def why_no_pod(self, node: int) -> str:
        """Without the time until the successor comes."""
        job = self._scene.worker_job()
        about = self._scene.events_about(job.uid) if job is not None else []
        return words.why_no_pod(node, job, about, queue=self._queue)

    # --- rows ----------------------------------------------------------------------------------------------

    def _row(self, node: int, pod: PodView, now_unix: float) -> PodRow:
        is_worker = node >= 0
        return PodRow(
            node=node,
            pod=pod.name,
            uid=pod.uid,
            phase=pod.shown_phase,
            ready=pod.ready,
            host=pod.node,
            rack=pod.zone,
            reason=self._reason(pod, now_unix),
            restarts=pod.restarts,
            since_unix=_since_unix(pod),
            evictions=self._scene.evictions(node) if is_worker else 0,
            next_delay_s=self._scene.next_delay_s(node) if is_worker else 0.0,
            replacement_unix=self._scene.replacement_unix(node) if is_worker else 0.0,
        )

    def _no_pod(self, node: int) -> PodRow:
        last = self._scene.departed.get(node)
        return PodRow(
            node=node,
            reason=f"no pod: {self.why_no_pod(node)}",
            since_unix=last.ended_unix if last is not None else 0.0,
            evictions=self._scene.evictions(node),
            next_delay_s=self._scene.next_delay_s(node),
            replacement_unix=self._scene.replacement_unix(node),
        )

    def _reason(self, pod: PodView, now_unix: float) -> str:
        if pod.ready and not pod.deletion_unix:
            return ""
        host = self._scene.host(pod.node)
        known = self._reasons.get(pod.uid)
        if known is not None and known[0] is pod and known[1] is host and now_unix - known[2] < _AGES_ANEW_S:
            return known[3]
        text = self.why_not_ready(pod, now_unix)
        self._reasons[pod.uid] = (pod, host, now_unix, text)
        return text

    def _could_carry(self, node: NodeView) -> bool:
        if not self._gpu_resource or not node.gpus(self._gpu_resource)[1]:
            return False
        return self._node_selector.items() <= node.labels.items()

    def _host(self, node: NodeView, pods: list[str]) -> HostRow:
        free, there = node.gpus(self._gpu_resource)
        since = f" (since {time.strftime('%H:%M:%S', time.localtime(node.ready_since_unix))})" if node.ready_since_unix else ""
        return HostRow(
            name=node.name,
            ready=node.ready,
            cordoned=node.cordoned,
            reason=words.node_problem(node, self._gpu_resource) + (since if not node.ready else ""),
            rack=node.zone,
            gpus=free,
            gpus_there=there,
            taints=[str(taint) for taint in node.taints],
            pods=sorted(pods),
        )


def _budget(budget: BudgetView) -> BudgetRow:
    return BudgetRow(
        name=budget.name,
        allowed=budget.allowed,
        healthy=budget.healthy,
        desired=budget.desired,
        expected=budget.expected,
        problem=words.budget_problem(budget),
    )


def _since_unix(pod: PodView) -> float:
    """Since when it is in the phase that is shown."""
    if pod.ended:
        return ended_unix(pod) or pod.created_unix
    if pod.deletion_unix:
        return pod.deletion_unix - pod.grace_s
    if pod.phase == "Running":
        started = [c.started_unix for c in pod.containers if c.state == "running" and not c.is_init]
        return max(started, default=0.0) or pod.started_unix or pod.created_unix
    return pod.created_unix
