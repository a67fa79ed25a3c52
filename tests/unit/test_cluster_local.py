"""Workers as processes: a pid is never mistaken for a later one, and what is started is watched, restarted and ended whole.

The cluster starts `python -m harness.worker`; in these tests that is a package in a temporary folder, found first
because the processes start there: it starts a child, as a worker has replicas, and then does what a file tells it to.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from head_kit import a_spec

from harness.cluster.base import ClusterError, Place
from harness.cluster.local import LocalCluster, head_alive, kill_run, launch_head
from harness.cluster.procinfo import end_group, is_alive, kill_group, start_ticks
from harness.records.layout import RunFolder

WORKER = """
import os, pathlib, signal, subprocess, sys, time
name = sys.argv[sys.argv.index("--name") + 1]
here = pathlib.Path.cwd()
child = subprocess.Popen(["sleep", "60"])
(here / f"{name}.up").write_text(f"{os.getpid()} {child.pid} {' '.join(sys.argv[1:])}")
behaviour = (here / "behaviour").read_text()
if behaviour == "fail":
    sys.exit(3)
if behaviour == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (here / f"{name}.stubborn").touch()
time.sleep(60)
"""


def until(true: Callable[[], Any], within_s: float = 60.0) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := true()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Processes that lead a group of their own and have a child in it."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)
        assert process.stdout is not None
        process.stdout.close()


def child_of(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def ticks_of(pid: int) -> int:
    ticks = start_ticks(pid)
    assert ticks is not None
    return ticks


# --- procinfo ----------------------------------------------------------------------------------------------


def test_a_process_is_known_by_pid_and_start_time(sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    process = sleeper()
    ticks = ticks_of(process.pid)
    assert is_alive(process.pid, ticks)
    assert is_alive(process.pid, None)
    assert not is_alive(process.pid, ticks - 1), "a later process with this pid is another one"
    assert start_ticks(process.pid) == ticks


def test_a_zombie_is_dead(sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    process = sleeper()
    ticks = ticks_of(process.pid)
    os.killpg(process.pid, signal.SIGKILL)
    until(lambda: not is_alive(process.pid, ticks))
    assert Path(f"/proc/{process.pid}").exists(), "not reaped yet"
    process.wait(5)
    assert start_ticks(process.pid) is None


def test_a_name_with_spaces_and_brackets_does_not_confuse_the_start_time(tmp_path: Path) -> None:
    odd = tmp_path / "a ) R 1 2 (b"
    odd.symlink_to("/bin/sleep")
    earlier = ticks_of_now()
    process = subprocess.Popen([str(odd), "60"])
    try:
        until(lambda: ") R" in Path(f"/proc/{process.pid}/comm").read_text())
        assert earlier - 2 <= ticks_of(process.pid) <= ticks_of_now() + 2
    finally:
        process.kill()
        process.wait(5)


def ticks_of_now() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def test_a_stranger_with_the_same_pid_is_never_killed(sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    stranger = sleeper()
    earlier = ticks_of(stranger.pid) - 100
    kill_group(stranger.pid, earlier)
    end_group(stranger.pid, earlier, grace_s=0.05)
    time.sleep(0.05)
    assert stranger.poll() is None


def test_ending_a_group_ends_leader_and_children(sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    process = sleeper()
    child = child_of(process)
    end_group(process.pid, ticks_of(process.pid), grace_s=30)
    assert process.wait(5) == -signal.SIGTERM
    until(lambda: not is_alive(child, None))


def test_children_are_ended_when_their_leader_is_gone_already(sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    process = sleeper()
    child, ticks = child_of(process), ticks_of(process.pid)
    process.kill()
    process.wait(5)
    assert is_alive(child, None)
    end_group(process.pid, ticks, grace_s=2)
    until(lambda: not is_alive(child, None))


# --- LocalCluster ------------------------------------------------------------------------------------------


class Yard:
    """A run's folder whose workers are the little program above."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self.folder = RunFolder(here / "run")
        self.folder.path.mkdir()
        package = here / "harness" / "worker"
        package.mkdir(parents=True)
        for path in (package.parent / "__init__.py", package / "__init__.py"):
            path.touch()
        (package / "__main__.py").write_text(WORKER)
        self.behave("sleep")
        self.now_s = time.monotonic()

    def behave(self, how: str) -> None:
        (self.here / "behaviour").write_text(how)

    def cluster(self, nodes: int = 2, *, start: bool = True, **fleet: Any) -> LocalCluster:
        spec = a_spec(nodes, 1, fleet={"restart_backoff_s": 1.0, "restart_backoff_max_s": 3.0, **fleet})
        cluster = LocalCluster(self.folder, spec)
        if start:
            cluster.start(Place("tcp://127.0.0.1:4000"))
        return cluster

    def up(self, name: str) -> tuple[int, int]:
        """Process and child of a worker, once it has said so; says so anew after each start."""
        path = self.here / f"{name}.up"
        text = until(lambda: path.exists() and path.read_text())
        path.unlink()
        pid, child = text.split()[:2]
        return int(pid), int(child)

    def known(self) -> list[dict[str, Any]]:
        return json.loads((self.folder.path / "workers.json").read_text())  # type: ignore[no-any-return]


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    monkeypatch.chdir(tmp_path)
    yard = Yard(tmp_path)
    yield yard
    kill_run(yard.folder)


