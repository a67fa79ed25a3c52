"""The book of alerts: what the rules find in each round becomes starts and ends.

As Prometheus does it, an alert starts once its rule has held for as long as the rule says. Where a rule could not be evaluated,
what fired goes on firing: nobody has seen it end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.metrics.gpu.base import SeriesKey
from harness.metrics.gpu.rules import Rule
from harness.wire.gpus import AlertRow

FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule holds, for a GPU or engine, a node, or (no key) the fleet."""

    key: SeriesKey | None
    value: float
    subject: str = ""  # slot or node; "": of the key, else the fleet
    text: str = ""  # with figures; "": the rule's summary


@dataclass(frozen=True, slots=True)
class Change:
    """`row` as it fires, or as it last was."""

    started: bool
    row: AlertRow


class Findings(dict[str, list[Finding]]):
    """By id of the rule. An id that is missing was not evaluated in this round; an empty list was, and found nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []  # rules that could not be evaluated, in words
        self.not_evaluated: dict[str, str] = {}  # rules that this source never can → why


@dataclass(slots=True)
class _Held:
    """A rule that holds for a subject, whether or not long enough to fire."""

    since_unix: float
    finding: Finding
    fires: bool = False
    seen_unix: float = -math.inf


@dataclass(slots=True)
class AlertBook:
    """`clock`: seconds since 1970, for rounds that do not say when they were."""

    rules: Sequence[Rule]
    clock: Callable[[], float]
    _held: dict[tuple[str, str], _Held] = field(default_factory=dict, init=False)
    _by_id: dict[str, Rule] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for rule in self.rules:
            self._by_id.setdefault(rule.id, rule)

    def update(self, findings: Mapping[str, Sequence[Finding]], now: float | None = None) -> list[Change]:
        """Starts and ends of this round, gravest first."""
        now = self.clock() if now is None else now
        changes: list[Change] = []
        for rule_id, found in findings.items():
            rule = self._by_id.get(rule_id)
            if rule is not None:
                changes.extend(self._judge(rule, _by_subject(found), now))
        return sorted(changes, key=lambda change: (-_grade(change.row.severity), change.row.rule, change.row.subject))

    def rows(self) -> list[AlertRow]:
        """What fires, gravest first, then oldest."""
        rows = [self._row(rule, subject, held) for (rule, subject), held in self._held.items() if held.fires]
        return sorted(rows, key=lambda row: (-_grade(row.severity), row.since_unix, row.subject))

    def restore(self, rows: Iterable[AlertRow]) -> None:
        """What fired when another head ended: it goes on without a new start, or ends when a round does not find it."""
        for row in rows:
            if row.rule in self._by_id:
                finding = Finding(None, row.value, row.subject, row.text)
                self._held[row.rule, row.subject] = _Held(row.since_unix, finding, fires=True)

    def end_all(self) -> list[Change]:
        """The run ends, and everything that fires with it."""
        rows = self.rows()
        self._held.clear()
        return [Change(False, row) for row in rows]

    def _judge(self, rule: Rule, found: dict[str, Finding], now: float) -> Iterable[Change]:
        gone = [key for key in self._held if key[0] == rule.id and key[1] not in found]
        for key in gone:
            held = self._held[key]
            if held.fires and now - held.seen_unix < rule.keep_s:
                continue
            del self._held[key]
            if held.fires:
                yield Change(False, self._row(*key, held))
        for subject, finding in found.items():
            held = self._held.setdefault((rule.id, subject), _Held(now, finding))
            held.finding, held.seen_unix = finding, now
            if not held.fires and now - held.since_unix >= rule.for_s:
                held.fires = True
                yield Change(True, self._row(rule.id, subject, held))

    def _row(self, rule_id: str, subject: str, held: _Held) -> AlertRow:
        rule, finding = self._by_id[rule_id], held.finding
        return AlertRow(
            rule=rule_id,
            subject=subject,
            severity=rule.severity,
            since_unix=held.since_unix,
            value=finding.value,
            text=finding.text or rule.summary,
            cause=rule.cause,
            act=rule.act,
        )


def _by_subject(found: Sequence[Finding]) -> dict[str, Finding]:
    """One a subject, the first: a replica of several GPUs is one subject, and its text says how many more there are."""
    first: dict[str, Finding] = {}
    more: dict[str, int] = {}
    for finding in found:
        subject = finding.subject or subject_of(finding.key)
        if subject in first:
            more[subject] = more.get(subject, 0) + 1
        else:
            first[subject] = finding
    for subject, count in more.items():
        one = first[subject]
        first[subject] = Finding(one.key, one.value, one.subject, f"{one.text} (and {count} more)" if one.text else "")
    return first


def subject_of(key: SeriesKey | None) -> str:
    if key is None:
        return FLEET
    return key.slot or key.host or FLEET


def _grade(severity: str) -> int:
    return ("info", "warn", "crit").index(severity) if severity in ("info", "warn", "crit") else 0


# --- words ---------------------------------------------------------------------------------------------------


def words(rule: Rule, value: float, median: float) -> str:
    """The rule's text with its figures; without the median where nobody knows it."""
    text = rule.text or rule.summary
    if math.isnan(median):
        text = text.replace(", fleet median {median}", "")
    return text.replace("{value}", figure(value, rule.unit)).replace("{median}", figure(median, rule.unit))


def figure(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "unknown"
    if unit == "share":
        return f"{100 * value:.0f} %"
    if unit == "percent":
        return f"{value:.0f} %"
    if unit == "celsius":
        return f"{value:.0f} °C"
    if unit == "mhz":
        return f"{value:.0f} MHz"
    if unit == "seconds":
        return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"
    return f"{value:.0f}" if unit == "count" else f"{value:.3g}"
