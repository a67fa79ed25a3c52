"""What one user gets, and what the points of a sweep are told by: arithmetic on figures that every record has.

Tokens/s/user has more than one meaning in the field, and they differ by a third and more. All of them are given, each with who
uses it; none is "the" figure. Formulas stand in definitions.toml under the same names.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.analysis.definitions import define
from harness.records.runfile import AttemptRecord


class UserFigure(msgspec.Struct):
    """One definition of tokens/s/user. `how`: formula and users of it; `remark`: what stood in for something missing."""

    id: str
    title: str
    value: float | None
    how: str
    remark: str = ""


def system_tps(tokens: float, duration_s: float | None) -> float | None:
    return _ratio(tokens, duration_s)


def qps(completed: float, duration_s: float | None) -> float | None:
    return _ratio(completed, duration_s)


def average_output(tokens: float, completed: float) -> float | None:
    return _ratio(tokens, completed)


def tokens_per_kw(tokens_per_s: float | None, kw: float) -> float | None:
    return _ratio(tokens_per_s, kw)


def utilization(tokens_per_s: Sequence[float]) -> list[float]:
    """Of each point of a sweep, in per cent of its largest. Never GPU utilization."""
    top = max(tokens_per_s, default=0.0)
    return [100.0 * one / top if top > 0 else 0.0 for one in tokens_per_s]


def per_user_system(tokens_per_s: float | None, concurrency: float | None) -> float | None:
    return _ratio(tokens_per_s, concurrency)


def per_user_tpot(tpot_ms: float | None) -> float | None:
    """Of the TPOT's p90, median or mean."""
    return _ratio(1000.0, tpot_ms)


def per_user_turns(tokens: float, total_time_s: float | None) -> float | None:
    """`total_time_s`: the samples' (turns') latencies added up."""
    return _ratio(tokens, total_time_s)


def mean_in_flight(completed_qps: float | None, latency_mean_ms: float | None) -> float | None:
    """Little's law. Of a run with fixed concurrency it lies below C by what passes between two turns of a user."""
    return None if completed_qps is None or latency_mean_ms is None else completed_qps * latency_mean_ms / 1e3


def tokens_per_user(attempt: AttemptRecord, concurrency: float | None = None) -> list[UserFigure]:
    """Every definition, of one attempt. `concurrency`: of a sweep's point; a Server or Offline run has none, and the mean in
    flight stands for it."""
    tokens, completed = attempt.totals.get("tokens", 0), attempt.totals.get("completed", 0)
    mean_ms = attempt.latency_ms.get("avg")
    users, remark = concurrency, ""
    if users is None:
        users = mean_in_flight(attempt.rates.get("completed_qps"), mean_ms)
        if users is not None:
            remark = f"C is the mean in flight, {users:,.1f}: {attempt.scenario} has no fixed concurrency"
    values = {
        "tokens_per_user_system": per_user_system(attempt.rates.get("tokens_per_s"), users),
        "tokens_per_user_p90": per_user_tpot(attempt.tpot_ms.get("p90")),
        "tokens_per_user_turns": per_user_turns(tokens, completed * mean_ms / 1e3) if mean_ms and tokens else None,
        "tokens_per_user_median": per_user_tpot(attempt.tpot_ms.get("p50")),
    }
    found = []
    for name, value in values.items():
        what = define(name)
        found.append(UserFigure(name, what.title, value, what.formula, remark if name == "tokens_per_user_system" else ""))
    return found


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below is not None and below > 0 else None
