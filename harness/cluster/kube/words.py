"""Why a pod is not there, not running or not ready, in words: pure functions over what the watches have seen.

Each sentence names the pod, the node where it matters, and the next step where a person can take one. "" means that nothing
is wrong. Times are wall-clock seconds.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

from harness.cluster.kube import scheduling
from harness.cluster.kube.views import BudgetView, ContainerView, EventView, JobView, NodeView, PodView

_FIRST_DELAY_S, _LONGEST_DELAY_S = 10.0, 600.0  # of the Job controller, for each index
_OVERDUE_S = 60.0
_LONG_S = 60.0  # creating a container takes seconds, unless something is wrong or its image is large
_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable")
_START_TROUBLE = ("FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox", "NetworkNotReady")
_EXITS = {42: "hardware lost", 88: "asked to be restarted"}  # of our worker


def replacement_delay_s(evictions: int) -> float:
    """Until the successor of a pod is made, whose index has been evicted so often before: the Job controller doubles its delay
    for each, although a podFailurePolicy keeps evictions out of the failures."""
    return min(_FIRST_DELAY_S * 2.0 ** min(max(evictions, 0), 30), _LONGEST_DELAY_S)


# --- pods --------------------------------------------------------------------------------------------------------------


def why_not_ready(
    pod: PodView, *, node: NodeView | None = None, events: Sequence[EventView] = (), now_unix: float, last_line: str = ""
) -> str:
    """`node`: the one it is bound to, where nodes may be read; `last_line`: of its log."""
    if pod.ended:
        return why_ended(pod, last_line=last_line)
    if pod.deletion_unix:
        return stuck_terminating(pod, node, now_unix) or _leaving(pod, now_unix)
    if pod.ready:
        return ""
    if not pod.node:
        return _pending(pod, events, now_unix)
    if node is not None and not node.ready:
        return f"pod {pod.name}: {node_problem(node, now_unix=now_unix)}; it cannot be told whether it runs"
    return _trouble(pod, now_unix, last_line) or _not_yet(pod, events, now_unix, last_line)


def why_ended(pod: PodView, *, last_line: str = "") -> str:
    """Of a pod that Succeeded or Failed."""
    if pod.phase == "Succeeded":
        return f"pod {pod.name} has ended by itself"
    on = f" on node {pod.node}" if pod.node else ""
    said = _text(pod.message)
    if pod.reason == "UnexpectedAdmissionError" or pod.reason.startswith("OutOf"):
        return f"pod {pod.name} was rejected by the kubelet of node {pod.node}: {said or pod.reason}; if it repeats, cordon it"
    if pod.reason == "Evicted":
        return f"pod {pod.name} was evicted by node {pod.node}: {said or 'it ran short of something'}{_evicted_step(pod)}"
    if pod.reason == "DeadlineExceeded":
        return f"pod {pod.name} was ended at its deadline (DeadlineExceeded){': ' + said if said else ''}"
    if pod.reason == "Preempting" or _disrupted(pod) == "PreemptionByScheduler":
        return f"pod {pod.name}{on} was preempted by a pod of higher priority{': ' + said if said else ''}"
    if pod.reason in ("NodeShutdown", "Terminated", "NodeLost", "NodeAffinity"):
        return f"pod {pod.name} ended with its node {pod.node} ({pod.reason}){': ' + said if said else ''}"
    asked = _DISRUPTIONS.get(_disrupted(pod), "")
    ended = next((c for c in pod.containers if c.state == "terminated" and c.exit_code != 0), None)
    if ended is not None and ended.reason == "OOMKilled":
        return f"pod {pod.name}{on} was killed for memory (OOMKilled); {_memory_step(pod)}"
    how = f" with {exit_words(ended.exit_code)}" if ended is not None else f": {pod.reason or 'no reason given'}"
    told = said or (_text(ended.message) if ended is not None else "")
    because = f" ({asked})" if asked else ""
    return f"pod {pod.name}{on} failed{how}{because}{': ' + told if told else ''}{_last(last_line)}"


def stuck_terminating(pod: PodView, node: NodeView | None, now_unix: float) -> str:
    """A pod that should be gone since a minute or more: its kubelet does not answer, and its index waits for it for ever."""
    overdue_s = now_unix - pod.deletion_unix
    if not pod.deletion_unix or pod.ended or overdue_s < _OVERDUE_S:
        return ""
    if node is not None and not node.ready:
        where = f"node {node.name} {_not_ready(node, now_unix)} and will not confirm that it has ended"
    else:
        where = f"the kubelet of node {pod.node or 'unknown'} does not confirm that it has ended"
    command = f"kubectl -n {pod.namespace or 'NAMESPACE'} delete pod {pod.name} --grace-period=0 --force"
    return (
        f"pod {pod.name} has been Terminating for {span(overdue_s)} longer than its grace: {where}; no successor is made before; "
        f"once the node is surely off, an admin can run: {command}"
    )


def rejected(pod: PodView) -> bool:
    """By the kubelet, before anything ran; a node that does this to one pod does it to the next."""
    return pod.phase == "Failed" and (pod.reason == "UnexpectedAdmissionError" or pod.reason.startswith("OutOf"))


def rejecting_nodes(pods: Iterable[PodView], *, at_least: int = 2) -> list[str]:
    """`node a12 rejected 2 pods: cordon it?`, the worst first."""
    counts: dict[str, int] = {}
    for pod in pods:
        if rejected(pod):
            counts[pod.node] = counts.get(pod.node, 0) + 1
    worst = sorted((item for item in counts.items() if item[1] >= at_least), key=lambda item: (-item[1], item[0]))
    return [f"node {name} rejected {count} pods: cordon it?" for name, count in worst]


def _leaving(pod: PodView, now_unix: float) -> str:
    left_s = pod.deletion_unix - now_unix
    why = _DISRUPTIONS.get(_disrupted(pod), "")
    rest = f", {span(left_s)} of its grace left" if left_s > 0 else ", its grace is over"
    return f"pod {pod.name} is Terminating{': ' + why if why else ''}{rest}"


def _pending(pod: PodView, events: Sequence[EventView], now_unix: float) -> str:
    placed = pod.condition("PodScheduled")
    for_ = f" for {span(now_unix - pod.created_unix)}" if pod.created_unix else ""
    if placed is not None and placed.reason == "SchedulingGated":
        return f"pod {pod.name} has been Pending{for_}: it is held back (SchedulingGated) until its queue admits it"
    event = _latest(events, pod, ("FailedScheduling",))
    message = (placed.message if placed is not None else "") or (event.message if event is not None else "")
    if not message:
        return f"pod {pod.name} has been Pending{for_}: the scheduler has not looked at it yet"
    return f"pod {pod.name} has been Pending{for_}: {scheduling.in_words(message)}"


def _trouble(pod: PodView, now_unix: float, last_line: str) -> str:
    """What the kubelet says is wrong with a container of a pod that is bound."""
    for container in pod.containers:
        found = _container_trouble(pod, container, last_line)
        if found:
            return f"pod {pod.name} on node {pod.node}: {found}"
    return ""


def _container_trouble(pod: PodView, container: ContainerView, last_line: str) -> str:
    reason, said = container.reason, _text(container.message)
    if container.state == "waiting":
        if reason in _IMAGE:
            return f"image {container.image} cannot be pulled ({reason}){': ' + said if said else ''}; {_IMAGE_STEP}"
        if reason == "CrashLoopBackOff":
            return f"{_crashed(pod, container)}, and waits before the next try (CrashLoopBackOff){_last(last_line)}"
        if reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PostStartHookError"):
            return f"container {container.name} cannot be started ({reason}): {said or 'the kubelet gives no cause'}"
    if container.state == "terminated" and container.exit_code != 0:
        if reason == "OOMKilled":
            return f"container {container.name} was killed for memory (OOMKilled); {_memory_step(pod)}"
        return f"container {container.name} ended with {exit_words(container.exit_code)}{_last(last_line)}"
    if container.state == "running" and container.restarts and not container.ready and not container.is_init:
        return f"{_crashed(pod, container)}, and is starting again{_last(last_line)}"
    return ""


def _crashed(pod: PodView, container: ContainerView) -> str:
    times = "once" if container.restarts == 1 else f"{container.restarts} times"
    if container.last_reason == "OOMKilled":
        return f"container {container.name} was killed for memory (OOMKilled) and restarted {times}: {_memory_step(pod)}"
    ended = exit_words(container.last_exit_code) if container.last_exit_code is not None else "an unknown exit code"
    said = _text(container.last_message)
    return f"container {container.name} ended with {ended}{': ' + said if said else ''}, was restarted {times}"


def _not_yet(pod: PodView, events: Sequence[EventView], now_unix: float, last_line: str) -> str:
    """Bound, and nothing is wrong so far, or not yet known to be."""
    running = [c for c in pod.containers if c.state == "running" and not c.is_init]
    if running:
        for_ = f" for {span(now_unix - running[0].started_unix)}" if running[0].started_unix else ""
        waits = "is not ready" if pod.component == "head" else "has not registered with the head"
        return f"pod {pod.name} has been running on node {pod.node}{for_} and {waits}{_last(last_line)}"
    began = pod.started_unix or pod.created_unix
    for_ = f" for {span(now_unix - began)}" if began else ""
    opening = f"pod {pod.name} has been starting on node {pod.node}{for_}"
    trouble = _latest(events, pod, _START_TROUBLE)
    if trouble is not None:
        return f"{opening}: {trouble.reason}: {_text(trouble.message)}"
    pulling, pulled = _latest(events, pod, ("Pulling",)), _latest(events, pod, ("Pulled",))
    if pulling is not None and (pulled is None or pulled.last_unix < pulling.last_unix):
        return f"{opening}: {_text(pulling.message)}"
    if began and now_unix - began > _LONG_S:
        return f"{opening} and no container has been made; look at `kubectl describe pod {pod.name}`: volumes, network, image"
    return opening


# --- what is around a pod ----------------------------------------------------------------------------------------------


def why_no_pod(index: int, job: JobView | None, events: Sequence[EventView] = (), *, queue: str = "") -> str:
    """Why an index of the worker Job has no pod at all."""
    if job is None:
        return "the Job of the workers is not there: it has been removed, or was never made"
    if index in job.failed_indexes:
        return f"index {index} of job {job.name} has failed for good: no more tries are left to it"
    ended = next((c for c in job.conditions if c.type in ("Failed", "FailureTarget") and c.status == "True"), None)
    if ended is not None:
        return f"job {job.name} has failed ({ended.reason}): {_text(ended.message)}"
    if index in job.completed_indexes:
        return f"index {index} of job {job.name} has ended by itself and is not started again"
    if job.suspended:
        by = f": queue {queue} of Kueue has not admitted it" if queue else "; resume it, or see who suspended it"
        return f"job {job.name} is suspended{by}"
    if index >= min(job.completions, job.parallelism):
        return f"job {job.name} is scaled to {min(job.completions, job.parallelism)} pods; `paceline scale` changes it"
    refused = [e for e in events if e.kind == "Job" and e.subject == job.name and e.reason == "FailedCreate"]
    if refused:
        return refused_words(job.name, max(refused, key=lambda e: e.last_unix).message)
    return f"job {job.name} has not made its pod yet"


def refused_words(job: str, message: str) -> str:
    """Of a Job's FailedCreate event: quota, pod security, a webhook, a service account that is not there."""
    said = _text(message.removeprefix("Error creating: "))
    if "exceeded quota" in said:
        return f"job {job} may not make more pods: {said}; ask for a larger quota, or start with fewer nodes (fleet.nodes)"
    if "violates PodSecurity" in said:
        return f"job {job} may not make its pods: {said}; the namespace's pod security level must allow them"
    return f"job {job} cannot make its pods: {said}"


