"""Whole runs with real engines: LoadGen, head, worker and two vLLM replicas on the CPU, what breaks in them included.

One fleet serves all Server tests, another the Offline ones: to start one costs most of a minute. The tests of a fleet go
on from one another and run in the order in which they stand here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from descendants import adopt_orphans, descendants
from run_kit import RunHandle, kill, running
from run_kit_vllm import (
    OUTPUT_TOKENS,
    engine_core_of,
    group_of,
    prompts_of,
    pss_mb,
    start_second_opinion,
    start_stray,
    vllm_spec,
)

from harness.cluster.local import kill_run
from harness.records.layout import new_run_folder
from harness.records.reader import Record
from harness.records.runfile import AttemptRecord
from harness.spec import RunSpec
from harness.wire.states import READY

pytestmark = pytest.mark.timeout(420)

FIRST, SECOND = "node000/gpu0", "node000/gpu1"
READY_WITHIN_S = 300.0
#: On a machine that is busy with other things samples queue for most of a minute.
ENDS_WITHIN_S = 240.0
#: One replica with a 64 MB cache (our process, engine core, worker, guard), what is shared in parts: measured 970 MB.
REPLICA_MB = 1500.0
GONE_WITHIN_S = 20.0


@pytest.fixture(scope="module", autouse=True)
def no_engine_left() -> Iterator[None]:
    """In place of the one that looks after every test: these share their fleets."""
    adopt_orphans()
    before = set(descendants())
    yield
    deadline = time.monotonic() + 15
    while (left := {p: t for p, t in descendants().items() if p not in before}) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"left running: {left}"


def launch(folder: Path, spec: RunSpec) -> RunHandle:
    run_folder = new_run_folder(folder / "runs", spec.name)
    run_folder.spec_json.write_text(spec.model_dump_json())
    return RunHandle(run_folder).launch()


@pytest.fixture(scope="module")
def server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunHandle]:
    """Its first attempt is LoadGen Server, for ten seconds."""
    load = {"scenario": "Server", "target_qps": 5, "duration_s": 10}
    run = launch(tmp_path_factory.mktemp("server"), vllm_spec(tiny_llama, load))
    yield run
    kill_run(run.folder, run.head_pid)


@pytest.fixture(scope="module")
def offline_spec(tiny_llama: Path) -> RunSpec:
    """Float32, in which the two best tokens do not tie, whatever else is in the batch; one replica is enough."""
    load = {"scenario": "Offline", "kind": "accuracy", "target_qps": 24, "duration_s": 1}
    return vllm_spec(tiny_llama, load, replicas_per_node=1, engine_args={"dtype": "float32"})


@pytest.fixture(scope="module")
def offline(offline_spec: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunHandle]:
    run = launch(tmp_path_factory.mktemp("offline"), offline_spec)
    yield run
    kill_run(run.folder, run.head_pid)


def wait_attempt(run: RunHandle, number: int, within_s: float) -> AttemptRecord:
    """Its end, with the fleet staying warm."""

    def ended() -> AttemptRecord | None:
        return next((a for a in run.attempts if a.number == number and a.state == "ENDED"), None)

    attempt = run.wait(f"the end of attempt {number}", ended, within_s)
    assert isinstance(attempt, AttemptRecord)
    return attempt


def assert_exactly_once(run: RunHandle, attempt: AttemptRecord) -> None:
    assert attempt.totals["issued"] == attempt.totals["completed"] > 0, attempt.totals
    assert attempt.totals["lost"] == attempt.totals["failed"] == 0, attempt.totals
    samples = Record(run.folder).samples(attempt.number).select("seq", "n_tokens").collect()
    assert samples["seq"].n_unique() == len(samples) == attempt.totals["issued"]
    assert set(samples["n_tokens"]) == {OUTPUT_TOKENS}


def slots_of(run: RunHandle, attempt: int) -> set[str]:
    return set(Record(run.folder).samples(attempt).select("slot").collect()["slot"])


def start_exploring(run: RunHandle) -> int:
    """The attempt's number. Its rate keeps samples at both replicas all the time, from two seconds on."""
    run.wait("a warm fleet", lambda: run.run.phase == READY, 60)
    reply = run.command("start_attempt", kind="explore", qps=32)
    assert reply.ok, reply.message
    number = int(reply.message.partition(":")[0].removeprefix("attempt "))

    def issued_for_two_seconds() -> bool:
        phases = run.journal("attempt.phase")
        return any(e.attempt == number and e.after == "issuing" and time.time() > e.unix + 2 for e in phases)

    def answered_by_both() -> bool:
        answered = Record(run.folder).collect(lambda samples: samples.select("slot"), number)
        return set(answered["slot"]) == {FIRST, SECOND}

    run.wait(f"samples of attempt {number} on their way", issued_for_two_seconds, 60)
    run.wait(f"answers of both replicas in attempt {number}", answered_by_both, 60)
    return number


# --- Server --------------------------------------------------------------------------------------------------------


