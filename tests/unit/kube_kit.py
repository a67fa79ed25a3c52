"""What tests of Kubernetes objects share: kustomize, the client's models as a schema, and what an API server refuses (422)."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import kubernetes.client as models
import pytest
import yaml  # type: ignore[import-untyped]

from harness.cluster.kube.render import manifests_folder
from harness.spec import RunSpec

Object = dict[str, Any]

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
SERVICE = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


def spec_of(nodes: int = 1, *, engine: str = "synthetic", fleet: Object | None = None, **kube: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "fleet": {"nodes": nodes, "engine": engine, **(fleet or {})},
            "cluster": {"kind": "kubernetes", "kubernetes": kube},
        }
    )


def by_name(objects: Iterable[Object]) -> dict[tuple[str, str], Object]:
    found: dict[tuple[str, str], Object] = {}
    for thing in objects:
        key = thing["kind"], thing["metadata"]["name"]
        assert key not in found, f"{key} is there twice"
        found[key] = thing
    return found


def pod_of(thing: Object) -> Object:
    pod: Object = thing["spec"]["template"]["spec"]
    return pod


def container_of(thing: Object) -> Object:
    container: Object = pod_of(thing)["containers"][0]
    return container


# --- kubectl -------------------------------------------------------------------------------------------------


@functools.cache
def why_no_kustomize() -> str:
    if shutil.which("kubectl") is None:
        return "kubectl is not installed"
    asked = subprocess.run(
        ["kubectl", "version", "--client", "-o", "json"], capture_output=True, text=True, timeout=30, check=False
    )
    try:
        version = json.loads(asked.stdout)["kustomizeVersion"]
    except (ValueError, KeyError):
        return "kubectl does not say which kustomize it has"
    major = int(re.sub(r"\D.*", "", version.lstrip("v")) or 0)
    return "" if major >= 5 else f"the kustomize of kubectl is {version}, older than 5"


def need_kustomize() -> None:
    if why_no_kustomize():
        pytest.skip(why_no_kustomize())


def kustomize(folder: str) -> dict[tuple[str, str], Object]:
    need_kustomize()
    return by_name(yaml.safe_load_all(_kubectl("kustomize", str(manifests_folder() / folder))))


def as_kubectl_knows_it(thing: Object) -> Object:
    """A Job or DaemonSet read into kubectl's own types, which lose what they do not know, and written again."""
    need_kustomize()
    told = _kubectl("set", "env", "--local", "-f", "-", "-o", "json", "ROUND_TRIP=1", stdin=json.dumps(thing))
    found: Object = json.loads(told)
    for container in [*pod_of(found)["containers"], *pod_of(found).get("initContainers", [])]:
        container["env"] = [one for one in container["env"] if one["name"] != "ROUND_TRIP"]
    found.pop("status", None)
    return found


