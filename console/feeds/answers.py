"""SAMPLE DATA, never measurements: what a head would answer to a console's questions about a `ScriptedFleet`.

Made from the fleet's time and the skill of each replica, without a random draw: the same second gives the same answer, so
lists move as real ones do (samples grow older, logs grow longer) and pictures can be compared.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.metrics.histogram import QUANTILES, enough_for
from harness.spec import place_of
from harness.wire import inquiry
from harness.wire.states import REPLICA_CODE

if TYPE_CHECKING:
    from console.feeds.scripted import ScriptedFleet

WINDOW_S = 60.0
_SIGMA = 0.41  # of log latency, one replica
_LINE_EVERY_S = 2


def _serving(fleet: ScriptedFleet) -> NDArray[np.bool_]:
    codes = [REPLICA_CODE["READY"], REPLICA_CODE["DRAINING"]]
    return np.isin(fleet.state, codes) & (fleet.phase in ("MEASURING", "DRAINING"))


# --- the SLA -----------------------------------------------------------------------------------------------


def sla_detail(fleet: ScriptedFleet, question: inquiry.GetSla, ttft_limit_ms: float, tpot_limit_ms: float) -> inquiry.SlaDetail:
    without = np.isin(fleet.names, question.without)
    p99_ms = 2400 + 190 * math.sin(fleet.t_s / 55)
    ttft = _latency(fleet, p99_ms * 0.36, _SIGMA, 2.0, ttft_limit_ms, without)
    tpot = _latency(fleet, p99_ms * 0.36 / 40, _SIGMA / 3, 1.0, tpot_limit_ms, without)
    mean_ms = p99_ms * 0.4
    shares = {  # of the mean, and of the tail
        "schedule lag": (0.0002, 0.0003), "head queue": (0.05, 0.11), "replica queue": (0.42, 0.63),
        "prefill": (0.49, 0.22), "other": (0.0398, 0.0397),
    }  # fmt: skip
    if fleet.spec.fleet.split:
        shares = {
            "schedule lag": (0.0002, 0.0003), "head queue": (0.03, 0.06), "prefill queue": (0.21, 0.38),
            "prefill": (0.49, 0.22), "decode wait": (0.21, 0.27), "KV transfer": (0.02, 0.03), "other": (0.0398, 0.0397),
        }  # fmt: skip
    parts = [
        inquiry.PartTimes(name, mean_ms * mean, mean_ms * mean * 0.83, mean_ms * mean * 3.1, p99_ms * 1.25 * tail)
        for name, (mean, tail) in shares.items()
    ]
    return inquiry.SlaDetail(
        question.request_id, len(fleet.earlier) + 1, WINDOW_S, ttft, tpot, parts, ttft.window_n, ttft.window_n // 100
    )


def _latency(
    fleet: ScriptedFleet, median_ms: float, sigma: float, power: float, limit_ms: float, without: NDArray[np.bool_]
) -> inquiry.LatencyDetail:
    """Each replica's latencies are log-normal around a median that its skill moves."""
    serving = _serving(fleet)
    elapsed_s = max(0.0, fleet.t_s) if serving.any() else 0.0
    per_slot_s = fleet.target_qps / max(1, len(fleet.names)) * serving
    medians = median_ms * (np.median(fleet.skill) / fleet.skill) ** power
    edges = np.exp(np.arange(math.log(median_ms / 12), math.log(median_ms * 14), 0.04))

    def below(values_ms: NDArray[np.float64]) -> NDArray[np.float64]:
        """A row for each slot: the share of its samples below each value."""
        z = np.log(values_ms / medians[:, None]) / sigma
        shares: NDArray[np.float64] = 1 / (1 + np.exp(-np.clip(1.5976 * z + 0.07056 * z**3, -500, 500)))
        return shares

    each = np.diff(below(edges), axis=1)
    over = 1 - below(np.array([limit_ms]))[:, 0]
    numbers = {"window": min(WINDOW_S, elapsed_s) * per_slot_s, "whole": elapsed_s * per_slot_s}
    counts = {name: np.rint((each * number[:, None]).sum(axis=0)).astype(int) for name, number in numbers.items()}
    over_by_slot = {name: np.rint(over * number).astype("<i4").tobytes() for name, number in numbers.items()}
    rest = np.rint((each * (numbers["window"] * ~without)[:, None]).sum(axis=0)).astype(int)
    return inquiry.LatencyDetail(
        limit_ms=limit_ms,
        edges_ms=edges.tolist(),
        window=counts["window"].tolist(),
        whole=counts["whole"].tolist(),
        window_ms=_percentiles(edges, counts["window"]),
        whole_ms=_percentiles(edges, counts["whole"]),
        window_n=int(counts["window"].sum()),
        whole_n=int(counts["whole"].sum()),
        over_window=over_by_slot["window"],
        over_whole=over_by_slot["whole"],
        samples_whole=np.rint(numbers["whole"]).astype("<i4").tobytes(),
        without_p99_ms=_percentiles(edges, rest).get("p99", math.nan) if without.any() else math.nan,
    )


def _percentiles(edges: NDArray[np.float64], counts: NDArray[np.int_]) -> dict[str, float]:
    total = int(counts.sum())
    ranks = np.concatenate([[0], np.cumsum(counts)])
    return {
        name: float(np.exp(np.interp(q * total, ranks, np.log(edges)))) for name, q in QUANTILES.items() if enough_for(total, q)
    }


