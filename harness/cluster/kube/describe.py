"""All that is known of a node's worker, as lines for a person: what `kubectl describe pod` and `node` say, of what matters."""

from __future__ import annotations

from harness.cluster.kube import words
from harness.cluster.kube.scene import Scene
from harness.cluster.kube.viewing import Rows
from harness.cluster.kube.views import Condition, ContainerView, EventView, NodeView, PodView
from harness.spec import node_name

_MOST_EVENTS = 12
_GOOD_WHEN_FALSE = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "DisruptionTarget")


def lines_of(scene: Scene, rows: Rows, node: int, *, now_unix: float, last_words: list[str], problem: str) -> list[str]:
    """`last_words`: of its pod's log; `problem`: what the watches cannot see just now."""
    pod = scene.newest(node)
    found = [problem] if problem else []
    if pod is None:
        found += [f"{node_name(node)}: there is no pod: {rows.why_no_pod(node)}", *_history(scene, node, now_unix)]
        job = scene.worker_job()
        return found + (_events(scene.events_about(job.uid), now_unix) if job is not None else [])
    found += _pod(pod, now_unix)
    why = rows.why_not_ready(pod, now_unix)
    if why:
        found.append(f"Why          {why}")
    found += _history(scene, node, now_unix)
    for container in pod.containers:
        found += _container(container, now_unix)
    found += _conditions(pod.conditions, now_unix)
    host = scene.host(pod.node)
    if host is not None:
        found += _host(host, now_unix)
    others = [other for other in scene.pods.values() if other.index == node and other.component == "worker" and other is not pod]
    for other in others:
        found.append(f"Also         pod {other.name}: {other.shown_phase}")
    found += _events(scene.events_about(pod.uid), now_unix)
    if last_words:
        found += ["Last lines", *(f"  {line}" for line in last_words)]
    return found


def _pod(pod: PodView, now_unix: float) -> list[str]:
    ready = "ready" if pod.ready else "not ready"
    where = ", ".join(filter(None, (pod.node or "none yet", pod.zone and f"rack {pod.zone}", pod.pod_ip)))
    found = [
        f"Pod          {pod.name}",
        f"Phase        {pod.shown_phase}, {ready}{f', {pod.reason}' if pod.reason else ''}",
        f"Node         {where}",
        f"Age          {_age(pod.created_unix, now_unix)}",
        f"UID          {pod.uid}",
    ]
    if pod.deletion_unix:
        found.append(f"Terminating  grace {pod.grace_s:g} s, {_left(pod.deletion_unix, now_unix)}")
    return found


def _history(scene: Scene, node: int, now_unix: float) -> list[str]:
    evictions, ends = scene.evictions(node), scene.ends(node)
    found = []
    if ends:
        delay = scene.next_delay_s(node)
        found.append(
            f"Index        {evictions} evictions, {max(0, ends - evictions)} failures; a successor would start {delay:g} s later"
        )
    due_unix = scene.replacement_unix(node)
    if due_unix:
        found.append(f"Successor    expected {_left(due_unix, now_unix)}")
    return found


def _container(container: ContainerView, now_unix: float) -> list[str]:
    kind = "Init" if container.is_init else "Container"
    state = container.state or "not looked at by the kubelet yet"
    reason = f" ({container.reason})" if container.reason else ""
    code = f", {words.exit_words(container.exit_code)}" if container.exit_code is not None else ""
    ended = container.state == "terminated"
    at_unix = container.finished_unix if ended else container.started_unix
    at = (f" {_age(at_unix, now_unix)} ago" if ended else f" for {_age(at_unix, now_unix)}") if at_unix else ""
    found = [f"{kind:<12} {container.name}: {state}{reason}{code}{at}, {container.restarts} restarts"]
    if container.message:
        found.append(f"  {_flat(container.message)}")
    if container.image:
        found.append(f"  image {container.image}")
    if container.last_exit_code is not None:
        why = f" ({container.last_reason})" if container.last_reason else ""
        ago = f" {_age(container.last_finished_unix, now_unix)} ago" if container.last_finished_unix else ""
        said = f": {_flat(container.last_message)}" if container.last_message else ""
        found.append(f"  before that: {words.exit_words(container.last_exit_code)}{why}{ago}{said}")
    return found


def _conditions(conditions: tuple[Condition, ...], now_unix: float) -> list[str]:
    found = []
    for one in conditions:
        is_well = one.status == ("False" if one.type in _GOOD_WHEN_FALSE else "True")
        why = f" {one.reason}" if one.reason else ""
        said = f": {_flat(one.message)}" if one.message and not is_well else ""
        found.append(f"  {one.type}={one.status} for {_age(one.since_unix, now_unix)}{why}{said}")
    return ["Conditions", *found] if found else []


def _host(node: NodeView, now_unix: float) -> list[str]:
    state = "Ready" if node.ready else "NotReady"
    cordoned = ", cordoned" if node.cordoned else ""
    found = [f"Node         {node.name}: {state}{cordoned}"]
    for resource, there in sorted(node.capacity.items()):
        found.append(f"  {resource}: {node.allocatable.get(resource, 0)} allocatable of {there}")
    if node.taints:
        found.append(f"  taints {', '.join(map(str, node.taints))}")
    why = words.node_problem(node, now_unix=now_unix)
    return [*found, f"  {why}"] if why else found


def _events(events: list[EventView], now_unix: float) -> list[str]:
    found = []
    for event in events[-_MOST_EVENTS:]:
        times = f" x{event.count}" if event.count > 1 else ""
        found.append(f"  {_age(event.last_unix, now_unix)} ago {event.type} {event.reason}{times}: {_flat(event.message)}")
    left_out = len(events) - len(found)
    head = "Events" if not left_out else f"Events (the newest {len(found)} of {len(events)})"
    return [head, *found] if found else ["Events       none are kept: the API server drops them after an hour"]


def _age(unix: float, now_unix: float) -> str:
    return words.span(now_unix - unix) if unix else "unknown"


def _left(unix: float, now_unix: float) -> str:
    return f"in {words.span(unix - now_unix)}" if unix > now_unix else f"{words.span(now_unix - unix)} ago"


def _flat(text: str) -> str:
    return " ".join(text.split())[:400]
