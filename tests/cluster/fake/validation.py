"""What an API server refuses, as far as a run's objects can be wrong: a 422 with every cause, in Kubernetes' own words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .errors import ApiError, Cause, Json, invalid, required, unprocessable
from .kinds import Kind, copied

_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_LABEL_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
_QUANTITY = re.compile(r"^[+-]?(\d+(\.\d*)?|\.\d+)(m|k|[MGTPE]|[KMGTPE]i|[eE][+-]?\d+)?$")
_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an "
    "alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with "
    "an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with "
    "an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_IMMUTABLE = "field is immutable"


def check_new(about: Kind, obj: Json) -> None:
    """Raises ApiError."""
    causes = _metadata(about, obj)
    check = _NEW.get(about.kind)
    if check is not None:
        causes += check(obj)
    if causes:
        raise unprocessable(about.kind, about.group, obj["metadata"].get("name", ""), causes)


def check_change(about: Kind, before: Json, after: Json) -> None:
    """Raises ApiError."""
    if about.kind == "JobSet" and before["spec"].get("replicatedJobs") != after["spec"].get("replicatedJobs"):
        why = 'admission webhook "vjobset.kb.io" denied the request: spec.replicatedJobs: Invalid value: field is immutable'
        raise ApiError(403, "Forbidden", why)
    if after.get("spec") == before.get("spec") and after.get("data") == before.get("data"):
        causes = _labels(after["metadata"].get("labels"), "metadata.labels")
    else:
        causes = _metadata(about, after)
        check = _NEW.get(about.kind)
        if check is not None:
            causes += check(after)
        if about.kind == "Job":
            causes += _job_change(before["spec"], after["spec"])
        elif about.kind == "Pod":
            causes += _pod_change(before["spec"], after["spec"])
        elif about.kind in ("ConfigMap", "Secret") and before.get("immutable"):
            causes.append(Cause("data", "FieldValueForbidden", "Forbidden: field is immutable when `immutable` is set"))
    if causes:
        raise unprocessable(about.kind, about.group, after["metadata"]["name"], causes)


def check_body(about: Kind, obj: Any, ns: str, name: str | None) -> None:
    """What is wrong before anything is looked up: a 400."""
    if not isinstance(obj, dict):
        raise ApiError(400, "BadRequest", "the body of the request is not an object")
    kind, version = obj.get("kind"), obj.get("apiVersion")
    if (kind or about.kind) != about.kind or (version or about.api_version) != about.api_version:
        raise ApiError(
            400,
            "BadRequest",
            f'{about.kind} in version "{about.version}" cannot be handled as a {about.kind}: the object in the body is '
            f"{kind} in version {version}",
        )
    metadata = obj.setdefault("metadata", {}) or {}
    if about.namespaced and metadata.get("namespace") not in (None, "", ns):
        raise ApiError(
            400,
            "BadRequest",
            f"the namespace of the provided object does not match the namespace sent on the request ({metadata['namespace']} "
            f"does not match {ns})",
        )
    if name is not None and metadata.get("name") not in (None, "", name):
        raise ApiError(
            400,
            "BadRequest",
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})",
        )


# --- every object ------------------------------------------------------------------------------------------


def _metadata(about: Kind, obj: Json) -> list[Cause]:
    metadata = obj["metadata"]
    name = metadata.get("name")
    causes = []
    if not name:
        causes.append(required("metadata.name", "name or generateName is required"))
    elif about.group != "rbac.authorization.k8s.io":
        if about.kind in ("Namespace", "Service"):
            causes += _dns_label("metadata.name", name)
        elif len(name) > 253 or not _SUBDOMAIN.match(name):
            causes.append(invalid("metadata.name", name, _SUBDOMAIN_TEXT))
    return causes + _labels(metadata.get("labels"), "metadata.labels")


def _labels(labels: Json | None, at: str) -> list[Cause]:
    causes = []
    for value in (labels or {}).values():
        if not isinstance(value, str):
            causes.append(invalid(at, value, "must be a string"))
        elif len(value) > 63:
            causes.append(invalid(at, value, "must be no more than 63 bytes"))
        elif not _LABEL_VALUE.match(value):
            causes.append(invalid(at, value, _LABEL_VALUE_TEXT))
    return causes


def _dns_label(at: str, name: str) -> list[Cause]:
    causes = []
    if len(name) > 63:
        causes.append(invalid(at, name, "must be no more than 63 characters"))
    if not _LABEL.match(name):
        causes.append(invalid(at, name, _LABEL_TEXT))
    return causes


# --- Jobs --------------------------------------------------------------------------------------------------


def _job(obj: Json) -> list[Cause]:
    spec = obj["spec"]
    template = spec.get("template") or {}
    pod = template.get("spec") or {}
    causes = _job_counts(obj["metadata"].get("name", ""), spec)
    causes += _labels((template.get("metadata") or {}).get("labels"), "spec.template.metadata.labels")
    policy = pod.get("restartPolicy")
    if policy not in ("Never", "OnFailure"):
        causes.append(required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"'))
    causes += _failure_policy(spec, policy)
    return causes + _pod_spec(pod, "spec.template.spec")


def _job_counts(name: str, spec: Json) -> list[Cause]:
    causes = []
    for field in ("parallelism", "completions", "backoffLimit", "backoffLimitPerIndex", "maxFailedIndexes"):
        if isinstance(spec.get(field), int) and spec[field] < 0:
            causes.append(invalid(f"spec.{field}", spec[field], "must be greater than or equal to 0"))
    indexed = spec.get("completionMode") == "Indexed"
    completions, most_failed = spec.get("completions"), spec.get("maxFailedIndexes")
    if indexed:
        if completions is None:
            causes.append(required("spec.completions", "when completion mode is Indexed"))
        else:
            longest = f"{name}-{max(completions - 1, 0)}"
            causes += _dns_label("metadata.name", longest)
    elif spec.get("backoffLimitPerIndex") is not None:
        causes.append(invalid("spec.backoffLimitPerIndex", spec["backoffLimitPerIndex"], "requires indexed completion mode"))
    if most_failed is not None:
        if spec.get("backoffLimitPerIndex") is None:
            text = "when maxFailedIndexes is specified"
            causes.append(required("spec.backoffLimitPerIndex", text))
        if completions is not None and most_failed > completions:
            causes.append(invalid("spec.maxFailedIndexes", most_failed, "must be less than or equal to completions"))
    return causes


def _failure_policy(spec: Json, policy: str | None) -> list[Cause]:
    replacement = spec.get("podReplacementPolicy")
    if spec.get("podFailurePolicy") is None:
        if replacement in (None, "Failed", "TerminatingOrFailed"):
            return []
        text = f'Unsupported value: "{replacement}": supported values: "Failed", "TerminatingOrFailed"'
        return [Cause("spec.podReplacementPolicy", "FieldValueNotSupported", text)]
    causes = []
    if policy != "Never":
        text = 'only "Never" is supported when podFailurePolicy is specified'
        causes.append(invalid("spec.template.spec.restartPolicy", policy, text))
    if replacement != "Failed":
        text = f'Unsupported value: "{replacement}": supported values: "Failed"'
        causes.append(Cause("spec.podReplacementPolicy", "FieldValueNotSupported", text))
    for i, rule in enumerate(spec["podFailurePolicy"].get("rules") or ()):
        at = f"spec.podFailurePolicy.rules[{i}]"
        if rule.get("action") == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            causes.append(invalid(f"{at}.action", "FailIndex", "requires the backoffLimitPerIndex field to be specified"))
        has_codes, has_conditions = "onExitCodes" in rule, bool(rule.get("onPodConditions"))
        if has_codes == has_conditions:
            text = (
                "specifying one of OnExitCodes and OnPodConditions is required"
                if not has_codes
                else ("specifying both OnExitCodes and OnPodConditions is not supported")
            )
            causes.append(invalid(at, None, text))
        if has_codes and rule["onExitCodes"].get("operator") == "In" and 0 in (rule["onExitCodes"].get("values") or ()):
            causes.append(invalid(f"{at}.onExitCodes.values[0]", 0, "must not be 0 for the In operator"))
    return causes


def _job_change(before: Json, after: Json) -> list[Cause]:
    causes = []
    for field in ("completionMode", "podFailurePolicy", "backoffLimitPerIndex", "selector", "managedBy"):
        if before.get(field) != after.get(field):
            causes.append(invalid(f"spec.{field}", after.get(field), _IMMUTABLE))
    if before.get("completions") != after.get("completions"):
        elastic = after.get("completionMode") == "Indexed" and after.get("completions") == after.get("parallelism")
        if after.get("completionMode") != "Indexed":
            causes.append(invalid("spec.completions", after.get("completions"), _IMMUTABLE))
        elif not elastic:
            text = "can only be modified in tandem with spec.parallelism"
            causes.append(invalid("spec.completions", after.get("completions"), text))
    old, new = copied(before.get("template") or {}), copied(after.get("template") or {})
    if before.get("suspend"):
        for template in (old, new):
            _without_what_may_change(template)
    if old != new:
        causes.append(invalid("spec.template", "the template of the pods", _IMMUTABLE))
    return causes


def _without_what_may_change(template: Json) -> None:
    """Of a suspended Job: where its pods may go, their labels, and (since 1.36) their resources. Never the image."""
    template.get("metadata", {}).pop("labels", None)
    template.get("metadata", {}).pop("annotations", None)
    spec = template.get("spec") or {}
    for field in ("nodeSelector", "tolerations", "schedulingGates"):
        spec.pop(field, None)
    (spec.get("affinity") or {}).pop("nodeAffinity", None)
    if not spec.get("affinity"):
        spec.pop("affinity", None)
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        container.pop("resources", None)


# --- pods --------------------------------------------------------------------------------------------------


def _pod(obj: Json) -> list[Cause]:
    return _pod_spec(obj["spec"], "spec")


def _daemon_set(obj: Json) -> list[Cause]:
    spec = obj["spec"]
    causes = []
    if not spec.get("selector"):
        causes.append(required("spec.selector"))
    return causes + _pod_spec((spec.get("template") or {}).get("spec") or {}, "spec.template.spec")


def _pod_spec(spec: Json, at: str) -> list[Cause]:
    causes = []
    if not spec.get("containers"):
        causes.append(required(f"{at}.containers"))
    volumes = [volume.get("name") for volume in spec.get("volumes") or ()]
    names: set[str] = set()
    for group in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(group) or ()):
            here = f"{at}.{group}[{i}]"
            name = container.get("name")
            if not name:
                causes.append(required(f"{here}.name"))
            elif name in names:
                causes.append(Cause(f"{here}.name", "FieldValueDuplicate", f'Duplicate value: "{name}"'))
            else:
                causes += _dns_label(f"{here}.name", name)
            names.add(name or "")
            if not container.get("image"):
                causes.append(required(f"{here}.image"))
            causes += _resources(container.get("resources") or {}, f"{here}.resources")
            for k, mount in enumerate(container.get("volumeMounts") or ()):
                if mount.get("name") not in volumes:
                    text = f'Not found: "{mount.get("name")}"'
                    causes.append(Cause(f"{here}.volumeMounts[{k}].name", "FieldValueNotFound", text))
            causes += _restart_rules(container, here)
    for field in ("hostname", "subdomain"):
        if spec.get(field):
            causes += _dns_label(f"{at}.{field}", spec[field])
    return causes


def _resources(resources: Json, at: str) -> list[Cause]:
    causes = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for which, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            if not _QUANTITY.match(str(amount)):
                text = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                causes.append(invalid(f"{at}.{which}[{name}]", str(amount), text))
    for name, amount in requests.items():
        extended = "/" in name
        if extended and name not in limits:
            causes.append(required(f"{at}.limits", "Limit must be set for non overcommitable resources"))
        elif extended and str(limits[name]) != str(amount):
            text = f"must be equal to {name} limit of {limits[name]}"
            causes.append(invalid(f"{at}.requests", str(amount), text))
        elif name in limits and quantity(amount) > quantity(limits[name]):
            text = f"must be less than or equal to {name} limit of {limits[name]}"
            causes.append(invalid(f"{at}.requests", str(amount), text))
    return causes


def _restart_rules(container: Json, at: str) -> list[Cause]:
    if container.get("restartPolicyRules") and not container.get("restartPolicy"):
        return [required(f"{at}.restartPolicy", "must specify restartPolicy when restart rules are used")]
    return []


def _pod_change(before: Json, after: Json) -> list[Cause]:
    old, new = copied(before), copied(after)
    for spec in (old, new):
        for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
            container.pop("image", None)
            container.pop("resources", None)
        for field in ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "nodeName"):
            spec.pop(field, None)
    if old != new:
        text = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
            "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
        )
        return [Cause("spec", "FieldValueForbidden", text)]
    return []


# --- the rest ----------------------------------------------------------------------------------------------


def _budget(obj: Json) -> list[Cause]:
    spec = obj.get("spec") or {}
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        return [invalid("spec", "minAvailable and maxUnavailable", "minAvailable and maxUnavailable cannot be both set")]
    causes = []
    for field in ("minAvailable", "maxUnavailable"):
        value = spec.get(field)
        if isinstance(value, int) and value < 0:
            causes.append(invalid(f"spec.{field}", value, "must be greater than or equal to 0"))
        elif isinstance(value, str) and not re.match(r"^\d+%$", value):
            text = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%')"
            causes.append(invalid(f"spec.{field}", value, text))
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy not in (None, "AlwaysAllow", "IfHealthyBudget"):
        text = f'Unsupported value: "{policy}": supported values: "AlwaysAllow", "IfHealthyBudget"'
        causes.append(Cause("spec.unhealthyPodEvictionPolicy", "FieldValueNotSupported", text))
    return causes


def _service(obj: Json) -> list[Cause]:
    spec = obj.get("spec") or {}
    ports = spec.get("ports") or []
    if not ports and spec.get("clusterIP") != "None":
        return [required("spec.ports")]
    causes = []
    for i, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            causes.append(required(f"spec.ports[{i}].name"))
        number = port.get("port")
        if not isinstance(number, int) or not 1 <= number <= 65535:
            causes.append(invalid(f"spec.ports[{i}].port", number, "must be between 1 and 65535, inclusive"))
    return causes


def _config_map(obj: Json) -> list[Cause]:
    return [
        invalid(f"data[{name}]", value, "must be a string")
        for name, value in (obj.get("data") or {}).items()
        if not isinstance(value, str)
    ]


def quantity(text: object) -> float:
    """8, "500m", "16Gi" as a number."""
    found = re.match(r"^([+-]?[\d.]+)(.*)$", str(text))
    if found is None:
        return 0.0
    number, unit = found.groups()
    scale = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
    binary = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
    return float(number) * float(binary.get(unit, scale.get(unit, 1)))


_NEW: dict[str, Callable[[Json], list[Cause]]] = {
    "Job": _job,
    "Pod": _pod,
    "DaemonSet": _daemon_set,
    "PodDisruptionBudget": _budget,
    "Service": _service,
    "ConfigMap": _config_map,
}
