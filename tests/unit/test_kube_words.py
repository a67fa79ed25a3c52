"""The reasons in words: each names pod or node and what can be done."""

from __future__ import annotations

import re

import pytest

from harness.cluster.kube import scheduling, words
from harness.cluster.kube.views import BudgetView, Condition, ContainerView, EventView, JobView, NodeView, PodView

NOW = 10_000.0


def a_pod(**fields: object) -> PodView:
    defaults: dict[str, object] = {
        "name": "w-3",
        "uid": "u-3",
        "namespace": "ns",
        "component": "worker",
        "node": "gpu-3",
        "phase": "Pending",
        "created_unix": NOW - 300,
    }
    return PodView(**(defaults | fields))  # type: ignore[arg-type]


def a_container(**fields: object) -> ContainerView:
    return ContainerView(**({"name": "worker", "image": "registry/worker:1"} | fields))  # type: ignore[arg-type]


def why(pod: PodView, **more: object) -> str:
    return words.why_not_ready(pod, now_unix=NOW, **more)  # type: ignore[arg-type]


# --- pending -----------------------------------------------------------------------------------------------------------

SCHEDULER = [
    (
        "0/65 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 64 Insufficient "
        "amd.com/gpu. preemption: 0/65 nodes are available: 1 Preemption is not helpful for scheduling, 64 No victims.",
        "none of 65 nodes can take it: 64 lack free amd.com/gpu, 1 has the taint node-role.kubernetes.io/control-plane; "
        "free nodes, or start with fewer (fleet.nodes, cluster.kubernetes.gpus_per_worker)",
    ),
    (
        "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) had untolerated taint {team: infra}.",
        "none of 3 nodes can take it: 2 have the taint team=infra, 1 is cordoned; "
        "wait until the taint goes, or tolerate team by cluster.kubernetes.tolerations",
    ),
    (
        "0/2 nodes are available: 1 Insufficient memory, 1 node(s) didn't match pod anti-affinity rules.",
        "none of 2 nodes can take it: 1 lacks free memory, 1 has a worker already; "
        "free nodes, or ask for less (cluster.kubernetes.worker_memory, head_memory)",
    ),
    (
        "0/8 nodes are available: 8 node(s) didn't match Pod's node affinity/selector.",
        "none of 8 nodes can take it: 8 are not among the chosen nodes; look at cluster.kubernetes.node_selector and avoid_nodes",
    ),
    (
        'persistentvolumeclaim "models" not found',
        "its PersistentVolumeClaim models does not exist; look at `kubectl get pvc models`: class, size, access mode",
    ),
    (
        "0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/4 nodes are available.",
        "none of 4 nodes can take it: its PersistentVolumeClaim is not bound to a volume; look at `kubectl get pvc`: "
        "class, size, access mode",
    ),
    (
        "0/1 nodes are available: 1 something new, with a comma.",
        "none of 1 nodes can take it: 1 node: something new, with a comma",
    ),
    ("", "the scheduler has not said why"),
]


@pytest.mark.parametrize(("message", "said"), SCHEDULER)
def test_the_scheduler_in_words(message: str, said: str) -> None:
    assert scheduling.in_words(message) == said


def test_a_pod_that_is_not_placed_says_why_and_for_how_long() -> None:
    unplaced = Condition("PodScheduled", "False", "Unschedulable", "0/8 nodes are available: 8 Insufficient amd.com/gpu.")
    assert why(a_pod(node="", conditions=(unplaced,))).startswith(
        "pod w-3 has been Pending for 5 min: none of 8 nodes can take it: 8 lack free amd.com/gpu; "
    )
    gated = Condition("PodScheduled", "False", "SchedulingGated")
    assert "held back (SchedulingGated) until its queue admits it" in why(a_pod(node="", conditions=(gated,)))
    assert "the scheduler has not looked at it yet" in why(a_pod(node=""))
    event = EventView("e", reason="FailedScheduling", message="0/1 nodes are available: 1 Insufficient cpu.", subject="w-3")
    assert "1 lacks free cpu" in why(a_pod(node=""), events=[event])


# --- bound, not ready --------------------------------------------------------------------------------------------------


def test_an_image_that_cannot_be_pulled_is_named() -> None:
    waiting = a_container(state="waiting", reason="ImagePullBackOff", message="Back-off pulling image")
    assert why(a_pod(containers=(waiting,))) == (
        "pod w-3 on node gpu-3: image registry/worker:1 cannot be pulled (ImagePullBackOff): Back-off pulling image; "
        "check the name, the tag and cluster.kubernetes.pull_secret"
    )


