"""Runs of a namespace that were started elsewhere: which there are, and a folder here for one of them.

A run is known by its ConfigMap, which has its name and spec. Its keys are in Secrets: whoever may read the operators' may
act on the run, whoever may read only the viewers' may watch it.
"""

from __future__ import annotations

import base64
import os
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from harness.cluster.base import ClusterError
from harness.cluster.kube import names
from harness.cluster.kube.access import Access
from harness.cluster.kube.api import Api, ApiProblem
from harness.cluster.kube.linkfile import LinkFile, write_link
from harness.cluster.kube.render import RUN_NAME
from harness.cluster.kube.views import JobView, reduce_job
from harness.records.files import write_atomically
from harness.records.layout import RunFolder
from harness.spec import RunSpec
from harness.wire.keys import KeyProblem, load_client_keys

_SUFFIX = "-run"
Role = Literal["operator", "viewer"]
_KEY_FILES = ("operator.key", "viewer.key")


@dataclass(frozen=True, slots=True)
class RemoteRun:
    run: str
    instance: str
    namespace: str
    spec_json: str
    created_unix: float
    head: str  # running, ended, failed, pending, none
    nodes: int  # workers asked for
    ready: int


async def remote_runs(api: Api) -> list[RemoteRun]:
    """Newest first. Raises ClusterError, also where ConfigMaps may not be read."""
    configs = await api.list("ConfigMap", selector=f"{names.APP}=paceline,{names.INSTANCE}")
    jobs: dict[tuple[str, str], JobView] = {}
    for raw in await api.list("Job", selector=f"{names.APP}=paceline,{names.INSTANCE}"):
        view = reduce_job(raw)
        jobs[str(raw["metadata"]["labels"][names.INSTANCE]), view.component] = view
    found = [_run(raw, api.namespace, jobs) for raw in configs if str(raw["metadata"]["name"]).endswith(_SUFFIX)]
    return sorted(found, key=lambda run: run.created_unix, reverse=True)


def _run(raw: dict[str, Any], namespace: str, jobs: dict[tuple[str, str], JobView]) -> RemoteRun:
    meta, data = raw["metadata"], raw.get("data") or {}
    instance = str(meta["labels"][names.INSTANCE])
    worker = jobs.get((instance, "worker"))
    run = str(data.get("run") or "")
    return RemoteRun(
        # Only a name that leads to these very objects is one, and none that leads out of the folder of runs.
        run=run if RUN_NAME.fullmatch(run) and names.instance_of(run) == instance else instance,
        instance=instance,
        namespace=namespace,
        spec_json=str(data.get("spec.json") or ""),
        created_unix=_unix(str(meta.get("creationTimestamp") or "")),
        head=_head_state(jobs.get((instance, "head"))),
        nodes=worker.parallelism if worker is not None else 0,
        ready=worker.ready if worker is not None else 0,
    )


def _head_state(job: JobView | None) -> str:
    if job is None:
        return "none"
    for condition, state in (("Complete", "ended"), ("Failed", "failed")):
        found = job.condition(condition)
        if found is not None and found.status == "True":
            return state
    return "running" if job.ready else "pending"


def _unix(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


async def keys_of(api: Api, instance: str) -> tuple[Role, dict[str, bytes]]:
    """The best role that may be had, and its key files. Raises ClusterError."""
    why: ApiProblem | None = None
    roles: tuple[Role, ...] = ("operator", "viewer")
    for role in roles:
        name = names.keys_secret(instance, role)
        try:
            secret = await api.get("Secret", name)
        except ApiProblem as problem:
            if not problem.forbidden and not problem.not_found:
                raise
            why = why or problem
            continue
        data = {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items() if key in _KEY_FILES}
        if f"{role}.key" not in data:
            raise ClusterError(f"secret {name} of namespace {api.namespace} holds no {role}.key; it is not as Paceline makes it")
        return role, data
    raise ClusterError(
        f"the keys of {instance} cannot be had: {why}; without keys its head answers nobody: "
        f"ask whoever started it for the right to read secret {names.keys_secret(instance, 'viewer')}"
    )


def make_local(root: Path, remote: RemoteRun, keys: dict[str, bytes], way: Access) -> RunFolder:
    """A folder of the run's name with spec and keys, ready for a link. Raises ClusterError, OSError."""
    folder = RunFolder(root / remote.run)
    spec = _spec(remote, way)
    new = not folder.path.exists()
    folder.path.mkdir(parents=True, exist_ok=True)
    if folder.spec_json.exists() and _name_in(folder) != spec.name:
        raise ClusterError(f"{folder.path} is another run's folder; rename it, or set PACELINE_RUNS to another folder")
    write_atomically(folder.spec_json, (spec.model_dump_json(indent=2) + "\n").encode())
    folder.keys.mkdir(mode=0o700, exist_ok=True)
    os.chmod(folder.keys, 0o700)
    for name, content in keys.items():
        _write_secret(folder.keys / name, content)
    role: Role = "operator" if "operator.key" in keys else "viewer"
    try:
        load_client_keys(folder.keys, role)
    except KeyProblem as problem:
        shutil.rmtree(folder.path if new else folder.keys, ignore_errors=True)
        raise ClusterError(
            f"secret {names.keys_secret(remote.instance, role)} of namespace {remote.namespace}: its {role}.key is no key of "
            f"Paceline; `kubectl describe secret` may tell who has changed it, and {remote.run} can be ended by clean-up only"
        ) from problem
    write_link(folder, LinkFile(started_here=False))
    return folder


def _name_in(folder: RunFolder) -> str:
    """Of the spec that lies there; of one that cannot be read nobody knows whose it is."""
    try:
        return RunSpec.model_validate_json(folder.spec_json.read_bytes()).name
    except ValidationError as error:
        raise ClusterError(
            f"{folder.spec_json} is no spec of this version ({error.errors()[0]['msg']}); "
            "rename its folder, or set PACELINE_RUNS to another folder"
        ) from error


def _spec(remote: RemoteRun, way: Access) -> RunSpec:
    """As the run has it, with the way to its cluster as it is from here."""
    try:
        spec = RunSpec.model_validate_json(remote.spec_json)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ClusterError(
            f"{remote.run}: the spec in ConfigMap {names.config_map(remote.instance)} cannot be used: {field}: {first['msg']}; "
            "was the run started by another version?"
        ) from error
    here = spec.cluster.kubernetes.model_copy(update={"namespace": remote.namespace, "context": way.context or None})
    return spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"kind": "kubernetes", "kubernetes": here})})


def _write_secret(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(handle, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
