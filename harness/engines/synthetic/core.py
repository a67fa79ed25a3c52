"""One replica in virtual time: continuous batching and chunked prefill, without a clock and without I/O.

Why event-driven: 512 replicas take 15,000 steps a second between them, and a Python loop cannot visit each. Between
two changes of the batch all decode steps differ only by their context, so a *run* of n of them has a closed form

    n*(c0 + cd*B + ck*ctx) + ck*B*n*(n-1)/2

and nothing per sequence needs touching: a sequence knows the global step number at which it finishes. A change
(arrival with a free slot, cancel, speed) cuts the run at the end of the step in progress. What is computed per
request is then a push and a pop on a heap and three or four plans, whatever the output length.

Rules: first come first served admission at step boundaries, limited by `max_seqs` and by KV tokens (prompt + output
reserved); prompts are computed in order under `token_budget - B`; the first token comes at the end of the step that
completes the prompt. A prefill request leaves there, without a token. A decode request brings no prompt to compute: after
its admission its KV cache travels over the link (KvLink), and at the next step boundary it joins the batch; its first token
comes at the end of that step. tests/unit/test_synthetic_core.py compares all of it with a naive loop over steps.
Jitter is one lognormal draw a run, its deviation divided by sqrt(n), as the sum of n steps would have it.

Callers pass times that never decrease; `submit`, `cancel` and the faults first bring the replica up to their time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from math import ceil, inf, sqrt
from random import Random

from harness.engines.synthetic.model import StepModel
from harness.engines.synthetic.sequence import (
    GONE,
    IN_DECODE,
    IN_LINE,
    IN_PREFILL,
    IN_TRANSFER,
    Counters,
    DoesNotFit,
    Done,
    Event,
    First,
    KvLink,
    Prefilled,
    Sequence,
    jitter_factors,
)
from harness.wire.data import DECODE, PREFILL, WHOLE

__all__ = ["Counters", "DoesNotFit", "Done", "Event", "First", "KvLink", "Prefilled", "ReplicaCore"]

# In place of a number of steps: nothing runs until the stall ends; nothing runs until a KV cache has arrived.
_PAUSED, _FETCHING = -1, -2


class ReplicaCore:
    """See the head of this file. A run is (`_start_s`, `_steps`, `_end_s`); `_steps` is 0 when the replica idles."""

    def __init__(self, model: StepModel, *, jitter: float = 0.0, seed: int = 0, link: KvLink | None = None) -> None:
        self.model = model
        self._link = link or KvLink()
        self.counters = Counters()
        self._c0_s, self._cd_s = model.c0_ms * 1e-3, model.cd_us * 1e-6
        self._ck_s, self._cp_s = model.ck_ns * 1e-9, model.cp_us * 1e-6
        self._factors = jitter_factors(jitter)
        place = Random(seed)
        self._factor_at, self._factor_stride = place.randrange(1024), place.randrange(1, 1024, 2)
        self._slowdown = 1.0
        self._stalled_until_s = -inf
        self._by_key: dict[Hashable, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._prefilling: deque[Sequence] = deque()
        self._fetching: deque[Sequence] = deque()  # in the order in which their KV caches arrive
        self._joined: list[Sequence] = []  # whose first token the planned step gives
        self._finishing: list[tuple[int, int, Sequence]] = []  # heap by finish step; cancelled ones fall out lazily
        self._serial = 0
        self._drops: list[Sequence] = []
        self._decoding = 0
        self._occupied = 0
        self._kv_reserved = 0
        self._context = 0  # tokens held by the decoding sequences at _start_s
        self._step = 0  # number of the step that begins at _start_s
        self._start_s = self._end_s = -inf
        self._steps = 0
        self._factor = 1.0
        self._chunks: list[tuple[Sequence, int]] = []
        self._prompt_tokens = 0
        self._events: list[Event] = []

    # -- what a caller does ------------------------------------------------------------------------------------------

    def submit(self, now_s: float, key: Hashable, n_prompt: int, n_out: int, stage: int = WHOLE) -> None:
        """Queue a request. Raises DoesNotFit when it could never be admitted, KeyError when the key is in use."""
        sequence = Sequence(key, max(n_prompt, 1), max(n_out, 1), stage, now_s)
        if sequence.kv_tokens > self.model.kv_tokens:
            output = "" if stage == PREFILL else f" and output of {n_out}"
            raise DoesNotFit(
                f"prompt of {n_prompt}{output} tokens need more KV cache than the replica has ({self.model.kv_tokens} tokens)"
            )
        if key in self._by_key:
            raise KeyError(key)
        self._run_until(now_s)
        self._by_key[key] = sequence
        self._waiting.append(sequence)
        # Behind others that wait, it changes nothing: either they are blocked, or the run is already cut for them.
        first_in_line = len(self._waiting) == 1 and self._fits(sequence)
        if not self._steps or now_s <= self._start_s or (self._steps not in (1, _PAUSED) and first_in_line):
            self._change(now_s)

    def cancel(self, now_s: float, key: Hashable) -> bool:
        """Forget a request: no event of it after this. Its slot is free from the next step boundary."""
        self._run_until(now_s)
        sequence = self._by_key.pop(key, None)
        if sequence is None:
            return False
        sequence.cancelled = True
        if sequence.place == IN_LINE:
            self._waiting.remove(sequence)
            sequence.place = GONE
        else:
            self._drops.append(sequence)
        self._events = [event for event in self._events if event.key != key]
        self._change(now_s)
        return True

    def set_slowdown(self, now_s: float, factor: float) -> None:
        """Step times are `factor` times the model's from the next step boundary."""
        self._run_until(now_s)
        self._slowdown = factor
        self._change(now_s)

    def stall(self, now_s: float, until_s: float) -> None:
        """The step in progress ends; the next one begins at `until_s` at the earliest."""
        self._run_until(now_s)
        self._stalled_until_s = max(self._stalled_until_s, until_s)
        self._change(now_s)

    def next_event_s(self) -> float | None:
        """When something changes next if nobody acts; None: never."""
        return self._end_s if self._steps and self._end_s < inf else None

    def advance(self, now_s: float) -> list[Event]:
        self._run_until(now_s)
        events = self._events
        if events:
            self._events = []
        return events

    def settle(self, now_s: float) -> None:
        """Count the steps that are complete at `now_s`, so that `counters` are right in the middle of a long run."""
        self._run_until(now_s)
        if self._steps < 2 or now_s <= self._start_s:
            return
        done = self._step_in_progress(now_s)
        if self._steps_s(done) > now_s - self._start_s:
            done -= 1
        if 0 < done < self._steps:
            self._count(done, self._steps_s(done))
            self._steps -= done

    @property
    def running(self) -> int:
        return self._occupied

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_use(self) -> float:
        return self._kv_reserved / self.model.kv_tokens

    # -- runs of steps -----------------------------------------------------------------------------------------------

    def _fits(self, sequence: Sequence) -> bool:
        model = self.model
        return self._occupied < model.max_seqs and self._kv_reserved + sequence.kv_tokens <= model.kv_tokens

    def _run_until(self, now_s: float) -> None:
        while self._steps and self._end_s <= now_s:
            self._finish_run()
            self._plan()

    def _steps_s(self, steps: int) -> float:
        """Duration of the first `steps` decode steps of the planned run."""
        one_s = self._c0_s + self._cd_s * self._decoding + self._ck_s * self._context
        return (steps * one_s + self._ck_s * self._decoding * (steps * (steps - 1) / 2)) * self._factor

    def _step_in_progress(self, now_s: float) -> int:
        """Smallest m with `_steps_s(m) >= now_s - _start_s`: the steps that run until the one in progress has ended."""
        elapsed_s = now_s - self._start_s
        growth_s = self._ck_s * self._decoding * self._factor
        linear_s = (self._c0_s + self._cd_s * self._decoding + self._ck_s * self._context) * self._factor - growth_s / 2
        real = 2 * elapsed_s / (linear_s + sqrt(linear_s * linear_s + 2 * growth_s * elapsed_s))
        steps = min(max(ceil(real - 1e-9), 1), self._steps)
        while steps < self._steps and self._steps_s(steps) < elapsed_s:
            steps += 1
        return steps

    def _change(self, now_s: float) -> None:
        """Something differs from the plan: cut the run at the end of the step in progress, or plan anew if none has begun."""
        if self._steps == _PAUSED:
            self._start_s = self._end_s = self._stalled_until_s
            return
        if self._steps == _FETCHING:  # no step is in progress: plan anew from here
            self._steps = 0
        if self._steps and now_s > self._start_s:
            self._cut(now_s)
            return
        if not self._steps:
            self._start_s = now_s
        self._apply_drops()
        self._end_s = self._start_s
        self._plan()

    def _cut(self, now_s: float) -> None:
        """End a run of several steps with the one that is in progress at `now_s`."""
        if self._steps > 1:
            self._steps = self._step_in_progress(now_s)
            self._end_s = self._start_s + self._steps_s(self._steps)

    def _admit(self, start_s: float) -> None:
        """First come, first served, at a step boundary; then those whose KV cache is here join the batch."""
        waiting, fetching = self._waiting, self._fetching
        while waiting and self._fits(waiting[0]):
            sequence = waiting.popleft()
            sequence.admitted_s = start_s
            self._occupied += 1
            self._kv_reserved += sequence.kv_tokens
            if sequence.stage == DECODE:
                sequence.place = IN_TRANSFER
                sequence.here_s = self._link.book(start_s, sequence.n_prompt)
                fetching.append(sequence)
            else:
                sequence.place = IN_PREFILL
                self._prefilling.append(sequence)
        while fetching and fetching[0].here_s <= start_s:
            sequence = fetching.popleft()
            self._joined.append(sequence)
            self._decode(sequence, sequence.n_prompt, sequence.n_out)

    def _decode(self, sequence: Sequence, context: int, left: int) -> None:
        """It takes part in every step from here on, until it has given `left` tokens."""
        sequence.place = IN_DECODE
        sequence.finish_step = self._step + left
        self._serial += 1
        heappush(self._finishing, (sequence.finish_step, self._serial, sequence))
        self._decoding += 1
        self._context += context

    def _plan(self) -> None:
        """Admit at the boundary `_end_s`, then lay down a run: one step with prompts or newcomers, or decode steps up to the
        next finish or the arrival of a KV cache."""
        waiting, prefilling, finishing = self._waiting, self._prefilling, self._finishing
        self._start_s = start_s = self._end_s
        self._chunks = []
        self._prompt_tokens = 0
        if start_s < self._stalled_until_s and (waiting or self._occupied):
            self._steps = _PAUSED
            self._start_s = self._end_s = self._stalled_until_s
            return
        if self._joined:  # planned before at this very boundary
            self._joined = [sequence for sequence in self._joined if sequence.place == IN_DECODE]
        self._admit(start_s)
        batch = self._decoding
        duration_s = self._c0_s + self._cd_s * batch + self._ck_s * self._context
        if prefilling:
            self._steps = 1
            left = self.model.token_budget - batch
            for sequence in prefilling:
                take = min(sequence.prompt_left, left)
                self._chunks.append((sequence, take))
                left -= take
                self._prompt_tokens += take
                if left == 0:
                    break
            duration_s += self._cp_s * self._prompt_tokens
        elif batch:
            while finishing[0][2].place == GONE:
                heappop(finishing)
            self._steps = steps = 1 if self._joined else finishing[0][0] - self._step
            duration_s = steps * duration_s + self._ck_s * batch * (steps * (steps - 1) / 2)
        elif self._fetching:
            self._steps, self._end_s = _FETCHING, self._fetching[0].here_s
            return
        else:
            self._steps = 0
            return
        factor = self._factors[self._factor_at & (len(self._factors) - 1)]
        self._factor_at += self._factor_stride
        self._factor = self._slowdown * (1.0 + (factor - 1.0) / sqrt(self._steps))
        self._end_s = start_s + duration_s * self._factor
        if self._fetching and self._fetching[0].here_s < self._end_s:
            self._cut(self._fetching[0].here_s)

    def _count(self, steps: int, duration_s: float) -> None:
        """`steps` of the run are over: move its start behind them."""
        tokens = steps * self._decoding
        counters = self.counters
        counters.steps += steps
        counters.step_time_s += duration_s
        counters.batch_sum += tokens
        counters.tokens_out += tokens
        self._context += tokens
        self._step += steps
        self._start_s += duration_s

    def _finish_run(self) -> None:
        if self._steps < 0:
            self._apply_drops()
            return
        now_s = self._end_s
        self._count(self._steps, now_s - self._start_s)
        for sequence in self._joined:
            sequence.first_s = now_s
            if not sequence.cancelled:
                self._events.append(First(sequence.key, now_s, sequence.queue_s, sequence.here_s - sequence.admitted_s))
        self._joined = []
        finishing, step = self._finishing, self._step
        while finishing and finishing[0][0] <= step:
            sequence = heappop(finishing)[2]
            if sequence.place == IN_DECODE:
                self._decoding -= 1
                self._context -= sequence.n_prompt + sequence.n_out
                self._leave(sequence, now_s)
        if self._chunks:
            self._finish_prompts(now_s)
        if self._drops:
            self._apply_drops()

    def _finish_prompts(self, now_s: float) -> None:
        counters = self.counters
        counters.prefill_tokens += self._prompt_tokens
        for sequence, take in self._chunks:
            sequence.prompt_left -= take
            if sequence.prompt_left:
                continue
            self._prefilling.popleft()  # prompts are computed in order, so it is the oldest
            if sequence.stage == PREFILL:
                self._leave(sequence, now_s)
                continue
            counters.tokens_out += 1
            sequence.first_s = sequence.here_s = now_s
            if not sequence.cancelled:
                self._events.append(First(sequence.key, now_s, sequence.queue_s, now_s - sequence.admitted_s))
            if sequence.n_out == 1:
                self._leave(sequence, now_s)
            else:
                self._decode(sequence, sequence.n_prompt + 1, sequence.n_out - 1)

    def _leave(self, sequence: Sequence, now_s: float) -> None:
        sequence.place = GONE
        self._occupied -= 1
        self._kv_reserved -= sequence.kv_tokens
        if sequence.cancelled:
            return
        del self._by_key[sequence.key]
        queue_s, here_s = sequence.queue_s, sequence.here_s - sequence.admitted_s
        if sequence.stage == PREFILL:
            self._events.append(Prefilled(sequence.key, now_s, queue_s, now_s - sequence.admitted_s))
        else:
            self._events.append(Done(sequence.key, now_s, queue_s, here_s, now_s - sequence.first_s))

    def _apply_drops(self) -> None:
        """Cancelled sequences give back slot and KV, at a boundary and never inside a run."""
        for sequence in self._drops:
            if sequence.place == GONE:
                continue
            if sequence.place == IN_PREFILL:
                self._prefilling.remove(sequence)
            elif sequence.place == IN_TRANSFER:
                self._fetching.remove(sequence)
            else:
                self._decoding -= 1
                tokens_given = sequence.n_out - (sequence.finish_step - self._step)
                self._context -= sequence.n_prompt + tokens_given
            self._leave(sequence, self._start_s)
        self._drops.clear()