def test_a_crash_loop_tells_exit_code_restarts_and_last_line() -> None:
    waiting = a_container(state="waiting", reason="CrashLoopBackOff", restarts=4, last_exit_code=1, last_reason="Error")
    assert why(a_pod(containers=(waiting,)), last_line="RuntimeError: no HIP device") == (
        "pod w-3 on node gpu-3: container worker ended with exit code 1, was restarted 4 times, and waits before the next try "
        "(CrashLoopBackOff); its last line: RuntimeError: no HIP device"
    )
    again = a_container(state="running", restarts=1, last_exit_code=88)
    assert "exit code 88 (asked to be restarted), was restarted once, and is starting again" in why(a_pod(containers=(again,)))


def test_memory_is_named_with_the_field_to_raise() -> None:
    killed = a_container(state="terminated", reason="OOMKilled", exit_code=137)
    assert "killed for memory (OOMKilled); raise cluster.kubernetes.worker_memory" in why(a_pod(containers=(killed,)))
    failed = a_pod(phase="Failed", component="head", containers=(killed,))
    assert why(failed) == "pod w-3 on node gpu-3 was killed for memory (OOMKilled); raise cluster.kubernetes.head_memory"


def test_a_missing_secret_is_told_in_the_kubelets_words() -> None:
    waiting = a_container(state="waiting", reason="CreateContainerConfigError", message='secret "run-worker-keys" not found')
    assert 'cannot be started (CreateContainerConfigError): secret "run-worker-keys" not found' in why(
        a_pod(containers=(waiting,))
    )


def test_a_container_that_takes_long_tells_what_the_events_say() -> None:
    creating = a_container(state="waiting", reason="ContainerCreating")
    pod = a_pod(containers=(creating,), started_unix=NOW - 200)
    assert why(pod).startswith("pod w-3 has been starting on node gpu-3 for 3 min and no container has been made; look at")
    assert why(a_pod(containers=(creating,), started_unix=NOW - 5)) == "pod w-3 has been starting on node gpu-3 for 5 s"
    pulling = EventView("e", reason="Pulling", message='Pulling image "registry/worker:1"', subject="w-3", last_unix=NOW - 100)
    assert why(pod, events=[pulling]).endswith('for 3 min: Pulling image "registry/worker:1"')
    mount = EventView("e", reason="FailedMount", message="timed out waiting for models", subject="w-3", last_unix=NOW)
    assert why(pod, events=[pulling, mount]).endswith("FailedMount: timed out waiting for models")
    other = EventView("e", reason="FailedMount", message="of its namesake", subject="w-3", subject_uid="another")
    assert "namesake" not in why(pod, events=[other])


def test_a_running_pod_waits_for_the_head() -> None:
    running = a_container(state="running", started_unix=NOW - 600)
    assert why(a_pod(phase="Running", containers=(running,)), last_line="loading 40 %") == (
        "pod w-3 has been running on node gpu-3 for 10 min and has not registered with the head; its last line: loading 40 %"
    )
    assert why(a_pod(phase="Running", ready=True)) == ""


def test_a_node_that_is_not_ready_comes_first() -> None:
    node = NodeView("gpu-3", ready=False, ready_since_unix=NOW - 240, ready_message="Kubelet stopped posting node status.")
    assert why(a_pod(phase="Running"), node=node) == (
        "pod w-3: node gpu-3 has been NotReady for 4 min: Kubelet stopped posting node status; it cannot be told whether it runs"
    )


# --- ended and leaving -------------------------------------------------------------------------------------------------

ENDS = [
    ({"reason": "Evicted", "message": "The node was low on resource: memory."}, "was evicted by node gpu-3: .*worker_memory"),
    ({"reason": "Evicted", "message": 'EmptyDir volume "shm" exceeds the limit "16Gi".'}, "raise cluster.kubernetes.shm"),
    ({"reason": "UnexpectedAdmissionError", "message": "Allocate failed"}, "rejected by the kubelet of node gpu-3: Allocate"),
    ({"reason": "OutOfamd.com/gpu"}, r"rejected by the kubelet of node gpu-3: OutOfamd\.com/gpu"),
    ({"reason": "DeadlineExceeded"}, "ended at its deadline"),
    ({"conditions": (Condition("DisruptionTarget", "True", "PreemptionByScheduler"),)}, "preempted by a pod of higher priority"),
    ({"reason": "NodeLost"}, "ended with its node gpu-3"),
    ({"containers": (a_container(state="terminated", exit_code=143),)}, r"failed with exit code 143 \(SIGTERM\)"),
    ({"containers": (a_container(state="terminated", exit_code=42),)}, r"exit code 42 \(hardware lost\)"),
    ({"containers": (a_container(state="terminated", exit_code=250),)}, "exit code 250$"),
]


@pytest.mark.parametrize(("fields", "pattern"), ENDS)
def test_how_a_pod_ended(fields: dict[str, object], pattern: str) -> None:
    assert re.search(pattern, why(a_pod(phase="Failed", **fields))), why(a_pod(phase="Failed", **fields))


