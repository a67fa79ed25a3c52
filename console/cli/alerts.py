"""`paceline alerts`: what fired in a run, from its journal: when, how long, where, and the likely cause."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from console.cli.errors import OK
from console.cli.found import any_run
from console.cli.output import clock, plural, say, say_json, typed, when
from harness.cluster.local import head_alive

if TYPE_CHECKING:
    from harness.records.reader import Record
    from harness.wire.control import JournalEntry

_SHOWN = 6
_GRADES = ("info", "warn", "crit")


def alerts(
    run: str | None = None,
    /,
    *,
    json: Annotated[bool, Parameter(name="--json", negative="", help="Print a list of alerts")] = False,
) -> int:
    """Alerts of a run: start, duration, severity, rule, subject, what was seen, and the likely cause; the newest last."""
    from harness.records.reader import Record

    folder = any_run(run)
    record = Record(folder)
    found = alerts_of(record.journal(), goes_on=head_alive(folder))
    if json:
        say_json(found)
        return OK
    for row in found:
        say(alert_line(row))
    if not found:
        say(f"{folder.name}: no alert fired{_why_none(record)}")
    for problem in record.problems:
        say(f"record: {problem}")
    return OK


def alerts_of(journal: Iterable[JournalEntry], *, goes_on: bool) -> list[dict[str, Any]]:
    """By start. Of a run whose head ended without a word nobody knows when its last alerts ended."""
    found: list[dict[str, Any]] = []
    firing: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in journal:
        key = (str(entry.data.get("rule", "")), entry.subject)
        if entry.what == "alert.start":
            row = {
                "rule": key[0], "subject": entry.subject, "severity": entry.data.get("severity", ""),
                "start_unix": entry.unix, "end_unix": None, "duration_s": None, "firing": True,
                "value": entry.data.get("value"), "text": entry.why, "cause": entry.data.get("cause", ""),
                "act": entry.data.get("act", ""), "attempt": entry.attempt or None,
            }  # fmt: skip
            found.append(row)
            firing[key] = row
        elif entry.what == "alert.end" and key in firing:
            row = firing.pop(key)
            row |= {"end_unix": entry.unix, "duration_s": entry.unix - row["start_unix"], "firing": False}
    for row in firing.values():
        row["firing"] = goes_on
        row["duration_s"] = time.time() - row["start_unix"] if goes_on else None
    return found


def alert_line(row: dict[str, Any]) -> str:
    """`2026-11-30 10:00:07  1:23  warn  power_cap  node003/gpu1  power-capped 80 % of the time (likely cause: power cap)`."""
    lasted = "?" if row["duration_s"] is None else clock(row["duration_s"])
    ended = "still fires" if row["firing"] else "" if row["end_unix"] else "end not recorded"
    cause = f"likely cause: {row['cause']}" if row["cause"] else ""
    aside = "; ".join(filter(None, (cause, ended)))
    words = f"{row['text']} ({aside})" if aside else row["text"]
    return f"{when(row['start_unix'])}  {lasted:>7}  {row['severity']:<4}  {row['rule']}  {row['subject']}  {words}"


def say_alerts(found: list[dict[str, Any]], run: str) -> None:
    """A section of `show`: the gravest, and how many more there are."""
    if not found:
        return
    crit = sum(row["severity"] == "crit" for row in found)
    say(f"\nalerts    {plural(len(found), 'alert')}" + (f", {crit} of them critical" if crit else ""))
    grave = sorted(found, key=lambda row: -_GRADES.index(row["severity"]) if row["severity"] in _GRADES else 0)
    for row in sorted(grave[:_SHOWN], key=lambda row: row["start_unix"]):
        say(f"  {alert_line(row)}")
    if len(found) > _SHOWN:
        say(f"  and {len(found) - _SHOWN} more: {typed(f'alerts {run}')}")


def _why_none(record: Record) -> str:
    """An operator should not take silence for health where nobody watched."""
    watched = [entry for entry in record.journal() if entry.what == "metrics.source" and entry.after in ("ok", "partial")]
    return "" if watched else ", and none could: it had no source of GPU metrics that answered"
