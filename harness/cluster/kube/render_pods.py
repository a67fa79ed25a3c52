"""The two pods of a run: values of the spec set in the base's head and worker templates."""

from __future__ import annotations

import math
from typing import Any

from harness.cluster.base import ClusterError
from harness.cluster.kube import names
from harness.cluster.kube.render_base import Object
from harness.kubespec import KubernetesSpec, TolerationSpec
from harness.metrics.exposition import listen_address
from harness.spec import RunSpec

IN_PLACE_EXIT = 88  # a worker that ends with it asks to be started again in the same pod
VIDEO_GROUP = 44
METRICS_FOLDER = "/etc/paceline-metrics"  # what metrics.gpu names by file: tokens, passwords, certificates


def set_head(template: Object, spec: RunSpec, run: str, instance: str) -> None:
    kube = spec.cluster.kubernetes
    pod, container = _common(template, spec, instance, "head")
    near = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"]
    near["labelSelector"]["matchLabels"] = names.labels(instance, "worker")
    container["image"] = kube.image("head")
    _set_argument(container, "--run", f"{kube.results_mount.rstrip('/')}/{run}")
    container["resources"] = {
        "requests": {"cpu": kube.head_cpu, "memory": kube.head_memory},
        "limits": {"memory": kube.head_memory},
    }
    wanted = {"control": kube.control_port, "telemetry": kube.telemetry_port}
    for port in container["ports"]:
        port["containerPort"] = wanted.get(port["name"], port["containerPort"])
    _volume(pod, "run")["configMap"]["name"] = names.config_map(instance)
    _volume(pod, "keys")["secret"]["secretName"] = names.keys_secret(instance, "head")
    _volume(pod, "results")["persistentVolumeClaim"]["claimName"] = kube.results_claim
    _mount(container, "results")["mountPath"] = kube.results_mount
    if kube.data_claim:
        _add_claim(pod, container, "data", kube.data_claim, kube.data_mount)
    if kube.metrics_secret:
        secret = {"secretName": kube.metrics_secret, "defaultMode": 0o440}  # of root and of fsGroup
        pod["volumes"].append({"name": "metrics", "secret": secret})
        container["volumeMounts"].append({"name": "metrics", "mountPath": METRICS_FOLDER, "readOnly": True})
    if kube.tolerations:
        pod["tolerations"] = [_toleration(one) for one in kube.tolerations]
    _check_mounts(container, {kube.results_mount: "results_mount", kube.data_mount: "data_mount"})


def set_worker(template: Object, spec: RunSpec, instance: str, *, restart_rules: bool) -> None:
    kube = spec.cluster.kubernetes
    pod, container = _common(template, spec, instance, "worker")
    pod["subdomain"] = names.job(instance, "worker")
    container["image"] = kube.image("worker")
    head = f"tcp://{names.head_host(instance, kube.namespace)}:{kube.control_port}"
    _set_argument(container, "--head", head)
    _volume(pod, "keys")["secret"]["secretName"] = names.keys_secret(instance, "worker")
    _volume(pod, "shm")["emptyDir"]["sizeLimit"] = kube.shm
    if kube.model_claim:
        _add_claim(pod, container, "models", kube.model_claim, kube.model_mount)
    _set_placement(pod, spec, instance)
    _set_environment(container, kube)
    _set_resources(container, spec)
    probe = container["startupProbe"]
    probe["failureThreshold"] = math.ceil(kube.startup_s / probe["periodSeconds"])
    if kube.security == "rocm":
        pod["securityContext"]["seccompProfile"]["type"] = "Unconfined"
        pod["securityContext"]["supplementalGroups"] = [VIDEO_GROUP]
    if restart_rules:
        exit_codes = {"operator": "In", "values": [IN_PLACE_EXIT]}
        container["restartPolicy"] = "Never"
        container["restartPolicyRules"] = [{"action": "Restart", "exitCodes": exit_codes}]
    _check_mounts(container, {kube.model_mount: "model_mount"})


def _common(template: Object, spec: RunSpec, instance: str, component: names.Component) -> tuple[Object, Object]:
    kube = spec.cluster.kubernetes
    template["metadata"]["labels"] = names.labels(instance, component)
    pod: Object = template["spec"]
    (container,) = pod["containers"]
    pod["terminationGracePeriodSeconds"] = kube.grace_s
    container["imagePullPolicy"] = kube.pull_policy
    if kube.pull_secret:
        pod["imagePullSecrets"] = [{"name": kube.pull_secret}]
    _set_metrics_port(container, spec)
    return pod, container


