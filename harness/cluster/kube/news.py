"""What happens to a run's pods and nodes, as lines of its journal.

The watches report every change; a person wants each happening once, with its reason, and 37 equal ones as one line. So
changes are collected, those of one poll that read the same but for names and ages are put together, nothing is said twice
in a row about the same pod, and no poll returns more than a screenful: the rest follows in the next.

`exited` is said only of a pod that has really ended: the head then counts its replicas as lost without waiting for leases.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from harness.cluster.base import NodeEvent
from harness.cluster.kube import words
from harness.cluster.kube.reflector import Change
from harness.cluster.kube.scene import Scene, was_disrupted
from harness.cluster.kube.views import EventView, JobView, NodeView, PodView
from harness.spec import node_name

Kind = Literal["started", "exited", "pending", "gave_up", "event"]

_PENDING_S = 8.0  # before a pod that is not running is worth a line
_SLOW_START_S = 60.0  # ... when nothing is known to be wrong with it
_LOOK_AGAIN_S = 10.0  # at a pod that has not changed
_OLD_NEWS_S = 120.0
_MOST_A_POLL = 12
_MOST_WAITING = 400
_ALONE = 3  # so many equal exits still have a line each
_AGE = re.compile(r"\bfor \d+ (?:s|min|h \d+ min)\b")
_GRACE_LEFT = re.compile(r", (?:\d+ (?:s|min|h \d+ min) of its grace left|its grace is over)")


@dataclass(frozen=True, slots=True)
class Happening:
    kind: Kind
    level: str
    subject: str
    text: str
    shape: str  # what it has in common with others of its like
    node: int | None = None
    retry_in_s: float | None = None


class News:
    """`last_words`: the last lines of a pod's log, by uid."""

    def __init__(self, scene: Scene, last_words: Callable[[str], list[str]], *, gpu_resource: str = "") -> None:
        self._scene, self._last_words, self._gpu_resource = scene, last_words, gpu_resource
        self._waiting: deque[Happening] = deque()
        self._left_out = 0
        self._said: OrderedDict[str, str] = OrderedDict()  # subject → what was said of it last
        self._running: set[str] = set()  # uids
        self._ended: set[str] = set()
        self._asked_by_us: dict[str, str] = {}  # uid → why
        self._rejecting: set[str] = set()
        self._looked: dict[str, tuple[PodView, float]] = {}  # uid → as it was at the last look, and when that was

    # --- told by the watches -------------------------------------------------------------------------------

    def ours(self, uid: str, why: str) -> None:
        """The head itself evicts this pod, and says so itself."""
        self._asked_by_us[uid] = why

    def not_ours(self, uid: str) -> None:
        """It was not evicted after all."""
        self._asked_by_us.pop(uid, None)

    def pod_changed(self, change: Change, old: PodView | None, new: PodView, now_unix: float) -> None:
        """After the scene knows it."""
        if new.component == "head":
            self._head_changed(old, new)
            return
        if new.component != "worker" or new.index < 0:
            return
        if change == "DELETED" or new.ended:
            if new.uid not in self._ended:
                self._ended.add(new.uid)
                self._exited(new, now_unix)
            if change == "DELETED":
                self._running.discard(new.uid)
                self._looked.pop(new.uid, None)
                self._asked_by_us.pop(new.uid, None)
            return
        if new.deletion_unix and (old is None or not old.deletion_unix):
            self._asked_to_end(new)
        if new.uid not in self._running and new.phase == "Running":
            self._running.add(new.uid)
            place = f"pod {new.name} runs on node {new.node}"
            self._add(Happening("started", "info", _worker(new), place, _shape(place, new), new.index))
        if old is not None and new.restarts > old.restarts:
            self._restarted(new)

    def node_changed(self, change: Change, old: NodeView | None, new: NodeView, now_unix: float) -> None:
        """Only of nodes that carry a pod of the run."""
        mine = sorted(p.index for p in self._scene.newest_pods().values() if p.node == new.name and not p.ended)
        if not mine:
            return
        carries = f" (it carries {', '.join(map(node_name, mine[:3]))}{', …' if len(mine) > 3 else ''})"
        if change == "DELETED":
            self._plain("error", new.name, f"node {new.name} has been removed from the cluster{carries}", mine[0])
            return
        if old is None:
            if not new.ready:
                self._plain("error", new.name, words.node_problem(new, self._gpu_resource, now_unix=now_unix) + carries, mine[0])
            return
        if old.ready and not new.ready:
            self._plain("error", new.name, words.node_problem(new, self._gpu_resource) + carries, mine[0])
        elif new.ready and not old.ready:
            self._plain("info", new.name, f"node {new.name} is Ready again{carries}", mine[0])
        elif words.node_problem(new, self._gpu_resource) not in ("", words.node_problem(old, self._gpu_resource)):
            self._plain("warn", new.name, words.node_problem(new, self._gpu_resource) + carries, mine[0])
        if old.cordoned != new.cordoned:
            text = f"node {new.name} is cordoned: no new pod lands on it" if new.cordoned else f"node {new.name} is uncordoned"
            self._plain("warn" if new.cordoned else "info", new.name, text + carries, mine[0])

    def job_changed(self, old: JobView | None, new: JobView) -> None:
        known = set(old.failed_indexes) if old is not None else set()
        for index in sorted(set(new.failed_indexes) - known):
            text = f"index {index} of job {new.name} has failed for good: no more tries are left to it"
            shape = f"indexes of job {new.name} have failed for good: no more tries are left to them"
            self._add(Happening("gave_up", "error", f"worker-{index}", text, shape, index))
        for condition in new.conditions:
            before = old.condition(condition.type) if old is not None else None
            if condition.status != "True" or (before is not None and before.status == "True"):
                continue
            if condition.type in ("Failed", "FailureTarget"):
                self._plain("error", new.name, f"job {new.name} has failed ({condition.reason}): {condition.message}")
            elif condition.type == "Suspended":
                self._plain("warn", new.name, f"job {new.name} is suspended: its pods are removed until it is resumed")
        if old is not None and old.suspended and not new.suspended:
            self._plain("info", new.name, f"job {new.name} is resumed")
        if old is not None and old.completions != new.completions:
            self._plain("info", new.name, f"job {new.name} is scaled from {old.completions} to {new.completions} pods")

    def event_changed(self, change: Change, new: EventView, now_unix: float) -> None:
        """The API keeps events for an hour: a head that starts is not told old ones as news."""
        if change == "DELETED" or new.reason != "FailedCreate" or now_unix - new.last_unix > _OLD_NEWS_S:
            return
        if new.kind == "Job" and any(job.name == new.subject for job in self._scene.jobs.values()):
            self._plain("error", new.subject, words.refused_words(new.subject, new.message))

    def say(self, level: str, subject: str, text: str) -> None:
        """Of the cluster as a whole."""
        self._plain(level, subject, text)

    # --- asked by the head ---------------------------------------------------------------------------------

    def poll(self, now_unix: float) -> list[NodeEvent]:
        self._look_at_waiting(now_unix)
        for line in words.rejecting_nodes(self._scene.pods.values()):
            if line not in self._rejecting:
                self._rejecting.add(line)
                self._plain("warn", "nodes", line)
        found = self._grouped()
        if self._left_out and len(found) < _MOST_A_POLL:
            found.append(NodeEvent("workers", (), "event", f"{self._left_out} more happenings are left out", level="warn"))
            self._left_out = 0
        return found

    def _look_at_waiting(self, now_unix: float) -> None:
        for pod in self._scene.newest_pods().values():
            if pod.ready or pod.ended or now_unix - pod.created_unix < _PENDING_S:
                continue
            seen, looked_unix = self._looked.get(pod.uid, (None, 0.0))
            if seen is pod and now_unix - looked_unix < _LOOK_AGAIN_S:
                continue
            self._looked[pod.uid] = (pod, now_unix)
            if pod.deletion_unix:
                stuck = words.stuck_terminating(pod, self._scene.host(pod.node), now_unix)
                if stuck:
                    self._add(Happening("event", "error", _worker(pod), stuck, _shape(stuck, pod), pod.index))
                continue
            if _is_slow_only(pod) and now_unix - (_running_since(pod) or pod.started_unix or pod.created_unix) < _SLOW_START_S:
                continue
            about = self._scene.events_about(pod.uid) if not _running_since(pod) else []
            host = self._scene.host(pod.node)
            shape = _shape(words.why_not_ready(pod, node=host, events=about, now_unix=now_unix), pod)
            if shape and self._said.get(_worker(pod)) != shape:
                lines = self._last_words(pod.uid)
                text = words.why_not_ready(pod, node=host, events=about, now_unix=now_unix, last_line=lines[-1] if lines else "")
                self._add(Happening("pending", "warn", _worker(pod), text, shape, pod.index))

    # --- pods ----------------------------------------------------------------------------------------------

    def _exited(self, pod: PodView, now_unix: float) -> None:
        newest = self._scene.newest(pod.index)
        is_newest = newest is None or newest.uid == pod.uid
        lines = self._last_words(pod.uid)
        bare = words.why_ended(pod) if pod.ended else f"pod {pod.name} was removed before it had ended"
        text = words.why_ended(pod, last_line=lines[-1] if lines else "") if pod.ended else bare
        if pod.uid in self._asked_by_us:
            text = f"{text}; the head had evicted it: {self._asked_by_us[pod.uid]}"
        expected_unix = self._scene.replacement_unix(pod.index) if is_newest else 0.0
        retry_in_s = round(max(0.0, expected_unix - now_unix)) if expected_unix else None
        planned = pod.phase == "Succeeded" or not self._scene.is_wanted(pod.index)
        level = "info" if planned else "warn" if was_disrupted(pod) else "error"
        kind: Kind = "exited" if is_newest else "event"
        self._add(Happening(kind, level, _worker(pod), text, _shape(bare, pod), pod.index, retry_in_s), again=True)

    def _asked_to_end(self, pod: PodView) -> None:
        if pod.uid in self._asked_by_us:
            return
        if not self._scene.is_wanted(pod.index):
            text, level = f"pod {pod.name} ends: the Job has been scaled down", "info"
        else:
            text, level = words.why_not_ready(pod, now_unix=0.0), "warn"
            if not was_disrupted(pod):
                text += ": it was deleted by somebody, which no budget guards and which counts as a failure"
        text = _GRACE_LEFT.sub("", text)
        self._add(Happening("event", level, _worker(pod), text, _shape(text, pod), pod.index))

    def _restarted(self, pod: PodView) -> None:
        container = max((c for c in pod.containers if not c.is_init), key=lambda c: c.restarts, default=None)
        if container is None:
            return
        lines = self._last_words(pod.uid)
        how = container.last_reason if container.last_reason == "OOMKilled" else words.exit_words(container.last_exit_code)
        bare = f"pod {pod.name} on node {pod.node}: container {container.name} is restarted in place after {how}"
        text = f"{bare}; its last line: {lines[-1]}" if lines else bare
        self._add(Happening("event", "warn", _worker(pod), text, _shape(bare, pod), pod.index), again=True)

    def _head_changed(self, old: PodView | None, new: PodView) -> None:
        if old is not None and new.deletion_unix and not old.deletion_unix:
            text = f"the head's own {_GRACE_LEFT.sub('', words.why_not_ready(new, now_unix=0.0))}"
            self._plain("error", "head", text)

    # --- saying it -----------------------------------------------------------------------------------------

    def _plain(self, level: str, subject: str, text: str, node: int | None = None) -> None:
        self._add(Happening("event", level, subject, text, text, node))

    def _add(self, happening: Happening, *, again: bool = False) -> None:
        if not again and self._said.get(happening.subject) == happening.shape:
            return
        if len(self._waiting) >= _MOST_WAITING and happening.kind not in ("exited", "gave_up"):
            self._left_out += 1
            return
        self._said[happening.subject] = happening.shape
        self._said.move_to_end(happening.subject)
        while len(self._said) > 2000:
            self._said.popitem(last=False)
        self._waiting.append(happening)

    def _grouped(self) -> list[NodeEvent]:
        groups: OrderedDict[tuple[str, str, str], list[Happening]] = OrderedDict()
        for happening in self._waiting:
            groups.setdefault((happening.kind, happening.level, happening.shape), []).append(happening)
        self._waiting.clear()
        found: list[NodeEvent] = []
        for group in groups.values():
            lines = len(group) if group[0].kind == "exited" and len(group) <= _ALONE else 1
            # Exits are never put off: the head waits for them.
            if len(found) + lines > _MOST_A_POLL and group[0].kind not in ("exited", "gave_up"):
                self._waiting.extend(group)
            elif lines == len(group):
                found += map(_event, group)
            else:
                found.append(_together(group))
        return found


