"""What the alert rules find in a round: their expressions asked of a server, or their twins computed from what was read.

Only what concerns this fleet is found: a server may know other people's GPUs. The group `own` is not asked for, because what
it says of this run the head knows without asking, and what it says of other runs is none of its business.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.metrics.gpu.alertbook import FLEET, AlertBook, Change, Finding, Findings, words
from harness.metrics.gpu.base import Curve, MetricsSource, SeriesKey, SourceError
from harness.metrics.gpu.rules import EXPECTED_METRIC, Rule
from harness.metrics.gpu.selectors import asked_of
from harness.metrics.gpu.twins import NO_SERVER, History, Seen, median, twin_of
from harness.metricspec import GpuSourceSpec

__all__ = ["FLEET", "AlertBook", "Change", "Finding", "Findings", "find", "words"]

_MARK: Final = "paceline_rule"
_MOST_FINDINGS: Final = 5000  # series of one answer
_UNASKED: Final = "own"
#: What the join knows better than a server, which counts the GPUs of all machines that it scrapes.
_OF_THE_JOIN: Final = "gpus_missing"
_PORT: Final = re.compile(r":\d{1,5}$")
_KEY_LABELS: Final = {
    "host": ("exported_hostname", "exported_Hostname", "Hostname", "hostname", "exported_node", "node", "vm_name"),
    "gpu": ("gpu_id", "gpu"),
    "uuid": ("gpu_uuid", "UUID"),
    "pci": ("pci_bus_id",),
    "pod": ("exported_pod", "pod"),
    "slot": ("replica",),
    "engine": ("engine", "dp_rank"),
}


class Place(Protocol):
    @property
    def slot(self) -> str: ...
    @property
    def hosts(self) -> tuple[str, ...]: ...
    @property
    def pod(self) -> str: ...


class Fleet(Protocol):
    """Of Joined what is needed here. `places`: in the order of the columns; `locate`: the place of a series, None if unknown."""

    @property
    def matched(self) -> int: ...
    @property
    def places(self) -> Sequence[Place]: ...
    def locate(self, key: SeriesKey) -> int | None: ...
    def same_host(self, host: str) -> int | None: ...


@dataclass(frozen=True, slots=True)
class _Round:
    history: History
    fleet: Fleet
    expected: int
    serving: NDArray[np.bool_] | None
    spec: GpuSourceSpec
    window_s: float
    nodes: NDArray[np.int64]  # number of the node of each place


async def find(
    source: MetricsSource,
    rules: Sequence[Rule],
    history: History,
    joined: Fleet,
    expected_gpus: int,
    *,
    profiles: Sequence[str] = (),
    serving: NDArray[np.bool_] | None = None,
    spec: GpuSourceSpec | None = None,
    window_s: float = 60.0,
) -> Findings:
    """`profiles`: that answered; `serving`: GPUs of replicas that are READY; `window_s`: what a rule's [1m] becomes for sources
    that have too few samples in a minute. Never raises SourceError: rules that could not be asked for are missing from the
    answer, and `problems` says why."""
    this = _Round(history, joined, expected_gpus, serving, spec or GpuSourceSpec(), window_s, _nodes(joined.places))
    findings = Findings()
    suiting = [rule for rule in rules if rule.group != _UNASKED and rule.suits(list(profiles))]
    if source.kind == "promql":
        await _ask(source, [rule for rule in suiting if not _knows_better(rule)], this, findings)
        suiting = [rule for rule in suiting if _knows_better(rule)]
    for rule in suiting:
        _compute(rule, this, findings)
    for rule_id in findings:
        findings.not_evaluated.pop(rule_id, None)
    return findings


def _knows_better(rule: Rule) -> bool:
    return rule.id == _OF_THE_JOIN and twin_of(rule) is not None


# --- twins ---------------------------------------------------------------------------------------------------


def _compute(rule: Rule, this: _Round, findings: Findings) -> None:
    twin = twin_of(rule)
    if twin is None:
        findings.not_evaluated.setdefault(rule.id, NO_SERVER)
        return
    places = this.fleet.places
    held = twin(Seen(this.history, this.nodes, this.expected, this.fleet.matched))
    if not held.known:
        return  # what fired before a restart goes on until it can be judged
    found = findings.setdefault(rule.id, [])
    if held.gpus is not None:
        for position in np.flatnonzero(np.isfinite(held.gpus)).tolist():
            if _counts(rule, position, this):
                _add(found, rule, float(held.gpus[position]), places[position].slot, this)
    if np.isfinite(held.fleet):
        _add(found, rule, held.fleet, FLEET, this)


def _nodes(places: Sequence[Place]) -> NDArray[np.int64]:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(_node(place), len(numbers)) for place in places], np.int64)


def _node(place: Place) -> str:
    return place.slot.partition("/")[0]


# --- PromQL --------------------------------------------------------------------------------------------------


async def _ask(source: MetricsSource, rules: Sequence[Rule], this: _Round, findings: Findings) -> None:
    """One query a group, since each asks for the same series again and again; rule by rule where a server refuses that."""
    for group in dict.fromkeys(rule.group for rule in rules):
        of_group = [rule for rule in rules if rule.group == group]
        try:
            await _ask_group(source, of_group, this, findings)
        except SourceError as error:
            if error.trouble != "bad_query":
                findings.problems.append(f"alert rules were not asked for: {error}")
                return
            await _ask_each(source, of_group, this, findings)


async def _ask_group(source: MetricsSource, rules: Sequence[Rule], this: _Round, findings: Findings) -> None:
    marked = [f'label_replace(({_expression(rule, this)}), "{_MARK}", "{rule.id}", "", "")' for rule in rules]
    answer = await source.query("\nor\n".join(marked), most=_MOST_FINDINGS)
    by_id = {rule.id: rule for rule in rules}
    for rule in rules:
        findings.setdefault(rule.id, [])
    for curve in answer.curves:
        rule = by_id[curve.labels[_MARK]]
        _take(findings[rule.id], rule, curve, this)


async def _ask_each(source: MetricsSource, rules: Sequence[Rule], this: _Round, findings: Findings) -> None:
    for rule in rules:
        try:
            answer = await source.query(_expression(rule, this), most=_MOST_FINDINGS)
        except SourceError as error:
            findings.problems.append(f"alert rule {rule.id}: {error}")
            continue
        found = findings.setdefault(rule.id, [])
        for curve in answer.curves:
            _take(found, rule, curve, this)


def _expression(rule: Rule, this: _Round) -> str:
    numbers = {EXPECTED_METRIC: float(this.expected)}
    text = asked_of(rule.expr, prefix=this.spec.prefix, matchers=this.spec.matchers, numbers=numbers)
    return text.replace("[1m]", f"[{round(this.window_s)}s]") if this.window_s > 60 else text


def _take(found: list[Finding], rule: Rule, curve: Curve, this: _Round) -> None:
    if len(curve.values) == 0:
        return
    labels = {name: value for name, value in curve.labels.items() if name != _MARK}
    subject, position = _subject(labels, this.fleet)
    if subject is None or (position is not None and not _counts(rule, position, this)):
        return
    detail = labels.get("instance") or labels.get("persistentvolumeclaim") or labels.get("pod", "") if subject == FLEET else ""
    _add(found, rule, float(curve.values[-1]), subject, this, key=_key(labels), detail=detail)


def _subject(labels: Mapping[str, str], fleet: Fleet) -> tuple[str | None, int | None]:
    """A slot with its position, a node, the fleet; None: of somebody else."""
    key = _key(labels)
    position = fleet.locate(key)
    if position is not None:
        return fleet.places[position].slot, position
    if key.gpu or key.uuid or key.pci or key.slot:
        return None, None
    if key.host and (position := fleet.same_host(key.host)) is not None:
        return _node(fleet.places[position]), None
    if key.pod:
        return _subject_of_pod(key.pod, fleet.places), None
    # A target's address may be of anything that is scraped; a host that is named is somebody else's.
    return (None if any(labels.get(name) for name in _KEY_LABELS["host"]) else FLEET), None


def _subject_of_pod(pod: str, places: Iterable[Place]) -> str | None:
    """The node of a worker's pod; the head's pod is the fleet's."""
    worker = "-worker-"
    for place in places:
        if place.pod == pod:
            return _node(place)
        if worker in place.pod and pod.startswith(place.pod.rpartition(worker)[0] + "-head-"):
            return FLEET
    return None


def _key(labels: Mapping[str, str]) -> SeriesKey:
    found = {name: next((labels[one] for one in candidates if labels.get(one)), "") for name, candidates in _KEY_LABELS.items()}
    found["host"] = found["host"] or _PORT.sub("", labels.get("instance", ""))
    return SeriesKey(**found)


# --- both ----------------------------------------------------------------------------------------------------


def _counts(rule: Rule, position: int, this: _Round) -> bool:
    return not rule.serving or this.serving is None or bool(this.serving[position])


def _add(
    found: list[Finding], rule: Rule, value: float, subject: str, this: _Round, *, key: SeriesKey | None = None, detail: str = ""
) -> None:
    column = this.history.last(rule.role) if rule.role else None
    text = words(rule, value, float("nan") if column is None else median(column))
    found.append(Finding(key, value, subject, f"{text} ({detail})" if detail else text))