def node_problem(node: NodeView, resource: str = "", *, now_unix: float = 0.0) -> str:
    """What is wrong with a node, cordons aside: they are somebody's wish. `resource`: the accelerator asked for."""
    if not node.ready:
        why = f": {_text(node.ready_message) or node.ready_reason}" if node.ready_message or node.ready_reason else ""
        return f"node {node.name} {_not_ready(node, now_unix)}{why}"
    found = [f"node {node.name} has {pressure}" for pressure in node.pressures]
    free, there = node.gpus(resource)
    if resource and free < there:
        found.append(f"node {node.name} offers {free} of its {there} {resource}: {there - free} are out of order")
    return "; ".join(found)


def budget_problem(budget: BudgetView) -> str:
    """Why a budget can never allow an eviction; "" when it can, or has not been counted yet."""
    cond = budget.condition
    if cond is not None and cond.reason == "SyncFailed":
        return (
            f"disruption budget {budget.name} can never allow an eviction: {_text(cond.message) or 'SyncFailed'}; "
            "pods of a Job need an integer minAvailable"
        )
    if budget.max_unavailable or budget.min_available.endswith("%"):
        wrong = f"maxUnavailable {budget.max_unavailable}" if budget.max_unavailable else f"minAvailable {budget.min_available}"
        return (
            f"disruption budget {budget.name} can never allow an eviction: {wrong} does not work with pods of a Job; "
            "use an integer minAvailable"
        )
    counted = budget.observed_generation >= budget.generation
    if counted and 0 < budget.expected == budget.healthy <= budget.desired:
        return (
            f"disruption budget {budget.name} wants {budget.desired} healthy pods of {budget.expected}: all are healthy and none "
            "may go; lower its minAvailable (cluster.kubernetes.max_evictions)"
        )
    return ""


