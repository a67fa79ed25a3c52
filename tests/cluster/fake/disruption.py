"""The PodDisruptionBudget controller of the fake cluster.

A budget over a Job's pods works only as an integer minAvailable: for anything else the controller asks the owner how many
pods there should be, a Job cannot say, and from then on no eviction is ever allowed.
"""

from __future__ import annotations

from .errors import Json
from .loops import Loop, going, is_true, key_of, set_condition
from .selectors import selects

_CANNOT_COUNT = "jobs.batch does not implement the scale subresource"


class DisruptionLoop(Loop):
    kinds = ("PodDisruptionBudget", "Pod")

    def sync(self) -> None:
        pods = self.all("Pod")
        for budget in self.all("PodDisruptionBudget"):
            namespace = budget["metadata"]["namespace"]
            selector = budget["spec"].get("selector")
            mine = [p for p in pods if p["metadata"]["namespace"] == namespace and selects(selector, p["metadata"].get("labels"))]
            self._write(budget, mine)

    def _write(self, budget: Json, pods: list[Json]) -> None:
        wanted = budget["spec"].get("minAvailable")
        generation = budget["metadata"].get("generation", 1)
        now = self.store.stamp()

        def count(target: Json) -> None:
            status = target.setdefault("status", {})
            if not isinstance(wanted, int):
                # observedGeneration stays behind, so that evictions are told "still being processed" for ever.
                status.update({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0})
                set_condition(status, now, "DisruptionAllowed", False, "SyncFailed", _CANNOT_COUNT, observedGeneration=generation)
                return
            healthy = sum(is_true(pod, "Ready") and not going(pod) for pod in pods)
            allowed = max(0, healthy - wanted) if pods else 0
            status.update({"observedGeneration": generation, "disruptionsAllowed": allowed, "currentHealthy": healthy})
            status.update({"desiredHealthy": wanted, "expectedPods": len(pods)})
            # What the eviction handler noted is settled: those pods are going, and so are not counted above.
            status.pop("disruptedPods", None)
            reason = "SufficientPods" if allowed else "InsufficientPods"
            set_condition(status, now, "DisruptionAllowed", bool(allowed), reason, observedGeneration=generation)

        self.store.update("PodDisruptionBudget", *key_of(budget), count, status=True)
