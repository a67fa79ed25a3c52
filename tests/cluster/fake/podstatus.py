"""How a kubelet writes down a pod: containers with their states, the phase and the conditions that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .errors import Json
from .loops import set_condition


@dataclass
class Box:
    """A container as its kubelet knows it."""

    name: str
    image: str
    state: Json = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last: Json = field(default_factory=dict)
    ready: bool = False
    started: bool = False
    restarts: int = 0

    def wait(self, reason: str, message: str = "") -> None:
        self.state = {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        self.ready = self.started = False

    def run(self, now: str, *, ready: bool, started: bool = True) -> None:
        self.state = {"running": {"startedAt": now}}
        self.ready, self.started = ready, started

    def end(self, now: str, code: int, reason: str = "") -> None:
        since = (self.state.get("running") or {}).get("startedAt", now)
        why = reason or ("Completed" if code == 0 else "Error")
        self.state = {"terminated": {"exitCode": code, "reason": why, "startedAt": since, "finishedAt": now}}
        self.ready = self.started = False

    def rest(self, delay_s: float, pod: str) -> None:
        """Ended, and to be started again after so long."""
        self.last = self.state
        self.wait("CrashLoopBackOff", f"back-off {delay_s:.0f}s restarting failed container={self.name} pod={pod}")

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        terminated = self.state.get("terminated")
        return None if terminated is None else int(terminated["exitCode"])

    def written(self) -> Json:
        return {
            "name": self.name,
            "image": self.image,
            "imageID": f"{self.image}@sha256:{'0' * 64}" if "waiting" not in self.state or self.restarts else "",
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last,
        }


def boxes_of(pod: Json, kind: str = "containers") -> list[Box]:
    return [Box(container["name"], container.get("image", "")) for container in pod["spec"].get(kind) or ()]


def phase_from(boxes: Sequence[Box]) -> str:
    codes = [box.exit_code for box in boxes]
    if all(code is not None for code in codes):
        return "Failed" if any(codes) else "Succeeded"
    return "Running" if any(box.running or box.last or box.exit_code is not None for box in boxes) else "Pending"


def write_pod(
    status: Json,
    now: str,
    boxes: Sequence[Box],
    *,
    phase: str = "",
    address: str = "",
    host: str = "",
    reason: str = "",
    message: str = "",
    init: Sequence[Box] = (),
) -> None:
    """In place; what others wrote (PodScheduled, DisruptionTarget) stays."""
    phase = phase or phase_from(boxes)
    status["phase"] = phase
    status.setdefault("startTime", now)
    for name, text in {"reason": reason, "message": message}.items():
        if text:
            status[name] = text
    if host:
        status.update({"hostIP": host, "hostIPs": [{"ip": host}]})
    if address:
        status.update({"podIP": address, "podIPs": [{"ip": address}]})
    status["containerStatuses"] = [box.written() for box in boxes]
    if init:
        status["initContainerStatuses"] = [box.written() for box in init]
    set_condition(status, now, "PodReadyToStartContainers", bool(address) and phase == "Running")
    set_condition(status, now, "Initialized", all(box.exit_code == 0 for box in init))
    unready = [box.name for box in boxes if not box.ready]
    if phase in ("Succeeded", "Failed"):
        why, words = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}[phase], ""
    elif unready:
        why, words = "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    else:
        why, words = "", ""
    for kind in ("ContainersReady", "Ready"):
        set_condition(status, now, kind, not why, why, words)


def write_rejected(status: Json, now: str, reason: str, message: str) -> None:
    """By the kubelet's admission: no container was ever made."""
    status.clear()
    status.update({"phase": "Failed", "reason": reason, "message": message, "startTime": now})


def restart_delay_s(restarts: int) -> float:
    """Before a container of a pod starts again: 1, 10, 20, 40 … seconds."""
    return 1.0 if restarts == 0 else float(min(10.0 * 2 ** (restarts - 1), 300.0))


def restarts_on(pod: Json, container: Json, code: int) -> bool:
    """By restartPolicyRules of the container, its restartPolicy, then that of the pod."""
    for rule in container.get("restartPolicyRules") or ():
        codes = rule.get("exitCodes") or {}
        if rule.get("action") == "Restart" and (code in (codes.get("values") or ())) == (codes.get("operator") == "In"):
            return True
    policy = container.get("restartPolicy") or pod["spec"].get("restartPolicy", "Always")
    return policy == "Always" or (policy == "OnFailure" and code != 0)
