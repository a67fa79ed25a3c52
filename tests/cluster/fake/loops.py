"""What the controllers of the fake cluster share: caches fed by the store, loops that act on what changed, Events.

Every loop is a plain function of what its caches hold (`sync`), run when one of them changed or a time it asked for has come.
So a test with a ManualClock pushes the clock and calls `settle()`: no sleeping, no order of tasks to get wrong. With a real
clock `ControlPlane.run()` does the same many times a second in the event loop of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from .clock import micro_stamp, stamp
from .errors import ApiError, Json
from .store import Change, Store

_TURN_S = 0.02
_MOST_ROUNDS = 2_000


def key_of(obj: Json) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def uid_of(obj: Json) -> str:
    return str(obj["metadata"]["uid"])


def going(obj: Json) -> bool:
    """Its deletion has been asked for."""
    return "deletionTimestamp" in obj["metadata"]


def phase_of(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def ended(pod: Json) -> bool:
    return phase_of(pod) in ("Succeeded", "Failed")


def condition_of(obj: Json, kind: str) -> Json | None:
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if condition["type"] == kind:
            found: Json = condition
            return found
    return None


def is_true(obj: Json, kind: str) -> bool:
    found = condition_of(obj, kind)
    return found is not None and found["status"] == "True"


def set_condition(status: Json, now: str, kind: str, value: bool | str, reason: str = "", message: str = "", **more: Any) -> None:
    """In place; the time of the last transition stays while the status does."""
    conditions = status.setdefault("conditions", [])
    found = next((condition for condition in conditions if condition["type"] == kind), None)
    said = value if isinstance(value, str) else str(value)
    if found is None:
        found = {"type": kind, "status": ""}
        conditions.append(found)
    if found["status"] != said:
        found["lastTransitionTime"] = now
    found["status"] = said
    for name, text in {"reason": reason, "message": message, **more}.items():
        if text != "":
            found[name] = text
        else:
            found.pop(name, None)


def meets(labels: Mapping[str, str], expression: Json) -> bool:
    """One {key, operator, values}, of a label selector or of a node's affinity."""
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    match operator:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt":
            try:
                mine, other = int(labels[key]), int(values[0])
            except (KeyError, ValueError, IndexError):
                return False
            return mine > other if operator == "Gt" else mine < other
    raise AssertionError(f"unknown operator {operator!r} in {expression}")


class Cache:
    """All objects of a kind, as of the last `drain`."""

    def __init__(self, store: Store, kind: str) -> None:
        self._store = store
        self._kind = kind
        self._queue: asyncio.Queue[tuple[Change, Json]] = store.subscribe(kind)
        self.objects: dict[tuple[str, str], Json] = {key_of(obj): obj for obj in store.list(kind)}
        self._fresh = True

    def drain(self) -> bool:
        changed, self._fresh = self._fresh, False
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                change, obj = self._queue.get_nowait()
                changed = True
                if change == "DELETED":
                    self.objects.pop(key_of(obj), None)
                else:
                    self.objects[key_of(obj)] = obj
        return changed

    def close(self) -> None:
        self._store.unsubscribe(self._kind, self._queue)


class Runs(Protocol):
    def step(self) -> bool: ...

    def close(self) -> None: ...


class Loop:
    """`kinds`: what wakes it. A subclass has `sync`, which may be called at any time and changes nothing that is right."""

    kinds: tuple[str, ...] = ()

    def __init__(self, store: Store) -> None:
        self.store = store
        self.events = Events(store)
        self._caches = {kind: Cache(store, kind) for kind in self.kinds}
        self._due_s = float("inf")

    def step(self) -> bool:
        """Whether there was anything to do."""
        changed = [cache.drain() for cache in self._caches.values()]
        if not any(changed) and self.now_s < self._due_s:
            return False
        self._due_s = float("inf")
        self.sync()
        return True

    def sync(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        for cache in self._caches.values():
            cache.close()

    @property
    def now_s(self) -> float:
        return self.store.clock.now_s()

    def all(self, kind: str) -> list[Json]:
        """As of this step, in order of creation."""
        return list(self._caches[kind].objects.values())

    def again_at(self, when_s: float) -> None:
        self._due_s = min(self._due_s, when_s)


class Events:
    """Says things about objects, as `kubectl describe` shows them. The same words again only count up."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, str, str, str], str] = {}

    def say(self, about: Json, reason: str, message: str, *, by: str, warning: bool = False, new_style: bool = False) -> None:
        """`new_style`: as the scheduler writes them, through events.k8s.io: an eventTime, no count and no first or last time."""
        namespace = about["metadata"].get("namespace", "default")
        known = (uid_of(about), reason, message, by)
        unix_s = self._store.clock.unix_s()
        with contextlib.suppress(ApiError):  # a namespace that is going takes no Events
            if known in self._known and self._store.get("Event", namespace, self._known[known]) is not None:
                self._again(namespace, self._known[known], unix_s, new_style)
                return
            made = self._store.create("Event", namespace, _event(about, reason, message, by, warning, new_style, unix_s))
            self._known[known] = made["metadata"]["name"]

    def _again(self, namespace: str, name: str, unix_s: float, new_style: bool) -> None:
        def count(event: Json) -> None:
            if new_style:
                series = event.get("series") or {"count": 1}
                event["series"] = {"count": series["count"] + 1, "lastObservedTime": micro_stamp(unix_s)}
            else:
                event["count"] += 1
                event["lastTimestamp"] = stamp(unix_s)

        self._store.update("Event", namespace, name, count)


def _event(about: Json, reason: str, message: str, by: str, warning: bool, new_style: bool, unix_s: float) -> Json:
    metadata = about["metadata"]
    event: Json = {
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata.get("namespace", "default")},
        "involvedObject": {
            "apiVersion": about.get("apiVersion", "v1"),
            "kind": about["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "reason": reason,
        "message": message,
        "type": "Warning" if warning else "Normal",
        "reportingComponent": by,
        "reportingInstance": "",
    }
    if "namespace" in metadata:
        event["involvedObject"]["namespace"] = metadata["namespace"]
    if new_style:
        times: Json = {
            "eventTime": micro_stamp(unix_s),
            "action": "Scheduling",
            "firstTimestamp": None,
            "lastTimestamp": None,
            "source": {},
        }
        return event | times
    now = stamp(unix_s)
    return event | {"firstTimestamp": now, "lastTimestamp": now, "count": 1, "eventTime": None, "source": {"component": by}}


class ControlPlane:
    """All loops together."""

    def __init__(self, store: Store, loops: Iterable[Runs]) -> None:
        self.store = store
        self.loops = list(loops)

    def settle(self) -> None:
        """Until none of them has anything to do at this time."""
        for _ in range(_MOST_ROUNDS):
            worked = [loop.step() for loop in self.loops]
            if not any(worked):
                return
        raise AssertionError(f"the controllers still find work after {_MOST_ROUNDS} rounds")

    async def run(self) -> None:
        """By the real clock, until cancelled."""
        while True:
            for loop in self.loops:
                loop.step()
            await asyncio.sleep(_TURN_S)

    def close(self) -> None:
        for loop in self.loops:
            loop.close()