def event_words(event: EventView) -> str:
    """One line for a list of events."""
    times = f" ({event.count} times)" if event.count > 1 else ""
    about = f"{event.kind.lower()} {event.subject}" if event.subject else event.kind.lower()
    return f"{about}: {event.reason}{times}: {_text(event.message)}".strip(": ")


# --- details -----------------------------------------------------------------------------------------------------------

_IMAGE_STEP = "check the name, the tag and cluster.kubernetes.pull_secret"
_DISRUPTIONS = {
    "EvictionByEvictionAPI": "evicted through the API",
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "DeletionByTaintManager": "its node got a taint that it does not tolerate",
    "TerminationByKubelet": "ended by its node: shutdown or pressure",
    "DeletionByPodGC": "its node is gone",
}


def exit_words(code: int | None) -> str:
    """`exit code 137 (SIGKILL)`."""
    if code is None:
        return "no exit code"
    if code in _EXITS:
        return f"exit code {code} ({_EXITS[code]})"
    try:
        return f"exit code {code} ({signal.Signals(code - 128).name})" if code > 128 else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"


def span(duration_s: float) -> str:
    """`41 s`, `3 min`, `2 h 5 min`."""
    whole = max(0, round(duration_s))
    if whole < 120:
        return f"{whole} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _disrupted(pod: PodView) -> str:
    found = pod.condition("DisruptionTarget")
    return found.reason if found is not None and found.status == "True" else ""


def _latest(events: Sequence[EventView], pod: PodView, reasons: Sequence[str]) -> EventView | None:
    about = [
        e
        for e in events
        if e.reason in reasons and e.subject == pod.name and (not e.subject_uid or not pod.uid or e.subject_uid == pod.uid)
    ]
    return max(about, key=lambda e: e.last_unix, default=None)


def _memory_step(pod: PodView) -> str:
    return f"raise cluster.kubernetes.{'head' if pod.component == 'head' else 'worker'}_memory"


def _evicted_step(pod: PodView) -> str:
    if "EmptyDir" in pod.message and "exceeds the limit" in pod.message:
        return "; raise cluster.kubernetes.shm"
    return f"; {_memory_step(pod)}" if "memory" in pod.message else ""


def _not_ready(node: NodeView, now_unix: float) -> str:
    since_unix = node.ready_since_unix
    return f"has been NotReady for {span(now_unix - since_unix)}" if since_unix and now_unix else "is NotReady"


def _last(line: str) -> str:
    return f"; its last line: {_text(line)}" if line.strip() else ""


def _text(text: str, most: int = 400) -> str:
    flat = " ".join(text.split()).rstrip(".")
    return flat if len(flat) <= most else flat[: most - 1] + "…"
