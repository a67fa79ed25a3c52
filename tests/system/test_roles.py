"""Runs over real processes where prefill and decode are split: valid, with replicas of either role lost, 5P4D against 4P5D."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from run_kit import RunHandle, kill

from harness.records.reader import Record

Start = Callable[..., RunHandle]


def split(**changes: Any) -> dict[str, Any]:
    return {"fleet__roles": "2P2D", "load__target_qps": 160, **changes}


def roles(run: RunHandle) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"prefill": [], "decode": []}
    for slot in run.state().slots:
        found[slot.role].append(slot.slot)
    return found


def samples(run: RunHandle) -> pl.DataFrame:
    """All of attempt 1, each complete and there once, with what both of its replicas told."""
    rows = Record(run.folder).samples(1).collect()
    totals = run.attempts[0].totals
    assert rows["seq"].n_unique() == rows.height == totals["issued"] == totals["completed"]
    for name in ("slot", "prefill_slot", "prefilled_ns", "transfer_us", "queue_us", "prefill_us", "decode_us", "done_ns"):
        assert rows[name].null_count() == 0, name
    assert (rows["prefill_slot"] != rows["slot"]).all()
    one_round = rows.filter(pl.col("tries") == 1)
    assert (one_round["dispatched_ns"] < one_round["prefilled_ns"]).all()
    assert (one_round["prefilled_ns"] <= one_round["first_ns"]).all()  # one drain of a busy driver can bring both
    return rows


@pytest.mark.parametrize("slots_per_process", [1, 4])
def test_a_run_of_two_prefill_and_two_decode_replicas_is_valid(start_run: Start, slots_per_process: int) -> None:
    """Four in one process: prefill and decode answer over the same connection."""
    nodes_per_worker = 1 if slots_per_process == 1 else 2
    shape = {"fleet__slots_per_process": slots_per_process, "cluster__nodes_per_worker": nodes_per_worker}
    run = start_run(**split(**shape, fleet__keep_warm_s=60))
    run.wait_issuing()
    by_role = roles(run)
    assert (len(by_role["prefill"]), len(by_role["decode"])) == (2, 2)
    assert len({slot.pid for slot in run.state().slots}) == 4 // slots_per_process
    end = run.finish()
    attempt = end.attempts[0]
    assert (end.phase, end.verdict) == ("DONE", "VALID"), end.reasons
    assert attempt.totals["redispatched"] == attempt.totals["failed"] == 0
    assert attempt.loadgen["num_errors"] == 0
    rows = samples(run)
    assert set(rows["prefill_slot"].unique()) == set(by_role["prefill"])
    assert set(rows["slot"].unique()) == set(by_role["decode"])
    assert rows["tries"].max() == 1
    phases = [entry.after for entry in run.journal("attempt.phase")]
    warming = phases[phases.index("waiting for replicas") + 1]
    assert warming.startswith("warming pairs: ")
    assert warming.endswith(" of 4")


def test_losing_a_prefill_and_a_decode_replica_loses_no_sample(start_run: Start) -> None:
    run = start_run(**split(load__duration_s=20, load__target_qps=80))
    run.wait_measuring()
    by_role = roles(run)
    victims = [run.slot(by_role[role][0]) for role in ("prefill", "decode")]
    for slot in victims:
        kill(slot.pid)
    for slot in victims:
        run.wait_journal("replica.state", subject=slot.slot, after="LOST")
        run.wait(f"another {slot.role} replica", lambda slot=slot: run.slot(slot.slot).state == "READY")  # type: ignore[misc]
    end = run.wait_end()
    assert end.verdict == "VALID", end.reasons
    rows = samples(run)
    assert end.attempts[0].totals["redispatched"] > 0
    assert rows["tries"].max() >= 2
    again = rows.filter(pl.col("incarnation") > 1)
    assert set(again["slot"].unique()) == {by_role["decode"][0]}, "the replacement took samples once its pairs were warm"


def test_the_last_replica_of_a_role_is_not_evicted(start_run: Start) -> None:
    barrier = {"deadline_s": 60, "min_ready": 1}
    run = start_run(**split(load__duration_s=8, load__target_qps=100, fleet__barrier=barrier, fleet__keep_warm_s=60))
    run.wait_measuring()
    first, last = roles(run)["prefill"]
    assert run.command("drain", slot=first).ok
    run.wait("one prefill replica is drained", lambda: run.slot(first).state == "DRAINED")
    reply = run.command("evict", slot=last)
    assert not reply.ok
    assert "prefill" in reply.message
    end = run.finish()
    rows = samples(run)
    assert end.attempts[0].totals["redispatched"] == 0
    assert set(rows.tail(20)["prefill_slot"].unique()) == {last}


@pytest.mark.alone
@pytest.mark.timeout(240)
def test_more_prefill_replicas_give_earlier_first_tokens_and_more_decode_replicas_faster_ones(start_run: Start) -> None:
    """With prefill at nineteen twentieths of what four can do and decode steps that grow with their batch, at the same rate."""
    for _ in range(2):  # where the machine stops for a second, samples wait for that second: then both are measured again
        five, four = median_ms(start_run, "5P4D", 5), median_ms(start_run, "4P5D", 4)
        print(five, four)
        if five[0] < 0.9 * four[0] and five[1] > 1.1 * four[1]:
            break
    assert five[0] < 0.9 * four[0]
    assert five[1] > 1.1 * four[1]


def median_ms(start_run: Start, layout: str, n_prefill: int) -> tuple[float, float]:
    """TTFT and TPOT."""
    run = start_run(
        fleet__nodes=3,
        fleet__replicas_per_node=3,
        fleet__slots_per_process=3,
        fleet__roles=layout,
        fleet__engine_args={"preset": "demo", "c0_ms": 2.0, "cd_us": 1200.0, "cp_us": 1240.0},
        load__target_qps=60,
        load__duration_s=9,
    )
    end = run.wait_end()
    assert (end.phase, end.verdict) == ("DONE", "VALID"), end.reasons
    rows = samples(run)
    assert (rows["prefill_slot"].n_unique(), rows["slot"].n_unique()) == (n_prefill, 9 - n_prefill)
    ttft = (rows["first_ns"] - rows["scheduled_ns"]).median()
    tpot = ((rows["done_ns"] - rows["first_ns"]) / (rows["n_tokens"] - 1)).median()
    assert isinstance(ttft, float)
    assert isinstance(tpot, float)
    return ttft / 1e6, tpot / 1e6
