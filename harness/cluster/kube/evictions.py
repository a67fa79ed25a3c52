"""Having a worker's pod ended and replaced: by policy/v1 Eviction only, which a disruption budget may hold up.

Never a plain delete: that passes by the budget and counts as a failure of its index. The pod is named by its uid, so that
an answer that comes late can never take its successor. An eviction that the budget does not allow now is tried again until
a deadline; one that it can never allow ends at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from harness.cluster.base import ClusterError, Removal
from harness.cluster.kube.api import Api, ApiProblem
from harness.cluster.kube.rights import Rights
from harness.cluster.kube.scene import Scene
from harness.cluster.kube.views import PodView
from harness.cluster.kube.words import budget_problem
from harness.spec import node_name

_TRY_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 8.0
_LOOK_EVERY_S = 0.25
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")

log = logging.getLogger("paceline.cluster")


class Evictions:
    def __init__(
        self,
        api: Api,
        scene: Scene,
        rights: Rights,
        *,
        grace_s: int,
        try_s: float = _TRY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._scene, self._rights = api, scene, rights
        self._grace_s, self._try_s, self._clock = grace_s, try_s, clock

    def removal(self, node: int) -> Removal:
        pod = self._scene.newest(node)
        return Removal(
            why_not=self._why_not(node, pod) or self._why_not_now(pod),
            delay_s=self._scene.next_delay_s(node),
            subject=pod.name if pod is not None else "",
            why_no_cordon=self._rights.denied.get("cordon", ""),
        )

    async def evict(self, node: int, *, cordon: bool, why: str) -> str:
        pod = self._scene.newest(node)
        why_not = self._why_not(node, pod)
        if why_not or pod is None:
            raise ClusterError(f"{node_name(node)}: {why_not}")
        log.info("evicting pod %s of %s: %s", pod.name, node_name(node), why)
        cordoned, about_cordon = await self._cordon(pod) if cordon else (False, "")
        try:
            said = await self._until_evicted(pod)
        except ClusterError as problem:
            if cordoned:
                about_cordon = await self._uncordon(pod)
            raise ClusterError("; ".join(filter(None, (str(problem), about_cordon)))) from problem
        except asyncio.CancelledError:
            log.warning("the eviction of pod %s was given up: the head ends", pod.name)
            raise
        return "; ".join(filter(None, (said, self._what_follows(pod), about_cordon)))

    def _why_not(self, node: int, pod: PodView | None) -> str:
        if "evict" in self._rights.denied:
            return self._rights.denied["evict"]
        if pod is None:
            return "there is no pod to evict just now"
        if pod.ended:
            return f"pod {pod.name} has ended already; its successor is on its way"
        if pod.deletion_unix:
            return f"pod {pod.name} has been asked to end already; its successor follows"
        return next(filter(None, map(budget_problem, self._scene.worker_budgets())), "")

    def _why_not_now(self, pod: PodView | None) -> str:
        """A budget that is used up: told before anything drains for nothing. A pod that is not ready may always go."""
        for budget in self._scene.worker_budgets():
            if pod is not None and pod.ready and budget.allowed <= 0:
                counts = f"{budget.healthy} of {budget.expected} are healthy, {budget.desired} must be"
                return f"budget {budget.name}: no worker may go now ({counts}); wait until those that are missing are back"
        return ""

    # --- the eviction --------------------------------------------------------------------------------------

    async def _until_evicted(self, pod: PodView) -> str:
        until_s = self._clock() + self._try_s
        pause_s = _FIRST_PAUSE_S
        on = f" of node {pod.node}" if pod.node else ""
        while True:
            try:
                await self._api.evict(pod.name, uid=pod.uid, grace_s=self._grace_s)
                return f"pod {pod.name}{on} evicted (grace {self._grace_s} s)"
            except ApiProblem as problem:
                if problem.not_found or (problem.conflict and "UID" in problem.message):
                    return f"pod {pod.name}{on} was gone already"
                self._check_hopeless(pod, problem)
                left_s = until_s - self._clock()
                if left_s <= 0:
                    raise ClusterError(self._given_up(pod, problem)) from problem
                waited_s = min(max(pause_s, min(problem.retry_after_s or 0.0, _LONGEST_PAUSE_S)), left_s)
            if await self._left_meanwhile(pod, waited_s):
                return f"pod {pod.name}{on} is on its way out, by somebody else's hand"
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _check_hopeless(self, pod: PodView, problem: ApiProblem) -> None:
        """Raises ClusterError when no later try can succeed."""
        if problem.forbidden:
            self._rights.denied["evict"] = str(problem)
        if "more than one PodDisruptionBudget" in problem.message:
            known = " and ".join(budget.name for budget in self._scene.worker_budgets())
            named = f" (of this run: {known})" if known else ""
            raise ClusterError(
                f"pod {pod.name} cannot be evicted: more than one PodDisruptionBudget selects it{named}; remove all but one: "
                f"`kubectl get pdb -n {self._api.namespace}` lists them"
            )
        never = next(filter(None, map(budget_problem, self._scene.worker_budgets())), "") if problem.code == 429 else ""
        if never:
            raise ClusterError(f"pod {pod.name} cannot be evicted: {never}")
        if not problem.may_pass and problem.code not in (401, 409, 500):
            raise problem

    def _given_up(self, pod: PodView, problem: ApiProblem) -> str:
        if problem.code != 429:
            return f"pod {pod.name} was not evicted within {self._try_s:g} s: {problem}"
        cause = problem.budget.message if problem.budget is not None else problem.message
        budgets = "; ".join(
            f"budget {b.name}: {b.healthy} of {b.expected} workers are ready, {b.desired} must be, {b.allowed} may go now"
            for b in self._scene.worker_budgets()
        )
        told = f"{cause.rstrip('.')}; {budgets}" if budgets else cause.rstrip(".")
        return (
            f"pod {pod.name} was not evicted within {self._try_s:g} s, its disruption budget did not allow it: {told}; "
            "evict it once another worker is ready again"
        )

    async def _left_meanwhile(self, pod: PodView, pause_s: float) -> bool:
        until_s = self._clock() + pause_s
        while self._clock() < until_s:
            await asyncio.sleep(min(_LOOK_EVERY_S, max(0.0, until_s - self._clock())))
            now = self._scene.pods.get(pod.uid)
            if now is None or now.ended or now.deletion_unix:
                return True
        return False

    def _what_follows(self, pod: PodView) -> str:
        ends = pod.failures + pod.ignored_failures
        delay_s = self._scene.next_delay_s(pod.index)
        again = f": the {_ordinal(ends + 1)} replacement of this index" if ends else ""
        return f"its successor starts about {delay_s:g} s after it has ended{again}"

    # --- the node ------------------------------------------------------------------------------------------

    async def _cordon(self, pod: PodView) -> tuple[bool, str]:
        """Whether this call has cordoned it, and what to say of it. The eviction goes on without it in any case."""
        if not pod.node:
            return False, "it is bound to no node, so none was cordoned"
        host = self._scene.host(pod.node)
        if host is not None and host.cordoned:
            return False, f"node {pod.node} was cordoned already"
        if "cordon" in self._rights.denied:
            return (
                False,
                f"node {pod.node} is not cordoned, so the successor may land on it again: {self._rights.denied['cordon']}",
            )
        try:
            await self._api.patch("Node", pod.node, {"spec": {"unschedulable": True}}, how="strategic")
        except ApiProblem as problem:
            if problem.forbidden:
                self._rights.denied["cordon"] = str(problem)
            return False, f"node {pod.node} is not cordoned, so the successor may land on it again: {problem}"
        return True, f"node {pod.node} is cordoned, until `kubectl uncordon {pod.node}`"

    async def _uncordon(self, pod: PodView) -> str:
        try:
            await self._api.patch("Node", pod.node, {"spec": {"unschedulable": None}}, how="strategic")
        except ClusterError as problem:
            return f"node {pod.node} is still cordoned ({problem}): `kubectl uncordon {pod.node}`"
        return f"node {pod.node} is uncordoned again"


def _ordinal(number: int) -> str:
    return _ORDINALS[number - 1] if number <= len(_ORDINALS) else f"{number}th"
