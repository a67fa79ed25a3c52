"""GET: one object, lists with selectors, pages and versions, and the logs of a pod."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import datetime

from aiohttp import web

from . import logs as log_lines
from .errors import ApiError, Json, bad_request
from .logs import Line, PodLogs
from .paths import Target
from .selectors import Matches, by_fields, by_labels
from .store import Store
from .tables import shape_of, shaped, shaped_list


def matcher(target: Target, request: web.Request) -> Matches:
    labels = by_labels(request.query.get("labelSelector", ""))
    fields = by_fields(target.about.kind, request.query.get("fieldSelector", ""))
    name = target.name
    return lambda obj: labels(obj) and fields(obj) and (name is None or obj["metadata"]["name"] == name)


def get(store: Store, target: Target, request: web.Request) -> Json:
    assert target.name is not None
    obj = store.must_get(target.about.kind, target.ns, target.name)
    include = request.query.get("includeObject", "Metadata")
    return shaped(shape_of(request.headers.get("Accept", "")), target.about.kind, obj, include, store.clock.unix_s())


def listed(store: Store, target: Target, request: web.Request) -> Json:
    query = request.query
    version, after = _where(store, query.get("continue", ""), query.get("resourceVersion", ""), query)
    matches = matcher(target, request)
    objects = [obj for obj in _at(store, target, version) if matches(obj) and (after is None or _place(obj) > after)]
    metadata: Json = {"resourceVersion": str(version)}
    limit = int(query.get("limit") or 0)
    if limit and len(objects) > limit:
        left, objects = len(objects) - limit, objects[:limit]
        metadata["continue"] = _token(version, _place(objects[-1]))
        if not query.get("labelSelector") and not query.get("fieldSelector"):
            metadata["remainingItemCount"] = left
    about = target.about
    # As a real server: the items of a list do not repeat what they are.
    items = [{name: value for name, value in obj.items() if name not in ("kind", "apiVersion")} for obj in objects]
    found = {"kind": f"{about.kind}List", "apiVersion": about.api_version, "metadata": metadata, "items": items}
    shape = shape_of(request.headers.get("Accept", ""))
    return shaped_list(shape, about.kind, found, query.get("includeObject", "Metadata"), store.clock.unix_s())


async def log(store: Store, logs: PodLogs, target: Target, request: web.Request) -> web.StreamResponse:
    assert target.name is not None
    query = request.query
    pod = store.must_get("Pod", target.ns, target.name)
    uid, container = pod["metadata"]["uid"], _container(pod, query.get("container", ""))
    previous = query.get("previous") in ("true", "1")
    found = logs.lines(uid, container, previous=previous)
    if previous and found is None:
        name = query.get("container") or pod["spec"]["containers"][0]["name"]
        raise bad_request(f'previous terminated container "{name}" in pod "{target.name}" not found')
    if not found and pod.get("status", {}).get("phase") == "Pending":
        raise bad_request(_why_not_started(pod, query.get("container", "")))
    last = found[-1].number if found else 0
    chosen = _chosen(found or [], query, store.clock.unix_s())
    timestamps = query.get("timestamps") in ("true", "1")
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    body = b"".join(log_lines.shown(line, timestamps=timestamps) for line in chosen)
    limit = int(query.get("limitBytes") or 0)
    await response.write(body[:limit] if limit else body)
    if query.get("follow") in ("true", "1") and not previous:
        async for line in logs.follow(uid, container, last):
            await response.write(log_lines.shown(line, timestamps=timestamps))
    await response.write_eof()
    return response


def _where(store: Store, token: str, version: str, query: Mapping[str, str]) -> tuple[int, tuple[str, str] | None]:
    """The version that is read, and after which object."""
    if token:
        try:
            at, ns, name = json.loads(base64.urlsafe_b64decode(token))
        except (ValueError, TypeError):
            raise bad_request("continue key is not valid: illegal base64 data") from None
        if store.since(at) is None:
            raise ApiError(
                410,
                "Expired",
                "The provided continue parameter is too old to display a consistent list result. You can start a new list "
                "without the continue parameter.",
            )
        return at, (ns, name)
    if version and not version.isdigit():
        raise ApiError(500, "", f'strconv.ParseUint: parsing "{version}": invalid syntax')
    asked = int(version or 0)
    if asked > store.version:
        why = f"Too large resource version: {asked}, current: {store.version}"
        details = {
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        }
        raise ApiError(504, "Timeout", why, details)
    if asked and query.get("resourceVersionMatch") == "Exact":
        if store.since(asked) is None:
            raise ApiError(410, "Expired", f"The resourceVersion for the provided list is too old: {asked}")
        return asked, None
    return store.version, None


def _at(store: Store, target: Target, version: int) -> list[Json]:
    """The objects as they were at a version that is still known."""
    kind, ns = target.about.kind, target.ns if target.about.namespaced else None
    objects = store.list(kind, ns)
    if version >= store.version:
        return objects
    found = {_place(obj): obj for obj in objects}
    for happened in reversed(store.since(version) or []):
        if happened.kind != kind or (ns is not None and happened.obj["metadata"].get("namespace") != ns):
            continue
        if happened.before is None:
            found.pop(_place(happened.obj), None)
        else:
            found[_place(happened.obj)] = happened.before
    return [found[place] for place in sorted(found)]


def _place(obj: Json) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _token(version: int, place: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps([version, *place]).encode()).decode()


def _container(pod: Json, asked: str) -> str:
    spec, name = pod["spec"], pod["metadata"]["name"]
    names = [container["name"] for container in spec["containers"]]
    every = [*(container["name"] for container in spec.get("initContainers") or ()), *names]
    if not asked:
        if len(names) > 1:
            raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]")
        asked = names[0]
    if asked not in every:
        raise bad_request(f"container {asked} is not valid for pod {name}")
    return asked


def _why_not_started(pod: Json, container: str) -> str:
    name = pod["metadata"]["name"]
    container = container or pod["spec"]["containers"][0]["name"]
    if not pod["spec"].get("nodeName"):
        return f"pod {name} does not have a host assigned"
    reason = "ContainerCreating"
    for status in pod.get("status", {}).get("containerStatuses") or ():
        if status.get("name") == container:
            reason = (status.get("state", {}).get("waiting") or {}).get("reason") or reason
    if "Image" in reason or "Pull" in reason:
        return f'container "{container}" in pod "{name}" is waiting to start: trying and failing to pull image'
    return f'container "{container}" in pod "{name}" is waiting to start: {reason}'


def _chosen(lines: list[Line], query: Mapping[str, str], now_unix_s: float) -> list[Line]:
    read = query.get
    if read("sinceSeconds"):
        oldest = now_unix_s - float(read("sinceSeconds") or 0)
        lines = [line for line in lines if line.unix_s >= oldest]
    if read("sinceTime"):
        oldest = datetime.fromisoformat(str(read("sinceTime")).replace("Z", "+00:00")).timestamp()
        lines = [line for line in lines if line.unix_s >= oldest]
    if read("tailLines") is not None:
        count = int(str(read("tailLines")))
        lines = lines[-count:] if count > 0 else []
    return lines
