"""Clean-up removes a run and nothing else, and says what it does not know; an empty name is no run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import ClusterKit, cluster_of
from fake.access import Rule
from laptop_kit import laptop_of, objects_of

from harness.cluster.base import ClusterError
from harness.cluster.kube import names
from harness.cluster.kube.access import access
from harness.cluster.kube.api import Api
from harness.cluster.kube.discover import keys_of, make_local, remote_runs
from harness.cluster.kube.removal import ask_to_go, remove
from harness.cluster.kube.scaling import resize
from harness.spec import RunSpec
from harness.wire.keys import ServerKeys

RUN = "trial-20261130-120000"
SMALL = {"head_cpu": "1", "head_memory": "1Gi", "worker_cpu": "1", "worker_memory": "1Gi"}


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[ClusterKit]:
    with cluster_of(3, tmp_path, backoff_s=0.5) as made:
        yield made


def spec() -> RunSpec:
    cluster = {"kind": "kubernetes", "kubernetes": SMALL}
    return RunSpec.model_validate({"name": "trial", "fleet": {"nodes": 2}, "cluster": cluster})


def ask(kit: ClusterKit, do: Any, kubeconfig: Path | None = None) -> Any:
    async def run() -> Any:
        async with Api(access(kubeconfig=kubeconfig or kit.kubeconfig), kit.namespace, timeout_s=30.0) as api:
            return await asyncio.wait_for(do(api), 90.0)

    return asyncio.run(run())


def placed(kit: ClusterKit) -> None:
    """All objects of the run, without waiting for a head."""
    from harness.cluster.kube.render import owned_by, render

    async def make(api: Api) -> None:
        rendered = render(spec(), RUN, keys=ServerKeys.fresh())
        made = await api.create(next(thing for thing in rendered if thing["kind"] == "ConfigMap"))
        for thing in owned_by(rendered, made["metadata"]["uid"]):
            if thing["kind"] != "ConfigMap":
                await api.apply(thing)

    ask(kit, make)


def cleaned(kit: ClusterKit, within_s: float = 60.0) -> list[str]:
    said: list[str] = []
    assert ask(kit, lambda api: remove(api, RUN, say=said.append, within_s=within_s)), said
    return said


def a_pod(name: str, *owners: dict[str, str]) -> dict[str, Any]:
    meta = {"name": name, "labels": names.labels(RUN, "worker"), "ownerReferences": list(owners)}
    return {"metadata": meta, "spec": {"containers": [{"name": "main", "image": "example.com/none:1"}]}}


def test_pods_that_have_lost_their_job_go_as_well(kit: ClusterKit) -> None:
    placed(kit)
    kit.create("Pod", a_pod("orphan"))
    cleaned(kit)
    assert objects_of(kit) == []


def test_what_belongs_to_something_else_is_left_alone_and_not_waited_for(kit: ClusterKit) -> None:
    placed(kit)
    other = kit.create("Job", {**_job(), "metadata": {"name": "others"}})
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": other["metadata"]["uid"]}
    kit.create("Pod", a_pod("forged", owner))
    said = cleaned(kit)
    assert any("left alone: Pod forged" in line and "ReplicaSet web" in line for line in said), said
    assert kit.get("Pod", "forged") is not None


def _job() -> dict[str, Any]:
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example.com/none:1"}]}}
    return {"spec": {"suspend": True, "template": pod}}


def test_a_config_map_of_that_name_without_the_labels_is_somebody_elses(kit: ClusterKit) -> None:
    kit.create("ConfigMap", {"metadata": {"name": names.config_map(RUN)}, "data": {}})
    assert ask(kit, lambda api: ask_to_go(api, RUN)) is False
    assert kit.get("ConfigMap", names.config_map(RUN)) is not None


def test_an_empty_name_means_no_run_and_no_namespace_is_made_up(kit: ClusterKit, tmp_path: Path) -> None:
    with laptop_of(kit, tmp_path) as laptop:
        for arguments, said in (
            (("clean-up", "", "--yes"), "RUN is empty"),
            (("clean-up", RUN, "--namespace", "No Such"), "--namespace 'No Such': is no namespace"),
            (("attach", "--list", "--namespace", "a/b"), "--namespace 'a/b': is no namespace"),
        ):
            done = laptop.paceline(*arguments)
            assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_of_a_run_that_is_not_known_here_the_whole_name_is_wanted(kit: ClusterKit, tmp_path: Path) -> None:
    placed(kit)
    there = objects_of(kit)
    with laptop_of(kit, tmp_path) as laptop:
        done = laptop.paceline("clean-up", "trial", "--yes")
        assert (done.returncode, f"give the whole name of one: {RUN}" in done.stderr) == (2, True), done.stderr
        assert set(there) <= set(objects_of(kit))
        assert "nothing of other is in namespace" in laptop.paceline("clean-up", "other", "--yes").stdout


def test_where_nothing_may_be_listed_it_is_not_said_that_nothing_is_there(kit: ClusterKit, tmp_path: Path) -> None:
    placed(kit)
    kubeconfig = kit.operator(tmp_path / "few", Rule(("get",), ("",), ("pods",), kit.namespace))
    with laptop_of(kit, tmp_path, kubeconfig=kubeconfig) as laptop:
        done = laptop.paceline("clean-up", RUN)
    assert done.returncode == 3
    assert "it is not known what of" in done.stderr
    assert "nothing of" not in done.stdout + done.stderr


def test_a_budget_that_somebody_has_deleted_is_made_anew_by_the_next_scaling(kit: ClusterKit) -> None:
    placed(kit)
    budget = f"{RUN}-worker"
    kit.on(lambda: kit.cluster.store.delete("PodDisruptionBudget", kit.namespace, budget))
    ask(kit, lambda api: resize(api, spec(), RUN, 1), kit.operator(kit.kubeconfig.with_name("operator")))
    made = kit.get("PodDisruptionBudget", budget)
    assert made is not None
    assert made["spec"]["minAvailable"] == 0
    assert made["metadata"]["ownerReferences"][0]["name"] == names.config_map(RUN)
    job = kit.get("Job", budget)
    assert job is not None
    assert job["spec"]["parallelism"] == 1
    cleaned(kit)
    assert objects_of(kit) == []


def test_a_secret_that_was_altered_is_named_and_leaves_no_folder(kit: ClusterKit, tmp_path: Path) -> None:
    placed(kit)
    secret = names.keys_secret(RUN, "operator")
    kit.update("Secret", secret, lambda found: found["data"].update({"operator.key": "AAAA"}))
    way = access(kubeconfig=kit.kubeconfig)
    (remote,) = ask(kit, remote_runs)
    _, keys = ask(kit, lambda api: keys_of(api, remote.instance))
    with pytest.raises(ClusterError, match=rf"secret {secret} of namespace paceline: its operator.key is no key"):
        make_local(tmp_path / "runs", remote, keys, way)
    assert not (tmp_path / "runs" / RUN).exists()


def test_a_name_in_a_config_map_never_leads_out_of_the_folder_of_runs(kit: ClusterKit) -> None:
    run = "../../home/somebody"
    instance = names.instance_of(run)
    labels = names.labels(instance)
    kit.create("ConfigMap", {"metadata": {"name": names.config_map(instance), "labels": labels}, "data": {"run": run}})
    (found,) = ask(kit, remote_runs)
    assert found.run == instance
