"""Questions to a real head while it measures: answers of a viewer's key agree with what the record holds; ramps arrive."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import polars as pl
import pytest
from run_kit import RunHandle

from harness.metrics.histogram import GROWTH
from harness.records.reader import Record
from harness.wire.client import HeadClient, Telemetry
from harness.wire.control import FleetSnapshot
from harness.wire.inquiry import GetLogs, GetReplica, GetSla, LogLines, Question, ReplicaDetail, SlaDetail

Start = Callable[..., RunHandle]
A = TypeVar("A")


def asked(run: RunHandle, question: Question, kind: type[A]) -> A:
    with HeadClient.of_run(run.folder.path, role="viewer", operator="watcher") as viewer:
        answer = viewer.ask(question, timeout_s=30)
    assert isinstance(answer, kind)
    return answer


def fresh() -> str:
    return uuid.uuid4().hex


def snapshot(run: RunHandle) -> FleetSnapshot:
    telemetry = Telemetry.of_run(run.folder.path, role="viewer")
    try:
        return next(message for message in telemetry if isinstance(message, FleetSnapshot))
    finally:
        telemetry.close()


@pytest.mark.alone
def test_the_sla_in_full_agrees_with_the_record(start_run: Start) -> None:
    run = start_run(
        load__target_qps=250, load__duration_s=5, limits={"ttft_p99_ms": 40, "tpot_p99_ms": 10_000}, fleet__keep_warm_s=30
    )
    run.wait("the attempt's end", lambda: run.attempts[0].state == "ENDED", 40)
    answer = asked(run, GetSla(fresh(), ["node000/gpu0"]), SlaDetail)
    samples = Record(run.folder).samples(1).collect()
    slots = [slot.slot for slot in run.state().slots]
    assert (answer.attempt, answer.problem) == (1, "")
    for detail, name in ((answer.ttft, "ttft_ms"), (answer.tpot, "tpot_ms")):
        known = samples.filter(pl.col(name).is_not_null())
        assert detail.whole_n == detail.window_n == sum(detail.whole) == known.height > 1000
        assert set(detail.whole_ms) == {"p50", "p90", "p95", "p99"}
        for quantile, value in detail.whole_ms.items():
            exact = np.quantile(known[name].to_numpy(), float(quantile[1:]) / 100, method="inverted_cdf")
            assert exact / GROWTH <= value <= exact * GROWTH, (name, quantile)
        per_slot = [known.filter(pl.col("slot") == slot).height for slot in slots]
        assert np.frombuffer(detail.samples_whole, "<i4").tolist() == per_slot
    over = samples.filter(pl.col("ttft_ms") > 40)
    per_slot = [over.filter(pl.col("slot") == slot).height for slot in slots]
    told = np.frombuffer(answer.ttft.over_whole, "<i4")
    assert np.abs(told - per_slot).max() <= 1  # the head hears TTFT in whole µs
    assert sum(per_slot) > 10
    others = samples.filter(pl.col("slot") != "node000/gpu0")["ttft_ms"].to_numpy()
    if len(others) >= 1000:
        assert answer.ttft.without_p99_ms == pytest.approx(np.quantile(others, 0.99, method="inverted_cdf"), rel=0.021)
    parts = {part.name: part for part in answer.parts}
    assert answer.parts_n == samples.height
    assert answer.parts_tail_n == -(-samples.height // 100)
    assert sum(part.mean_ms for part in parts.values()) == pytest.approx(samples["ttft_ms"].mean(), rel=0.01)
    for name, column, per_ms in (
        ("schedule lag", "lag_ms", 1),
        ("head queue", "head_queue_ms", 1),
        ("prefill", "prefill_us", 1000),
    ):
        assert parts[name].mean_ms == pytest.approx(samples[column].mean() / per_ms, rel=0.01, abs=0.01), name  # type: ignore[operator]
    assert run.command("stop").ok
    run.wait_end()


def test_a_replica_is_told_with_the_samples_it_holds_and_its_log(start_run: Start) -> None:
    slow_samples = {"output_tokens": {"mean": 400, "sigma": 0.1, "min": 300, "max": 500}}
    run = start_run(load__kind="explore", load__duration_s=0, load__target_qps=40, dataset={"samples": 50, **slow_samples})
    run.wait_issuing()
    run.wait("samples in flight", lambda: (run.state().series.in_flight or [0])[-1] > 20)
    life = run.slot("node001/gpu0").incarnation

    def told() -> ReplicaDetail | None:
        """The head waits for a moment only until its driver has told what is in flight."""
        found = asked(run, GetReplica(fresh(), "node001/gpu0", log_lines=50, in_flight=8), ReplicaDetail)
        return found if found.in_flight_age_s < 5 else None

    answer = run.wait("its samples in flight", told)
    assert (answer.slot, answer.incarnation, answer.problem) == ("node001/gpu0", life, "")
    assert 1 <= len(answer.in_flight) <= min(8, answer.in_flight_total)
    ages = [one.age_s for one in answer.in_flight]
    assert ages == sorted(ages, reverse=True)
    assert 0 < ages[0] < 30
    assert all(one.tries == 1 and 4 <= one.n_prompt <= 8000 for one in answer.in_flight)
    oldest_s = float(np.frombuffer(snapshot(run).oldest_s, "<f4")[2])
    assert abs(oldest_s - ages[0]) < 10
    assert answer.log.endswith("logs/node001-gpu0.log")
    assert any("warm after" in line for line in answer.log_lines)
    assert answer.log_size > 0
    assert answer.log_written_s < 60
    assert "no slot 'node001/gpu7'" in asked(run, GetReplica(fresh(), "node001/gpu7"), ReplicaDetail).problem
    assert run.command("stop").ok
    run.wait_end()


def test_logs_of_all_processes_are_merged_in_the_order_of_time(start_run: Start) -> None:
    run = start_run(load__kind="explore", load__duration_s=0, load__target_qps=20)
    run.wait_issuing()
    everything = asked(run, GetLogs(fresh()), LogLines)
    assert [line.unix for line in everything.lines] == sorted(line.unix for line in everything.lines)
    assert {"head", "w000", "w001", "node000/gpu0", "node001/gpu1"} <= {line.source for line in everything.lines}
    assert everything.problem == ""
    assert run.command("recycle", slot="node001/gpu1").ok
    since = everything.lines[-1].unix
    run.wait("the new life in the logs", lambda: _mentions(run, since, "node001/gpu1", "warm after"))
    newest = asked(run, GetLogs(fresh(), since, 1), LogLines)
    assert len(newest.lines) == 1
    assert newest.left_out >= 1
    assert run.command("stop").ok
    run.wait_end()


def _mentions(run: RunHandle, since: float, source: str, words: str) -> bool:
    lines = asked(run, GetLogs(fresh(), since), LogLines).lines
    assert all(line.unix >= since for line in lines)
    return any(line.source == source and words in line.text and line.unix > since for line in lines)


@pytest.mark.alone
def test_a_ramp_moves_the_offered_rate_there_and_is_journalled(start_run: Start) -> None:
    run = start_run(load__kind="explore", load__duration_s=0, load__target_qps=20)
    run.wait_issuing()
    reply = run.command("set_rate", qps=60, ramp_s=8)
    assert reply.ok, reply.message
    under_way = snapshot(run)
    assert 20 <= under_way.target_qps < 60
    assert under_way.ramp_to_qps == 60
    assert 0 < under_way.ramp_left_s <= 8
    arrived = run.wait_journal("rate.ramp")
    (act,) = run.journal("act.set_rate")
    assert (act.before, act.after, act.data["ramp_s"]) == ("20 QPS", "60 QPS", 8.0)
    assert (arrived.before, arrived.after, arrived.who) == ("20 QPS", "60 QPS", "operator:test")
    assert 7.5 < arrived.unix - act.unix < 16
    after = snapshot(run)
    assert (after.target_qps, after.ramp_to_qps, after.ramp_left_s, after.evictions) == (60, 0, 0, 0)
    run.wait("60 QPS offered", lambda: run.state().series.offered_qps[-1] > 45)
    targets = run.state().series.target_qps
    assert any(25 < target < 55 for target in targets), targets
    assert run.command("stop").ok
    run.wait_end()
    # What is offered: after a stop of the machine samples are issued late, at the rate that was theirs.
    offered = Record(run.folder).samples(1).select("scheduled_ns").collect()["scheduled_ns"].to_numpy() / 1e9
    began = (act.unix - run.attempts[0].started_unix) if run.attempts[0].started_unix else 0.0
    second_half = np.count_nonzero((offered > began + 4) & (offered <= began + 8))
    assert 120 <= second_half <= 260  # 200 expected between 40 and 60 QPS; 4 standard deviations, less 2 s without a step
    assert run.attempts[0].acts == 2  # the rate and the stop


def test_a_loadgen_attempt_refuses_a_ramp_and_goes_on(standing_run: RunHandle) -> None:
    run = standing_run
    refused = run.command("set_rate", qps=90, ramp_s=5)
    assert not refused.ok
    assert "cannot ramp" in refused.message
    assert len(run.attempts) == 1
    assert snapshot(run).ramp_to_qps == 0


def test_evictions_are_counted_and_arguments_are_facts_of_every_replica(start_run: Start) -> None:
    fault = {"slot": "node000/gpu1", "kind": "slow", "percent": 30}
    run = start_run(
        load__kind="explore", load__duration_s=0, load__target_qps=20,
        fleet__engine_args={"preset": "demo", "speed": 3, "faults": [fault]},
    )  # fmt: skip
    run.wait_issuing()
    facts = [slot.facts for slot in run.state().slots]
    arguments = [{name: value for name, value in one.items() if name.startswith("arg.")} for one in facts]
    assert arguments[0]["arg.speed"] == 3
    assert all(one == arguments[0] for one in arguments), "the planted fault shows as an argument"
    assert "30" not in json.dumps(list(arguments[1].values()))
    assert run.command("evict", slot="node001/gpu1", deadline_s=0).ok
    assert run.wait("the count", lambda: snapshot(run).evictions == 1)
    assert run.command("stop").ok
    run.wait_end()
