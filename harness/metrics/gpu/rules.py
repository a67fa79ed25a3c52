"""Alert rules: one Prometheus rule file, read here as Prometheus reads it, and held to what the head needs beyond that.

What comes with paceline is rules/paceline.rules.yaml, which says what its labels and annotations mean. A user's own file
(metrics.rules) has the same form: every rule has a label `id` and a severity, an id may stand once in a group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import yaml  # type: ignore[import-untyped]

from harness.metrics.gpu.roles import ROLES
from harness.metrics.gpu.selectors import metric_names

Severity = Literal["info", "warn", "crit"]
Unit = Literal["", "number", "count", "share", "percent", "celsius", "mhz", "seconds"]
OWN_FILE: Final = Path(__file__).parent / "rules" / "paceline.rules.yaml"
#: The profiles whose exporters have the metrics of a group. Groups that are not named here are asked of every server.
GROUP_PROFILES: Final = {
    "amd": ("amd-dme", "crusoe-managed"),
    "nvidia": ("dcgm",),
    "engines": ("vllm", "sglang"),
    "own": ("paceline",),
}
#: In rules stands the head's metric; the head puts its number there.
EXPECTED_METRIC: Final = "paceline_gpus_expected"
_FIELDS: Final = {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
_DURATION: Final = re.compile(r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
_SECONDS: Final = (365 * 86400.0, 7 * 86400.0, 86400.0, 3600.0, 60.0, 1.0, 0.001)


class RulesError(ValueError):
    """A rule file cannot be used. Names file, rule, field, value, and what would be right."""


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    alert: str
    group: str
    expr: str
    for_s: float = 0.0
    keep_s: float = 0.0  # goes on firing so long after it was found last: a value that wavers at its threshold is one alert
    severity: Severity = "warn"
    act: str = ""  # evict: an operator should
    summary: str = ""
    cause: str = ""  # beside a straggler
    description: str = ""
    text: str = ""  # with {value} and {median}; "": the summary
    unit: Unit = ""
    role: str = ""  # of the median
    serving: bool = False  # says nothing about replicas that are not READY
    metrics: frozenset[str] = field(default=frozenset())

    def suits(self, profiles: tuple[str, ...] | list[str]) -> bool:
        """Whether a source that reads these profiles has the metrics; a source that does not say is asked."""
        wanted = GROUP_PROFILES.get(self.group)
        known = {profile for group in GROUP_PROFILES.values() for profile in group}
        return wanted is None or not profiles or bool(set(wanted) & set(profiles)) or not known & set(profiles)


def load_rules(path: str | None = None) -> list[Rule]:
    """Of this file, or those that come with paceline. Raises RulesError."""
    if path is None:
        return list(_own_rules())
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise RulesError(f"metrics.rules {path}: cannot be read ({error.strerror}); give a Prometheus rule file") from None
    except UnicodeDecodeError:
        raise RulesError(f"metrics.rules {path}: is not a text file in UTF-8; give a Prometheus rule file") from None
    return read_rules(text, path)


@cache
def _own_rules() -> tuple[Rule, ...]:
    return tuple(read_rules(OWN_FILE.read_text(encoding="utf-8"), OWN_FILE.name))


def read_rules(text: str, name: str) -> list[Rule]:
    """`name`: of the file, for what is told of it. Raises RulesError."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RulesError(f"{name}: is not YAML: {' '.join(str(error).split())}") from None
    groups = found.get("groups") if isinstance(found, dict) else None
    if not isinstance(groups, list) or not groups:
        raise RulesError(f"{name}: groups: is missing; a rule file of Prometheus begins with `groups:` and a list")
    rules: list[Rule] = []
    for nth, group in enumerate(groups):
        rules.extend(_rules_of(group, nth, name))
    _check_same_ids(rules, name)
    return rules


def _rules_of(group: Any, nth: int, name: str) -> Iterator[Rule]:
    if not isinstance(group, dict) or not isinstance(group.get("name"), str) or not isinstance(group.get("rules"), list):
        raise RulesError(f"{name}: group {nth + 1}: needs `name` and a list `rules`")
    seen: set[str] = set()
    for place, entry in enumerate(group["rules"]):
        if isinstance(entry, dict) and "record" in entry:
            continue  # recorded by the server, if it has this file too; the head records nothing
        rule = _rule(entry, group["name"], f"{name}: group {group['name']}, rule {place + 1}")
        if rule.id in seen:
            raise RulesError(
                f"{name}: group {group['name']}, rule {rule.alert}: labels.id {rule.id!r} stands twice in this group; ids differ"
            )
        seen.add(rule.id)
        yield rule


