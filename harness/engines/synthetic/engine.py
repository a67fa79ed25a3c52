"""SyntheticEngine: a replica in real time whose timing comes from a step model and whose tokens from a formula.

It generates nothing. Everything that shows a result of it must say so: `synthetic = True`, and versions() and facts()
name the preset and its constants. All instances on one asyncio loop share a scheduler (scheduler.py), so one process
carries hundreds. Measured on one core of a small x86 server, 512 replicas of the gpt-oss preset at 7.8 QPS each, with
statistics read every second: 0.43 ms CPU a replica-second (0.22 core in all), of which the model itself takes 0.06.

Prefill and decode of a sample may be done by two of them (Request.stage), in any role: a prefill request's place and KV
cache are free again once `prefilled` has been said, and the transfer takes its time at the decode replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from math import inf
from typing import Any, cast

from harness.engines.base import EngineContext, EngineError, EngineStats, Events, Key, Request, argument_facts
from harness.engines.synthetic import handoff
from harness.engines.synthetic.args import SyntheticArgs, parse_args
from harness.engines.synthetic.core import Counters, DoesNotFit, First, KvLink, Prefilled, ReplicaCore
from harness.engines.synthetic.faults import Fault
from harness.engines.synthetic.lengths import length_of
from harness.engines.synthetic.planted import kernels_of
from harness.engines.synthetic.scheduler import Scheduler, scheduler_of_running_loop
from harness.engines.synthetic.tokens import output_ids
from harness.spec import RunSpec
from harness.wire.data import DECODE

_MIN_OUTPUT = 2  # TPOT needs a second token


def output_tokens(spec: RunSpec, request: Request) -> int:
    """How many tokens the synthetic engine gives to this request."""
    wanted = request.expected_tokens
    if wanted <= 0:
        wanted = length_of(spec.dataset.output_tokens, request.index, spec.dataset.seed)
    return max(min(wanted, request.max_tokens), _MIN_OUTPUT)


class SyntheticEngine:
    many_per_process = True
    synthetic = True

    def __init__(self, context: EngineContext, events: Events) -> None:
        self._context = context
        self._events = events
        self._args = _parsed(context)
        args, seed = self._args, (context.ordinal << 16) + context.life
        link = KvLink(args.kv_transfer_ms * 1e-3 / args.speed, args.kv_transfer_us_per_token * 1e-6 / args.speed)
        self._core = ReplicaCore(args.model.faster(args.speed), jitter=args.jitter, seed=seed, link=link)
        self._faults = [fault for fault in self._args.faults if fault.strikes(context.slot, context.life)]
        self._fault_timers: set[asyncio.TimerHandle] = set()
        self._slowdowns: dict[int, float] = {}  # faults in force, by position
        self._outputs: dict[Key, tuple[Request, int]] = {}  # outstanding, with their output lengths
        self._reported = Counters()
        self._scheduler: Scheduler | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gone = ""  # why nothing is accepted any more
        self.due_s: float | None = None

    # -- Engine ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        delay_s = self._args.load_s
        for fault in self._faults:
            delay_s += fault.delay_s
        await asyncio.sleep(delay_s)
        if any(fault.kind == "flaky_start" for fault in self._faults):
            raise EngineError(f"planted fault: flaky_start (life {self._context.life} of {self._context.slot})")
        if self._gone:
            raise EngineError(self._gone)
        self._loop = asyncio.get_running_loop()
        self._scheduler = scheduler_of_running_loop()
        for position, fault in enumerate(self._faults):
            self._plant(position, fault)

    def submit(self, request: Request) -> None:
        if self._scheduler is None or self._gone:
            self._events.failed(request.key, self._gone or "the engine has not started")
            return
        if request.key in self._outputs:
            return  # the same try twice: it is being answered
        n_prompt, n_out = _prompt_tokens(request), output_tokens(self._context.spec, request)
        if request.stage == DECODE and (why := handoff.trouble(request.handoff, _own_version(), n_prompt)):
            self._events.failed(request.key, why)
            return
        try:
            self._core.submit(self._now_s(), request.key, n_prompt, n_out, request.stage)
        except DoesNotFit as error:
            self._events.failed(request.key, str(error))
            return
        self._outputs[request.key] = (request, n_out)
        self._scheduler.schedule(self)

    def cancel(self, key: Key) -> None:
        if self._outputs.pop(key, None) is not None and self._scheduler is not None:
            self._core.cancel(self._now_s(), key)
            self._scheduler.schedule(self)

    def stats(self) -> EngineStats:
        core, before = self._core, self._reported
        if self._scheduler is not None and not self._gone:
            core.settle(self._now_s())
        now = replace(core.counters)
        self._reported = now
        steps = now.steps - before.steps
        per_step = 1 / steps if steps else 0.0
        return EngineStats(
            running=core.running,
            waiting=core.waiting,
            kv_use=core.kv_use,
            outstanding=len(self._outputs),
            tokens_out=now.tokens_out - before.tokens_out,
            steps=steps,
            step_ms=(now.step_time_s - before.step_time_s) * 1e3 * per_step,
            batch=(now.batch_sum - before.batch_sum) * per_step,
            prefill_tokens=(now.prefill_tokens - before.prefill_tokens) * per_step,
        )

    def versions(self) -> dict[str, str]:
        return {"engine": "synthetic", "preset": self._args.preset, "paceline": _own_version()}

    def facts(self) -> dict[str, Any]:
        return {
            "synthetic": True,
            "engine": "synthetic",
            "preset": self._args.preset,
            "constants": asdict(self._args.model),
            "constants_origin": "fitted to published totals or fictitious, not measured",
            "jitter": self._args.jitter,
            "speed": self._args.speed,
            "planted_faults": [fault.describe() for fault in self._faults],
            **kernels_of(self._args.kernels, self._context.slot),
            **argument_facts(self._args.in_force()),
        }

    async def stop(self) -> None:
        self._end("the engine was stopped")

    # -- Paced: what the scheduler calls -----------------------------------------------------------------------------

    def next_event_s(self) -> float | None:
        return None if self._gone else self._core.next_event_s()

    def deliver(self, now_s: float) -> None:
        model = self._context.spec.model
        for event in self._core.advance(now_s):
            key = cast(Key, event.key)
            entry = self._outputs.get(key)
            if entry is None:
                continue  # cancelled by a callback of this very loop
            request, n_out = entry
            queue_us, prefill_us = round(event.queue_s * 1e6), round(event.prefill_s * 1e6)
            if isinstance(event, Prefilled):
                del self._outputs[key]
                self._events.prefilled(key, handoff.write(_own_version(), _prompt_tokens(request)), queue_us, prefill_us)
            elif isinstance(event, First):
                token = output_ids(request.index, 1, model.vocab_size, model.eos_token_id)
                self._events.first(key, token, queue_us, prefill_us)
            else:
                del self._outputs[key]
                tokens = output_ids(request.index, n_out, model.vocab_size, model.eos_token_id)
                self._events.complete(key, tokens, queue_us, prefill_us, round(event.decode_s * 1e6))

    # -- faults ------------------------------------------------------------------------------------------------------

    def _plant(self, position: int, fault: Fault) -> None:
        if fault.kind == "slow":
            self._later(fault.at_s, lambda: self._slow(position, 1 + fault.percent / 100))
            if fault.for_s < inf:
                self._later(fault.at_s + fault.for_s, lambda: self._slow(position, 1.0))
        elif fault.kind == "stall":
            self._later(fault.at_s, lambda: self._stall(fault.for_s))
        elif fault.kind == "crash":
            self._later(fault.at_s, self._crash)

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        assert self._loop is not None

        def strike() -> None:
            self._fault_timers.discard(timer)
            act()

        timer = self._loop.call_later(delay_s, strike)
        self._fault_timers.add(timer)

    def _slow(self, position: int, factor: float) -> None:
        self._slowdowns[position] = factor
        combined = 1.0
        for one in self._slowdowns.values():
            combined *= one
        self._core.set_slowdown(self._now_s(), combined)
        self._reschedule()

    def _stall(self, for_s: float) -> None:
        now_s = self._now_s()
        self._core.stall(now_s, now_s + for_s)
        self._reschedule()

    def _crash(self) -> None:
        self._end("planted fault: crash")
        self._events.died("planted fault: crash")

    # -- inside ------------------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def _reschedule(self) -> None:
        if self._scheduler is not None:
            self._scheduler.schedule(self)

    def _end(self, reason: str) -> None:
        self._gone = self._gone or reason
        self._outputs.clear()
        for timer in self._fault_timers:
            timer.cancel()
        self._fault_timers.clear()
        if self._scheduler is not None:
            self._scheduler.forget(self)


def _prompt_tokens(request: Request) -> int:
    return memoryview(request.prompt).nbytes // 4


def _parsed(context: EngineContext) -> SyntheticArgs:
    return parse_args(context.args or context.spec.fleet.engine_args, context.spec.slots())


@lru_cache(maxsize=1)
def _own_version() -> str:
    try:
        return version("paceline")
    except PackageNotFoundError:
        return "unknown"