def _kubectl(*arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(["kubectl", *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_nothing(value: Any) -> Any:
    """Null and empty things left out (an emptyDir is one): to Kubernetes they say the same."""
    if isinstance(value, dict):
        kept = {name: without_nothing(inner) for name, inner in value.items()}
        return {name: inner for name, inner in kept.items() if inner not in (None, {}, [])}
    return [without_nothing(inner) for inner in value] if isinstance(value, list) else value


def in_order(value: Any) -> Any:
    """Volumes and mounts by name: Kubernetes merges these lists by name, their order says nothing."""
    if isinstance(value, list):
        inner = [in_order(one) for one in value]
        return sorted(inner, key=lambda one: str(one["name"])) if value and _mergeable(value) else inner
    return {name: in_order(inner) for name, inner in value.items()} if isinstance(value, dict) else value


def _mergeable(things: list[Any]) -> bool:
    return all(
        isinstance(one, dict) and {"mountPath", "emptyDir", "secret", "configMap", "persistentVolumeClaim"} & one.keys()
        for one in things
    )


# --- schema --------------------------------------------------------------------------------------------------

_MODELS = {
    "ConfigMap": models.V1ConfigMap, "Secret": models.V1Secret, "Service": models.V1Service, "Job": models.V1Job,
    "PodDisruptionBudget": models.V1PodDisruptionBudget, "NetworkPolicy": models.V1NetworkPolicy, "DaemonSet": models.V1DaemonSet,
    "Namespace": models.V1Namespace, "ServiceAccount": models.V1ServiceAccount, "Role": models.V1Role,
    "RoleBinding": models.V1RoleBinding, "ClusterRole": models.V1ClusterRole, "ClusterRoleBinding": models.V1ClusterRoleBinding,
    "PersistentVolumeClaim": models.V1PersistentVolumeClaim, "Deployment": models.V1Deployment,
}  # fmt: skip


def check_schema(thing: Object) -> None:
    """The client's models refuse fields that do not exist; of a JobSet, which they do not know, the Jobs in it are read."""
    if thing["kind"] == "JobSet":
        for replicated in thing["spec"]["replicatedJobs"]:
            models.V1Job.model_validate({"apiVersion": "batch/v1", "kind": "Job", **replicated["template"]})
        return
    model: Any = _MODELS[thing["kind"]]
    model.model_validate(thing)


# --- what an API server refuses ------------------------------------------------------------------------------


def refusals(thing: Object) -> list[str]:
    """Everything for which a real server answered 422 or 500, and the names it would not take."""
    return [*_bad_names(thing), *(_bad_job(thing) if thing["kind"] == "Job" else []), *_bad_budget(thing)]


def _bad_names(thing: Object) -> Iterator[str]:
    name = thing["metadata"]["name"]
    if not (SERVICE if thing["kind"] == "Service" else LABEL).fullmatch(name):
        yield f"{thing['kind']} {name}: not a DNS label"
    if thing["kind"] == "Job" and len(f"{name}-511-abcde") > 63:
        yield f"Job {name}: its pods' names are too long"
    for value in thing["metadata"].get("labels", {}).values():
        if not LABEL_VALUE.fullmatch(value):
            yield f"{name}: {value!r} is not the value of a label"


def _bad_job(job: Object) -> Iterator[str]:
    spec, pod = job["spec"], pod_of(job)
    if spec.get("maxFailedIndexes", 0) > spec["completions"]:
        yield "maxFailedIndexes above completions"
    if "maxFailedIndexes" in spec and "backoffLimitPerIndex" not in spec:
        yield "maxFailedIndexes without backoffLimitPerIndex"
    if "backoffLimitPerIndex" in spec and spec.get("completionMode") != "Indexed":
        yield "backoffLimitPerIndex of a Job that is not Indexed"
    if "podFailurePolicy" in spec and (pod["restartPolicy"] != "Never" or spec["podReplacementPolicy"] != "Failed"):
        yield "podFailurePolicy needs restartPolicy Never and podReplacementPolicy Failed"
    if spec.get("completionMode") == "Indexed" and spec["parallelism"] > spec["completions"]:
        yield "parallelism above completions adds no pod"
    volumes = [volume["name"] for volume in pod["volumes"]]
    if len(set(volumes)) != len(volumes):
        yield "two volumes of one name"
    for container in pod["containers"]:
        resources = container["resources"]
        for name, count in resources["requests"].items():
            if "/" in name and resources.get("limits", {}).get(name) != count:
                yield f"{name}: request and limit differ"
        mounts = [mount["mountPath"].rstrip("/") for mount in container["volumeMounts"]]
        if len(set(mounts)) != len(mounts) or any(":" in mount for mount in mounts):
            yield "two mounts in one place, or a colon in one"
        if {mount["name"] for mount in container["volumeMounts"]} - set(volumes):
            yield "a mount without volume"
        if len({one["name"] for one in container["env"]}) != len(container["env"]):
            yield "a variable twice"


def _bad_budget(thing: Object) -> Iterator[str]:
    if thing["kind"] == "PodDisruptionBudget":
        spec = thing["spec"]
        if type(spec.get("minAvailable")) is not int or "maxUnavailable" in spec:
            yield "a budget of Jobs' pods works with an integer minAvailable only"


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def folder_of_repository() -> Path:
    return Path(__file__).parents[2]
