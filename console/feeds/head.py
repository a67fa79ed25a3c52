"""The live feed: control (DEALER) and telemetry (SUB) of a head, over zmq.asyncio in the app's own loop.

Why not a thread: a snapshot of 512 replicas is 33 KB, and decoding and applying it takes 0.02 ms, four times a second;
the hand-over between threads would cost more than the work. Snapshots that queued while the console was busy or
suspended are dropped except for the newest; journal and roster news are all applied.

Found again by the run folder: a restarted head writes a new head.json (new epoch, new ports), so every reconnect
reads it again. Nothing here ends a run: closing the sockets is all that leaving means.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import zmq
import zmq.asyncio

from console.feeds.scaling import scale
from console.store.fleet import STALE_AFTER_S, FleetStore
from console.store.record import remedy
from harness.records.layout import RunFolder
from harness.wire import control, sockets
from harness.wire.client import HeadAddress, HeadUnreachable, operator_name
from harness.wire.frames import WireError, encode
from harness.wire.inquiry import Answer, GetMetricNames, QueryMetrics, Question
from harness.wire.keys import ClientKeys, KeyProblem, load_client_keys

BACKOFF_S: Final = (0.5, 1.0, 2.0, 4.0)
COMMAND_TRIES: Final = 4
COMMAND_WAIT_S: Final = 3.0
ANSWER_WAIT_S: Final = 3.0
SOURCE_WAIT_S: Final = 15.0  # the head asks somebody else first, and has a patience of its own
JOURNAL_TAIL: Final = 500
STATE_EVERY_S: Final = 1.0  # the whole state is asked for at most this often, whatever the snapshots say


class HeadFeed:
    def __init__(
        self,
        path: Path,
        role: Literal["operator", "viewer"] = "operator",
        *,
        operator: str | None = None,
        command_wait_s: float = COMMAND_WAIT_S,
    ) -> None:
        self._folder = RunFolder(path)
        self._role: Literal["operator", "viewer"] = role
        self.operator = operator or operator_name()
        self._command_wait_s = command_wait_s
        self._context: zmq.asyncio.Context | None = None
        self._control: zmq.asyncio.Socket | None = None
        self._pending: dict[str, asyncio.Future[control.ToConsole]] = {}

    async def follow(self, store: FleetStore) -> None:
        failures = 0
        try:
            while True:
                try:
                    address = HeadAddress.read(self._folder)
                    keys = load_client_keys(self._folder.keys, self._role)
                    if await self._session(store, address, keys):
                        failures = 0
                except (HeadUnreachable, KeyProblem) as problem:
                    store.disconnected(str(problem))
                except WireError as problem:
                    store.disconnected(f"the head speaks another version: {problem.reason}")
                await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
                failures += 1
        finally:
            self._close_context()

    async def _session(self, store: FleetStore, address: HeadAddress, keys: ClientKeys) -> bool:
        """One connection, until the head falls silent; True if it ever answered."""
        if self._context is None:
            self._context = zmq.asyncio.Context()
        context: Any = self._context
        dealer: Any = sockets.client_dealer(context, keys, address.control)
        sub: Any = sockets.client_sub(context, keys, address.telemetry)
        dealer.linger = sub.linger = 0
        self._control = dealer
        replies = asyncio.create_task(self._read_replies(dealer))
        try:
            # Subscribed before asked: what is published between the two waits in the SUB and is newer than the state.
            if not await self._ask_state(store):
                store.disconnected(_silent(address, self._folder.name))
                return False
            await self._read_telemetry(store, sub)
            store.disconnected(_silent(address, self._folder.name))
            return True
        finally:
            self._control = None
            replies.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await replies
            dealer.close()
            sub.close()

    async def _read_telemetry(self, store: FleetStore, sub: Any) -> None:
        loop, asked_s = asyncio.get_running_loop(), 0.0
        while await sub.poll(int(STALE_AFTER_S * 1000)):
            newest: control.FleetSnapshot | None = None
            while await sub.poll(0):
                message = control.TO_CONSOLE.decode(await sub.recv())
                if isinstance(message, control.FleetSnapshot):
                    newest = message
                else:
                    store.apply(message)
            if newest is not None:
                store.apply(newest)
            if store.needs_state and loop.time() - asked_s > STATE_EVERY_S:
                asked_s = loop.time()
                if not await self._ask_state(store):
                    return

    async def _ask_state(self, store: FleetStore) -> bool:
        request = control.GetState(uuid.uuid4().hex, JOURNAL_TAIL, self.operator)
        reply = await self._ask(request, request.request_id, tries=2, wait_s=STALE_AFTER_S)
        if reply is None:
            return False
        store.apply(reply)
        return True

    async def command(self, name: str, args: dict[str, Any] | None = None, reason: str = "") -> control.CommandReply:
        """Sent again with the same request id until answered: the head runs it once, even across a reconnect. A new size
        of the fleet takes more than the head."""
        if name == "scale":
            return await self._scale(args or {}, reason)
        request = control.Command(uuid.uuid4().hex, self.operator, name, args or {}, reason)
        try:
            reply = await self._ask(request, request.request_id, tries=COMMAND_TRIES, wait_s=self._command_wait_s)
        except (HeadUnreachable, WireError) as problem:
            return control.CommandReply(request.request_id, False, str(problem))
        if isinstance(reply, control.CommandReply):
            return reply
        said = f"no answer from the head within {COMMAND_TRIES * self._command_wait_s:.0f} s; look at the events before repeating"
        return control.CommandReply(request.request_id, False, said)

    async def _scale(self, args: dict[str, Any], reason: str) -> control.CommandReply:
        done, said = await scale(self._folder.path, int(args["nodes"]), reason, force=bool(args.get("force")))
        return control.CommandReply(uuid.uuid4().hex, done, said)

    async def ask(self, question: Question) -> Answer | None:
        try:
            wait_s = SOURCE_WAIT_S if isinstance(question, QueryMetrics | GetMetricNames) else ANSWER_WAIT_S
            reply = await self._ask(question, question.request_id, tries=1, wait_s=wait_s)
        except (HeadUnreachable, WireError):
            return None
        return reply if isinstance(reply, Answer) else None

    async def _ask(self, request: msgspec.Struct, request_id: str, *, tries: int, wait_s: float) -> control.ToConsole | None:
        future: asyncio.Future[control.ToConsole] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = future
        try:
            for _ in range(tries):
                if self._control is not None:
                    with contextlib.suppress(zmq.Again):  # as in HeadClient: a head that refused this key closed the pipe
                        await self._control.send(encode(request), zmq.NOBLOCK)
                done, _ = await asyncio.wait({future}, timeout=wait_s)
                if done:
                    return future.result()
            return None
        finally:
            self._pending.pop(request_id, None)

    async def _read_replies(self, dealer: Any) -> None:
        while True:
            try:
                message = control.TO_CONSOLE.decode(await dealer.recv())
            except WireError as problem:
                self._fail_pending(problem)
                continue
            if isinstance(message, control.Rejected):
                self._fail_pending(HeadUnreachable(f"the head refused: {message.reason}"))
                continue
            future = self._pending.get(getattr(message, "request_id", ""))
            if future is not None and not future.done():
                future.set_result(message)

    def _fail_pending(self, problem: Exception) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(problem)

    async def close(self) -> None:
        self._close_context()

    def _close_context(self) -> None:
        if self._context is not None:
            self._context.destroy(linger=200)
            self._context = None


def _silent(address: HeadAddress, run: str) -> str:
    if not _alive(address.pid):
        return remedy(run)
    return f"the head at {address.control} does not answer (process {address.pid}); trying again"


def _alive(pid: int) -> bool:
    """Only a hint in a message: the head may as well run on another machine, where this pid means nothing."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
