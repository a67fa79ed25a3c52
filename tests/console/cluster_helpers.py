"""Sample fleets on a cluster, for tests: what a head would tell of pods and Kubernetes nodes."""

from __future__ import annotations

from console_helpers import HandClock

from console.feeds.sample_cluster import SampleCluster
from console.feeds.scripted import ScriptedFleet
from console.store.fleet import FleetStore

#: The worst replica of the sample, in a pod whose index was evicted twice before.
SLOW_SLOT = "node015/gpu3"


def clustered(*, pending: bool = False) -> ScriptedFleet:
    if pending:
        return ScriptedFleet(phase="WARMING", at_s=0.0, on_cluster=True)
    return ScriptedFleet(on_cluster=True)


def cluster_of(fleet: ScriptedFleet) -> SampleCluster:
    assert fleet.cluster is not None
    return fleet.cluster


def store_of(fleet: ScriptedFleet, clock: HandClock | None = None) -> FleetStore:
    store = FleetStore(clock or HandClock())
    store.apply(fleet.run_state())
    store.apply(fleet.snapshot())
    return store
