"""Placing a run on the fake cluster: in order, owned by its ConfigMap, and taken back as a whole when it cannot be."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import ClusterKit, cluster_of
from fake.access import Rule
from fake.kubelet import IMAGE_PULL_BACKOFF, exits
from laptop_kit import laptop_of, objects_of

from harness.cluster.base import ClusterError
from harness.cluster.kube.access import access
from harness.cluster.kube.placing import place
from harness.cluster.kube.troubles import hopeless
from harness.cluster.kube.views import ContainerView, PodView
from harness.records.layout import RunFolder
from harness.spec import RunSpec

RUN = "trial-20261130-120000"


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[ClusterKit]:
    with cluster_of(3, tmp_path, backoff_s=0.5) as made:
        yield made


class Place:
    """One call of `place`, and what it said."""

    def __init__(self, kit: ClusterKit, path: Path, nodes: int = 2, **kube: Any) -> None:
        self.folder = RunFolder(path / RUN)
        self.folder.path.mkdir(parents=True)
        small = {"head_cpu": "1", "head_memory": "1Gi", "worker_cpu": "1", "worker_memory": "1Gi"}
        self.spec = RunSpec.model_validate(
            {"name": "trial", "fleet": {"nodes": nodes}, "cluster": {"kind": "kubernetes", "kubernetes": small | kube}}
        )
        self.kit = kit
        self.said: list[str] = []

    def __call__(self, within_s: float = 60.0, kubeconfig: Path | None = None) -> None:
        way = access(kubeconfig=kubeconfig or self.kit.kubeconfig)
        place(self.folder, self.spec, say=self.said.append, way=way, head_ready_within_s=within_s)


def gone(kit: ClusterKit) -> None:
    kit.until(lambda: not objects_of(kit), 60, "nothing left")


def test_the_config_map_comes_first_and_owns_all_and_workers_come_once_the_head_is_ready(kit: ClusterKit, tmp_path: Path) -> None:
    placing = Place(kit, tmp_path, start_nodes=1)
    placing()
    owner = kit.get("ConfigMap", f"{RUN}-run")
    assert owner is not None
    owned = [thing for kind in ("Secret", "Service", "PodDisruptionBudget", "NetworkPolicy", "Job") for thing in kit.listed(kind)]
    assert len(owned) == 11
    for thing in owned:
        assert [ref["uid"] for ref in thing["metadata"]["ownerReferences"]] == [owner["metadata"]["uid"]], thing["metadata"][
            "name"
        ]
    writes = [(c.verb, c.resource, c.name) for c in kit.on(lambda: list(kit.cluster.server.calls)) if not c.query.get("dryRun")]
    made = [(resource, name) for verb, resource, name in writes if verb in ("create", "patch") and "reviews" not in resource]
    assert made[0][0] == "configmaps"
    assert made[-1] == ("jobs", f"{RUN}-worker")
    assert ("list", "pods", "") in writes[: writes.index(("patch", "jobs", f"{RUN}-worker"))]
    worker = kit.get("Job", f"{RUN}-worker")
    assert worker is not None
    assert (worker["spec"]["parallelism"], worker["spec"]["completions"]) == (1, 1)
    assert any(line.startswith("head Ready after") for line in placing.said)
    assert placing.said[-1] == "workers: 1 pod asked for"
    assert sorted(path.name for path in placing.folder.keys.iterdir()) == [
        "operator.key",
        "server.key",
        "viewer.key",
        "worker.key",
    ]


def test_a_head_that_finds_no_room_is_told_with_the_reason_and_all_is_taken_back(kit: ClusterKit, tmp_path: Path) -> None:
    for number in range(3):
        kit.cordon(f"node-{number}")
    placing = Place(kit, tmp_path)
    with pytest.raises(ClusterError, match=r"not Ready within 5 s.*none of 3 nodes can take it"):
        placing(5.0)
    assert any("head pod: pod" in line and "Pending" in line for line in placing.said)
    assert "is being removed" in placing.said[-1]
    gone(kit)


def test_a_head_whose_image_cannot_be_pulled_is_told_with_the_image(kit: ClusterKit, tmp_path: Path) -> None:
    kit.befalls(IMAGE_PULL_BACKOFF)
    with pytest.raises(ClusterError, match=r"image paceline-head:0\.1\.0 cannot be pulled"):
        Place(kit, tmp_path)(3.0)
    gone(kit)


def test_a_ctrl_c_while_the_words_of_a_refused_head_are_read_leaves_nothing_there(
    kit: ClusterKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: Any) -> bool:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(30)
        return True

    monkeypatch.setattr("harness.cluster.kube.placing.keep_head_log", interrupted)
    kit.befalls(IMAGE_PULL_BACKOFF)
    one = Place(kit, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        one(3.0)
    assert "is being removed" in one.said[-1]
    gone(kit)


def test_a_head_that_fails_is_told_at_once(kit: ClusterKit, tmp_path: Path) -> None:
    kit.befalls(exits(2))
    began_s = time.monotonic()
    with pytest.raises(ClusterError, match=r"the head failed: .*exit code 2"):
        Place(kit, tmp_path, head_restarts=0)(600.0)
    assert time.monotonic() - began_s < 60
    gone(kit)


def test_a_name_that_is_taken_is_refused_and_the_other_run_is_left_alone(kit: ClusterKit, tmp_path: Path) -> None:
    Place(kit, tmp_path / "first")()
    kit.until(lambda: kit.ready("worker") == 2, 60, "the first run's workers")
    before = objects_of(kit)
    second = Place(kit, tmp_path / "second")
    with pytest.raises(ClusterError, match="has one of that name already"):
        second()
    assert second.said[-1] == f"{RUN}: nothing was made on the cluster"
    assert objects_of(kit) == before


def test_what_a_missing_right_breaks_off_is_taken_back(kit: ClusterKit, tmp_path: Path) -> None:
    everything = ("get", "list", "create", "patch", "delete")
    rules = (
        Rule(everything, ("",), ("configmaps", "secrets", "services", "pods"), kit.namespace),
        Rule(everything, ("batch",), ("jobs",), kit.namespace),
    )
    with pytest.raises(ClusterError, match="may not patch poddisruptionbudgets"):
        Place(kit, tmp_path)(kubeconfig=kit.operator(tmp_path / "few", *rules))
    gone(kit)


def test_a_namespace_that_is_not_there_is_named_with_the_next_step(kit: ClusterKit, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r'namespace "nowhere": there is no such namespace.*manifests/install'):
        Place(kit, tmp_path, namespace="nowhere")()


def test_ctrl_c_while_the_head_is_pending_takes_all_back(kit: ClusterKit, tmp_path: Path) -> None:
    for number in range(3):
        kit.cordon(f"node-{number}")
    with laptop_of(kit, tmp_path) as laptop:
        running = laptop.begin(*laptop.run(1))
        kit.until(lambda: kit.pods("head"), 60, "a head pod")
        os.kill(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=60)
        assert running.returncode == 130, said
        assert "interrupted: all that was made" in said
        gone(kit)
        assert list(laptop.runs.iterdir()) == []


@pytest.mark.parametrize(
    ("reason", "age_s", "given_up"),
    [
        ("InvalidImageName", 1.0, True),
        ("ImagePullBackOff", 5.0, False),
        ("ImagePullBackOff", 500.0, True),
        ("ContainerCreating", 500.0, False),
    ],
)
def test_pulling_an_image_may_fail_for_a_while_but_not_for_ever(reason: str, age_s: float, given_up: bool) -> None:
    pod = PodView("head", created_unix=1000.0, containers=(ContainerView("head", state="waiting", reason=reason),))
    assert hopeless(pod, 1000.0 + age_s) is given_up
