"""The HTTP server of a fake cluster, in the event loop that starts it. cluster.py puts it into a thread of its own.

Order of every request: delay, credentials, rights, scripted faults, then the thing itself. Everything it does is in
`store`; `calls` remembers what was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml  # type: ignore[import-untyped]
from aiohttp import web

from . import discovery, reading, writing
from .access import Access, Ask, User
from .clock import Clock
from .errors import ApiError, Json
from .evicting import evict
from .forwarding import Forwards
from .logs import PodLogs
from .paths import Target, no_such_path, not_allowed, target_of
from .store import Happened, Store
from .tables import shape_of
from .watching import Wanted, Watches
from .writing import Answer


@dataclass(slots=True)
class Call:
    """One request, as tests ask for it afterwards."""

    verb: str
    resource: str  # pods, pods/eviction, or a path that is no resource
    namespace: str
    name: str
    user: str
    code: int
    query: dict[str, str]
    agent: str


@dataclass(slots=True)
class Fault:
    """The next `times` requests of this kind get `error` instead of an answer. "" matches everything."""

    error: ApiError
    verb: str = ""
    resource: str = ""
    times: int = 1

    def hits(self, target: Target) -> bool:
        found = f"{target.about.plural}/{target.subresource}" if target.subresource else target.about.plural
        return self.times > 0 and self.verb in ("", target.verb) and self.resource in ("", found)


class ApiServer:
    """`insecure`: whoever shows no credentials is the administrator. kubectl sends none over plain HTTP."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        ssl_context: ssl.SSLContext | None = None,
        ca_file: Path | None = None,
        insecure: bool = False,
        version: str = "v1.36.2",
        history: int = 20_000,
        bookmark_s: float = 60.0,
    ) -> None:
        self.store = Store(clock, history=history)
        self.access = Access(self.store, insecure=insecure)
        self.logs = PodLogs(self.store.clock, self._first_container)
        self.forwards = Forwards()
        self.watches = Watches(self.store, bookmark_s=bookmark_s)
        self.faults: list[Fault] = []
        self.calls: deque[Call] = deque(maxlen=20_000)
        self.delay_s = 0.0
        self.version = version
        self._ssl, self._ca_file = ssl_context, ca_file
        self._runner: web.AppRunner | None = None
        self._transports: set[asyncio.BaseTransport] = set()
        # Bound for as long as the server lives, never listening: the port stays ours while the server is stopped.
        self._place = _bound(0)
        self.port = int(self._place.getsockname()[1])
        self.store.on_change.append(self._tidy)

    @property
    def url(self) -> str:
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._runner is not None

    async def start(self) -> None:
        """Also again after a stop: on the same port, with everything that was stored."""
        if self._runner is not None:
            return
        app = web.Application(client_max_size=16 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2, access_log=None)
        await self._runner.setup()
        await web.SockSite(self._runner, _bound(self.port), ssl_context=self._ssl).start()

    async def stop(self) -> None:
        """All connections break, new ones are refused."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for site in list(runner.sites):
            await site.stop()
        for transport in list(self._transports):
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
        await runner.cleanup()

    async def close(self) -> None:
        await self.stop()
        self._place.close()

    async def __aenter__(self) -> ApiServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- hooks for tests -----------------------------------------------------------------------------------

    def kubeconfig(self, path: Path, *, token: str | None = None, namespace: str = "default", context: str = "fake") -> Path:
        """Write one; without a token it is the administrator's."""
        cluster: Json = {"server": self.url}
        if self._ca_file is not None:
            cluster["certificate-authority"] = str(self._ca_file)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "clusters": [{"name": context, "cluster": cluster}],
            "users": [{"name": context, "user": {"token": token or self.access.admin_token}}],
            "contexts": [{"name": context, "context": {"cluster": context, "user": context, "namespace": namespace}}],
        }
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    def compact(self) -> None:
        """Versions up to now are too old from here on."""
        self.store.compact()

    def cut_watches(self) -> None:
        self.watches.cut()

    def expire_watches(self) -> None:
        self.watches.expire()

    # --- requests ------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        if transport is not None:
            self._transports = {other for other in self._transports if not other.is_closing()} | {transport}
        if self.delay_s > 0:
            await asyncio.sleep(self.delay_s)
        call = Call(request.method, request.path, "", "", "", 0, dict(request.query), request.headers.get("User-Agent", ""))
        self.calls.append(call)
        try:
            user = self.access.who(request.headers.get("Authorization"))
            call.user = user.name
            response = await self._dispatch(request, user, call)
            call.code = response.status
            return response
        except ApiError as error:
            call.code = error.code
            headers = {}
            if "retryAfterSeconds" in error.details:
                headers["Retry-After"] = str(error.details["retryAfterSeconds"])
            return _json(error.status(), error.code, headers)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            call.code = 500
            return _json(ApiError(500, "InternalError", f"the fake API server failed: {error!r}").status(), 500)

    async def _dispatch(self, request: web.Request, user: User, call: Call) -> web.StreamResponse:
        told = self._of_itself(request.path)
        if told is not None:
            return told
        if request.path.startswith("/apis/authorization.k8s.io/v1/") and request.method == "POST":
            return await self._review(request, user)
        watch = request.query.get("watch") in ("true", "1")
        target = target_of(self.store.kinds, request.method, request.path, watch=watch)
        if target is None:
            raise no_such_path()
        about = target.about
        call.verb, call.namespace, call.name = target.verb, target.ns or "", target.name or ""
        call.resource = f"{about.plural}/{target.subresource}" if target.subresource else about.plural
        self.access.check(user, target.ask())
        for fault in self.faults:
            if fault.hits(target):
                fault.times -= 1
                raise fault.error
        if about.kind == "Pod" and target.subresource in ("eviction", "log", "portforward"):
            return await self._pod_subresource(request, user, target)
        if (about.kind, target.subresource, target.verb) == ("ServiceAccount", "token", "create"):
            return _json(self._token(target, await writing.body_of(request)), 201)
        if target.subresource and not (target.subresource == "status" and about.status):
            raise no_such_path()
        if target.verb == "watch":
            return await self.watches.serve(request, self._wanted(request, target))
        if target.verb == "list":
            return _json(reading.listed(self.store, target, request))
        if target.verb == "get":
            return _json(reading.get(self.store, target, request))
        answer = await self._write(request, user, target)
        headers = {"Warning": ", ".join(f'299 - "{_quoted(text)}"' for text in answer.warnings)} if answer.warnings else {}
        return _json(answer.body, answer.code, headers)

    async def _write(self, request: web.Request, user: User, target: Target) -> Answer:
        body = await writing.body_of(request)
        if target.verb == "create":
            if target.name is not None or (target.about.namespaced and target.ns is None):
                raise not_allowed()
            return writing.create(self.store, target, request, body)
        if target.verb == "deletecollection":
            return writing.delete_all(self.store, target, request, body, reading.matcher(target, request))
        if target.name is None:
            raise not_allowed()
        if target.verb == "update":
            return writing.replace(self.store, target, request, body)
        if target.verb == "delete":
            return writing.delete(self.store, target, request, body)
        applies = request.content_type == writing.APPLY and not target.subresource
        if applies and self.store.get(target.about.kind, target.ns, target.name) is None:
            ask = target.ask()
            self.access.check(user, Ask("create", ask.group, ask.resource, "", ask.namespace, ask.name))
        return writing.patch(self.store, target, request, body)

    async def _pod_subresource(self, request: web.Request, user: User, target: Target) -> web.StreamResponse:
        assert target.name is not None
        if target.subresource == "log" and target.verb == "get":
            return await reading.log(self.store, self.logs, target, request)
        if target.subresource == "eviction" and target.verb == "create":
            body = await writing.body_of(request)
            dry_run = request.query.get("dryRun") == "All"
            return _json(evict(self.store, target.ns or "default", target.name, body, dry_run=dry_run), 201)
        if target.subresource == "portforward" and target.verb in ("get", "create"):
            # Since 1.35 a websocket, which is a GET, needs the right to create too.
            self.access.check(user, Ask("create", "", "pods", "portforward", target.ns or "", target.name))
            return await self.forwards.serve(request, self.store.must_get("Pod", target.ns, target.name))
        raise not_allowed()

    def _token(self, target: Target, body: Json) -> Json:
        """TokenRequest: credentials of a ServiceAccount."""
        account = self.store.must_get("ServiceAccount", target.ns, target.name or "")
        token = self.access.account_token(account["metadata"]["namespace"], account["metadata"]["name"])
        spec, status = body.get("spec") or {}, {"token": token}
        return {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": spec, "status": status}

    def _wanted(self, request: web.Request, target: Target) -> Wanted:
        query = request.query
        initial = query.get("sendInitialEvents") in ("true", "1")
        if initial and query.get("resourceVersionMatch") != "NotOlderThan":
            why = (
                'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting '
                "resourceVersionMatch to NotOlderThan"
            )
            raise ApiError(422, "Invalid", why)
        return Wanted(
            target.about.kind,
            target.ns if target.about.namespaced else None,
            reading.matcher(target, request),
            query.get("resourceVersion", ""),
            initial,
            query.get("allowWatchBookmarks") in ("true", "1"),
            float(query["timeoutSeconds"]) if query.get("timeoutSeconds") else None,
            shape_of(request.headers.get("Accept", "")),
            query.get("includeObject", "Metadata"),
        )

    async def _review(self, request: web.Request, user: User) -> web.StreamResponse:
        body = await writing.body_of(request)
        if request.path.endswith("/selfsubjectaccessreviews"):
            return _json(self.access.review(user, body), 201)
        if request.path.endswith("/selfsubjectrulesreviews"):
            return _json(self.access.rules_review(user, body), 201)
        raise no_such_path()

    def _of_itself(self, path: str) -> web.Response | None:
        kinds, parts = self.store.kinds, [part for part in path.split("/") if part]
        if path.rstrip("/") == "/version":
            return _json(discovery.version(self.version))
        if path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        if parts == ["api"]:
            return _json(discovery.core_versions())
        if parts == ["apis"]:
            return _json(discovery.groups(kinds))
        if parts == ["openapi", "v3"]:
            return _json(discovery.openapi_root(kinds))
        if parts[:2] == ["openapi", "v3"]:
            group, version = (parts[3], parts[4]) if parts[2:3] == ["apis"] and len(parts) == 5 else ("", "v1")
            return _json(discovery.openapi(kinds, group, version))
        found = None
        if parts == ["api", "v1"]:
            found = discovery.resources(kinds, "", "v1")
        elif parts[:1] == ["apis"] and len(parts) == 3:
            found = discovery.resources(kinds, parts[1], parts[2])
        return None if found is None else _json(found)

    def _tidy(self, happened: Happened) -> None:
        """What a pod leaves behind: who follows its log learns that it has ended, or is gone."""
        if happened.kind != "Pod":
            return
        uid = happened.obj["metadata"]["uid"]
        if happened.type == "DELETED":
            self.logs.drop(uid)
            self.forwards.drop(uid)
        elif happened.obj.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            self.logs.end_all(uid)

    def _first_container(self, uid: str) -> str:
        found = self.store.by_uid(uid)
        return "" if found is None else str(found[1]["spec"]["containers"][0]["name"])


def _json(body: Json, code: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=code, content_type="application/json", headers=headers)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _bound(port: int) -> socket.socket:
    place = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with contextlib.suppress(OSError):
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", port))
    return place
