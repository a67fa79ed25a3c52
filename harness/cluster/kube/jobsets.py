"""A run that was placed as a JobSet, as its API server has it.

The set makes each Job once more should it be deleted, but one Job that has failed fails the set: that is final, and the set
then deletes the Jobs that still run.
"""

from __future__ import annotations

from typing import Any

from harness.cluster.kube.api import Api, ApiProblem


async def job_set_of(api: Api, instance: str) -> dict[str, Any] | None:
    """None also where the cluster has no JobSets, or they may not be read."""
    try:
        return await api.get("JobSet", instance)
    except ApiProblem as problem:
        if problem.not_found or problem.forbidden:
            return None
        raise


async def why_set_failed(api: Api, instance: str) -> str:
    """ "" where it has not, or is none."""
    found = await job_set_of(api, instance) or {}
    for condition in (found.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Failed" and condition.get("status") == "True":
            return f"JobSet {instance} has failed: {condition.get('message') or condition.get('reason') or 'no reason given'}"
    return ""
