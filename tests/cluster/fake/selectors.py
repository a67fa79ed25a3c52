"""Label selectors, as a query parameter and as an object, and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .errors import Json, bad_request

Matches = Callable[[Json], bool]
_SETS = re.compile(r"^\s*([^\s!=,()]+)\s+(in|notin)\s*\(([^)]*)\)\s*$")
_EQUALS = re.compile(r"^\s*([^\s!=,()]+)\s*(==|=|!=)\s*([^\s,()!=]*)\s*$")
_EXISTS = re.compile(r"^\s*(!?)\s*([^\s!=,()]+)\s*$")
_FIELDS = {
    "Pod": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
    ),
    "Event": (
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    "Node": ("spec.unschedulable",),
    "Job": ("status.successful",),
    "Secret": ("type",),
    "Namespace": ("status.phase", "name"),
}


def by_labels(text: str) -> Matches:
    """As `labelSelector=` has it: a=b, a!=b, a in (b,c), a notin (b), a, !a."""
    tests = [_label_test(part) for part in re.split(r",(?![^(]*\))", text) if part.strip()]

    def matches(obj: Json) -> bool:
        labels = (obj.get("metadata") or {}).get("labels") or {}
        return all(test(labels) for test in tests)

    return matches


def _label_test(part: str) -> Matches:
    if found := _SETS.match(part):
        name, how, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        if how == "in":
            return lambda labels: labels.get(name) in values
        return lambda labels: labels.get(name) not in values
    if found := _EQUALS.match(part):
        name, how, value = found.groups()
        if how == "!=":
            return lambda labels: labels.get(name) != value
        return lambda labels: labels.get(name) == value
    if found := _EXISTS.match(part):
        missing, name = found.groups()
        return lambda labels: (name in labels) != bool(missing)
    raise bad_request(f'unable to parse requirement: found "{part.strip()}", expected: identifier')


def selects(selector: Json | None, labels: Json | None) -> bool:
    """A LabelSelector object against an object's labels. None selects nothing, an empty one everything."""
    if selector is None:
        return False
    found = labels or {}
    if any(found.get(name) != value for name, value in (selector.get("matchLabels") or {}).items()):
        return False
    for rule in selector.get("matchExpressions") or ():
        has, value = rule["key"] in found, found.get(rule["key"])
        fits = {
            "In": has and value in rule.get("values", ()),
            "NotIn": value not in rule.get("values", ()),
            "Exists": has,
            "DoesNotExist": not has,
        }[rule["operator"]]
        if not fits:
            return False
    return True


def by_fields(kind: str, text: str) -> Matches:
    """As `fieldSelector=` has it: path=value, path!=value. A field that the kind does not offer is a 400."""
    tests: list[tuple[str, bool, str]] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        found = re.match(r"^([^=!]+?)\s*(==|=|!=)\s*(.*)$", part)
        if found is None:
            raise bad_request(f"invalid selector: '{part}'; can't understand '{part}'")
        path, how, value = found.groups()
        if path not in ("metadata.name", "metadata.namespace", *_FIELDS.get(kind, ())):
            raise bad_request(f'field label not supported: "{path}"')
        tests.append((path, how != "!=", value))

    def matches(obj: Json) -> bool:
        return all((_field(obj, path) == value) == wanted for path, wanted, value in tests)

    return matches


def _field(obj: Json, path: str) -> str:
    if path == "source":
        return str((obj.get("source") or {}).get("component", ""))
    value: Any = obj
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, bool) or (value is None and path == "spec.unschedulable"):
        return str(bool(value)).lower()
    return "" if value is None else str(value)
