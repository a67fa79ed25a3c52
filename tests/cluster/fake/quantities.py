"""Amounts of a resource: what a pod asks for, what a node has, what a quota leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from .errors import Json

_FACTORS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGTPE", 1)}


@lru_cache(maxsize=1024)
def amount(text: str) -> float:
    """500m, 8, 16Gi. `kubernetes.utils.parse_quantity` does the same, but its import takes longer than most tests here."""
    for suffix, factor in (_BINARY | _FACTORS).items():
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text)


def amounts(raw: Mapping[str, object] | None) -> dict[str, float]:
    return {name: amount(str(value)) for name, value in (raw or {}).items()}


def asked_by(pod: Json) -> dict[str, float]:
    """The sum over its containers, or what an init container asks for where that is more."""
    spec = pod["spec"]
    total = _sum(_requests(container) for container in spec.get("containers") or ())
    for container in spec.get("initContainers") or ():
        for name, value in _requests(container).items():
            total[name] = max(total.get(name, 0.0), value)
    return total


def _requests(container: Json) -> dict[str, float]:
    resources = container.get("resources") or {}
    return amounts(resources.get("limits")) | amounts(resources.get("requests"))


def limits_of(pod: Json) -> dict[str, float]:
    return _sum(amounts((container.get("resources") or {}).get("limits")) for container in pod["spec"].get("containers") or ())


def _sum(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total


def shown(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{round(value * 1000)}m"
