"""What a cluster has against a run is found before anything is made, all of it, in words with a next step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import ClusterKit, cluster_of
from fake.access import Rule
from fake.errors import Cause, unprocessable
from fake.server import Fault
from laptop_kit import objects_of

from harness.cluster.kube.access import Access, access
from harness.cluster.kube.preflight import preflight
from harness.doctor import Check
from harness.kubespec import quantity
from harness.spec import ModelSpec, RunSpec


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[ClusterKit]:
    with cluster_of(3, tmp_path) as made:
        yield made


@pytest.fixture
def way(kit: ClusterKit) -> Access:
    return access(kubeconfig=kit.kubeconfig)


def spec_of(nodes: int = 2, fleet: dict[str, Any] | None = None, **kube: Any) -> RunSpec:
    """Of an engine that wants GPUs, so that nodes are counted by them."""
    found = {"nodes": nodes, "engine": "vllm", "replicas_per_node": 8, **(fleet or {})}
    return RunSpec.model_validate({"fleet": found, "cluster": {"kind": "kubernetes", "kubernetes": kube}})


def failed(checks: list[Check], name: str) -> str:
    found = [check for check in checks if check.name == name and check.ok is False]
    assert found, checks
    assert all(check.fix for check in found if name not in ("cluster", "objects")), found
    return "; ".join(check.detail for check in found)


def of(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_a_cluster_that_can_carry_the_run_has_no_finding_and_nothing_is_made(kit: ClusterKit, way: Access) -> None:
    checks = preflight(spec_of(), way)
    assert [check for check in checks if check.ok is False] == []
    assert "3 of 3 nodes can take a worker with 8 amd.com/gpu each, 2 wanted" in of(checks, "capacity").detail
    assert "accepts all 12 objects" in of(checks, "objects").detail
    assert objects_of(kit) == []


def test_a_namespace_that_is_not_there_is_the_only_finding_of_the_cluster(way: Access) -> None:
    checks = preflight(spec_of(namespace="nowhere"), way)
    assert 'namespace "nowhere": there is no such namespace' in failed(checks, "namespace")
    assert [check.name for check in checks] == ["cluster", "namespace", "images", "images", "engine", "shm"]


def test_rights_that_are_missing_are_named(kit: ClusterKit, tmp_path: Path) -> None:
    rules = (Rule(("get", "list", "create", "patch"), ("", "batch"), ("configmaps", "jobs", "services", "pods"), kit.namespace),)
    checks = preflight(spec_of(), access(kubeconfig=kit.operator(tmp_path / "few", *rules)))
    missing = failed(checks, "rights")
    for lacking in (
        "delete configmaps", "create, patch secrets", "create, patch poddisruptionbudgets (policy)", "create pods/portforward",
    ):  # fmt: skip
        assert lacking in missing.replace("get, create pods", "create pods"), missing
    assert "jobs" not in missing
    assert of(checks, "capacity").ok is None
    assert "may not read nodes" in of(checks, "capacity").detail


def test_the_example_role_is_enough(kit: ClusterKit, tmp_path: Path) -> None:
    checks = preflight(spec_of(), access(kubeconfig=kit.operator(tmp_path / "op")))
    assert [check for check in checks if check.ok is False] == []
    assert of(checks, "namespace").ok is True


def test_weights_without_a_volume_and_an_image_without_vllm_are_noted(way: Access) -> None:
    weights = ModelSpec(path="/models/gpt-oss-120b")
    checks = preflight(spec_of().model_copy(update={"model": weights}), way)
    assert "built without vLLM" in of(checks, "engine").detail
    assert "no volume is mounted at /models" in of(checks, "model").detail
    assert {of(checks, name).ok for name in ("engine", "model")} == {None}
    given = spec_of(worker_image="example.com/worker-rocm:1", model_claim="paceline-models").model_copy(update={"model": weights})
    assert not [check for check in preflight(given, way) if check.name in ("engine", "model")]


def test_claims_that_are_missing_are_named_with_their_field(kit: ClusterKit, way: Access) -> None:
    found = failed(preflight(spec_of(results_claim="elsewhere", model_claim="weights"), way), "claims")
    assert 'results_claim "elsewhere"' in found
    assert 'model_claim "weights"' in found


def test_too_few_nodes_are_told_with_what_stands_against_the_others(kit: ClusterKit, way: Access) -> None:
    kit.cordon("node-1")
    kit.update("Node", "node-2", lambda node: node["status"]["allocatable"].update({"amd.com/gpu": "7"}), status=True)
    found = failed(preflight(spec_of(3), way), "capacity")
    assert "1 of 3 nodes can take a worker" in found
    assert "1 cordoned" in found
    assert "1 fewer than 8 free amd.com/gpu" in found


def test_gpus_that_other_pods_hold_are_not_free(kit: ClusterKit, way: Access) -> None:
    container = {"name": "other", "image": "x", "resources": {"limits": {"amd.com/gpu": "4"}, "requests": {"amd.com/gpu": "4"}}}
    kit.create("Pod", {"metadata": {"name": "other"}, "spec": {"containers": [container]}})
    kit.until(lambda: (kit.get("Pod", "other") or {})["spec"].get("nodeName"), 60, "bound")
    assert "2 of 3 nodes can take a worker" in failed(preflight(spec_of(3), way), "capacity")


def test_a_taint_counts_unless_it_is_tolerated(kit: ClusterKit, way: Access) -> None:
    taint = {"key": "team", "value": "others", "effect": "NoSchedule"}
    kit.update("Node", "node-0", lambda node: node["spec"].update(taints=[taint]))
    assert "1 with taint team=others:NoSchedule" in failed(preflight(spec_of(3), way), "capacity")
    tolerant = spec_of(3, tolerations=[{"key": "team", "effect": "NoSchedule"}])
    assert of(preflight(tolerant, way), "capacity").ok is True


def test_a_quota_that_is_too_small_is_told_with_what_is_left(kit: ClusterKit, way: Access) -> None:
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"requests.amd.com/gpu": "8", "pods": "50"}}}
    kit.create("ResourceQuota", quota)
    kit.until(lambda: (kit.get("ResourceQuota", "small") or {}).get("status", {}).get("hard"), 60, "the quota is counted")
    found = failed(preflight(spec_of(2), way), "quota")
    assert "16 requests.amd.com/gpu needed, 8 of 8 left by quota small" in found


def test_what_the_server_refuses_in_a_dry_run_is_told_with_its_field(kit: ClusterKit, way: Access) -> None:
    cause = Cause("spec.ports[0].port", "FieldValueInvalid", "Invalid value: 5555: is not allowed here")
    refusal = Fault(unprocessable("Service", "", "x-head", [cause]), "patch", "services", times=2)
    kit.on(lambda: kit.cluster.server.faults.append(refusal))
    found = failed(preflight(spec_of(), way), "objects")
    assert "spec.ports[0].port" in found
    assert objects_of(kit) == []


def test_what_cannot_be_rendered_is_told_with_the_field_of_the_spec(way: Access) -> None:
    found = failed(preflight(spec_of(model_claim="weights", model_mount="/dev/shm"), way), "objects")
    assert 'cluster.kubernetes.model_mount "/dev/shm"' in found


def test_credentials_that_have_expired_say_to_log_in_again(kit: ClusterKit, tmp_path: Path) -> None:
    token = kit.cluster.token("operator")
    path = kit.cluster.kubeconfig(tmp_path / "old", token=token)
    kit.on(lambda: kit.cluster.access.expire(token))
    checks = preflight(spec_of(), access(kubeconfig=path))
    assert "log in again" in failed(checks, "cluster")


def test_an_api_server_that_is_away_is_one_finding(kit: ClusterKit, way: Access) -> None:
    kit.cluster.stop()
    checks = preflight(spec_of(), way)
    assert "does not answer: connection refused" in failed(checks, "cluster")
    assert [check.name for check in checks if check.ok is False] == ["cluster"]
    kit.cluster.start()


def test_without_a_kubeconfig_it_is_said_where_one_was_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert str(tmp_path / "none") in failed(preflight(spec_of()), "cluster")


@pytest.mark.parametrize(
    ("image", "ok"),
    [
        ("registry.example.com/team/worker:0.1@sha256:" + "0" * 64, True),
        ("registry.example.com:5000/worker:0.1", None),
        ("worker:0.1", None),
        ("Worker Image", False),
        ("registry/worker:", False),
    ],
)
def test_references_of_images_are_looked_at(way: Access, image: str, ok: bool | None) -> None:
    checks = [check for check in preflight(spec_of(worker_image=image), way) if check.name == "images"]
    assert checks[1].ok is ok, checks[1]


def test_little_shared_memory_for_tensor_parallel_is_noted(way: Access) -> None:
    small = spec_of(fleet={"replicas_per_node": 1, "layout": {"tp": 8}}, shm="64M")
    assert of(preflight(small, way), "shm").ok is None
    assert of(preflight(spec_of(fleet={"replicas_per_node": 1, "layout": {"tp": 8}}, shm="16Gi"), way), "shm").ok is True


@pytest.mark.parametrize(("text", "value"), [("500m", 0.5), ("4", 4.0), ("16Gi", 16 << 30), ("64M", 64e6), ("junk", 0.0)])
def test_quantities(text: str, value: float) -> None:
    assert quantity(text) == value


def test_queue_and_job_set_that_the_cluster_lacks_are_notes(way: Access) -> None:
    notes = [
        check.detail
        for check in preflight(spec_of(queue="team", jobset=True), way)
        if check.name == "features" and check.ok is None
    ]
    assert any("Kueue" in note for note in notes)
    assert any("JobSet" in note for note in notes)
