"""What the head may do on its cluster, so that an act that is denied says why before it is tried. Asked at its start, and as
long as something is denied again and again: an admin may have done what the refusal says.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import NamedTuple

from harness.cluster.base import ClusterError
from harness.cluster.kube.api import Api, ApiProblem

_LONGEST_PAUSE_S = 30.0

log = logging.getLogger("paceline.cluster")


class Right(NamedTuple):
    act: str  # as ClusterView.denied names it
    verb: str
    resource: str
    whole_cluster: bool = False


RIGHTS = (
    Right("evict", "create", "pods/eviction"),
    Right("logs", "get", "pods/log"),
    Right("hosts", "list", "nodes", whole_cluster=True),
    Right("hosts", "watch", "nodes", whole_cluster=True),
    Right("cordon", "patch", "nodes", whole_cluster=True),
)


class Rights:
    """`denied`: act → why not, with the next step. What has not been answered yet is taken to be allowed."""

    def __init__(self, api: Api) -> None:
        self.denied: dict[str, str] = {}
        self._api = api

    async def learn(self) -> None:
        """Until the API server has answered; it may be away just now. What was denied and is allowed by now is so no longer."""
        pause_s = 0.5
        while True:
            try:
                allowed = [await self._is_allowed(right) for right in RIGHTS]
                self.denied.clear()
                for right, yes in zip(RIGHTS, allowed, strict=True):
                    if not yes:
                        self.denied.setdefault(right.act, self._why(right))
                break
            except ApiProblem as problem:
                if not problem.may_pass and problem.code != 401:
                    log.warning("what this head may do is not known: %s", problem)
                    break
            except ClusterError as problem:
                log.warning("what this head may do is not known: %s", problem)
            await asyncio.sleep(pause_s * random.uniform(0.7, 1.0))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _is_allowed(self, right: Right) -> bool:
        return bool(await self._api.can_i(right.verb, right.resource, namespace="" if right.whole_cluster else None))

    def _why(self, right: Right) -> str:
        if right.whole_cluster:
            return (
                f"the head may not {right.verb} {right.resource}, which are the whole cluster's; "
                "an admin can allow it: kubectl apply -f manifests/components/nodes/nodes.yaml"
            )
        return (
            f"the head may not {right.verb} {right.resource} in namespace {self._api.namespace}; "
            "an admin can allow it by the Role of manifests/install"
        )