# --- one replica -------------------------------------------------------------------------------------------


def replica_detail(fleet: ScriptedFleet, question: inquiry.GetReplica) -> inquiry.ReplicaDetail:
    slot = question.slot
    if slot not in fleet.names:
        return inquiry.ReplicaDetail(question.request_id, slot, "", problem=f"no slot {slot} in this fleet")
    at = fleet.names.index(slot)
    lines = [text for _, text in _replica_log(fleet, at)]
    shown = lines[-question.log_lines :]
    size = sum(len(line) + 1 for line in lines)
    samples = _in_flight(fleet, at)
    queued = round(9 * max(1.0, float(np.median(fleet.skill) / fleet.skill[at])) ** 12)
    return inquiry.ReplicaDetail(
        question.request_id, slot, fleet.incarnation[at], samples[: question.in_flight],
        max(len(samples), 104 + queued) if samples else 0, 0.3,
        f"/sample/logs/{slot.replace('/', '-')}.log", shown, size, size - sum(len(line) + 1 for line in shown),
        fleet.t_s % _LINE_EVERY_S,
    )  # fmt: skip


def _in_flight(fleet: ScriptedFleet, at: int) -> list[inquiry.InFlight]:
    """A sample every so often, each held for as long as the replica is slow; oldest first."""
    if not _serving(fleet)[at]:
        return []
    every_s = len(fleet.names) / fleet.target_qps
    held_s = 9.1 * float(np.median(fleet.skill) / fleet.skill[at])
    newest = int(fleet.t_s / every_s)
    samples = []
    for number in range(max(0, int((fleet.t_s - held_s) / every_s)), newest + 1):
        age_s = fleet.t_s - number * every_s
        mixed = (number * 2654435761 + at * 40503) % 65536
        tries = 2 if mixed % 41 == 0 else 1
        samples.append(inquiry.InFlight(number * len(fleet.names) + at, age_s, 180 + mixed % 2900, tries, age_s > 0.9))
    return samples


def _replica_log(fleet: ScriptedFleet, at: int) -> list[tuple[float, str]]:
    """Since two minutes before the load."""
    slow = fleet.names[at] in fleet.slow
    lines = [(-120.0, "INFO  loader.py:214  loading weights took 41.2 s"), (-70.0, "INFO  runner.py:98  captured 35 graphs")]
    for second in range(-60, int(fleet.t_s) + 1, _LINE_EVERY_S):
        tokens = 11012 * float(fleet.skill[at]) * (1 + 0.01 * math.sin(second))
        lines.append((second, f"INFO  metrics.py:61  generation {tokens:,.0f} tok/s, running 104, waiting 9, KV cache 62.1 %"))
        if slow and second > 210 and second % 30 == 0:
            lines.append((second, "WARNING  runner.py:311  step took 14.9 ms, expected 9.4 ms at this batch"))
    return [(second, f"{_clock(fleet, second)} {text}") for second, text in lines]


def _clock(fleet: ScriptedFleet, second: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(fleet.unix_at(second)))


def description(fleet: ScriptedFleet, question: inquiry.GetDescription) -> inquiry.Description:
    if question.slot not in fleet.names:
        return inquiry.Description(question.request_id, question.slot, problem=f"no slot {question.slot} in this fleet")
    if fleet.cluster is None:
        problem = "nothing to describe: its worker is a process of the head's machine"
        return inquiry.Description(question.request_id, question.slot, problem=problem)
    return inquiry.Description(question.request_id, question.slot, fleet.cluster.describe(place_of(question.slot)[0]))


# --- logs --------------------------------------------------------------------------------------------------


def log_lines(fleet: ScriptedFleet, question: inquiry.GetLogs) -> inquiry.LogLines:
    first = max(-60, math.ceil(question.since_unix - fleet.unix_at(0.0)))
    lines = [line for second in range(first, int(fleet.t_s) + 1) for line in _logged(fleet, second)]
    kept = lines[-question.limit :]
    return inquiry.LogLines(question.request_id, kept, len(lines) - len(kept))


def _logged(fleet: ScriptedFleet, second: int) -> list[inquiry.LogLine]:
    """What all processes write in one second of the sample run."""
    unix, count = fleet.unix_at(float(second)), len(fleet.names)
    slot = fleet.names[(second * 37) % count]
    lines = [inquiry.LogLine(unix + 0.1, slot, "generation 11,012 tok/s, running 104, waiting 9, KV cache usage 62.1 %")]
    if second % 5 == 0:
        lines.append(inquiry.LogLine(unix + 0.4, "head", f"snapshot {max(0, second) * 4}: {count} replicas, 61,204 in flight"))
    if second % 13 == 0:
        lines.append(inquiry.LogLine(unix + 0.6, "driver 1", "dispatch: 52 us a sample over the last 4,096, none late"))
    if second % 47 == 0 and fleet.slow:
        text = "step took 14.9 ms, expected 9.4 ms at a batch of 104; the device reports a lowered clock (thermal) since 214 s"
        lines.append(inquiry.LogLine(unix + 0.7, fleet.slow[0], text, "warn"))
    if second == 419 and "node010/gpu0" in fleet.names:
        lines.append(inquiry.LogLine(unix + 0.9, "node010/gpu0", "RuntimeError: HIP error: device is lost", "error"))
    return lines
