"""What the head makes of its pods: rows, counts, delays, and the lines of the journal; without any server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from kube_cluster_kit import EVICTED, RUN, T0, Stage, a_job, a_node, a_pod, changed, container, ended

from harness.cluster.base import ClusterError
from harness.cluster.kube.api import Api
from harness.cluster.kube.evictions import Evictions
from harness.cluster.kube.logfiles import LogFiles
from harness.cluster.kube.loglines import parted, stamp_of, zoned
from harness.cluster.kube.logtee import LogTee
from harness.cluster.kube.problems import ApiProblem, Cause
from harness.cluster.kube.rights import Rights
from harness.cluster.kube.viewing import Rows
from harness.cluster.kube.views import BudgetView, Condition, EventView
from harness.records.layout import RunFolder
from harness.records.logs import merge_logs

# --- the scene ----------------------------------------------------------------------------------------------------------


def test_of_two_pods_of_an_index_the_newer_one_counts() -> None:
    stage = Stage()
    stage.pod(a_pod(3, "new", created_unix=T0 + 20))
    stage.pod(changed(ended(a_pod(3, "old")), conditions=(EVICTED,)))
    newest = stage.scene.newest(3)
    assert newest is not None
    assert newest.name.endswith("new")


def test_an_index_without_pod_waits_for_its_successor_until_its_delay_is_over() -> None:
    stage = Stage()
    stage.job(a_job(4))
    first = a_pod(1, ignored_failures=1)
    stage.pod(first)
    assert stage.scene.evictions(1) == 1
    assert stage.scene.next_delay_s(1) == 20.0
    stage.pod(changed(first, deletion_unix=T0 + 100, grace_s=90.0, conditions=(EVICTED,)))
    assert stage.scene.replacement_unix(1) == T0 + 120
    gone = changed(ended(first, 143, T0 + 15), deletion_unix=T0 + 100, conditions=(EVICTED,))
    stage.pod(gone)
    stage.pod(gone, "DELETED")
    assert stage.scene.newest(1) is None
    assert stage.scene.replacement_unix(1) == T0 + 35
    assert stage.scene.evictions(1) == 2
    stage.pod(a_pod(1, "b", created_unix=T0 + 36, ignored_failures=2))
    assert stage.scene.replacement_unix(1) == 0.0
    assert stage.scene.next_delay_s(1) == 40.0


def test_no_successor_is_expected_where_the_job_has_given_up_or_is_smaller() -> None:
    stage = Stage()
    stage.job(a_job(2, failed_indexes=(0,)))
    stage.pod(ended(a_pod(0), 42))
    stage.pod(ended(a_pod(3), 143))
    assert stage.scene.replacement_unix(0) == 0.0
    assert stage.scene.replacement_unix(3) == 0.0


# --- rows ---------------------------------------------------------------------------------------------------------------


def test_rows_show_the_head_first_and_say_why_a_wanted_node_has_no_pod() -> None:
    stage = Stage()
    stage.job(a_job(2))
    refused = EventView(
        "e",
        uid="uid-e",
        type="Warning",
        reason="FailedCreate",
        message="Error creating: exceeded quota: small",
        kind="Job",
        subject=f"{RUN}-worker",
        subject_uid="uid-job",
    )
    stage.scene.event_changed("ADDED", refused)
    stage.pod(changed(a_pod(-1, "h"), component="head"))
    stage.pod(a_pod(0, zone="rack-7"))
    rows = Rows(stage.scene, gpu_resource="", node_selector={}).pods(2, T0)
    assert [(row.node, row.phase, row.ready) for row in rows] == [(-1, "Running", True), (0, "Running", True), (1, "", False)]
    assert rows[1].rack == "rack-7"
    assert "exceeded quota" in rows[2].reason


def test_hosts_are_those_that_carry_a_pod_or_offer_the_accelerator() -> None:
    stage = Stage()
    stage.node(a_node("gpu-0", capacity={"amd.com/gpu": 8}, allocatable={"amd.com/gpu": 7}))
    stage.node(a_node("gpu-9", capacity={"amd.com/gpu": 8}, allocatable={"amd.com/gpu": 8}, labels={"pool": "b"}))
    stage.node(a_node("gpu-8", capacity={"amd.com/gpu": 8}, allocatable={"amd.com/gpu": 8}, labels={"pool": "a"}))
    stage.node(a_node("cpu-1"))
    stage.pod(a_pod(0))
    hosts = Rows(stage.scene, gpu_resource="amd.com/gpu", node_selector={"pool": "a"}).hosts()
    assert [(host.name, host.gpus, host.gpus_there) for host in hosts] == [("gpu-0", 7, 8), ("gpu-8", 8, 8)]
    assert "offers 7 of its 8" in hosts[0].reason


def test_a_sentence_with_an_age_does_not_change_a_row_every_second() -> None:
    stage = Stage()
    waits = Condition("PodScheduled", "False", "Unschedulable", "0/64 nodes are available: 64 Insufficient amd.com/gpu.", T0)
    stage.pod(a_pod(0, phase="Pending", ready=False, node="", containers=(), conditions=(waits,)))
    rows = Rows(stage.scene, gpu_resource="amd.com/gpu", node_selector={})
    assert rows.pods(1, T0 + 31) == rows.pods(1, T0 + 39)
    assert rows.pods(1, T0 + 31) != rows.pods(1, T0 + 45)


# --- news ---------------------------------------------------------------------------------------------------------------


def test_an_exit_is_told_once_with_cause_last_line_and_delay() -> None:
    stage = Stage()
    stage.job(a_job(4))
    stage.pod(a_pod(2))
    stage.poll()
    stage.words["uid-2-a"] = ["loading", "hip error: out of memory"]
    stage.now_unix = T0 + 61
    stage.pod(ended(a_pod(2), 1, T0 + 60))
    [exited] = stage.poll()
    assert (exited.kind, exited.worker, exited.nodes, exited.level, exited.retry_in_s) == ("exited", "worker-2", (2,), "error", 9)
    assert "exit code 1" in exited.reason
    assert "hip error: out of memory" in exited.reason
    stage.pod(ended(a_pod(2), 1, T0 + 60), "DELETED")
    assert stage.poll() == []


def test_the_end_of_a_pod_that_has_a_successor_does_not_take_the_successors_replicas() -> None:
    stage = Stage()
    stage.pod(a_pod(2))
    stage.pod(a_pod(2, "b", created_unix=T0 + 30))
    stage.poll()
    stage.pod(ended(a_pod(2)))
    [event] = stage.poll()
    assert event.kind == "event"


def test_a_pod_that_is_only_asked_to_end_has_not_exited() -> None:
    stage = Stage()
    stage.pod(a_pod(2))
    stage.poll()
    stage.pod(a_pod(2, deletion_unix=T0 + 90, grace_s=90.0, ready=False, conditions=(EVICTED,)))
    [event] = stage.poll()
    assert (event.kind, event.level) == ("event", "warn")
    assert "evicted through the API" in event.reason


def test_an_eviction_by_the_head_is_not_told_as_somebody_elses() -> None:
    stage = Stage()
    stage.pod(a_pod(2))
    stage.poll()
    stage.news.ours("uid-2-a", "it is slow")
    stage.pod(a_pod(2, deletion_unix=T0 + 90, conditions=(EVICTED,)))
    assert stage.poll() == []


def test_equal_troubles_are_one_line_and_are_not_repeated() -> None:
    stage = Stage()
    for index in range(37):
        pulls = container("waiting", reason="ImagePullBackOff", message="Back-off pulling image")
        stage.pod(a_pod(index, phase="Pending", ready=False, containers=(pulls,)))
    assert stage.poll() == []  # it may pass in a moment
    stage.now_unix = T0 + 30
    [line] = stage.poll()
    assert line.reason.startswith(
        "37 pods (node000, node001, node002, …): image registry/worker:1 cannot be pulled (ImagePullBackOff)"
    )
    assert line.nodes == tuple(range(37))
    for later_s in range(31, 100):
        stage.now_unix = T0 + later_s
        assert stage.poll() == []


def test_a_slow_start_with_nothing_wrong_is_told_after_a_minute() -> None:
    stage = Stage()
    stage.pod(a_pod(0, ready=False))
    stage.poll()
    stage.now_unix = T0 + 50
    assert stage.poll() == []
    stage.now_unix = T0 + 75
    [line] = stage.poll()
    assert line.kind == "pending"
    assert "has not registered with the head" in line.reason


def test_a_poll_tells_a_screenful_and_the_rest_follows() -> None:
    stage = Stage()
    for index in range(64):
        stage.pod(a_pod(index))
    stage.poll()
    for index in range(64):
        one = container(restarts=1, last_reason="Error", last_exit_code=index + 1)
        stage.pod(a_pod(index, containers=(one,)))
    told = [len(stage.poll()) for _ in range(8)]
    assert max(told) <= 12
    assert sum(told) == 64


def test_exits_are_never_put_off_or_left_out() -> None:
    stage = Stage()
    for index in range(512):
        stage.pod(a_pod(index))
    stage.poll()
    for index in range(512):
        stage.pod(ended(a_pod(index), 1 + index % 7))
    gone = [node for event in stage.poll() if event.kind == "exited" for node in event.nodes]
    assert sorted(gone) == list(range(512))


def test_a_node_that_falls_silent_names_the_workers_it_carries() -> None:
    stage = Stage()
    stage.node(a_node("gpu-1"))
    stage.pod(a_pod(1))
    stage.poll()
    stage.node(a_node("gpu-1", ready=False, ready_message="Kubelet stopped posting node status."))
    stage.node(a_node("gpu-1", cordoned=True))
    told = stage.poll()
    assert [event.level for event in told] == ["error", "info", "warn"]
    assert "gpu-1 is NotReady: Kubelet stopped posting node status (it carries node001)" in told[0].reason
    assert "cordoned" in told[2].reason


def test_an_index_without_tries_left_has_given_up() -> None:
    stage = Stage()
    stage.job(a_job(4))
    stage.job(a_job(4, failed_indexes=(3,)))
    [event] = stage.poll()
    assert (event.kind, event.nodes) == ("gave_up", (3,))


# --- evictions ----------------------------------------------------------------------------------------------------------


class Refusing:
    """An Api whose evictions are answered by script; the last answer is repeated."""

    namespace = "paceline"

    def __init__(self, *answers: ApiProblem | None) -> None:
        self.answers, self.asked = list(answers), 0

    async def evict(self, pod: str, **_: Any) -> None:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None:
            raise answer


def not_yet(message: str = "The disruption budget b needs 2 healthy pods and has 2 currently") -> ApiProblem:
    return ApiProblem(429, "TooManyRequests", "Cannot evict", causes=(Cause("DisruptionBudget", "", message),))


def evictions_of(stage: Stage, api: Refusing, try_s: float = 3.0) -> Evictions:
    return Evictions(cast(Api, api), stage.scene, Rights(cast(Api, api)), grace_s=90, try_s=try_s)


async def test_a_pod_that_is_gone_already_is_no_failure() -> None:
    stage = Stage()
    stage.pod(a_pod(1))
    said = await evictions_of(stage, Refusing(ApiProblem(404, "NotFound", "pods not found"))).evict(1, cordon=False, why="slow")
    assert "was gone already" in said


async def test_a_budget_that_is_not_counted_yet_is_asked_again_unless_it_never_will_be() -> None:
    stage = Stage()
    stage.pod(a_pod(1))
    counting = not_yet("The disruption budget b is still being processed by the server.")
    api = Refusing(counting, None)
    assert "evicted (grace 90 s)" in await evictions_of(stage, api).evict(1, cordon=False, why="slow")
    assert api.asked == 2
    api = Refusing(None)
    failed = Condition("DisruptionAllowed", "False", "SyncFailed", "jobs.batch does not implement the scale subresource")
    stage.scene.budget_changed("ADDED", BudgetView("b", uid="uid-b", component="worker", condition=failed))
    with pytest.raises(ClusterError, match="can never allow an eviction"):
        await evictions_of(stage, api).evict(1, cordon=False, why="slow")
    assert api.asked == 0


async def test_an_eviction_ends_when_the_pod_leaves_by_another_hand() -> None:
    stage = Stage()
    stage.pod(a_pod(1))
    waiting = asyncio.create_task(evictions_of(stage, Refusing(not_yet()), try_s=20).evict(1, cordon=False, why="slow"))
    await asyncio.sleep(0.1)
    stage.pod(a_pod(1, deletion_unix=T0 + 90))
    assert "by somebody else's hand" in await asyncio.wait_for(waiting, 60)


async def test_an_api_server_that_is_away_is_asked_until_the_deadline() -> None:
    stage = Stage()
    stage.pod(a_pod(1))
    silence = ApiProblem(0, "NoReply", "the API server does not answer: connection refused")
    with pytest.raises(ClusterError, match=r"not evicted within 1.5 s: the API server does not answer"):
        await evictions_of(stage, Refusing(silence), try_s=1.5).evict(1, cordon=False, why="slow")


# --- logs ---------------------------------------------------------------------------------------------------------------


def test_a_log_is_bounded_and_keeps_the_part_before(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    files = LogFiles(folder, limit_bytes=1000)
    for number in range(100):
        files.add("node000/gpu1", f"line {number:03d} of many", T0)
        files.write(files.take())
    own, before = folder.log("node000/gpu1"), folder.logs / "node000-gpu1.log.1"
    assert own.stat().st_size <= 1100
    assert before.stat().st_size <= 1100
    assert "line 099" in (own.read_text() or before.read_text())


def test_lines_that_a_slow_disk_cannot_take_are_counted(tmp_path: Path) -> None:
    files = LogFiles(RunFolder(tmp_path), most_waiting=100)
    for _ in range(50):
        files.add("node000", "x" * 20, T0)
    [lines] = files.take().values()
    assert re.search(r"worker: 4\d lines left out", lines[-1])


def test_an_unwritable_disk_is_a_problem_in_words(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    files = LogFiles(RunFolder(tmp_path))
    files.add("node000", "x", T0)
    files.write(files.take())
    assert files.problem.startswith("logs of pods cannot be written: ")


def test_lines_without_a_time_get_one_and_a_traceback_stays_together(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    files = LogFiles(folder)
    files.note("node000", "pod a begins", T0)
    for line in ("Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: 1"):
        files.add("node000", line, T0 + 0.1)
    files.add("node000", "later", T0 + 7)
    files.write(files.take())
    lines = folder.log("node000").read_text().splitlines()
    assert [bool(re.match(r"(--- )?\d{4}-", line)) for line in lines] == [True, True, False, False, True]
    merged = merge_logs(folder.logs, 0.0, 100)
    assert [round(line.unix - T0, 1) for line in merged.lines] == [0.0, 0.1, 0.1, 0.1, 7.0]


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("2023-11-14 22:13:20,123 INFO ready", "2023-11-14 22:13:20,123+00:00 INFO ready"),
        ("2023-11-15 03:58:21 paceline.worker INFO a", "2023-11-15 03:58:21+05:45 paceline.worker INFO a"),
        ("--- 2023-11-14 18:43:19,9 worker: b", "--- 2023-11-14 18:43:19,9-03:30 worker: b"),
        ("2023-11-14 22:13:20,123+0100 INFO has one", "2023-11-14 22:13:20,123+0100 INFO has one"),
        ("2020-01-01 00:00:00 an older time", None),
        ("2023-13-14 22:13:20 no time", None),
        ("plain", None),
    ],
)
def test_a_line_with_a_time_gets_the_zone_of_the_pod_that_wrote_it(line: str, kept: str | None) -> None:
    assert zoned(line, 1_700_000_000.2) == kept


def test_a_line_of_vllm_gets_its_year_and_zone_and_keeps_process_and_level() -> None:
    line = zoned("(EngineCore_DP0 pid=12) WARNING 11-14 22:13:20 [core.py:12] slow", T0)
    assert line == f"{stamp_of(T0)} WARNING (EngineCore_DP0 pid=12) [core.py:12] slow"
    assert zoned("INFO 11-14 22:13:20 [core.py:12] error: none", T0) == f"{stamp_of(T0)} INFO [core.py:12] error: none"


def test_the_time_of_a_line_is_read_in_any_zone_and_to_the_nanosecond() -> None:
    assert parted("2023-11-14T22:13:20.000000007Z a b") == (1_700_000_000_000_000_007, "a b")
    assert parted("2023-11-15T00:13:20.1+02:00 a") == (1_700_000_000_100_000_000, "a")
    assert parted("2023-11-14T22:13:20Z ") == (1_700_000_000_000_000_000, "")
    assert parted("no time here") == (None, "no time here")
    assert parted("") == (None, "")


class Logs:
    """An Api that streams the same log anew at each connect, from the second that is asked for."""

    def __init__(self, *connects: list[str]) -> None:
        self.connects, self.since = list(connects), [""]

    async def log(self, pod: str, *, since_time: str = "", **_: Any) -> AsyncIterator[str]:
        self.since.append(since_time)
        for line in self.connects.pop(0) if self.connects else []:
            yield line


async def test_lines_of_the_same_moment_are_neither_lost_nor_doubled_on_reconnect(tmp_path: Path) -> None:
    first = ["2023-11-14T22:13:20Z a", "2023-11-14T22:13:20.5Z b", "2023-11-14T22:13:20.5Z c"]
    api = Logs(first, [*first, "2023-11-14T22:13:20.5Z d", "2023-11-14T22:13:21Z e"])
    folder = RunFolder(tmp_path)
    tee = LogTee(folder, cast(Api, api), gpus=1)
    tee.start()
    tee.see(a_pod(0))
    for _ in range(1200):
        if len(api.since) >= 3:
            break
        await asyncio.sleep(0.05)
    tee.see(ended(a_pod(0)))
    await tee.close(3.0)
    assert api.since[2] == "2023-11-14T22:13:20Z"
    text = [line.rsplit(" ", 1)[-1] for line in folder.log("node000").read_text().splitlines()]
    assert text == ["begins", "a", "b", "c", "d", "e", "1"]
