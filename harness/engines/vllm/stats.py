"""vLLM's statistics as EngineStats, read in its process: no scrape, no parsing, exact sums.

vLLM calls `record` once for each step of each engine core (several with data parallelism), on our asyncio loop. A step's
time is the time since the core's previous record while it was busy, and since `wake` for the first step after a pause.
Sequences that decode are those that got a token which was not their first; prompt tokens count when their last chunk is
done, those fetched from elsewhere or found in a cache not at all. vLLM calls the classes that it passes unstable: read
by attribute, with a default, and every argument may be None.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.engines.base import EngineStats


@dataclass(slots=True)
class _Core:
    running: int = 0
    waiting: int = 0
    kv_use: float = 0.0
    busy_since_s: float | None = None


class Meter:
    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._cores: dict[int, _Core] = {0: _Core()}
        self._reset()

    def _reset(self) -> None:
        self._steps = self._timed = self._decoding = self._prompt_tokens = self._tokens_out = self._preemptions = 0
        self._step_s = 0.0

    def wake(self) -> None:
        """The first request after a pause: work begins now, whatever the cores told last."""
        now_s = self._clock()
        for core in self._cores.values():
            core.busy_since_s = now_s

    def record(self, index: int, scheduler: Any, iteration: Any) -> None:
        core = self._cores.setdefault(index, _Core())
        if scheduler is not None:
            core.running = int(getattr(scheduler, "num_running_reqs", 0) or 0)
            core.waiting = int(getattr(scheduler, "num_waiting_reqs", 0) or 0)
            core.waiting += int(getattr(scheduler, "num_skipped_waiting_reqs", 0) or 0)
            core.kv_use = float(getattr(scheduler, "kv_cache_usage", 0.0) or 0.0)
        if iteration is None and not (scheduler is not None and core.running):
            return  # news, but not of a step
        now_s = self._clock()
        self._steps += 1
        if core.busy_since_s is not None:
            self._timed += 1
            self._step_s += now_s - core.busy_since_s
        core.busy_since_s = now_s if core.running or core.waiting else None
        if iteration is not None:
            self._tokens_out += int(getattr(iteration, "num_generation_tokens", 0) or 0)
            self._preemptions += int(getattr(iteration, "num_preempted_reqs", 0) or 0)
            self._decoding += len(getattr(iteration, "inter_token_latencies_iter", None) or ())
            self._prompt_tokens += _computed(iteration)

    def take(self, outstanding: int, failed: int) -> EngineStats:
        """What happened since the previous call. With nothing outstanding the gauges are 0: after an abort no step tells so."""
        cores = list(self._cores.values())
        idle = not outstanding
        steps = self._steps / len(cores)
        stats = EngineStats(
            running=0 if idle else sum(core.running for core in cores),
            waiting=0 if idle else sum(core.waiting for core in cores),
            kv_use=0.0 if idle else sum(core.kv_use for core in cores) / len(cores),
            outstanding=outstanding,
            tokens_out=self._tokens_out,
            steps=round(steps),
            step_ms=self._step_s * 1e3 / self._timed if self._timed else 0.0,
            batch=self._decoding / steps if steps else 0.0,
            prefill_tokens=self._prompt_tokens / steps if steps else 0.0,
            preemptions=self._preemptions,
            failed=failed,
        )
        self._reset()
        return stats


def _computed(iteration: Any) -> int:
    by_source = getattr(iteration, "prompt_token_stats", None)
    computed = getattr(by_source, "computed", None)
    return int((computed if computed is not None else getattr(iteration, "num_prompt_tokens", 0)) or 0)


def stat_logger(meter: Meter) -> Any:
    """The class that AsyncLLM asks for: one instance for each engine core, all of which fill this meter."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class ReplicaStatLogger(StatLoggerBase):  # type: ignore[misc,unused-ignore]
        def __init__(self, vllm_config: Any, engine_index: int = 0, **_: Any) -> None:
            self._index = engine_index

        def record(
            self,
            scheduler_stats: Any = None,
            iteration_stats: Any = None,
            mm_cache_stats: Any = None,
            engine_idx: int = 0,
            **_: Any,
        ) -> None:
            meter.record(self._index, scheduler_stats, iteration_stats)

        def log_engine_initialized(self) -> None:
            pass

    return ReplicaStatLogger
