"""A fleet that splits prefill from decode, in the head: neither role may run out, each has figures and a curve of its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_kit import EachAlone, Fleet, a_spec

from harness.head import roles
from harness.head.acts import Acts
from harness.head.barrier import BarrierView, look
from harness.head.drains import Drains
from harness.head.journal import Journal
from harness.head.live import Live
from harness.metrics.stragglers import StragglerWatch
from harness.records.journal import JournalWriter
from harness.spec import BarrierSpec, StragglersSpec
from harness.wire import states
from harness.wire.attempt import SAMPLE_DTYPE, Batch
from harness.wire.control import Command, CommandReply


class ARun:
    attempt_running = True
    policy = "flag"
    rate_qps = 10.0

    def count_act(self, name: str, subject: str) -> None: ...

    def outstanding(self, replica: object) -> int:
        return 0


class Desk:
    """Acts over a fleet of one node: 2 prefill and 3 decode replicas unless said otherwise."""

    def __init__(self, folder: Path, split: str = "2P3D", **fleet: Any) -> None:
        count = int(split[0]) + int(split[2])
        spec = a_spec(1, count, fleet={"roles": split, "barrier": {"min_ready": 1}, **fleet})
        self.fleet = Fleet(spec)
        run: Any = ARun()
        journal = Journal(JournalWriter(folder / "journal.jsonl"), lambda entry: None, self.fleet.clock.unix)
        roster = self.fleet.roster
        drains = Drains(roster, self.fleet.clock, self._recycle, self._evict, {}, set())
        self.acts = Acts(run, roster, drains, journal, spec, self.fleet.clock, EachAlone())

    def _recycle(self, replica: Any, why: str) -> None:
        self.fleet.roster.move(replica, states.LOST, why)

    def _evict(self, replica: Any, who: str, why: str) -> None:
        self.fleet.roster.move(replica, states.EVICTED, why, who)

    def ask(self, name: str, number: int, **args: Any) -> CommandReply:
        self._requests = getattr(self, "_requests", 0) + 1
        command = Command(f"r{self._requests}", "ann", name, {"slot": self.fleet[number].slot, **args})
        return self.acts.run(command, "operator")


# --- guards --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["drain", "recycle", "evict"])
def test_removing_the_last_ready_prefill_replica_is_refused_unless_it_is_forced(tmp_path: Path, act: str) -> None:
    desk = Desk(tmp_path)
    desk.fleet.ready()
    assert desk.ask(act, 1).ok, "another one is left"
    reply = desk.ask(act, 0)
    assert (reply.ok, reply.message) == (
        False,
        "node000/gpu0 is the last READY prefill replica: decode would stand still; force to do it anyway",
    )
    assert desk.fleet[0].state == states.READY
    assert desk.ask(act, 0, force=True).ok


def test_the_last_decode_replica_stays_too_and_whoever_is_not_ready_is_nobodys_last(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "1P2D")
    desk.fleet.ready()
    desk.fleet.roster.move(desk.fleet[1], states.SUSPECT, "no beat for 11 s")
    assert "gpu2 is the last READY decode replica: what is prefilled would find nobody" in desk.ask("evict", 2).message
    assert desk.ask("evict", 1).ok, "a suspect serves nothing new"


def test_the_policy_meets_the_same_guard(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "1P2D")
    desk.fleet.ready()
    reply = desk.acts.run_for_policy(Command("p1", "policy", "recycle", {"slot": "node000/gpu0"}, "slow"))
    assert not reply.ok
    assert "last READY prefill replica" in reply.message


def test_a_fleet_that_is_not_split_has_no_last_of_a_role() -> None:
    fleet = Fleet(a_spec(1, 1))
    fleet.ready()
    assert roles.last_of_role(fleet.roster, [fleet[0]]) == ""
    assert roles.roles_of(fleet.roster) == roles.without_ready(fleet.roster) == []
    assert roles.views(fleet.roster, Live(fleet.spec, 1)) == []


# --- the barrier -----------------------------------------------------------------------------------------------------------


def view(fleet: Fleet, waited_s: float = 1.0, **barrier: Any) -> BarrierView:
    return look(fleet.roster, BarrierSpec(deadline_s=60, **barrier), waited_s=waited_s, why_no_node=lambda node: "")


def test_waiving_a_whole_role_does_not_open_the_barrier_and_the_answer_says_so(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.fleet.ready(2, 3, 4)
    assert desk.ask("waive", 0).message == "node000/gpu0: waived, the barrier no longer waits for it"
    assert desk.ask("waive", 1).message.endswith("every prefill replica is waived now: it still waits until one of them is READY")
    seen = view(desk.fleet)
    assert not seen.open
    assert seen.missing == ["prefill: no replica is READY, all that are missing are waived"]
    late = view(desk.fleet, waited_s=61, min_ready=1)
    assert (late.open, late.gave_up) == (
        False,
        "no prefill replica is READY after 60 s: decode would stand still; no waiver or quorum helps",
    )
    desk.fleet.ready(1)
    assert view(desk.fleet).open


def test_a_quorum_needs_a_replica_of_each_role() -> None:
    fleet = Fleet(a_spec(1, 5, fleet={"roles": "2P3D"}))
    fleet.ready(0, 1)
    late = view(fleet, waited_s=61, min_ready=2)
    assert "no decode replica is READY after 60 s" in late.gave_up
    fleet.ready(4)
    late = view(fleet, waited_s=61, min_ready=2)
    assert late.open
    assert late.note == "quorum: 3 READY without 2 of node000"


def test_where_nobody_is_ready_the_barrier_gives_up_for_that_reason() -> None:
    fleet = Fleet(a_spec(1, 5, fleet={"roles": "2P3D"}))
    assert "5 replicas are missing after 60 s" in view(fleet, waited_s=61).gave_up


# --- figures -------------------------------------------------------------------------------------------------------------


def batch(second: int, rows: np.ndarray, **changes: Any) -> Batch:
    fields: dict[str, Any] = {
        "now_ns": second * 10**9, "started_unix": 1.0, "issued": 0, "scheduled": 0, "completed": 20 * second, "failed": 0,
        "redispatched": 0, "held": 7, "in_flight": 4, "stale": 0, "target_qps": 10.0, "cpu_s": 1.0, "planned": 0, "ttfts": b"",
        "rows": rows.tobytes(), "outstanding": np.array([1, 2, 30, 40, 50], "<i4").tobytes(),
        "oldest_ms": np.zeros(5, "<i4").tobytes(), "held_decode": 3, "prefilled": 25 * second,
        "prefilled_tokens": 25_000 * second,
    }  # fmt: skip
    return Batch(**{**fields, **changes})


def test_each_role_has_its_queue_its_rates_and_the_transfers_are_those_of_decode() -> None:
    fleet = Fleet(a_spec(1, 5, fleet={"roles": "2P3D"}))
    fleet.ready(0, 2, 3)
    live = Live(fleet.spec, 5)
    live.begin(10.0)
    rows = np.zeros(200, SAMPLE_DTYPE)
    rows["n_tokens"], rows["transfer_us"] = 100, np.arange(200) * 100
    for second in range(8):
        live.take(batch(second, rows), float(second))
    prefill, decode = roles.views(fleet.roster, live)
    assert (prefill.role, prefill.replicas, prefill.ready, prefill.outstanding, prefill.waiting) == ("prefill", 2, 1, 3, 7)
    assert (decode.role, decode.replicas, decode.ready, decode.outstanding, decode.waiting) == ("decode", 3, 2, 120, 3)
    assert (prefill.samples_per_s, prefill.tokens_per_s) == pytest.approx((25, 25_000))
    assert (decode.samples_per_s, decode.tokens_per_s) == pytest.approx((20, 20_000))
    assert math.isnan(prefill.transfer_p50_ms)
    assert (decode.transfer_p50_ms, decode.transfer_p99_ms) == pytest.approx((9.95, 19.7), abs=0.05)

    live.end()
    prefill, decode = roles.views(fleet.roster, live)
    assert (prefill.outstanding, prefill.waiting, prefill.samples_per_s, decode.tokens_per_s) == (0, 0, 0, 0)
    assert math.isnan(decode.transfer_p50_ms)


def test_few_transfers_have_a_median_and_no_p99() -> None:
    fleet = Fleet(a_spec(1, 5, fleet={"roles": "2P3D"}))
    live = Live(fleet.spec, 5)
    live.begin(10.0)
    rows = np.zeros(40, SAMPLE_DTYPE)
    rows["transfer_us"] = 2500
    rows["transfer_us"][:3] = -1  # never got that far
    live.take(batch(1, rows), 1.0)
    decode = roles.views(fleet.roster, live)[1]
    assert decode.transfer_p50_ms == pytest.approx(2.5)
    assert math.isnan(decode.transfer_p99_ms)


# --- stragglers ------------------------------------------------------------------------------------------------------------


def judged(split: list[str], step_ms: list[float], batches: list[float], prompts: list[float], windows: int = 5) -> Any:
    """Windows of equal beats over those replicas."""
    spec = StragglersSpec(window_s=10.0, grace_s=0)
    slots = [f"node{at // 4:03d}/gpu{at % 4}" for at in range(len(split))]
    watch, eligible = StragglerWatch(spec, slots, split), np.ones(len(split), bool)
    for window in range(windows):
        watch.judge(10.0 * window, eligible, False)
        for at in range(len(split)):
            watch.observe(at, 10.0 * window + 5, 200, step_ms[at], batches[at], prompts[at])
    return watch.judge(10.0 * windows, eligible, False)


def test_prefill_and_decode_steps_are_judged_on_curves_of_their_own() -> None:
    split = ["prefill"] * 10 + ["decode"] * 10
    wobble = [1 + 0.002 * (at % 4) for at in range(20)]
    prompts = [4000.0 + 300 * (at % 5) for at in range(10)] + [0.0] * 10
    batches = [0.0] * 10 + [100.0 + 5 * (at % 5) for at in range(10)]
    step_ms = [(15 + 0.02 * prompts[at] + 0.1 * batches[at]) * wobble[at] for at in range(20)]
    healthy = judged(split, step_ms, batches, prompts)
    assert healthy.ratio == pytest.approx(np.ones(20), abs=0.02)
    assert not healthy.slow

    step_ms[13] *= 1.3
    slow = judged(split, step_ms, batches, prompts)
    assert [replica.slot_index for replica in slow.slow] == [13]
    assert slow.ratio[13] == pytest.approx(1.3, abs=0.04)


def test_a_slow_prefill_replica_is_found_though_its_steps_are_quicker_than_every_decode_step() -> None:
    split = ["prefill"] * 5 + ["decode"] * 6
    step_ms = [10.0, 10.01, 10.02, 10.03, 13.0] + [30.0 + 0.05 * at for at in range(6)]
    found = judged(split, step_ms, [0.0] * 5 + [60.0] * 6, [500.0] * 5 + [0.0] * 6)
    assert [replica.slot_index for replica in found.slow] == [4]


def test_a_role_of_too_few_replicas_is_not_judged_and_the_other_one_is() -> None:
    split = ["prefill"] * 2 + ["decode"] * 8
    found = judged(split, [10.0] * 2 + [30.0] * 8, [0.0] * 2 + [60.0] * 8, [500.0] * 2 + [0.0] * 8)
    assert np.isnan(found.ratio[:2]).all()
    assert found.ratio[2:] == pytest.approx(np.ones(8), abs=0.01)
