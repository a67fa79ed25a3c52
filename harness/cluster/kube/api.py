"""What is asked of the API server, each act a method: objects, evictions, logs, rights. How, is connection.py's.

The `kubernetes` package could do the writes in a thread; it is not used for them, because it checks what it creates against
its own models (a field newer than the package cannot be sent), a thread cannot be cancelled, and there would be two settings
of TLS, time-outs and refusals. What remains is paths.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, Self, TypeVar

from harness.cluster.kube import names, problems
from harness.cluster.kube.access import Access
from harness.cluster.kube.connection import Connection, Raw, Raws, lines_of
from harness.cluster.kube.problems import ApiProblem, Cause
from harness.cluster.kube.resources import ACCESS_REVIEWS, Allowed, Rule, Rules, path_of, resource_of

__all__ = ["Allowed", "Api", "ApiProblem", "Cause", "Rules", "lines_of", "once", "path_of", "resource_of"]

T = TypeVar("T")
Propagation = Literal["Foreground", "Background", "Orphan"]

_PAGE = 500
_PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}


class Api(Connection):
    def __init__(self, access: Access, namespace: str | None = None, *, timeout_s: float = 10.0) -> None:
        super().__init__(access, timeout_s=timeout_s)
        self.namespace = namespace or access.namespace

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- objects ---------------------------------------------------------------------------------------------------

    async def get(self, kind: str, name: str, *, namespace: str | None = None) -> Raw:
        return await self.request("GET", self.path(kind, name, namespace=namespace), what=_what(kind, name))

    async def list(self, kind: str, *, selector: str = "", fields: str = "", namespace: str | None = None) -> Raws:
        """All of them, page by page. `namespace` "*": of the whole cluster."""
        found: Raws = []
        async for page in self.pages(kind, selector=selector, fields=fields, namespace=namespace):
            found += page.get("items") or []
        return found

    async def pages(self, kind: str, *, selector: str = "", fields: str = "", namespace: str | None = None) -> AsyncIterator[Raw]:
        """The list's pages; the last one's metadata.resourceVersion is where a watch goes on."""
        query: dict[str, str | int | float] = _selected(selector, fields) | {"limit": _PAGE}
        while True:
            page = await self.request("GET", self.path(kind, namespace=namespace), query, what=resource_of(kind).plural)
            yield page
            query["continue"] = str((page.get("metadata") or {}).get("continue") or "")
            if not query["continue"]:
                return

    async def create(self, obj: Raw, *, dry_run: bool = False) -> Raw:
        kind, name, namespace = _named(obj)
        query = _dry(dry_run) | {"fieldManager": names.FIELD_MANAGER}
        path = self.path(kind, namespace=namespace, version=str(obj.get("apiVersion") or ""))
        return await self.request("POST", path, query, obj, what=_what(kind, name))

    async def apply(self, obj: Raw, *, dry_run: bool = False, force: bool = True) -> Raw:
        """Server-side apply: creates it or changes what is ours of it. Returns the object as the server has it."""
        kind, name, namespace = _named(obj)
        query = _dry(dry_run) | {"fieldManager": names.FIELD_MANAGER, "force": "true" if force else "false"}
        path = self.path(kind, name, namespace=namespace, version=str(obj.get("apiVersion") or ""))
        return await self.request("PATCH", path, query, obj, what=_what(kind, name), content="application/apply-patch+yaml")

    async def patch(
        self,
        kind: str,
        name: str,
        change: Raw | Raws,
        *,
        how: Literal["merge", "strategic", "json"] = "merge",
        subresource: str = "",
        dry_run: bool = False,
        namespace: str | None = None,
    ) -> Raw:
        query = _dry(dry_run) | {"fieldManager": names.FIELD_MANAGER}
        path = self.path(kind, name, subresource, namespace=namespace)
        return await self.request("PATCH", path, query, change, what=_what(kind, name), content=_PATCHES[how])

    async def delete(
        self,
        kind: str,
        name: str,
        *,
        uid: str = "",
        propagation: Propagation = "Foreground",
        grace_s: int | None = None,
        dry_run: bool = False,
        namespace: str | None = None,
    ) -> None:
        """Foreground: what it owns goes before it. The API's own default would orphan the pods of a Job. `uid`: only if it
        is still that one. An object that is gone already is ApiProblem.not_found."""
        options: Raw = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        path = self.path(kind, name, namespace=namespace)
        await self.request("DELETE", path, _dry(dry_run), options, what=_what(kind, name))

    # --- pods ------------------------------------------------------------------------------------------------------

    async def evict(
        self, pod: str, *, uid: str = "", grace_s: int | None = None, dry_run: bool = False, namespace: str | None = None
    ) -> None:
        """policy/v1 Eviction: goes only as the pod's disruption budget allows. 429 with `ApiProblem.budget`: not now."""
        namespace = namespace or self.namespace
        options: Raw = {}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if dry_run:
            options["dryRun"] = ["All"]
        meta = {"name": pod, "namespace": namespace}
        body: Raw = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
        if options:
            body["deleteOptions"] = options
        path = self.path("Pod", pod, "eviction", namespace=namespace)
        await self.request("POST", path, {}, body, what=_what("Pod", pod), act="evict")

    async def log(
        self,
        pod: str,
        *,
        container: str = "",
        follow: bool = False,
        previous: bool = False,
        timestamps: bool = False,
        since_time: str = "",
        tail_lines: int | None = None,
        namespace: str | None = None,
    ) -> AsyncIterator[str]:
        """Lines without their ends. With `follow` until the container has ended. `since_time` is RFC 3339."""
        query: dict[str, str | int | float] = {}
        for name, on in (("follow", follow), ("previous", previous), ("timestamps", timestamps)):
            if on:
                query[name] = "true"
        query |= {"container": container} if container else {}
        query |= {"sinceTime": since_time} if since_time else {}
        query |= {"tailLines": tail_lines} if tail_lines is not None else {}
        path = self.path("Pod", pod, "log", namespace=namespace)
        async with self.stream(path, query, what=f"the log of {_what('Pod', pod)}", silence_s=None if follow else 60.0) as chunks:
            async for line in lines_of(chunks):
                yield line.decode("utf-8", "replace")

    # --- rights and abilities --------------------------------------------------------------------------------------

    async def can_i(
        self,
        verb: str,
        resource: str,
        group: str = "",
        *,
        subresource: str = "",
        name: str = "",
        namespace: str | None = None,
    ) -> Allowed:
        """`namespace` "" asks for the whole cluster, None for the Api's own. Needs no right."""
        resource, _, sub = resource.partition("/")
        attributes = {
            "namespace": self.namespace if namespace is None else namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": subresource or sub,
            "name": name,
        }
        spec = {"resourceAttributes": {key: value for key, value in attributes.items() if value}}
        body: Raw = {"apiVersion": ACCESS_REVIEWS, "kind": "SelfSubjectAccessReview", "spec": spec}
        found = await self.request("POST", f"/apis/{ACCESS_REVIEWS}/selfsubjectaccessreviews", {}, body, what="an access review")
        status = found.get("status") or {}
        return Allowed(status.get("allowed") is True, str(status.get("reason") or status.get("evaluationError") or ""))

    async def rules(self, *, namespace: str | None = None) -> Rules:
        spec = {"namespace": namespace or self.namespace}
        body: Raw = {"apiVersion": ACCESS_REVIEWS, "kind": "SelfSubjectRulesReview", "spec": spec}
        found = await self.request("POST", f"/apis/{ACCESS_REVIEWS}/selfsubjectrulesreviews", {}, body, what="a rules review")
        status = found.get("status") or {}
        keys = ("verbs", "apiGroups", "resources", "resourceNames")
        rules = [Rule(*(frozenset(rule.get(key) or ()) for key in keys)) for rule in status.get("resourceRules") or ()]
        return Rules(rules, status.get("incomplete") is True)

    async def groups(self) -> dict[str, tuple[str, ...]]:
        """API groups other than the core, each with its versions."""
        found = await self.request("GET", "/apis", what="the API groups")
        return {
            str(group.get("name")): tuple(str(v.get("version")) for v in group.get("versions") or ())
            for group in found.get("groups") or ()
        }

    async def has_group(self, group: str, version: str = "") -> bool:
        versions = (await self.groups()).get(group)
        return versions is not None and (not version or version in versions)

    async def version(self) -> str:
        """As in v1.36.2."""
        found = (await self.request("GET", "/version", what="the server's version")).get("gitVersion")
        if not isinstance(found, str) or not found:
            server = self.access.server
            raise ApiProblem(
                0, "NoApiServer", f"{server} is no API server: GET /version has no gitVersion; {problems.CHECK_SERVER}"
            )
        return found

    # --- paths -----------------------------------------------------------------------------------------------------

    def path(self, kind: str, name: str = "", subresource: str = "", *, namespace: str | None = None, version: str = "") -> str:
        """`namespace` None: the Api's own; "*": all of them."""
        return path_of(kind, name, subresource, namespace=namespace or self.namespace, version=version)


def once(access: Access, do: Callable[[Api], Awaitable[T]], *, namespace: str | None = None, timeout_s: float = 10.0) -> T:
    """For commands: `once(access, lambda api: api.version())`, blocking. Raises ClusterError."""

    async def run() -> T:
        async with Api(access, namespace, timeout_s=timeout_s) as api:
            return await do(api)

    return asyncio.run(run())


# --- details -----------------------------------------------------------------------------------------------------------


def _named(obj: Raw) -> tuple[str, str, str | None]:
    meta = obj.get("metadata") or {}
    return str(obj.get("kind") or ""), str(meta.get("name") or meta.get("generateName") or ""), meta.get("namespace")


def _what(kind: str, name: str) -> str:
    return f"{kind[:1].lower()}{kind[1:]} {name}".strip()


def _selected(selector: str, fields: str) -> dict[str, str | int | float]:
    found: dict[str, str | int | float] = {"labelSelector": selector} if selector else {}
    if fields:
        found["fieldSelector"] = fields
    return found


def _dry(on: bool) -> dict[str, str | int | float]:
    return {"dryRun": "All"} if on else {}
