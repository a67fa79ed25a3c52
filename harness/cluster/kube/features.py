"""What a cluster has beyond what every cluster has, as far as a spec asks for it."""

from __future__ import annotations

from harness.cluster.base import ClusterError
from harness.cluster.kube.api import Api, ApiProblem
from harness.cluster.kube.render import Features, render
from harness.spec import RunSpec

_KUEUE, _JOB_SETS = "kueue.x-k8s.io", "jobset.x-k8s.io"
_GANG = ("scheduling.k8s.io", "v1alpha2")


async def features_of(api: Api, spec: RunSpec, run: str) -> Features:
    """One to two requests. Raises ClusterError where the server does not answer."""
    groups = await api.groups()
    return Features(
        kueue=_KUEUE in groups,
        jobset="v1alpha2" in groups.get(_JOB_SETS, ()),
        gang=_GANG[1] in groups.get(_GANG[0], ()),
        restart_rules=await knows_restart_rules(api, spec, run),
    )


async def knows_restart_rules(api: Api, spec: RunSpec, run: str) -> bool:
    """An older server drops the field without a word: whether a dry-run's answer still has it tells."""
    rendered = render(spec, run, features=Features(restart_rules=True))
    job = next(thing for thing in rendered if thing["kind"] == "Job" and thing["spec"].get("completionMode") == "Indexed")
    try:
        answer = await api.apply(job, dry_run=True)
        containers = answer["spec"]["template"]["spec"]["containers"]
    except ApiProblem as problem:
        if problem.no_reply or problem.code == 401:
            raise
        return False  # refused for whatever reason, which the real object will tell
    except (KeyError, TypeError) as error:
        raise ClusterError(f"the API server's answer to a dry-run of {job['metadata']['name']} is no Job") from error
    return any("restartPolicyRules" in container for container in containers)
