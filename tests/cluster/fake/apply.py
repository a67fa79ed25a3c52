"""Server-side apply: who owns which field, what conflicts, and what goes when its owner leaves it out.

A field is the path of a leaf. Owners stand in metadata.managedFields as a real server writes them (fieldsV1), so kubectl
reads them too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .errors import ApiError, Json
from .kinds import copied
from .patches import SETS, item_key

#: ("f", name) of a map, ("k", '{"name":"a"}') of a keyed list, ("v", '"x"') of a set.
Step = tuple[str, str]
Path = tuple[Step, ...]
_ATOMIC = ("selector", "nodeSelector", "labelSelector", "matchLabels", "valueFrom", "emptyDir")
_NOBODYS = ("apiVersion", "kind")
_NOBODYS_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "generateName",
)


def applied(live: Json | None, config: Json, manager: str, *, force: bool, now: str, subresource: str = "") -> Json:
    """The object after `manager` applied `config`. Raises the 409 that names every field of somebody else."""
    wanted = set(leaves(config))
    entries: list[Json] = copied((live or {}).get("metadata", {}).get("managedFields") or [])
    mine = next((e for e in entries if _is(e, manager, "Apply", subresource)), None)
    owned = set(_paths(mine["fieldsV1"])) if mine else set()
    base: Json = copied(live) if live else {}
    others = [(entry, set(_paths(entry["fieldsV1"]))) for entry in entries if entry is not mine]
    contested = [
        (entry, path)
        for entry, paths in others
        for path in sorted(wanted & paths)
        if value_at(base, path) != value_at(config, path)
    ]
    if contested and not force:
        raise _conflict(contested)
    for entry, paths in others:
        taken = {path for other, path in contested if other is entry}
        if taken:
            entry["fieldsV1"] = _fields_v1(paths - taken)
    result: Json = _merged(base, {name: value for name, value in config.items() if name not in _NOBODYS}, "")
    held = set().union(*(set(_paths(entry["fieldsV1"])) for entry, _ in others)) if others else set()
    for path in sorted({_widest(path, wanted | held) for path in owned - wanted - held}, reverse=True):
        if not any(other[: len(path)] == path for other in wanted | held):
            _remove(result, path)
    same = mine is not None and owned == wanted and not contested
    new = mine if same else _entry(manager, "Apply", config["apiVersion"], wanted, now, subresource)
    kept = [new if entry is mine else entry for entry in entries if entry is mine or entry["fieldsV1"]]
    result.setdefault("metadata", {})["managedFields"] = kept if mine else [*kept, new]
    result["apiVersion"], result["kind"] = config["apiVersion"], config["kind"]
    return result


def updated(before: Json | None, after: Json, manager: str, *, now: str, subresource: str = "") -> None:
    """In place: whoever writes without applying owns what it changed, and nobody else does any longer."""
    metadata = after["metadata"]
    old = {path: value_at(before, path) for path in leaves(before)} if before else {}
    new = {path: value_at(after, path) for path in leaves(after)}
    if subresource == "status":
        new = {path: value for path, value in new.items() if path[0] == ("f", "status")}
        old = {path: value for path, value in old.items() if path[0] == ("f", "status")}
    else:
        new = {path: value for path, value in new.items() if path[0] != ("f", "status")}
        old = {path: value for path, value in old.items() if path[0] != ("f", "status")}
    changed = {path for path, value in new.items() if old.get(path, _Missing) != value}
    gone = set(old) - set(new)
    if not changed and not gone:
        return
    entries = []
    mine: set[Path] = set()
    for entry in copied(((before or {}).get("metadata") or {}).get("managedFields") or []):
        paths = set(_paths(entry["fieldsV1"]))
        if _is(entry, manager, "Update", subresource):
            mine = paths
            continue
        if paths & (changed | gone):
            entry["fieldsV1"] = _fields_v1(paths - changed - gone)
        if entry["fieldsV1"]:
            entries.append(entry)
    mine = (mine - gone) | changed
    if mine:
        entries.append(_entry(manager, "Update", after["apiVersion"], mine, now, subresource))
    metadata["managedFields"] = entries


def leaves(obj: Json) -> Iterator[Path]:
    for name, value in obj.items():
        if name in _NOBODYS:
            continue
        if name == "metadata":
            value = {key: inner for key, inner in (value or {}).items() if key not in _NOBODYS_METADATA}
            if not value:
                continue
        yield from _leaves((("f", name),), name, value)


def value_at(obj: Any, path: Path) -> Any:
    for how, name in path:
        if how == "f":
            obj = obj.get(name) if isinstance(obj, dict) else None
        elif how == "v":
            return json.loads(name) if isinstance(obj, list) and json.loads(name) in obj else None
        else:
            obj = next((item for item in obj or () if _has(item, name)), None)
        if obj is None:
            return None
    return obj


def shown(path: Path) -> str:
    """.spec.template.spec.containers[name="worker"].image"""
    text = ""
    for how, name in path:
        if how == "f":
            text += f".{name}"
        elif how == "v":
            text += f"[={name}]"
        else:
            text += "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(name).items()) + "]"
    return text


class _Missing:
    pass


def _leaves(at: Path, field: str, value: Any) -> Iterator[Path]:
    if isinstance(value, dict) and value and field not in _ATOMIC:
        for name, inner in value.items():
            yield from _leaves((*at, ("f", name)), name, inner)
    elif isinstance(value, list) and value and field in SETS:
        for item in value:
            yield (*at, ("v", json.dumps(item)))
    elif isinstance(value, list) and value and all(item_key(field, item) for item in value):
        for item in value:
            step = ("k", _key(field, item))
            for name, inner in item.items():
                yield from _leaves((*at, step, ("f", name)), name, inner)
    else:
        yield at


def _key(field: str, item: Json) -> str:
    name = item_key(field, item)
    assert name is not None
    return json.dumps({name: item[name]}, separators=(",", ":"))


def _has(item: Any, key: str) -> bool:
    return isinstance(item, dict) and all(item.get(name) == value for name, value in json.loads(key).items())


def _merged(target: Any, config: Any, field: str) -> Any:
    if isinstance(config, dict) and field not in _ATOMIC:
        result = dict(target) if isinstance(target, dict) else {}
        for name, value in config.items():
            result[name] = _merged(result.get(name), value, name)
        return result
    if isinstance(config, list) and config and field in SETS:
        return [*(target or ()), *(item for item in config if item not in (target or ()))]
    if isinstance(config, list) and config and all(item_key(field, item) for item in config):
        result_list = list(target or ())
        for item in config:
            key = _key(field, item)
            at = next((i for i, other in enumerate(result_list) if _has(other, key)), None)
            if at is None:
                result_list.append(copied(item))
            else:
                result_list[at] = _merged(result_list[at], item, "")
        return result_list
    return copied(config)


def _remove(obj: Json, path: Path) -> None:
    """Also the maps and items that become empty by it."""
    holder: Any = value_at(obj, path[:-1]) if len(path) > 1 else obj
    how, name = path[-1]
    if holder is None:
        return
    if how == "f":
        holder.pop(name, None)
    elif how == "k":
        holder[:] = [item for item in holder if not _has(item, name)]
    else:
        holder[:] = [item for item in holder if item != json.loads(name)]
    parent = path[:-1]
    emptied = len(parent) > 1 and (not holder or (parent[-1][0] == "k" and set(holder) <= set(json.loads(parent[-1][1]))))
    if emptied:
        _remove(obj, parent)


def _widest(path: Path, held: set[Path]) -> Path:
    """An item of a list in which nobody holds a field any longer goes as a whole, with what was defaulted in it."""
    for i, (how, _) in enumerate(path):
        item = path[: i + 1]
        if how == "k" and not any(other[: len(item)] == item for other in held):
            return item
    return path


def _paths(fields: Json, at: Path = ()) -> Iterator[Path]:
    for name, inner in fields.items():
        if name == ".":
            continue
        how, _, rest = name.partition(":")
        here = (*at, (how, rest))
        if inner:
            yield from _paths(inner, here)
        else:
            yield here


def _fields_v1(paths: set[Path]) -> Json:
    tree: Json = {}
    for path in sorted(paths):
        at = tree
        for how, name in path:
            at = at.setdefault(f"{how}:{name}", {})
    return tree


def _entry(manager: str, operation: str, api_version: str, paths: set[Path], now: str, subresource: str) -> Json:
    entry: Json = {
        "manager": manager,
        "operation": operation,
        "apiVersion": api_version,
        "time": now,
        "fieldsType": "FieldsV1",
        "fieldsV1": _fields_v1(paths),
    }
    return entry | ({"subresource": subresource} if subresource else {})


def _is(entry: Json, manager: str, operation: str, subresource: str) -> bool:
    return (entry["manager"], entry["operation"], entry.get("subresource", "")) == (manager, operation, subresource)


def _conflict(contested: list[tuple[Json, Path]]) -> ApiError:
    def words(entry: Json) -> str:
        using = f' with subresource "{entry["subresource"]}"' if entry.get("subresource") else ""
        return f'conflict with "{entry["manager"]}"{using} using {entry["apiVersion"]}'

    causes = [{"reason": "FieldManagerConflict", "message": words(entry), "field": shown(path)} for entry, path in contested]
    if len(causes) == 1:
        told = f"{causes[0]['message']}: {causes[0]['field']}"
    else:
        by_manager: dict[str, list[str]] = {}
        for cause in causes:
            by_manager.setdefault(cause["message"], []).append(f"- {cause['field']}")
        told = "\n".join(f"{who}:\n" + "\n".join(fields) for who, fields in by_manager.items())
    count = f"{len(causes)} conflict{'s' if len(causes) > 1 else ''}"
    return ApiError(409, "Conflict", f"Apply failed with {count}: {told}", {"causes": causes})
