"""Virtual-time runs of a fleet that splits prefill from decode: what 5P4D gives and what 4P5D gives, in a second or two.

One Poisson stream for the whole fleet; each sample goes to the prefill replica with the least outstanding, and when that
has computed the prompt to the decode replica with the least. The driver does the same with real queues; here nothing is
held back, no message takes time, and nobody fails. Counted like fleet.py: by when a sample ends (TPOT) or gives its first
token (TTFT) inside the window after the warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from harness.engines.synthetic.core import Done, Event, First, KvLink, Prefilled, ReplicaCore
from harness.engines.synthetic.fleet import FleetResult, Load
from harness.engines.synthetic.lengths import draw_lengths
from harness.engines.synthetic.model import StepModel
from harness.wire.data import DECODE, PREFILL


@dataclass(slots=True)
class _Replica:
    core: ReplicaCore
    held: set[int] = field(default_factory=set)


class SplitFleet:
    """`load.rate_qps` is that of the whole fleet."""

    def __init__(self, model: StepModel, load: Load, prefill: int, decode: int, *, link: tuple[float, float], seed: int) -> None:
        """`link`: latency and time per token of a KV transfer, in seconds."""
        self._load = load
        self._prefill = [_Replica(ReplicaCore(model, jitter=0.01, seed=seed * 1000 + i)) for i in range(prefill)]
        self._decode = [
            _Replica(ReplicaCore(model, jitter=0.01, seed=seed * 1000 + 500 + i, link=KvLink(*link))) for i in range(decode)
        ]
        rng = np.random.default_rng(seed)
        end_s = load.warmup_s + load.measure_s
        gaps_s = rng.exponential(1 / load.rate_qps, int(load.rate_qps * end_s * 1.2) + 100)
        self._arrivals_s: list[float] = np.cumsum(gaps_s)[np.cumsum(gaps_s) < end_s].tolist()
        self._prompts: list[int] = draw_lengths(load.input_tokens, len(self._arrivals_s), rng).tolist()
        self._outputs: list[int] = draw_lengths(load.output_tokens, len(self._arrivals_s), rng).tolist()
        self._ttft_s: list[float] = []
        self._tpot_s: list[float] = []
        self._tokens = 0

    def run(self) -> FleetResult:
        """`tokens_per_s`, `step_s` and `batch` are those of a decode replica, the first by samples that completed."""
        load = self._load
        for seq, at_s in enumerate(self._arrivals_s):
            self._until(at_s)
            replica = _least(self._prefill)
            replica.held.add(seq)
            replica.core.submit(at_s, seq, self._prompts[seq], self._outputs[seq], PREFILL)
        self._until(load.warmup_s + load.measure_s)
        counters = [replica.core.counters for replica in self._decode]
        steps = max(1, sum(each.steps for each in counters))
        return FleetResult(
            ttft_s=np.array(self._ttft_s),
            tpot_s=np.array(self._tpot_s),
            tokens_per_s=self._tokens / load.measure_s / len(self._decode),
            step_s=sum(each.step_time_s for each in counters) / steps,
            batch=sum(each.batch_sum for each in counters) / steps,
        )

    def _until(self, end_s: float) -> None:
        """Everything that happens before the next arrival, in the order in which it happens."""
        while True:
            due = [(at_s, replica) for replica in (*self._prefill, *self._decode) if (at_s := replica.core.next_event_s())]
            at_s, replica = min(due, key=lambda one: one[0], default=(end_s, None))
            if replica is None or at_s >= end_s:
                return
            for event in replica.core.advance(at_s):
                self._take(replica, event)

    def _take(self, replica: _Replica, event: Event) -> None:
        seq = event.key
        assert isinstance(seq, int)
        measured = event.t_s >= self._load.warmup_s
        if isinstance(event, Prefilled):
            replica.held.discard(seq)
            other = _least(self._decode)
            other.held.add(seq)
            other.core.submit(event.t_s, seq, self._prompts[seq], self._outputs[seq], DECODE)
        elif isinstance(event, First) and measured:
            self._ttft_s.append(event.t_s - self._arrivals_s[seq])
        elif isinstance(event, Done):
            replica.held.discard(seq)
            if measured:
                self._tokens += self._outputs[seq]
                self._tpot_s.append(event.decode_s / max(1, self._outputs[seq] - 1))


def _least(replicas: list[_Replica]) -> _Replica:
    return min(replicas, key=lambda replica: len(replica.held))
