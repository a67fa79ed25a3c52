"""A replica process's side of the data path: QUERY in, FIRST and COMPLETE out, over one DEALER per attempt. Hot.

Invariants
- A fresh socket for every attempt. Replies leave only for keys in `_outstanding`, which is emptied when the socket
  changes: nothing of an old epoch is ever sent to a new socket.
- No task, timer, list of ints or log line per query: decode, one dict entry, engine.submit; then encode, send.
- A sample of an incarnation that is gone or not ready is answered with FAILED a moment later, not at once: an immediate
  refusal would make a dead slot the emptiest and thus the most attractive one for a balancing driver, and burn a sample's
  tries before the head's own notice (sent at once) has taken the slot out of the pool.

Measured with an engine that echoes at once, 512 slots in one process, CURVE on, 1 KB prompts, 5 KB answers: 30-40 µs CPU a
query for the whole process, libzmq's I/O thread included (tests/system/test_worker_data_path.py prints it).
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

import zmq

from harness.engines.base import Key, Request
from harness.wire import control, data, sockets
from harness.wire.frames import WireError, encode
from harness.wire.keys import ClientKeys
from harness.wire.pump import Pump
from harness.wire.states import READY
from harness.worker.backoff import jittered

if TYPE_CHECKING:
    from harness.worker.incarnation import Incarnation

HELLO_EVERY_S = 0.5
HELLO_AFTER_S = 0.02
HELLO_AGAIN_S = 5.0  # a driver that dropped a broken connection learns that it is back; to all others it is a repeat
HELLO_REFUSED_S = 2.0
FAILED_AFTER_S = 0.25
REASON_CHARACTERS = 500

log = logging.getLogger("paceline.replica")


class DataPlane:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: ClientKeys,
        slots: dict[str, Incarnation],
        rng: random.Random,
    ) -> None:
        self._loop, self._context, self._keys, self._slots, self._rng = loop, context, keys, slots, rng
        self._decode = data.TO_REPLICA.decode
        self._endpoint: control.DataEndpoint | None = None
        self._pump: Pump | None = None
        self._outstanding: dict[Key, Incarnation] = {}
        self._greeted: set[str] = set()  # incarnations that the driver has pinged
        self._hello: asyncio.TimerHandle | None = None
        self._hello_every_s = HELLO_EVERY_S

    # --- attempts come and go ---------------------------------------------------------------------------------

    def open(self, endpoint: control.DataEndpoint) -> None:
        """Connect to an attempt's driver. A repeat says HELLO again for whoever has not been pinged."""
        if endpoint != self._endpoint:
            self._shut()
            keys = ClientKeys("worker", self._keys.own, endpoint.server_key.encode())
            try:
                socket = sockets.client_dealer(self._context, keys, endpoint.endpoint)
            except (zmq.ZMQError, ValueError) as error:
                log.error("data endpoint %s of epoch %d cannot be used: %s", endpoint.endpoint, endpoint.epoch, error)
                return
            socket.linger = 0  # an attempt that is over wants no late answers
            self._endpoint = endpoint
            self._pump = Pump(self._loop, socket, self._on_frames)
        self.greet_soon()

    def close_epoch(self, epoch: int) -> None:
        if self._endpoint is not None and self._endpoint.epoch == epoch:
            self._shut()

    def close(self) -> None:
        self._shut()

    def greet_soon(self) -> None:
        """Hundreds of incarnations may become READY together, and each brings the endpoint's news again: one round for all."""
        soon = self._loop.time() + HELLO_AFTER_S
        if self._hello is not None:
            if self._hello.when() <= soon:
                return
            self._hello.cancel()
        self._hello = self._loop.call_at(soon, self._greet)

    def _greet(self) -> None:
        """HELLO for every READY incarnation without a PING; repeated until none is left."""
        self._hello = None
        if self._pump is None or self._endpoint is None:
            return
        left = False
        for incarnation in self._slots.values():
            if incarnation.state == READY and incarnation.id not in self._greeted:
                self._pump.send([encode(data.Hello(self._endpoint.epoch, incarnation.slot, incarnation.id))])
                left = True
        if left:
            self._hello = self._loop.call_later(jittered(self._rng, self._hello_every_s), self._greet)
        else:
            self._hello = self._loop.call_later(jittered(self._rng, HELLO_AGAIN_S), self._greet_again)

    def _greet_again(self) -> None:
        self._greeted.clear()
        self._greet()

    def forget(self, incarnation: Incarnation, reason: str) -> None:
        """The incarnation is over: what it still had is refused, later than the head is told."""
        mine = [key for key, owner in self._outstanding.items() if owner is incarnation]
        for key in mine:
            del self._outstanding[key]
            self._refuse_later(key, reason)
        self._greeted.discard(incarnation.id)

    def _shut(self) -> None:
        if self._hello is not None:
            self._hello.cancel()
            self._hello = None
        if self._pump is not None:
            self._pump.close()
        self._pump, self._endpoint = None, None
        self._hello_every_s = HELLO_EVERY_S
        self._greeted.clear()
        left, self._outstanding = self._outstanding, {}
        for key, incarnation in left.items():
            if incarnation.engine is not None:
                incarnation.engine.cancel(key)

    # --- from the driver --------------------------------------------------------------------------------------

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            header = self._decode(frames[0])
        except WireError as error:
            log.error("the driver's message cannot be used: %s", error.reason)
            return
        if type(header) is data.Query:
            self._query(header, frames)
        elif type(header) is data.Ping:
            self._ping(header)
        elif type(header) is data.Cancel:
            key = Key(header.epoch, header.seq, header.attempt_try)
            incarnation = self._outstanding.pop(key, None)
            if incarnation is not None and incarnation.engine is not None:
                incarnation.engine.cancel(key)
        elif type(header) is data.Refused:
            if self._hello_every_s != HELLO_REFUSED_S:
                log.warning("the driver refuses a HELLO: %s", header.reason)
            self._hello_every_s = HELLO_REFUSED_S

    def _query(self, header: data.Query, frames: list[bytes]) -> None:
        endpoint = self._endpoint
        if endpoint is None or header.epoch != endpoint.epoch:
            return
        key = Key(header.epoch, header.seq, header.attempt_try)
        incarnation = self._slots.get(header.slot)
        if incarnation is None or incarnation.state != READY or incarnation.engine is None:
            self._refuse_later(key, f"{header.slot} is not ready here")
            return
        stage = header.stage
        if len(frames) != (3 if stage == data.DECODE else 2):
            self._send(data.Failed(*key, "the query came without a prompt, or a decode query without its handoff"))
            return
        if key in self._outstanding:
            return
        self._outstanding[key] = incarnation
        try:
            handoff = frames[2] if stage == data.DECODE else b""
            incarnation.engine.submit(
                Request(key, frames[1], header.max_tokens, header.expected_tokens, header.index, stage, handoff)
            )
        except Exception as error:
            log.exception("%s: submit", header.slot)
            self.failed(key, f"{type(error).__name__}: {error}")

    def _ping(self, header: data.Ping) -> None:
        endpoint = self._endpoint
        incarnation = self._slots.get(header.slot)
        if endpoint is not None and header.epoch == endpoint.epoch and incarnation is not None and incarnation.state == READY:
            self._greeted.add(incarnation.id)
            self._hello_every_s = HELLO_EVERY_S
            self._send(data.Pong(header.epoch, header.slot, incarnation.id))

    # --- from the engines -------------------------------------------------------------------------------------

    def first(self, key: Key, token: bytes, queue_us: int, prefill_us: int) -> None:
        if key in self._outstanding and self._pump is not None:
            self._pump.send((encode(data.First(*key, queue_us, prefill_us)), token))

    def complete(self, key: Key, tokens: bytes, queue_us: int, prefill_us: int, decode_us: int) -> None:
        if self._outstanding.pop(key, None) is not None and self._pump is not None:
            self._pump.send((encode(data.Complete(*key, queue_us, prefill_us, decode_us)), tokens))

    def prefilled(self, key: Key, handoff: bytes, queue_us: int, prefill_us: int) -> None:
        if self._outstanding.pop(key, None) is not None and self._pump is not None:
            self._pump.send((encode(data.Prefilled(*key, queue_us, prefill_us)), handoff))

    def failed(self, key: Key, reason: str) -> None:
        if self._outstanding.pop(key, None) is not None:
            self._send(data.Failed(*key, reason[:REASON_CHARACTERS]))

    def _refuse_later(self, key: Key, reason: str) -> None:
        self._loop.call_later(FAILED_AFTER_S, self._refuse, self._endpoint, key, reason)

    def _refuse(self, endpoint: control.DataEndpoint | None, key: Key, reason: str) -> None:
        if endpoint is not None and endpoint is self._endpoint:
            self._send(data.Failed(*key, reason[:REASON_CHARACTERS]))

    def _send(self, header: data.Pong | data.Failed) -> None:
        if self._pump is not None:
            self._pump.send([encode(header)])
