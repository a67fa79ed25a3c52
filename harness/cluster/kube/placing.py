"""Making a run's objects: the ConfigMap that owns the rest, keys, Services, budgets, the head, and once it is Ready, workers.

Blocking, for whoever starts a run, with their own kubeconfig. Interrupted (also by a terminal that is closed) or refused,
exactly what was made here is removed again: the ConfigMap, by its uid, in the foreground.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from harness.cluster.base import ClusterError
from harness.cluster.interrupts import deaf, like_ctrl_c
from harness.cluster.kube import names
from harness.cluster.kube.access import Access, access
from harness.cluster.kube.api import Api, ApiProblem
from harness.cluster.kube.features import features_of
from harness.cluster.kube.headlog import keep_head_log
from harness.cluster.kube.removal import ask_to_go
from harness.cluster.kube.render import notes, owned_by, render
from harness.cluster.kube.troubles import hopeless, last_lines, why_waiting
from harness.cluster.kube.views import PodView, reduce_job, reduce_pod
from harness.records.layout import RunFolder
from harness.spec import RunSpec
from harness.wire.keys import ServerKeys

#: An image of some GB may have to be pulled; a claim may have to be bound.
HEAD_READY_WITHIN_S = 900.0
_LOOK_EVERY_S = 1.0
_TELL_EVERY_S = 10.0

_PLACED_BY = "paceline/placed-by"  # annotation of the ConfigMap: tells ours from one of the same name

_NUMBERS = re.compile(r"\d+")

Say = Callable[[str], None]


def place(
    folder: RunFolder,
    spec: RunSpec,
    *,
    say: Say,
    way: Access | None = None,
    head_ready_within_s: float = HEAD_READY_WITHIN_S,
) -> None:
    """Make the run of a folder that has its spec; its keys are made here. Raises ClusterError; KeyboardInterrupt passes."""
    keys = ServerKeys.fresh()
    keys.save(folder.keys)
    way = way or access(spec.cluster.kubernetes.context)
    with like_ctrl_c():
        asyncio.run(_Placing(folder, spec, keys, way, say, head_ready_within_s).run())


class _Placing:
    def __init__(self, folder: RunFolder, spec: RunSpec, keys: ServerKeys, way: Access, say: Say, within_s: float) -> None:
        self._folder, self._run_name = folder, folder.name
        self._spec, self._keys, self._access, self._say = spec, keys, way, say
        self._within_s = within_s
        self._instance = names.instance_of(folder.name)
        self._namespace = spec.cluster.kubernetes.namespace
        self._mark = uuid.uuid4().hex
        self._asked = False  # for the ConfigMap
        self._made = ""  # its uid

    async def run(self) -> None:
        async with Api(self._access, self._namespace) as api:
            try:
                await self._place(api)
            except BaseException as why:  # a Ctrl-C cancels this task
                await self._undo(api, why)
                raise

    async def _place(self, api: Api) -> None:
        features = await features_of(api, self._spec, self._run_name)
        for note in notes(self._spec, features):
            self._say(note)
        rendered = render(self._spec, self._run_name, keys=self._keys, features=features)
        await self._make_owner(api, next(thing for thing in rendered if thing["kind"] == "ConfigMap"))
        objects = owned_by(rendered, self._made)
        last = [thing for thing in objects if thing["kind"] == "Job" and _component(thing) == "worker"]
        for thing in objects:
            if thing["kind"] != "ConfigMap" and thing not in last:
                await api.apply(thing)
        server = self._access.server
        self._say(f"{self._instance}: {len(objects) - len(last)} objects made in namespace {self._namespace} of {server}")
        await self._until_ready(api)
        for thing in last:
            await api.apply(thing)
        nodes = self._spec.cluster.kubernetes.start_nodes or self._spec.fleet.nodes
        self._say(f"workers: {nodes} pod{'s' * (nodes != 1)} asked for")

    async def _make_owner(self, api: Api, config: dict[str, Any]) -> None:
        config["metadata"]["annotations"] = {_PLACED_BY: self._mark}
        self._asked = True
        try:
            made = await api.create(config)
        except ApiProblem as problem:
            self._asked = problem.may_pass  # a refusal has made nothing; without a reply that is not known
            if problem.conflict:
                raise ClusterError(
                    f"run {self._run_name}: namespace {self._namespace} has one of that name already; choose another --name, "
                    f"or `paceline clean-up {self._instance}` removes that one"
                ) from problem
            if problem.not_found:
                raise ClusterError(
                    f'cluster.kubernetes.namespace "{self._namespace}": there is no such namespace; an admin makes it with '
                    "`kubectl apply -k manifests/install`, or set another"
                ) from problem
            raise
        self._made = str(made["metadata"]["uid"])

    async def _until_ready(self, api: Api) -> None:
        began_s = time.monotonic()
        told, told_s = "", began_s
        while True:
            pods = [reduce_pod(raw) for raw in await api.list("Pod", selector=names.selector(self._instance, "head"))]
            pod = max(pods, key=lambda one: one.created_unix, default=None)
            now_s = time.monotonic()
            if pod is not None and pod.ready and not pod.deletion_unix:
                self._say(f"head Ready after {now_s - began_s:.0f} s (pod {pod.name}{' on ' + pod.node if pod.node else ''})")
                return
            why = await why_waiting(api, self._instance, pod)
            await self._give_up_if_hopeless(api, pod, why)
            if now_s - began_s > self._within_s:
                raise ClusterError(f"the head was not Ready within {self._within_s:.0f} s: {why}{await last_lines(api, pod)}")
            if (kind := _NUMBERS.sub("", why)) != told or now_s - told_s >= _TELL_EVERY_S:
                told, told_s = kind, now_s
                self._say(f"head pod: {why}")
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _give_up_if_hopeless(self, api: Api, pod: PodView | None, why: str) -> None:
        if pod is not None and hopeless(pod):
            raise ClusterError(f"the head cannot start: {why}")
        jobs = [reduce_job(raw) for raw in await api.list("Job", selector=names.selector(self._instance, "head"))]
        for job in jobs:
            failed = job.condition("Failed")
            if failed is not None and failed.status == "True":
                lines = await last_lines(api, pod)
                raise ClusterError(f"the head failed: {failed.message or failed.reason}; {why}{lines}")

    async def _undo(self, api: Api, why: BaseException) -> None:
        interrupted = isinstance(why, asyncio.CancelledError | KeyboardInterrupt)
        cause = "interrupted" if interrupted else "not placed"
        kept = False
        try:
            with contextlib.suppress(ClusterError, OSError):
                kept = bool(self._made) and not interrupted and await keep_head_log(api, self._folder)
        finally:  # also when a Ctrl-C breaks that off
            await self._take_back(api, cause, kept)

    async def _take_back(self, api: Api, cause: str, kept: bool) -> None:
        try:
            with deaf():
                if not (made := self._made or await self._made_unseen(api)):
                    self._tell(f"{self._run_name}: nothing was made on the cluster")
                    return
                await ask_to_go(api, self._instance, made)
        except ClusterError as error:
            self._tell(f"{cause}; what was made could not be removed: {error}; `paceline clean-up {self._instance}` tries again")
            return
        if kept:
            self._tell(f"what the head said is in {self._folder.log('head')}")
        self._tell(f"{cause}: all that was made of {self._instance} is being removed")

    async def _made_unseen(self, api: Api) -> str:
        """The uid of a ConfigMap that the server has made without our having heard of it. Raises ClusterError."""
        if not self._asked:
            return ""
        try:
            found = (await api.get("ConfigMap", names.config_map(self._instance)))["metadata"]
        except ApiProblem as problem:
            if problem.not_found:
                return ""
            raise
        return str(found["uid"]) if (found.get("annotations") or {}).get(_PLACED_BY) == self._mark else ""

    def _tell(self, text: str) -> None:
        """The terminal may be what has gone."""
        with contextlib.suppress(OSError):
            self._say(text)


def _component(thing: dict[str, Any]) -> str:
    return str(thing["metadata"]["labels"].get(names.COMPONENT, ""))
