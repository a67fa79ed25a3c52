"""What an object or a list becomes when the client asks for a Table or for metadata only."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal

from .errors import Json

Shape = Literal["object", "table", "metadata"]
_POD_COLUMNS = (
    ("Name", "string", 0),
    ("Ready", "string", 0),
    ("Status", "string", 0),
    ("Restarts", "string", 0),
    ("Age", "string", 0),
    ("IP", "string", 1),
    ("Node", "string", 1),
    ("Nominated Node", "string", 1),
    ("Readiness Gates", "string", 1),
)
_JOB_COLUMNS = (("Name", "string", 0), ("Status", "string", 0), ("Completions", "string", 0), ("Age", "string", 0))
_NODE_COLUMNS = (("Name", "string", 0), ("Status", "string", 0), ("Age", "string", 0))
_COLUMNS = (("Name", "string", 0), ("Age", "string", 0))


def shape_of(accept: str) -> Shape:
    """The first of the accepted forms that is known here."""
    for part in accept.split(","):
        if re.search(r"as=Table\b", part) and "v=v1beta1" not in part:
            return "table"
        if "as=PartialObjectMetadata" in part:
            return "metadata"
        if "application/json" in part or "*/*" in part:
            return "object"
    return "object"


def shaped(shape: Shape, kind: str, obj: Json, include: str, now_unix_s: float) -> Json:
    """One object."""
    if shape == "table":
        return table(kind, [obj], include, now_unix_s, {"resourceVersion": obj["metadata"].get("resourceVersion", "")})
    if shape == "metadata":
        return _metadata_of(obj)
    return obj


def shaped_list(shape: Shape, kind: str, listed: Json, include: str, now_unix_s: float) -> Json:
    if shape == "table":
        return table(kind, listed["items"], include, now_unix_s, listed["metadata"])
    if shape == "metadata":
        items = [_metadata_of(obj) for obj in listed["items"]]
        found = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
        return {**found, "metadata": listed["metadata"], "items": items}
    return listed


def table(kind: str, objects: list[Json], include: str, now_unix_s: float, metadata: Json) -> Json:
    columns, cells = _TABLES.get(kind, (_COLUMNS, _plain_cells))
    rows: list[Json] = []
    for obj in objects:
        row: Json = {"cells": cells(obj, now_unix_s)}
        if include == "Object":
            row["object"] = obj
        elif include != "None":
            row["object"] = _metadata_of(obj)
        else:
            row["object"] = None
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [
            {"name": name, "type": of, "format": "name" if name == "Name" else "", "description": name, "priority": priority}
            for name, of, priority in columns
        ],
        "rows": rows,
    }


def _metadata_of(obj: Json) -> Json:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _pod_cells(obj: Json, now_unix_s: float) -> list[Any]:
    containers = obj["spec"].get("containers") or ()
    statuses = obj.get("status", {}).get("containerStatuses") or []
    ready = sum(bool(status.get("ready")) for status in statuses)
    return [
        obj["metadata"]["name"],
        f"{ready}/{len(containers)}",
        pod_word(obj),
        str(sum(int(status.get("restartCount", 0)) for status in statuses)),
        _age(obj, now_unix_s),
        obj.get("status", {}).get("podIP") or "<none>",
        obj["spec"].get("nodeName") or "<none>",
        "<none>",
        "<none>",
    ]


def pod_word(obj: Json) -> str:
    """kubectl's STATUS: the reason that matters most, else the phase."""
    status = obj.get("status", {})
    word = status.get("reason") or status.get("phase", "Unknown")
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason"):
            word = waiting["reason"]
        elif ended:
            word = ended.get("reason") or f"ExitCode:{ended.get('exitCode', 0)}"
    if "deletionTimestamp" in obj["metadata"] and status.get("phase") not in ("Succeeded", "Failed"):
        return "Terminating"
    return str(word)


def _job_cells(obj: Json, now_unix_s: float) -> list[Any]:
    status = obj.get("status", {})
    done = [c["type"] for c in status.get("conditions") or () if c.get("status") == "True"]
    word = next((kind for kind in ("Complete", "Failed", "Suspended") if kind in done), "Running")
    completions = obj["spec"].get("completions", 1)
    return [obj["metadata"]["name"], word, f"{status.get('succeeded', 0)}/{completions}", _age(obj, now_unix_s)]


def _node_cells(obj: Json, now_unix_s: float) -> list[Any]:
    conditions = obj.get("status", {}).get("conditions") or ()
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    word = ("Ready" if ready else "NotReady") + (",SchedulingDisabled" if obj["spec"].get("unschedulable") else "")
    return [obj["metadata"]["name"], word, _age(obj, now_unix_s)]


def _plain_cells(obj: Json, now_unix_s: float) -> list[Any]:
    return [obj["metadata"]["name"], _age(obj, now_unix_s)]


def _age(obj: Json, now_unix_s: float) -> str:
    born = datetime.fromisoformat(obj["metadata"]["creationTimestamp"].replace("Z", "+00:00")).timestamp()
    seconds = max(0, int(now_unix_s - born))
    if seconds < 120:
        return f"{seconds}s"
    if seconds < 7200:
        return f"{seconds // 60}m"
    return f"{seconds // 3600}h" if seconds < 172_800 else f"{seconds // 86_400}d"


_TABLES: dict[str, tuple[tuple[tuple[str, str, int], ...], Callable[[Json, float], list[Any]]]] = {
    "Pod": (_POD_COLUMNS, _pod_cells),
    "Job": (_JOB_COLUMNS, _job_cells),
    "Node": (_NODE_COLUMNS, _node_cells),
}
