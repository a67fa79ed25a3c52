"""A dispatcher where prefill and decode are split, over real sockets: what goes where, what a row tells, how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import zmq
from driver_kit import EPOCH, PROMPTS, SLOTS, FakeReplica, Rig, closing_rigs, ids, until

from harness.wire import attempt as up
from harness.wire import data


class SplitRig(Rig):
    roles = ("prefill", "decode", "decode")


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    with closing_rigs(SplitRig) as make:
        yield make


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()


def test_a_sample_goes_to_prefill_then_to_decode_with_its_handoff_and_its_row_tells_both(rig: Rig) -> None:
    prefill, decode = rig.join(0), rig.join(2, nth=3)
    rig.issue(4)
    query = prefill.hear(data.Query)
    assert query == data.Query(EPOCH, 0, 1, SLOTS[0], 64, 4, 4, data.PREFILL)
    assert (prefill.payload, prefill.handoff) == (PROMPTS[4].tobytes(), b"")
    assert decode.hears_nothing()
    prefill.prefilled(query, b"where the cache is")
    second = decode.hear(data.Query)
    assert second == data.Query(EPOCH, 0, 1, SLOTS[2], 64, 4, 4, data.DECODE)
    assert (decode.payload, decode.handoff) == (PROMPTS[4].tobytes(), b"where the cache is")
    batch = rig.hear(up.Batch, lambda batch: batch.prefilled == 1)
    assert (batch.prefilled_tokens, batch.in_flight, batch.held, batch.held_decode) == (7, 1, 0, 0)
    assert np.frombuffer(batch.outstanding, "<i4").tolist() == [1, 0, 1], "the prefill replica has its cache still"
    decode.first(second, 70)
    assert rig.told(1) == [("first", 904, ids(70))]
    batch = rig.hear(up.Batch, lambda batch: not np.frombuffer(batch.outstanding, "<i4")[0])
    assert np.frombuffer(batch.outstanding, "<i4").tolist() == [0, 0, 1]
    decode.complete(second, 70, 71, 72)
    assert rig.told(2)[1] == ("complete", 904, ids(70, 71, 72))
    (row,) = rig.end()[0]
    assert {name: row[name] for name in ("slot", "incarnation", "prefill_slot", "tries", "n_tokens")} == {
        "slot": 2, "incarnation": 3, "prefill_slot": 0, "tries": 1, "n_tokens": 3,
    }  # fmt: skip
    assert (row["queue_us"], row["prefill_us"], row["transfer_us"], row["decode_us"]) == (7, 8, 16, 17)
    assert row["issued_ns"] <= row["dispatched_ns"] < row["prefilled_ns"] < row["first_ns"] <= row["done_ns"]


def test_one_connection_may_carry_both_roles(rig: Rig) -> None:
    both = rig.join(0)
    rig.admit(1)
    both.say(data.Hello(EPOCH, SLOTS[1], "a"))
    both.hear(data.Ping)
    both.say(data.Pong(EPOCH, SLOTS[1], "a"))
    rig.hear(up.InPool)
    rig.issue(1)
    query = both.hear(data.Query)
    both.first(query, 5)
    both.complete(query, 5, 6)
    both.prefilled(query)
    second = both.hear(data.Query)
    assert (second.stage, second.slot) == (data.DECODE, SLOTS[1])
    both.prefilled(query)
    both.complete(second, 5, 6)
    assert [what for what, _, _ in rig.told(2)] == ["first", "complete"]
    _, batch = rig.end()
    assert (batch.completed, batch.stale) == (1, 3)


def test_a_prefill_replica_that_goes_before_the_first_token_takes_the_sample_back_from_decode(rig: Rig) -> None:
    prefill, decode = rig.join(0), rig.join(1)
    rig.issue(1)
    prefill.prefilled(prefill.hear(data.Query))
    query = decode.hear(data.Query)
    rig.tell(up.Drop(SLOTS[0], "a", "crashed"))
    assert decode.hear(data.Cancel) == data.Cancel(EPOCH, 0, 1)
    assert rig.hear(up.Redispatched) == up.Redispatched(SLOTS[0], "a", 1, "crashed")
    decode.complete(query, 1, 2)
    heir = rig.join(0, "b", nth=2)
    again = heir.hear(data.Query)
    assert (again.seq, again.attempt_try, again.stage) == (0, 2, data.PREFILL)
    heir.prefilled(again)
    last = decode.hear(data.Query)
    decode.first(last, 5)
    decode.complete(last, 5, 6)
    assert rig.told(2) == [("first", 901, ids(5)), ("complete", 901, ids(5, 6))]
    (row,) = rig.end()[0]
    assert (row["tries"], row["prefill_slot"], row["slot"]) == (2, 0, 1)


def test_a_first_token_that_was_reported_is_not_reported_again_after_the_decode_replica_is_lost(rig: Rig) -> None:
    prefill, lost = rig.join(0), rig.join(1)
    rig.issue(1)
    prefill.prefilled(prefill.hear(data.Query))
    lost.first(lost.hear(data.Query), 50)
    rig.told(1)
    rig.tell(up.Drop(SLOTS[1], "a", "lease over"))
    heir = rig.join(2)
    again = prefill.hear(data.Query)
    assert (again.attempt_try, again.stage) == (2, data.PREFILL)
    prefill.prefilled(again)
    query = heir.hear(data.Query)
    heir.first(query, 60)
    heir.complete(query, 60, 61)
    assert rig.told(2) == [("first", 901, ids(50)), ("complete", 901, ids(60, 61))]


def test_a_prefill_replica_on_hold_is_drained_when_its_last_cache_has_come_over(rig: Rig) -> None:
    prefill, decode = rig.join(0), rig.join(1)
    rig.issue(1)
    query = prefill.hear(data.Query)
    rig.tell(up.Hold(SLOTS[0], "a"))
    prefill.prefilled(query)
    second = decode.hear(data.Query)
    rig.hear(up.Batch)
    rig.hear(up.Batch)
    assert not [message for message in rig.heard if isinstance(message, up.Drained)]
    decode.first(second, 1)
    assert rig.hear(up.Drained) == up.Drained(SLOTS[0], "a")


@pytest.mark.parametrize(("role", "there"), [("prefill", 1), ("decode", 0)])
def test_a_role_without_a_replica_ends_the_attempt_by_its_name(make_rig: Callable[..., Rig], role: str, there: int) -> None:
    rig = make_rig(grace_s=60)
    replica = rig.join(there)
    rig.issue(0, 1)
    if role == "decode":
        for _ in range(2):
            replica.prefilled(replica.hear(data.Query))
        batch = rig.hear(up.Batch, lambda batch: batch.held_decode == 2)
        assert (batch.held, batch.in_flight) == (0, 0)
    else:
        rig.hear(up.Batch, lambda batch: batch.held == 2)
    rig.passes(61)
    assert rig.failure() == f"no READY {role} replica for 60 s while 2 samples wait"
    assert rig.dispatcher.open_samples == 2


def test_an_answer_of_one_token_begins_a_new_round_and_names_the_setting_that_helps(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(max_tries=1)
    prefill, decode = rig.join(0), rig.join(1)
    rig.issue(3)
    prefill.prefilled(prefill.hear(data.Query))
    decode.complete(decode.hear(data.Query), 9)
    reason = "answered with one token; TPOT needs two, and sampling.min_tokens = 2 prevents it"
    assert rig.failure() == f"sample 0 (QSL index 3) failed 1 tries; the last one: {reason}"


def test_a_prefilled_where_roles_are_not_split_changes_nothing() -> None:
    with closing_rigs() as make:
        rig = make()
        replica = rig.join(0)
        rig.issue(1)
        query = replica.hear(data.Query)
        assert query.stage == data.WHOLE
        replica.prefilled(query)
        replica.complete(query, 1, 2)
        rig.told(2)
        rows, batch = rig.end()
        assert (batch.stale, batch.prefilled, batch.held_decode) == (1, 0, 0)
        assert rows[["prefill_slot", "prefilled_ns", "transfer_us"]].tolist() == [(-1, -1, -1)]


# --- pairs -----------------------------------------------------------------------------------------------------------


def warm(prefill: FakeReplica, *decodes: FakeReplica) -> None:
    """Answers the warm-up samples of one prefill replica with each of these."""
    for query in [prefill.hear(data.Query) for _ in decodes]:
        assert query.seq < 0
        assert (query.max_tokens, query.expected_tokens, query.stage) == (2, 2, data.PREFILL)
        prefill.prefilled(query)
    for decode in decodes:
        query = decode.hear(data.Query)
        assert (query.seq < 0, query.stage, decode.handoff) == (True, data.DECODE, b"kv")
        decode.first(query, 1)
        decode.complete(query, 1, 2)


def test_pairs_are_warmed_before_samples_and_a_newcomer_before_its_first_one(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(pairs_deadline_s=30)
    prefill, decode = rig.join(0), rig.join(1)
    assert rig.dispatcher.stages is not None
    pairs = rig.dispatcher.stages.pairs
    assert pairs is not None
    assert not pairs.settled
    assert prefill.hears_nothing(0.25), "not before it is wanted"
    pairs.wanted = True
    warm(prefill, decode)
    told = rig.hear(up.PairsWarmed)
    assert (told.count, told.slowest_pair) == (1, f"{SLOTS[0]} → {SLOTS[1]}")
    assert pairs.settled
    rig.issue(1)
    sample = prefill.hear(data.Query)
    assert sample.seq == 0
    newcomer = rig.join(2)
    warm(prefill, newcomer)
    assert rig.hear(up.PairsWarmed).slowest_pair == f"{SLOTS[0]} → {SLOTS[2]}"
    prefill.prefilled(sample)
    until(lambda: bool(decode.socket.poll(0) or newcomer.socket.poll(0)))
    chosen = decode if decode.socket.poll(0) else newcomer
    chosen.complete(chosen.hear(data.Query), 1, 2)
    rig.told(2)
    rows, batch = rig.end()
    assert rows["seq"].tolist() == [0], "warm-up samples leave no row"
    assert (batch.issued, batch.completed, batch.stale, batch.prefilled) == (1, 1, 0, 1)


def test_a_pair_that_does_not_warm_up_ends_the_attempt_before_its_load(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(pairs_deadline_s=60)
    prefill, decode = rig.join(0), rig.join(1)
    assert rig.dispatcher.stages is not None
    assert rig.dispatcher.stages.pairs is not None
    rig.dispatcher.stages.pairs.wanted = True
    prefill.prefilled(prefill.hear(data.Query))
    decode.hear(data.Query)
    rig.passes(61)
    named = f"warm-up of {SLOTS[0]} (prefill) with {SLOTS[1]} (decode)"
    assert rig.failure() == f"{named} was not done within 60 s: no answer to its decode"


@pytest.mark.parametrize("begun", [True, False], ids=["the load has begun", "LoadGen still makes its schedule"])
def test_a_newcomer_that_does_not_warm_up_is_reported_and_the_attempt_goes_on(make_rig: Callable[..., Rig], begun: bool) -> None:
    rig = make_rig(pairs_deadline_s=60, deadline_s=600)
    prefill, decode = rig.join(0), rig.join(1)
    assert rig.dispatcher.stages is not None
    assert rig.dispatcher.stages.pairs is not None
    rig.dispatcher.stages.pairs.wanted = True
    warm(prefill, decode)
    rig.hear(up.PairsWarmed)
    if begun:
        rig.issue(1)
        sample = prefill.hear(data.Query)
    rig.join(2)
    assert prefill.hear(data.Query).seq < 0
    rig.passes(61)
    silent = rig.hear(up.Silent)
    assert silent.slot == SLOTS[2]
    assert silent.why.startswith(f"warm-up of {SLOTS[0]} (prefill) with {SLOTS[2]} (decode) was not done within 60 s")
    if not begun:
        rig.issue(1)
        sample = prefill.hear(data.Query)
    prefill.prefilled(sample)
    decode.complete(decode.hear(data.Query), 1, 2)
    rig.told(2)
    assert rig.dispatcher.failure is None


def test_a_flood_over_split_replicas_completes_every_sample_exactly_once(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(cap=4)
    replicas = [rig.join(slot) for slot in range(3)]
    rig.dispatcher.issue([(number, number % 5, -1, time.monotonic_ns()) for number in range(400)])
    poller = zmq.Poller()
    for replica in replicas:
        poller.register(replica.socket, zmq.POLLIN)
    answered = 0
    while answered < 400:
        ready = dict(poller.poll(30_000))
        assert ready, f"stuck after {answered}"
        for replica in replicas:
            if replica.socket not in ready:
                continue
            query = replica.hear(data.Query)
            if query.stage == data.PREFILL:
                replica.prefilled(query, b"%d" % query.seq)
            else:
                assert replica.handoff == b"%d" % query.seq
                replica.first(query, query.seq)
                replica.complete(query, query.seq, 2)
                answered += 1
    told = rig.told(800)
    for what in ("first", "complete"):
        assert sorted(handle for kind, handle, _ in told if kind == what) == list(range(400))
    rows, batch = rig.end()
    assert sorted(rows["seq"].tolist()) == list(range(400))
    assert (batch.issued, batch.completed, batch.held, batch.held_decode, batch.in_flight) == (400, 400, 0, 0, 0)
    assert set(rows["prefill_slot"].tolist()) == {0}
    assert np.bincount(rows["slot"])[1:].min() > 100
