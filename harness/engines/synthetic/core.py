"""One replica in virtual time: continuous batching and chunked prefill, without a clock and without I/O.

Why event-driven: 512 replicas take 15,000 steps a second between them, and a Python loop cannot visit each. Between
two changes of the batch all decode steps differ only by their context, so a *run* of n of them has a closed form

    n*(c0 + cd*B + ck*ctx) + ck*B*n*(n-1)/2

and nothing per sequence needs touching: a sequence knows the global step number at which it finishes. A change
(arrival with a free slot, cancel, speed) cuts the run at the end of the step in progress. What is computed per
request is then a push and a pop on a heap and three or four plans, whatever the output length.

Rules: first come first served admission at step boundaries, limited by `max_seqs` and by KV tokens (prompt + output
reserved); prompts are computed in order under `token_budget - B`; the first token comes at the end of the step that
completes the prompt. tests/unit/test_synthetic_core.py compares all of it with a naive loop over steps.
Jitter is one lognormal draw a run, its deviation divided by sqrt(n), as the sum of n steps would have it.

Callers pass times that never decrease; `submit`, `cancel` and the faults first bring the replica up to their time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from math import ceil, exp, inf, sqrt
from random import Random
from statistics import NormalDist
from typing import NamedTuple

from harness.engines.synthetic.model import StepModel


class First(NamedTuple):
    key: Hashable
    t_s: float
    queue_s: float
    prefill_s: float


class Done(NamedTuple):
    key: Hashable
    t_s: float
    queue_s: float
    prefill_s: float
    decode_s: float


Event = First | Done


class DoesNotFit(ValueError):
    """The request needs more KV tokens than the replica has; it could never be admitted."""


@dataclass(slots=True)
class Counters:
    """Totals since the replica began; `batch_sum` adds the decoding sequences of every step."""

    steps: int = 0
    step_time_s: float = 0.0
    batch_sum: int = 0
    prefill_tokens: int = 0
    tokens_out: int = 0


_WAITING, _PREFILL, _DECODE, _GONE = range(4)
_PAUSED = -1  # in place of a number of steps: nothing runs until the stall ends


class _Sequence:
    __slots__ = (
        "admitted_s",
        "cancelled",
        "finish_step",
        "first_s",
        "key",
        "n_out",
        "n_prompt",
        "prompt_left",
        "stage",
        "submitted_s",
    )

    def __init__(self, key: Hashable, n_prompt: int, n_out: int, submitted_s: float) -> None:
        self.key = key
        self.n_prompt = n_prompt
        self.n_out = n_out
        self.submitted_s = submitted_s
        self.admitted_s = submitted_s
        self.first_s = submitted_s
        self.prompt_left = n_prompt
        self.finish_step = 0
        self.stage = _WAITING
        self.cancelled = False


@lru_cache(maxsize=16)
def _jitter_factors(sigma: float) -> tuple[float, ...]:
    """1,024 quantiles of a lognormal of mean 1 in a fixed random order; replicas walk them from different places."""
    if sigma == 0:
        return (1.0,)
    normal = NormalDist()
    factors = [exp(sigma * normal.inv_cdf((i + 0.5) / 1024) - sigma * sigma / 2) for i in range(1024)]
    Random(20).shuffle(factors)
    return tuple(factors)


class ReplicaCore:
    """See the head of this file. A run is (`_start_s`, `_steps`, `_end_s`); `_steps` is 0 when the replica idles."""

    def __init__(self, model: StepModel, *, jitter: float = 0.0, seed: int = 0) -> None:
        self.model = model
        self.counters = Counters()
        self._c0_s, self._cd_s = model.c0_ms * 1e-3, model.cd_us * 1e-6
        self._ck_s, self._cp_s = model.ck_ns * 1e-9, model.cp_us * 1e-6
        self._factors = _jitter_factors(jitter)
        place = Random(seed)
        self._factor_at, self._factor_stride = place.randrange(1024), place.randrange(1, 1024, 2)
        self._slowdown = 1.0
        self._stalled_until_s = -inf
        self._by_key: dict[Hashable, _Sequence] = {}
        self._waiting: deque[_Sequence] = deque()
        self._prefilling: deque[_Sequence] = deque()
        self._finishing: list[tuple[int, int, _Sequence]] = []  # heap by finish step; cancelled ones fall out lazily
        self._serial = 0
        self._drops: list[_Sequence] = []
        self._decoding = 0
        self._occupied = 0
        self._kv_reserved = 0
        self._context = 0  # tokens held by the decoding sequences at _start_s
        self._step = 0  # number of the step that begins at _start_s
        self._start_s = self._end_s = -inf
        self._steps = 0
        self._factor = 1.0
        self._chunks: list[tuple[_Sequence, int]] = []
        self._prompt_tokens = 0
        self._events: list[Event] = []

    # -- what a caller does ------------------------------------------------------------------------------------------

    def submit(self, now_s: float, key: Hashable, n_prompt: int, n_out: int) -> None:
        """Queue a request. Raises DoesNotFit when it could never be admitted, KeyError when the key is in use."""
        if n_prompt + n_out > self.model.kv_tokens:
            raise DoesNotFit(
                f"prompt of {n_prompt} and output of {n_out} tokens need more KV cache than the replica has "
                f"({self.model.kv_tokens} tokens)"
            )
        if key in self._by_key:
            raise KeyError(key)
        self._run_until(now_s)
        sequence = _Sequence(key, max(n_prompt, 1), max(n_out, 1), now_s)
        self._by_key[key] = sequence
        self._waiting.append(sequence)
        # Behind others that wait, it changes nothing: either they are blocked, or the run is already cut for them.
        if not self._steps or now_s <= self._start_s or (self._steps > 1 and len(self._waiting) == 1 and self._fits(sequence)):
            self._change(now_s)

    def cancel(self, now_s: float, key: Hashable) -> bool:
        """Forget a request: no event of it after this. Its slot is free from the next step boundary."""
        self._run_until(now_s)
        sequence = self._by_key.pop(key, None)
        if sequence is None:
            return False
        sequence.cancelled = True
        if sequence.stage == _WAITING:
            self._waiting.remove(sequence)
            sequence.stage = _GONE
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

    def _fits(self, sequence: _Sequence) -> bool:
        model = self.model
        return self._occupied < model.max_seqs and self._kv_reserved + sequence.n_prompt + sequence.n_out <= model.kv_tokens

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
        if self._steps and now_s > self._start_s:
            if self._steps > 1:
                self._steps = self._step_in_progress(now_s)
                self._end_s = self._start_s + self._steps_s(self._steps)
            return
        if not self._steps:
            self._start_s = now_s
        self._apply_drops()
        self._end_s = self._start_s
        self._plan()

    def _plan(self) -> None:
        """Admit at the boundary `_end_s`, then lay down a run: one step with prompts, or decode steps up to the next finish."""
        waiting, prefilling, finishing = self._waiting, self._prefilling, self._finishing
        self._start_s = start_s = self._end_s
        self._chunks = []
        self._prompt_tokens = 0
        if start_s < self._stalled_until_s and (waiting or self._occupied):
            self._steps = _PAUSED
            self._start_s = self._end_s = self._stalled_until_s
            return
        while waiting and self._fits(waiting[0]):
            sequence = waiting.popleft()
            sequence.stage = _PREFILL
            sequence.admitted_s = start_s
            self._occupied += 1
            self._kv_reserved += sequence.n_prompt + sequence.n_out
            prefilling.append(sequence)
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
            while finishing[0][2].stage == _GONE:
                heappop(finishing)
            self._steps = steps = finishing[0][0] - self._step
            duration_s = steps * duration_s + self._ck_s * batch * (steps * (steps - 1) / 2)
        else:
            self._steps = 0
            return
        factor = self._factors[self._factor_at & (len(self._factors) - 1)]
        self._factor_at += self._factor_stride
        self._factor = self._slowdown * (1.0 + (factor - 1.0) / sqrt(self._steps))
        self._end_s = start_s + duration_s * self._factor

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
        if self._steps == _PAUSED:
            self._apply_drops()
            return
        now_s = self._end_s
        self._count(self._steps, now_s - self._start_s)
        finishing, step = self._finishing, self._step
        while finishing and finishing[0][0] <= step:
            sequence = heappop(finishing)[2]
            if sequence.stage == _DECODE:
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
            counters.tokens_out += 1
            sequence.first_s = now_s
            if not sequence.cancelled:
                queue_s = sequence.admitted_s - sequence.submitted_s
                self._events.append(First(sequence.key, now_s, queue_s, now_s - sequence.admitted_s))
            if sequence.n_out == 1:
                self._leave(sequence, now_s)
                continue
            sequence.stage = _DECODE
            sequence.finish_step = self._step + sequence.n_out - 1
            self._serial += 1
            heappush(self._finishing, (sequence.finish_step, self._serial, sequence))
            self._decoding += 1
            self._context += sequence.n_prompt + 1

    def _leave(self, sequence: _Sequence, now_s: float) -> None:
        sequence.stage = _GONE
        self._occupied -= 1
        self._kv_reserved -= sequence.n_prompt + sequence.n_out
        if sequence.cancelled:
            return
        del self._by_key[sequence.key]
        queue_s = sequence.admitted_s - sequence.submitted_s
        prefill_s = sequence.first_s - sequence.admitted_s
        self._events.append(Done(sequence.key, now_s, queue_s, prefill_s, now_s - sequence.first_s))

    def _apply_drops(self) -> None:
        """Cancelled sequences give back slot and KV, at a boundary and never inside a run."""
        for sequence in self._drops:
            if sequence.stage == _GONE:
                continue
            if sequence.stage == _PREFILL:
                self._prefilling.remove(sequence)
            else:
                self._decoding -= 1
                tokens_given = sequence.n_out - (sequence.finish_step - self._step)
                self._context -= sequence.n_prompt + tokens_given
            self._leave(sequence, self._start_s)
        self._drops.clear()
