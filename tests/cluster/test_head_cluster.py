"""The head's KubernetesCluster against the fake cluster: what it sees, tells, keeps and evicts, with its own rights only."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import ClusterKit, cluster_of
from fake.kubelet import IMAGE_PULL_BACKOFF, OOM_KILLED, Fate, crash_loop
from head_cluster_kit import PATIENCE_S, RUN, HeadSide, head_side, may_see_nodes, place_run, spec_of

from harness.cluster.base import ClusterError
from harness.cluster.kube.evictions import Evictions
from harness.wire.clusterview import HostRow

Json = dict[str, Any]
AT_ONCE_S = 30.0  # half of the time for which an eviction that may pass later is tried again


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[ClusterKit]:
    with cluster_of(6, tmp_path, backoff_s=1.0, racks=2) as made:
        yield made


def budget_allows(side: HeadSide) -> int | None:
    """As the head has it; its pods are told by another watch."""
    return side.view.budget.allowed if side.view.budget is not None else None


def gives_up_after(side: HeadSide, try_s: float) -> None:
    side.cluster._evictions = Evictions(side.cluster._api, side.cluster._scene, side.cluster._rights, grace_s=5, try_s=try_s)


# --- what is seen -------------------------------------------------------------------------------------------------------


async def test_every_worker_and_the_head_are_seen_with_node_and_rack(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(4)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 4, "four workers ready")
        await side.until(lambda: side.view.budget is not None and side.view.budget.healthy == 4, "the budget is counted")
        await side.until(lambda: side.view.denied, "what it may do is known")
        view = side.view
        assert [row.node for row in view.pods] == [-1, 0, 1, 2, 3]
        assert all(row.host.startswith("node-") and row.rack.startswith("rack-") for row in view.pods[1:])
        assert (view.kind, view.namespace, view.run, view.wanted) == ("kubernetes", "paceline", RUN, 4)
        assert view.budget is not None
        assert (view.budget.allowed, view.budget.desired, view.budget.problem) == (2, 2, "")
        assert view.problem == ""
        assert view.hosts == []
        assert "kubectl apply -f manifests/components/nodes/nodes.yaml" in view.denied["hosts"]
        assert set(view.denied) == {"hosts", "cordon"}


async def test_a_view_is_the_same_object_until_something_changes(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(2)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 2 and side.view.denied and side.view.budget, "all is seen")
        before, looks, until_s = side.view, 0, time.monotonic() + PATIENCE_S
        while looks < 25:  # it is looked at every tenth of a second, and could be a new one every second
            assert time.monotonic() < until_s, "the view is made anew all the time"
            await asyncio.sleep(0.1)
            looks = looks + 1 if side.view is before else 0
            before = side.view
        side.cluster.scaled(1)
        await side.until(lambda: side.view.wanted == 1, "the wish is shown")


async def test_nodes_are_shown_where_they_may_be_read(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(2)
    may_see_nodes(kit)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 2, "both ready")
        await side.until(lambda: len([row for row in side.view.hosts if row.pods]) >= 2, "nodes that carry a worker")
        await side.until(lambda: side.row(1).host in [row.name for row in side.view.hosts], "that of a worker")
        assert side.view.denied == {}
        carried = next(row for row in side.view.hosts if row.name == side.row(1).host)
        assert carried.pods
        assert carried.ready
        kit.cordon(carried.name)
        await side.until(lambda: side.told(carried.name, "is cordoned", "node001"), "the cordon is told")
        kit.node_down(carried.name)
        await side.until(lambda: side.told(carried.name, "is NotReady"), "the dead node is told")

        def row() -> HostRow:
            return next(host for host in side.view.hosts if host.name == carried.name)

        await side.until(lambda: "NotReady" in row().reason and row().cordoned, "both are in its row")


async def test_a_missing_worker_has_the_schedulers_reason(kit: ClusterKit, tmp_path: Path) -> None:
    for name in ("node-3", "node-4", "node-5"):
        kit.cordon(name)
    spec = spec_of(4)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 3, "three of four")
        pending = next(row.node for row in side.view.pods if row.node >= 0 and not row.ready)
        why = side.cluster.why_missing(pending)
        assert "Pending" in why
        assert "3" in why
        await side.until(lambda: side.told("Pending", kind="pending"), "told once")
        ready = next(row.node for row in side.view.pods if row.node >= 0 and row.ready)
        assert "runs on node" in side.cluster.why_missing(ready)
        assert "not registered yet" in side.cluster.why_missing(ready)


async def test_a_quota_that_forbids_pods_is_named(kit: ClusterKit, tmp_path: Path) -> None:
    kit.create("ResourceQuota", {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "2"}}})
    spec = spec_of(4)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.told("exceeded quota"), "the quota is told")
        missing = [row for row in side.view.pods if row.node >= 0 and not row.pod]
        assert missing
        assert "exceeded quota" in side.cluster.why_missing(missing[0].node)


async def test_the_same_trouble_of_many_pods_is_one_line(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(5)
    kit.befalls(IMAGE_PULL_BACKOFF, f"{RUN}-worker")
    await asyncio.sleep(1 - time.time() % 1)  # pods are stamped by the second: those of the same one are worth a line together
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.told("ImagePullBackOff"), "told after some seconds")
        await asyncio.sleep(3.0)
        lines = side.told("ImagePullBackOff")
        assert len(lines) == 1
        assert lines[0].reason.startswith("5 pods (node000, node001, node002, …): image ")
        assert lines[0].nodes == (0, 1, 2, 3, 4)
        assert "ImagePullBackOff" in side.row(2).reason
        assert "ImagePullBackOff" in side.cluster.why_missing(2)


async def test_a_pod_that_dies_is_told_with_cause_and_last_line(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(2)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 2, "both ready")
        side.write(1, "[node001/gpu0] loading shard 7 of 9")
        await side.until(lambda: side.log("node001/gpu0"), "the line is kept")
        first = side.row(1).pod
        kit.befalls(Fate("exit", 137, "OOMKilled"), f"{RUN}-worker-1", times=1)
        assert OOM_KILLED.reason == "OOMKilled"
        await side.until(lambda: side.told("OOMKilled", "worker_memory", kind="exited"), "the exit is told")
        [exited] = side.told("OOMKilled", kind="exited")
        assert exited.nodes == (1,)
        assert exited.worker == "worker-1"
        await side.until(lambda: side.ready() == 2 and side.row(1).pod != first, "replaced")
        assert side.row(1).evictions == 0


async def test_a_crash_loop_is_told_with_its_exit_code(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(2)
    kit.befalls(crash_loop(2), f"{RUN}-worker-0")
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.told("exit code 2"), "the crash is told")
        assert "CrashLoopBackOff" in side.cluster.why_missing(0)


async def test_what_is_known_of_a_pod_reads_like_a_description(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(1)
    may_see_nodes(kit)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 1 and side.view.hosts, "ready")
        side.write(0, "registered")
        await side.until(lambda: any(line.endswith("registered") for line in side.log("node000")), "its line is read")
        await side.until(lambda: "Scheduled" in "\n".join(side.cluster.describe(0)), "its event is seen")
        text = "\n".join(side.cluster.describe(0))
        for part in (
            "Pod ",
            "Running, ready",
            "Container    worker: running",
            "Ready=True",
            "Node ",
            "Events",
            "ago",
        ):
            assert part in text, text
        assert "registered" in text


# --- evictions ----------------------------------------------------------------------------------------------------------


async def test_an_evicted_pod_is_replaced_and_its_delay_doubles(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(4)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 4 and side.view.budget and side.view.budget.allowed == 2, "ready")
        first = side.row(2)
        removal = side.cluster.removal(2)
        assert (removal.why_not, removal.delay_s, removal.subject) == ("", 10.0, first.pod)
        began_s = time.monotonic()
        said = await side.cluster.evict(2, cordon=False, why="it is slow")
        assert said.startswith(f"pod {first.pod} of node {first.host} evicted (grace 5 s); its successor starts about 10 s")
        await side.until(lambda: side.told(first.pod, kind="exited"), "its end is told")
        [exited] = side.told(first.pod, kind="exited")
        assert (exited.nodes, exited.level) == ((2,), "warn")
        assert exited.retry_in_s is not None
        assert 8 - (time.monotonic() - began_s) <= exited.retry_in_s <= 10  # stamps are by the second
        assert "it is slow" in exited.reason
        await side.until(lambda: side.row(2).ready and side.row(2).pod != first.pod, "its successor")
        await side.until(lambda: side.row(2).evictions == 1 and side.row(2).replacement_unix == 0.0, "counted")
        assert side.row(2).next_delay_s == 20.0
        assert side.cluster.removal(2).delay_s == 20.0
        said = await side.cluster.evict(2, cordon=False, why="again")
        assert "about 20 s" in said
        assert "the second replacement of this index" in said


async def test_an_eviction_waits_for_the_budget_and_then_passes(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(3, max_evictions=1)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 3 and side.view.budget and side.view.budget.allowed == 1, "ready")
        kit.befalls(Fate("unready"), f"{RUN}-worker-0")
        await side.cluster.evict(0, cordon=False, why="first")
        await side.until(lambda: budget_allows(side) == 0, "the budget is used up")
        second = asyncio.create_task(side.cluster.evict(1, cordon=False, why="second"))
        await side.until(lambda: 429 in [call.code for call in kit.on(lambda: list(kit.cluster.server.calls))], "refused")
        assert not second.done()
        kit.gets_well()
        assert "evicted" in await asyncio.wait_for(second, PATIENCE_S)


async def test_an_eviction_that_the_budget_never_lets_pass_in_time_says_cause_and_count(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(3, max_evictions=1)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 3 and side.view.budget and side.view.budget.allowed == 1, "ready")
        kit.befalls(Fate("unready"), f"{RUN}-worker-0")
        await side.cluster.evict(0, cordon=False, why="first")
        await side.until(lambda: side.ready() == 2 and side.row(0).pod, "its successor does not get ready")
        await side.until(lambda: budget_allows(side) == 0, "the budget is used up")
        gives_up_after(side, 1.5)
        with pytest.raises(ClusterError, match=r"not evicted within 1\.5 s") as caught:
            await side.cluster.evict(1, cordon=False, why="second")
        assert "needs 2 healthy pods and has 2 currently" in str(caught.value)
        assert re.search(r"2 of \d workers are ready, 2 must be, 0 may go now", str(caught.value))
        assert side.row(1).phase == "Running"


async def test_a_budget_that_can_never_allow_an_eviction_ends_it_at_once(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(2)
    place_run(kit, spec)

    def spoil(budget: Json) -> None:
        del budget["spec"]["minAvailable"]
        budget["spec"]["maxUnavailable"] = 1

    kit.update("PodDisruptionBudget", f"{RUN}-worker", spoil)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 2 and side.view.budget and side.view.budget.problem, "the budget is judged")
        assert "can never allow an eviction" in side.cluster.removal(0).why_not
        with pytest.raises(ClusterError, match="can never allow an eviction"):
            await asyncio.wait_for(side.cluster.evict(0, cordon=False, why="slow"), AT_ONCE_S)
        await side.until(lambda: side.told("can never allow an eviction"), "told once")


async def test_two_budgets_on_one_pod_are_said_in_words(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(2)
    place_run(kit, spec)
    own = kit.get("PodDisruptionBudget", f"{RUN}-worker")
    assert own is not None
    other = {"metadata": {"name": "somebodys"}, "spec": own["spec"]}
    kit.create("PodDisruptionBudget", other)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 2 and side.view.budget, "ready")
        with pytest.raises(ClusterError, match="more than one PodDisruptionBudget selects it"):
            await asyncio.wait_for(side.cluster.evict(0, cordon=False, why="slow"), AT_ONCE_S)


async def test_a_head_without_the_right_says_so_before_anything_is_tried(kit: ClusterKit, tmp_path: Path) -> None:
    def no_evictions(role: Json) -> None:
        role["rules"] = [rule for rule in role["rules"] if "pods/eviction" not in rule["resources"]]

    kit.update("Role", "paceline-head", no_evictions)
    spec = spec_of(1)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 1 and "evict" in side.view.denied, "the right is known to be missing")
        assert "may not create pods/eviction in namespace paceline" in side.cluster.removal(0).why_not
        with pytest.raises(ClusterError, match="may not create pods/eviction"):
            await side.cluster.evict(0, cordon=False, why="slow")


async def test_a_cordon_makes_the_successor_land_elsewhere(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(2)
    may_see_nodes(kit)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 2 and side.view.hosts and side.view.budget, "ready")
        before = side.row(0)
        assert side.cluster.removal(0).why_no_cordon == ""
        said = await side.cluster.evict(0, cordon=True, why="bad memory")
        assert f"node {before.host} is cordoned, until `kubectl uncordon {before.host}`" in said
        await side.until(lambda: side.row(0).ready and side.row(0).host != before.host, "elsewhere")


async def test_without_the_right_to_cordon_the_eviction_still_happens(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(2)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 2 and "cordon" in side.view.denied and side.view.budget, "ready")
        assert "may not patch nodes" in side.cluster.removal(0).why_no_cordon
        said = await side.cluster.evict(0, cordon=True, why="bad memory")
        assert "evicted" in said
        assert "is not cordoned, so the successor may land on it again" in said


async def test_an_eviction_that_fails_takes_its_cordon_back(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(2, max_evictions=1)
    may_see_nodes(kit)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 2 and side.view.hosts and side.view.budget, "ready")
        kit.befalls(Fate("unready"), f"{RUN}-worker-0")
        await side.cluster.evict(0, cordon=False, why="first")
        await side.until(lambda: side.row(0).pod and side.ready() == 1, "one is left")
        await side.until(lambda: budget_allows(side) == 0, "the budget is used up")
        gives_up_after(side, 1.0)
        with pytest.raises(ClusterError, match="is uncordoned again"):
            await side.cluster.evict(1, cordon=True, why="second")
        host = kit.on(lambda: kit.cluster.store.get("Node", "", side.row(1).host))
        assert host is not None
        assert not host["spec"].get("unschedulable")


# --- logs ---------------------------------------------------------------------------------------------------------------


async def test_lines_go_to_the_log_of_their_replica_or_node(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(2)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 2, "ready")
        now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        side.write(1, f"[node001/gpu0] {now},123 WARNING of gpu 0", "[node001/gpu1] of gpu 1", "of the worker")
        side.write(1, "[node000/gpu0] a node that is not its own", "[node001/gpu7] a replica that there is not")
        await side.until(
            lambda: len(side.log("node001")) >= 4 and side.log("node001/gpu0") and side.log("node001/gpu1"), "all lines"
        )
        assert side.log("node001/gpu0") == [f"{now},123+00:00 WARNING of gpu 0"]
        assert side.log("node001/gpu1")[0].endswith(" of gpu 1")
        own = side.log("node001")
        assert own[0].startswith("--- ")
        assert own[0].endswith(" begins")
        assert own[1].endswith(" of the worker")
        assert own[2] == "[node000/gpu0] a node that is not its own"
        assert own[3] == "[node001/gpu7] a replica that there is not"
        assert not side.folder.log("node001/gpu7").exists()


async def test_no_line_is_lost_or_doubled_when_the_api_server_goes_and_comes_back(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(1)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 1, "ready")
        pod = kit.pods("worker", 0)[0]

        def write(*numbers: int) -> None:
            lines = "\n".join(f"line {number}" for number in numbers)
            kit.on(lambda: kit.cluster.logs.write(pod["metadata"]["uid"], lines, "worker"))

        write(*range(50))
        await side.until(lambda: len(side.log("node000")) > 50, "the first lines")
        kit.cluster.stop()
        write(*range(50, 100))
        await asyncio.sleep(0.5)
        kit.cluster.start()
        write(*range(100, 120))
        await side.until(lambda: len(side.log("node000")) >= 121, "the other lines")
        await asyncio.sleep(1.0)
        numbers = [int(line.rsplit(" ", 1)[1]) for line in side.log("node000")[1:]]
        assert numbers == list(range(120))


async def test_the_next_head_goes_on_where_the_last_one_ended(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(1)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 1, "ready")
        side.write(0, *(f"line {number}" for number in range(20)))
        await side.until(lambda: len(side.log("node000")) == 21, "read")
    side.write(0, *(f"line {number}" for number in range(20, 40)))
    async with head_side(kit, spec, tmp_path) as later:
        await later.until(lambda: len(later.log("node000")) >= 41, "the rest")
        await asyncio.sleep(1.0)
        numbers = [int(line.rsplit(" ", 1)[1]) for line in later.log("node000")[1:]]
        assert numbers == list(range(40))


async def test_an_evicted_pods_log_stays_and_its_successors_follows(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(3)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 3 and side.view.budget, "ready")
        side.write(1, "[node001/gpu0] of the first")
        await side.until(lambda: side.log("node001/gpu0"), "read")
        first = side.row(1).pod
        await side.cluster.evict(1, cordon=False, why="slow")
        await side.until(lambda: side.row(1).ready and side.row(1).pod != first, "its successor")
        await side.until(lambda: any("has ended" in line for line in side.log("node001/gpu0")), "its end is in its log")
        side.write(1, "[node001/gpu0] of the second")
        await side.until(lambda: any("of the second" in line for line in side.log("node001/gpu0")), "read on")
        lines = side.log("node001/gpu0")
        assert lines[0].endswith("of the first")
        assert f"worker: pod {first} has ended: exit code 143" in lines[1]
        await side.until(lambda: sum(" begins" in line for line in side.log("node001")) == 2, "both begin")


async def test_denied_logs_are_said_once_and_shown(kit: ClusterKit, tmp_path: Path) -> None:
    def no_logs(role: Json) -> None:
        role["rules"] = [rule for rule in role["rules"] if "pods/log" not in rule["resources"]]

    kit.update("Role", "paceline-head", no_logs)
    spec = spec_of(2)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: "logs" in side.view.denied, "the right is missing")
        await side.until(lambda: side.told("pods/log"), "told")
        await asyncio.sleep(1.0)
        assert len(side.told("pods/log")) == 1


# --- a view that is lost --------------------------------------------------------------------------------------------------


async def test_a_lost_api_server_is_told_and_found_again(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(2)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 2, "ready")
        kit.cluster.stop()
        await side.until(lambda: "nothing is seen of the cluster since" in side.view.problem, "the view says so")
        assert "the run goes on" in side.view.problem
        assert side.ready() == 2
        kit.cluster.start()
        await side.until(lambda: side.view.problem == "", "seen again")
        await side.until(lambda: side.told("answers again"), "told")
        assert not [event for event in side.events if event.kind == "exited"]


async def test_what_happened_while_nobody_looked_is_seen_afterwards(kit: ClusterKit, tmp_path: Path) -> None:
    spec = spec_of(3)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 3, "ready")
        first = side.row(1).pod
        kit.cluster.stop()
        kit.replaces_after(600.0)  # one that has a successor already is no worker's end
        kit.on(lambda: kit.cluster.store.delete("Pod", kit.namespace, first, grace_s=0))
        await side.until(lambda: (kit.get("Pod", first) or {"status": {}})["status"].get("phase") != "Running", "it has ended")
        kit.on(kit.cluster.server.compact)
        kit.cluster.start()
        await side.until(lambda: side.told(first, kind="exited"), "the end of the first")
        kit.replaces_after(1.0)
        await side.until(lambda: side.row(1).ready and side.row(1).pod != first, "its successor")


async def test_a_head_that_ends_reads_the_last_lines_first(
    kit: ClusterKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.cluster.kube.cluster._CLOSE_S", PATIENCE_S)  # what it takes of them it shall not leave to luck
    spec = spec_of(2)
    place_run(kit, spec)
    async with head_side(kit, spec, tmp_path) as side:
        await side.until(lambda: side.ready() == 2, "ready")
        side.write(0, "the very last line")
        kit.befalls(Fate("exit", 0), f"{RUN}-worker")
        await asyncio.to_thread(side.cluster.stop, 2 * PATIENCE_S)
        lines = side.log("node000")
        assert any(line.endswith("the very last line") for line in lines)
        assert "has ended: exit code 0" in lines[-1]
        assert not [task for task in asyncio.all_tasks() if "log of" in task.get_name() or "watch" in task.get_name()]
