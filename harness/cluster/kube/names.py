"""What a run's objects are called and labelled. The only place that knows.

Labels are Kubernetes' recommended ones: `app.kubernetes.io/name: paceline`, `…/instance: RUN`, `…/component: head|worker`.
Selecting by name and instance finds all of a run and nothing else; the components' selectors share no pod.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal

Component = Literal["head", "worker"]

APP = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
FIELD_MANAGER = "paceline"

INDEX = "batch.kubernetes.io/job-completion-index"
JOB_NAME = "batch.kubernetes.io/job-name"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURES = "batch.kubernetes.io/job-index-ignored-failure-count"
RACK = "topology.kubernetes.io/zone"

_LONGEST = 40  # leaves room for "-operator-keys" and for what the Job controller adds to the name of a pod


def instance_of(run: str) -> str:
    """The run's name as a DNS label of at most 40 characters; different runs get different ones."""
    label = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    if not label[:1].isalpha():
        label = f"run-{label}".rstrip("-")  # a Service's name begins with a letter
    if label == run and len(label) <= _LONGEST:
        return label
    digest = hashlib.sha256(run.encode()).hexdigest()[:6]
    return f"{label[: _LONGEST - 7].strip('-') or 'run'}-{digest}"


def labels(instance: str, component: Component | None = None) -> dict[str, str]:
    found = {APP: "paceline", INSTANCE: instance}
    return found | {COMPONENT: component} if component else found


def selector(instance: str, component: Component | None = None) -> str:
    """As the query parameter labelSelector wants it."""
    return ",".join(f"{name}={value}" for name, value in labels(instance, component).items())


def config_map(instance: str) -> str:
    """The one object that owns all others of a run."""
    return f"{instance}-run"


def job(instance: str, component: Component) -> str:
    """Also the name of the component's Service and of its PodDisruptionBudget."""
    return f"{instance}-{component}"


def keys_secret(instance: str, role: Literal["head", "worker", "operator", "viewer"]) -> str:
    return f"{instance}-{role}-keys"


def head_host(instance: str, namespace: str) -> str:
    """Stable over restarts of the head's pod."""
    return f"{job(instance, 'head')}.{namespace}.svc"
