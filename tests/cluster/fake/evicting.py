"""pods/eviction: may this pod go now, by the disruption budget whose status a controller keeps?"""

from __future__ import annotations

from .errors import ApiError, Cause, Json, bad_request, invalid, unprocessable
from .selectors import selects
from .store import Store

_REFUSED = "Cannot evict pod as it would violate the pod's disruption budget."


def evict(store: Store, ns: str, name: str, body: Json, *, dry_run: bool) -> Json:
    """The Status of a success. Raises the ApiError of a refusal."""
    if (body.get("metadata") or {}).get("name") not in (None, "", name):
        raise bad_request("name in URL does not match name in Eviction object")
    options = body.get("deleteOptions") or {}
    pod = store.must_get("Pod", ns, name)
    uid = (options.get("preconditions") or {}).get("uid")
    grace_s = options.get("gracePeriodSeconds")
    if isinstance(grace_s, int) and grace_s < 0:
        causes: list[Cause] = [invalid("deleteOptions.gracePeriodSeconds", grace_s, "must be greater than or equal to 0")]
        raise unprocessable("Eviction", "policy", name, causes)
    dry_run = dry_run or options.get("dryRun") == ["All"]
    store.delete("Pod", ns, name, uid=uid, dry_run=True)  # a wrong incarnation is a 409 before any budget is asked
    _ask_budget(store, pod, dry_run=dry_run)
    if not dry_run:
        store.update("Pod", ns, name, lambda target: _mark(target, store.stamp()), status=True)
        store.delete("Pod", ns, name, grace_s=grace_s, uid=uid)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _ask_budget(store: Store, pod: Json, *, dry_run: bool) -> None:
    if "deletionTimestamp" in pod["metadata"] or pod.get("status", {}).get("phase") in ("Succeeded", "Failed", "Pending"):
        return  # nothing is lost by it
    ns = pod["metadata"]["namespace"]
    budgets = [
        budget
        for budget in store.list("PodDisruptionBudget", ns)
        if selects(budget.get("spec", {}).get("selector"), pod["metadata"].get("labels"))
    ]
    if not budgets:
        return
    if len(budgets) > 1:
        why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise ApiError(500, "", why)
    budget = budgets[0]
    spec, status = budget["spec"], budget.get("status", {})
    if not is_ready(pod):
        healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
        if spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or (healthy >= desired > 0):
            return
    _take_one(store, budget, pod["metadata"]["name"], dry_run=dry_run)


def _take_one(store: Store, budget: Json, pod: str, *, dry_run: bool) -> None:
    name, status = budget["metadata"]["name"], budget.get("status", {})
    if status.get("observedGeneration", 0) < budget["metadata"]["generation"]:
        cause = {
            "reason": "DisruptionBudget",
            "message": f"The disruption budget {name} is still being processed by the server.",
        }
        raise ApiError(429, "TooManyRequests", _REFUSED, {"causes": [cause], "retryAfterSeconds": 10})
    if status.get("disruptionsAllowed", 0) <= 0:
        needs, has = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        cause = {
            "reason": "DisruptionBudget",
            "message": f"The disruption budget {name} needs {needs} healthy pods and has {has} currently",
        }
        raise ApiError(429, "TooManyRequests", _REFUSED, {"causes": [cause]})
    if dry_run:
        return

    def spend(target: Json) -> None:
        target["status"]["disruptionsAllowed"] -= 1
        target["status"].setdefault("disruptedPods", {})[pod] = store.stamp()

    store.update("PodDisruptionBudget", budget["metadata"]["namespace"], name, spend, status=True)


def _mark(pod: Json, now: str) -> None:
    conditions = pod.setdefault("status", {}).setdefault("conditions", [])
    conditions[:] = [c for c in conditions if c.get("type") != "DisruptionTarget"]
    conditions.append(
        {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastTransitionTime": now,
            "lastProbeTime": None,
        }
    )