def _set_metrics_port(container: Object, spec: RunSpec) -> None:
    """Named, so that a PodMonitor finds it; not there where nothing listens, or on a free port that nobody knows before."""
    address = listen_address(spec.metrics, spec.cluster)
    if address is not None and address[1]:
        _named(container["ports"], "metrics")["containerPort"] = address[1]
        return
    container["ports"] = [port for port in container["ports"] if port["name"] != "metrics"]
    if not container["ports"]:
        del container["ports"]


def _set_placement(pod: Object, spec: RunSpec, instance: str) -> None:
    kube = spec.cluster.kubernetes
    affinity = pod.pop("affinity")
    (apart,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    apart["labelSelector"]["matchLabels"] = names.labels(instance, "worker")
    if not kube.one_per_node:
        del affinity["podAntiAffinity"]
    if kube.avoid_nodes:
        # By name, not by the label kubernetes.io/hostname, which is another one on some clouds; one name a requirement.
        away = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in kube.avoid_nodes]
        terms = {"nodeSelectorTerms": [{"matchFields": away}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    if affinity:
        pod["affinity"] = affinity
    if kube.node_selector:
        pod["nodeSelector"] = dict(kube.node_selector)
    if spec.gpus_per_worker:
        pod["tolerations"].append({"key": kube.gpu_resource, "operator": "Exists", "effect": "NoSchedule"})
    pod["tolerations"].extend(_toleration(one) for one in kube.tolerations)


def _set_resources(container: Object, spec: RunSpec) -> None:
    """No limit of memory: /dev/shm counts towards it. Of GPUs request and limit must be equal."""
    kube = spec.cluster.kubernetes
    requests = {"cpu": kube.worker_cpu, "memory": kube.worker_memory}
    container["resources"] = {"requests": requests}
    if spec.gpus_per_worker:
        gpus = {kube.gpu_resource: str(spec.gpus_per_worker)}
        container["resources"] = {"requests": requests | gpus, "limits": gpus}


def _set_environment(container: Object, kube: KubernetesSpec) -> None:
    """Variables of the spec win over those of the base, but for what Paceline itself reads."""
    environment: dict[str, Object] = {one["name"]: one for one in container["env"]}
    if kube.hub_token_secret:
        environment["HF_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] = kube.hub_token_secret
    else:
        del environment["HF_TOKEN"]
    for name, value in kube.env.items():
        if name in ("POD_NAME", "POD_NAMESPACE", "NODE_NAME", "POD_IP", "JOB_COMPLETION_INDEX"):
            raise ClusterError(f'cluster.kubernetes.env "{name}": is set by the cluster for each pod; leave it out')
        environment[name] = {"name": name, "value": value}
    container["env"] = list(environment.values())


def _toleration(one: TolerationSpec) -> Object:
    found = {"key": one.key, "operator": one.operator, "value": one.value, "effect": one.effect}
    plain: Object = {name: value for name, value in found.items() if value is not None}
    return plain if one.toleration_s is None else plain | {"tolerationSeconds": one.toleration_s}


def _set_argument(container: Object, option: str, value: str) -> None:
    args: list[str] = container["args"]
    args[args.index(option) + 1] = value


def _volume(pod: Object, name: str) -> Object:
    return _named(pod["volumes"], name)


def _mount(container: Object, name: str) -> Object:
    return _named(container["volumeMounts"], name)


def _named(things: list[Any], name: str) -> Object:
    found: Object = next(thing for thing in things if thing["name"] == name)
    return found


def _add_claim(pod: Object, container: Object, name: str, claim: str, path: str) -> None:
    pod["volumes"].append({"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
    container["volumeMounts"].append({"name": name, "mountPath": path, "readOnly": True})


def _check_mounts(container: Object, fields: dict[str, str]) -> None:
    """The API refuses two volumes in one place, and `:` in a path."""
    seen: dict[str, str] = {}
    for mount in container["volumeMounts"]:
        path: str = mount["mountPath"]
        field = fields.get(path, "")
        if ":" in path:
            raise ClusterError(f'cluster.kubernetes.{field} "{path}": a path in a pod has no ":"; use one like /{mount["name"]}')
        if path.rstrip("/") in seen:
            field = field or fields.get(seen[path.rstrip("/")], "")
            raise ClusterError(
                f'cluster.kubernetes.{field} "{path}": another volume is mounted there; use one like /mnt/{mount["name"]}'
            )
        seen[path.rstrip("/")] = path
