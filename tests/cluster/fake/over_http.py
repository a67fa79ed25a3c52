"""A stub kubelet's way to a real API server: simulated Nodes, whose pods are status and nothing else.

Plain requests, and looking instead of watching: what is tested is the server, not how fast this is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx

from .clock import stamp
from .errors import Json
from .kubelet import StubKubelet
from .loops import set_condition, uid_of

_LOOK_S = 0.2
_HEARTBEAT_S = 8.0  # a Node that says nothing for 40 s is taken for dead
_TRIES = 8


class OverHttp:
    """Implements Objects, for the pods of one namespace."""

    def __init__(self, api: httpx.Client, namespace: str) -> None:
        self._api = api
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._listed: list[Json] = []
        self._version = ""

    def now_s(self) -> float:
        return time.monotonic()

    def stamp(self) -> str:
        return stamp(time.time())

    def refresh(self) -> bool:
        answer = self._api.get(self._pods)
        answer.raise_for_status()
        found = answer.json()
        versions = ",".join(pod["metadata"]["resourceVersion"] for pod in found["items"])
        changed = versions != self._version
        self._listed, self._version = found["items"], versions
        return changed

    def pods(self) -> list[Json]:
        return self._listed

    def write_status(self, kind: str, obj: Json, mutate: Callable[[Json], None]) -> None:
        name = obj["metadata"]["name"]
        path = f"/api/v1/nodes/{name}" if kind == "Node" else f"{self._pods}/{name}"
        for _ in range(_TRIES):
            answer = self._api.get(path)
            if answer.status_code == 404 or answer.json()["metadata"]["uid"] != uid_of(obj):
                return
            found = answer.json()
            mutate(found)
            answer = self._api.put(f"{path}/status", json=found)
            if answer.status_code == 404:
                return
            if answer.status_code != 409:  # somebody else wrote in between
                answer.raise_for_status()
                return
        raise TimeoutError(f"{path}: somebody else writes it all the time")

    def remove(self, pod: Json) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid_of(pod)}}
        answer = self._api.request("DELETE", f"{self._pods}/{pod['metadata']['name']}", json=options)
        if answer.status_code not in (404, 409):
            answer.raise_for_status()

    def say(self, pod: Json, reason: str, message: str, *, warning: bool = False) -> None:
        """Events are for people; nobody reads those of a simulated node."""

    def node(self, name: str) -> Json | None:
        answer = self._api.get(f"/api/v1/nodes/{name}")
        return None if answer.status_code == 404 else answer.json()

    def close(self) -> None:
        pass


class SimulatedNodes:
    """Steps a stub kubelet, and keeps the Nodes it was given Ready, in a thread."""

    def __init__(self, api: httpx.Client, kubelet: StubKubelet, objects: OverHttp) -> None:
        self.problem: Exception | None = None
        self._api = api
        self._kubelet = kubelet
        self._objects = objects
        self._names: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="simulated-nodes", daemon=True)
        self._thread.start()

    def add(self, node: Json) -> None:
        """As a kubelet registers itself: the object, its status, and off with the taint that admission put on it."""
        name = node["metadata"]["name"]
        self._api.post("/api/v1/nodes", json={"metadata": node["metadata"]}).raise_for_status()
        self._names.append(name)
        self._beat(name, node["status"])
        merge = {"Content-Type": "application/merge-patch+json"}
        self._api.patch(f"/api/v1/nodes/{name}", json={"spec": {"taints": None}}, headers=merge).raise_for_status()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        for name in self._names:
            self._api.delete(f"/api/v1/nodes/{name}")

    def _beat(self, name: str, status: Json) -> None:
        node = self._objects.node(name)
        if node is None:
            return
        now = self._objects.stamp()

        def write(target: Json) -> None:
            kept = target.setdefault("status", {})
            kept |= {field: value for field, value in status.items() if field != "conditions"}
            set_condition(kept, now, "Ready", True, "KubeletReady", "a test says so", lastHeartbeatTime=now)

        self._objects.write_status("Node", node, write)

    def _run(self) -> None:
        beaten_s = time.monotonic()
        while not self._stop.wait(_LOOK_S):
            try:
                self._kubelet.step()
                if time.monotonic() - beaten_s > _HEARTBEAT_S:
                    beaten_s = time.monotonic()
                    for name in list(self._names):
                        self._beat(name, {})
            except Exception as problem:  # told by the next wait of the test
                self.problem = problem