def _rule(entry: Any, group: str, where: str) -> Rule:
    if not isinstance(entry, dict) or not isinstance(entry.get("alert"), str) or not entry["alert"]:
        raise RulesError(f"{where}: alert: is missing; give the alert a name, as in `alert: GpuTooHot`")
    where = f"{where} ({entry['alert']})"
    for unknown in sorted(map(str, entry.keys() - _FIELDS)):
        raise RulesError(f"{where}: {unknown}: is no field of an alert rule; there are {', '.join(sorted(_FIELDS))}")
    expr = entry.get("expr")
    if not isinstance(expr, str) or not expr.strip():
        raise RulesError(f"{where}: expr: is missing; give a PromQL expression")
    _check_promql(expr, where)
    labels, annotations = (_texts(entry, part, where) for part in ("labels", "annotations"))
    severity = labels.get("severity", "")
    if severity not in get_args(Severity):
        raise RulesError(f"{where}: labels.severity {severity!r}: is not one of {', '.join(get_args(Severity))}")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", labels.get("id", "")):
        raise RulesError(f"{where}: labels.id {labels.get('id', '')!r}: use lower-case letters, digits and _, as in power_cap")
    act, only = labels.get("act", ""), annotations.get("only", "")
    text, unit, role = (annotations.get(name, "") for name in ("text", "unit", "role"))
    if act not in ("", "evict"):
        raise RulesError(f"{where}: labels.act {act!r}: is not evict; leave it out where nothing is to be done at once")
    if role and role not in ROLES:
        raise RulesError(f"{where}: annotations.role {role!r}: is none of {', '.join(ROLES)}")
    if unit not in get_args(Unit):
        raise RulesError(f"{where}: annotations.unit {unit!r}: is none of {', '.join(get_args(Unit)[1:])}")
    for hole in re.findall(r"\{([^{}]*)\}", text):
        if hole not in ("value", "median"):
            raise RulesError(f"{where}: annotations.text: {{{hole}}} stands for nothing; there are {{value}} and {{median}}")
    if only not in ("", "serving"):
        raise RulesError(f"{where}: annotations.only {only!r}: is not serving; leave it out for all GPUs")
    return Rule(
        id=labels["id"],
        alert=entry["alert"],
        group=group,
        expr=expr,
        for_s=_seconds(entry.get("for", "0s"), where, "for"),
        keep_s=_seconds(entry.get("keep_firing_for", "0s"), where, "keep_firing_for"),
        severity=cast(Severity, severity),
        act=act,
        summary=annotations.get("summary") or str(entry["alert"]),
        cause=annotations.get("cause", ""),
        description=annotations.get("description", ""),
        text=text,
        unit=cast(Unit, unit),
        role=role,
        serving=bool(only),
        metrics=metric_names(expr),
    )


def _texts(entry: dict[str, Any], part: str, where: str) -> dict[str, str]:
    found = entry.get(part) or {}
    if not isinstance(found, dict):
        raise RulesError(f"{where}: {part}: is {found!r}; give names and texts")
    for name, value in found.items():
        if not isinstance(value, str):
            raise RulesError(f"{where}: {part}.{name}: is {value!r}; give a text, in quotes where it looks like a number")
    return found


def _seconds(value: Any, where: str, name: str) -> float:
    match = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
    if match is None or not any(match.groups()):
        raise RulesError(f"{where}: {name}: {value!r} is no duration of Prometheus; write it as 30s or 1m30s")
    return sum(unit_s * int(number or 0) for unit_s, number in zip(_SECONDS, match.groups(), strict=True))


def _check_promql(expr: str, where: str) -> None:
    try:
        import promql_parser
    except ImportError:
        return  # where a run has no parser, its server is the one that refuses
    try:
        promql_parser.parse(expr)
    except ValueError as error:
        raise RulesError(f"{where}: expr: is not PromQL: {' '.join(str(error).split())}") from None


def _check_same_ids(rules: list[Rule], name: str) -> None:
    """An alert is one thing, from whichever exporter it is read."""
    first: dict[str, Rule] = {}
    for rule in rules:
        other = first.setdefault(rule.id, rule)
        for label in ("severity", "act", "for_s", "keep_s"):
            if getattr(rule, label) != getattr(other, label):
                shown = {"for_s": "for", "keep_s": "keep_firing_for"}.get(label, label)
                raise RulesError(
                    f"{name}: group {rule.group}, rule {rule.alert}: {shown}: {getattr(rule, label)!r}, but the same id"
                    f" {rule.id!r} has {getattr(other, label)!r} in group {other.group}; make them equal, or give another id"
                )
