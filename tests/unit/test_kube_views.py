"""Raw JSON becomes small views, and no JSON whatever stops that."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.cluster.kube import views

REDUCERS = [views.reduce_pod, views.reduce_node, views.reduce_job, views.reduce_event, views.reduce_budget]


def worker_pod() -> dict[str, Any]:
    """A worker's pod as a server of 1.36 writes it, less what is not looked at."""
    return {
        "metadata": {
            "name": "run-worker-13-chb4f",
            "uid": "u-13",
            "namespace": "ns",
            "creationTimestamp": "2026-11-30T04:50:22Z",
            "deletionTimestamp": "2026-11-30T05:00:00Z",
            "deletionGracePeriodSeconds": 90,
            "labels": {
                "app.kubernetes.io/component": "worker",
                "batch.kubernetes.io/job-completion-index": "13",
                "batch.kubernetes.io/job-name": "run-worker",
                "topology.kubernetes.io/zone": "rack-2",
            },
            "annotations": {
                "batch.kubernetes.io/job-index-failure-count": "1",
                "batch.kubernetes.io/job-index-ignored-failure-count": "2",
            },
        },
        "spec": {"nodeName": "gpu-13", "containers": [{"name": "worker", "image": "registry/worker:1"}]},
        "status": {
            "phase": "Running",
            "podIP": "10.1.2.3",
            "startTime": "2026-11-30T04:50:23.500000Z",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-30T04:51:00Z"}],
            "containerStatuses": [
                {
                    "name": "worker",
                    "image": "docker.io/registry/worker:1",
                    "ready": True,
                    "restartCount": 3,
                    "state": {"running": {"startedAt": "2026-11-30T04:50:30Z"}},
                    "lastState": {"terminated": {"exitCode": 88, "reason": "Error", "finishedAt": "2026-11-30T04:50:29Z"}},
                }
            ],
        },
    }


def test_a_pod_keeps_place_state_and_history() -> None:
    pod = views.reduce_pod(worker_pod())
    assert (pod.name, pod.uid, pod.index, pod.node, pod.zone) == ("run-worker-13-chb4f", "u-13", 13, "gpu-13", "rack-2")
    assert (pod.component, pod.job, pod.pod_ip, pod.ready) == ("worker", "run-worker", "10.1.2.3", True)
    assert (pod.failures, pod.ignored_failures, pod.restarts, pod.grace_s) == (1, 2, 3, 90.0)
    assert pod.started_unix - pod.created_unix == 1.5
    assert (pod.phase, pod.shown_phase) == ("Running", "Terminating")
    [container] = pod.containers
    assert (container.image, container.state, container.last_exit_code) == ("registry/worker:1", "running", 88)
    assert container.exit_code is None


def test_a_node_keeps_readiness_taints_and_accelerators() -> None:
    node = views.reduce_node(
        {
            "metadata": {"name": "gpu-1", "labels": {"topology.kubernetes.io/zone": "rack-1"}},
            "spec": {"unschedulable": True, "taints": [{"key": "amd.com/gpu", "value": "true", "effect": "NoSchedule"}]},
            "status": {
                "capacity": {"cpu": "128", "amd.com/gpu": "8"},
                "allocatable": {"cpu": "127500m", "amd.com/gpu": "7"},
                "conditions": [
                    {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"},
                    {"type": "DiskPressure", "status": "True"},
                    {"type": "MemoryPressure", "status": "False"},
                ],
            },
        }
    )
    assert (node.ready, node.ready_reason, node.cordoned, node.zone) == (False, "NodeStatusUnknown", True, "rack-1")
    assert node.gpus("amd.com/gpu") == (7, 8)
    assert node.gpus("nvidia.com/gpu") == (0, 0)
    assert [str(taint) for taint in node.taints] == ["amd.com/gpu=true:NoSchedule"]
    assert node.pressures == ("DiskPressure",)


def test_a_job_keeps_its_counts_and_indexes() -> None:
    raw = {
        "spec": {"parallelism": 8, "completions": 8, "suspend": True},
        "status": {"ready": 3, "failedIndexes": "1,3-5", "completedIndexes": "0,x,9-7,-2"},
    }
    job = views.reduce_job(raw)
    assert (job.parallelism, job.completions, job.suspended, job.ready, job.failed) == (8, 8, True, 3, 0)
    assert job.failed_indexes == (1, 3, 4, 5)
    assert job.completed_indexes == (0,)


def test_an_event_of_the_new_kind_has_times_and_count() -> None:
    raw = {
        "metadata": {"name": "e"},
        "reason": "FailedScheduling",
        "type": "Warning",
        "involvedObject": {"kind": "Pod", "name": "w", "uid": "u"},
        "eventTime": "2026-11-30T04:50:22.000001Z",
        "series": {"count": 7, "lastObservedTime": "2026-11-30T04:55:22.000000Z"},
        "reportingComponent": "default-scheduler",
        "count": None,
        "firstTimestamp": None,
    }
    event = views.reduce_event(raw)
    assert (event.count, event.kind, event.subject, event.source) == (7, "Pod", "w", "default-scheduler")
    assert event.last_unix - event.first_unix == pytest.approx(300.0, abs=0.01)


def test_a_budget_keeps_its_form_and_counts() -> None:
    raw = {
        "metadata": {"name": "b", "generation": 2},
        "spec": {"minAvailable": 62},
        "status": {
            "observedGeneration": 2,
            "disruptionsAllowed": 2,
            "currentHealthy": 64,
            "desiredHealthy": 62,
            "expectedPods": 64,
            "conditions": [{"type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods"}],
        },
    }
    budget = views.reduce_budget(raw)
    assert (budget.min_available, budget.max_unavailable) == ("62", "")
    assert (budget.allowed, budget.healthy, budget.desired, budget.expected) == (2, 64, 62, 64)
    assert budget.condition is not None
    assert budget.condition.reason == "SufficientPods"


def test_equal_objects_have_equal_views_whatever_their_version() -> None:
    one, other = worker_pod(), worker_pod()
    other["metadata"]["resourceVersion"] = "12345"
    other["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    assert views.reduce_pod(one) == views.reduce_pod(other)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)


@given(raw=st.dictionaries(st.sampled_from(["metadata", "spec", "status", "involvedObject", "series", "count"]), JSON))
@settings(max_examples=200, deadline=None)
def test_junk_never_raises(raw: dict[str, Any]) -> None:
    for reduce in REDUCERS:
        reduce(raw)


def _places(raw: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    steps = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    return found + [place for key, value in steps for place in _places(value, (*path, key))]


@given(place=st.sampled_from(_places(worker_pod())), junk=JSON)
@settings(max_examples=400, deadline=None)
def test_junk_in_any_place_of_a_real_pod_never_raises(place: tuple[Any, ...], junk: object) -> None:
    raw: Any = worker_pod()
    inner = raw
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = junk
    views.reduce_pod(raw)
