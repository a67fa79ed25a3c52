"""The watches of one run: they keep its scene, and tell its news and its log tee what has changed.

Pods, Jobs, budgets and events of the namespace; nodes only where that is allowed. What cannot be seen is put into one
sentence with the time since when; a watch that was merely cut and is back within seconds is not worth one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from harness.cluster.kube import names
from harness.cluster.kube.api import Api
from harness.cluster.kube.logtee import LogTee
from harness.cluster.kube.news import News
from harness.cluster.kube.reflector import Change, Pace, Raw, Reflector
from harness.cluster.kube.rights import Rights
from harness.cluster.kube.scene import Scene
from harness.cluster.kube.views import (
    BudgetView,
    EventView,
    JobView,
    NodeView,
    PodView,
    reduce_budget,
    reduce_event,
    reduce_job,
    reduce_node,
    reduce_pod,
)

_WORTH_TELLING_S = 5.0


class Watching:
    def __init__(
        self, api: Api, scene: Scene, news: News, tee: LogTee, rights: Rights, *, pace: Pace | None, clock: Callable[[], float]
    ) -> None:
        self.dirty = True  # something changed; whoever shows it sets this to False
        self._api, self._scene, self._news, self._tee, self._rights = api, scene, news, tee, rights
        self._pace, self._clock = pace, clock
        self._watches: list[Reflector[Any]] = []
        self._nodes: asyncio.Task[None] | None = None
        self._told = ""
        self._prefix = f"{scene.instance}-"
        self._own_pod = os.environ.get("POD_NAME", "")

    # --- life ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """In the event loop."""
        selector = names.selector(self._scene.instance)
        shared: dict[str, Any] = {"pace": self._pace, "clock": self._clock}
        self._watches = [
            Reflector(self._api, "Job", reduce_job, selector=selector, on_change=self._on_job, **shared),
            Reflector(self._api, "Pod", reduce_pod, selector=selector, on_change=self._on_pod, **shared),
            Reflector(self._api, "PodDisruptionBudget", reduce_budget, selector=selector, on_change=self._on_budget, **shared),
            Reflector(self._api, "Event", self._reduce_event, on_change=self._on_event, **shared),
        ]
        for watch in self._watches:
            watch.start()
        self._nodes = asyncio.create_task(self._watch_nodes(shared), name="watch nodes once allowed")

    async def _watch_nodes(self, shared: dict[str, Any]) -> None:
        """As soon as that is allowed; and while something is not, ask again now and then."""
        watch: Reflector[NodeView] | None = None
        ask = True
        while True:
            if ask:
                await self._rights.learn()
                self.dirty = True
            if watch is None and "hosts" not in self._rights.denied:
                watch = Reflector(self._api, "Node", reduce_node, on_change=self._on_node, **shared)
                self._watches.append(watch)
                watch.start()
            await asyncio.sleep((self._pace or Pace()).forbidden_pause_s)
            ask = bool(self._rights.denied)

    async def stop(self) -> None:
        if self._nodes is not None:
            self._nodes.cancel()
            await asyncio.gather(self._nodes, return_exceptions=True)
        for watch in self._watches:
            await watch.stop()

    # --- how well it sees ----------------------------------------------------------------------------------

    @property
    def seen_unix(self) -> float:
        return max((watch.seen_unix for watch in self._watches), default=0.0)

    def problem(self) -> str:
        """What cannot be seen now, since when and why."""
        now_unix = self._clock()
        blind = [watch for watch in self._watches if watch.problem and now_unix - watch.problem_unix >= _WORTH_TELLING_S]
        if not blind:
            return ""
        since = time.strftime("%H:%M:%S", time.localtime(min(watch.problem_unix for watch in blind)))
        silent = [watch for watch in blind if watch.last_problem is not None and watch.last_problem.no_reply]
        if len(silent) == len(self._watches):
            return f"nothing is seen of the cluster since {since}: {silent[0].last_problem}; the run goes on"
        causes = list(dict.fromkeys(str(watch.last_problem or watch.problem) for watch in blind))
        kinds = ", ".join(f"{watch.kind.lower()}s" for watch in blind)
        return f"{kinds} are shown as they were at {since}: {'; '.join(causes)}"

    def look(self) -> None:
        """Tell the news when the view is lost and when it is back."""
        problem = self.problem()
        if bool(problem) != bool(self._told):
            self.dirty = True
            if problem:
                self._news.say("warn", "cluster", problem)
            else:
                self._news.say("info", "cluster", "the API server answers again: pods and nodes are shown as they are now")
        elif problem != self._told:
            self.dirty = True
        self._told = problem

    # --- what the watches call -----------------------------------------------------------------------------

    def _reduce_event(self, raw: Raw) -> EventView | None:
        """Events cannot be selected by label: those of other runs in the namespace are left out by name."""
        about = raw.get("involvedObject")
        name = about.get("name") if isinstance(about, dict) else None
        return reduce_event(raw) if isinstance(name, str) and name.startswith(self._prefix) else None

    def _on_pod(self, change: Change, old: PodView | None, new: PodView | None) -> None:
        if new is None:
            return
        self.dirty = True
        now_unix = self._clock()
        if (new.component == "head" and new.name == self._own_pod) or (new.component == "worker" and new.index >= 0):
            if change == "DELETED":
                self._tee.gone(new)
            else:
                self._tee.see(new)
        self._scene.pod_changed(change, old, new, now_unix)
        self._news.pod_changed(change, old, new, now_unix)

    def _on_job(self, change: Change, old: JobView | None, new: JobView | None) -> None:
        if new is not None:
            self.dirty = True
            self._scene.job_changed(change, new)
            if change != "DELETED" and new.component != "head":
                self._news.job_changed(old, new)

    def _on_budget(self, change: Change, old: BudgetView | None, new: BudgetView | None) -> None:
        if new is not None:
            self.dirty = True
            self._scene.budget_changed(change, new)

    def _on_event(self, change: Change, old: EventView | None, new: EventView | None) -> None:
        if new is not None:
            self.dirty = True
            self._scene.event_changed(change, new)
            self._news.event_changed(change, new, self._clock())

    def _on_node(self, change: Change, old: NodeView | None, new: NodeView | None) -> None:
        if new is not None:
            self.dirty = True
            self._scene.node_changed(change, new)
            self._news.node_changed(change, old, new, self._clock())
