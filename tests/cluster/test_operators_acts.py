"""What an operator does to a run on a cluster while it goes on: another size, an eviction; and a head whose pod is sent away."""

from __future__ import annotations

import pytest
from cluster_kit import ClusterKit
from laptop_kit import Laptop, ready, seen_ready, slots, told

from harness.records.layout import RunFolder
from harness.wire.client import HeadAddress

PATIENCE_S = 60.0

pytestmark = pytest.mark.timeout(180)


def test_a_run_grows_to_the_whole_fleet_and_shrinks_again(kit: ClusterKit, laptop: Laptop) -> None:
    laptop.begin(*laptop.run(4, **{"cluster.kubernetes.start_nodes": 2, "fleet.replicas_per_node": 1}))
    folder = laptop.until_linked()
    laptop.until(lambda: ready(folder) == 2, PATIENCE_S, "the first two nodes")
    assert len(kit.pods("worker")) == 2
    for nodes in (4, 2):
        done = laptop.paceline("scale", folder.name, str(nodes))
        assert done.returncode == 0, done.stderr
        laptop.until(lambda nodes=nodes: ready(folder) == nodes, PATIENCE_S, f"{nodes} nodes ready")
        kit.until(lambda nodes=nodes: len(kit.pods("worker")) == nodes, PATIENCE_S, f"{nodes} pods")  # type: ignore[misc]
    assert laptop.paceline("stop", folder.name).returncode == 0


def test_an_evicted_replica_takes_its_pod_drained_and_its_successor_joins(kit: ClusterKit, laptop: Laptop) -> None:
    laptop.begin(*laptop.run(2))
    folder = laptop.until_linked()
    laptop.until(lambda: ready(folder) == 4, PATIENCE_S, "all replicas ready")
    laptop.until(lambda: seen_ready(folder) == (2, 2), PATIENCE_S, "the head sees both pods ready, and so does the budget")
    before = {slot.slot: slot.pod for slot in slots(folder)}
    done = laptop.paceline("evict", folder.name, "node001/gpu0", "--reason", "slow")
    assert done.returncode == 0, done.stderr
    assert before["node001/gpu0"] in done.stdout + done.stderr

    def back() -> bool:
        return ready(folder) == 4 and all((slot.pod != before[slot.slot]) == (slot.node == "node001") for slot in slots(folder))

    laptop.until(back, PATIENCE_S, "both replicas of node001 ready in another pod")
    assert len(told(kit, folder, "pod.evicted")) == 1
    assert not told(kit, folder, "pod.not_evicted")
    assert laptop.paceline("stop", folder.name).returncode == 0


def test_what_the_budget_forbids_is_refused_and_nothing_drains(kit: ClusterKit, laptop: Laptop) -> None:
    laptop.begin(*laptop.run(2, **{"cluster.kubernetes.max_evictions": 1}))
    folder = laptop.until_linked()
    laptop.until(lambda: ready(folder) == 4, PATIENCE_S, "all replicas ready")
    laptop.until(lambda: seen_ready(folder) == (2, 2), PATIENCE_S, "the head sees both pods ready, and so does the budget")
    kit.node_down(kit.pods("worker", 0)[0]["spec"]["nodeName"])
    kit.until(lambda: _allowed(kit, folder) == 0, PATIENCE_S, "the budget is used up")
    laptop.until(lambda: seen_ready(folder) == (1, 1), PATIENCE_S, "the head knows")
    refused = laptop.paceline("evict", folder.name, "node001/gpu0", "--force")
    assert refused.returncode == 1, refused.stdout
    assert "no worker may go now" in refused.stderr
    assert {slot.state for slot in slots(folder) if slot.node == "node001"} == {"READY"}


def _allowed(kit: ClusterKit, folder: RunFolder) -> int:
    budget = kit.get("PodDisruptionBudget", f"{folder.name}-worker") or {}
    return int(budget["status"]["disruptionsAllowed"])


def test_a_head_that_is_sent_away_leaves_the_fleet_warm_for_its_successor(kit: ClusterKit, laptop: Laptop) -> None:
    laptop.begin(*laptop.run(1))
    folder = laptop.until_linked()
    laptop.until(lambda: ready(folder) == 2, PATIENCE_S, "both replicas ready")
    lives = {slot.slot: slot.incarnation for slot in slots(folder)}
    first = HeadAddress.read(folder).epoch
    name = kit.pods("head")[0]["metadata"]["name"]
    kit.on(lambda: kit.cluster.store.delete("Pod", kit.namespace, name, grace_s=10))
    laptop.until(lambda: HeadAddress.read(folder).epoch == first + 1, PATIENCE_S, "a successor")
    laptop.until(lambda: ready(folder) == 2, PATIENCE_S, "both replicas registered again")
    assert {slot.slot: slot.incarnation for slot in slots(folder)} == lives
    (why,) = told(kit, folder, "head.hand_over")
    assert why.startswith("SIGTERM received")
    assert laptop.paceline("stop", folder.name).returncode == 0
