"""A console's own way to scale a run on the fake cluster, and the record of pods that the run leaves on the laptop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit import ClusterKit, cluster_of
from laptop_kit import Laptop, laptop_of, on_claim, ready

from console.feeds.head import HeadFeed
from console.store.record import over
from harness.records.clusterlog import last_view, read_cluster
from harness.wire.clusterview import ClusterView

PATIENCE_S = 90.0


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[ClusterKit]:
    with cluster_of(2, tmp_path, processes=True, backoff_s=0.5) as made:
        yield made


@pytest.fixture
def laptop(kit: ClusterKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laptop]:
    with laptop_of(kit, tmp_path) as made:
        for name, value in made.env.items():
            if os.environ.get(name) != value:
                monkeypatch.setenv(name, value)
        yield made


def hosts_with_a_ready_pod(view: ClusterView | None) -> list[str]:
    """Of workers. A pod gets ready after its replicas: its kubelet asks, the head hears of it, and writes it within a second."""
    return sorted(row.host for row in view.pods if row.node >= 0 and row.ready) if view is not None else []


def test_a_console_scales_the_run_and_the_record_says_where_pods_were(kit: ClusterKit, laptop: Laptop) -> None:
    laptop.begin(*laptop.run(2))
    folder = laptop.until_linked()
    told = on_claim(kit, folder).cluster
    laptop.until(lambda: ready(folder) == 4, PATIENCE_S, "all replicas ready")
    laptop.until(
        lambda: hosts_with_a_ready_pod(last_view(told)) == ["node-0", "node-1"], PATIENCE_S, "the record of both pods, each ready"
    )
    began_unix = time.time()
    reply = asyncio.run(HeadFeed(folder.path).command("scale", {"nodes": 1}, "half is enough"))
    assert reply.ok, reply.message
    assert "1 of 2 nodes are wanted" in reply.message
    assert [job["spec"]["parallelism"] for job in kit.listed("Job") if "worker" in job["metadata"]["name"]] == [1]
    laptop.until(lambda: ready(folder) == 2, PATIENCE_S, "the replicas of the other node gone")
    assert laptop.paceline("stop", folder.name).returncode == 0
    laptop.until(lambda: (state := over(folder.path)) is not None and state.cluster is not None, PATIENCE_S, "the record")
    laptop.until(lambda: not folder.head_json.exists(), PATIENCE_S, "the link's end")
    tape = read_cluster(folder.cluster)
    before, after = tape.at(began_unix), tape.at(time.time())
    assert before is not None
    assert after is not None
    assert before.wanted == 2
    assert hosts_with_a_ready_pod(before) == ["node-0", "node-1"]
    assert after.wanted == 1
    assert folder.cluster.read_bytes() == told.read_bytes()
