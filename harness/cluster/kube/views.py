"""What the head keeps of each Kubernetes object: small frozen structs, made from raw JSON at once.

A pod is 6.5 kB of JSON, of which reasons and places are 1 kB. Nothing here trusts the shape of what it is given: whatever
is missing or of another type is left at its default, so one strange object can never stop a watch. Views compare by value
and have no resourceVersion: a view that is equal to the one before is no change. Times are wall-clock seconds, 0.0: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from harness.cluster.kube import names

Raw = Mapping[str, Any]
_NO_NODE_LABELS: dict[str, str] = {}
_LONGEST_MESSAGE = 2000
_MOST_INDEXES = 100_000


class Condition(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    type: str
    status: str = ""  # True, False, Unknown
    reason: str = ""
    message: str = ""
    since_unix: float = 0.0


class ContainerView(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    name: str
    image: str = ""
    is_init: bool = False
    ready: bool = False
    restarts: int = 0
    state: str = ""  # waiting, running, terminated; "" before the kubelet has looked at it
    reason: str = ""  # of waiting or terminated
    message: str = ""
    exit_code: int | None = None  # of terminated
    started_unix: float = 0.0
    finished_unix: float = 0.0
    last_reason: str = ""  # how it ended before it was restarted
    last_message: str = ""
    last_exit_code: int | None = None
    last_finished_unix: float = 0.0


class PodView(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    name: str
    uid: str = ""
    namespace: str = ""
    component: str = ""  # head, worker
    index: int = -1  # of an Indexed Job
    job: str = ""
    node: str = ""  # the Kubernetes node it is bound to
    zone: str = ""
    pod_ip: str = ""
    phase: str = ""  # Pending, Running, Succeeded, Failed, Unknown
    ready: bool = False
    reason: str = ""  # of the whole pod: Evicted, UnexpectedAdmissionError, DeadlineExceeded …
    message: str = ""
    created_unix: float = 0.0
    started_unix: float = 0.0  # taken on by the kubelet
    deletion_unix: float = 0.0  # when its grace ends, once it has been asked to go
    grace_s: float = 0.0
    failures: int = 0  # of its index before it
    ignored_failures: int = 0  # evictions and other disruptions of its index before it
    conditions: tuple[Condition, ...] = ()
    containers: tuple[ContainerView, ...] = ()

    @property
    def shown_phase(self) -> str:
        """As kubectl shows it: a pod that has been asked to go is Terminating until it has ended."""
        return "Terminating" if self.deletion_unix and not self.ended else self.phase

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def restarts(self) -> int:
        return max((c.restarts for c in self.containers if not c.is_init), default=0)

    def condition(self, kind: str) -> Condition | None:
        return _condition(self.conditions, kind)


class Taint(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    key: str
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}{'=' + self.value if self.value else ''}:{self.effect}"


class NodeView(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    name: str
    uid: str = ""
    ready: bool = False
    ready_reason: str = ""
    ready_message: str = ""
    ready_since_unix: float = 0.0
    cordoned: bool = False
    zone: str = ""
    taints: tuple[Taint, ...] = ()
    pressures: tuple[str, ...] = ()  # MemoryPressure, DiskPressure, PIDPressure, NetworkUnavailable
    allocatable: dict[str, int] = {}  # accelerators: "amd.com/gpu" → 8
    capacity: dict[str, int] = {}
    labels: dict[str, str] = _NO_NODE_LABELS

    def gpus(self, resource: str) -> tuple[int, int]:
        """Allocatable, and there."""
        return self.allocatable.get(resource, 0), self.capacity.get(resource, 0)


class JobView(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    name: str
    uid: str = ""
    component: str = ""
    parallelism: int = 0
    completions: int = 0
    suspended: bool = False
    active: int = 0
    ready: int = 0
    terminating: int = 0
    succeeded: int = 0
    failed: int = 0
    failed_indexes: tuple[int, ...] = ()
    completed_indexes: tuple[int, ...] = ()
    created_unix: float = 0.0
    started_unix: float = 0.0
    conditions: tuple[Condition, ...] = ()

    def condition(self, kind: str) -> Condition | None:
        return _condition(self.conditions, kind)


class EventView(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    name: str
    uid: str = ""
    type: str = ""  # Normal, Warning
    reason: str = ""
    message: str = ""
    count: int = 1
    kind: str = ""  # of what it is about: Pod, Job, Node
    subject: str = ""
    subject_uid: str = ""
    source: str = ""
    first_unix: float = 0.0
    last_unix: float = 0.0


class BudgetView(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    name: str
    uid: str = ""
    component: str = ""
    min_available: str = ""  # as written: "62", "50%"; "" when absent
    max_unavailable: str = ""
    generation: int = 0
    observed_generation: int = 0
    allowed: int = 0
    healthy: int = 0
    desired: int = 0
    expected: int = 0
    condition: Condition | None = None  # DisruptionAllowed


# --- from raw JSON -----------------------------------------------------------------------------------------------------


def reduce_pod(raw: Raw) -> PodView:
    meta, spec, status = _map(raw, "metadata"), _map(raw, "spec"), _map(raw, "status")
    labels, annotations = _map(meta, "labels"), _map(meta, "annotations")
    conditions = _conditions(status)
    ready = _condition(conditions, "Ready")
    images = {_text(c, "name"): _text(c, "image") for field in ("initContainers", "containers") for c in _maps(spec, field)}
    return PodView(
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        namespace=_text(meta, "namespace"),
        component=_text(labels, names.COMPONENT),
        index=_int(labels.get(names.INDEX, annotations.get(names.INDEX)), -1),
        job=_text(labels, names.JOB_NAME),
        node=_text(spec, "nodeName"),
        zone=_text(labels, names.RACK),
        pod_ip=_text(status, "podIP"),
        phase=_text(status, "phase"),
        ready=ready is not None and ready.status == "True",
        reason=_text(status, "reason"),
        message=_text(status, "message"),
        created_unix=_time(meta.get("creationTimestamp")),
        started_unix=_time(status.get("startTime")),
        deletion_unix=_time(meta.get("deletionTimestamp")),
        grace_s=float(_int(meta.get("deletionGracePeriodSeconds"), 0)),
        failures=_int(annotations.get(names.FAILURES), 0),
        ignored_failures=_int(annotations.get(names.IGNORED_FAILURES), 0),
        conditions=conditions,
        containers=(
            *(_container(c, images, True) for c in _maps(status, "initContainerStatuses")),
            *(_container(c, images, False) for c in _maps(status, "containerStatuses")),
        ),
    )


def reduce_node(raw: Raw) -> NodeView:
    meta, spec, status = _map(raw, "metadata"), _map(raw, "spec"), _map(raw, "status")
    labels = {key: value for key, value in _map(meta, "labels").items() if isinstance(value, str)}
    conditions = _conditions(status)
    ready = _condition(conditions, "Ready") or Condition("Ready")
    return NodeView(
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        ready=ready.status == "True",
        ready_reason=ready.reason,
        ready_message=ready.message,
        ready_since_unix=ready.since_unix,
        cordoned=spec.get("unschedulable") is True,
        zone=labels.get(names.RACK, ""),
        taints=tuple(Taint(_text(t, "key"), _text(t, "value"), _text(t, "effect")) for t in _maps(spec, "taints")),
        pressures=tuple(c.type for c in conditions if c.type != "Ready" and c.status == "True"),
        allocatable=_accelerators(_map(status, "allocatable")),
        capacity=_accelerators(_map(status, "capacity")),
        labels=labels,
    )


def reduce_job(raw: Raw) -> JobView:
    meta, spec, status = _map(raw, "metadata"), _map(raw, "spec"), _map(raw, "status")
    return JobView(
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        component=_text(_map(meta, "labels"), names.COMPONENT),
        parallelism=_int(spec.get("parallelism"), 1),
        completions=_int(spec.get("completions"), 1),
        suspended=spec.get("suspend") is True,
        active=_int(status.get("active"), 0),
        ready=_int(status.get("ready"), 0),
        terminating=_int(status.get("terminating"), 0),
        succeeded=_int(status.get("succeeded"), 0),
        failed=_int(status.get("failed"), 0),
        failed_indexes=_indexes(_text(status, "failedIndexes")),
        completed_indexes=_indexes(_text(status, "completedIndexes")),
        created_unix=_time(meta.get("creationTimestamp")),
        started_unix=_time(status.get("startTime")),
        conditions=_conditions(status),
    )


def reduce_event(raw: Raw) -> EventView:
    """Of core/v1. Newer reporters leave the old times and count empty and fill eventTime and series."""
    meta, about, series = _map(raw, "metadata"), _map(raw, "involvedObject"), _map(raw, "series")
    at = _time(raw.get("eventTime")) or _time(meta.get("creationTimestamp"))
    return EventView(
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        type=_text(raw, "type"),
        reason=_text(raw, "reason"),
        message=_text(raw, "message"),
        count=_int(raw.get("count"), 0) or _int(series.get("count"), 0) or 1,
        kind=_text(about, "kind"),
        subject=_text(about, "name"),
        subject_uid=_text(about, "uid"),
        source=_text(_map(raw, "source"), "component") or _text(raw, "reportingComponent"),
        first_unix=_time(raw.get("firstTimestamp")) or at,
        last_unix=_time(raw.get("lastTimestamp")) or _time(series.get("lastObservedTime")) or at,
    )


def reduce_budget(raw: Raw) -> BudgetView:
    meta, spec, status = _map(raw, "metadata"), _map(raw, "spec"), _map(raw, "status")
    return BudgetView(
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        component=_text(_map(meta, "labels"), names.COMPONENT),
        min_available=_amount(spec.get("minAvailable")),
        max_unavailable=_amount(spec.get("maxUnavailable")),
        generation=_int(meta.get("generation"), 0),
        observed_generation=_int(status.get("observedGeneration"), 0),
        allowed=_int(status.get("disruptionsAllowed"), 0),
        healthy=_int(status.get("currentHealthy"), 0),
        desired=_int(status.get("desiredHealthy"), 0),
        expected=_int(status.get("expectedPods"), 0),
        condition=_condition(_conditions(status), "DisruptionAllowed"),
    )


# --- details -----------------------------------------------------------------------------------------------------------


def _container(raw: Raw, images: dict[str, str], is_init: bool) -> ContainerView:
    state, now = _state(_map(raw, "state"))
    _, last = _state(_map(raw, "lastState"))
    name = _text(raw, "name")
    return ContainerView(
        name=name,
        image=images.get(name) or _text(raw, "image"),
        is_init=is_init,
        ready=raw.get("ready") is True,
        restarts=_int(raw.get("restartCount"), 0),
        state=state,
        reason=_text(now, "reason"),
        message=_text(now, "message"),
        exit_code=_int(now.get("exitCode"), -1) if state == "terminated" else None,
        started_unix=_time(now.get("startedAt")),
        finished_unix=_time(now.get("finishedAt")),
        last_reason=_text(last, "reason"),
        last_message=_text(last, "message"),
        last_exit_code=_int(last.get("exitCode"), -1) if "exitCode" in last else None,
        last_finished_unix=_time(last.get("finishedAt")),
    )


def _state(raw: Raw) -> tuple[str, Raw]:
    for kind in ("running", "waiting", "terminated"):
        if kind in raw:
            return kind, _map(raw, kind)
    return "", {}


def _conditions(status: Raw) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            _text(c, "type"), _text(c, "status"), _text(c, "reason"), _text(c, "message"), _time(c.get("lastTransitionTime"))
        )
        for c in _maps(status, "conditions")
    )


def _condition(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    return next((c for c in conditions if c.type == kind), None)


def _accelerators(amounts: Raw) -> dict[str, int]:
    return {name: _int(amount, 0) for name, amount in amounts.items() if name.endswith("/gpu")}


def _indexes(text: str) -> tuple[int, ...]:
    """`1,3-5` as the Job controller writes it; what does not parse is left out."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        first = _int(low, -1)
        last = _int(high, -1) if dash else first
        if 0 <= first <= last and len(found) + last - first < _MOST_INDEXES:
            found += range(first, last + 1)
    return tuple(found)


def _amount(value: object) -> str:
    return str(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else ""


def _map(raw: Raw, key: str) -> Raw:
    found = raw.get(key)
    return found if isinstance(found, dict) else {}


def _maps(raw: Raw, key: str) -> list[Raw]:
    found = raw.get(key)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _text(raw: Raw, key: str) -> str:
    found = raw.get(key)
    return found[:_LONGEST_MESSAGE] if isinstance(found, str) else ""


def _int(value: object, default: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    return default


def _time(value: object) -> float:
    if not isinstance(value, str) or not value:
        return 0.0
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
