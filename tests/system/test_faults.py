"""What breaks in real fleets, planted one at a time in real processes. None may hang, lose or double a sample, or end
without a reason that a person can read."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import polars as pl
import pytest
from run_kit import RunHandle, kill, running, small_spec

from harness.cluster.local import launch_head
from harness.records.layout import RunFolder
from harness.records.reader import Record
from harness.records.runfile import AttemptRecord
from harness.wire import control, sockets
from harness.wire.client import HeadAddress, HeadClient, HeadUnreachable
from harness.wire.frames import encode
from harness.wire.keys import ClientKeys, Pair, load_client_keys

Start = Callable[..., RunHandle]


def assert_exactly_once(run: RunHandle, attempt: AttemptRecord) -> None:
    assert attempt.totals["issued"] == attempt.totals["completed"], attempt.totals
    assert attempt.totals["lost"] == attempt.totals["failed"] == 0
    assert attempt.loadgen["num_errors"] == 0, attempt.loadgen["errors"]
    seqs = Record(run.folder).samples(attempt.number).select("seq").collect()["seq"]
    assert seqs.n_unique() == len(seqs) == attempt.totals["issued"]


def test_a_killed_replica_loses_no_sample_and_comes_back(start_run: Start) -> None:
    run = start_run(load__duration_s=9, load__target_qps=160, fleet__keep_warm_s=60)
    run.wait_measuring()
    victim = run.slot("node000/gpu0")
    kill(victim.pid)
    lost = run.wait_journal("replica.state", subject="node000/gpu0", after="LOST")
    assert "SIGKILL" in lost.why
    run.wait("its successor", lambda: (s := run.slot("node000/gpu0")).state == "READY" and s.incarnations == 2)
    attempt = run.finish().attempts[0]
    assert_exactly_once(run, attempt)
    assert attempt.totals["redispatched"] > 0
    assert attempt.verdict == "VALID", attempt.reasons


def test_a_frozen_replica_is_found_by_its_lease_and_replaced(start_run: Start) -> None:
    # The head looks every second, and forgives when two have passed: with a shorter lease it could find both of them over.
    run = start_run(load__duration_s=9, load__target_qps=120, fleet__lease_s=2.0, fleet__keep_warm_s=60)
    run.wait_measuring()
    victim = run.slot("node001/gpu0")
    kill(victim.pid, signal.SIGSTOP)
    run.wait_journal("replica.state", subject="node001/gpu0", after="SUSPECT")
    lost = run.wait_journal("replica.state", subject="node001/gpu0", after="LOST")
    assert "no beat" in lost.why
    run.wait("its successor", lambda: (s := run.slot("node001/gpu0")).state == "READY" and s.incarnations == 2)
    attempt = run.finish().attempts[0]
    assert_exactly_once(run, attempt)
    assert attempt.totals["redispatched"] > 0


def test_a_killed_worker_takes_its_replicas_along_and_is_restarted(start_run: Start) -> None:
    run = start_run(load__duration_s=5, load__target_qps=100, fleet__keep_warm_s=60)
    run.wait_measuring()
    pids = [slot.pid for slot in run.state().slots if slot.node == "node000"]
    kill(run.workers()[0]["pid"])
    run.wait_journal("worker.exited")
    run.wait("its replicas' end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    run.wait("two new incarnations", lambda: [s.incarnations for s in run.state().slots if s.state == "READY"] == [2, 2, 1, 1])
    attempt = run.finish().attempts[0]
    assert_exactly_once(run, attempt)


def test_a_killed_driver_ends_the_attempt_and_not_the_fleet(start_run: Start) -> None:
    run = start_run(load__duration_s=30, fleet__keep_warm_s=20)
    run.wait_measuring()
    before = {slot.slot: slot.incarnation for slot in run.state().slots}
    kill(run.driver_pid())
    run.wait("the attempt's end", lambda: run.attempts[0].verdict)
    assert run.attempts[0].verdict == "CRASHED"
    assert "SIGKILL" in run.attempts[0].reasons[0]
    assert Record(run.folder).samples(1).select(pl.len()).collect().item() > 0
    assert run.command("start_attempt", kind="explore").ok
    run.wait("the next attempt", lambda: len(run.attempts) == 2 and run.attempts[1].state == "issuing")
    assert {slot.slot: slot.incarnation for slot in run.state().slots} == before
    run.command("stop", abort=True)
    assert run.wait_end().phase == "ABORTED"


def test_a_frozen_driver_is_killed_with_its_reason(start_run: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start_run(load__duration_s=60)
    run.wait_measuring()
    kill(run.driver_pid(), signal.SIGSTOP)
    end = run.wait_end()
    assert end.verdict == "CRASHED"
    assert "silent" in end.reasons[0]


def test_a_head_that_stood_still_while_its_driver_ended_hears_its_last_words(start_run: Start) -> None:
    run = start_run(load__duration_s=6, load__target_qps=120)
    run.wait_issuing()
    driver = run.driver_pid()
    os.kill(run.head_pid, signal.SIGSTOP)
    try:
        run.wait("the driver's end", lambda: not running(driver))
        time.sleep(0.5)  # longer than last words are waited for by who did not stand still
    finally:
        os.kill(run.head_pid, signal.SIGCONT)
    end = run.wait_end()
    assert end.verdict == "VALID", end.reasons


def test_a_raising_issue_callback_ends_the_attempt_with_its_words(start_run: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_FAULT_ISSUE_RAISES", "30")
    run = start_run(load__duration_s=30)
    end = run.wait_end()
    assert (end.phase, end.verdict) == ("FAILED", "CRASHED")
    assert "planted fault in issue callback 30" in end.reasons[0]


def test_a_killed_supervisor_restarts_on_the_warm_fleet(start_run: Start) -> None:
    run = start_run(load__duration_s=9, load__target_qps=120)
    run.wait_issuing()
    before = {slot.slot: slot.incarnation for slot in run.state().slots}
    pids = {slot.pid for slot in run.state().slots}
    run.wait(
        "the first second on disk: what came after it may be lost",
        lambda: any((run.folder.path / "samples").glob("*.parquet")),
    )
    driver = run.driver_pid()
    run.kill_head()
    run.wait("the driver's end", lambda: not Path(f"/proc/{driver}").exists())
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    assert Record(run.folder).samples(1).select(pl.len()).collect().item() > 0  # readable meanwhile
    run.head_pid = launch_head(run.folder)
    end = run.wait_end()
    assert [a.verdict for a in end.attempts] == ["CRASHED", "VALID"], [a.reasons for a in end.attempts]
    assert "head ended" in end.attempts[0].reasons[0]
    assert [life.epoch for life in end.head_epochs] == [1, 2]
    again = {e.subject: e.data["incarnation"] for e in run.journal("replica.state") if e.after == "READY" and e.data["nth"] == 1}
    assert again == before
    assert_exactly_once(run, end.attempts[1])


def test_stopping_a_run_without_a_head_ends_its_workers_and_its_record(start_run: Start) -> None:
    run = start_run(load__duration_s=60)
    run.wait_measuring()
    pids = {slot.pid for slot in run.state().slots} | {worker["pid"] for worker in run.workers()}
    run.kill_head()
    command = [sys.executable, "-m", "console.cli", "stop", str(run.folder.path), "--reason", "enough"]
    stopped = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert stopped.returncode == 0, stopped.stderr
    run.wait("the workers' end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert (run.run.phase, run.run.verdict) == ("ABORTED", "ABORTED")
    assert "enough" in run.run.reasons[0]


def test_a_second_head_on_the_same_folder_is_refused(standing_run: RunHandle) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "harness.head", str(standing_run.folder.path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 2
    assert "is held by the head with process" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_killed_console_leaves_the_run_alone(start_run: Start) -> None:
    run = start_run(load__duration_s=4, load__target_qps=160)
    run.wait("a head to look at", run.state)
    code = "import sys, time; from pathlib import Path; from harness.wire.client import Telemetry\n"
    code += "for message in filter(None, Telemetry.of_run(Path(sys.argv[1]))): print(type(message).__name__, flush=True)"
    console = subprocess.Popen([sys.executable, "-c", code, str(run.folder.path)], stdout=subprocess.PIPE)
    assert console.stdout is not None
    assert console.stdout.readline()
    run.wait_issuing()
    console.kill()
    console.wait(30)
    end = run.wait_end()
    assert end.verdict == "VALID", end.reasons


@pytest.fixture
def speak(tmp_path: Path) -> Iterator[Callable[..., list[control.ToReplica]]]:
    """Send raw frames to a head with given keys and collect what comes back: so many answers, or for a second where there
    should be none."""
    context = sockets.context()

    def exchange(run: RunHandle, keys: ClientKeys, frames: list[bytes], answers_wanted: int) -> list[control.ToReplica]:
        socket = sockets.client_dealer(context, keys, HeadAddress.read(run.folder).control)
        socket.linger = 0
        for frame in frames:
            socket.send(frame)
        answers: list[control.ToReplica] = []
        deadline = time.monotonic() + (45 if answers_wanted else 1)
        while len(answers) < max(1, answers_wanted) and socket.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            answers.append(control.TO_REPLICA.decode(socket.recv()))
        socket.close()
        return answers

    yield exchange
    context.term()


def register(run: RunHandle, slot: str, incarnation: str, **changes: str) -> control.Register:
    args_hash = changes.pop("args_hash", "") or run.slot(slot).args_hash
    return control.Register(
        slot=slot,
        incarnation=incarnation,
        role="both",
        model=changes.pop("model", "synthetic"),
        args_hash=args_hash,
        engine="synthetic",
        synthetic=True,
        worker="stranger",
        pid=1,
        host="elsewhere",
    )


def test_a_duplicate_registration_of_a_slot_does_not_displace_the_workers_own(start_run: Start, speak: Start) -> None:
    run = start_run(load__duration_s=4, load__target_qps=120, fleet__keep_warm_s=60)
    run.wait_issuing()
    keys = load_client_keys(run.folder.keys, "worker")
    own = run.slot("node000/gpu0")
    answers = speak(run, keys, [encode(register(run, "node000/gpu0", "intruder"))], 1)
    assert isinstance(answers[0], control.Rejected)
    assert own.incarnation in answers[0].reason
    assert run.slot("node000/gpu0").incarnation == own.incarnation
    wrong = speak(run, keys, [encode(register(run, "node000/gpu0", "other", model="another-model"))], 1)
    assert isinstance(wrong[0], control.Rejected)
    assert "another-model" in wrong[0].reason
    assert_exactly_once(run, run.finish().attempts[0])


def test_a_stale_incarnation_changes_nothing(start_run: Start, speak: Start) -> None:
    run = start_run(load__duration_s=4, load__target_qps=120, fleet__keep_warm_s=60)
    run.wait_measuring()
    old = run.slot("node000/gpu1").incarnation
    assert run.command("recycle", slot="node000/gpu1").ok
    run.wait("a new incarnation", lambda: (s := run.slot("node000/gpu1")).state == "READY" and s.incarnation != old)
    refused = run.command("evict", slot="node000/gpu1", incarnation=old)
    assert not refused.ok
    assert "you acted on" in refused.message
    keys = load_client_keys(run.folder.keys, "worker")
    beat = control.Heartbeat(1, 1.0, [control.ReplicaBeat("node000/gpu1", old, "READY")])
    gone = control.ReplicaExited("node000/gpu1", old, "says a ghost")
    answers = speak(run, keys, [encode(beat), encode(gone)], 2)
    assert any(isinstance(answer, control.Unknown) for answer in answers)
    assert run.slot("node000/gpu1").state == "READY"
    assert_exactly_once(run, run.finish().attempts[0])


def test_an_unknown_key_gets_nothing_and_a_viewer_cannot_register(standing_run: RunHandle, speak: Start) -> None:
    run = standing_run
    known = load_client_keys(run.folder.keys, "operator")
    stranger = ClientKeys("operator", Pair.fresh(), known.server_public)
    ask = control.GetState("1")
    assert speak(run, stranger, [encode(ask)], 0) == []
    with (
        HeadClient(HeadAddress.read(run.folder), stranger) as client,
        pytest.raises(HeadUnreachable, match="not one of the run's"),
    ):
        client.state(timeout_s=10)
    viewer = load_client_keys(run.folder.keys, "viewer")
    answers = speak(run, viewer, [encode(register(run, "node000/gpu0", "x"))], 1)
    assert isinstance(answers[0], control.Rejected)
    assert "viewer key may not send Register" in answers[0].reason


def test_an_unknown_protocol_version_is_answered_in_words(standing_run: RunHandle, speak: Start) -> None:
    run = standing_run
    keys = load_client_keys(run.folder.keys, "worker")
    newer = b"\x09" + msgspec.msgpack.encode({"type": "Register", "slot": "node000/gpu0"})
    answers = speak(run, keys, [newer, b"\x01garbage", b""], 3)
    assert [type(answer) for answer in answers] == [control.Rejected] * 3
    assert "version 9" in answers[0].reason
    assert "malformed" in answers[1].reason
    assert run.state().phase == "MEASURING"


def test_a_full_disk_ends_the_attempt_and_leaves_a_readable_record(start_run: Start, tmp_path: Path) -> None:
    room = tmp_path / "runs"
    room.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", str(room)], capture_output=True, check=False
    ).returncode
    if mounted != 0:
        pytest.skip("a small file system cannot be mounted here (needs root)")
    try:
        run = start_run(load__duration_s=60, load__target_qps=100)
        run.wait_measuring()
        fill(run.folder.path / "ballast", shutil.disk_usage(room).free - 8192)
        run.wait("the end", lambda: not Path(f"/proc/{run.head_pid}").exists() or _gone(run.head_pid), 60)
        story = run.story()
        (run.folder.path / "ballast").unlink()
        record = Record(run.folder)
        assert record.samples(1).select(pl.len()).collect().item() > 0, story
        assert record.problems == []
        assert any("disk is full" in (e.why or "") for e in run.journal()), story
    finally:
        subprocess.run(["umount", "-l", str(room)], check=False)


def fill(ballast: Path, size: int) -> None:
    """The head writes as well: what was free may be less by now, and then its last bytes are given back."""
    try:
        ballast.write_bytes(b"x" * size)
    except OSError:
        os.truncate(ballast, max(0, ballast.stat().st_size - 8192))


def _gone(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def test_no_ready_replica_left_ends_the_attempt_with_that_reason(start_run: Start) -> None:
    run = start_run(small_spec(load__duration_s=60, fleet__max_restarts=0, fleet__nodes=1, fleet__no_ready_grace_s=1.5))
    run.wait_measuring()
    for slot in run.state().slots:
        kill(slot.pid)
    end = run.wait_end()
    assert end.verdict == "CRASHED"
    assert "no READY replica" in end.reasons[0]


def test_a_slot_that_never_comes_fails_the_barrier_by_name(start_run: Start) -> None:
    faults = [{"slot": "node001/gpu1", "kind": "flaky_start", "times": 50}]
    for deadline_s in (5, 15, 45):  # on a slow machine the other three are late as well: then all that are missing are named
        run = start_run(
            fleet__engine_args={"preset": "demo", "faults": faults},
            fleet__barrier={"deadline_s": deadline_s},
            fleet__restart_backoff_s=1.0,
        )
        end = run.wait_end()
        assert end.phase == "FAILED"
        assert "node001" in end.reasons[0]
        if end.reasons[0].startswith("1 replica is missing"):
            break
    assert any(reason.startswith("node001/gpu1:") for reason in end.reasons)


def test_a_waived_slot_lets_the_barrier_open(start_run: Start) -> None:
    faults = [{"slot": "node001/gpu1", "kind": "flaky_start", "times": 50}]
    run = start_run(fleet__engine_args={"preset": "demo", "faults": faults}, load__duration_s=3, fleet__restart_backoff_s=1.0)
    run.wait("three READY", lambda: sum(s.state == "READY" for s in run.state().slots) == 3)
    assert run.command("waive", slot="node001/gpu1").ok
    run.wait_issuing()
    assert_exactly_once(run, run.wait_end().attempts[0])


def test_a_run_folder_holds_private_keys_for_its_user_only(standing_run: RunHandle) -> None:
    run = standing_run
    assert run.folder.keys.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in run.folder.keys.iterdir()} == {0o600}
    assert isinstance(run.folder, RunFolder)
