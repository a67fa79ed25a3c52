"""What must hold on a cluster before a run is placed there. Everything is looked at and nothing is made.

Checks are named `cluster`, `namespace`, `rights`, …; each failure has its next step. A finding that hangs on another (no
answer, no namespace) is not repeated for all that follow.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from harness.cluster.base import ClusterError
from harness.cluster.kube.access import Access, access
from harness.cluster.kube.api import Api, ApiProblem, once
from harness.cluster.kube.capacity import capacity, quota
from harness.cluster.kube.features import features_of
from harness.cluster.kube.kubeconfig import has_kubeconfig
from harness.cluster.kube.render import Features, notes, render
from harness.doctor import Check
from harness.kubespec import KubernetesSpec, quantity
from harness.spec import RunSpec
from harness.wire.keys import ServerKeys

#: Long enough for a name of a run as `new_run_folder` makes it.
_TRIAL_STAMP = "-20000101-000000"
_TIMEOUT_S = 10.0

_ALL = ("get", "list", "create", "patch", "delete")
#: (verbs, resource, group): what whoever starts a run must be allowed. manifests/install/operators.yaml gives it.
RIGHTS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (_ALL, "configmaps", ""),
    (("create", "patch"), "secrets", ""),
    (("create", "patch"), "services", ""),
    (("create", "patch"), "poddisruptionbudgets", "policy"),
    (("create", "patch"), "networkpolicies", "networking.k8s.io"),
    (("get", "list", "create", "patch"), "jobs", "batch"),
    (("get", "list"), "pods", ""),
)
_FORWARD = (("get", "create"), "pods/portforward", "")
_JOB_SET = (("get", "create", "patch"), "jobsets", "jobset.x-k8s.io")

_IMAGE = re.compile(
    r"(?P<host>(?:[a-zA-Z0-9.-]+(?::\d+)?|\[[0-9a-fA-F:]+\](?::\d+)?)/)?"
    r"(?P<path>[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
#: What collective libraries take of /dev/shm for each pair of ranks, generously.
_SHM_PER_RANK_BYTES = 1 << 30


def preflight(spec: RunSpec, way: Access | None = None) -> list[Check]:
    """Blocking. Never raises for what it finds."""
    still = [image("head", spec), image("worker", spec), *engine_in_pods(spec), shm(spec)]
    try:
        way = way or access(spec.cluster.kubernetes.context)
        return [*asyncio.run(_asked(spec, way)), *still]
    except ClusterError as error:
        return [Check("cluster", False, str(error)), *still]


async def _asked(spec: RunSpec, way: Access) -> list[Check]:
    kube = spec.cluster.kubernetes
    async with Api(way, kube.namespace, timeout_s=_TIMEOUT_S) as api:
        try:
            version = await api.version()
            there = await namespace(api)
        except ApiProblem as problem:
            return [Check("cluster", False, str(problem))]
        checks = [Check("cluster", True, f"Kubernetes {version} at {way.server} ({way.origin})"), there]
        if there.ok is False:
            return checks
        for ask in (_rights, _claims, _objects, _capacity, _quota):
            try:
                checks += await ask(api, spec)
            except ClusterError as error:
                checks.append(Check(ask.__name__.strip("_"), None, f"could not be looked at: {error}"))
        return checks


def reachable(timeout_s: float = 3.0) -> Check | None:
    """For `paceline doctor`: whether the kubeconfig's cluster answers; None without a kubeconfig. Never a failure: most runs
    need no cluster."""
    if not has_kubeconfig():
        return None
    try:
        way = access()
        version = once(way, lambda api: api.version(), timeout_s=timeout_s)
    except ClusterError as error:
        return Check("kubernetes", None, str(error), "only runs with cluster.kind = kubernetes need it")
    return Check("kubernetes", True, f"{version} at {way.server} ({way.origin})")


async def namespace(api: Api) -> Check:
    name = api.namespace
    found = await _looked_up(
        api,
        "Namespace",
        name,
        unknown=Check("namespace", None, f"{name}: you may not read namespaces, so it is not known whether it is there"),
        missing=Check(
            "namespace",
            False,
            f'cluster.kubernetes.namespace "{name}": there is no such namespace',
            "an admin makes it with `kubectl apply -k manifests/install`; or set another",
        ),
    )
    if isinstance(found, Check):
        return found
    if (found.get("status") or {}).get("phase") == "Terminating":
        return Check("namespace", False, f"{name} is being removed", "wait until it is gone and made anew, or set another")
    return Check("namespace", True, name)


async def _looked_up(api: Api, kind: str, name: str, *, unknown: Check, missing: Check) -> dict[str, Any] | Check:
    """The object, or what to say where it may not be read or is not there."""
    try:
        return await api.get(kind, name)
    except ApiProblem as problem:
        if problem.forbidden:
            return unknown
        if problem.not_found:
            return missing
        raise


async def _rights(api: Api, spec: RunSpec) -> list[Check]:
    kube = spec.cluster.kubernetes
    wanted = [*RIGHTS, *([] if kube.address else [_FORWARD]), *([_JOB_SET] if kube.jobset else [])]
    rules = await api.rules()
    missing = []
    for verbs, resource, group in wanted:
        lacking = []
        for verb in verbs:
            if not rules.may(verb, resource, group) and not await api.can_i(verb, resource, group):
                lacking.append(verb)
        if lacking:
            missing.append(f"{', '.join(lacking)} {resource}{f' ({group})' if group else ''}")
    if missing:
        return [
            Check(
                "rights",
                False,
                f"you may not, in namespace {api.namespace}: {'; '.join(missing)}",
                "an admin can bind you to the Role paceline-operator of manifests/install/operators.yaml",
            )
        ]
    return [Check("rights", True, f"you may do all that a run needs in namespace {api.namespace}")]


async def _claims(api: Api, spec: RunSpec) -> list[Check]:
    kube = spec.cluster.kubernetes
    fields = (("results_claim", kube.results_claim), ("model_claim", kube.model_claim), ("data_claim", kube.data_claim))
    return [await _claim(api, field, name) for field, name in fields if name]


async def _claim(api: Api, field: str, name: str) -> Check:
    what = f'cluster.kubernetes.{field} "{name}"'
    fix = "make it as manifests/install/claims.yaml does, or set another"
    found = await _looked_up(
        api,
        "PersistentVolumeClaim",
        name,
        unknown=Check("claims", None, f"{what}: you may not read it, so it is not known whether it is bound"),
        missing=Check("claims", False, f"{what}: namespace {api.namespace} has no such PersistentVolumeClaim", fix),
    )
    if isinstance(found, Check):
        return found
    phase = str((found.get("status") or {}).get("phase") or "unknown")
    if phase == "Bound":
        return Check("claims", True, f"{name} is bound")
    if phase == "Pending":
        # A class that waits for its first pod binds it only then.
        return Check("claims", None, f"{what} is not bound yet", f"`kubectl describe pvc {name}` says whether it will be")
    return Check("claims", False, f"{what} is {phase}", f"`kubectl describe pvc {name}` says why; its volume may be gone")


async def _objects(api: Api, spec: RunSpec) -> list[Check]:
    """A server-side dry-run of all that would be made, and what of the spec this cluster cannot do."""
    run = f"{spec.name}{_TRIAL_STAMP}"
    try:
        render(spec, run)
    except ClusterError as error:
        return [Check("objects", False, str(error))]
    features = await features_of(api, spec, run)
    rendered = render(spec, run, keys=ServerKeys.fresh(), features=features)
    refused = []
    for thing in rendered:
        try:
            await api.apply(thing, dry_run=True)
        except ApiProblem as problem:
            if problem.no_reply:
                raise
            if not problem.forbidden:  # the rights have been looked at
                refused.append(Check("objects", False, str(problem), _fix(problem)))
    found = refused or [Check("objects", True, f"the API server accepts all {len(rendered)} objects of the run")]
    return [*found, *(Check("features", None, note) for note in notes(spec, features)), *_features(spec, features)]


def _fix(problem: ApiProblem) -> str:
    if problem.code == 422:
        return "change what the field named comes from in [cluster.kubernetes]; `paceline manifests SPEC` shows the objects"
    return ""


def _features(spec: RunSpec, features: Features) -> list[Check]:
    kube = spec.cluster.kubernetes
    asked = ((kube.queue, features.kueue, "Kueue"), (kube.jobset, features.jobset, "JobSet"), (kube.gang, features.gang, "gangs"))
    used = [what for wanted, there, what in asked if wanted and there]
    used += ["restarts in place"] if features.restart_rules else []
    return [Check("features", True, f"used of this cluster: {', '.join(used)}")] if used else []


async def _capacity(api: Api, spec: RunSpec) -> list[Check]:
    return [await capacity(api, spec)]


async def _quota(api: Api, spec: RunSpec) -> list[Check]:
    return await quota(api, spec)


def image(which: Any, spec: RunSpec) -> Check:
    kube = spec.cluster.kubernetes
    name, field = kube.image(which), f"cluster.kubernetes.{which}_image"
    found = _IMAGE.fullmatch(name)
    if found is None:
        fix = "write it as registry.example.com/team/paceline-worker:0.1.0 or …@sha256:…"
        return Check("images", False, f'{field} "{name}": is no reference of an image', fix)
    if found["digest"]:
        return Check("images", True, f"{name}, by digest")
    if not kube.registry and not _has_host(name):
        return Check(
            "images",
            None,
            f'{field} "{name}": names no registry, so nodes take it from their default one, or have it already',
            "set cluster.kubernetes.registry to where the images were pushed",
        )
    return Check("images", None, f"{name}: without a digest two nodes may run two images", f"{field} = NAME@sha256:…")


def engine_in_pods(spec: RunSpec) -> list[Check]:
    """What a pod of a real engine lacks at its start, and nobody knows before it has been placed."""
    kube, found = spec.cluster.kubernetes, []
    if spec.fleet.engine == "vllm" and kube.worker_image == KubernetesSpec().worker_image:
        what = f'cluster.kubernetes.worker_image "{kube.worker_image}" is the default, which is built without vLLM'
        found.append(Check("engine", None, what, "build one with --build-arg BASE=…: manifests/images/Containerfile.worker"))
    path = spec.model.path
    if path and not kube.model_claim and Path(path).is_relative_to(kube.model_mount):
        what = f'model.path "{path}": no volume is mounted at {kube.model_mount}, so it has to be in the image'
        fix = "set cluster.kubernetes.model_claim to the claim with the weights (paceline-models)"
        found.append(Check("model", None, what, fix))
    store = spec.fleet.kernels.store
    if store and not (kube.model_claim and Path(store).is_relative_to(kube.model_mount)):
        what = f'fleet.kernels.store "{store}": on no volume of the workers, so it has to be in their image'
        fix = (
            f"put it on the claim with the weights (cluster.kubernetes.model_claim), and give its folder below {kube.model_mount}"
        )
        found.append(Check("kernels", None, what, fix))
    return found


def _has_host(name: str) -> bool:
    first, slash, _ = name.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


def shm(spec: RunSpec) -> Check:
    """Ranks of one engine talk over /dev/shm; too little shows as a hang or SIGBUS long after the start."""
    ranks = spec.fleet.layout.devices
    size = spec.cluster.kubernetes.shm
    there = quantity(size)
    need = ranks * _SHM_PER_RANK_BYTES * spec.fleet.replicas_per_node
    if ranks > 1 and there < need:
        return Check(
            "shm",
            None,
            f"cluster.kubernetes.shm {size} for {spec.fleet.replicas_per_node} x {ranks} ranks on a node",
            f"{need >> 30}Gi or more is safe: 1Gi a rank",
        )
    return Check("shm", True, f"/dev/shm of {size}")
