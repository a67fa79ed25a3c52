"""From a RunSpec to the Kubernetes objects of its run, in the order in which they are to be made.

    ConfigMap (owns all others) · Secrets of keys · Services · PodDisruptionBudgets · NetworkPolicy · head Job · worker Job

The same YAML that `kubectl apply -k manifests/…` takes is loaded and values are set in it, typed; templates of text would
lose types and quotes. A test holds what comes out equal to what kustomize makes of the overlays. What a cluster may lack
(Kueue, JobSet, gang scheduling, rules for restarts in place) is used only where `Features` says that it is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.cluster.base import ClusterError
from harness.cluster.kube import names
from harness.cluster.kube.render_base import Object, as_yaml, base_objects, manifests_folder
from harness.cluster.kube.render_jobset import child_job, job_set
from harness.cluster.kube.render_keys import key_secrets
from harness.cluster.kube.render_pods import set_head, set_worker
from harness.spec import RunSpec
from harness.wire.keys import ServerKeys

__all__ = [
    "QUEUE_LABEL", "RUN_NAME", "Features", "Object", "as_yaml", "available", "child_job", "key_secrets", "manifests_folder",
    "notes", "owned_by", "render", "replicas_patch",
]  # fmt: skip

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SERVICE = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")  # an RFC 1035 label: unlike other names it begins with a letter


@dataclass(frozen=True, slots=True)
class Features:
    """What a cluster has beyond what every cluster has; preflight finds out."""

    kueue: bool = False
    jobset: bool = False
    gang: bool = False
    restart_rules: bool = False  # restartPolicyRules of containers: a dry-run's answer still has the field

    @classmethod
    def asked_for(cls, spec: RunSpec) -> Features:
        """All that the spec asks for, where no cluster can be asked. Rules for restarts are nothing that a spec asks for."""
        kube = spec.cluster.kubernetes
        return cls(kueue=kube.queue is not None, jobset=kube.jobset, gang=kube.gang)


def render(spec: RunSpec, run: str, *, keys: ServerKeys | None = None, features: Features = Features()) -> list[Object]:
    """Every object of the run, each with its namespace and labels. Secrets only of `keys`. Raises ClusterError."""
    instance, kube, nodes = _instance(spec, run), spec.cluster.kubernetes, _first_nodes(spec)
    base = base_objects()
    for (_, end), thing in base.items():
        _name(thing, f"{instance}-{end}", kube.namespace, names.labels(instance, _component(end)))
    config = base["ConfigMap", "run"]
    config["data"] = {"run": run, "spec.json": spec.model_dump_json(indent=2)}
    for component in ("head", "worker"):
        base["Service", component]["spec"]["selector"] = names.labels(instance, component)
        base["PodDisruptionBudget", component]["spec"]["selector"]["matchLabels"] = names.labels(instance, component)
    base["PodDisruptionBudget", "worker"]["spec"]["minAvailable"] = available(nodes, spec)
    for port in base["Service", "head"]["spec"]["ports"]:
        port["port"] = kube.control_port if port["name"] == "control" else kube.telemetry_port
    _set_policy(base["NetworkPolicy", "head"], spec, instance)
    head, worker = base["Job", "head"], base["Job", "worker"]
    head["spec"]["backoffLimit"] = kube.head_restarts
    worker["spec"].update(_size(nodes, spec))
    set_head(head["spec"]["template"], spec, run, instance)
    set_worker(worker["spec"]["template"], spec, instance, restart_rules=features.restart_rules)
    queued: list[Object] = [worker]
    jobs = [base.pop(("Job", "head")), base.pop(("Job", "worker"))]
    if kube.jobset and features.jobset:
        jobs = queued = [job_set(instance, kube.namespace, head, worker)]
    if kube.queue and features.kueue:
        queued[0]["metadata"]["labels"][QUEUE_LABEL] = kube.queue
    del base["ConfigMap", "run"]
    secrets = key_secrets(instance, kube.namespace, keys) if keys else []
    return [config, *secrets, *base.values(), *jobs]


def notes(spec: RunSpec, features: Features) -> list[str]:
    """What the spec asks for and this cluster lacks, hence is left out; in words."""
    kube = spec.cluster.kubernetes
    wanted = (
        (kube.queue, features.kueue, f'queue "{kube.queue}"', "Kueue", "the workers do not wait in a queue"),
        (kube.jobset, features.jobset, "jobset", "JobSet", "head and workers are two Jobs"),
        (kube.gang, features.gang, "gang", "gang scheduling of Jobs", "workers are placed one by one as nodes come free"),
    )
    return [
        f"cluster.kubernetes.{field}: this cluster has no {what}; left out, {instead}"
        for asked, there, field, what, instead in wanted
        if asked and not there
    ]


def owned_by(objects: Iterable[Object], config_map_uid: str) -> list[Object]:
    """The same objects, owned by the run's ConfigMap (which is among them and stays as it is)."""
    objects = list(objects)
    (owner,) = [thing["metadata"]["name"] for thing in objects if thing["kind"] == "ConfigMap"]
    reference = {
        "apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": config_map_uid,
        "blockOwnerDeletion": True,  # a foreground deletion of the ConfigMap ends when all is gone
    }  # fmt: skip
    return [
        thing if thing["kind"] == "ConfigMap" else thing | {"metadata": thing["metadata"] | {"ownerReferences": [reference]}}
        for thing in objects
    ]


