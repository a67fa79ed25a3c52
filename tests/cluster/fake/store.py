"""The objects of a fake cluster and the rules by which they are born, change and go: what lies under the HTTP server.

One counter of resourceVersions for everything. Every write makes a new object and leaves the old one as it was, so what
`get`, `list`, a queue and the history hand out is shared and must only be read; `update` gives its function a copy.
Used from one event loop, by the server and by the controllers; ownership.py collects what an owner leaves behind.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from . import defaults, validation
from .clock import Clock, ManualClock, RealClock, stamp
from .errors import ApiError, Json, already_exists, conflict, not_found
from .kinds import Kind, Registry, copied, key_of, meta
from .ownership import Ownership

__all__ = ["ApiError", "Clock", "Json", "ManualClock", "RealClock", "Store"]

Propagation = Literal["Background", "Foreground", "Orphan"]
Change = Literal["ADDED", "MODIFIED", "DELETED"]
FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # of generated names, as Kubernetes chooses them
_DONE = ("Succeeded", "Failed")


class Happened(NamedTuple):
    version: int
    type: Change
    kind: str
    obj: Json
    before: Json | None


Objects = list[Json]
Changes = list[Happened]


class Store:
    def __init__(self, clock: Clock | None = None, *, history: int = 20_000) -> None:
        self.clock: Clock = clock or RealClock()
        self.kinds = Registry()
        self.version = 1000
        #: Called with (kind, object) before an object is created; may raise ApiError. For quotas and the like.
        self.admission: list[Callable[[str, Json], None]] = []
        #: Called after each change, in the loop; the HTTP server wakes its watches by it.
        self.on_change: list[Callable[[Happened], None]] = []
        self.history: deque[Happened] = deque(maxlen=history)
        self.compacted_to = self.version  # changes up to this version are no longer known
        self._objects: dict[str, dict[tuple[str, str], Json]] = {}
        self._queues: dict[str, list[asyncio.Queue[tuple[Change, Json]]]] = {}
        self._ownership = Ownership(self)
        for name in ("default", "kube-system"):
            self.create("Namespace", "", {"metadata": {"name": name}})

    # --- reading -------------------------------------------------------------------------------------------

    def get(self, kind: str, ns: str | None, name: str) -> Json | None:
        """Read only. For a kind without namespaces `ns` does not matter."""
        return self._of(kind).get((self._ns(kind, ns), name))

    def must_get(self, kind: str, ns: str | None, name: str) -> Json:
        found = self.get(kind, ns, name)
        if found is None:
            about = self.kinds[kind]
            raise not_found(about.plural, about.group, name)
        return found

    def list(self, kind: str, ns: str | None = None, labels: Mapping[str, str] | None = None) -> Objects:
        """Read only; by namespace and name. `ns` None means all namespaces."""
        wanted = (labels or {}).items()
        return [
            obj
            for (at, _), obj in sorted(self._of(kind).items())
            if (ns is None or at == self._ns(kind, ns)) and wanted <= (obj["metadata"].get("labels") or {}).items()
        ]

    def by_uid(self, uid: str) -> tuple[str, Json] | None:
        return self._ownership.living(uid)

    def subscribe(self, kind: str) -> asyncio.Queue[tuple[Change, Json]]:
        """Every change of a kind from now on; what is there already is `list`'s."""
        queue: asyncio.Queue[tuple[Change, Json]] = asyncio.Queue()
        self._queues.setdefault(kind, []).append(queue)
        return queue

    def unsubscribe(self, kind: str, queue: asyncio.Queue[tuple[Change, Json]]) -> None:
        if queue in self._queues.get(kind, []):
            self._queues[kind].remove(queue)

    # --- writing -------------------------------------------------------------------------------------------

    def create(self, kind: str, ns: str | None, obj: Json, *, dry_run: bool = False) -> Json:
        about = self.kinds[kind]
        made = copied(obj)
        metadata = meta(made)
        if about.namespaced:
            metadata["namespace"] = ns or metadata.get("namespace") or "default"
        else:
            metadata.pop("namespace", None)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + "".join(secrets.choice(_SUFFIX) for _ in range(5))
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata["creationTimestamp"] = self.stamp()
        for name in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
            metadata.pop(name, None)
        if about.generation:
            metadata["generation"] = 1
        made = {"kind": kind, "apiVersion": about.api_version} | made
        defaults.fill(kind, made)
        self._check_place(about, made)
        validation.check_new(about, made)
        for admit in self.admission:
            admit(kind, made)
        key = key_of(made)
        if key in self._of(kind):
            raise already_exists(about.plural, about.group, key[1])
        if dry_run:
            return made
        self._put("ADDED", kind, made, None)
        if kind == "Namespace":
            self.create("ServiceAccount", key[1], {"metadata": {"name": "default"}})
        self._ownership.created(kind, made)
        return made

    def update(
        self,
        kind: str,
        ns: str | None,
        name: str,
        mutate: Callable[[Json], None],
        *,
        status: bool | None = False,
        dry_run: bool = False,
    ) -> Json:
        """Let `mutate` change a copy. False: all but .status counts; True: only .status; None: everything (for tests).

        Nothing changed means no event and the old resourceVersion. May remove the object: the last finalizer of one that
        is being deleted went.
        """
        about = self.kinds[kind]
        before = self.must_get(kind, ns, name)
        after = copied(before)
        mutate(after)
        after["metadata"] = _kept(before["metadata"], meta(after))
        if about.status and status is not None:
            _confine(before, after, to_status=status)
        if not status:
            defaults.fill(kind, after)
            validation.check_change(about, before, after)
        if about.generation and _spec_of(before) != _spec_of(after):
            after["metadata"]["generation"] = int(before["metadata"].get("generation", 1)) + 1
        if after == before:
            return before
        if dry_run:
            return after
        if self._may_go(after):
            self._remove(kind, after)
            return after
        self._put("MODIFIED", kind, after, before)
        self._ownership.changed(kind, before, after)
        return after

    def replace(self, kind: str, ns: str | None, name: str, obj: Json, *, status: bool = False, dry_run: bool = False) -> Json:
        """PUT: a resourceVersion in the body must be the stored one."""
        about = self.kinds[kind]
        before = self.must_get(kind, ns, name)
        version = (obj.get("metadata") or {}).get("resourceVersion")
        if version and version != before["metadata"]["resourceVersion"]:
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise conflict(about.plural, about.group, name, why)
        new = copied(obj)

        def mutate(target: Json) -> None:
            target.clear()
            target.update(new)
            target.setdefault("kind", kind)
            target.setdefault("apiVersion", about.api_version)

        return self.update(kind, ns, name, mutate, status=status, dry_run=dry_run)

    def delete(
        self,
        kind: str,
        ns: str | None,
        name: str,
        *,
        grace_s: int | None = None,
        propagation: Propagation = "Background",
        uid: str | None = None,
        version: str | None = None,
        dry_run: bool = False,
    ) -> Json:
        """Returns the object as it was left. It is gone at once, or when its grace is over (a Pod: the kubelet deletes it
        again with 0) and its last finalizer has been taken off."""
        about = self.kinds[kind]
        before = self.must_get(kind, ns, name)
        self._check_precondition(about, before, "UID", uid, before["metadata"]["uid"])
        self._check_precondition(about, before, "ResourceVersion", version, before["metadata"]["resourceVersion"])
        after = copied(before)
        metadata = after["metadata"]
        grace = self._grace_s(kind, before, grace_s)
        if "deletionTimestamp" in metadata:
            grace = min(grace, metadata.get("deletionGracePeriodSeconds", 0))
        else:
            metadata["deletionTimestamp"] = stamp(self.clock.unix_s() + grace)
            if about.generation:
                metadata["generation"] = int(metadata.get("generation", 1)) + 1
        metadata["deletionGracePeriodSeconds"] = grace
        self._set_finalizers(after, propagation)
        if kind == "Namespace":
            after["status"] = {**after.get("status", {}), "phase": "Terminating"}
            metadata["finalizers"] = [*dict.fromkeys([*metadata.get("finalizers", ()), "kubernetes"])]
        if dry_run:
            return after
        if self._may_go(after):
            self._remove(kind, after)
        elif after != before:
            self._put("MODIFIED", kind, after, before)
        self._ownership.deleting(kind, after)
        return after

    # --- history -------------------------------------------------------------------------------------------

    def since(self, version: int) -> Changes | None:
        """What happened after a version; None: that is no longer known (410)."""
        oldest = self.compacted_to
        if len(self.history) == self.history.maxlen and self.history:
            oldest = max(oldest, self.history[0].version - 1)
        if version < oldest:
            return None
        found: Changes = []
        for happened in reversed(self.history):
            if happened.version <= version:
                break
            found.append(happened)
        return found[::-1]

    def compact(self) -> None:
        """Forget all changes so far, as etcd's compaction does."""
        self.history.clear()
        self.compacted_to = self.version

    def stamp(self) -> str:
        return stamp(self.clock.unix_s())

    # --- inside --------------------------------------------------------------------------------------------

    def _of(self, kind: str) -> dict[tuple[str, str], Json]:
        return self._objects.setdefault(kind, {})

    def _ns(self, kind: str, ns: str | None) -> str:
        return (ns or "default") if self.kinds[kind].namespaced else ""

    def _put(self, change: Change, kind: str, obj: Json, before: Json | None) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        if change == "DELETED":
            self._of(kind).pop(key_of(obj), None)
        else:
            self._of(kind)[key_of(obj)] = obj
        self._ownership.index(kind, None if change == "DELETED" else obj, before)
        happened = Happened(self.version, change, kind, obj, before)
        self.history.append(happened)
        for queue in self._queues.get(kind, ()):
            queue.put_nowait((change, obj))
        for hear in self.on_change:
            hear(happened)

    def _remove(self, kind: str, obj: Json) -> None:
        """`obj` is a copy of ours: the stored one, as it looked at the end."""
        before = self._of(kind).get(key_of(obj), obj)
        self._put("DELETED", kind, obj, before)
        self._ownership.removed(kind, obj)
        self._let_namespace_go(obj["metadata"].get("namespace"))

    def _let_namespace_go(self, ns: str | None) -> None:
        if not ns:
            return
        space = self.get("Namespace", "", ns)
        if space is None or "deletionTimestamp" not in space["metadata"]:
            return
        if not any(at == ns for objects in self._objects.values() for at, _ in objects):

            def without(target: Json) -> None:
                target["metadata"]["finalizers"] = [f for f in target["metadata"].get("finalizers", ()) if f != "kubernetes"]

            self.update("Namespace", "", ns, without)

    def _check_place(self, about: Kind, obj: Json) -> None:
        if not about.namespaced:
            return
        ns = obj["metadata"]["namespace"]
        space = self.get("Namespace", "", ns)
        if space is None:
            raise not_found("namespaces", "", ns)
        if "deletionTimestamp" in space["metadata"]:
            name = obj["metadata"].get("name", "")
            shown = f"{about.plural}.{about.group}" if about.group else about.plural
            why = f"unable to create new content in namespace {ns} because it is being terminated"
            details = {"name": name, "kind": about.plural, "causes": [{"reason": "NamespaceTerminating", "message": why}]}
            raise ApiError(403, "Forbidden", f'{shown} "{name}" is forbidden: {why}', details)
        if about.kind == "Pod":
            account = obj.get("spec", {}).get("serviceAccountName") or "default"
            if self.get("ServiceAccount", ns, account) is None:
                name = obj["metadata"].get("name", "")
                why = f'error looking up service account {ns}/{account}: serviceaccount "{account}" not found'
                raise ApiError(403, "Forbidden", f'pods "{name}" is forbidden: {why}', {"name": name, "kind": "pods"})

    def _check_precondition(self, about: Kind, obj: Json, word: str, asked: str | None, found: str) -> None:
        if asked and asked != found:
            why = f"Precondition failed: {word} in precondition: {asked}, {word} in object meta: {found}"
            raise conflict(about.plural, about.group, obj["metadata"]["name"], why)

    def _grace_s(self, kind: str, obj: Json, asked: int | None) -> int:
        if kind != "Pod":
            return 0
        unbound = not obj.get("spec", {}).get("nodeName")
        if unbound or obj.get("status", {}).get("phase") in _DONE:
            return 0  # there is no kubelet to wait for
        if asked is not None:
            return asked
        return int(obj.get("spec", {}).get("terminationGracePeriodSeconds", 30))

    def _set_finalizers(self, obj: Json, propagation: Propagation) -> None:
        finalizers = [f for f in obj["metadata"].get("finalizers", ()) if f not in (FOREGROUND, ORPHAN)]
        if propagation == "Foreground":
            finalizers.append(FOREGROUND)
        elif propagation == "Orphan":
            finalizers.append(ORPHAN)
        obj["metadata"].pop("finalizers", None)
        if finalizers:
            obj["metadata"]["finalizers"] = finalizers

    def _may_go(self, obj: Json) -> bool:
        metadata = obj["metadata"]
        return (
            "deletionTimestamp" in metadata and not metadata.get("finalizers") and not metadata.get("deletionGracePeriodSeconds")
        )


def _kept(before: Json, after: Json) -> Json:
    """What no writer may change in metadata stays as it was."""
    for name in (
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "resourceVersion",
        "generation",
        "generateName",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ):
        if name in before:
            after[name] = before[name]
        else:
            after.pop(name, None)
    for name in ("labels", "annotations", "finalizers", "ownerReferences", "managedFields"):
        if after.get(name) in ({}, [], None) and name not in before:
            after.pop(name, None)
    return after


def _confine(before: Json, after: Json, *, to_status: bool) -> None:
    if to_status:
        status, managed = after.get("status"), after["metadata"].get("managedFields")
        after.clear()
        after.update(copied(before))
        if managed is not None:
            after["metadata"]["managedFields"] = managed
        kept = {"status": status}
    else:
        kept = {"status": before.get("status")}
    after.pop("status", None)
    if kept["status"] is not None:
        after["status"] = copied(kept["status"])


def _spec_of(obj: Json) -> Json:
    return {name: value for name, value in obj.items() if name not in ("metadata", "status", "kind", "apiVersion")}
