"""Our client against the fake API server: what is written, refused, watched, and watched again after a break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fake.access import Rule
from fake.cluster import FakeCluster
from fake.disruption import DisruptionLoop
from fake.loops import ControlPlane
from fake.server import ApiServer

from harness.cluster.kube.access import access
from harness.cluster.kube.api import Api, ApiProblem
from harness.cluster.kube.reflector import Pace, Reflector
from harness.cluster.kube.views import PodView, reduce_pod

Json = dict[str, Any]
NAMESPACE = "default"
FAST = Pace(reply_s=20.0, silence_s=20.0, first_pause_s=0.02, longest_pause_s=0.1, forbidden_pause_s=0.1)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(lambda: ApiServer(bookmark_s=0.2)) as made:
        yield made


@asynccontextmanager
async def client(cluster: FakeCluster, folder: Path, token: str | None = None) -> AsyncIterator[Api]:
    path = cluster.kubeconfig(folder / "kubeconfig", token=token, namespace=NAMESPACE)
    async with Api(access(kubeconfig=path, environ={}), timeout_s=30.0) as api:
        yield api


def a_pod(name: str, **labels: str) -> Json:
    spec = {"containers": [{"name": "main", "image": "example.com/none:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "x"} | labels}, "spec": spec}


def a_map(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def until(what: str, true: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline_s = asyncio.get_running_loop().time() + within_s
    while not true():
        assert asyncio.get_running_loop().time() < deadline_s, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.01)


async def test_applying_creates_changes_and_tries(cluster: FakeCluster, tmp_path: Path) -> None:
    async with client(cluster, tmp_path) as api:
        assert (await api.apply(a_map("tried", a="1"), dry_run=True))["metadata"]["uid"]
        with pytest.raises(ApiProblem) as told:
            await api.get("ConfigMap", "tried")
        assert told.value.not_found
        await api.apply(a_map("kept", a="1", b="2"))
        assert (await api.apply(a_map("kept", a="3")))["data"] == {"a": "3"}
        assert (await api.patch("ConfigMap", "kept", {"data": {"c": "4"}}))["data"] == {"a": "3", "c": "4"}
        assert [found["metadata"]["name"] for found in await api.list("ConfigMap")] == ["kept"]
        with pytest.raises(ApiProblem, match="cannot delete configMap kept") as told:
            await api.delete("ConfigMap", "kept", uid="another")
        assert told.value.conflict
        await api.delete("ConfigMap", "kept")
        assert await api.list("ConfigMap") == []
        assert (await api.version()).startswith("v1.")
        assert await api.has_group("batch", "v1")


async def test_a_user_without_the_right_is_told_which(cluster: FakeCluster, tmp_path: Path) -> None:
    token = cluster.token("eve", Rule(("get", "list"), ("",), ("pods",)))
    async with client(cluster, tmp_path, token) as api:
        assert await api.list("Pod") == []
        with pytest.raises(ApiProblem, match="user eve may not create pods/eviction in namespace default") as told:
            await api.evict("w-1")
        assert told.value.forbidden
        assert await api.can_i("list", "pods")
        assert not await api.can_i("create", "pods/eviction")
        rules = await api.rules()
        assert rules.may("get", "pods")
        assert not rules.may("create", "pods/eviction")


async def test_a_token_that_has_expired_is_told_with_the_next_step(cluster: FakeCluster, tmp_path: Path) -> None:
    token = cluster.token("eve", Rule(("*",), ("*",), ("*",)))
    async with client(cluster, tmp_path, token) as api:
        assert await api.list("Pod") == []
        cluster.call(lambda: cluster.access.expire(token))
        with pytest.raises(ApiProblem, match=r"does not accept the credentials of .*; log in again, then retry") as told:
            await api.list("Pod")
        assert told.value.code == 401


async def counted(api: Api, **numbers: int) -> None:
    """By the budget's controller."""
    until_s = asyncio.get_running_loop().time() + 60.0
    while not numbers.items() <= ((await api.get("PodDisruptionBudget", "b")).get("status") or {}).items():
        assert asyncio.get_running_loop().time() < until_s, f"not counted: {numbers}"
        await asyncio.sleep(0.05)


