"""VllmEngine: one AsyncLLM as a replica. A request is one task that iterates its token stream.

vLLM merges chunks when we lag and may give empty ones: the first chunk that has tokens is FIRST, all tokens together are
COMPLETE, and nothing else is read off the number of chunks. Cancelling the task aborts the request.

vLLM's engine core is a process, and cannot be revived in ours: its death ends the incarnation. Open streams raise then
within 0.3 s; without any, `errored` is looked at four times a second. What was pending is dropped in silence, since the
data plane refuses the samples of an incarnation that has ended.

Not told apart by vLLM: in a decode replica the wait for a place and the KV transfer. Both are in `prefill_us`.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from harness.cluster.procinfo import ended_in_words
from harness.engines.base import ArgumentError, EngineContext, EngineError, EngineStats, Events, Key, Request, argument_facts
from harness.engines.vllm import compat, kernelfacts, launch
from harness.engines.vllm.args import arguments, check_args
from harness.engines.vllm.logtail import LogTail
from harness.engines.vllm.sampling import CannotServe, Sampling, handoff_of
from harness.engines.vllm.stats import Meter, stat_logger
from harness.wire.data import DECODE, PREFILL

WATCH_EVERY_S = 0.25
_EXIT_CODE_WITHIN_S = 0.5
_STOP_WITHIN_S = 1.0
_FINISHED_BADLY = ("abort", "error", None)

log = logging.getLogger("paceline.replica")


class VllmEngine:
    many_per_process = False
    synthetic = False

    def __init__(self, context: EngineContext, events: Events) -> None:
        self._context, self._events = context, events
        self._args = dict(context.args or context.spec.fleet.engine_args)
        self._meter = Meter()
        self._failed = 0
        self._thread: launch.EngineThread | None = None
        self._log: LogTail | None = None
        self._started: launch.Started | None = None
        self._not_ours: set[BaseProcess] | None = None  # child processes from before the start of vLLM
        self.llm: Any = None  # the AsyncLLM, from start to stop
        self._dropped: tuple[str, ...] = ()
        self._kernels = kernelfacts.KernelFacts()
        self._answers: dict[Key, asyncio.Task[None]] = {}  # outstanding
        self._leaving: set[asyncio.Task[None]] = set()  # cancelled, not yet gone
        self._watch: asyncio.Task[None] | None = None
        self._obituary: asyncio.Task[None] | None = None
        self._gone = ""  # why nothing is accepted any more
        self._stopped = False

    # -- Engine ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        check_args(self._context.spec)
        if why := compat.cannot_start() or kernelfacts.cannot_load(self._context.spec.fleet.kernels):
            raise ArgumentError(why)
        self._log = LogTail()
        self._thread = launch.EngineThread()
        begun_s = time.monotonic()
        self._events.loading(f"vLLM {compat.vllm_version()} starts and loads the model")
        started = await self._thread.run(self._load)
        if self._stopped:
            raise EngineError(self._gone)
        self.llm = started.llm
        self._dead_error = compat.dead_error()
        self._prompt = compat.prompt_maker()
        config = self.llm.model_config
        self._vocab = int(config.get_vocab_size())
        self._sampling = Sampling(self._context.spec.sampling, compat.sampling_names(), int(config.max_model_len))
        try:
            await self.llm.get_supported_tasks()  # also starts what reads the core's messages: its death is one of them
        except Exception as error:
            raise EngineError(f"vLLM ended as soon as it had started: {self._cause() or compat.in_words(error)}") from error
        self._note_kernels(self._log)
        self._watch = asyncio.get_running_loop().create_task(self._look_out(), name="vllm watch")
        log.info(
            "%s: vLLM %s on %s after %.1f s",
            self._context.slot,
            compat.vllm_version(),
            started.device,
            time.monotonic() - begun_s,
        )

    def _note_kernels(self, written: LogTail) -> None:
        """Raises ArgumentError where our kernel is required and another runs: the next start would be no different."""
        asked = self._context.spec.fleet.kernels
        self._kernels = kernelfacts.loaded(asked, _reports(), written.beginning())
        why = self._kernels.fallback
        if why and asked.required:
            raise ArgumentError(f"fleet.kernels.required = true, and vLLM does not use our MoE kernel alone: {why}")
        if why:
            log.warning("%s: vLLM does not use our MoE kernel alone: %s", self._context.slot, why)

    def submit(self, request: Request) -> None:
        if self._watch is None or self._gone:
            self._failed += 1
            self._events.failed(request.key, self._gone or "the engine has not started")
            return
        if request.key in self._answers:
            return  # the same try twice: it is being answered
        if not self._answers:
            self._meter.wake()
        self._answers[request.key] = asyncio.get_running_loop().create_task(self._answer(request))

    def cancel(self, key: Key) -> None:
        task = self._answers.pop(key, None)
        if task is not None:
            self._leave(task)

    def stats(self) -> EngineStats:
        failed, self._failed = self._failed, 0
        return self._meter.take(len(self._answers), failed)

    def versions(self) -> dict[str, str]:
        return dict(compat.versions())

    def facts(self) -> dict[str, Any]:
        spec, started = self._context.spec, self._started
        facts: dict[str, Any] = {
            "engine": "vllm",
            "synthetic": False,
            "build": compat.build(),
            "layout": spec.fleet.layout.model_dump(mode="json", exclude={"devices_per_node"}),
            "role": self._context.role,
            **argument_facts(started.values if started is not None else self._args),
        }
        if started is not None:
            facts["device_name"] = started.device
        facts |= self._kernels.facts
        if self._dropped:
            facts["arguments_unknown_to_this_version"] = ", ".join(self._dropped)
        if "kv_transfer_config" in self._args:
            facts["kv_transfer"] = "passed through; not run on GPUs here"
        return facts

    async def stop(self) -> None:
        self._stopped = True
        self._gone = self._gone or "the engine was stopped"
        for task in self._answers.values():
            self._leave(task)
        self._answers.clear()
        ending = [task for task in (self._watch, self._obituary) if task is not None and task is not asyncio.current_task()]
        for task in ending:
            task.cancel()
        self._watch = None
        await _settled([*ending, *self._leaving])
        thread, self._thread = self._thread, None
        if thread is not None:
            await self._end_vllm(thread)
        if self._log is not None:
            self._log.close()
        self.llm = None  # or it would be shut down once more at the end of the interpreter, when that cannot work
        if self._started is not None:
            self._started.llm = None

    # -- start and end of vLLM ---------------------------------------------------------------------------------------

    def _load(self) -> launch.Started:
        """In the engine's thread."""
        assert self._log is not None
        context, wanted = self._context, self._context.spec.fleet.layout.device
        try:
            cpu = compat.on_cpu()
            launch.import_vllm(cpu=cpu)
        except Exception as error:
            raise EngineError(f"vLLM {compat.vllm_version()} cannot be imported: {compat.in_words(error)}") from error
        if wanted != "auto" and (wanted == "cpu") != cpu:
            raise ArgumentError(
                f'fleet.layout.device = "{wanted}": the vLLM of this environment runs on '
                f"{'the CPU' if cpu else compat.device_name() or 'an accelerator'}; "
                f'use device = "{"cpu" if cpu else "auto"}", or another environment (fleet.python)'
            )
        known = compat.argument_defaults()
        plan = arguments(context.spec, self._args, context.role, context.gpu, known, cpu=cpu)
        if plan.dropped:
            log.warning("%s: not known to vLLM %s: %s", context.slot, compat.vllm_version(), ", ".join(plan.dropped))
        self._dropped = plan.dropped
        values = plan.values
        if isinstance(values.get("all2all_backend"), str):
            values["all2all_backend"] = compat.all2all_here(values["all2all_backend"])
        if self._stopped:
            raise EngineError(self._gone)
        if cpu and context.spec.cluster.kind == "local":
            launch.give_way()
        self._not_ours = before = set(multiprocessing.active_children())
        try:
            self._started = launch.create(values, [stat_logger(self._meter)], before, cpu=cpu, log=self._log)
        except EngineError as error:
            # Where vLLM has no such kernel either, that ours was left out is the cause behind its words.
            if not (why := kernelfacts.left_out(context.spec.fleet.kernels, _reports())):
                raise
            raise type(error)(f"our MoE kernel was left out: {why}; and then {error}") from error
        return self._started

    async def _end_vllm(self, thread: launch.EngineThread) -> None:
        """The thread may still be starting it: then its children are killed until the start has failed."""

        def end() -> None:
            if self._started is not None:
                self._started.shutdown()

        tasks = launch.tasks_of(self._started.llm) if self._started is not None else []
        done = asyncio.ensure_future(thread.run(end))
        try:
            while not done.done():
                await asyncio.wait({done}, timeout=0.05)
                if self._started is None and self._not_ours is not None:
                    launch.kill_children(but=self._not_ours)
        finally:
            thread.close()
        await _settled(tasks)

    # -- a request ---------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> None:
        key = request.key
        request_id = f"{key.epoch}-{key.seq}-{key.attempt_try}"
        try:
            ids = self._prompt_ids(request)
            await self._stream(request, self._prompt(ids), self._sampling.params(request, len(ids)), request_id)
        except asyncio.CancelledError:
            with suppress(Exception):  # vLLM forgets it by itself only once it has taken it in
                await self.llm.abort(request_id)
            raise
        except self._dead_error:
            self._lost()
        except CannotServe as error:
            self._fail(key, str(error))
        except Exception as error:
            if self.llm.errored:
                self._lost()
            else:
                self._fail(key, compat.in_words(error))

    def _prompt_ids(self, request: Request) -> list[int]:
        ids = np.frombuffer(request.prompt, dtype="<i4")
        if not len(ids):
            raise CannotServe("the prompt has no tokens")
        least, most = int(ids.min()), int(ids.max())
        if least < 0 or most >= self._vocab:
            raise CannotServe(
                f"the prompt has token id {least if least < 0 else most}; the model's vocabulary is 0 to {self._vocab - 1}"
            )
        return ids.tolist()  # type: ignore[no-any-return,unused-ignore]

    async def _stream(self, request: Request, prompt: Any, params: Any, request_id: str) -> None:
        key, stage = request.key, request.stage
        clock_s = [time.monotonic()]
        ids: list[int] = []
        output = last = None
        async for output in self.llm.generate(prompt, params, request_id):
            last = output.outputs[0]
            if not last.token_ids:
                continue
            if not ids:
                clock_s.append(time.monotonic())
                if stage != PREFILL:
                    queue_us, prefill_us, _ = _times(output.metrics, clock_s, stage)
                    self._events.first(key, int(last.token_ids[0]).to_bytes(4, "little", signed=True), queue_us, prefill_us)
            ids.extend(last.token_ids)
        clock_s.append(time.monotonic())
        reason = getattr(last, "finish_reason", None)
        if output is None or reason in _FINISHED_BADLY or not ids:
            self._fail(key, f"vLLM ended the request after {len(ids)} tokens: {reason or 'no reason given'}")
            return
        queue_us, prefill_us, decode_us = _times(output.metrics, clock_s, stage)
        if stage == PREFILL:
            handoff = handoff_of(output.kv_transfer_params)
            if self._answers.pop(key, None) is not None:
                self._events.prefilled(key, handoff, queue_us, prefill_us)
        elif self._answers.pop(key, None) is not None:
            self._events.complete(key, np.array(ids, dtype="<i4").tobytes(), queue_us, prefill_us, decode_us)

    def _fail(self, key: Key, reason: str) -> None:
        if self._answers.pop(key, None) is not None:
            self._failed += 1
            self._events.failed(key, reason)

    def _leave(self, task: asyncio.Task[None]) -> None:
        if task is asyncio.current_task() or task.done():
            return
        task.cancel()
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    # -- its death ---------------------------------------------------------------------------------------------------

    async def _look_out(self) -> None:
        while not self.llm.errored:  # noqa: ASYNC110 - vLLM sets a flag and signals nobody
            await asyncio.sleep(WATCH_EVERY_S)
        self._lost()

    def _lost(self) -> None:
        if self._gone:
            return
        self._gone = "vLLM's engine core has died"
        for task in self._answers.values():
            self._leave(task)
        self._answers.clear()
        self._obituary = asyncio.get_running_loop().create_task(self._tell_of_death(), name="vllm death")

    async def _tell_of_death(self) -> None:
        """Its exit code is known a moment later than its silence."""
        deadline_s = time.monotonic() + _EXIT_CODE_WITHIN_S
        while not self._exits() and time.monotonic() < deadline_s:  # noqa: ASYNC110 - seen by waitpid alone
            await asyncio.sleep(0.02)
        if not self._stopped:
            self._events.died(": ".join(part for part in (self._gone, self._exits(), self._cause()) if part))

    def _exits(self) -> str:
        children = self._started.children if self._started is not None else []
        ended = [f"process {child.pid} {ended_in_words(child.exitcode)}" for child in children if child.exitcode is not None]
        return ", ".join(ended)

    def _cause(self) -> str:
        return self._log.last_error() if self._log is not None else ""


def _reports() -> Path | None:
    """Where the kernels' plugin writes down what it loads."""
    folder = os.environ.get(kernelfacts.REPORT)
    return Path(folder) if folder else None


def _times(metrics: Any, clock_s: list[float], stage: int) -> tuple[int, int, int]:
    """Wait, prefill and decode in µs: vLLM's own marks where it keeps them, else ours (submitted, first token, end)."""
    queued, scheduled = getattr(metrics, "queued_ts", 0.0), getattr(metrics, "scheduled_ts", 0.0)
    first, last = getattr(metrics, "first_token_ts", 0.0), getattr(metrics, "last_token_ts", 0.0)
    if not (queued and scheduled and first):
        queued = scheduled = clock_s[0]
        first, last = clock_s[1], clock_s[-1]
    if stage == DECODE:
        scheduled = queued
    return _us(scheduled - queued), _us(first - scheduled), _us(last - first)


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


async def _settled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    waiting = {task for task in tasks if not task.done()}
    if waiting:
        await asyncio.wait(waiting, timeout=_STOP_WITHIN_S)
