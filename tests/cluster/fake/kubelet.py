"""Kubelets of the fake cluster, all nodes in one: what they share, and the stub whose pods exist only as status.

A kubelet reaches the API through `Objects`, so that the stub also serves simulated Nodes of a real API server
(over_http.py). ProcessKubelet (processes.py) runs the containers' commands.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from .errors import ApiError, Json
from .loops import Cache, Events, ended, going, key_of, phase_of, set_condition, uid_of
from .podstatus import Box, boxes_of, restart_delay_s, write_pod, write_rejected
from .store import Store

_BY = "kubelet"


def long_name(pod: Json) -> str:
    """As the kubelet writes it: NAME_NAMESPACE(UID)."""
    return f"{pod['metadata']['name']}_{pod['metadata']['namespace']}({uid_of(pod)})"


class Objects(Protocol):
    """What a kubelet needs of an API server."""

    def now_s(self) -> float: ...

    def stamp(self) -> str: ...

    def refresh(self) -> bool:
        """Look again; whether anything may have changed."""

    def pods(self) -> list[Json]: ...

    def write_status(self, kind: str, obj: Json, mutate: Callable[[Json], None]) -> None: ...

    def remove(self, pod: Json) -> None:
        """Delete with no grace, if it is still this very pod."""

    def say(self, pod: Json, reason: str, message: str, *, warning: bool = False) -> None: ...

    def node(self, name: str) -> Json | None: ...

    def close(self) -> None: ...


class InStore:
    """Objects of a fake cluster."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pods = Cache(store, "Pod")
        self._events = Events(store)

    def now_s(self) -> float:
        return self._store.clock.now_s()

    def stamp(self) -> str:
        return self._store.stamp()

    def refresh(self) -> bool:
        return self._pods.drain()

    def pods(self) -> list[Json]:
        return list(self._pods.objects.values())

    def write_status(self, kind: str, obj: Json, mutate: Callable[[Json], None]) -> None:
        found = self._store.get(kind, *key_of(obj))
        if found is not None and uid_of(found) == uid_of(obj):
            self._store.update(kind, *key_of(obj), mutate, status=True)

    def remove(self, pod: Json) -> None:
        try:
            self._store.delete("Pod", *key_of(pod), grace_s=0, uid=uid_of(pod))
        except ApiError as problem:
            if problem.code not in (404, 409):
                raise

    def say(self, pod: Json, reason: str, message: str, *, warning: bool = False) -> None:
        self._events.say(pod, reason, message, by=_BY, warning=warning)

    def node(self, name: str) -> Json | None:
        return self._store.get("Node", "", name)

    def close(self) -> None:
        self._pods.close()