def _event(one: Happening) -> NodeEvent:
    nodes = (one.node,) if one.node is not None else ()
    return NodeEvent(one.subject, nodes, one.kind, one.text, retry_in_s=one.retry_in_s, level=one.level)


def _together(group: list[Happening]) -> NodeEvent:
    nodes = sorted({one.node for one in group if one.node is not None})
    first = group[0]
    if len(nodes) < 2:
        return _event(first)
    named = ", ".join(map(node_name, nodes[:3])) + (", …" if len(nodes) > 3 else "")
    text = f"{len(nodes)} pods ({named}){first.shape}" if first.shape[:1] in (":", " ") else f"{len(nodes)} times: {first.shape}"
    delays = [one.retry_in_s for one in group if one.retry_in_s is not None]
    return NodeEvent("workers", tuple(nodes), first.kind, text, retry_in_s=max(delays, default=None), level=first.level)


def _shape(text: str, pod: PodView) -> str:
    """The sentence without the pod's name, its node, and ages, to be read after `37 pods (…)`."""
    if not text:
        return ""
    text = text.replace(f" on node {pod.node}", "") if pod.node else text
    opening = f"pod {pod.name}"
    text = _GRACE_LEFT.sub("", _AGE.sub("", text)).replace("  ", " ").replace(" :", ":")
    if not text.startswith(opening):
        return text.replace(pod.name, "…")
    rest = text[len(opening) :].replace(pod.name, "…")
    for one, many in ((" has ", " have "), (" was ", " were "), (" is ", " are "), (" runs", " run"), (" ends", " end")):
        if rest.startswith(one):
            rest = many + rest[len(one) :]
    return rest.rstrip()


def _worker(pod: PodView) -> str:
    return f"worker-{pod.index}"


def _running_since(pod: PodView) -> float:
    return max((c.started_unix for c in pod.containers if c.state == "running" and not c.is_init), default=0.0)


def _is_slow_only(pod: PodView) -> bool:
    """Bound to a node, and nothing is known to be wrong: images are pulled, it starts, it registers."""
    if not pod.node:
        return False
    return all(
        c.state in ("", "running") or c.reason in ("ContainerCreating", "PodInitializing", "Completed") for c in pod.containers
    ) and not any(c.restarts for c in pod.containers)
