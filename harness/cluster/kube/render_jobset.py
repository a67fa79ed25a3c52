"""Both Jobs of a run as one JobSet (jobset.x-k8s.io/v1alpha2), for clusters that have it and specs that ask for it.

The set starts the workers once the head is Ready, ends them when the head's Job is Complete, and never restarts anything:
that is for the Jobs' own policies, replicas do not depend on one another. Its Jobs are called `RUN-head-0` and `RUN-worker-0`.
The run keeps its own Services, hence no DNS names of the set's. Written from the API's types and its
controller's source; no JobSet controller has met it.
"""

from __future__ import annotations

from harness.cluster.kube import names
from harness.cluster.kube.render_base import Object

API_VERSION = "jobset.x-k8s.io/v1alpha2"


def child_job(instance: str, component: names.Component) -> str:
    """What the set's controller calls the Job of a component."""
    return f"{names.job(instance, component)}-0"


def job_set(instance: str, namespace: str, head: Object, worker: Object) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": "JobSet",
        "metadata": {"name": instance, "namespace": namespace, "labels": names.labels(instance)},
        "spec": {
            "network": {"enableDNSHostnames": False},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["head"]},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                _replicated("head", head),
                _replicated("worker", worker) | {"dependsOn": [{"name": "head", "status": "Ready"}]},
            ],
        },
    }


def _replicated(component: names.Component, job: Object) -> Object:
    # The set's webhook makes Jobs Indexed unless told otherwise.
    template = {"metadata": {"labels": job["metadata"]["labels"]}, "spec": {"completionMode": "NonIndexed"} | job["spec"]}
    return {"name": component, "replicas": 1, "template": template}
