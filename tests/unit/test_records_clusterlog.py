"""cluster.jsonl: every view comes back as it was told, in a file that stays small."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from records_kit import files_may_have

from harness.records.clusterlog import AGES_EVERY_S, BYTES_PER_S, FREE_BYTES, ClusterWriter, last_view, read_cluster
from harness.records.errors import RecordError
from harness.wire.clusterview import BudgetRow, ClusterView, HostRow, PodRow

T0 = 1_795_000_000.0
NODES = 64


def pod(node: int, **more: object) -> PodRow:
    row = PodRow(
        node, f"gptoss-120b-20261118-worker-{node}-x7k2p", f"5f1c1d9e-5d61-4c7e-9a39-{node:012d}", "Running", True,
        f"mi355x-{node:03d}.example.com", f"zone-{node // 8}", since_unix=T0 - 60, next_delay_s=10.0,
    )  # fmt: skip
    return msgspec.structs.replace(row, **more)


def host(node: int) -> HostRow:
    name = f"mi355x-{node:03d}.example.com"
    return HostRow(name, rack=f"zone-{node // 8}", gpus=8, gpus_there=8, pods=[f"gptoss-120b-20261118-worker-{node}-x7k2p"])


def view(at_s: float = 0.0, **pods: PodRow) -> ClusterView:
    """64 well pods; `n3=...` is another one of node 3."""
    rows = [pods.get(f"n{node}", pod(node)) for node in range(NODES)]
    budget = BudgetRow("worker", 2, NODES, NODES - 2, NODES)
    return ClusterView(
        "kubernetes", "bench", "gptoss", NODES, T0 + at_s, pods=[PodRow(-1, "head"), *rows],
        hosts=[host(node) for node in range(NODES)], budget=budget,
    )  # fmt: skip


def pending(node: int, for_s: int) -> PodRow:
    why = (
        f"pod gptoss-120b-20261118-worker-{node}-x7k2p has been Pending for {for_s} s: 0/64 nodes are available: "
        "29 Insufficient amd.com/gpu, 35 node(s) didn't match pod anti-affinity rules"
    )
    return pod(node, phase="Pending", ready=False, host="", reason=why)


def test_what_was_seen_comes_back_for_every_moment(tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    writer = ClusterWriter(path)
    before = view(n3=pending(3, 10))
    evicted = pod(3, pod="", uid="", phase="", ready=False, host="", reason="no pod", evictions=1, replacement_unix=T0 + 40)
    after = msgspec.structs.replace(
        view(31.0, n3=evicted), problem="the API server does not answer", denied={"cordon": "no right"}, hosts=[host(1)]
    )
    writer.take(before, T0)
    writer.take(after, T0 + 31)
    writer.take(msgspec.structs.replace(after, pods=after.pods[:5], seen_unix=T0 + 32), T0 + 32, final=True)
    tape = read_cluster(path)
    assert tape.at(T0 - 1) is None
    assert tape.at(T0) == tape.at(T0 + 30.9) == before
    assert tape.at(T0 + 31) == after
    last = tape.at(T0 + 99)
    assert last is not None
    assert last.pods == after.pods[:5]
    assert last.seen_unix == T0 + 32
    assert last_view(path) == last
    assert last_view(tmp_path / "none.jsonl") is None


def test_a_run_of_processes_has_no_such_file_and_an_unchanged_view_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    writer = ClusterWriter(path)
    assert not path.exists()
    now = view()
    writer.take(now, T0)
    size = path.stat().st_size
    for second in range(1, 100):
        writer.take(now, T0 + second)
        writer.take(view(), T0 + second)  # another object, nothing new in it
    assert path.stat().st_size == size


def test_the_next_head_tells_all_of_it_again(tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    ClusterWriter(path).take(view(n3=pending(3, 10)), T0)
    path.write_bytes(path.read_bytes() + b'{"unix":17')  # killed in the middle of a line
    other = msgspec.structs.replace(view(), pods=[pod(0)])
    ClusterWriter(path).take(other, T0 + 60)
    assert read_cluster(path).at(T0 + 60) == msgspec.structs.replace(other, seen_unix=T0)
    assert len(read_cluster(path)) == 2


def test_of_a_sentence_whose_age_grows_only_every_so_often_is_kept_and_then_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    writer = ClusterWriter(path)
    for second in range(0, 100, 10):
        writer.take(view(n3=pending(3, second)), T0 + second)
    tape = read_cluster(path)
    kept = {second: tape.at(T0 + second) for second in range(0, 100, 10)}
    reasons = [seen.pods[4].reason for seen in kept.values() if seen is not None]
    ages = [int(reason.split(" for ")[1].split()[0]) for reason in reasons]
    assert ages == [0, 0, 0, 30, 30, 30, 60, 60, 60, 90]
    assert AGES_EVERY_S == 30.0
    writer.take(view(n3=pod(3)), T0 + 91)
    seen = read_cluster(path).at(T0 + 91)
    assert seen is not None
    assert seen.pods[4].phase == "Running", "what is more than an age is told at once"


@pytest.mark.parametrize(
    ("minute", "most_bytes"),
    [("quiet", 300), ("37 pods stay pending", 35_000), ("an eviction and its replacement", 1_500)],
)
def test_a_minute_costs_little(minute: str, most_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    writer = ClusterWriter(path)
    waiting = {f"n{node}": pending(node, 0) for node in range(27, 64)} if "pending" in minute else {}
    writer.take(view(**waiting), T0)
    first = path.stat().st_size
    assert first < 50_000
    for second in range(1, 61):
        pods = {f"n{node}": pending(node, second // 10 * 10) for node in range(27, 64)} if waiting else {}
        if "eviction" in minute and second >= 5:
            state = {"phase": "Terminating", "ready": False} if second < 15 else {"pod": "", "phase": "", "ready": False}
            pods["n3"] = pod(3, reason="evicted", **state) if second < 40 else pod(3, pod="other", evictions=1)
        writer.take(view(second // 15 * 15.0, **pods), T0 + second)
    grown = path.stat().st_size - first
    print(f"{minute}: first line {first} bytes, then {grown} bytes a minute")
    assert grown <= most_bytes


def test_a_cluster_that_never_stands_still_cannot_fill_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    writer = ClusterWriter(path)
    minutes = 3
    for second in range(60 * minutes):
        restless = {f"n{node}": pod(node, restarts=second) for node in range(NODES)}
        writer.take(view(second, **restless), T0 + second)
    assert path.stat().st_size <= FREE_BYTES + 60 * minutes * BYTES_PER_S
    final = view(60 * minutes, **{f"n{node}": pod(node, restarts=7) for node in range(NODES)})
    writer.take(final, T0 + 60 * minutes, final=True)
    assert last_view(path) == final, "the last word is always there"


def test_what_a_full_disk_refused_is_told_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    writer = ClusterWriter(path)
    writer.take(view(), T0)
    with files_may_have(path.stat().st_size + 10), pytest.raises(RecordError):
        writer.take(view(n3=pending(3, 1)), T0 + 1)
    writer.take(view(n4=pending(4, 1)), T0 + 2)
    tape = read_cluster(path)
    found = tape.at(T0 + 2)
    assert found is not None
    assert (found.pods[4].phase, found.pods[5].phase) == ("Running", "Pending")
    assert tape.at(T0 + 1) is not found


def test_a_damaged_line_costs_only_what_it_told(tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    writer = ClusterWriter(path)
    writer.take(view(), T0)
    for second, node in ((1, 3), (2, 4)):
        writer.take(view(**{f"n{n}": pending(n, 1) for n in range(3, node + 1)}), T0 + second)
    first, second_line, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second_line[:20] + b"\xff" + second_line[21:] + third)
    found = last_view(path)
    assert found is not None
    assert (found.pods[4].phase, found.pods[5].phase) == ("Running", "Pending")