def test_an_eviction_is_told_while_the_pod_leaves() -> None:
    evicted = Condition("DisruptionTarget", "True", "EvictionByEvictionAPI")
    assert why(a_pod(phase="Running", deletion_unix=NOW + 40, conditions=(evicted,))) == (
        "pod w-3 is Terminating: evicted through the API, 40 s of its grace left"
    )


def test_a_pod_that_never_leaves_a_dead_node_comes_with_the_admins_command() -> None:
    dead = NodeView("gpu-3", ready=False, ready_since_unix=NOW - 600)
    pod = a_pod(phase="Running", deletion_unix=NOW - 420)
    said = why(pod, node=dead)
    assert said.startswith(
        "pod w-3 has been Terminating for 7 min longer than its grace: node gpu-3 has been NotReady for 10 min"
    )
    assert said.endswith("an admin can run: kubectl -n ns delete pod w-3 --grace-period=0 --force")
    assert words.stuck_terminating(a_pod(deletion_unix=NOW - 30), dead, NOW) == ""
    assert words.stuck_terminating(a_pod(), dead, NOW) == ""


def test_nodes_that_reject_pods_are_counted() -> None:
    lost = [a_pod(name=f"w-{n}", phase="Failed", reason="UnexpectedAdmissionError", node="bad") for n in range(3)]
    assert words.rejecting_nodes([*lost, a_pod(phase="Failed", reason="UnexpectedAdmissionError")]) == [
        "node bad rejected 3 pods: cordon it?"
    ]


# --- around pods -------------------------------------------------------------------------------------------------------


def test_why_there_is_no_pod() -> None:
    job = JobView("run-worker", parallelism=4, completions=4, failed_indexes=(1,))
    assert words.why_no_pod(0, None).startswith("the Job of the workers is not there")
    assert words.why_no_pod(1, job) == "index 1 of job run-worker has failed for good: no more tries are left to it"
    assert words.why_no_pod(5, job).startswith("job run-worker is scaled to 4 pods")
    assert words.why_no_pod(2, job) == "job run-worker has not made its pod yet"
    message = "Error creating: pods is forbidden: exceeded quota: gpus, requested: amd.com/gpu=8, used: 16, limited: 16"
    quota = EventView("e", reason="FailedCreate", message=message, kind="Job", subject="run-worker", last_unix=NOW)
    assert words.why_no_pod(2, job, [quota]) == (
        "job run-worker may not make more pods: pods is forbidden: exceeded quota: gpus, requested: amd.com/gpu=8, used: 16, "
        "limited: 16; ask for a larger quota, or start with fewer nodes (fleet.nodes)"
    )
    held = JobView("run-worker", parallelism=4, completions=4, suspended=True)
    assert words.why_no_pod(2, held, queue="gpu") == "job run-worker is suspended: queue gpu of Kueue has not admitted it"
    over = JobView("run-worker", conditions=(Condition("Failed", "True", "MaxFailedIndexesExceeded", "Job has exceeded it"),))
    assert words.why_no_pod(0, over) == "job run-worker has failed (MaxFailedIndexesExceeded): Job has exceeded it"


def test_a_node_tells_pressure_and_lost_accelerators() -> None:
    node = NodeView("a", ready=True, pressures=("DiskPressure",), allocatable={"amd.com/gpu": 6}, capacity={"amd.com/gpu": 8})
    assert words.node_problem(node, "amd.com/gpu") == (
        "node a has DiskPressure; node a offers 6 of its 8 amd.com/gpu: 2 are out of order"
    )
    assert words.node_problem(NodeView("a", ready=True)) == ""


def test_the_delay_of_a_successor_doubles_up_to_ten_minutes() -> None:
    assert [words.replacement_delay_s(n) for n in (0, 1, 2, 3)] == [10.0, 20.0, 40.0, 80.0]
    assert words.replacement_delay_s(100) == 600.0
    assert words.replacement_delay_s(-1) == 10.0


def test_a_budget_that_can_never_allow_an_eviction() -> None:
    failed = Condition("DisruptionAllowed", "False", "SyncFailed", "jobs.batch does not implement the scale subresource")
    assert "can never allow an eviction: jobs.batch does not" in words.budget_problem(BudgetView("b", condition=failed))
    assert "maxUnavailable 2 does not work" in words.budget_problem(BudgetView("b", max_unavailable="2"))
    assert "minAvailable 50% does not work" in words.budget_problem(BudgetView("b", min_available="50%"))
    tight = BudgetView("b", min_available="4", healthy=4, desired=4, expected=4)
    assert "wants 4 healthy pods of 4: all are healthy and none may go" in words.budget_problem(tight)
    assert words.budget_problem(BudgetView("b", min_available="62", healthy=62, desired=62, expected=64)) == ""
    assert words.budget_problem(BudgetView("b", min_available="4", generation=1)) == ""
