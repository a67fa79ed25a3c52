"""What the journal of a run tells a head that takes it up again."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.records.journal import read_journal
from harness.records.layout import RunFolder
from harness.wire import states
from harness.wire.control import JournalEntry
from harness.wire.gpus import AlertRow


@dataclass(slots=True)
class Before:
    lives: dict[str, tuple[str, int]] = field(default_factory=dict)  # slot → last incarnation, how many there were
    drained: dict[str, str] = field(default_factory=dict)  # slot → incarnation that an operator had drained
    waived: set[str] = field(default_factory=set)
    wanted_nodes: int | None = None  # as the fleet was last scaled
    fired: dict[tuple[str, str], AlertRow] = field(default_factory=dict)  # (rule, subject) of alerts that had not ended

    @classmethod
    def of(cls, folder: RunFolder) -> Before:
        before = cls()
        for entry in read_journal(folder.journal):
            if entry.what == "act.waive":
                before.waived.add(entry.subject)
            elif entry.what == "alert.start":
                row = _alert_of(entry)
                before.fired[row.rule, row.subject] = row
            elif entry.what == "alert.end":
                before.fired.pop((str(entry.data.get("rule", "")), entry.subject), None)
            elif entry.what == "act.scale" and isinstance(entry.data.get("nodes"), int):
                before.wanted_nodes = int(entry.data["nodes"])
            elif entry.what == "replica.state":
                incarnation, nth = str(entry.data.get("incarnation", "")), entry.data.get("nth")
                if incarnation and isinstance(nth, int):
                    before.lives[entry.subject] = (incarnation, nth)
                if entry.after not in (states.DRAINING, states.DRAINED):
                    before.drained.pop(entry.subject, None)
            elif entry.what == "act.drain" and entry.who != "policy":
                before.drained[entry.subject] = str(entry.data.get("incarnation", ""))
            elif entry.what in ("act.recycle", "act.evict", "act.readmit"):
                before.drained.pop(entry.subject, None)
        return before


def _alert_of(entry: JournalEntry) -> AlertRow:
    value = entry.data.get("value")
    return AlertRow(
        rule=str(entry.data.get("rule", "")),
        subject=entry.subject,
        severity=str(entry.data.get("severity", "warn")),
        since_unix=entry.unix,
        value=float(value) if isinstance(value, int | float) else float("nan"),
        text=entry.why.removesuffix(f"; evict it: paceline evict {entry.subject}"),  # which is told again with it
        cause=str(entry.data.get("cause", "")),
        act=str(entry.data.get("act", "")),
    )
