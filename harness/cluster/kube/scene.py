"""What the watches of a run have told, put together by node of the fleet. No I/O: the watches write, everything else asks.

A node of the fleet is an index of the worker Job. Two pods of one index coexist for about a second after an eviction, and
none is there while the Job controller waits before it makes the successor: 10 s, doubled by every end of that index before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from harness.cluster.kube import names
from harness.cluster.kube.reflector import Change
from harness.cluster.kube.views import BudgetView, EventView, JobView, NodeView, PodView
from harness.cluster.kube.words import replacement_delay_s

_MOST_EVENTS = 2000
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Departed:
    """The last pod of an index, which has ended."""

    pod: PodView
    ended_unix: float
    disrupted: bool  # evicted, drained, preempted: no failure of its own


@dataclass(slots=True)
class Scene:
    instance: str
    pods: dict[str, PodView] = field(default_factory=dict)  # by uid, as all of these
    jobs: dict[str, JobView] = field(default_factory=dict)
    budgets: dict[str, BudgetView] = field(default_factory=dict)
    nodes: dict[str, NodeView] = field(default_factory=dict)
    events: dict[str, EventView] = field(default_factory=dict)
    departed: dict[int, Departed] = field(default_factory=dict)
    _newest: dict[int, PodView] | None = None
    _by_host: dict[str, NodeView] | None = None
    _about: dict[str, dict[str, EventView]] = field(default_factory=dict)  # uid of the subject → its events

    # --- written by the watches ----------------------------------------------------------------------------

    def pod_changed(self, change: Change, old: PodView | None, new: PodView, now_unix: float) -> None:
        self._newest = None
        if change == "DELETED":
            self.pods.pop(new.uid, None)
        else:
            self.pods[new.uid] = new
        if new.component != "worker" or new.index < 0 or not (change == "DELETED" or new.ended):
            return
        before = self.departed.get(new.index)
        if before is not None and before.pod.uid == new.uid:
            self.departed[new.index] = Departed(new, before.ended_unix, before.disrupted or was_disrupted(new))
        elif before is None or before.pod.created_unix <= new.created_unix:
            self.departed[new.index] = Departed(new, ended_unix(new) or now_unix, was_disrupted(new))

    def node_changed(self, change: Change, new: NodeView) -> None:
        self._by_host = None
        _put(self.nodes, change, new.uid or new.name, new)

    def job_changed(self, change: Change, new: JobView) -> None:
        _put(self.jobs, change, new.uid, new)

    def budget_changed(self, change: Change, new: BudgetView) -> None:
        _put(self.budgets, change, new.uid, new)

    def event_changed(self, change: Change, new: EventView) -> None:
        if change == "DELETED":
            self._drop_event(new)
            return
        self.events[new.uid] = new
        self._about.setdefault(new.subject_uid, {})[new.uid] = new
        if len(self.events) > _MOST_EVENTS:
            for event in sorted(self.events.values(), key=lambda event: event.last_unix)[: _MOST_EVENTS // 10]:
                self._drop_event(event)

    def _drop_event(self, event: EventView) -> None:
        self.events.pop(event.uid, None)
        about = self._about.get(event.subject_uid, {})
        about.pop(event.uid, None)
        if not about:
            self._about.pop(event.subject_uid, None)

    # --- pods ----------------------------------------------------------------------------------------------

    def newest_pods(self) -> dict[int, PodView]:
        """Node of the fleet → its newest worker pod; what is on its way out counts less than what lives."""
        if self._newest is None:
            found: dict[int, PodView] = {}
            for pod in self.pods.values():
                if pod.component == "worker" and pod.index >= 0:
                    other = found.get(pod.index)
                    if other is None or _age_order(pod) > _age_order(other):
                        found[pod.index] = pod
            self._newest = found
        return self._newest

    def newest(self, index: int) -> PodView | None:
        return self.newest_pods().get(index)

    def head_pod(self) -> PodView | None:
        return max((pod for pod in self.pods.values() if pod.component == "head"), key=_age_order, default=None)

    def ends(self, index: int) -> int:
        """How often a pod of this index has ended, by whatever cause; the delay before its next successor grows with it."""
        pod, last = self.newest(index), self.departed.get(index)
        known = pod.failures + pod.ignored_failures if pod is not None else 0
        if last is not None and (pod is None or pod.uid == last.pod.uid):
            known = max(known, last.pod.failures + last.pod.ignored_failures + 1)
        return known

    def evictions(self, index: int) -> int:
        pod, last = self.newest(index), self.departed.get(index)
        known = pod.ignored_failures + (1 if was_disrupted(pod) else 0) if pod is not None else 0
        if last is not None:
            known = max(known, last.pod.ignored_failures + (1 if last.disrupted else 0))
        return known

    def next_delay_s(self, index: int) -> float:
        """From the end of the pod that is there now to the start of its successor."""
        pod = self.newest(index)
        return replacement_delay_s(pod.failures + pod.ignored_failures if pod is not None else self.ends(index))

    def replacement_unix(self, index: int) -> float:
        """When the successor of a pod that has ended, or has been asked to go, is expected; 0.0: there is nothing to wait for.
        Of a pod that still has its grace: at the latest."""
        pod, last = self.newest(index), self.departed.get(index)
        if self.given_up(index) or not self.is_wanted(index):
            return 0.0
        if pod is not None and pod.deletion_unix and not pod.ended:
            return pod.deletion_unix + replacement_delay_s(pod.failures + pod.ignored_failures)
        if last is None or (pod is not None and pod.uid != last.pod.uid):
            return 0.0
        return last.ended_unix + replacement_delay_s(last.pod.failures + last.pod.ignored_failures)

    # --- the Job, its budget, its nodes --------------------------------------------------------------------

    def worker_job(self) -> JobView | None:
        name = names.job(self.instance, "worker")
        own = [job for job in self.jobs.values() if job.name == name or job.component == "worker"]
        return max(own, key=lambda job: job.created_unix, default=None)

    def worker_budgets(self) -> list[BudgetView]:
        return sorted((b for b in self.budgets.values() if b.component == "worker"), key=lambda b: b.name)

    def given_up(self, index: int) -> bool:
        job = self.worker_job()
        return job is not None and index in job.failed_indexes

    def is_wanted(self, index: int) -> bool:
        job = self.worker_job()
        return job is None or index < max(job.completions, 1)

    def host(self, name: str) -> NodeView | None:
        if self._by_host is None:
            self._by_host = {node.name: node for node in self.nodes.values()}
        return self._by_host.get(name)

    def events_about(self, uid: str) -> list[EventView]:
        """Oldest first."""
        return sorted(self._about.get(uid, {}).values(), key=lambda event: event.last_unix)


def was_disrupted(pod: PodView) -> bool:
    target = pod.condition("DisruptionTarget")
    return target is not None and target.status == "True"


def ended_unix(pod: PodView) -> float:
    """0.0 when nothing says so."""
    return max((c.finished_unix for c in pod.containers if c.state == "terminated"), default=0.0) if pod.ended else 0.0


def _age_order(pod: PodView) -> tuple[float, bool, bool]:
    return (pod.created_unix, not pod.ended, not pod.deletion_unix)


def _put(store: dict[str, V], change: Change, key: str, value: V) -> None:
    if change == "DELETED":
        store.pop(key, None)
    else:
        store[key] = value