def test_loadgen_server_over_two_replicas_answers_every_sample_within_bounded_time_and_memory(server: RunHandle) -> None:
    server.wait_issuing(READY_WITHIN_S)
    slots = server.state().slots
    assert [slot.state for slot in slots] == ["READY", "READY"]
    assert not any(slot.synthetic for slot in slots)
    assert all(slot.versions["vllm"] for slot in slots)
    attempt = wait_attempt(server, 1, ENDS_WITHIN_S)
    assert_exactly_once(server, attempt)
    assert attempt.loadgen["num_errors"] == 0
    assert attempt.verdict == "VALID" or attempt.reasons, "a verdict that is not VALID says why"
    assert slots_of(server, 1) == {FIRST, SECOND}
    for slot in slots:
        group = group_of(slot.pid)
        assert pss_mb(list(group)) < REPLICA_MB, group


def test_a_killed_engine_core_is_told_with_its_last_words_and_its_samples_go_elsewhere(server: RunHandle) -> None:
    number = start_exploring(server)
    victim = server.slot(FIRST)
    kill(engine_core_of(victim.pid))
    began = time.monotonic()
    exited = server.wait_journal("replica.exit", subject=FIRST)
    assert time.monotonic() - began < 15, "by its exit, not by its lease"
    assert "SIGKILL" in exited.why
    assert exited.data["log_tail"]
    attempt = wait_attempt(server, number, ENDS_WITHIN_S)
    assert_exactly_once(server, attempt)
    assert attempt.totals["redispatched"] > 0
    server.wait("the end of all that was of the dead replica", lambda: not group_of(victim.pid), GONE_WITHIN_S)
    server.wait("its successor", lambda: (s := server.slot(FIRST)).state == "READY" and s.incarnations == 2, READY_WITHIN_S)


def test_a_drain_that_reaches_its_deadline_hands_what_is_left_to_the_successor_of_the_dead(server: RunHandle) -> None:
    number = start_exploring(server)
    evicted = server.slot(SECOND)
    reply = server.command("evict", slot=SECOND, incarnation=evicted.incarnation, deadline_s=0.05)
    assert reply.ok, reply.message
    assert "what is left after 0.05 s is dispatched again" in reply.message
    server.wait_journal("replica.state", subject=SECOND, after="EVICTED")
    attempt = wait_attempt(server, number, ENDS_WITHIN_S)
    assert_exactly_once(server, attempt)
    assert attempt.totals["redispatched"] > 0
    assert slots_of(server, number) == {FIRST, SECOND}, "the one that was restarted is in use again"
    server.wait("the end of its processes", lambda: not group_of(evicted.pid), GONE_WITHIN_S)


def test_nothing_outlives_a_worker_and_a_head_that_are_killed(server: RunHandle) -> None:
    (worker,) = server.workers()
    group = group_of(server.slot(FIRST).pid)
    assert sum(title.startswith("VLLM::") for title in group.values()) == 2, group
    server.kill_head()
    kill(worker["pid"])
    deadline = time.monotonic() + GONE_WITHIN_S
    while left := [pid for pid in (worker["pid"], *group) if running(pid)]:
        assert time.monotonic() < deadline, f"left running: {[group.get(pid, 'the worker') for pid in left]}"
        time.sleep(0.05)


# --- Offline -------------------------------------------------------------------------------------------------------


def test_the_accuracy_log_holds_the_tokens_that_the_engine_gives_by_itself(offline: RunHandle, offline_spec: RunSpec) -> None:
    asked = start_second_opinion(offline_spec)
    try:
        offline.wait_issuing(READY_WITHIN_S)
        attempt = wait_attempt(offline, 1, ENDS_WITHIN_S)
        assert_exactly_once(offline, attempt)
        logged = json.loads((offline.folder.attempt(1) / "mlperf_log_accuracy.json").read_text())
        given = {entry["qsl_idx"]: entry["data"].lower() for entry in logged}
        said, _ = asked.communicate(timeout=READY_WITHIN_S)
    finally:
        asked.kill()
        asked.wait(10)
    expected = {int(index): ids for index, ids in json.loads(said.splitlines()[-1]).items()}
    assert len(expected) == len(prompts_of(offline_spec)) == 24
    as_hex = {index: b"".join(token.to_bytes(4, "little") for token in ids).hex() for index, ids in expected.items()}
    assert given == as_hex


def test_a_replica_with_other_arguments_is_rejected_with_the_reason(offline: RunHandle, offline_spec: RunSpec) -> None:
    offline.wait("a warm fleet", lambda: offline.run.phase == READY, READY_WITHIN_S)
    changed = {**offline_spec.fleet.engine_args, "max_num_seqs": 8}
    other = offline_spec.model_copy(update={"fleet": offline_spec.fleet.model_copy(update={"engine_args": changed})})
    before = offline.slot(FIRST)
    stray = start_stray(offline, other)
    try:
        told = stray.death(READY_WITHIN_S)
    finally:
        stray.end()
    assert told["final"] is True
    assert "rejected" in told["reason"]
    assert "arguments" in told["reason"]
    rejected = offline.wait_journal("replica.rejected", subject=FIRST)
    assert rejected.who == "worker:stray"
    assert rejected.why in told["reason"]
    after = offline.slot(FIRST)
    assert (after.state, after.incarnation) == ("READY", before.incarnation), "the run's own replica serves on"
