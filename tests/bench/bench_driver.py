"""(b) The whole driver process with real LoadGen Server, asked for more than it can do, at 64 and 512 slots.

LoadGen, its issue callback, the dispatcher, libzmq with CURVE and the sample rows: everything between LoadGen's schedule
and the wire. CPU is the driver's own count, from the last batch before the first query to the batch with the last
completion; the rate is completions over the same time. Outstanding is capped, so that a saturated driver holds its queue
itself instead of flooding the peers. The echo peers are the other load of the machine: they have all CPUs but the first,
and on two cores they slow the driver down, so the rate is a lower bound and the CPU per query the figure to compare.
"""

from __future__ import annotations

import itertools

from harness.spec import RunSpec
from tests.bench.bench_dispatcher import ANSWER_TOKENS, PROMPT_TOKENS, WINDOW
from tests.bench.driver_rig import Attempt, run_driver
from tests.bench.rig import Row, row

ASKED_QPS = 30_000
SECONDS = 4.0


def spec_for(slots: int, *, qps: float, seconds: float, cap: int, answer_tokens: int) -> RunSpec:
    lengths = {"mean": PROMPT_TOKENS, "sigma": 0.0, "min": 2, "max": 4096}
    return RunSpec.model_validate(
        {
            "dataset": {
                "samples": 1000,
                "input_tokens": lengths,
                "output_tokens": {**lengths, "mean": answer_tokens},
            },
            "load": {"target_qps": qps, "duration_s": seconds},
            "fleet": {"nodes": slots // 8, "replicas_per_node": 8, "outstanding_cap": cap},
        }
    )


def run() -> list[Row]:
    rows: list[Row] = []
    for slots in (64, 512):
        spec = spec_for(slots, qps=ASKED_QPS, seconds=SECONDS, cap=WINDOW[slots] // slots, answer_tokens=ANSWER_TOKENS)
        cpu_us, rate_qps = cost(run_driver(spec, answer_tokens=ANSWER_TOKENS, within_s=90))
        rows += [
            row(f"(b) driver process with LoadGen at saturation, CPU, {slots} slots", cpu_us, "us/query", at_most=110),
            row(f"(b) driver rate beside its echo peers, {slots} slots", rate_qps, "query/s"),
        ]
    return rows


def cost(attempt: Attempt) -> tuple[float, float]:
    """(CPU µs per query, queries per second)."""
    assert attempt.end is not None
    total = attempt.end.completed
    before = [entry for entry in attempt.batches if entry[1].issued == 0][-1]
    after = next(itertools.dropwhile(lambda entry: entry[1].completed < total, attempt.batches))
    return (after[1].cpu_s - before[1].cpu_s) / total * 1e6, total / (after[0] - before[0])


if __name__ == "__main__":
    for line in run():
        print(line)
