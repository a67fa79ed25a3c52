"""Virtual-time runs: independent replicas under Poisson load, with what a Server run would report of them.

Requests count by when they end (TPOT) or give their first token (TTFT) inside the window after the warm-up, so neither
the ramp nor an unfinished tail biases them; tokens/s counts every token given inside the window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.engines.synthetic.core import Done, First, ReplicaCore
from harness.engines.synthetic.lengths import draw_lengths
from harness.engines.synthetic.model import StepModel
from harness.spec import LengthSpec


@dataclass(frozen=True, slots=True)
class Load:
    rate_qps: float  # per replica
    input_tokens: LengthSpec
    output_tokens: LengthSpec
    warmup_s: float
    measure_s: float


@dataclass(frozen=True, slots=True)
class FleetResult:
    """Pooled over all replicas; the last three are means over their measuring windows."""

    ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    tokens_per_s: float  # per replica
    step_s: float
    batch: float

    def ttft_p99_s(self) -> float:
        return float(np.percentile(self.ttft_s, 99))

    def tpot_p99_ms(self) -> float:
        return float(np.percentile(self.tpot_s, 99)) * 1e3


def simulate(model: StepModel, load: Load, seeds: range, *, slowdown: float = 1.0, jitter: float = 0.01) -> FleetResult:
    """One replica a seed."""
    ttft: list[float] = []
    tpot: list[float] = []
    totals = np.zeros(4)
    for seed in seeds:
        totals += _one_replica(model, load, seed, slowdown, jitter, ttft, tpot)
    tokens, steps, step_time_s, batch_sum = (float(total) for total in totals)
    steps = max(steps, 1.0)
    return FleetResult(
        ttft_s=np.array(ttft),
        tpot_s=np.array(tpot),
        tokens_per_s=tokens / len(seeds) / load.measure_s,
        step_s=step_time_s / steps,
        batch=batch_sum / steps,
    )


def _one_replica(
    model: StepModel, load: Load, seed: int, slowdown: float, jitter: float, ttft: list[float], tpot: list[float]
) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    core = ReplicaCore(model, jitter=jitter, seed=seed)
    core.set_slowdown(0.0, slowdown)
    end_s = load.warmup_s + load.measure_s
    expected = load.rate_qps * end_s
    arrivals_s = np.cumsum(rng.exponential(1 / load.rate_qps, int(expected + 10 * expected**0.5 + 10)))
    arrivals_s = arrivals_s[arrivals_s < end_s]
    prompts = draw_lengths(load.input_tokens, len(arrivals_s), rng).tolist()
    outputs = draw_lengths(load.output_tokens, len(arrivals_s), rng).tolist()
    times_s = arrivals_s.tolist()
    before = int(np.searchsorted(arrivals_s, load.warmup_s))

    for i in range(before):
        core.submit(times_s[i], i, prompts[i], outputs[i])
    core.advance(load.warmup_s)
    core.settle(load.warmup_s)
    at_start = _counted(core)
    for i in range(before, len(times_s)):
        core.submit(times_s[i], i, prompts[i], outputs[i])
    for event in core.advance(end_s):
        if isinstance(event, First):
            ttft.append(event.queue_s + event.prefill_s)
        elif isinstance(event, Done):
            assert isinstance(event.key, int)
            if outputs[event.key] > 1:
                tpot.append(event.decode_s / (outputs[event.key] - 1))
    core.settle(end_s)
    return _counted(core) - at_start


def _counted(core: ReplicaCore) -> NDArray[np.float64]:
    counters = core.counters
    return np.array([counters.tokens_out, counters.steps, counters.step_time_s, counters.batch_sum])
