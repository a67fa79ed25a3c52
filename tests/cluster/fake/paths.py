"""From the path and method of a request to what is asked of which object."""

from __future__ import annotations

from dataclasses import dataclass

from .access import Ask
from .errors import ApiError
from .kinds import Kind, Registry

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Target:
    about: Kind
    ns: str | None  # None: no namespace in the path
    name: str | None
    subresource: str
    verb: str

    def ask(self) -> Ask:
        about = self.about
        named = self.name or ""
        # A namespace that is named counts as in itself, so that a Role in it can allow to read it.
        where = named if about.plural == "namespaces" and not about.group else self.ns or ""
        return Ask(self.verb, about.group, about.plural, self.subresource, where, named)


def target_of(kinds: Registry, method: str, path: str, *, watch: bool) -> Target | None:
    """None: no such resource."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    ns = None
    if rest[0] == "namespaces" and len(rest) > 2 and (group or rest[2] not in ("status", "finalize")):
        ns, rest = rest[1], rest[2:]
    about = kinds.at(group, version, rest[0])
    if about is None or len(rest) > 3 or (ns is not None and not about.namespaced):
        return None
    name = rest[1] if len(rest) > 1 else None
    subresource = rest[2] if len(rest) > 2 else ""
    if name is not None and about.namespaced and ns is None:
        return None
    return Target(about, ns, name, subresource, _verb(method, name, subresource, watch=watch))


def _verb(method: str, name: str | None, subresource: str, *, watch: bool) -> str:
    if method in ("GET", "HEAD"):
        if watch:
            return "watch"
        return "get" if name else "list"
    if method == "DELETE" and not name:
        return "deletecollection"
    if method not in _VERBS:
        raise not_allowed()
    return _VERBS[method]


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def not_allowed() -> ApiError:
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