def replicas_patch(nodes: int, spec: RunSpec) -> dict[str, Object]:
    """Merge patches by kind for another number of nodes: of the worker Job, and of its PodDisruptionBudget.

    To shrink, patch the budget first, else it counts on pods that are leaving; to grow, the Job first. maxFailedIndexes goes
    along because the API refuses one above completions.
    """
    most = spec.fleet.nodes
    if not 1 <= nodes <= most:
        raise ClusterError(f"nodes {nodes}: the run can have 1 to {most} (fleet.nodes = {most}); start another run for more")
    return {
        "Job": {"spec": _size(nodes, spec)},
        "PodDisruptionBudget": {"spec": {"minAvailable": available(nodes, spec)}},
    }


def available(nodes: int, spec: RunSpec) -> int:
    """minAvailable of the workers' budget: so many stay when evictions are allowed at all."""
    return max(0, nodes - spec.cluster.kubernetes.max_evictions)


def _size(nodes: int, spec: RunSpec) -> Object:
    failures = min(spec.cluster.kubernetes.max_failed, nodes)
    return {"parallelism": nodes, "completions": nodes, "maxFailedIndexes": failures}


def _first_nodes(spec: RunSpec) -> int:
    return spec.cluster.kubernetes.start_nodes or spec.fleet.nodes


def _instance(spec: RunSpec, run: str) -> str:
    if spec.cluster.kind != "kubernetes":
        raise ClusterError(f'cluster.kind "{spec.cluster.kind}": has no Kubernetes objects; use cluster.kind = kubernetes')
    if not RUN_NAME.fullmatch(run):
        raise ClusterError(f'run "{run}": cannot name a run; use letters, digits, ".", "_" and "-", first a letter')
    instance = names.instance_of(run)
    if not _SERVICE.fullmatch(instance):
        raise ClusterError(
            f'run "{run}": would give the Service {names.job(instance, "head")}; use a name that begins with a letter'
        )
    return instance


def _component(end: str) -> names.Component | None:
    return "head" if end == "head" else "worker" if end == "worker" else None


def _name(thing: Object, name: str, namespace: str, labels: dict[str, str]) -> None:
    thing["metadata"].update(name=name, namespace=namespace, labels=labels)


def _set_policy(policy: Object, spec: RunSpec, instance: str) -> None:
    policy["spec"]["podSelector"]["matchLabels"] = names.labels(instance, "head")
    workers, operators = policy["spec"]["ingress"]
    workers["from"][0]["podSelector"]["matchLabels"] = names.labels(instance, "worker")
    if spec.cluster.kubernetes.address:
        # Consoles come from outside by that address: whatever leads them to the head, their own addresses are not known.
        policy["spec"]["ingress"].append({"ports": operators["ports"]})
