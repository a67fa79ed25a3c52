"""The views of a record as tables for export, unrounded, and the figures of each of them that have a definition."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from console.store.drill import View
from console.store.tables import Row, Tables
from harness.analysis.views import Difference, Distribution, Effect, FleetRow, Life, LogLine, Overview, SampleRow, Tail, Timeline

#: Ids of `harness.analysis.definitions`.
FIGURES: Final[dict[View, tuple[str, ...]]] = {
    "verdict": (
        "verdict", "ttft_ms", "tpot_ms", "latency_ms", "percentile", "percentile_interval", "head_room", "over", "allowed_over",
        "completed_qps", "scheduled_qps", "tokens_per_s", "duration_s", "loadgen_samples_per_s", "loadgen_tokens_per_s",
    ),
    "timeline": ("window_qps", "ttft_ms", "tpot_ms", "percentile", "in_flight"),
    "distributions": ("ttft_ms", "tpot_ms", "latency_ms", "percentile", "percentile_interval", "over", "allowed_over"),
    "tail": (
        "ttft_ms", "tpot_ms", "latency_ms", "lift", "share_of_excess", "lag_ms", "head_queue_ms", "replica_queue_ms",
        "prefill_ms", "decode_ms", "transfer_ms",
    ),
    "fleet": ("z", "ttft_ms", "tpot_ms", "step_ms", "tokens_per_s", "over", "redispatched", "failed"),
    "slowest": ("ttft_ms", "tpot_ms", "latency_ms", "redispatched"),
    "acts": ("window_qps", "tokens_per_s", "ttft_ms", "tpot_ms", "percentile_interval", "rate_interval", "difference_interval"),
    "config": (),
}  # fmt: skip


def tables_of(answer: Any) -> Tables:
    """Of whatever a view was answered."""
    match answer:
        case Overview():
            return _overview(answer)
        case Timeline():
            return {"ticks": _rows(answer.ticks), "marks": _rows(answer.marks)}
        case Tail():
            groups = [row for by in answer.groups.values() for row in by]
            return {"groups": [_flat(row) for row in _rows(groups)], "parts": _rows(answer.parts)}
        case Life():
            return {
                "sample": _rows([answer.sample]), "segments": _rows(answer.segments), "replica": list(answer.replica),
                "journal": list(answer.journal),
            }  # fmt: skip
        case [Distribution(), *_]:
            return _distributions(answer)
        case [FleetRow(), *_]:
            return {"fleet": _rows(answer)}
        case [SampleRow(), *_]:
            return {"samples": _rows(answer)}
        case [Effect(), *_]:
            return {"acts": [row for effect in answer for row in _effect(effect)]}
        case [Difference(), *_]:
            return {
                "config": [
                    {"field": one.field, "value": variant.value, "replicas": len(variant.slots), "slots": variant.slots}
                    for one in answer
                    for variant in one.variants
                ]
            }
        case [LogLine(), *_]:
            return {"logs": _rows(answer)}
    return {}


def _rows(found: list[Any]) -> list[Row]:
    return [msgspec.to_builtins(one) for one in found]


def _flat(row: Row) -> Row:
    """`where` of a row as columns of their own."""
    where = row.pop("where", {})
    return row | {f"where_{name}": value for name, value in where.items()}


def _overview(overview: Overview) -> Tables:
    run: Row = {
        name: getattr(overview, name)
        for name in ("run", "attempt", "kind", "scenario", "verdict", "acts", "synthetic", "imported", "target_qps",
                     "started_unix")
    }  # fmt: skip
    run |= {"reasons": "; ".join(overview.reasons), **overview.totals, **overview.rates}
    return {
        "attempt": [run],
        "limits": _rows(overview.margins),
        "findings": [_flat(row) for row in _rows(overview.findings)],
        "loadgen": [{"figure": name, "value": value} for name, value in overview.loadgen.items()],
    }


def _distributions(found: list[Distribution]) -> Tables:
    figures, histogram, cdf = [], [], []
    for one in found:
        figures.append({"metric": one.metric, "samples": one.n, **{f"{name}_ms": value for name, value in one.figures.items()},
                        "limit_ms": one.limit_ms, "over": one.over, "allowed_over": one.allowed_over})  # fmt: skip
        histogram += [
            {"metric": one.metric, "from_ms": one.edges_ms[at], "to_ms": one.edges_ms[at + 1], "samples": count}
            for at, count in enumerate(one.counts)
        ]
        cdf += [{"metric": one.metric, "ms": value_ms, "share": share} for value_ms, share in one.cdf]
    return {"figures": figures, "histogram": histogram, "cdf": cdf}


def _effect(effect: Effect) -> list[Row]:
    about = msgspec.to_builtins(effect)
    changes = about.pop("changes")
    return [about | change for change in changes] or [about]
