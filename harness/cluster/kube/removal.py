"""Taking a run off the cluster: what carries its labels, and nothing else.

Its ConfigMap owns the rest, so one deletion in the foreground is all it takes; the pods end within their grace. Objects of
a run that was applied by hand, and pods that have lost their Job, have no owner and are removed one by one. What belongs to
something that is not of the run is left alone, whatever its labels say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from harness.cluster.base import ClusterError
from harness.cluster.kube import names
from harness.cluster.kube.api import Api, ApiProblem

#: In the order in which they are listed and, without an owner, removed.
KINDS = ("ConfigMap", "Job", "NetworkPolicy", "PodDisruptionBudget", "Service", "Secret")
_JOB_SETS = "jobset.x-k8s.io"
_LOOK_EVERY_S = 1.0
_TELL_EVERY_S = 15.0

Say = Callable[[str], None]


class Thing(NamedTuple):
    """An object of a run."""

    kind: str
    name: str
    uid: str
    owner: str  # in words, empty: none
    foreign: bool  # the owner is of a kind that no run has
    going: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


async def things_of(api: Api, instance: str) -> tuple[list[Thing], list[str]]:
    """What carries the run's labels, pods last; and the kinds that may not be listed, in words."""
    kinds = [*KINDS, "Pod"]
    if await _has_job_sets(api):
        kinds.insert(1, "JobSet")
    found: list[Thing] = []
    denied: list[str] = []
    for kind in kinds:
        try:
            raw = await api.list(kind, selector=names.selector(instance))
        except ApiProblem as problem:
            if not problem.forbidden and not problem.not_found:
                raise
            denied.append(str(problem))
            continue
        found += [_thing(kind, one) for one in raw]
    return found, denied


async def remove(api: Api, instance: str, *, say: Say, within_s: float) -> bool:
    """Asks for the run to go and waits until nothing of it is left. False: something is left after that time, as was said.

    Raises ClusterError when it may not be removed, or the API server does not answer.
    """
    await ask_to_go(api, instance)
    until_s, told_s = time.monotonic() + within_s, -_TELL_EVERY_S
    while True:
        found, _ = await things_of(api, instance)
        left = [thing for thing in found if not thing.foreign]
        for thing in left:
            if not thing.going and not thing.owner:
                await _delete(api, thing)
        if not left:
            for thing in found:
                say(f"left alone: {thing}, which has the labels of {instance} but belongs to {thing.owner}")
            say(f"nothing of {instance} is left in namespace {api.namespace}")
            return True
        now_s = time.monotonic()
        if now_s >= until_s:
            say(f"still there after {within_s:.0f} s: {in_words(left)}; Kubernetes goes on removing them")
            return False
        if now_s - told_s >= _TELL_EVERY_S:
            told_s = now_s
            say(f"removing {in_words(left)}")
        await asyncio.sleep(_LOOK_EVERY_S)


async def ask_to_go(api: Api, instance: str, uid: str = "") -> bool:
    """Kubernetes removes the ConfigMap's own before it. False: the run has no ConfigMap. Without `uid` it is looked at first:
    another's may have that name."""
    name = names.config_map(instance)
    if not uid:
        try:
            found = (await api.get("ConfigMap", name))["metadata"]
        except ApiProblem as problem:
            if problem.not_found:
                return False
            raise
        if not names.labels(instance).items() <= (found.get("labels") or {}).items():
            return False
        uid = str(found["uid"])
    return await _delete(api, Thing("ConfigMap", name, uid, "", False, False))


def in_words(things: Sequence[Thing]) -> str:
    """`2 Jobs, 64 Pods, Service x-head`"""
    by_kind: dict[str, list[Thing]] = {}
    for thing in things:
        by_kind.setdefault(thing.kind, []).append(thing)
    return ", ".join(str(those[0]) if len(those) == 1 else f"{len(those)} {kind}s" for kind, those in by_kind.items())


async def _delete(api: Api, thing: Thing) -> bool:
    try:
        await api.delete(thing.kind, thing.name, uid=thing.uid, propagation="Foreground")
    except ApiProblem as problem:
        if problem.not_found:
            return False
        if problem.conflict:
            raise ClusterError(
                f"{thing} is another one by now than the one that was to be removed; look at it again"
            ) from problem
        raise
    return True


async def _has_job_sets(api: Api) -> bool:
    try:
        return await api.has_group(_JOB_SETS)
    except ApiProblem as problem:
        if problem.no_reply:
            raise
        return False


def _thing(kind: str, raw: dict[str, Any]) -> Thing:
    meta = raw.get("metadata") or {}
    owners = meta.get("ownerReferences") or []
    owner = f"{owners[0].get('kind')} {owners[0].get('name')}" if owners else ""
    foreign = bool(owners) and not any(one.get("kind") in (*KINDS, "JobSet") for one in owners)
    return Thing(kind, str(meta.get("name")), str(meta.get("uid") or ""), owner, foreign, bool(meta.get("deletionTimestamp")))
