"""The event-driven replica against a naive loop over steps, and its rules one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engines.synthetic.core import DoesNotFit, Done, Event, First, KvLink, Prefilled, ReplicaCore
from harness.engines.synthetic.model import StepModel
from harness.wire.data import DECODE, PREFILL, WHOLE

SMALL = StepModel(c0_ms=10, cd_us=900, ck_ns=70_000, cp_us=130, max_seqs=4, token_budget=32, kv_tokens=300)
LATENCY_S, PER_TOKEN_S = 0.007, 0.0011


@dataclass
class NaiveSequence:
    key: int
    n_prompt: int
    n_out: int
    arrival_s: float
    cancel_s: float
    stage: int = WHOLE
    here_s: float = 0.0
    admitted_s: float = 0.0
    first_s: float = 0.0
    computed: int = 0
    given: int = 0

    @property
    def kv(self) -> int:
        return self.n_prompt + (0 if self.stage == PREFILL else self.n_out)


@dataclass
class Naive:
    """One Python iteration a step; everything recounted from the sequences each time."""

    model: StepModel
    events: dict[int, list[Event]] = field(default_factory=dict)
    link_free_s: float = 0.0
    steps: int = 0
    batch_sum: int = 0
    tokens_out: int = 0

    def run(self, sequences: list[NaiveSequence], slowdowns: list[tuple[float, float]]) -> None:
        todo = sorted(sequences, key=lambda one: (one.arrival_s, one.key))
        held: list[NaiveSequence] = []
        now_s = 0.0
        while todo or held:
            held = [one for one in held if one.cancel_s > now_s]
            todo = [one for one in todo if one.cancel_s > now_s]
            while todo and todo[0].arrival_s <= now_s and self._fits(held, todo[0]):
                one = todo.pop(0)
                one.admitted_s = one.here_s = now_s
                if one.stage == DECODE:
                    self.link_free_s = max(self.link_free_s, now_s) + one.n_prompt * PER_TOKEN_S
                    one.here_s = self.link_free_s + LATENCY_S
                held.append(one)
            here = [one for one in held if one.here_s <= now_s]
            if not here:
                changes = [one.arrival_s for one in todo] + [at_s for one in held for at_s in (one.here_s, one.cancel_s)]
                now_s = min((at_s for at_s in changes if at_s > now_s), default=inf)
                if now_s == inf:
                    return
                continue
            now_s = self._step(here, now_s, slowdowns)
            held = [one for one in held if one.given < one.n_out]

    def _fits(self, held: list[NaiveSequence], one: NaiveSequence) -> bool:
        return len(held) < self.model.max_seqs and sum(other.kv for other in (*held, one)) <= self.model.kv_tokens

    def _step(self, held: list[NaiveSequence], now_s: float, slowdowns: list[tuple[float, float]]) -> float:
        decoding = [one for one in held if one.given or one.stage == DECODE]
        left = self.model.token_budget - len(decoding)
        budget = left
        finished_prompts = []
        for one in held:
            if one not in decoding and left:
                take = min(left, one.n_prompt - one.computed)
                one.computed += take
                left -= take
                if one.computed == one.n_prompt:
                    finished_prompts.append(one)
        context = sum(one.n_prompt + one.given for one in decoding)
        factor = next((factor for at_s, factor in reversed(slowdowns) if at_s <= now_s), 1.0)
        end_s = now_s + self.model.step_s(len(decoding), context, budget - left) * factor
        self.steps += 1
        self.batch_sum += len(decoding)
        self.tokens_out += len(decoding) + sum(one.stage == WHOLE for one in finished_prompts)
        for one in finished_prompts:
            one.here_s = end_s
        for one in decoding + finished_prompts:
            one.given += 1
            silent, queue_s, prefill_s = one.cancel_s <= end_s, one.admitted_s - one.arrival_s, one.here_s - one.admitted_s
            if one.stage == PREFILL:
                one.given = one.n_out
                if not silent:
                    self._emit(Prefilled(one.key, end_s, queue_s, prefill_s))
                continue
            if one.given == 1:
                one.first_s = end_s
            if one.given == 1 and not silent:
                self._emit(First(one.key, end_s, queue_s, prefill_s))
            if one.given == one.n_out and not silent:
                self._emit(Done(one.key, end_s, queue_s, prefill_s, end_s - one.first_s))
        return end_s

    def _emit(self, event: Event) -> None:
        assert isinstance(event.key, int)
        self.events.setdefault(event.key, []).append(event)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[NaiveSequence], list[tuple[float, float]]]:
    stages = draw(st.sampled_from([(WHOLE,), (PREFILL,), (DECODE,), (WHOLE, PREFILL, DECODE)]))
    gaps = draw(st.lists(st.floats(0.0003, 0.4), min_size=1, max_size=14))
    sequences = []
    at_s = 0.0
    for key, gap in enumerate(gaps):
        at_s += gap
        lives_s = draw(st.one_of(st.just(inf), st.floats(0.0007, 1.5)))
        prompt, out = draw(st.integers(1, 90)), draw(st.integers(1, 60))
        stage = draw(st.sampled_from(stages))
        sequences.append(NaiveSequence(key, prompt, out, at_s, at_s + lives_s, stage))
    times = sorted(draw(st.lists(st.floats(0.0011, 3.0), max_size=3, unique=True)))
    return sequences, [(time_s, draw(st.sampled_from([0.5, 1.3, 2.0]))) for time_s in times]


@settings(max_examples=500, deadline=None, derandomize=True)
@given(workloads(), st.floats(0.01, 0.3))
def test_closed_form_equals_a_loop_over_steps(
    workload: tuple[list[NaiveSequence], list[tuple[float, float]]], poll_s: float
) -> None:
    sequences, slowdowns = workload
    core = ReplicaCore(SMALL, link=KvLink(LATENCY_S, PER_TOKEN_S))
    acts: list[tuple[float, int, object]] = []
    for one in sequences:
        acts.append((one.arrival_s, 0, one))
        if one.cancel_s < inf:
            acts.append((one.cancel_s, 1, one.key))
    acts += [(at_s, 2, factor) for at_s, factor in slowdowns]
    acts += [(poll_s * i, 3, None) for i in range(1, 20)]  # settling for statistics must not disturb anything
    seen: dict[int, list[Event]] = {}

    def collect(now_s: float) -> None:
        for event in core.advance(now_s):
            assert isinstance(event.key, int)
            seen.setdefault(event.key, []).append(event)

    for at_s, what, value in sorted(acts, key=lambda act: act[:2]):
        if isinstance(value, NaiveSequence):
            core.submit(at_s, value.key, value.n_prompt, value.n_out, value.stage)
        elif what == 1:
            collect(at_s)
            core.cancel(at_s, value)
        elif what == 2:
            core.set_slowdown(at_s, value)  # type: ignore[arg-type]
        else:
            core.settle(at_s)
    collect(1e9)

    naive = Naive(SMALL)
    naive.run(sequences, slowdowns)
    assert seen.keys() == naive.events.keys()
    for key, events in naive.events.items():
        assert [type(event) for event in seen[key]] == [type(event) for event in events]
        for ours, theirs in zip(seen[key], events, strict=True):
            assert ours[1:] == pytest.approx(theirs[1:], abs=1e-7)
    counters = core.counters
    assert (counters.steps, counters.batch_sum, counters.tokens_out) == (naive.steps, naive.batch_sum, naive.tokens_out)
    assert (core.running, core.waiting, core.kv_use, core.next_event_s()) == (0, 0, 0.0, None)


def test_a_lone_request_takes_prefill_and_then_one_step_a_token() -> None:
    core = ReplicaCore(SMALL)
    core.submit(1.0, "a", 20, 5)
    first, done = core.advance(10.0)
    prefill_s = SMALL.step_s(0, 0, 20)
    decode_s = sum(SMALL.step_s(1, context) for context in range(21, 25))
    assert isinstance(first, First)
    assert isinstance(done, Done)
    assert first[1:] == pytest.approx((1.0 + prefill_s, 0.0, prefill_s))
    assert done[1:] == pytest.approx((1.0 + prefill_s + decode_s, 0.0, prefill_s, decode_s))
    assert core.counters.prefill_tokens == 20


def test_a_long_prompt_is_computed_in_chunks_of_the_token_budget() -> None:
    core = ReplicaCore(SMALL)
    core.submit(0.0, "long", 80, 2)
    (first,) = [event for event in core.advance(10.0) if isinstance(event, First)]
    assert first.t_s == pytest.approx(SMALL.step_s(0, 0, 32) * 2 + SMALL.step_s(0, 0, 16))


def test_kv_capacity_makes_the_next_in_line_wait_for_a_finish() -> None:
    core = ReplicaCore(SMALL)
    core.submit(0.0, "big", 20, 200)  # reserves 220 of 300
    core.submit(0.1, "next", 20, 80)
    core.submit(0.2, "small", 5, 5)  # would fit, but first come is first served
    core.advance(0.3)
    assert (core.running, core.waiting) == (1, 2)
    assert core.kv_use == pytest.approx(220 / 300)
    done = {event.key: event for event in core.advance(100.0) if isinstance(event, Done)}
    assert done["next"].queue_s == pytest.approx(done["big"].t_s - 0.1)
    assert done["small"].queue_s == pytest.approx(done["big"].t_s - 0.2)


def test_a_request_that_can_never_fit_is_refused_at_once() -> None:
    with pytest.raises(DoesNotFit, match="300 tokens"):
        ReplicaCore(SMALL).submit(0.0, "a", 250, 51)


def test_a_stall_holds_every_token_back_and_arrivals_wait() -> None:
    core = ReplicaCore(SMALL)
    core.submit(0.0, "a", 10, 50)
    core.advance(0.5)
    core.settle(0.5)
    core.stall(0.5, 5.0)
    given = core.counters.tokens_out
    core.submit(2.0, "b", 10, 5)
    assert core.advance(4.9) == []
    assert core.counters.tokens_out <= given + 1  # of the step in progress
    assert (core.running, core.waiting) == (1, 1)
    done = {event.key: event for event in core.advance(20.0) if isinstance(event, Done)}
    assert done["b"].queue_s == pytest.approx(3.0)
    assert done["a"].t_s > 5.0


def test_an_endless_stall_has_no_next_event() -> None:
    core = ReplicaCore(SMALL)
    core.stall(0.0, inf)
    core.submit(1.0, "a", 10, 5)
    assert core.next_event_s() is None
    assert core.advance(1e6) == []
    assert core.cancel(1e6, "a")
    assert core.waiting == 0


def test_a_cancelled_request_frees_its_slot_at_the_end_of_the_step() -> None:
    model = StepModel(c0_ms=10, cd_us=0, ck_ns=0, cp_us=0, max_seqs=1, token_budget=32, kv_tokens=1000)
    core = ReplicaCore(model)
    core.submit(0.0, "a", 10, 400)
    core.submit(0.001, "b", 10, 3)
    core.cancel(0.505, "a")
    events = core.advance(10.0)
    assert [event.key for event in events] == ["b", "b"]
    assert events[0].queue_s == pytest.approx(0.509)


def test_jitter_keeps_the_mean_step_time_and_differs_between_replicas() -> None:
    means = []
    for seed in range(4):
        core = ReplicaCore(SMALL, jitter=0.05, seed=seed)
        for i in range(400):
            core.submit(i * 10.0, i, 10, 20)
        core.advance(1e9)
        means.append(core.counters.step_time_s / core.counters.steps)
    plain = ReplicaCore(SMALL)
    plain.submit(0.0, "a", 10, 20)
    plain.advance(1e9)
    assert means == pytest.approx([plain.counters.step_time_s / plain.counters.steps] * 4, rel=0.01)
    assert len(set(means)) == 4


# --- prefill and decode by different replicas ----------------------------------------------------------------------------


def test_a_prefill_request_leaves_with_its_prompt_and_reserves_no_kv_for_an_output() -> None:
    core = ReplicaCore(SMALL)
    core.submit(1.0, "a", 290, 5000, PREFILL)
    core.submit(1.0, "b", 20, 5000, PREFILL)
    core.advance(1.001)
    assert (core.running, core.waiting) == (1, 1)
    assert core.kv_use == pytest.approx(290 / 300)
    events = core.advance(10.0)
    assert [(type(event), event.key) for event in events] == [(Prefilled, "a"), (Prefilled, "b")]
    assert events[1].t_s == pytest.approx(events[0].t_s + SMALL.step_s(0, 0, 20))
    assert (core.counters.tokens_out, core.counters.prefill_tokens) == (0, 310)
    assert (core.running, core.kv_use, core.next_event_s()) == (0, 0.0, None)


def test_a_decode_request_waits_for_its_kv_cache_and_gives_its_first_token_after_one_step() -> None:
    core = ReplicaCore(SMALL, link=KvLink(0.5, 0.01))
    core.submit(1.0, "a", 20, 5, DECODE)
    first, done = core.advance(10.0)
    assert isinstance(first, First)
    assert isinstance(done, Done)
    steps_s = [SMALL.step_s(1, context) for context in range(20, 25)]
    assert first[1:] == pytest.approx((1.7 + steps_s[0], 0.0, 0.7))
    assert done[1:] == pytest.approx((1.7 + sum(steps_s), 0.0, 0.7, sum(steps_s[1:])))
    assert (core.counters.tokens_out, core.counters.prefill_tokens, core.counters.steps) == (5, 0, 5)


def test_transfers_share_the_link_one_after_the_other_while_others_decode() -> None:
    core = ReplicaCore(SMALL, link=KvLink(0.0, 0.01))
    core.submit(0.0, "busy", 10, 200, DECODE)  # there after 0.1 s
    core.submit(0.2, "a", 20, 5, DECODE)
    core.submit(0.2, "b", 30, 5, DECODE)
    core.advance(0.25)
    assert core.running == 3
    first = {event.key: event for event in core.advance(10.0) if isinstance(event, First)}
    assert first["a"].prefill_s == pytest.approx(0.2)
    assert first["b"].prefill_s == pytest.approx(0.2 + 0.3)


def test_a_stall_during_a_transfer_holds_the_first_token_back_and_not_the_transfer() -> None:
    core = ReplicaCore(SMALL, link=KvLink(1.0, 0.0))
    core.submit(0.0, "a", 10, 3, DECODE)
    core.stall(0.5, 4.0)
    first = core.advance(10.0)[0]
    assert isinstance(first, First)
    assert first.prefill_s == pytest.approx(1.0)
    assert first.t_s == pytest.approx(4.0 + SMALL.step_s(1, 10))