def test_workers_start_with_their_nodes_in_groups_of_their_own_and_are_written_down(yard: Yard) -> None:
    cluster = yard.cluster()
    text = until(lambda: (yard.here / "w001.up").exists() and (yard.here / "w001.up").read_text())
    pid, _, *arguments = text.split()
    assert arguments == [
        "--head", "tcp://127.0.0.1:4000", "--keys", str(yard.folder.keys), "--nodes", "1", "--name", "w001",
        "--logs", str(yard.folder.logs),
    ]  # fmt: skip
    assert os.getsid(int(pid)) == os.getpgid(int(pid)) == int(pid) != os.getsid(0)
    assert [(entry["name"], entry["nodes"]) for entry in yard.known()] == [("w000", [0]), ("w001", [1])]
    assert yard.known()[1]["pid"] == int(pid)
    assert is_alive(int(pid), yard.known()[1]["ticks"])
    assert cluster.poll(yard.now_s) == []
    assert cluster.why_missing(1) == f"worker w001 (process {pid}) has not registered yet"
    cluster.stop(3)


def test_stop_ends_every_worker_with_its_children_and_nothing_else(
    yard: Yard, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    bystander = sleeper()
    cluster = yard.cluster()
    pids = [pid for name in ("w000", "w001") for pid in yard.up(name)]
    cluster.stop(3)
    until(lambda: not any(is_alive(pid, None) for pid in pids))
    assert bystander.poll() is None
    assert not (yard.folder.path / "workers.json").exists()
    assert cluster.poll(yard.now_s + 100) == [], "a stopped cluster starts nothing again"


def test_a_worker_that_ignores_the_request_is_killed_at_the_deadline(yard: Yard) -> None:
    yard.behave("stubborn")
    cluster = yard.cluster(1)
    pid, child = yard.up("w000")
    until((yard.here / "w000.stubborn").exists)
    began = time.monotonic()
    cluster.stop(0.3)
    assert 0.3 <= time.monotonic() - began < 30, "it would sleep for a minute"
    assert not is_alive(pid, None)
    until(lambda: not is_alive(child, None))


def test_a_killed_worker_is_reported_its_replicas_are_ended_and_it_starts_again_after_the_delay(yard: Yard) -> None:
    cluster = yard.cluster()
    pid, child = yard.up("w000")
    os.kill(pid, signal.SIGKILL)
    (event,) = until(lambda: cluster.poll(yard.now_s))
    assert (event.worker, event.nodes, event.kind, event.retry_in_s) == ("w000", (0,), "exited", 1.0)
    assert event.reason == f"worker w000 (process {pid}) was killed by SIGKILL"
    assert cluster.why_missing(0) == f"worker w000 is down: {event.reason}"
    until(lambda: not is_alive(child, None))
    assert cluster.poll(yard.now_s + 0.9) == []
    (event,) = cluster.poll(yard.now_s + 1.0)
    assert (event.worker, event.kind) == ("w000", "started")
    again, _ = yard.up("w000")
    assert again == event.pid != pid
    assert {entry["pid"] for entry in yard.known()} >= {again}
    cluster.stop(3)


def test_a_worker_that_keeps_failing_waits_longer_each_time_and_is_given_up(yard: Yard) -> None:
    yard.behave("fail")
    cluster = yard.cluster(1, max_restarts=3)
    delays = []
    for _ in range(3):
        (event,) = until(lambda: cluster.poll(yard.now_s))
        assert event.kind == "exited"
        assert "ended with exit code 3" in event.reason
        delays.append(event.retry_in_s)
        yard.now_s += 5
        (event,) = cluster.poll(yard.now_s)
        assert event.kind == "started"
    assert delays == [1.0, 2.0, 3.0], "doubling up to the limit"
    (event,) = until(lambda: cluster.poll(yard.now_s))
    assert event.kind == "gave_up"
    assert "4 times, not started again" in event.reason
    assert cluster.poll(yard.now_s + 1000) == []
    cluster.stop(1)


def test_a_worker_that_ran_well_for_a_minute_starts_over_with_the_first_delay(yard: Yard) -> None:
    cluster = yard.cluster(1)
    for _ in range(2):
        pid, _ = yard.up("w000")
        os.kill(pid, signal.SIGKILL)
        (event,) = until(lambda: cluster.poll(yard.now_s))
        yard.now_s += event.retry_in_s
        cluster.poll(yard.now_s)
    assert event.retry_in_s == 2.0
    pid, _ = yard.up("w000")
    os.kill(pid, signal.SIGKILL)
    (event,) = until(lambda: cluster.poll(yard.now_s + 61))
    assert event.retry_in_s == 1.0
    cluster.stop(1)


def test_a_restarted_head_adopts_living_workers_and_starts_only_the_missing(yard: Yard) -> None:
    yard.cluster()
    living, _ = yard.up("w000")
    dead, _ = yard.up("w001")
    os.killpg(dead, signal.SIGKILL)
    os.waitpid(dead, 0)
    heir = yard.cluster()
    replacement, _ = yard.up("w001")
    assert [entry["pid"] for entry in yard.known()] == [living, replacement]
    assert not (yard.here / "w000.up").exists(), "the living worker was not started a second time"
    heir.stop(30)
    assert not is_alive(living, None)


def test_an_adopted_worker_is_watched_like_any_other(yard: Yard) -> None:
    yard.cluster(1)
    pid, _ = yard.up("w000")
    heir = yard.cluster(1)
    os.kill(pid, signal.SIGKILL)
    (event,) = until(lambda: heir.poll(yard.now_s))
    assert event.reason == f"worker w000 (process {pid}) ended"
    assert event.retry_in_s == 1.0


def test_a_remembered_pid_that_belongs_to_somebody_else_now_is_not_adopted_and_not_killed(
    yard: Yard, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    stranger = sleeper()
    remembered = [{"name": "w000", "nodes": [0], "pid": stranger.pid, "ticks": ticks_of(stranger.pid) - 50}]
    (yard.folder.path / "workers.json").write_text(json.dumps(remembered))
    cluster = yard.cluster(1)
    assert yard.up("w000")[0] != stranger.pid
    cluster.stop(3)
    (yard.folder.path / "workers.json").write_text(json.dumps(remembered))
    kill_run(yard.folder)
    assert stranger.poll() is None


def test_one_worker_may_stand_for_several_nodes(yard: Yard) -> None:
    spec = a_spec(5, 1, cluster={"nodes_per_worker": 2})
    cluster = LocalCluster(yard.folder, spec)
    assert cluster.why_missing(4) == "worker w002 is down: not started"
    cluster.start(Place("tcp://127.0.0.1:4000"))
    assert [entry["nodes"] for entry in yard.known()] == [[0, 1], [2, 3], [4]]
    for name in ("w000", "w001", "w002"):
        yard.up(name)
    cluster.stop(3)


def test_killing_a_run_ends_its_workers_at_once_and_only_those(
    yard: Yard, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    bystander = sleeper()
    yard.behave("stubborn")
    yard.cluster(1)
    pid, child = yard.up("w000")
    kill_run(yard.folder)
    until(lambda: not is_alive(pid, None) and not is_alive(child, None))
    assert bystander.poll() is None


def test_a_head_is_alive_only_under_its_own_start_time(yard: Yard, sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    assert not head_alive(yard.folder)
    process = sleeper()
    about = {"pid": process.pid, "ticks": ticks_of(process.pid)}
    yard.folder.head_json.write_text(json.dumps(about))
    assert head_alive(yard.folder)
    yard.folder.head_json.write_text(json.dumps({**about, "ticks": about["ticks"] - 1}))
    assert not head_alive(yard.folder)
    for content in ("", "[]", "{}", '{"pid": "x"}'):
        yard.folder.head_json.write_text(content)
        assert not head_alive(yard.folder)
    yard.folder.head_json.unlink()


def test_a_folder_without_a_spec_is_not_given_a_head(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"holds no spec\.json"):
        launch_head(RunFolder(tmp_path))
