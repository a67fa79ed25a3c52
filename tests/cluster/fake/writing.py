"""POST, PUT, PATCH and DELETE of objects and of their /status, with dry runs, field validation and field managers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import yaml  # type: ignore[import-untyped]
from aiohttp import web

from . import apply, schema, validation
from .errors import ApiError, Json, bad_request, conflict
from .patches import json_patch, merge_patch, strategic_merge
from .paths import Target
from .selectors import Matches
from .store import Propagation, Store

APPLY = "application/apply-patch+yaml"
_PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": merge_patch,
    "application/strategic-merge-patch+json": strategic_merge,
    "application/json-patch+json": json_patch,
}
_ORPHANED_BY_DEFAULT = ("Job",)  # batch/v1 kept the default of its first days


class Answer:
    def __init__(self, code: int, body: Json, warnings: list[str] | None = None) -> None:
        self.code = code
        self.body = body
        self.warnings = warnings or []


async def body_of(request: web.Request) -> Any:
    text = await request.read()
    if not text:
        return {}
    if request.content_type == "application/vnd.kubernetes.protobuf":
        raise ApiError(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml",
        )
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise bad_request(f"error decoding the body: {error}") from None


def create(store: Store, target: Target, request: web.Request, body: Any) -> Answer:
    validation.check_body(target.about, body, target.ns or "", None)
    warnings = _check_fields(target, request, body)
    made = {name: value for name, value in body.items() if name != "status" or not target.about.status}
    ns = target.ns if target.about.namespaced else ""
    made["kind"], made["apiVersion"] = target.about.kind, target.about.api_version
    apply.updated(None, made, _manager(request), now=store.stamp())
    return Answer(201, store.create(target.about.kind, ns, made, dry_run=_dry_run(request)), warnings)


def replace(store: Store, target: Target, request: web.Request, body: Any) -> Answer:
    assert target.name is not None
    validation.check_body(target.about, body, target.ns or "", target.name)
    warnings = _check_fields(target, request, body)
    before = store.must_get(target.about.kind, target.ns, target.name)
    body["kind"], body["apiVersion"] = target.about.kind, target.about.api_version
    body["metadata"].setdefault("managedFields", before["metadata"].get("managedFields") or [])
    apply.updated(before, body, _manager(request), now=store.stamp(), subresource=target.subresource)
    status = target.subresource == "status"
    done = store.replace(target.about.kind, target.ns, target.name, body, status=status, dry_run=_dry_run(request))
    return Answer(200, done, warnings)


def patch(store: Store, target: Target, request: web.Request, body: Any) -> Answer:
    assert target.name is not None
    steps = request.content_type.startswith("application/json-patch")
    if steps != isinstance(body, list) or not isinstance(body, list | dict):
        raise bad_request(f"the patch is not {'a list of steps' if steps else 'an object'}")
    if request.content_type == APPLY and isinstance(body, dict):
        return _apply(store, target, request, body)
    how = _PATCHES.get(request.content_type)
    if how is None:
        known = ", ".join([*_PATCHES, APPLY])
        why = f"the body of the request was in an unknown format - accepted media types include: {known}"
        raise ApiError(415, "UnsupportedMediaType", why)
    kind, name = target.about.kind, target.name
    before = store.must_get(kind, target.ns, name)
    after: Json = how(before, body)
    if after["metadata"].get("resourceVersion", "") not in ("", before["metadata"]["resourceVersion"]):
        why = "the object has been modified; please apply your changes to the latest version and try again"
        raise conflict(target.about.plural, target.about.group, name, why)
    validation.check_body(target.about, after, target.ns or "", name)
    warnings = _check_fields(target, request, after)
    status = target.subresource == "status"

    def mutate(obj: Json) -> None:
        obj.clear()
        obj.update(after)
        obj["metadata"] = dict(obj["metadata"])
        apply.updated(before, obj, _manager(request), now=store.stamp(), subresource=target.subresource)

    return Answer(200, store.update(kind, target.ns, name, mutate, status=status, dry_run=_dry_run(request)), warnings)


def delete(store: Store, target: Target, request: web.Request, options: Json) -> Answer:
    assert target.name is not None
    about = target.about
    asked = _delete_options(target, request, options)
    left = store.delete(about.kind, target.ns, target.name, **asked)
    gone = asked["dry_run"] or store.get(about.kind, target.ns, target.name) is None
    if gone and about.kind != "Pod":
        details = {"name": target.name, "group": about.group, "kind": about.plural, "uid": left["metadata"]["uid"]}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return Answer(200, status | {"details": {key: value for key, value in details.items() if value}})
    return Answer(200, left)


def delete_all(store: Store, target: Target, request: web.Request, options: Json, matches: Matches) -> Answer:
    asked = _delete_options(target, request, options)
    about = target.about
    found = [obj for obj in store.list(about.kind, target.ns if about.namespaced else None) if matches(obj)]
    for obj in found:
        ns, name = obj["metadata"].get("namespace"), obj["metadata"]["name"]
        if store.get(about.kind, ns, name) is not None:
            store.delete(about.kind, ns, name, **asked)
    listed = {"kind": f"{about.kind}List", "apiVersion": about.api_version}
    return Answer(200, {**listed, "metadata": {"resourceVersion": str(store.version)}, "items": found})


def _apply(store: Store, target: Target, request: web.Request, config: Json) -> Answer:
    about, name = target.about, target.name
    assert name is not None
    manager = request.query.get("fieldManager")
    if not manager:
        field = {
            "reason": "FieldValueRequired",
            "message": "Required value: is required for apply patch",
            "field": "fieldManager",
        }
        why = 'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
        raise ApiError(422, "Invalid", why, {"group": "meta.k8s.io", "kind": "PatchOptions", "causes": [field]})
    if not config.get("kind") or not config.get("apiVersion"):
        raise bad_request("the body of an apply patch must name its kind and apiVersion")
    validation.check_body(about, config, target.ns or "", name)
    if config["metadata"].get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    unknown = schema.unknown_fields(about.kind, config)
    if unknown:
        at = f"{target.ns}/{name}" if target.ns else name
        why = f"failed to create typed patch object ({at}; {about.api_version}, Kind={about.kind}): "
        raise ApiError(500, "", why + f"{unknown[0]}: field not declared in schema")
    subresource = target.subresource
    if subresource == "status":
        config = {key: value for key, value in config.items() if key in ("kind", "apiVersion", "metadata", "status")}
    elif about.status:
        config = {key: value for key, value in config.items() if key != "status"}
    live = store.get(about.kind, target.ns, name)
    force = request.query.get("force") in ("true", "1")
    uid = config["metadata"].get("uid")
    if uid and uid != (live or {}).get("metadata", {}).get("uid"):
        found = (live or {}).get("metadata", {}).get("uid", "")
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {found}"
        raise conflict(about.plural, about.group, name, why)
    result = apply.applied(live, config, manager, force=force, now=store.stamp(), subresource=subresource)
    dry_run = _dry_run(request)
    if live is None:
        if subresource:
            store.must_get(about.kind, target.ns, name)
        result["metadata"]["name"] = name
        return Answer(201, store.create(about.kind, target.ns, result, dry_run=dry_run))

    def mutate(obj: Json) -> None:
        obj.clear()
        obj.update(result)

    done = store.update(about.kind, target.ns, name, mutate, status=subresource == "status", dry_run=dry_run)
    return Answer(200, done)


def _check_fields(target: Target, request: web.Request, body: Json) -> list[str]:
    """Unknown fields: refused (Strict), told and dropped (Warn, the default), or dropped (Ignore)."""
    how = request.query.get("fieldValidation") or "Warn"
    unknown = schema.unknown_fields(target.about.kind, body)
    words = [f'unknown field "{path.lstrip(".")}"' for path in unknown]
    if words and how == "Strict":
        about = target.about
        where = f'{about.kind} in version "{about.version}" cannot be handled as a {about.kind}'
        raise bad_request(f"{where}: strict decoding error: {', '.join(words)}")
    schema.without(body, unknown)
    return words if how == "Warn" else []


def _delete_options(target: Target, request: web.Request, options: Json) -> Any:
    query = request.query
    policy: Propagation | None = options.get("propagationPolicy") or query.get("propagationPolicy")  # type: ignore[assignment]
    if options.get("orphanDependents") is not None:
        policy = "Orphan" if options["orphanDependents"] else "Background"
    if policy not in (None, "Background", "Foreground", "Orphan"):
        raise bad_request(f'invalid propagationPolicy "{policy}"')
    if policy is None:
        policy = "Orphan" if target.about.kind in _ORPHANED_BY_DEFAULT else "Background"
    grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    wanted = options.get("preconditions") or {}
    return {
        "grace_s": None if grace is None else int(grace),
        "propagation": policy,
        "uid": wanted.get("uid"),
        "version": wanted.get("resourceVersion"),
        "dry_run": _dry_run(request) or options.get("dryRun") == ["All"],
    }


def _dry_run(request: web.Request) -> bool:
    asked = request.query.get("dryRun")
    if asked not in (None, "", "All"):
        raise bad_request(f'dryRun: Unsupported value: "{asked}": supported values: "All"')
    return asked == "All"


def _manager(request: web.Request) -> str:
    return request.query.get("fieldManager") or request.headers.get("User-Agent", "unknown").split("/")[0].split(" ")[0]
