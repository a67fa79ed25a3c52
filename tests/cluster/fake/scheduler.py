"""The scheduler of the fake cluster: first fit, and for a pod that fits nowhere the count by cause that operators read."""

from __future__ import annotations

import contextlib
from collections import Counter

from .errors import ApiError, Json
from .fitting import Host, hosts_of, why_not
from .loops import Loop, condition_of, ended, going, key_of, set_condition

_ZONE, _REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
_BY = "default-scheduler"
#: Reasons that no pod could be preempted for.
_HOPELESS = ("were unschedulable", "untolerated taint", "node affinity", "missing required label")


class SchedulerLoop(Loop):
    kinds = ("Pod", "Node", "PersistentVolumeClaim")

    def sync(self) -> None:
        pods = self.all("Pod")
        waiting = [pod for pod in pods if not pod["spec"].get("nodeName") and not ended(pod) and not going(pod)]
        if not waiting:
            return
        hosts = hosts_of(self.all("Node"), pods)
        for pod in waiting:
            gates = pod["spec"].get("schedulingGates")
            if gates:
                self._say_unplaced(pod, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
                continue
            why = self._why_claims(pod)
            if why:
                self._say_unplaced(pod, "Unschedulable", _in_words(len(hosts), Counter(), claims=why))
            else:
                self._place(pod, hosts)

    def _place(self, pod: Json, hosts: list[Host]) -> None:
        reasons: Counter[str] = Counter()
        hopeless = 0
        for host in hosts:
            found = why_not(pod, host, hosts)
            if not found:
                self._bind(pod, host)
                return
            reasons.update(found)
            hopeless += any(word in found[0] for word in _HOPELESS)
        self._say_unplaced(pod, "Unschedulable", _in_words(len(hosts), reasons, hopeless=hopeless))

    def _bind(self, pod: Json, host: Host) -> None:
        now = self.store.stamp()

        def bind(target: Json) -> None:
            target["spec"]["nodeName"] = host.name
            for label in (_ZONE, _REGION):
                if label in host.labels:
                    target["metadata"].setdefault("labels", {}).setdefault(label, host.labels[label])
            set_condition(target["status"], now, "PodScheduled", True)

        with contextlib.suppress(ApiError):  # it may be gone since
            bound = self.store.update("Pod", *key_of(pod), bind, status=None)
            host.take(bound)
            where = f"Successfully assigned {'/'.join(key_of(pod))} to {host.name}"
            self.events.say(pod, "Scheduled", where, by=_BY, new_style=True)

    def _say_unplaced(self, pod: Json, reason: str, message: str) -> None:
        known = condition_of(pod, "PodScheduled")
        if known is not None and known.get("message") == message:
            return
        now = self.store.stamp()

        def write(target: Json) -> None:
            set_condition(target["status"], now, "PodScheduled", False, reason, message)

        with contextlib.suppress(ApiError):
            self.store.update("Pod", *key_of(pod), write, status=True)
        if reason == "Unschedulable":
            self.events.say(pod, "FailedScheduling", message, by=_BY, warning=True, new_style=True)

    def _why_claims(self, pod: Json) -> str:
        for volume in pod["spec"].get("volumes") or ():
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if claim is None:
                continue
            found = self.store.get("PersistentVolumeClaim", pod["metadata"]["namespace"], claim)
            if found is None:
                return f'persistentvolumeclaim "{claim}" not found'
            if (found.get("status") or {}).get("phase") != "Bound":
                return "pod has unbound immediate PersistentVolumeClaims"
        return ""


def _in_words(nodes: int, reasons: Counter[str], *, hopeless: int = 0, claims: str = "") -> str:
    if not nodes:
        return "no nodes available to schedule pods"
    causes = claims or ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    if claims:
        hopeless = nodes
    tried = [f"{nodes - hopeless} No preemption victims found for incoming pod"] if nodes > hopeless else []
    if hopeless:
        tried.append(f"{hopeless} Preemption is not helpful for scheduling")
    preemption = f"preemption: 0/{nodes} nodes are available: {', '.join(sorted(tried))}."
    return f"0/{nodes} nodes are available: {causes}. no new claims to deallocate, {preemption}"
