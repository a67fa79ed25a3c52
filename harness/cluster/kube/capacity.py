"""Whether a cluster has room for the workers of a run at this moment: nodes that could take one, and what is left of a quota.

Answers what the scheduler will be asked, from nodes, taints and accelerators; cpu and memory are left to it. Where nodes may
not be read it is said that it is not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.cluster.kube.api import Api, ApiProblem
from harness.cluster.kube.views import NodeView, Taint, reduce_node
from harness.doctor import Check
from harness.kubespec import KubernetesSpec, TolerationSpec
from harness.spec import RunSpec

_HARD = ("NoSchedule", "NoExecute")


async def capacity(api: Api, spec: RunSpec) -> Check:
    kube, wanted, gpus = spec.cluster.kubernetes, first_nodes(spec), spec.gpus_per_worker
    try:
        nodes = [reduce_node(raw) for raw in await api.list("Node")]
    except ApiProblem as problem:
        if not problem.forbidden:
            raise
        fix = "an admin can allow it: kubectl apply -f manifests/components/nodes/nodes.yaml"
        return Check("capacity", None, f"you may not read nodes, so it is not known whether {wanted} can be had", fix)
    held = await _held(api, kube.gpu_resource) if gpus else {}
    why_not: dict[str, int] = {}
    places = 0
    for node in nodes:
        why = _why_not(node, kube, gpus)
        if not why and gpus:
            free = node.gpus(kube.gpu_resource)[0] - (held or {}).get(node.name, 0)
            fit = free // gpus
            why = "" if fit else f"fewer than {gpus} free {kube.gpu_resource}"
        else:
            fit = 1
        if why:
            why_not[why] = why_not.get(why, 0) + 1
        else:
            places += 1 if kube.one_per_node or not gpus else fit
    each = f" with {gpus} {kube.gpu_resource} each" if gpus else ""
    others = f" (the others: {', '.join(f'{n} {why}' for why, n in why_not.items())})" if why_not else ""
    unsure = "; what other pods hold is not known, as you may not list them" if held is None else ""
    if not gpus and not kube.one_per_node:
        return Check("capacity", bool(places), f"{places} of {len(nodes)} nodes can take workers{others}")
    detail = f"{places} of {len(nodes)} nodes can take a worker{each}, {wanted} wanted{others}{unsure}"
    if places < wanted:
        fix = f"fleet.nodes = {places}, or free nodes first" if places else "free nodes first, or look at selector and taints"
        return Check("capacity", False, detail, fix)
    return Check("capacity", True, detail)


def first_nodes(spec: RunSpec) -> int:
    return spec.cluster.kubernetes.start_nodes or spec.fleet.nodes


def _why_not(node: NodeView, kube: KubernetesSpec, gpus: int) -> str:
    if not node.ready:
        return "NotReady"
    if node.cordoned:
        return "cordoned"
    if node.name in kube.avoid_nodes:
        return "to be avoided"
    if any(node.labels.get(key) != value for key, value in kube.node_selector.items()):
        return "not of the node selector"
    tolerated = [*kube.tolerations, *([TolerationSpec(key=kube.gpu_resource, effect="NoSchedule")] if gpus else [])]
    untolerated = [taint for taint in node.taints if taint.effect in _HARD and not _tolerates(tolerated, taint)]
    return f"with taint {untolerated[0]}" if untolerated else ""


def _tolerates(tolerations: Iterable[TolerationSpec], taint: Taint) -> bool:
    return any(
        one.key in (None, taint.key)
        and one.effect in (None, taint.effect)
        and (one.operator == "Exists" or (one.value or "") == taint.value)
        for one in tolerations
    )


async def _held(api: Api, resource: str) -> dict[str, int] | None:
    """Accelerators that pods hold, by node. None: pods of other namespaces may not be listed."""
    held: dict[str, int] = {}
    try:
        async for page in api.pages("Pod", fields="status.phase!=Succeeded,status.phase!=Failed", namespace="*"):
            for pod in page.get("items") or ():
                _add(held, pod.get("spec") or {}, resource)
    except ApiProblem as problem:
        if not problem.forbidden:
            raise
        return None
    return held


def _add(held: dict[str, int], pod: dict[str, Any], resource: str) -> None:
    node, total = pod.get("nodeName"), 0
    for container in pod.get("containers") or ():
        amount = str(((container.get("resources") or {}).get("limits") or {}).get(resource) or "")
        total += int(amount) if amount.isdigit() else 0
    if node and total:
        held[str(node)] = held.get(str(node), 0) + total


async def quota(api: Api, spec: RunSpec) -> list[Check]:
    """Of pods and accelerators; the rest shows as a reason when a pod cannot be made."""
    wanted = first_nodes(spec)
    resource = spec.cluster.kubernetes.gpu_resource
    need = {"pods": wanted + 1, "count/pods": wanted + 1, "count/jobs.batch": 2}
    if spec.gpus_per_worker:
        need[f"requests.{resource}"] = wanted * spec.gpus_per_worker
    try:
        quotas = await api.list("ResourceQuota")
    except ApiProblem as problem:
        if not problem.forbidden:
            raise
        return [Check("quota", None, "you may not read quotas, so it is not known what is left of them")]
    short = []
    for one in quotas:
        status = one.get("status") or {}
        hard, used = status.get("hard") or {}, status.get("used") or {}
        for name, amount in need.items():
            if str(hard.get(name, "")).isdigit():
                left = int(hard[name]) - int(used[name] if str(used.get(name, "")).isdigit() else 0)
                if left < amount:
                    short.append(f"{amount} {name} needed, {left} of {hard[name]} left by quota {one['metadata']['name']}")
    if short:
        return [Check("quota", False, "; ".join(short), "ask for a larger quota, or fewer nodes (fleet.nodes)")]
    return [Check("quota", True, "what is left of the quotas is enough" if quotas else "the namespace has no quota")]
