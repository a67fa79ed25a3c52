"""The garbage collector of a fake cluster: dependents go with their owner (background), before it (foreground), or stay.

A real one works a moment later, in a process of its own; here it is done within the write that caused it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import Json
from .kinds import key_of

if TYPE_CHECKING:
    from .store import Store

_FOREGROUND = "foregroundDeletion"
_ORPHAN = "orphan"


class Ownership:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._living: dict[str, tuple[str, tuple[str, str]]] = {}  # uid → kind, key
        self._dependents: dict[str, dict[str, None]] = {}  # uid of the owner → uids, in order of creation

    def living(self, uid: str) -> tuple[str, Json] | None:
        found = self._living.get(uid)
        if found is None:
            return None
        kind, (ns, name) = found
        obj = self._store.get(kind, ns, name)
        return None if obj is None else (kind, obj)

    def index(self, kind: str, obj: Json | None, before: Json | None) -> None:
        for owner in _owners(before):
            self._dependents.get(owner["uid"], {}).pop(_uid(before), None)
        if before is not None:
            self._living.pop(_uid(before), None)
        if obj is not None:
            self._living[_uid(obj)] = (kind, key_of(obj))
            for owner in _owners(obj):
                self._dependents.setdefault(owner["uid"], {})[_uid(obj)] = None

    def created(self, kind: str, obj: Json) -> None:
        if _owners(obj) and not any(owner["uid"] in self._living for owner in _owners(obj)):
            self._delete(_uid(obj))  # the owner is gone already

    def changed(self, kind: str, before: Json, after: Json) -> None:
        if _owners(before) != _owners(after):
            for owner in _owners(before):
                self._let_owner_go(owner["uid"])
            self.created(kind, after)

    def deleting(self, kind: str, obj: Json) -> None:
        """A deletion has been asked for; the object may be gone already."""
        if kind == "Namespace":
            self._empty(obj["metadata"]["name"])
            return
        uid, finalizers = _uid(obj), obj["metadata"].get("finalizers", ())
        if uid not in self._living:
            return
        if _ORPHAN in finalizers:
            for dependent in self._of(uid):
                self._disown(dependent, uid)
            self._take_off(uid, _ORPHAN)
        elif _FOREGROUND in finalizers:
            for dependent in self._of(uid):
                self._delete(dependent)
            self._let_owner_go(uid)

    def removed(self, kind: str, obj: Json) -> None:
        uid = _uid(obj)
        for dependent in self._of(uid):
            found = self.living(dependent)
            if found is None:
                continue
            if any(owner["uid"] in self._living for owner in _owners(found[1])):
                self._disown(dependent, uid)
            else:
                self._delete(dependent)
        self._dependents.pop(uid, None)
        for owner in _owners(obj):
            self._let_owner_go(owner["uid"])

    def _of(self, uid: str) -> list[str]:
        return list(self._dependents.get(uid, ()))

    def _delete(self, uid: str) -> None:
        found = self.living(uid)
        if found is None or "deletionTimestamp" in found[1]["metadata"]:
            return
        kind, obj = found
        ns, name = key_of(obj)
        # A dependent that owns others waits for those in turn.
        self._store.delete(kind, ns, name, propagation="Foreground" if self._of(uid) else "Background")

    def _disown(self, uid: str, owner: str) -> None:
        found = self.living(uid)
        if found is None:
            return
        kind, obj = found

        def without(target: Json) -> None:
            kept = [reference for reference in _owners(target) if reference["uid"] != owner]
            target["metadata"].pop("ownerReferences", None)
            if kept:
                target["metadata"]["ownerReferences"] = kept

        ns, name = key_of(obj)
        # Not by `update`: an object whose last owner is taken off here is an orphan on purpose.
        self._store.update(kind, ns, name, without)

    def _let_owner_go(self, uid: str) -> None:
        """A foreground deletion ends when nobody who blocks it is left."""
        found = self.living(uid)
        if found is None or _FOREGROUND not in found[1]["metadata"].get("finalizers", ()):
            return
        for dependent in self._of(uid):
            other = self.living(dependent)
            blocks = other and any(o["uid"] == uid and o.get("blockOwnerDeletion") for o in _owners(other[1]))
            if blocks:
                return
        self._take_off(uid, _FOREGROUND)

    def _take_off(self, uid: str, finalizer: str) -> None:
        found = self.living(uid)
        if found is None:
            return
        kind, obj = found

        def without(target: Json) -> None:
            kept = [name for name in target["metadata"].get("finalizers", ()) if name != finalizer]
            target["metadata"].pop("finalizers", None)
            if kept:
                target["metadata"]["finalizers"] = kept

        self._store.update(kind, *key_of(obj), without)

    def _empty(self, ns: str) -> None:
        for about in list(self._store.kinds):
            if not about.namespaced:
                continue
            for obj in self._store.list(about.kind, ns):
                if self._store.get(about.kind, ns, obj["metadata"]["name"]) is not None:
                    self._store.delete(about.kind, ns, obj["metadata"]["name"])
        self._store._let_namespace_go(ns)


def _owners(obj: Json | None) -> list[Json]:
    return list((obj or {}).get("metadata", {}).get("ownerReferences") or ())


def _uid(obj: Json | None) -> str:
    assert obj is not None
    return str(obj["metadata"]["uid"])
