"""Journal entries in words, the same wherever the command line tells one: progress lines, `status`, `show`."""

from __future__ import annotations

from typing import Any

from harness.wire.control import JournalEntry

#: Facts for programs: a person knows the replica by its slot.
_NOT_TOLD = frozenset({"incarnation", "nth", "epoch"})


def in_words(entry: JournalEntry) -> str:
    """`act.set_rate 144 → 150 by kim@desk: more`; `ERROR replica.state node001/gpu0 READY → LOST: lease over`."""
    words = [entry.what, *([entry.subject] if entry.subject else [])]
    move = change(entry.before, entry.after)
    words += [move] if move else []
    if entry.what.startswith("act."):
        words += [facts] if (facts := told(entry.data)) and not move else []
        words.append(f"by {entry.who.partition(':')[2] or entry.who}")
    line = " ".join(words) + (f": {entry.why}" if entry.why else "")
    return f"{entry.level.upper()} {line}" if _alarming(entry) else line


def change(before: str, after: str) -> str:
    return f"{before} → {after}" if before and after else after


def told(data: dict[str, Any]) -> str:
    """`qps 150, in_flight 3`."""
    shown = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in data.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items() if name not in _NOT_TOLD)


def _alarming(entry: JournalEntry) -> bool:
    """An act is no trouble, and INVALID is a result: only an attempt that crashed went wrong."""
    if entry.what.startswith("act.") or (entry.what == "attempt.end" and entry.after != "CRASHED"):
        return False
    return entry.level != "info"
