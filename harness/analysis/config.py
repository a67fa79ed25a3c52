"""In which settings the replicas of a fleet are not alike: versions, engine arguments, kernels and other facts they registered.

By fleet.json; records of before it kept facts have none to compare. A replica counts as it was at the end of the attempt. Where
roles are split, replicas are compared within their role: prefill and decode are set up differently on purpose. Kernels and their
tables are compared within a node class besides, since each class has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.analysis.table import in_order
from harness.analysis.views import Difference, Finding, Variant
from harness.metrics.kernels import InUse, Replica, in_use, node_classes, odd_ones, of_kernels, splits, summary
from harness.records.errors import RecordError
from harness.records.fleetfile import FleetFile, GpusOf, read_fleet
from harness.records.runfile import AttemptRecord

if TYPE_CHECKING:
    from harness.records.reader import Record

Told = dict[str, dict[str, str]]  # slot → facts
NOT_TOLD = "(not told)"
_ROLE = "role"


def differences(record: Record, attempt: AttemptRecord | None) -> list[Difference]:
    """Fields by name."""
    told = _told(record, attempt)
    roles = sorted({facts.get(_ROLE, "") for facts in told.values()})
    found: list[Difference] = []
    for role in roles:
        mine = {slot: facts for slot, facts in told.items() if facts.get(_ROLE, "") == role}
        suffix = f" ({role})" if len(roles) > 1 and role else ""
        by_class = _by_class(mine)
        for name in sorted({name for facts in mine.values() for name in facts}):
            for node_class, members in by_class.items() if of_kernels(name) else [("", mine)]:
                named = f" ({node_class})" if node_class and len(by_class) > 1 else ""
                found += _difference(name, members, f"{named}{suffix}")
    return found


def kernels(record: Record, attempt: AttemptRecord | None) -> list[InUse]:
    """Which kernels of MoE layers ran, with which tables, on how many replicas."""
    return in_use(_told(record, attempt).values())


def odd_kernels(record: Record, attempt: AttemptRecord | None) -> list[Finding]:
    """Replicas with another kernel or table than most of their node class: worth a word though nothing was slow."""
    told = [Replica(slot, facts.get(_ROLE, ""), facts) for slot, facts in _told(record, attempt).items()]
    found = [f"{line}; first {first.slot}: {first.cause}" for line, first in summary(odd_ones(told)).items()]
    return [Finding("warn", f"{line}. See the settings in which replicas differ.", "config") for line in [*found, *splits(told)]]


def _told(record: Record, attempt: AttemptRecord | None) -> Told:
    fleet = _fleet(record)
    if fleet is None:
        return {}
    until = (attempt.ended_unix if attempt is not None else 0.0) or float("inf")
    return {slot: facts for slot, lives in fleet.slots.items() if (facts := _facts(fleet, lives, until))}


def _by_class(told: Told) -> dict[str, Told]:
    parted: dict[str, Told] = {}
    for (slot, facts), node_class in zip(told.items(), node_classes(list(told.values())), strict=True):
        parted.setdefault(node_class, {})[slot] = facts
    return parted


def _difference(name: str, told: Told, suffix: str) -> list[Difference]:
    variants: dict[str, list[str]] = {}
    for slot in sorted(told, key=in_order):
        variants.setdefault(told[slot].get(name, NOT_TOLD), []).append(slot)
    if len(variants) < 2:
        return []
    ordered = sorted(variants.items(), key=lambda each: (-len(each[1]), each[0]))
    return [Difference(name + suffix, [Variant(value, slots) for value, slots in ordered])]


def _fleet(record: Record) -> FleetFile | None:
    try:
        return read_fleet(record.folder.fleet_json)
    except RecordError as error:
        if str(error) not in record.problems:
            record.problems.append(str(error))
        return None


def _facts(fleet: FleetFile, lives: list[GpusOf], until: float) -> dict[str, str]:
    """Of the last life that began by then."""
    at_end = [life for life in lives if life.since_unix <= until] or lives[:1]
    number = at_end[-1].facts if at_end else None
    return fleet.facts[number] if number is not None and 0 <= number < len(fleet.facts) else {}
