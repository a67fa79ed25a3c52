"""What an API server adds to an object that leaves it out, as far as anything here reads it."""

from __future__ import annotations

import base64

from .errors import Json

_NEVER = 2147483647  # backoffLimit of a Job that counts per index


def fill(kind: str, obj: Json) -> None:
    """In place; what is set stays."""
    filler = _FILLERS.get(kind)
    if filler is not None:
        filler(obj)


def _job(obj: Json) -> None:
    spec = _dict(obj, "spec")
    obj.setdefault("status", {})
    if "parallelism" not in spec and "completions" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", _NEVER if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    template = _dict(spec, "template")
    metadata = _dict(template, "metadata")
    uid, name = obj["metadata"].get("uid", ""), obj["metadata"].get("name", "")
    if "selector" not in spec:
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
        metadata["labels"] = {
            **(metadata.get("labels") or {}),
            "batch.kubernetes.io/controller-uid": uid,
            "batch.kubernetes.io/job-name": name,
            "controller-uid": uid,
            "job-name": name,
        }
    _pod_spec(_dict(template, "spec"))


def _pod(obj: Json) -> None:
    spec = _dict(obj, "spec")
    status = _dict(obj, "status")
    status.setdefault("phase", "Pending")
    status.setdefault("qosClass", "BestEffort")
    _pod_spec(spec)
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("priority", 0)
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(key == toleration.get("key") for toleration in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})


def _daemon_set(obj: Json) -> None:
    spec = _dict(obj, "spec")
    _dict(obj, "status")
    spec.setdefault("revisionHistoryLimit", 10)
    _pod_spec(_dict(_dict(spec, "template"), "spec"))


def _pod_spec(spec: Json) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    spec.setdefault("terminationGracePeriodSeconds", 30)
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        container.setdefault("imagePullPolicy", "IfNotPresent")
        container.setdefault("resources", {})
        resources = container["resources"]
        for which in ("limits", "requests"):
            for resource, amount in (resources.get(which) or {}).items():
                resources[which][resource] = str(amount)
        # An extended resource that is only limited is requested just as much.
        for resource, amount in (resources.get("limits") or {}).items():
            resources.setdefault("requests", {}).setdefault(resource, amount)
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        for port in container.get("ports") or ():
            port.setdefault("protocol", "TCP")
        for variable in container.get("env") or ():
            field = (variable.get("valueFrom") or {}).get("fieldRef")
            if field:
                field.setdefault("apiVersion", "v1")


def _service(obj: Json) -> None:
    spec = _dict(obj, "spec")
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    spec.setdefault("clusterIP", "10.96.0.99")
    obj.setdefault("status", {"loadBalancer": {}})
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def _namespace(obj: Json) -> None:
    name = obj["metadata"].get("name", "")
    labels = _dict(obj["metadata"], "labels")
    labels.setdefault("kubernetes.io/metadata.name", name)
    _dict(obj, "status").setdefault("phase", "Active")


def _node(obj: Json) -> None:
    obj.setdefault("spec", {})
    obj.setdefault("status", {})
    _dict(obj["metadata"], "labels").setdefault("kubernetes.io/hostname", obj["metadata"].get("name", ""))


def _secret(obj: Json) -> None:
    obj.setdefault("type", "Opaque")
    for name, text in (obj.pop("stringData", None) or {}).items():
        _dict(obj, "data")[name] = base64.b64encode(text.encode()).decode()


def _with_status(obj: Json) -> None:
    obj.setdefault("status", {})


def _claim(obj: Json) -> None:
    _dict(obj, "status").setdefault("phase", "Pending")
    _dict(obj, "spec").setdefault("volumeMode", "Filesystem")


def _dict(obj: Json, name: str) -> Json:
    if not isinstance(obj.get(name), dict):
        obj[name] = {}
    found: Json = obj[name]
    return found


_FILLERS = {
    "Job": _job,
    "Pod": _pod,
    "DaemonSet": _daemon_set,
    "Service": _service,
    "Namespace": _namespace,
    "Node": _node,
    "Secret": _secret,
    "PodDisruptionBudget": _with_status,
    "ResourceQuota": _with_status,
    "PersistentVolumeClaim": _claim,
}
