"""Changing a placed run from outside of its head: how many workers it has, and a new Job for a head that failed for good.

With the rights of whoever asks: the head's own let it neither create nor change a Job.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from harness.cluster.base import ClusterError
from harness.cluster.kube import names
from harness.cluster.kube.api import Api, ApiProblem
from harness.cluster.kube.jobsets import job_set_of
from harness.cluster.kube.removal import Say
from harness.cluster.kube.render import owned_by, render, replicas_patch
from harness.cluster.kube.views import JobView, reduce_job
from harness.spec import RunSpec

_GONE_WITHIN_S = 120.0
_LOOK_EVERY_S = 0.5


async def job_of(api: Api, instance: str, component: names.Component) -> JobView | None:
    """By its labels: part of a JobSet, it has another name."""
    found = [reduce_job(raw) for raw in await api.list("Job", selector=names.selector(instance, component))]
    return found[0] if found else None


async def worker_job(api: Api, instance: str) -> JobView:
    job = await job_of(api, instance, "worker")
    if job is None:
        raise ClusterError(f"{instance} has no Job of workers in namespace {api.namespace}: it was removed, or never placed")
    return job


async def resize(api: Api, spec: RunSpec, instance: str, nodes: int) -> None:
    """parallelism and completions go together, and the disruption budget with them; in the order that never blocks.

    Of a JobSet, too, it is the Job that is patched: what the set says of its Jobs is immutable, and it makes a Job by it only
    where there is none."""
    patches = replicas_patch(nodes, spec)
    job = await worker_job(api, instance)
    if nodes < job.parallelism:  # a budget that still counts on the pods that go would allow nothing
        await _set_budget(api, spec, instance, patches["PodDisruptionBudget"])
        await api.patch("Job", job.name, patches["Job"])
    else:
        await api.patch("Job", job.name, patches["Job"])
        await _set_budget(api, spec, instance, patches["PodDisruptionBudget"])


async def _set_budget(api: Api, spec: RunSpec, instance: str, patch: dict[str, Any]) -> None:
    """One that somebody has deleted is made anew: without it nothing holds evictions back."""
    try:
        await api.patch("PodDisruptionBudget", names.job(instance, "worker"), patch)
    except ApiProblem as problem:
        if not problem.not_found:
            raise
        config = await api.get("ConfigMap", names.config_map(instance))
        objects = owned_by(render(spec, str(config["data"]["run"])), str(config["metadata"]["uid"]))
        budget = next(t for t in objects if t["kind"] == "PodDisruptionBudget" and _component(t) == "worker")
        await api.apply(budget | {"spec": budget["spec"] | patch["spec"]})


async def new_head(api: Api, spec: RunSpec, run: str, *, say: Say) -> None:
    """The head's Job made anew; the workers and all else stay. Raises ClusterError, also where a head runs or has ended."""
    instance = names.instance_of(run)
    try:
        config = await api.get("ConfigMap", names.config_map(instance))
    except ApiProblem as problem:
        if not problem.not_found:
            raise
        raise ClusterError(
            f"{run} is no longer in namespace {api.namespace}: there are no workers for a new head; start the run anew"
        ) from problem
    job = await job_of(api, instance, "head")
    if await job_set_of(api, instance) is not None:
        raise ClusterError(_why_no_head_of_a_set(run, instance, job))
    if job is not None:
        _check_failed(run, job)
        await api.delete("Job", job.name, uid=job.uid, propagation="Foreground")
        await _until_gone(api, instance, say)
    head = _head_job(spec, run, str(config["metadata"]["uid"]))
    await api.apply(head)
    say(f"job {head['metadata']['name']} made anew in namespace {api.namespace}; the workers stay as they are")


def _why_no_head_of_a_set(run: str, instance: str, job: JobView | None) -> str:
    if job is not None and _is_true(job, "Failed"):
        return (
            f"{run} is a JobSet, which fails for good with its head and has ended its workers: it can have no new head; "
            f"`paceline clean-up {run}` removes what is left, then start it anew, with cluster.kubernetes.jobset = false "
            "if a head that failed is to be replaced"
        )
    if job is not None and _is_true(job, "Complete"):
        return f"{run} has ended in order (job {job.name} is Complete): there is nothing for a new head to do"
    return f"the head of {run} has not failed: its Job replaces a head that dies, and JobSet {instance} that Job, by themselves"


def _is_true(job: JobView, kind: str) -> bool:
    condition = job.condition(kind)
    return condition is not None and condition.status == "True"


def _check_failed(run: str, job: JobView) -> None:
    if _is_true(job, "Complete"):
        raise ClusterError(f"{run} has ended in order (job {job.name} is Complete): there is nothing for a new head to do")
    if not _is_true(job, "Failed"):
        raise ClusterError(
            f"the head of {run} has not failed: job {job.name} has {job.active} pod(s), {job.ready} ready, and replaces a head "
            "that dies by itself"
        )


async def _until_gone(api: Api, instance: str, say: Say) -> None:
    until_s = time.monotonic() + _GONE_WITHIN_S
    while await job_of(api, instance, "head") is not None:
        if time.monotonic() > until_s:
            raise ClusterError(f"the failed head of {instance} is still there after {_GONE_WITHIN_S:.0f} s; try again later")
        await asyncio.sleep(_LOOK_EVERY_S)
    say("the failed head is removed")


def _head_job(spec: RunSpec, run: str, config_uid: str) -> dict[str, Any]:
    objects = owned_by(render(spec, run), config_uid)
    return next(t for t in objects if t["kind"] == "Job" and _component(t) == "head")


def _component(thing: dict[str, Any]) -> str:
    return str(thing["metadata"]["labels"].get(names.COMPONENT, ""))
