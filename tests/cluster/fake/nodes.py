"""What a fake cluster does about nodes and claims: taints of a node that is not Ready, the pods on it, PVCs that bind.

Node pressure is not here: who wants a node with fewer GPUs patches its status, as a device plugin does.
"""

from __future__ import annotations

import contextlib

from .errors import ApiError, Json
from .fitting import toleration_of
from .loops import Loop, condition_of, ended, going, key_of, set_condition, uid_of
from .store import Store

NEVER_BOUND = "no-such-class"  # storageClassName of a claim that is to stay Pending
_NOT_READY = "node.kubernetes.io/not-ready"
_UNREACHABLE = "node.kubernetes.io/unreachable"
_CORDONED = "node.kubernetes.io/unschedulable"
_OURS = (_NOT_READY, _UNREACHABLE, _CORDONED)


class NodeLoop(Loop):
    kinds = ("Node", "Pod")

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._tainted_s: dict[tuple[str, str], float] = {}  # (uid of a node, taint) → since when

    def sync(self) -> None:
        for node in self.all("Node"):
            ready = condition_of(node, "Ready")
            state = "True" if ready is None else str(ready["status"])
            taint = {"True": None, "False": _NOT_READY}.get(state, _UNREACHABLE)
            self._taint(node, taint)
            if taint is None:
                self._tainted_s = {known: since for known, since in self._tainted_s.items() if known[0] != uid_of(node)}
                continue
            since_s = self._tainted_s.setdefault((uid_of(node), taint), self.now_s)
            for pod in self.all("Pod"):
                if pod["spec"].get("nodeName") == node["metadata"]["name"] and not ended(pod):
                    self._on_lost_node(node, pod, taint, since_s)

    def _taint(self, node: Json, taint: str | None) -> None:
        def write(target: Json) -> None:
            spec = target.setdefault("spec", {})
            taints = [known for known in spec.get("taints") or () if known["key"] not in _OURS]
            if spec.get("unschedulable"):
                taints.append({"key": _CORDONED, "effect": "NoSchedule"})
            if taint is not None:
                taints += [{"key": taint, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
            spec.pop("taints", None)
            if taints:
                spec["taints"] = taints

        self.store.update("Node", *key_of(node), write)

    def _on_lost_node(self, node: Json, pod: Json, taint: str, since_s: float) -> None:
        ready = condition_of(pod, "Ready")
        if ready is not None and ready["status"] == "True":
            self._status(pod, "Ready", False, "", "")
            words = "Node is not ready"
            self.events.say(pod, "NodeNotReady", words, by="node-controller", warning=True)
        if going(pod):
            return
        toleration = toleration_of(pod, {"key": taint, "effect": "NoExecute"})
        wait_s = 0.0 if toleration is None else toleration.get("tolerationSeconds")
        if wait_s is None:
            return
        if self.now_s < since_s + wait_s:
            self.again_at(since_s + wait_s)
            return
        self._status(pod, "DisruptionTarget", True, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
        self.events.say(
            pod, "TaintManagerEviction", f"Marking for deletion Pod {'/'.join(key_of(pod))}", by="taint-eviction-controller"
        )
        with contextlib.suppress(ApiError):
            self.store.delete("Pod", *key_of(pod), uid=uid_of(pod))

    def _status(self, pod: Json, kind: str, value: bool, reason: str, message: str) -> None:
        now = self.store.stamp()

        def write(target: Json) -> None:
            set_condition(target["status"], now, kind, value, reason, message)

        with contextlib.suppress(ApiError):
            self.store.update("Pod", *key_of(pod), write, status=True)


class ClaimLoop(Loop):
    kinds = ("PersistentVolumeClaim",)

    def sync(self) -> None:
        for claim in self.all("PersistentVolumeClaim"):
            if (claim.get("status") or {}).get("phase") == "Bound" or claim["spec"].get("storageClassName") == NEVER_BOUND:
                continue

            def bind(target: Json) -> None:
                requests = (target["spec"].get("resources") or {}).get("requests") or {}
                target["spec"].setdefault("volumeName", f"pvc-{uid_of(target)}")
                target["status"] = {
                    "phase": "Bound",
                    "accessModes": target["spec"].get("accessModes") or [],
                    "capacity": requests,
                }

            self.store.update("PersistentVolumeClaim", *key_of(claim), bind, status=None)
