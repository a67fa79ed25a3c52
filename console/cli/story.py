"""Journal entries in words, the same wherever the command line tells one: progress lines, `status`, `show`."""

from __future__ import annotations

from typing import Any

from harness.wire.control import JournalEntry

#: Facts for programs: a person knows the replica by its slot.
_NOT_TOLD = frozenset({"incarnation", "nth", "epoch"})


def in_words(entry: JournalEntry) -> str:
    """`act.set_rate 144 QPS → 150 QPS by kim@desk: more`; `ERROR replica.state node001/gpu0 READY → LOST: lease over`."""
    if entry.what.startswith("act."):
        return act_in_words(
            entry.what, entry.who, subject=entry.subject, why=entry.why, before=entry.before, after=entry.after, data=entry.data
        )
    line = " ".join(filter(None, (entry.what, entry.subject, change(entry.before, entry.after))))
    line += f": {entry.why}" if entry.why else ""
    return f"{entry.level.upper()} {line}" if _alarming(entry) else line


def act_in_words(act: str, who: str, *, subject: str, why: str, before: str, after: str, data: dict[str, Any]) -> str:
    """What was done, to what, by whom and why; the head's answer, where there is one, at the end."""
    facts = told({name: value for name, value in data.items() if _plain(value) not in after.split()})
    moved = change(before, after) if before else ""
    line = " ".join(filter(None, (act, subject, moved, f"({facts})" if facts else "", f"by {who.partition(':')[2] or who}")))
    line += f": {why}" if why else ""
    return f"{line} → {after}" if after and not before else line


def change(before: str, after: str) -> str:
    return f"{before} → {after}" if before and after and before != after else after


def told(data: dict[str, Any]) -> str:
    """`qps 150, in_flight 3`."""
    return ", ".join(f"{name} {_plain(value)}" for name, value in data.items() if name not in _NOT_TOLD)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _alarming(entry: JournalEntry) -> bool:
    """INVALID is a result: only an attempt that crashed went wrong."""
    return entry.level != "info" and not (entry.what == "attempt.end" and entry.after != "CRASHED")
