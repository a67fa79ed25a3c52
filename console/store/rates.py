"""The rates of an attempt in words: what it began with, what it ended with, and how often that was changed between."""

from __future__ import annotations

from collections.abc import Iterable

from harness.wire.control import AttemptInfo, JournalEntry


def changes_of(attempt: AttemptInfo, journal: Iterable[JournalEntry]) -> list[float]:
    """Rates that were asked for while it ran, in order. Only explorations have any: elsewhere a rate is an attempt."""
    if attempt.kind != "explore":
        return []
    asked = (entry.data.get("qps") for entry in journal if entry.what == "act.set_rate" and entry.attempt == attempt.number)
    return [float(qps) for qps in asked if isinstance(qps, int | float)]


def rate_words(attempt: AttemptInfo, journal: Iterable[JournalEntry]) -> str:
    """`30 qps`, `30 → 50 qps (4 changes)`."""
    changes = changes_of(attempt, journal)
    if not changes:
        return f"{_rate(attempt.target_qps)} qps"
    often = "1 change" if len(changes) == 1 else f"{len(changes)} changes"
    return f"{_rate(attempt.target_qps)} → {_rate(changes[-1])} qps ({often})"


def _rate(qps: float) -> str:
    return f"{qps:,.0f}" if qps >= 1000 or qps == int(qps) else f"{qps:.1f}"
