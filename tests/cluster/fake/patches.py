"""Merge patch (RFC 7386), Kubernetes' strategic merge patch, where lists of named things merge by key, and JSON patch."""

from __future__ import annotations

from typing import Any

from .errors import ApiError, Json
from .kinds import copied

#: Field → the key of its items, where a list is a map in disguise. All other lists are replaced as a whole.
MERGE_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "port"),
    "conditions": ("type",),
    "addresses": ("type",),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey",),
    "secrets": ("name",),
}
#: Lists of plain values that merge as sets.
SETS = ("finalizers",)
_DIRECTIVES = ("$patch", "$retainKeys")


def merge_patch(target: Any, patch: Any) -> Any:
    """A new value; None removes."""
    if not isinstance(patch, dict):
        return copied(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


def strategic_merge(target: Json, patch: Json) -> Json:
    """A new object."""
    if patch.get("$patch") == "replace":
        return {name: copied(value) for name, value in patch.items() if name != "$patch"}
    result = dict(target)
    for name, value in patch.items():
        if name in _DIRECTIVES or name.startswith("$setElementOrder/"):
            continue
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            result[field] = [item for item in result.get(field) or () if item not in value]
        elif value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            if value.get("$patch") == "delete":
                result.pop(name, None)
            else:
                current = result.get(name)
                result[name] = strategic_merge(current if isinstance(current, dict) else {}, value)
        elif isinstance(value, list):
            result[name] = _merged_list(name, result.get(name) or [], value)
        else:
            result[name] = value
    return result


def item_key(field: str, item: Any) -> str | None:
    """The name of the key by which items of this list are told apart; None: the list is one value."""
    for name in MERGE_KEYS.get(field, ()):
        if isinstance(item, dict) and name in item:
            return name
    return None


def _merged_list(field: str, current: list[Any], patch: list[Any]) -> list[Any]:
    if field in SETS:
        return [*current, *(item for item in patch if item not in current)]
    keys = [item_key(field, item) for item in patch]
    if not patch or any(key is None and not _is_directive(item) for key, item in zip(keys, patch, strict=True)):
        return list(copied(patch)) if field not in MERGE_KEYS or patch else current
    result = list(current)
    for key, item in zip(keys, patch, strict=True):
        if key is None:  # {"$patch": "replace"}: only what this patch lists stays
            result = []
            continue
        at = next((i for i, other in enumerate(result) if other.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append({name: copied(value) for name, value in item.items() if not name.startswith("$")})
        else:
            result[at] = strategic_merge(result[at], item)
    return result


def _is_directive(item: Any) -> bool:
    return isinstance(item, dict) and item.get("$patch") == "replace"


def json_patch(target: Json, steps: Any) -> Json:
    """RFC 6902, as far as kubectl uses it: add, replace, remove and test. A new object."""
    result = copied(target)
    for step in steps:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        try:
            holder: Any = result
            for part in way:
                holder = holder[int(part)] if isinstance(holder, list) else holder[part]
            _step(holder, last, step)
        except (KeyError, IndexError, ValueError, TypeError):
            why = f"the server rejected our request due to an error in our request: {step['op']} {step['path']} cannot be done"
            raise ApiError(422, "Invalid", why) from None
    return result


def _step(holder: Any, last: str, step: Json) -> None:
    at: Any = last
    if isinstance(holder, list):
        at = len(holder) if last == "-" else int(last)
    match step["op"]:
        case "add" if isinstance(holder, list):
            holder.insert(at, copied(step["value"]))
        case "add":
            holder[at] = copied(step["value"])
        case "replace":
            holder[at] = copied(step["value"])
        case "remove":
            del holder[at]
        case "test" if holder[at] == step["value"]:
            pass
        case _:
            raise ValueError(step["op"])