class Kubelet:
    """What every kubelet does: looks at the pods bound to its live nodes. A dead node's pods are looked at by nobody."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self._down: set[str] = set()
        self._due_s = 0.0

    def step(self) -> bool:
        changed = self.objects.refresh()
        if not changed and not self._woken() and self.now_s < self._due_s:
            return False
        self._due_s = float("inf")
        pods = {uid_of(pod): pod for pod in self.objects.pods() if pod["spec"].get("nodeName")}
        for pod in pods.values():
            if pod["spec"]["nodeName"] not in self._down:
                self._look_at(pod)
        self._forget_all_but(pods.keys())
        return True

    def close(self) -> None:
        self.objects.close()

    def node_down(self, name: str) -> None:
        """Its kubelet falls silent; the node controller's view of it follows at once, not after 40 s."""
        self._down.add(name)
        self._node_ready(name, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")

    def node_up(self, name: str) -> None:
        self._down.discard(name)
        self._due_s = 0.0
        self._node_ready(name, "True", "KubeletReady", "kubelet is posting ready status")

    @property
    def now_s(self) -> float:
        return self.objects.now_s()

    def again_at(self, when_s: float) -> None:
        self._due_s = min(self._due_s, when_s)

    def _node_ready(self, name: str, value: str, reason: str, message: str) -> None:
        node = self.objects.node(name)
        assert node is not None, f"there is no node {name}"
        now = self.objects.stamp()

        def write(target: Json) -> None:
            set_condition(target.setdefault("status", {}), now, "Ready", value, reason, message)

        self.objects.write_status("Node", node, write)

    def _woken(self) -> bool:
        """By something else than the API."""
        return False

    def _look_at(self, pod: Json) -> None:
        raise NotImplementedError

    def _forget_all_but(self, uids: object) -> None:
        raise NotImplementedError


FateKind = Literal["run", "unready", "pull", "exit", "crash_loop", "reject", "evict"]


@dataclass(frozen=True)
class Fate:
    """What becomes of a pod of the stub."""

    kind: FateKind = "run"
    code: int = 0
    reason: str = ""
    message: str = ""
    after_s: float = 0.0  # from Running, for "exit" and "evict"; from the binding, for "run" and "unready"


RUNS = Fate()
IMAGE_PULL_BACKOFF = Fate("pull")
OOM_KILLED = Fate("exit", 137, "OOMKilled")
REJECTED = Fate(
    "reject",
    reason="UnexpectedAdmissionError",
    message="Allocate failed due to requested number of devices unavailable for amd.com/gpu. "
    "Requested: 8, Available: 7, which is unexpected",
)
KUBELET_EVICTS = Fate("evict", reason="Evicted", message="The node was low on resource: memory.")


def exits(code: int, *, after_s: float = 0.0) -> Fate:
    return Fate("exit", code, after_s=after_s)


def crash_loop(code: int = 1) -> Fate:
    return Fate("crash_loop", code)


@dataclass
class _Rule:
    fate: Fate
    fits: Callable[[Json], bool]
    left: int | None


@dataclass
class _Life:
    """A pod as the stub knows it."""

    boxes: list[Box]
    address: str
    bound_s: float
    fate: Fate | None = None
    running_s: float | None = None
    stopping_s: float | None = None
    again_s: float | None = None  # of a crash loop
    told: bool = False


class StubKubelet(Kubelet):
    """Pods step to Running and Ready at once, and end with 143 when they are deleted, unless their fate is another.

    `stop_after_s`: how long a container takes to end after SIGTERM; more than its grace means SIGKILL (137) at the end of that.
    `stop_code`: what it ends with otherwise.
    """

    def __init__(self, objects: Objects, *, stop_after_s: float = 0.0) -> None:
        super().__init__(objects)
        self.stop_after_s = stop_after_s
        self.stop_code = 143
        self._rules: list[_Rule] = []
        self._lives: dict[str, _Life] = {}
        self._addresses = itertools.count(10)

    def befalls(self, fate: Fate, pod: str = "", *, node: str = "", times: int | None = None) -> None:
        """To pods whose name begins with `pod` (all where empty), on `node` if given, now and later, at most so often.
        The newest rule that fits a pod decides; a running pod takes part too."""

        def fits(candidate: Json) -> bool:
            return candidate["metadata"]["name"].startswith(pod) and node in ("", candidate["spec"]["nodeName"])

        self._rules.insert(0, _Rule(fate, fits, times))
        self._due_s = 0.0

    def forget_fates(self) -> None:
        """Pods that wait for an image or to get ready go on; what has ended has ended."""
        self._rules.clear()
        for life in self._lives.values():
            life.fate, life.told = None, False
        self._due_s = 0.0

    def _look_at(self, pod: Json) -> None:
        uid = uid_of(pod)
        life = self._lives.get(uid)
        if life is None:
            number = next(self._addresses)
            life = self._lives[uid] = _Life(boxes_of(pod), f"10.244.{number // 256}.{number % 256}", self.now_s)
        if ended(pod):
            if going(pod):
                self.objects.remove(pod)
        elif going(pod):
            self._stop(pod, life)
        else:
            self._live(pod, life)

    def _forget_all_but(self, uids: object) -> None:
        self._lives = {uid: life for uid, life in self._lives.items() if uid in uids}  # type: ignore[operator]

    def _stop(self, pod: Json, life: _Life) -> None:
        if life.stopping_s is None:
            life.stopping_s = self.now_s
            self.objects.say(pod, "Killing", f"Stopping container {life.boxes[0].name}")
        grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        due_s = life.stopping_s + min(self.stop_after_s, grace_s)
        if self.now_s < due_s:
            self.again_at(due_s)
            return
        self._end(pod, life, self.stop_code if self.stop_after_s <= grace_s else 137)
        self.objects.remove(pod)

    def _live(self, pod: Json, life: _Life) -> None:
        fate = self._fate_of(pod, life)
        match fate.kind:
            case "pull":
                self._pull_in_vain(pod, life)
            case "reject":
                now = self.objects.stamp()
                self._write(pod, lambda status: write_rejected(status, now, fate.reason, fate.message))
                self.objects.say(pod, fate.reason, fate.message, warning=True)
            case "crash_loop":
                self._crash(pod, life, fate.code)
            case _:
                self._run(pod, life, fate)

    def _run(self, pod: Json, life: _Life, fate: Fate) -> None:
        starts_late = fate.kind in ("run", "unready") and self.now_s < life.bound_s + fate.after_s
        if starts_late and life.running_s is None:
            self.again_at(life.bound_s + fate.after_s)
            return
        ready = fate.kind != "unready"
        if (
            life.running_s is None
            or any(not box.running or box.ready != ready for box in life.boxes)
            or phase_of(pod) != "Running"
        ):
            self._start(pod, life, ready)
        if fate.kind not in ("exit", "evict"):
            return
        assert life.running_s is not None
        if self.now_s < life.running_s + fate.after_s:
            self.again_at(life.running_s + fate.after_s)
        elif fate.kind == "exit":
            self._end(pod, life, fate.code, fate.reason)
        else:
            self.objects.say(pod, "Evicted", fate.message, warning=True)
            self._end(pod, life, 137, "Error", why=fate)

    def _start(self, pod: Json, life: _Life, ready: bool) -> None:
        now = self.objects.stamp()
        if life.running_s is None:
            life.running_s = self.now_s
            for box in life.boxes:
                self.objects.say(pod, "Started", f"Container started: {box.name}")
        for box in life.boxes:
            box.run(now, ready=ready)
        if not ready:
            self.objects.say(pod, "Unhealthy", "Readiness probe failed: ", warning=True)
        self._write(pod, lambda status: write_pod(status, now, life.boxes, address=life.address, host="10.0.0.1"))

    def _end(self, pod: Json, life: _Life, code: int, reason: str = "", why: Fate | None = None) -> None:
        now = self.objects.stamp()
        for box in life.boxes:
            box.end(now, code, reason)

        def write(status: Json) -> None:
            write_pod(
                status,
                now,
                life.boxes,
                address=life.address,
                reason=why.reason if why else "",
                message=why.message if why else "",
            )
            if why is not None:
                set_condition(status, now, "DisruptionTarget", True, "TerminationByKubelet", why.message)

        self._write(pod, write)

    def _pull_in_vain(self, pod: Json, life: _Life) -> None:
        if life.told:
            return
        life.told = True
        now = self.objects.stamp()
        for box in life.boxes:
            unpulled = f'failed to pull and unpack image "{box.image}": not found'
            self.objects.say(pod, "Failed", f'Failed to pull image "{box.image}": {unpulled}', warning=True)
            self.objects.say(pod, "BackOff", f'Back-off pulling image "{box.image}"')
            box.wait("ImagePullBackOff", f'Back-off pulling image "{box.image}": ErrImagePull: {unpulled}')
        self._write(pod, lambda status: write_pod(status, now, life.boxes, phase="Pending", host="10.0.0.1"))

    def _crash(self, pod: Json, life: _Life, code: int) -> None:
        """The container ends as soon as it has started; each time it waits longer."""
        if life.again_s is not None and self.now_s < life.again_s:
            self.again_at(life.again_s)
            return
        now = self.objects.stamp()
        delay_s = restart_delay_s(life.boxes[0].restarts)
        for box in life.boxes:
            if life.again_s is not None:
                box.restarts += 1
                delay_s = restart_delay_s(box.restarts)
            box.run(now, ready=False)
            box.end(now, code)
            box.rest(delay_s, long_name(pod))
            self.objects.say(
                pod, "BackOff", f"Back-off restarting failed container {box.name} in pod {long_name(pod)}", warning=True
            )
        life.running_s = life.running_s or self.now_s
        life.again_s = self.now_s + delay_s
        self.again_at(life.again_s)
        self._write(pod, lambda status: write_pod(status, now, life.boxes, phase="Running", address=life.address))

    def _fate_of(self, pod: Json, life: _Life) -> Fate:
        if life.fate is None:
            for rule in self._rules:
                if rule.left != 0 and rule.fits(pod):
                    rule.left = None if rule.left is None else rule.left - 1
                    life.fate = rule.fate
                    break
        return life.fate or RUNS

    def _write(self, pod: Json, mutate: Callable[[Json], None]) -> None:
        self.objects.write_status("Pod", pod, lambda target: mutate(target.setdefault("status", {})))
