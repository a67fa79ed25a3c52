"""A fake cluster in a thread of its own: for tests that block, and for programs that are other processes.

    with FakeCluster() as cluster:
        cluster.kubeconfig(tmp_path / "kubeconfig")
        cluster.call(lambda: cluster.store.create("Namespace", "", {"metadata": {"name": "paceline"}}))

`store`, `logs` and `access` belong to the thread: reach for them in `call`, or in coroutines given to `run`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from .access import Access, Rule
from .forwarding import Forwards
from .logs import PodLogs
from .server import ApiServer
from .store import Store

T = TypeVar("T")
_PATIENCE_S = 30.0


class FakeCluster:
    def __init__(self, make: Callable[[], ApiServer] = ApiServer) -> None:
        self._make = make
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-cluster", daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: ApiServer | None = None

    @property
    def server(self) -> ApiServer:
        assert self._server is not None, "the fake cluster has not been entered"
        return self._server

    @property
    def store(self) -> Store:
        return self.server.store

    @property
    def access(self) -> Access:
        return self.server.access

    @property
    def logs(self) -> PodLogs:
        return self.server.logs

    @property
    def forwards(self) -> Forwards:
        return self.server.forwards

    @property
    def url(self) -> str:
        return self.server.url

    def __enter__(self) -> FakeCluster:
        self._thread.start()

        async def begin() -> ApiServer:
            server = self._make()
            await server.start()
            return server

        self._server = self.run(begin())
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.server.close()

        try:
            if self._server is not None:
                self.run(end())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_PATIENCE_S)
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = _PATIENCE_S) -> T:
        """Run a coroutine in the cluster's loop and wait for what it returns."""
        found: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return found.result(timeout_s)

    def call(self, work: Callable[[], T], timeout_s: float = _PATIENCE_S) -> T:
        """Run a function in the cluster's loop."""

        async def inside() -> T:
            return work()

        return self.run(inside(), timeout_s)

    def in_background(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Start a controller in the cluster's loop; it is cancelled when the cluster ends."""

        async def begin() -> asyncio.Task[None]:
            task = asyncio.create_task(work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return task

        return self.run(begin())

    def kubeconfig(self, path: Path, *, token: str | None = None, namespace: str = "default") -> Path:
        return self.server.kubeconfig(path, token=token, namespace=namespace)

    def token(self, user: str, *rules: Rule, valid_s: float | None = None) -> str:
        return self.call(lambda: self.access.token(user, *rules, valid_s=valid_s))

    def stop(self) -> None:
        """The API server goes away; what is stored and the controllers stay."""
        self.run(self.server.stop())

    def start(self) -> None:
        self.run(self.server.start())

    def cut_watches(self) -> None:
        self.call(self.server.cut_watches)

    def expire_watches(self) -> None:
        self.call(self.server.expire_watches)

    def compact(self) -> None:
        self.call(self.server.compact)
