"""A whole run over real processes: LoadGen Server and Offline, exploration, rate changes, acts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from run_kit import RunHandle

from harness.engines.synthetic.tokens import output_ids
from harness.records.reader import Record, summarise

SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "deepseek_r1_samples.jsonl"
Start = Callable[..., RunHandle]


@pytest.mark.alone
def test_a_server_run_ends_valid_with_every_sample_completed_once(start_run: Start) -> None:
    run = start_run(load__target_qps=160, load__duration_s=3.5)
    end = run.wait_end()
    attempt = end.attempts[0]
    assert (end.phase, end.verdict) == ("DONE", "VALID"), end.reasons
    assert attempt.totals["issued"] == attempt.totals["completed"] > 459
    assert attempt.totals["lost"] == attempt.totals["failed"] == attempt.totals["redispatched"] == 0
    assert attempt.loadgen["num_errors"] == 0
    assert attempt.settings_diff == []
    summary = summarise(Record(run.folder), 1)
    assert sum(replica.samples for replica in summary.replicas) == attempt.totals["completed"]
    assert sum(replica.tokens for replica in summary.replicas) == attempt.totals["tokens"]
    samples = Record(run.folder).samples(1).collect()
    assert samples["seq"].n_unique() == samples.height == attempt.totals["issued"]
    assert (run.folder.attempt(1) / "mlperf_log_summary.txt").read_text().count("Result is : VALID") == 1
    # our clock and LoadGen's agree
    assert attempt.ttft_ms["p99"] == pytest.approx(attempt.loadgen["ttft_ms"]["99.00"], rel=0.1, abs=3)
    assert attempt.tpot_ms["p99"] == pytest.approx(attempt.loadgen["tpot_ms"]["99.00"], rel=0.1, abs=1)


def test_an_offline_run_completes_every_sample(start_run: Start) -> None:
    run = start_run(load__scenario="Offline", load__target_qps=60, load__duration_s=2, limits={})
    attempt = run.wait_end().attempts[0]
    assert attempt.totals["issued"] == attempt.totals["completed"] >= 120
    assert attempt.loadgen["num_errors"] == 0
    assert attempt.loadgen["tokens_per_s"] > 0


@pytest.mark.skipif(not SAMPLES.exists(), reason="shared sample data is not here")
@pytest.mark.parametrize("scenario", ["Server", "Offline"])
def test_token_ids_reach_loadgens_accuracy_log_byte_for_byte(start_run: Start, scenario: str) -> None:
    run = start_run(
        dataset={"kind": "jsonl", "path": str(SAMPLES)},
        load={"scenario": scenario, "kind": "accuracy", "target_qps": 5, "duration_s": 1, "max_output_tokens": 20000},
        fleet__engine_args={"preset": "demo", "speed": 40},
        limits={},
    )
    attempt = run.wait_end(60).attempts[0]
    assert attempt.totals["issued"] == attempt.totals["completed"] == 5
    assert attempt.verdict == "VALID", attempt.reasons
    logged = json.loads((run.folder.attempt(1) / "mlperf_log_accuracy.json").read_text())
    rows = [json.loads(line) for line in SAMPLES.read_text().splitlines()]
    spec = json.loads((run.folder.path / "spec.json").read_text())
    vocab, eos = spec["model"]["vocab_size"], spec["model"]["eos_token_id"]
    assert sorted(entry["qsl_idx"] for entry in logged) == [0, 1, 2, 3, 4]
    for entry in logged:
        index = entry["qsl_idx"]
        sent = output_ids(index, rows[index]["tok_ref_output_len"], vocab, eos)
        assert bytes.fromhex(entry["data"]) == sent
        assert entry["token_count"] == rows[index]["tok_ref_output_len"]
        if scenario == "Server":
            assert bytes.fromhex(entry["token_data"]) == sent[:4]
    prompts = Record(run.folder).samples(1).select("index", "n_prompt").collect()
    assert dict(prompts.iter_rows()) == {i: row["tok_input_len"] for i, row in enumerate(rows)}


def test_an_exploration_changes_its_rate_at_once(start_run: Start) -> None:
    run = start_run(load__kind="explore", load__duration_s=0, load__target_qps=20)
    run.wait_issuing()
    run.wait("samples at 20 QPS", lambda: (run.state().series.completed_qps or [0])[-1] > 10)
    reply = run.command("set_rate", qps=120)
    assert reply.ok, reply.message
    assert "at once" in reply.message
    run.wait("samples at 120 QPS", lambda: run.state().series.offered_qps[-1] > 60)
    assert run.command("stop").ok
    end = run.wait_end()
    assert (end.phase, end.verdict) == ("DONE", "EXPLORATION"), end.reasons
    assert len(end.attempts) == 1
    totals = end.attempts[0].totals
    assert totals["issued"] == totals["completed"] > 0


def test_an_exploration_pauses_and_resumes(start_run: Start) -> None:
    run = start_run(load__kind="explore", load__duration_s=0, load__target_qps=50)
    run.wait_issuing()
    assert run.command("pause").ok
    run.wait("silence", lambda: run.state().series.in_flight[-3:] == [0, 0, 0])
    assert run.command("resume").ok
    run.wait("samples again", lambda: run.state().series.in_flight[-1] > 0)
    run.command("stop")
    assert run.wait_end().verdict == "EXPLORATION"


def test_a_rate_change_supersedes_a_loadgen_attempt_on_the_same_replicas(start_run: Start) -> None:
    run = start_run(load__duration_s=9, load__target_qps=100)
    run.wait_measuring()
    before = {slot.slot: slot.incarnation for slot in run.state().slots}
    reply = run.command("set_rate", qps=150)
    assert reply.ok, reply.message
    assert "SUPERSEDED" in reply.message
    run.wait("attempt 2", lambda: len(run.attempts) == 2)
    run.wait("attempt 2 issues", lambda: run.attempts[1].state == "issuing")
    assert {slot.slot: slot.incarnation for slot in run.state().slots} == before
    end = run.wait_end()
    assert [(a.number, a.verdict, a.target_qps, a.supersedes) for a in end.attempts] == [
        (1, "SUPERSEDED", 100.0, 0),
        (2, "VALID", 150.0, 1),
    ], end.attempts[1].reasons
    assert Record(run.folder).samples(1).select(pl.len()).collect().item() > 0


def test_draining_lets_in_flight_samples_finish_and_readmitting_brings_the_replica_back(start_run: Start) -> None:
    run = start_run(load__duration_s=10, load__target_qps=100)
    run.wait_issuing()
    reply = run.command("drain", slot="node000/gpu1")
    assert reply.ok, reply.message
    run.wait_journal("replica.state", subject="node000/gpu1", after="DRAINED")
    assert run.command("readmit", slot="node000/gpu1").ok
    end = run.wait_end()
    attempt = end.attempts[0]
    assert attempt.totals["redispatched"] == 0
    assert attempt.verdict == "VALID", attempt.reasons
    assert attempt.acts == 2
    assert any("ACTS" in note for note in attempt.notes)


def test_a_replica_drained_in_one_attempt_serves_again_in_the_next(start_run: Start) -> None:
    run = start_run(load__duration_s=10, load__target_qps=100)
    run.wait_issuing()
    assert run.command("drain", slot="node000/gpu1").ok
    run.wait_journal("replica.state", subject="node000/gpu1", after="DRAINED")
    assert run.command("set_rate", qps=120).ok
    run.wait("attempt 2 issues", lambda: run.attempts[1].state == "issuing")
    assert run.command("readmit", slot="node000/gpu1").ok
    assert run.wait_end().attempts[1].verdict == "VALID"
    served = Record(run.folder).samples(2).filter(pl.col("slot") == "node000/gpu1").collect()
    assert served.height > 20


def test_a_rate_that_cannot_be_run_is_refused_before_anything_ends(standing_run: RunHandle) -> None:
    run = standing_run
    refused = run.command("set_rate", qps=500_000)
    assert not refused.ok
    assert "at most" in refused.message
    assert run.state().phase == "MEASURING"
    assert len(run.attempts) == 1


def test_recycling_restarts_the_replica_in_place_and_it_joins_again(start_run: Start) -> None:
    run = start_run(load__kind="explore", load__duration_s=0, load__target_qps=60)
    run.wait_measuring()
    old = run.slot("node001/gpu0").incarnation
    assert run.command("recycle", slot="node001/gpu0", incarnation=old[:6]).ok
    run.wait("a new incarnation", lambda: (s := run.slot("node001/gpu0")).state == "READY" and s.incarnation != old)

    def lives() -> list[int]:
        served = Record(run.folder).samples(1).filter(pl.col("slot") == "node001/gpu0").collect()
        return served["incarnation"].unique().sort().to_list()

    run.wait("samples of both lives on record", lambda: lives() == [1, 2])
    assert run.command("stop").ok
    totals = run.wait_end().attempts[0].totals
    assert totals["issued"] == totals["completed"]


def test_evicting_dispatches_in_flight_samples_again_and_its_replacement_joins(start_run: Start) -> None:
    run = start_run(load__duration_s=9, load__target_qps=120, fleet__keep_warm_s=60)
    run.wait_issuing()
    run.wait("samples in flight", lambda: (run.state().series.in_flight or [0])[-1] > 8)
    assert run.command("evict", slot="node001/gpu1", deadline_s=0, reason="slow").ok
    again = run.wait_journal("samples.redispatched", subject="node001/gpu1")
    assert again.data["samples"] > 0
    run.wait_journal("replica.state", subject="node001/gpu1", after="EVICTED")
    run.wait("its replacement", lambda: (s := run.slot("node001/gpu1")).state == "READY" and s.incarnations == 2)
    attempt = run.finish().attempts[0]
    assert attempt.totals["issued"] == attempt.totals["completed"]
    assert attempt.totals["redispatched"] >= again.data["samples"]
    assert attempt.verdict == "INVALID"
    assert any("evict" in reason for reason in attempt.reasons), attempt.reasons


def test_evicting_below_half_of_the_fleet_is_refused_unless_forced(start_run: Start) -> None:
    run = start_run(load__duration_s=60)
    run.wait_issuing()
    assert run.command("drain", slot="node000/gpu0").ok
    assert run.command("drain", slot="node000/gpu1").ok
    refused = run.command("drain", slot="node001/gpu0")
    assert not refused.ok
    assert "quorum" in refused.message
    assert run.command("drain", slot="node001/gpu0", force=True).ok


def test_aborting_keeps_what_was_measured(start_run: Start) -> None:
    run = start_run(load__duration_s=60)
    run.wait_measuring()
    assert run.command("stop", reason="Ctrl-C", abort=True).ok
    end = run.wait_end()
    assert (end.phase, end.verdict) == ("ABORTED", "ABORTED")
    assert "Ctrl-C" in end.reasons[0]
    assert Record(run.folder).samples(1).select(pl.len()).collect().item() > 5


def test_a_second_operator_must_take_control_first(start_run: Start) -> None:
    from harness.wire.client import HeadClient

    run = start_run(load__duration_s=20)
    run.wait_issuing()
    assert run.command("set_policy", policy="flag").ok
    with HeadClient.of_run(run.folder.path, operator="other") as other:
        refused = other.command("drain", {"slot": "node000/gpu0"})
        assert not refused.ok
        assert "test holds control" in refused.message
        assert other.command("take_control").ok
        assert other.command("drain", {"slot": "node000/gpu0"}).ok
    with HeadClient.of_run(run.folder.path, role="viewer", operator="viewer") as viewer:
        refused = viewer.command("stop")
        assert not refused.ok
        assert "only watch" in refused.message
        assert viewer.state().role == "viewer"
