"""Which cluster a run is placed on."""

from __future__ import annotations

from harness.cluster.base import Cluster
from harness.cluster.local import LocalCluster
from harness.records.layout import RunFolder
from harness.spec import RunSpec


def cluster_of(folder: RunFolder, spec: RunSpec) -> Cluster:
    """As the head sees it. Raises ClusterError where there is no way to the cluster's API."""
    if spec.cluster.kind == "local":
        return LocalCluster(folder, spec)
    from harness.cluster.kube.cluster import KubernetesCluster

    return KubernetesCluster(folder, spec)
