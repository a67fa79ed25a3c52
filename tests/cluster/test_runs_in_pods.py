"""A run whose head and workers are pods, and the pods real processes: what becomes of it when one of them goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import ClusterKit, cluster_of, free_ports
from fake.evicting import evict
from fake.loops import is_true

from harness.cluster.kube.names import COMPONENT, INDEX
from harness.cluster.kube.render import owned_by, render
from harness.records.journal import read_journal
from harness.spec import RunSpec
from harness.wire.client import HeadAddress, HeadClient
from harness.wire.keys import ServerKeys, load_client_keys
from harness.wire.states import READY

Json = dict[str, Any]
RUN = "inpods"
PATIENCE_S = 60
NODES = 2
LONG_S = 600.0  # longer than any of it takes

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[ClusterKit]:
    with cluster_of(NODES + 1, tmp_path, processes=True, backoff_s=1.0) as made:
        yield made


def spec(duration_s: float) -> RunSpec:
    control, telemetry = free_ports(2)
    tokens: dict[str, Any] = {"mean": 40, "sigma": 0.4, "min": 4, "max": 120}
    small = {"cpu": "1", "memory": "1Gi"}
    return RunSpec.model_validate(
        {
            "name": "in-pods",
            "metrics": {"listen": "127.0.0.1:0"},  # pods of the fake share an address
            "dataset": {"samples": 50, "input_tokens": tokens, "output_tokens": tokens},
            "load": {"target_qps": 30, "duration_s": duration_s, "sample_deadline_s": 30, "max_tries": 5},
            "limits": {"ttft_p99_ms": 30_000, "tpot_p99_ms": 10_000},
            "fleet": {
                "nodes": NODES,
                "replicas_per_node": 2,
                "engine_args": {"preset": "demo"},
                "heartbeat_s": 0.2,
                "lease_s": 0.8,
                "no_ready_grace_s": 10,
                "barrier": {"deadline_s": PATIENCE_S},
            },
            "record": {"chunk_s": 0.5, "min_free_gb": 0},
            "cluster": {
                "kind": "kubernetes",
                "kubernetes": {
                    "control_port": control,
                    "telemetry_port": telemetry,
                    "grace_s": 10,
                    "keep_record_s": 0,
                    **{f"{who}_{what}": amount for who in ("head", "worker") for what, amount in small.items()},
                },
            },
        }
    )


def placed(kit: ClusterKit, wanted: RunSpec) -> ServerKeys:
    keys = ServerKeys.fresh()
    config, *others = sorted(render(wanted, RUN, keys=keys), key=lambda obj: obj["kind"] != "ConfigMap")
    made = kit.create("ConfigMap", config)
    for obj in owned_by([config, *others], made["metadata"]["uid"])[1:]:
        kit.create(obj["kind"], obj)
    return keys


def all_ready(kit: ClusterKit) -> None:
    kit.until(lambda: kit.ready("head") == 1 and kit.ready("worker") == NODES, PATIENCE_S, "head and workers ready")


def stopped(wanted: RunSpec, keys: ServerKeys, place: Path) -> None:
    """It is measured until somebody says so: what is done to its pods has all the time it takes."""
    keys.save(place)
    kube = wanted.cluster.kubernetes
    control, telemetry = (f"tcp://127.0.0.1:{port}" for port in (kube.control_port, kube.telemetry_port))
    with HeadClient(HeadAddress(control, telemetry, 0, 0), load_client_keys(place, "operator")) as head:
        reply = head.command("stop", timeout_s=PATIENCE_S)
    assert (reply.ok, "attempt 1 ends" in reply.message) == (True, True), reply.message


def journal(kit: ClusterKit) -> list[str]:
    """`what` of every entry so far."""
    path = kit.claim("paceline-results") / RUN / "journal.jsonl"
    return [entry.what for entry in read_journal(path)] if path.exists() else []


def ready_since(kit: ClusterKit, node: str, number: int) -> int:
    """How many replicas of a node have become ready after so many entries of the journal."""
    entries = read_journal(kit.claim("paceline-results") / RUN / "journal.jsonl")[number:]
    moved = {entry.subject for entry in entries if (entry.what, entry.after) == ("replica.state", READY)}
    return len([slot for slot in moved if slot.startswith(f"{node}/")])


def measuring(kit: ClusterKit) -> None:
    kit.until(lambda: "attempt.phase" in journal(kit), PATIENCE_S, "an attempt has begun")


def replaced(kit: ClusterKit, pod: Json) -> None:
    """Returns when its successor is Ready."""
    before, labels = pod["metadata"], pod["metadata"]["labels"]
    index = labels.get(INDEX)

    def back() -> bool:
        found = kit.pods(labels[COMPONENT], None if index is None else int(index))
        return any(is_true(other, "Ready") and other["metadata"]["uid"] != before["uid"] for other in found)

    kit.until(back, PATIENCE_S, f"a successor of {before['name']}")


def complete(kit: ClusterKit) -> None:
    kit.until(lambda: is_true(kit.get("Job", f"{RUN}-head") or {}, "Complete"), PATIENCE_S, "the head's Job complete")


def test_a_run_in_pods_ends_with_its_record_on_the_claim_and_goes_with_its_config_map(kit: ClusterKit) -> None:
    placed(kit, spec(3))  # whose pods may have ended before anybody has looked whether all are ready
    complete(kit)
    kit.until(lambda: is_true(kit.get("Job", f"{RUN}-worker") or {}, "Complete"), PATIENCE_S, "the workers' Job complete")
    assert "head.end" in journal(kit)
    kit.on(lambda: kit.cluster.store.delete("ConfigMap", kit.namespace, f"{RUN}-run", propagation="Foreground"))
    kit.until(lambda: kit.get("ConfigMap", f"{RUN}-run") is None, PATIENCE_S, "everything of the run is gone")
    assert [kit.listed(kind) for kind in ("Pod", "Job", "Service", "PodDisruptionBudget", "NetworkPolicy")] == [[]] * 5
    assert (kit.claim("paceline-results") / RUN / "run.json").is_file()


def test_an_evicted_worker_is_replaced_and_the_run_goes_on(kit: ClusterKit, tmp_path: Path) -> None:
    keys = placed(kit, wanted := spec(LONG_S))
    all_ready(kit)
    measuring(kit)
    pod, before = kit.pods("worker", 1)[0], len(journal(kit))
    kit.on(lambda: evict(kit.cluster.store, kit.namespace, pod["metadata"]["name"], {}, dry_run=False))
    replaced(kit, pod)
    kit.until(lambda: ready_since(kit, "node001", before) == 2, PATIENCE_S, "its replicas take part again")
    assert "attempt.end" not in journal(kit)
    stopped(wanted, keys, tmp_path / "keys")
    complete(kit)
    assert "worker.exited" in journal(kit)
    assert "failed" not in (kit.get("Job", f"{RUN}-worker") or {})["status"]


def test_a_head_that_died_is_replaced_and_finds_its_workers_again(kit: ClusterKit) -> None:
    placed(kit, spec(8))
    all_ready(kit)
    measuring(kit)
    before = {pod["metadata"]["uid"] for pod in kit.pods("worker")}
    head = kit.pods("head")[0]
    kit.kill(head["metadata"]["name"])
    replaced(kit, head)
    complete(kit)
    assert {pod["metadata"]["uid"] for pod in kit.listed("Pod") if "worker" in pod["metadata"]["name"]} == before
    assert journal(kit).count("head.start") == 2
