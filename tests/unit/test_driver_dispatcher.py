"""The dispatcher over real CURVE sockets in one process: who is let in, what counts, what is sent again, how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import zmq
from driver_kit import EPOCH, PROMPTS, SLOTS, FakeReplica, Rig, closing_rigs, ids, until

from harness.wire import attempt as up
from harness.wire import data
from harness.wire.keys import ClientKeys, ServerKeys


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    with closing_rigs() as make:
        yield make


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()


# --- who is let in -----------------------------------------------------------------------------------------


def test_a_replica_gets_work_after_hello_ping_and_pong_and_not_before(rig: Rig) -> None:
    rig.admit(0)
    rig.issue(0)
    replica = FakeReplica(rig, 0, "a")
    replica.say(data.Hello(EPOCH, SLOTS[0], "a"))
    assert replica.hear(data.Ping) == data.Ping(EPOCH, SLOTS[0])
    assert replica.hears_nothing()
    assert rig.dispatcher.pool_size == 0
    replica.say(data.Pong(EPOCH, SLOTS[0], "a"))
    assert replica.hear(data.Query).seq == 0
    assert rig.hear(up.InPool) == up.InPool(SLOTS[0], "a")
    assert rig.dispatcher.pool_size == 1


def test_nobody_is_pinged_whom_the_head_has_not_admitted(rig: Rig) -> None:
    replica = FakeReplica(rig, 0, "a")
    replica.say(data.Hello(EPOCH, SLOTS[0], "a"))
    replica.say(data.Pong(EPOCH, SLOTS[0], "a"))
    rig.admit(1, "b")
    assert replica.hears_nothing()
    rig.admit(0, "another life")
    replica.say(data.Hello(EPOCH, SLOTS[0], "a"))
    assert replica.hears_nothing()
    assert rig.dispatcher.pool_size == 0


def test_a_pong_without_the_ping_does_not_count(rig: Rig) -> None:
    rig.admit(0)
    honest, other = FakeReplica(rig, 0, "a"), FakeReplica(rig, 0, "a")
    honest.say(data.Hello(EPOCH, SLOTS[0], "a"))
    honest.hear(data.Ping)
    other.say(data.Pong(EPOCH, SLOTS[0], "a"))
    time.sleep(0.1)
    assert rig.dispatcher.pool_size == 0
    honest.say(data.Pong(EPOCH, SLOTS[0], "a"))
    rig.hear(up.InPool)


def test_a_hello_of_another_epoch_is_refused_in_words(rig: Rig) -> None:
    replica = FakeReplica(rig, 0, "a")
    replica.say(data.Hello(EPOCH - 1, SLOTS[0], "a"))
    assert replica.hear(data.Refused).reason == "attempt epoch 6 is over; this is 7"


def test_another_protocol_version_and_nonsense_are_refused_in_words(rig: Rig) -> None:
    replica = FakeReplica(rig, 0, "a")
    replica.socket.send(b"\x63whatever")
    assert "protocol version 99" in replica.hear(data.Refused).reason
    replica.socket.send(b"\x01\xc1")
    assert "malformed" in replica.hear(data.Refused).reason
    replica.say(data.Ping(EPOCH, SLOTS[0]))
    replica.hear(data.Refused)
    assert rig.dispatcher.failure is None


@pytest.mark.parametrize("key", ["viewer", "another run's worker"])
def test_only_the_runs_worker_key_reaches_the_dispatcher(rig: Rig, key: str) -> None:
    stranger = ClientKeys("worker", ServerKeys.fresh().roles["worker"], rig.keys.server.public)
    replica = FakeReplica(rig, 0, "a", rig.keys.client("viewer") if key == "viewer" else stranger)
    replica.socket.send(b"\x63")  # would be answered with a refusal
    until(lambda: rig.zap.refused >= 1)
    assert replica.hears_nothing(0.2)


# --- one sample --------------------------------------------------------------------------------------------


def test_a_sample_goes_out_with_its_prompt_and_comes_back_once_with_its_row(rig: Rig) -> None:
    replica = rig.join(2, "a", nth=3)
    rig.issue(4)
    query = replica.hear(data.Query)
    assert query == data.Query(EPOCH, 0, 1, SLOTS[2], 64, 4, 4)
    assert replica.payload == PROMPTS[4].tobytes()
    replica.first(query, 70)
    assert rig.told(1) == [("first", 904, ids(70))]
    replica.complete(query, 70, 71, 72)
    assert rig.told(2)[1] == ("complete", 904, ids(70, 71, 72))
    rows, batch = rig.end()
    (row,) = rows
    assert {name: row[name] for name in ("seq", "index", "slot", "incarnation", "tries", "n_prompt", "n_tokens")} == {
        "seq": 0, "index": 4, "slot": 2, "incarnation": 3, "tries": 1, "n_prompt": 7, "n_tokens": 3,
    }  # fmt: skip
    assert (row["queue_us"], row["prefill_us"], row["decode_us"]) == (15, 16, 17)
    assert row["scheduled_ns"] == 0
    assert 1000 == row["issued_ns"] <= row["dispatched_ns"] < row["first_ns"] <= row["done_ns"]
    assert (batch.issued, batch.completed, batch.in_flight, batch.held, batch.stale) == (1, 1, 0, 0, 0)


def test_a_second_complete_is_dropped_and_counted(rig: Rig) -> None:
    replica = rig.join(0)
    rig.issue(1)
    query = replica.hear(data.Query)
    replica.first(query, 1)
    replica.first(query, 1)
    for _ in range(3):
        replica.complete(query, 1, 2)
    batch = rig.hear(up.Batch, lambda batch: batch.stale == 2)
    assert (batch.issued, batch.completed) == (1, 1)
    assert [what for what, _, _ in rig.sink.told] == ["first", "complete"]
    assert len(rig.end()[0]) == 1


def test_replies_of_another_epoch_or_over_another_connection_change_nothing(rig: Rig) -> None:
    replica, other = rig.join(0), rig.join(1)
    rig.issue(1)
    rig.issue(1)
    query = replica.hear(data.Query)
    other.first(query, 1)
    other.complete(query, 1, 2)
    replica.say(data.Complete(EPOCH - 1, query.seq, query.attempt_try, 0, 0, 0), ids(1, 2))
    replica.say(data.Failed(EPOCH - 1, query.seq, query.attempt_try, "an old attempt's trouble"))
    batch = rig.hear(up.Batch, lambda batch: batch.stale >= 2)
    assert (batch.completed, batch.in_flight, batch.redispatched) == (0, 2, 0)
    assert rig.sink.told == []
    replica.complete(query, 1, 2)
    assert [what for what, _, _ in rig.told(2)] == ["first", "complete"]


def test_a_first_without_its_token_is_none_and_the_complete_brings_it(rig: Rig) -> None:
    replica = rig.join(0)
    rig.issue(1)
    query = replica.hear(data.Query)
    replica.say(data.First(EPOCH, query.seq, query.attempt_try, 5, 6))
    time.sleep(0.05)
    assert rig.sink.told == []
    replica.complete(query, 8, 9)
    assert rig.told(2)[0] == ("first", 901, ids(8))


def test_a_complete_without_a_first_reports_its_own_first_token(rig: Rig) -> None:
    replica = rig.join(0)
    rig.issue(1)
    replica.complete(replica.hear(data.Query), 41, 42, 43)
    assert rig.told(2) == [("first", 901, ids(41)), ("complete", 901, ids(41, 42, 43))]
    (row,) = rig.end()[0]
    assert row["first_ns"] == row["done_ns"]


@pytest.mark.parametrize("payload", [b"", ids(1), b"123456789"])
def test_an_answer_too_short_or_torn_is_not_an_answer(rig: Rig, payload: bytes) -> None:
    replica = rig.join(0)
    rig.issue(1)
    query = replica.hear(data.Query)
    replica.say(data.Complete(EPOCH, query.seq, 1, 0, 0, 0), payload)
    again = replica.hear(data.Query)
    assert (again.seq, again.attempt_try) == (query.seq, 2)
    replica.complete(again, 5, 6)
    assert [what for what, _, _ in rig.told(2)] == ["first", "complete"]


def test_samples_beyond_the_cap_wait_here_and_go_out_in_order(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(cap=2)
    replica = rig.join(0)
    rig.issue(0, 1, 2, 3)
    queries = [replica.hear(data.Query), replica.hear(data.Query)]
    assert replica.hears_nothing(0.05)
    batch = rig.hear(up.Batch, lambda batch: batch.held == 2)
    assert batch.in_flight == 2
    assert np.frombuffer(batch.outstanding, "<i4").tolist() == [2, 0, 0]
    replica.complete(queries[1], 1, 2)
    queries.append(replica.hear(data.Query))
    replica.complete(queries[0], 1, 2)
    queries.append(replica.hear(data.Query))
    assert [query.seq for query in queries] == [0, 1, 2, 3]


# --- losing replicas ---------------------------------------------------------------------------------------


def test_a_first_that_was_reported_is_not_reported_again_by_the_next_try(rig: Rig) -> None:
    lost = rig.join(0)
    rig.issue(1)
    old = lost.hear(data.Query)
    lost.first(old, 50)
    rig.told(1)
    rig.tell(up.Drop(SLOTS[0], "a", "lease over"))
    assert lost.hear(data.Cancel) == data.Cancel(EPOCH, old.seq, 1)
    assert rig.hear(up.Redispatched) == up.Redispatched(SLOTS[0], "a", 1, "lease over")
    heir = rig.join(1, "b", nth=2)
    new = heir.hear(data.Query)
    assert (new.seq, new.attempt_try) == (old.seq, 2)
    lost.complete(old, 50, 51)  # the old try answers after all
    rig.hear(up.Batch, lambda batch: batch.stale == 1)
    heir.first(new, 60)
    heir.complete(new, 60, 61)
    assert rig.told(2) == [("first", 901, ids(50)), ("complete", 901, ids(60, 61))]
    rows, batch = rig.end()
    (row,) = rows
    assert (row["slot"], row["incarnation"], row["tries"]) == (1, 2, 2)
    assert row["first_ns"] < row["dispatched_ns"], "TTFT is that of the token that was reported"
    assert (batch.redispatched, batch.completed, batch.stale) == (1, 1, 1)


def test_a_new_incarnation_takes_over_the_slot_and_its_samples_in_order(rig: Rig) -> None:
    old = rig.join(0, "a")
    rig.issue(0, 1, 2)
    for _ in range(3):
        old.hear(data.Query)
    new = rig.join(0, "b", nth=2)
    assert [(q.seq, q.attempt_try) for q in (new.hear(data.Query) for _ in range(3))] == [(0, 2), (1, 2), (2, 2)]
    assert any(isinstance(m, up.Redispatched) and m.samples == 3 and "new incarnation" in m.reason for m in rig.heard)


def test_a_message_about_an_earlier_incarnation_changes_nothing(rig: Rig) -> None:
    replica = rig.join(0, "b", nth=2)
    for message in (up.Drop(SLOTS[0], "a", "late news"), up.Hold(SLOTS[0], "a"), up.Drop("node099/gpu9", "a", "nobody")):
        rig.tell(message)
    rig.issue(0)
    replica.hear(data.Query)


def test_a_broken_connection_is_noticed_by_the_next_query_and_everything_goes_elsewhere(rig: Rig) -> None:
    gone, stays = rig.join(0), rig.join(1)
    rig.issue(0, 1)
    gone.hear(data.Query)
    stays.hear(data.Query)
    rig.leaves(gone)
    rig.issue(2, 3, 4)
    assert sorted((q.seq, q.attempt_try) for q in (stays.hear(data.Query) for _ in range(4))) == [(0, 2), (2, 1), (3, 1), (4, 1)]
    assert rig.hear(up.Redispatched).reason == "its data connection is gone"


def test_a_replica_that_comes_back_on_a_new_connection_is_served_there(rig: Rig) -> None:
    before = rig.join(0)
    rig.issue(0)
    before.hear(data.Query)
    after = FakeReplica(rig, 0, "a")
    after.greet()
    assert after.hear(data.Query).attempt_try == 2
    assert rig.hear(up.Redispatched).reason == "the same replica came back on a new connection"


def test_a_failed_try_is_sent_again_and_the_last_one_ends_the_attempt(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(max_tries=2)
    replica = rig.join(0)
    rig.issue(3)
    for attempt_try in (1, 2):
        query = replica.hear(data.Query)
        assert query.attempt_try == attempt_try
        replica.say(data.Failed(EPOCH, query.seq, query.attempt_try, "out of KV cache"))
    assert rig.failure() == "sample 0 (QSL index 3) failed 2 tries; the last one: out of KV cache"


def test_a_replica_that_answers_nothing_past_the_deadline_is_reported_silent_and_gets_no_more(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(deadline_s=60)
    silent = rig.join(0)
    began = time.monotonic()
    rig.issue(0)
    query = silent.hear(data.Query)
    rig.passes(61)
    report = rig.hear(up.Silent)
    assert (report.slot, report.incarnation) == (SLOTS[0], "a")
    assert 61 <= report.waited_s <= 61 + time.monotonic() - began
    assert silent.hear(data.Cancel) == data.Cancel(EPOCH, query.seq, 1)
    rig.issue(1)
    assert silent.hears_nothing()
    heir = rig.join(1)
    assert {heir.hear(data.Query).seq, heir.hear(data.Query).seq} == {0, 1}


def test_a_slow_replica_that_still_answers_is_not_called_silent(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(deadline_s=60)
    replica = rig.join(0)
    rig.issue(0, 1)
    stuck, fine = replica.hear(data.Query), replica.hear(data.Query)
    replica.complete(fine, 1, 2)
    rig.told(2)
    rig.passes(61)
    assert replica.hear(data.Cancel).seq == stuck.seq
    again = replica.hear(data.Query)
    assert (again.seq, again.attempt_try) == (stuck.seq, 2)
    rig.hear(up.Batch, lambda batch: batch.redispatched == 1)
    assert not [message for message in rig.heard if isinstance(message, up.Silent)]


def test_without_any_ready_replica_the_attempt_ends_with_that_reason(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(grace_s=0.1)
    rig.join(0)
    time.sleep(0.25)
    assert rig.dispatcher.failure is None, "an idle fleet is no trouble"
    rig.tell(up.Drop(SLOTS[0], "a", "crashed"))
    rig.issue(0, 1)
    assert rig.failure() == "no READY replica for 0.1 s while 2 samples wait"
    assert rig.dispatcher.open_samples == 2


def test_a_replacement_within_the_grace_saves_the_attempt(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(grace_s=60)
    rig.issue(0)
    rig.hear(up.Batch, lambda batch: batch.held == 1)
    rig.passes(40)
    rig.settled()
    replica = rig.join(0)
    replica.hear(data.Query)
    rig.passes(40)
    rig.settled()
    assert rig.dispatcher.failure is None


# --- holding and ending ------------------------------------------------------------------------------------


def test_a_held_replica_finishes_what_it_has_is_reported_drained_once_and_can_return(rig: Rig) -> None:
    replica = rig.join(0)
    rig.issue(0)
    query = replica.hear(data.Query)
    rig.order(up.Hold(SLOTS[0], "a"))
    rig.issue(1)
    assert replica.hears_nothing()
    assert not [message for message in rig.heard if isinstance(message, up.Drained)]
    replica.complete(query, 1, 2)
    assert rig.hear(up.Drained) == up.Drained(SLOTS[0], "a")
    rig.hear(up.Batch)
    rig.hear(up.Batch)
    assert len([message for message in rig.heard if isinstance(message, up.Drained)]) == 1
    rig.tell(up.Admit(SLOTS[0], 0, "a", 1))
    assert replica.hear(data.Query).seq == 1
    rig.order(up.Hold(SLOTS[0], "a"))
    replica.complete(data.Query(EPOCH, 1, 1, SLOTS[0], 64, 4, 1), 1, 2)
    rig.hear(up.Drained)


def test_a_slot_held_before_it_joined_gets_nothing_issued_later(rig: Rig) -> None:
    rig.admit(0)
    rig.order(up.Hold(SLOTS[0], "a"))
    replica = FakeReplica(rig, 0, "a")
    replica.greet()
    rig.hear(up.InPool)
    rig.issue(0)
    assert replica.hears_nothing()


def test_quit_ends_with_the_heads_reason_and_flushes_the_rows(rig: Rig) -> None:
    replica = rig.join(0)
    rig.issue(0)
    replica.complete(replica.hear(data.Query), 1, 2)
    rig.told(2)
    rig.tell(up.Quit("superseded"))
    assert rig.failure() == "superseded"
    rows, batch = rig.end()
    assert len(rows) == batch.completed == 1


def test_the_first_reason_of_a_failure_counts(rig: Rig) -> None:
    rig.dispatcher.fail("the first")
    rig.dispatcher.fail("the second")
    assert rig.failure() == "the first"


def test_after_the_end_of_the_test_nothing_is_reported_any_more(rig: Rig) -> None:
    replica = rig.join(0)
    rig.issue(0)
    query = replica.hear(data.Query)
    rig.dispatcher.closing = True
    replica.first(query, 1)
    replica.complete(query, 1, 2)
    time.sleep(0.1)
    assert rig.sink.told == []
    assert rig.dispatcher.completed == 0


def test_rate_and_finish_are_passed_to_the_issuer(rig: Rig) -> None:
    rig.tell(up.SetRate(12.0))
    rig.tell(up.Finish(3.0))
    until(lambda: len(rig.commands) >= 2)
    assert rig.commands == [up.SetRate(12.0), up.Finish(3.0)]


def test_a_flood_over_three_replicas_completes_every_sample_exactly_once(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(cap=4)
    replicas = [rig.join(slot) for slot in range(3)]
    rig.dispatcher.issue([(number, number % 5, -1, time.monotonic_ns()) for number in range(600)])
    poller = zmq.Poller()
    for replica in replicas:
        poller.register(replica.socket, zmq.POLLIN)
    answered = 0
    while answered < 600:
        ready = dict(poller.poll(30_000))
        assert ready, f"stuck after {answered}"
        for replica in replicas:
            if replica.socket in ready:
                query = replica.hear(data.Query)
                replica.first(query, query.seq)
                replica.complete(query, query.seq, 2)
                answered += 1
    told = rig.told(1200)
    for what in ("first", "complete"):
        assert sorted(handle for kind, handle, _ in told if kind == what) == list(range(600))
    assert all(np.frombuffer(payload, "<i4")[0] == handle for _, handle, payload in told), "an answer went to another sample"
    rows, batch = rig.end()
    assert sorted(rows["seq"].tolist()) == list(range(600))
    assert (batch.issued, batch.completed, batch.held, batch.in_flight) == (600, 600, 0, 0)
    assert np.bincount(rows["slot"]).min() > 100


# --- what somebody looks at ------------------------------------------------------------------------------------------


def test_a_watched_slot_is_told_at_once_and_then_once_a_second(rig: Rig) -> None:
    replica = rig.join(0)
    rig.issue(0, 1, 2)
    for query in [replica.hear(data.Query) for _ in range(3)][:1]:
        replica.say(data.First(query.epoch, query.seq, query.attempt_try, 15, 16), ids(7))
    rig.told(1)
    rig.stands()
    rig.tell(up.Watch(SLOTS[0], 2))
    held = rig.hear(up.Held)
    assert (held.slot, held.incarnation, held.total) == (SLOTS[0], "a", 3)
    assert [(one.seq, one.n_prompt, one.tries, one.first) for one in held.samples] == [(0, 3, 1, True), (1, 4, 1, False)]
    assert 0 <= held.samples[1].age_s <= held.samples[0].age_s < 60
    rig.passes(0.2)
    rig.hear(up.Held)
    rig.passes(0.9)
    told = len(rig.heard)
    rig.settled()
    assert not any(isinstance(message, up.Held) for message in rig.heard[told:]), "once a second"
    rig.passes(0.2)
    assert rig.hear(up.Held).samples[0].age_s == pytest.approx(held.samples[0].age_s + 1.3)
    rig.tell(up.Watch(""))
    rig.tell(up.Watch(SLOTS[2]))
    assert rig.hear(up.Held).total == 0


def test_nobody_watching_nothing_is_told(rig: Rig) -> None:
    rig.join(0)
    rig.issue(0)
    for _ in range(12):
        rig.hear(up.Batch)
    assert not any(isinstance(message, up.Held) for message in rig.heard)
