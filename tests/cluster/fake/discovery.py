"""What an API server tells of itself: versions, groups, resources, and as much OpenAPI as kubectl asks for."""

from __future__ import annotations

from .errors import Json
from .kinds import Kind, Registry

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_AUTHORIZATION = ("selfsubjectaccessreviews", "SelfSubjectAccessReview"), ("selfsubjectrulesreviews", "SelfSubjectRulesReview")


def version(git_version: str) -> Json:
    major, minor, *_ = git_version.lstrip("v").split(".")
    return {"major": major, "minor": minor, "gitVersion": git_version, "platform": "linux/amd64"}


def core_versions() -> Json:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def groups(kinds: Registry) -> Json:
    names = sorted({pair for pair in kinds.groups() if pair[0]} | {("authorization.k8s.io", "v1")})
    listed = [{"groupVersion": f"{group}/{version}", "version": version, "group": group} for group, version in names]
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [
            {
                "name": entry["group"],
                "versions": [{"groupVersion": entry["groupVersion"], "version": entry["version"]}],
                "preferredVersion": {"groupVersion": entry["groupVersion"], "version": entry["version"]},
            }
            for entry in listed
        ],
    }


def resources(kinds: Registry, group: str, version: str) -> Json | None:
    found: list[Json] = []
    for about in kinds.of(group, version):
        found.append(_resource(about))
        if about.status:
            found.append(_subresource(about, "status", about.kind, ["get", "patch", "update"]))
        if about.kind == "Pod":
            eviction = _subresource(about, "eviction", "Eviction", ["create"])
            found += [eviction | {"group": "policy", "version": "v1"}, _subresource(about, "log", "Pod", ["get"])]
            found.append(_subresource(about, "portforward", "PodPortForwardOptions", ["create", "get"]))
    if (group, version) == ("authorization.k8s.io", "v1"):
        found += [
            {"name": plural, "singularName": "", "namespaced": False, "kind": kind, "verbs": ["create"]}
            for plural, kind in _AUTHORIZATION
        ]
    if not found:
        return None
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": found}


def openapi_root(kinds: Registry) -> Json:
    paths = {"api/v1": "core"} | {f"apis/{group}/{version}": group for group, version in kinds.groups() if group}
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}


def openapi(kinds: Registry, group: str, version: str) -> Json:
    """Only what tells kubectl that the server validates fields itself: the parameters of PATCH."""
    paths: Json = {}
    for about in kinds.of(group, version):
        prefix = f"/apis/{group}/{version}" if group else f"/api/{version}"
        inside = "/namespaces/{namespace}" if about.namespaced else ""
        parameters = [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in ("dryRun", "fieldManager", "fieldValidation", "force")
        ]
        paths[f"{prefix}{inside}/{about.plural}/{{name}}"] = {
            "patch": {
                "operationId": f"patch{about.kind}",
                "parameters": parameters,
                "responses": {"200": {"description": "OK"}},
                "x-kubernetes-action": "patch",
                "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": about.kind},
            }
        }
    info = {"title": "Kubernetes", "version": "fake"}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}


def _resource(about: Kind) -> Json:
    return {
        "name": about.plural,
        "singularName": about.kind.lower(),
        "namespaced": about.namespaced,
        "kind": about.kind,
        "verbs": _VERBS,
        "shortNames": list(about.short),
    }


def _subresource(about: Kind, name: str, kind: str, verbs: list[str]) -> Json:
    return {
        "name": f"{about.plural}/{name}",
        "singularName": "",
        "namespaced": about.namespaced,
        "kind": kind,
        "verbs": verbs,
    }
