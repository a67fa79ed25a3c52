"""The head's cluster where workers are pods: it watches them, keeps their logs, says what happens, and evicts.

It makes nothing: whoever started the run has made its objects, and the worker Job replaces what ends. It runs in the head's
event loop by tasks of its own; what the head calls (`poll`, `view`, `why_missing`, …) only reads what they have gathered.
While the API server is away the run goes on, and the view says since when nothing is seen.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as NotInTime

from harness.cluster.base import ClusterError, NodeEvent, Place, Removal
from harness.cluster.kube import describe, names, words
from harness.cluster.kube.access import Access, access
from harness.cluster.kube.api import Api
from harness.cluster.kube.evictions import Evictions
from harness.cluster.kube.logtee import LogTee
from harness.cluster.kube.news import News
from harness.cluster.kube.reflector import Pace
from harness.cluster.kube.rights import Rights
from harness.cluster.kube.scene import Scene
from harness.cluster.kube.viewing import Rows
from harness.cluster.kube.watching import Watching
from harness.records.layout import RunFolder
from harness.spec import RunSpec, node_name
from harness.wire.clusterview import ClusterView

_VIEW_EVERY_S = 1.0
_SEEN_ANEW_S = 15.0  # an otherwise equal view is told again, for its `seen_unix`
_AGES_ANEW_S = 10.0
_STALE_S = 20.0
_CLOSE_S = 2.0

log = logging.getLogger("paceline.cluster")
logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request, which would fill the head's log


class KubernetesCluster:
    kind = "kubernetes"
    evicts_nodes = True

    def __init__(
        self,
        folder: RunFolder,
        spec: RunSpec,
        *,
        access: Access | None = None,
        clock: Callable[[], float] = time.time,
        pace: Pace | None = None,
    ) -> None:
        """Raises ClusterError where there is no way to the API server."""
        kube, gpu = spec.cluster.kubernetes, spec.cluster.kubernetes.gpu_resource
        self.instance = names.instance_of(folder.name)
        self._clock, self._most_nodes, self._wanted = clock, spec.fleet.nodes, spec.fleet.nodes
        self._api = Api(access or _own_access(), os.environ.get("POD_NAMESPACE") or kube.namespace)
        resource = gpu if spec.gpus_per_worker and gpu != "none" else ""
        self._scene = Scene(self.instance)
        self._rights = Rights(self._api)
        self._tee = LogTee(folder, self._api, gpus=spec.fleet.replicas_per_node)
        self._news = News(self._scene, self._tee.last_words, gpu_resource=resource)
        self._rows = Rows(self._scene, gpu_resource=resource, node_selector=kube.node_selector, queue=kube.queue or "")
        self._watching = Watching(self._api, self._scene, self._news, self._tee, self._rights, pace=pace, clock=clock)
        self._evictions = Evictions(self._api, self._scene, self._rights, grace_s=kube.grace_s)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._view: ClusterView | None = None
        self._built_unix = 0.0
        self._told: dict[str, str] = {}

    # --- life ----------------------------------------------------------------------------------------------

    def start(self, place: Place) -> None:
        self._loop = asyncio.get_running_loop()
        self._tee.start()
        self._watching.start()

    def stop(self, deadline_s: float) -> None:
        """The head has told its workers to end; their pods then complete. Waits for that and for the last of their logs."""
        if self._loop is None:
            return
        closing = asyncio.run_coroutine_threadsafe(self._close(deadline_s), self._loop)
        try:
            closing.result(deadline_s + 2 * _CLOSE_S)
        except NotInTime:
            closing.cancel()
            log.warning("the watches of the cluster did not end within %g s", deadline_s)
        except Exception:
            log.exception("the watches of the cluster did not end cleanly")

    async def _close(self, deadline_s: float) -> None:
        until_s = time.monotonic() + max(0.0, deadline_s - _CLOSE_S)
        while time.monotonic() < until_s and not self._watching.problem():
            if all(pod.ended for pod in self._scene.newest_pods().values()):
                break
            await asyncio.sleep(0.1)
        await self._tee.close(_CLOSE_S)
        self._view_now()  # the last word
        await self._watching.stop()
        await self._api.close()

    # --- what has happened ---------------------------------------------------------------------------------

    def poll(self, now_s: float) -> list[NodeEvent]:
        try:
            self._watching.look()
            self._tell_once("logs", self._tee.denied)
            self._tell_once("disk", self._tee.problem)
            for budget in self._scene.worker_budgets():
                self._tell_once(f"budget {budget.name}", words.budget_problem(budget))
            return self._news.poll(self._clock())
        except Exception:
            log.exception("news of the cluster cannot be told")
            return []

    def _tell_once(self, subject: str, text: str) -> None:
        if text != self._told.get(subject, ""):
            self._told[subject] = text
            if text:
                self._news.say("warn", "cluster", text)

    # --- what is known -------------------------------------------------------------------------------------

    def why_missing(self, node: int) -> str:
        """Why a node has not registered; one line."""
        try:
            now_unix = self._clock()
            seen_unix = self._watching.seen_unix
            problem = self._watching.problem()
            if not seen_unix:
                return problem or "the cluster has not been seen yet"
            why = self._why_missing(node, now_unix)
            if problem and now_unix - seen_unix >= _STALE_S:
                return f"the cluster was last seen {words.span(now_unix - seen_unix)} ago, then: {why}"
            return why
        except Exception:
            log.exception("why %s is missing cannot be said", node_name(node))
            return ""

    def _why_missing(self, node: int, now_unix: float) -> str:
        pod = self._scene.newest(node)
        due_unix = self._scene.replacement_unix(node)
        due = f"; its successor is expected in {words.span(due_unix - now_unix)}" if due_unix > now_unix else ""
        if pod is None:
            return f"no pod yet: {self._rows.why_no_pod(node)}{due}"
        lines = self._tee.last_words(pod.uid)
        why = self._rows.why_not_ready(pod, now_unix, lines[-1] if lines else "")
        return f"{why or f'pod {pod.name} runs on node {pod.node}, not registered yet'}{due}"

    def view(self) -> ClusterView | None:
        """A new object only when something has changed, at most once a second."""
        try:
            now_unix = self._clock()
            due = self._watching.dirty or now_unix - self._built_unix >= _AGES_ANEW_S
            if self._view is None or (due and now_unix - self._built_unix >= _VIEW_EVERY_S):
                self._view_now()
        except Exception:
            log.exception("the view of the cluster cannot be made")
        return self._view

    def _view_now(self) -> None:
        self._built_unix = now_unix = self._clock()
        self._watching.dirty = False
        before = self._view
        seen_unix = round(self._watching.seen_unix, 1)
        if before is not None and abs(seen_unix - before.seen_unix) < _SEEN_ANEW_S:
            seen_unix = before.seen_unix
        made = ClusterView(
            kind=self.kind,
            namespace=self._api.namespace,
            run=self.instance,
            wanted=self._wanted,
            seen_unix=seen_unix,
            problem=self._watching.problem(),
            pods=self._rows.pods(self._wanted, now_unix),
            hosts=self._rows.hosts(),
            budget=self._rows.budget(),
            denied=self._denied(),
        )
        if made != before:
            self._view = made

    def _denied(self) -> dict[str, str]:
        denied = dict(self._rights.denied)
        if self._tee.denied:
            denied["logs"] = self._tee.denied
        return denied

    def describe(self, node: int) -> list[str]:
        try:
            pod = self._scene.newest(node)
            last_words = self._tee.last_words(pod.uid) if pod is not None else []
            problem = self._watching.problem()
            return describe.lines_of(
                self._scene, self._rows, node, now_unix=self._clock(), last_words=last_words, problem=problem
            )
        except Exception:
            log.exception("%s cannot be described", node_name(node))
            return []

    # --- acts ----------------------------------------------------------------------------------------------

    def removal(self, node: int) -> Removal:
        return self._evictions.removal(node)

    async def evict(self, node: int, *, cordon: bool, why: str) -> str:
        pod = self._scene.newest(node)
        if pod is not None:
            self._news.ours(pod.uid, why)
        try:
            return await self._evictions.evict(node, cordon=cordon, why=why)
        except ClusterError:
            if pod is not None:
                self._news.not_ours(pod.uid)
            raise
        except Exception as fault:
            log.exception("%s cannot be evicted", node_name(node))
            raise ClusterError(
                f"{node_name(node)} cannot be evicted: {type(fault).__name__}: {fault}; see the head's log"
            ) from fault

    def scaled(self, nodes: int) -> None:
        if not 1 <= nodes <= self._most_nodes:
            raise ClusterError(
                f"nodes {nodes}: this run can have 1 to {self._most_nodes} nodes; "
                "fleet.nodes, the most, is set when a run is started"
            )
        self._wanted = nodes
        self._watching.dirty = True


def _own_access() -> Access:
    """The head's: its pod's service account, or a kubeconfig that it was given. The spec's context is the starter's."""
    return access()
