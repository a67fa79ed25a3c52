"""What a run was, in a few words of its spec: model, fleet, limits. Read without trust: imported records say little of it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

_ABSURD: Final = 1e18


class Shape(msgspec.Struct, frozen=True):
    """0 or "" where the record does not say. `gpus`: replicas x tp x pp x dp; none on the CPU."""

    model: str = ""
    engine: str = ""
    nodes: int = 0
    replicas: int = 0
    gpus: int = 0
    ttft_limit_ms: float | None = None
    tpot_limit_ms: float | None = None


def shape_of(spec: dict[str, Any]) -> Shape:
    model, fleet, limits = (table(spec, name) for name in ("model", "fleet", "limits"))
    layout = table(fleet, "layout")
    nodes, each = _whole(fleet.get("nodes")), _whole(fleet.get("replicas_per_node"))
    devices = 0 if layout.get("device") == "cpu" else 1
    for name in ("tp", "pp", "dp"):
        devices *= _whole(layout.get(name, 1))
    return Shape(
        model=str(model.get("mlperf_name") or model.get("name") or ""),
        engine=str(fleet.get("engine") or ""),
        nodes=nodes,
        replicas=nodes * each,
        gpus=nodes * each * devices,
        ttft_limit_ms=_positive(limits.get("ttft_p99_ms")),
        tpot_limit_ms=_positive(limits.get("tpot_p99_ms")),
    )


def flat(value: Any, before: str = "") -> dict[str, Any]:
    """`fleet.nodes` → 4; empty tables stay as they are."""
    if isinstance(value, dict) and value:
        found: dict[str, Any] = {}
        for key, inner in value.items():
            found |= flat(inner, f"{before}.{key}" if before else str(key))
        return found
    return {before: value} if before else {}


def table(spec: dict[str, Any], name: str) -> dict[str, Any]:
    found = spec.get(name)
    return found if isinstance(found, dict) else {}


def number(value: Any) -> float | None:
    """None for what is no number, and for numbers that no record of ours has."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < _ABSURD else None  # False for NaN


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1_000_000 else 0


def _positive(value: Any) -> float | None:
    known = number(value)
    return known if known is not None and known > 0 else None
