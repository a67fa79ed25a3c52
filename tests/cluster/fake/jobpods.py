"""The pods of a Job: what the controller makes of the template, and how it judges a pod that failed."""

from __future__ import annotations

from typing import Literal

from .errors import Json
from .loops import uid_of

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
FIRST_BACKOFF_S = 10.0
_LONGEST_BACKOFF_S = 600.0

Verdict = Literal["Count", "Ignore", "FailIndex", "FailJob"]


def pod_of(job: Json, index: int | None, *, failures: int = 0, ignored: int = 0) -> Json:
    name, spec = job["metadata"]["name"], job["spec"]
    template = spec["template"]
    labels = {
        **((template.get("metadata") or {}).get("labels") or {}),
        "batch.kubernetes.io/controller-uid": uid_of(job),
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid_of(job),
        "job-name": name,
    }
    annotations = dict((template.get("metadata") or {}).get("annotations") or {})
    pod_spec: Json = {**template["spec"]}
    if index is not None:
        labels[INDEX] = annotations[INDEX] = str(index)
        pod_spec["hostname"] = f"{name}-{index}"
        for kind in ("initContainers", "containers"):
            if kind in pod_spec:
                pod_spec[kind] = [_with_index(container) for container in pod_spec[kind]]
        if "backoffLimitPerIndex" in spec:
            annotations[FAILURES] = str(failures)
            if ignored:
                annotations[IGNORED] = str(ignored)
    metadata: Json = {
        "generateName": f"{name}-" if index is None else f"{name}-{index}-",
        "namespace": job["metadata"]["namespace"],
        "labels": labels,
        "finalizers": [TRACKING],
        "ownerReferences": [owner(job)],
    }
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": pod_spec, "status": {"phase": "Pending"}}


def owner(job: Json) -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job["metadata"]["name"],
        "uid": uid_of(job),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _with_index(container: Json) -> Json:
    field = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
    known = container.get("env") or []
    if any(variable["name"] == "JOB_COMPLETION_INDEX" for variable in known):
        return container
    return {**container, "env": [*known, {"name": "JOB_COMPLETION_INDEX", "valueFrom": field}]}


def index_of(pod: Json) -> int | None:
    text = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return int(text) if text.isdigit() else None


def counts_of(pod: Json) -> tuple[int, int]:
    """(failures, ignored failures) of its index before this pod."""
    annotations = pod["metadata"].get("annotations") or {}
    return int(annotations.get(FAILURES, 0)), int(annotations.get(IGNORED, 0))


def backoff_s(failures: int, first_s: float = FIRST_BACKOFF_S) -> float:
    """10, 20, 40 s …: of an index with backoffLimitPerIndex, ignored failures counted too."""
    return float(min(first_s * 2 ** (failures - 1), _LONGEST_BACKOFF_S)) if failures else 0.0


def verdict(job: Json, pod: Json) -> tuple[Verdict, str]:
    """What the Job's podFailurePolicy says of a failed pod, and for FailJob in which words. The first rule that fits decides."""
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or []
    for number, rule in enumerate(rules):
        action: Verdict = rule["action"]
        if "onExitCodes" in rule:
            found = _exit_code_met(rule["onExitCodes"], pod)
            if found is not None:
                container, code = found
                name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                words = (
                    f"Container {container} for pod {name} failed with exit code {code} matching {action} rule at index {number}"
                )
                return action, words
        elif any(_condition_met(pattern, pod) for pattern in rule.get("onPodConditions") or ()):
            return action, f"Pod {pod['metadata']['name']} has a condition matching {action} rule at index {number}"
    return "Count", ""


def _exit_code_met(wanted: Json, pod: Json) -> tuple[str, int] | None:
    status = pod.get("status") or {}
    for state in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        terminated = (state.get("state") or {}).get("terminated")
        if not terminated or terminated.get("exitCode", 0) == 0:
            continue
        if wanted.get("containerName") not in (None, state["name"]):
            continue
        if (terminated["exitCode"] in wanted["values"]) == (wanted["operator"] == "In"):
            return state["name"], terminated["exitCode"]
    return None


def _condition_met(pattern: Json, pod: Json) -> bool:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == pattern["type"] and condition["status"] == pattern.get("status", "True"):
            return True
    return False


def indexes_in_words(indexes: set[int]) -> str:
    """As status.completedIndexes has it: 0,2,3,5-9; two in a row are no range."""
    parts: list[str] = []
    ordered = sorted(indexes)
    at = 0
    while at < len(ordered):
        last = at
        while last + 1 < len(ordered) and ordered[last + 1] == ordered[last] + 1:
            last += 1
        parts.append(str(ordered[at]) + ("" if last == at else f"{',' if last == at + 1 else '-'}{ordered[last]}"))
        at = last + 1
    return ",".join(parts)


def indexes_from(text: str | None) -> set[int]:
    found: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found