async def test_a_budget_refuses_an_eviction_and_says_its_counts(cluster: FakeCluster, tmp_path: Path) -> None:
    plane = cluster.call(lambda: ControlPlane(cluster.store, [DisruptionLoop(cluster.store)]))
    cluster.in_background(plane.run)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}, "unhealthyPodEvictionPolicy": "AlwaysAllow"},
    }
    async with client(cluster, tmp_path) as api:
        made = await api.create(a_pod("w-1"))
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await api.patch("Pod", "w-1", {"status": ready}, subresource="status")
        await api.apply(budget)
        await counted(api, currentHealthy=1)
        with pytest.raises(ApiProblem, match=r"the disruption budget does not allow it now: .*needs 1 healthy") as told:
            await api.evict("w-1", uid=made["metadata"]["uid"], dry_run=True)
        assert told.value.budget is not None
        await api.apply(budget | {"spec": budget["spec"] | {"minAvailable": 0}})  # type: ignore[operator]
        await counted(api, disruptionsAllowed=1)
        await api.evict("w-1", uid=made["metadata"]["uid"])
    cluster.call(plane.close)


@asynccontextmanager
async def watching(api: Api) -> AsyncIterator[tuple[Reflector[PodView], list[str]]]:
    told: list[str] = []

    def on_change(kind: str, old: PodView | None, new: PodView | None) -> None:
        told.append(f"{kind} {new.name if new else '?'}")

    seen = Reflector(api, "Pod", reduce_pod, selector="app=x", on_change=on_change, pace=FAST, seed=1)
    seen.start()
    try:
        await asyncio.wait_for(seen.synced.wait(), 60.0)
        yield seen, told
    finally:
        await seen.stop()


def names(seen: Reflector[PodView]) -> set[str]:
    return {view.name for view in seen.items.values()}


async def shows(seen: Reflector[PodView], name: str) -> None:
    await until(f"{name} is seen", lambda: name in names(seen))


async def test_a_watch_sees_what_its_selector_selects(cluster: FakeCluster, tmp_path: Path) -> None:
    async with client(cluster, tmp_path) as api:
        await api.create(a_pod("a"))
        await api.create(a_pod("other", app="y"))
        async with watching(api) as (seen, told):
            assert names(seen) == {"a"}
            await api.create(a_pod("b"))
            await api.patch("Pod", "b", {"status": {"phase": "Running"}}, subresource="status")
            await api.delete("Pod", "a", grace_s=0, propagation="Background")
            await until("a is gone", lambda: names(seen) == {"b"})
            assert told == ["ADDED a", "ADDED b", "MODIFIED b", "DELETED a"]
            assert seen.problem == ""


async def test_history_that_is_gone_costs_a_list_and_no_false_change(cluster: FakeCluster, tmp_path: Path) -> None:
    async with client(cluster, tmp_path) as api:
        for name in ("a", "b"):
            await api.create(a_pod(name))
        async with watching(api) as (seen, told):
            cluster.stop()
            await until("it says that the server is gone", lambda: "does not answer: connection refused" in seen.problem)
            assert names(seen) == {"a", "b"}

            def meanwhile() -> None:
                cluster.store.delete("Pod", NAMESPACE, "a", grace_s=0)
                cluster.server.compact()

            cluster.call(meanwhile)
            cluster.start()
            await until("it has caught up", lambda: names(seen) == {"b"} and seen.problem == "")
            assert told == ["ADDED a", "ADDED b", "DELETED a"]


async def test_watches_that_are_cut_or_expired_go_on(cluster: FakeCluster, tmp_path: Path) -> None:
    async with client(cluster, tmp_path) as api:
        await api.create(a_pod("a"))
        async with watching(api) as (seen, told):
            for number, brk in enumerate((cluster.cut_watches, cluster.expire_watches, cluster.cut_watches)):
                brk()
                await api.create(a_pod(f"after-{number}"))
                await shows(seen, f"after-{number}")
            assert told == ["ADDED a", "ADDED after-0", "ADDED after-1", "ADDED after-2"]


async def test_a_right_that_is_taken_away_and_given_back(cluster: FakeCluster, tmp_path: Path) -> None:
    may = Rule(("get", "list", "watch"), ("",), ("pods",))
    token = cluster.token("eve", may)
    async with client(cluster, tmp_path, token) as api, watching(api) as (seen, _):
        cluster.call(lambda: cluster.access.change(token))
        cluster.cut_watches()
        await until("it says so", lambda: "user eve may not watch pods in namespace default" in seen.problem)
        cluster.call(lambda: cluster.access.change(token, may))
        await until("it is well again", lambda: seen.problem == "")
