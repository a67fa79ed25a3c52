"""Runs that are placed as a JobSet, on a cluster that has them: the same as any other, but for a head that failed for good."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import ClusterKit, cluster_of
from fake.loops import is_true
from laptop_kit import Laptop, objects_of, on_claim, ready, seen_ready, slots, told

from harness.cluster.kube.linkfile import read_link
from harness.records.layout import RunFolder
from harness.wire.client import HeadAddress

PATIENCE_S = 60.0
SET = {"cluster.kubernetes.jobset": "true"}

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[ClusterKit]:
    with cluster_of(4, tmp_path, processes=True, backoff_s=0.5, job_sets=True) as made:
        yield made


def begun(laptop: Laptop, nodes: int, **more: Any) -> RunFolder:
    laptop.begin(*laptop.run(nodes, **SET, **more))
    folder = laptop.until_linked()
    laptop.until(lambda: ready(folder) > 0, PATIENCE_S, "a replica is ready")
    return folder


def everything(kit: ClusterKit) -> list[str]:
    return [*objects_of(kit), *(f"JobSet {thing['metadata']['name']}" for thing in kit.listed("JobSet"))]


def test_a_job_set_is_scaled_by_its_job_evicted_from_and_removed(kit: ClusterKit, laptop: Laptop) -> None:
    folder = begun(laptop, 3, **{"cluster.kubernetes.start_nodes": 2, "fleet.replicas_per_node": 1})
    assert {thing["metadata"]["name"] for thing in kit.listed("Job")} == {f"{folder.name}-head-0", f"{folder.name}-worker-0"}
    laptop.until(lambda: ready(folder) == 2, PATIENCE_S, "the first two nodes")
    for nodes in (3, 2):
        done = laptop.paceline("scale", folder.name, str(nodes))
        assert done.returncode == 0, done.stderr
        laptop.until(lambda nodes=nodes: ready(folder) == nodes, PATIENCE_S, f"{nodes} nodes ready")
        kit.until(lambda nodes=nodes: len(kit.pods("worker")) == nodes, PATIENCE_S, f"{nodes} pods")  # type: ignore[misc]
    laptop.until(lambda: seen_ready(folder) == (2, 2), PATIENCE_S, "the head sees both pods ready, and so does the budget")
    before = {slot.node: slot.pod for slot in slots(folder) if slot.state == "READY"}
    done = laptop.paceline("evict", folder.name, "node001/gpu0", "--force")
    assert done.returncode == 0, done.stderr

    def back() -> bool:
        now = {slot.node: slot.pod for slot in slots(folder) if slot.state == "READY"}
        return set(now) == set(before) and [node for node in now if now[node] != before[node]] == ["node001"]

    laptop.until(back, PATIENCE_S, "node001 ready in another pod")
    assert len(told(kit, folder, "pod.evicted")) == 1
    assert laptop.paceline("stop", folder.name).returncode == 0
    laptop.until(lambda: not everything(kit), PATIENCE_S, "nothing left")
    laptop.until(lambda: (link := read_link(folder)) is not None and link.cleaned, PATIENCE_S, "the link has noticed")
    assert (read_link(folder) or pytest.fail("no link.json")).state == "whole"


def test_a_head_that_dies_is_replaced_in_a_job_set_too(kit: ClusterKit, laptop: Laptop) -> None:
    folder = begun(laptop, 1)
    first = HeadAddress.read(folder).epoch
    lives = {slot.slot: slot.incarnation for slot in slots(folder)}
    refused = laptop.paceline("restart-head", folder.name, "--no-console")
    assert refused.returncode != 0
    assert "has not failed" in refused.stderr
    kit.kill(kit.pods("head")[0]["metadata"]["name"])
    laptop.until(lambda: HeadAddress.read(folder).epoch == first + 1, PATIENCE_S, "a successor")
    laptop.until(lambda: ready(folder) == 2, PATIENCE_S, "both replicas registered again")
    assert {slot.slot: slot.incarnation for slot in slots(folder)} == lives
    assert laptop.paceline("stop", folder.name).returncode == 0


def test_a_head_that_fails_for_good_takes_its_job_set_along_and_that_is_said(kit: ClusterKit, laptop: Laptop) -> None:
    folder = begun(laptop, 1, **{"cluster.kubernetes.head_restarts": 0, "cluster.kubernetes.clean_up": "false"})
    kit.kill(kit.pods("head")[0]["metadata"]["name"])
    kit.until(lambda: is_true(kit.get("JobSet", folder.name) or {}, "Failed"), PATIENCE_S, "the set has failed")
    kit.until(lambda: not kit.pods("worker"), PATIENCE_S, "its workers have ended")
    laptop.until(lambda: (about := read_link(folder)) is not None and about.state == "gone", PATIENCE_S, "the link has noticed")
    assert f"JobSet {folder.name} has failed" in (read_link(folder) or pytest.fail("no link.json")).why
    refused = laptop.paceline("restart-head", folder.name, "--no-console")
    assert refused.returncode != 0
    assert "can have no new head" in refused.stderr
    assert "clean-up" in refused.stderr
    assert on_claim(kit, folder).run_json.is_file()
    listed = laptop.paceline("clean-up", folder.name)
    assert f"JobSet {folder.name}" in listed.stdout
    assert laptop.paceline("clean-up", folder.name, "--yes").returncode == 0
    assert everything(kit) == []
