"""How Jobs, disruption budgets and the scheduler behave, as the console relies on it: the same on the fake and on a server.

On the fake a pushed clock stands for the minutes that a server really takes. With PACELINE_KUBECONFIG set every test runs
there too, on simulated Nodes with a stub kubelet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fake.kubelet import IMAGE_PULL_BACKOFF, KUBELET_EVICTS, OOM_KILLED, REJECTED, Fate, crash_loop, exits
from fake.loops import condition_of, is_true
from job_targets import GPU, NAMES, Json, Target, budget, opened, refusal, worker_job

BATCH = "batch.kubernetes.io"
INDEX = f"{BATCH}/job-completion-index"


@pytest.fixture(params=NAMES)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with opened(request.param) as made:
        yield made


def job(target: Target, name: str = "worker") -> Json:
    found = target.get("Job", name)
    assert found is not None
    return found


def pods(target: Target, index: int | None = None, *, living: bool = True) -> list[Json]:
    """Of the worker Job; `living`: neither ended nor going."""
    found = [pod for pod in target.listed("Pod") if f"{BATCH}/job-name" in pod["metadata"]["labels"]]
    if living:
        found = [p for p in found if "deletionTimestamp" not in p["metadata"] and p["status"]["phase"] in ("Pending", "Running")]
    return [pod for pod in found if index is None or pod["metadata"]["labels"][INDEX] == str(index)]


def started(target: Target, nodes: int, **spec: Any) -> Json:
    target.add_nodes(nodes)
    target.create("Job", worker_job(nodes, **spec))
    target.until(lambda: job(target)["status"].get("ready") == nodes, 30, f"{nodes} pods ready")
    return job(target)


def ready_again(target: Target, index: int, uid: str, within_s: float) -> float:
    """Seconds until a successor of the pod with that uid is Ready."""

    def there() -> bool:
        return any(is_true(pod, "Ready") and pod["metadata"]["uid"] != uid for pod in pods(target, index))

    return target.until(there, within_s, f"a successor of index {index}")


def about(seconds: float, expected_s: float, target: Target) -> bool:
    """A server stamps whole seconds and collects its work for a second."""
    return expected_s - 1.5 <= seconds <= expected_s + (3.0 if target.live else 1.5)


# --- placement and identity --------------------------------------------------------------------------------


def test_a_pod_of_an_indexed_job_is_named_by_its_index(target: Target) -> None:
    made = started(target, 4)
    pod = pods(target, 3)[0]
    metadata = pod["metadata"]
    assert re.fullmatch(r"worker-3-[a-z0-9]{5}", metadata["name"])
    assert metadata["generateName"] == "worker-3-"
    assert pod["spec"]["hostname"] == "worker-3"
    assert metadata["finalizers"] == [f"{BATCH}/job-tracking"]
    assert metadata["annotations"] == {INDEX: "3", f"{BATCH}/job-index-failure-count": "0"}
    uid = made["metadata"]["uid"]
    names = {f"{BATCH}/controller-uid": uid, f"{BATCH}/job-name": "worker", "controller-uid": uid, "job-name": "worker"}
    assert names.items() <= metadata["labels"].items()
    assert metadata["labels"][INDEX] == "3"
    owner = metadata["ownerReferences"][0]
    assert (owner["kind"], owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("Job", uid, True, True)


def test_a_container_learns_its_index_from_the_environment(target: Target) -> None:
    started(target, 2)
    env = pods(target, 1)[0]["spec"]["containers"][0]["env"]
    field = next(variable for variable in env if variable["name"] == "JOB_COMPLETION_INDEX")["valueFrom"]["fieldRef"]["fieldPath"]
    assert field in (f"metadata.labels['{INDEX}']", f"metadata.annotations['{INDEX}']")


def test_status_counts_pods_and_leaves_out_what_is_zero(target: Target) -> None:
    status = started(target, 4)["status"]
    assert (status["active"], status["ready"], status["terminating"], status["failedIndexes"]) == (4, 4, 0, "")
    assert "failed" not in status
    assert "startTime" in status


def test_the_zone_of_the_node_appears_on_the_pod(target: Target) -> None:
    target.add_nodes(1, labels={"topology.kubernetes.io/zone": "rack-7"})
    target.create("Job", worker_job(1))
    target.until(lambda: job(target)["status"].get("ready") == 1, 30, "one pod ready")
    assert pods(target)[0]["metadata"]["labels"]["topology.kubernetes.io/zone"] == "rack-7"


def test_sixty_four_workers_take_one_node_each(target: Target) -> None:
    started(target, 64)
    assert len({pod["spec"]["nodeName"] for pod in pods(target)}) == 64


# --- failure, retry, replacement ---------------------------------------------------------------------------


def test_a_failed_index_is_tried_again_after_ten_seconds(target: Target) -> None:
    started(target, 2, backoffLimitPerIndex=1)
    first = pods(target, 1)[0]["metadata"]
    target.kubelet.befalls(exits(1), first["name"])
    assert about(ready_again(target, 1, first["uid"], 30), 10.0, target)
    successor = pods(target, 1)[0]["metadata"]
    assert successor["annotations"][f"{BATCH}/job-index-failure-count"] == "1"
    assert job(target)["status"]["failed"] == 1


def test_an_index_past_its_limit_is_failed_for_good(target: Target) -> None:
    started(target, 2, backoffLimitPerIndex=0)
    target.kubelet.befalls(exits(1), pods(target, 1)[0]["metadata"]["name"])
    target.until(lambda: job(target)["status"]["failedIndexes"] == "1", 15, "index 1 failed")
    assert pods(target, 1) == []


def test_exit_code_42_fails_its_index_at_once(target: Target) -> None:
    started(target, 3)
    target.kubelet.befalls(exits(42), pods(target, 1)[0]["metadata"]["name"])
    target.until(lambda: job(target)["status"]["failedIndexes"] == "1", 15, "index 1 failed")


def test_past_max_failed_indexes_the_job_fails_and_all_its_pods_end(target: Target) -> None:
    started(target, 4, maxFailedIndexes=1)
    for index in (0, 2):
        target.kubelet.befalls(exits(42), pods(target, index)[0]["metadata"]["name"])
    target.until(lambda: is_true(job(target), "FailureTarget"), 15, "FailureTarget")
    took_s = target.until(lambda: is_true(job(target), "Failed"), 15, "Failed")
    assert took_s <= 10
    for kind in ("FailureTarget", "Failed"):
        found = condition_of(job(target), kind)
        assert found is not None
        assert found["reason"] == "MaxFailedIndexesExceeded"
    target.until(lambda: not pods(target), 15, "all pods killed")


def test_evictions_are_not_counted_but_double_the_delay_of_their_index(target: Target) -> None:
    started(target, 2)
    for number, expected_s in enumerate((10, 20, 40, 80), 1):
        pod = pods(target, 1)[0]["metadata"]
        target.evict(pod["name"])
        assert about(ready_again(target, 1, pod["uid"], 120), expected_s, target)
        annotations = pods(target, 1)[0]["metadata"]["annotations"]
        assert annotations[f"{BATCH}/job-index-ignored-failure-count"] == str(number)
        assert annotations[f"{BATCH}/job-index-failure-count"] == "0"
    assert "failed" not in job(target)["status"]


def test_another_index_is_not_delayed_by_evictions_of_the_first(target: Target) -> None:
    started(target, 2)
    for index in (0, 0, 1):
        pod = pods(target, index)[0]["metadata"]
        target.evict(pod["name"])
        took_s = ready_again(target, index, pod["uid"], 60)
    assert about(took_s, 10, target)


def test_the_failed_pod_and_its_successor_are_there_together_for_a_moment(target: Target) -> None:
    started(target, 2)
    pod = pods(target, 1)[0]["metadata"]
    target.evict(pod["name"])
    target.until(lambda: len(pods(target, 1, living=False)) == 2, 30, "two pods of index 1")
    target.until(lambda: len(pods(target, 1, living=False)) == 1, 10, "the evicted pod gone")
    assert pods(target, 1, living=False)[0]["metadata"]["uid"] != pod["uid"]


def test_an_evicted_pod_that_ends_with_0_completes_its_index_and_is_never_replaced(target: Target) -> None:
    """Why a worker and a head must not end with 0 after a SIGTERM while their run goes on."""
    target.kubelet.stop_code = 0
    started(target, 2)
    target.evict(pods(target, 1)[0]["metadata"]["name"])
    target.until(lambda: job(target)["status"].get("completedIndexes") == "1", 15, "index 1 complete")
    target.until(lambda: len(target.listed("Pod")) == 1, 15, "the evicted pod gone")


def test_deleting_a_pod_counts_as_a_failure_of_its_index(target: Target) -> None:
    started(target, 2, backoffLimitPerIndex=0)
    target.delete("Pod", pods(target, 1)[0]["metadata"]["name"])
    target.until(lambda: job(target)["status"]["failedIndexes"] == "1", 15, "index 1 failed")
    assert job(target)["status"]["failed"] == 1


def test_a_pod_on_a_dead_node_blocks_its_index(target: Target) -> None:
    if target.live:
        pytest.skip("a dead kubelet is not simulated on a server")
    started(target, 2)
    pod = pods(target, 1)[0]
    target.add_nodes(1)
    target.kubelet.node_down(pod["spec"]["nodeName"])
    target.evict(pod["metadata"]["name"])
    waits = target.clock.now_s() + 600  # type: ignore[attr-defined]
    target.until(lambda: target.clock.now_s() > waits, 700, "ten minutes")  # type: ignore[attr-defined]
    assert pods(target, 1) == []
    assert [p["metadata"]["uid"] for p in pods(target, 1, living=False)] == [pod["metadata"]["uid"]]
    assert job(target)["status"]["terminating"] == 1


def test_without_a_failure_policy_the_successor_comes_while_the_old_pod_still_ends(target: Target) -> None:
    target.kubelet.stop_after_s = 30
    started(target, 2, podFailurePolicy=None, podReplacementPolicy=None, template=_with_grace(60))
    target.add_nodes(1)
    pod = pods(target, 1)[0]["metadata"]
    target.delete("Pod", pod["name"])
    assert about(ready_again(target, 1, pod["uid"], 25), 10, target)
    assert len(pods(target, 1, living=False)) == 2


def _with_grace(seconds: int) -> Json:
    template: Json = worker_job(1)["spec"]["template"]
    template["spec"]["terminationGracePeriodSeconds"] = seconds
    return template


def test_a_pod_that_ignores_sigterm_is_killed_when_its_grace_is_over(target: Target) -> None:
    target.kubelet.stop_after_s = 500
    started(target, 1)
    pod = pods(target)[0]["metadata"]
    target.evict(pod["name"], gracePeriodSeconds=5)

    def codes() -> list[int]:
        found = target.get("Pod", pod["name"])
        states = [s["state"] for s in found["status"].get("containerStatuses", ())] if found else []
        return [state["terminated"]["exitCode"] for state in states if "terminated" in state]

    took_s = target.until(lambda: codes() == [137], 20, "killed")
    assert about(took_s, 5, target)


def test_a_plain_job_tries_again_until_its_limit(target: Target) -> None:
    target.add_nodes(1)
    indexed = (
        "completionMode",
        "completions",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
        "podFailurePolicy",
        "podReplacementPolicy",
    )
    left_out: Json = dict.fromkeys(indexed)
    target.create("Job", worker_job(1, **left_out, backoffLimit=1))
    target.until(lambda: job(target)["status"].get("ready") == 1, 30, "the pod ready")
    target.kubelet.befalls(exits(1))
    target.until(lambda: is_true(job(target), "Failed"), 60, "the Job failed")
    found = condition_of(job(target), "Failed")
    assert found is not None
    assert found["reason"] == "BackoffLimitExceeded"
    assert job(target)["status"]["failed"] == 2


def test_a_job_whose_pods_end_well_is_complete(target: Target) -> None:
    started(target, 2)
    target.kubelet.befalls(exits(0))
    target.until(lambda: is_true(job(target), "Complete"), 30, "the Job complete")
    assert (job(target)["status"]["succeeded"], job(target)["status"]["completedIndexes"]) == (2, "0,1")
    assert "active" not in job(target)["status"]


# --- what may change on a live Job -------------------------------------------------------------------------


def test_scaling_adds_indexes_and_removes_the_highest(target: Target) -> None:
    target.add_nodes(12)
    target.create("Job", worker_job(4, maxFailedIndexes=4))
    for nodes in (4, 8, 6, 12, 5):
        target.patch("Job", "worker", {"spec": {"parallelism": nodes, "completions": nodes}})
        target.until(lambda nodes=nodes: job(target)["status"].get("ready") == nodes, 30, f"{nodes} ready")  # type: ignore[misc]
        assert sorted(int(pod["metadata"]["labels"][INDEX]) for pod in pods(target)) == list(range(nodes))
    assert "failed" not in job(target)["status"]


def test_parallelism_above_completions_adds_no_pod(target: Target) -> None:
    started(target, 2)
    target.patch("Job", "worker", {"spec": {"parallelism": 3}})
    target.until(lambda: job(target)["status"].get("active") == 2, 5, "still two")
    assert len(pods(target)) == 2


def test_suspending_frees_everything_and_resuming_brings_it_back(target: Target) -> None:
    started(target, 3)
    target.patch("Job", "worker", {"spec": {"suspend": True}})
    target.until(lambda: not target.listed("Pod"), 30, "no pods")
    suspended = condition_of(job(target), "Suspended")
    assert suspended is not None
    assert (suspended["status"], suspended["reason"]) == ("True", "JobSuspended")
    assert "startTime" not in job(target)["status"]
    target.patch("Job", "worker", {"spec": {"suspend": False}})
    target.until(lambda: job(target)["status"].get("ready") == 3, 30, "three ready again")
    resumed = condition_of(job(target), "Suspended")
    assert resumed is not None
    assert (resumed["status"], resumed["reason"]) == ("False", "JobResumed")
    assert "startTime" in job(target)["status"]
    assert "failed" not in job(target)["status"]


def test_a_foreground_delete_takes_the_pods_first(target: Target) -> None:
    started(target, 2)
    target.delete("Job", "worker", "Foreground")
    target.until(lambda: target.get("Job", "worker") is None, 30, "the Job gone")
    assert target.listed("Pod") == []


def test_orphaned_pods_go_on(target: Target) -> None:
    started(target, 2)
    target.delete("Job", "worker", "Orphan")
    target.until(lambda: target.get("Job", "worker") is None, 30, "the Job gone")
    left = target.listed("Pod")
    assert [pod["status"]["phase"] for pod in left] == ["Running", "Running"]
    assert all("ownerReferences" not in pod["metadata"] for pod in left)
    for pod in left:
        target.delete("Pod", pod["metadata"]["name"])


# --- disruption budgets ------------------------------------------------------------------------------------


def test_an_integer_budget_counts_and_allows(target: Target) -> None:
    target.create("PodDisruptionBudget", budget(6))
    started(target, 8)
    target.until(lambda: _allowed(target) == 2, 15, "two allowed")
    status = _budget(target)
    counted = (status["observedGeneration"], status["currentHealthy"], status["desiredHealthy"], status["expectedPods"])
    assert counted == (1, 8, 6, 8)
    found = condition_of({"status": status}, "DisruptionAllowed")
    assert found is not None
    assert (found["status"], found["reason"]) == ("True", "SufficientPods")


def _budget(target: Target) -> Json:
    status: Json = (target.get("PodDisruptionBudget", "worker") or {}).get("status", {})
    return status


def _allowed(target: Target) -> int:
    return int(_budget(target).get("disruptionsAllowed", -1))


def test_an_eviction_over_budget_is_refused_with_the_count(target: Target) -> None:
    target.create("PodDisruptionBudget", budget(3))
    started(target, 4)
    target.until(lambda: _allowed(target) == 1, 15, "one allowed")
    target.evict(pods(target, 0)[0]["metadata"]["name"])
    target.until(lambda: _budget(target).get("currentHealthy") == 3, 15, "the eviction counted")
    problem = refusal(lambda: target.evict(pods(target, 1)[0]["metadata"]["name"]))
    assert (problem.code, problem.reason) == (429, "TooManyRequests")
    cause = problem.details["causes"][0]
    assert cause["reason"] == "DisruptionBudget"
    assert cause["message"].endswith("needs 3 healthy pods and has 3 currently")
    assert "retryAfterSeconds" not in problem.details
    took_s = target.until(lambda: _allowed(target) == 1, 30, "the budget back")
    assert about(took_s, 10, target)


@pytest.mark.parametrize("wanted", [{"maxUnavailable": 1}, {"minAvailable": "50%"}], ids=["maxUnavailable", "percentage"])
def test_any_other_budget_of_a_job_never_allows_anything(target: Target, wanted: Json) -> None:
    target.create("PodDisruptionBudget", budget(None, **wanted))
    started(target, 4)
    target.until(lambda: _allowed(target) == 0, 15, "a status")
    found = condition_of(target.get("PodDisruptionBudget", "worker") or {}, "DisruptionAllowed")
    assert found is not None
    assert (found["status"], found["reason"]) == ("False", "SyncFailed")
    assert "does not implement the scale subresource" in found["message"]
    problem = refusal(lambda: target.evict(pods(target, 0)[0]["metadata"]["name"]))
    assert problem.code == 429
    assert problem.details["causes"][0]["message"].endswith("still being processed by the server.")
    assert problem.details["retryAfterSeconds"] == 10


def test_always_allow_lets_an_unready_pod_go_at_budget_zero(target: Target) -> None:
    target.create("PodDisruptionBudget", budget(4))
    target.add_nodes(4)
    target.kubelet.befalls(Fate("unready"), "worker-2-")
    target.create("Job", worker_job(4))
    target.until(lambda: job(target)["status"].get("ready") == 3, 30, "three of four ready")
    target.until(lambda: _allowed(target) == 0, 15, "none allowed")
    assert refusal(lambda: target.evict(pods(target, 0)[0]["metadata"]["name"])).code == 429
    target.evict(pods(target, 2)[0]["metadata"]["name"])


def test_two_budgets_over_one_pod_refuse_every_eviction(target: Target) -> None:
    target.create("PodDisruptionBudget", budget(0))
    target.create("PodDisruptionBudget", budget(0) | {"metadata": {"name": "other"}})
    started(target, 1)
    problem = refusal(lambda: target.evict(pods(target, 0)[0]["metadata"]["name"]))
    assert problem.code == 500
    assert "more than one PodDisruptionBudget" in problem.message


def test_an_eviction_marks_the_pod_and_gives_it_its_grace(target: Target) -> None:
    target.kubelet.stop_after_s = 6
    started(target, 1)
    name = pods(target)[0]["metadata"]["name"]
    target.evict(name, gracePeriodSeconds=300)
    pod = target.get("Pod", name)
    assert pod is not None
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 300
    found = condition_of(pod, "DisruptionTarget")
    assert found is not None
    assert (found["status"], found["reason"]) == ("True", "EvictionByEvictionAPI")
    took_s = target.until(lambda: (target.get("Pod", name) or {"status": {}})["status"].get("phase") == "Failed", 30, "ended")
    assert about(took_s, 6, target)
    assert _state(target, name)["terminated"]["exitCode"] == 143


def _state(target: Target, name: str) -> Json:
    pod = target.get("Pod", name)
    assert pod is not None
    state: Json = pod["status"]["containerStatuses"][0]["state"]
    return state


# --- the scheduler -----------------------------------------------------------------------------------------


def _why_pending(target: Target, index: int) -> str:
    found = condition_of((pods(target, index) or [{}])[0], "PodScheduled")
    return "" if found is None or found["status"] == "True" else f"{found['reason']}: {found['message']}"


def test_a_pod_that_fits_nowhere_says_why_by_cause(target: Target) -> None:
    names = target.add_nodes(5)
    target.add_nodes(3, gpus=4)
    for name in names:
        target.patch("Node", name, {"spec": {"unschedulable": True}})
    target.create("Job", worker_job(1))
    target.until(lambda: "Insufficient" in _why_pending(target, 0), 15, "a reason")
    said = _why_pending(target, 0)
    assert said.startswith("Unschedulable: 0/8 nodes are available: 3 Insufficient amd.com/gpu, 5 node(s) were unschedulable.")
    target.until(lambda: any(e["reason"] == "FailedScheduling" for e in target.listed("Event")), 10, "an Event")


def test_a_taken_node_is_not_given_twice_and_a_spare_is_taken_at_once(target: Target) -> None:
    target.add_nodes(2)
    target.create("Job", worker_job(3))
    target.until(lambda: "2 Insufficient amd.com/gpu" in _why_pending(target, 2), 15, "index 2 waits")
    target.add_nodes(1)
    target.until(lambda: job(target)["status"].get("ready") == 3, 15, "the spare taken")


def test_after_a_cordon_the_successor_lands_elsewhere(target: Target) -> None:
    started(target, 2)
    bad = pods(target, 1)[0]
    target.add_nodes(1)
    target.patch("Node", bad["spec"]["nodeName"], {"spec": {"unschedulable": True}})
    target.evict(bad["metadata"]["name"])
    ready_again(target, 1, bad["metadata"]["uid"], 30)
    assert pods(target, 1)[0]["spec"]["nodeName"] != bad["spec"]["nodeName"]


def test_taints_and_affinity_are_named(target: Target) -> None:
    tainted, plain = target.add_nodes(2)
    target.patch("Node", tainted, {"spec": {"taints": [{"key": "team", "value": "other", "effect": "NoSchedule"}]}})
    template = worker_job(1)["spec"]["template"]
    avoid = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [plain]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [avoid]}}
    template["spec"]["affinity"] = {"nodeAffinity": required}
    target.create("Job", worker_job(1, template=template))
    target.until(lambda: "untolerated" in _why_pending(target, 0), 15, "a reason")
    assert "1 node(s) didn't match Pod's node affinity/selector" in _why_pending(target, 0)
    assert "1 node(s) had untolerated taint" in _why_pending(target, 0)


def test_one_worker_per_node_holds_where_gpus_would_allow_more(target: Target) -> None:
    target.add_nodes(2)
    template = worker_job(1, gpus=2)["spec"]["template"]
    term = {"labelSelector": {"matchLabels": {"app": "worker"}}, "topologyKey": "kubernetes.io/hostname"}
    template["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    target.create("Job", worker_job(3, template=template))
    target.until(lambda: "anti-affinity" in _why_pending(target, 2), 15, "the third waits")
    assert len({pod["spec"].get("nodeName") for pod in pods(target)}) == 3  # two nodes, and none


def test_topology_spread_counts_workers_by_node(target: Target) -> None:
    target.add_nodes(2)
    template = worker_job(1, gpus=2)["spec"]["template"]
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    template["spec"]["topologySpreadConstraints"] = [spread | {"labelSelector": {"matchLabels": {"app": "worker"}}}]
    target.create("Job", worker_job(4, template=template))
    target.until(lambda: job(target)["status"].get("ready") == 4, 15, "four ready")
    where = [pod["spec"]["nodeName"] for pod in pods(target)]
    assert sorted(where.count(name) for name in set(where)) == [2, 2]


def test_a_missing_claim_keeps_the_pod_pending(target: Target) -> None:
    target.add_nodes(1)
    template = worker_job(1)["spec"]["template"]
    template["spec"]["volumes"] = [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}]
    target.create("Job", worker_job(1, template=template))
    target.until(lambda: 'persistentvolumeclaim "models" not found' in _why_pending(target, 0), 15, "a reason")
    if target.live:
        return
    claim = {
        "spec": {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}},
        "metadata": {"name": "models"},
    }
    target.create("PersistentVolumeClaim", claim)
    target.until(lambda: job(target)["status"].get("ready") == 1, 15, "the pod ready")


def test_a_quota_is_told_by_an_event_of_the_job(target: Target) -> None:
    target.create("ResourceQuota", {"metadata": {"name": "team"}, "spec": {"hard": {f"requests.{GPU}": "16"}}})
    target.add_nodes(3)
    target.until(lambda: "used" in (target.get("ResourceQuota", "team") or {})["status"], 15, "the quota counted")
    target.create("Job", worker_job(3))

    def said() -> list[str]:
        return [event["message"] for event in target.listed("Event") if event["reason"] == "FailedCreate"]

    target.until(lambda: said(), 15, "FailedCreate")
    assert f"exceeded quota: team, requested: requests.{GPU}=8, used: requests.{GPU}=16, limited: requests.{GPU}=16" in said()[0]
    assert job(target)["status"]["active"] == 2
    target.patch("ResourceQuota", "team", {"spec": {"hard": {f"requests.{GPU}": "24"}}})
    target.until(lambda: job(target)["status"].get("ready") == 3, 90, "all three ready")


# --- what kubelets report ----------------------------------------------------------------------------------


def test_an_image_that_cannot_be_pulled_leaves_the_pod_waiting(target: Target) -> None:
    target.add_nodes(1)
    target.kubelet.befalls(IMAGE_PULL_BACKOFF)
    target.create("Job", worker_job(1))
    target.until(lambda: pods(target) and "containerStatuses" in pods(target)[0]["status"], 15, "a state")
    assert _state(target, pods(target)[0]["metadata"]["name"])["waiting"]["reason"] == "ImagePullBackOff"
    target.kubelet.forget_fates()
    target.until(lambda: job(target)["status"].get("ready") == 1, 15, "pulled after all")


def test_out_of_memory_is_a_counted_failure(target: Target) -> None:
    started(target, 1)
    name = pods(target)[0]["metadata"]["name"]
    target.kubelet.befalls(OOM_KILLED, name)
    target.until(lambda: job(target)["status"].get("failed") == 1, 15, "counted")
    assert _state(target, name)["terminated"] | {"exitCode": 137, "reason": "OOMKilled"} == _state(target, name)["terminated"]


def test_a_rejected_pod_fails_without_a_container(target: Target) -> None:
    target.add_nodes(1)
    target.kubelet.befalls(REJECTED, times=1)
    target.create("Job", worker_job(1))
    target.until(lambda: job(target)["status"].get("failed") == 1, 15, "counted")
    rejected = next(pod for pod in pods(target, living=False) if pod["status"]["phase"] == "Failed")
    assert rejected["status"]["reason"] == "UnexpectedAdmissionError"
    assert "containerStatuses" not in rejected["status"]
    target.until(lambda: job(target)["status"].get("ready") == 1, 30, "the successor ready")


def test_an_eviction_by_the_kubelet_is_not_counted(target: Target) -> None:
    started(target, 1)
    pod = pods(target)[0]["metadata"]
    target.kubelet.befalls(KUBELET_EVICTS, pod["name"])
    ready_again(target, 0, pod["uid"], 30)
    assert "failed" not in job(target)["status"]


def test_a_container_that_may_restart_backs_off_in_place(target: Target) -> None:
    target.add_nodes(1)
    target.kubelet.befalls(crash_loop(3))
    target.create("Job", worker_job(1))

    def restarts() -> int:
        return max((box["restartCount"] for pod in pods(target) for box in pod["status"].get("containerStatuses", ())), default=0)

    target.until(lambda: restarts() == 3, 60, "three restarts")
    status = pods(target)[0]["status"]["containerStatuses"][0]
    assert status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert "failed" not in job(target)["status"]


def test_pods_of_a_dead_node_are_not_ready_and_are_given_up(target: Target) -> None:
    if target.live:
        pytest.skip("a dead kubelet is not simulated on a server")
    started(target, 1)
    pod = pods(target)[0]
    target.kubelet.node_down(pod["spec"]["nodeName"])
    target.until(lambda: job(target)["status"]["ready"] == 0, 5, "not ready")
    took_s = target.until(lambda: "deletionTimestamp" in pods(target, living=False)[0]["metadata"], 400, "given up")
    assert about(took_s, 300, target)
    found = condition_of(pods(target, living=False)[0], "DisruptionTarget")
    assert found is not None
    assert found["reason"] == "DeletionByTaintManager"
    target.kubelet.node_up(pod["spec"]["nodeName"])
    target.until(lambda: job(target)["status"].get("ready") == 1, 60, "the successor ready")
