"""The control socket: who says what, with which right.

The ZAP handler has put the role of the sender's key on its connection, so every message arrives with a role that it
cannot choose. A message outside the role's rights is answered with REJECTED and a reason; one of another protocol
version likewise. Handlers only ever see messages that their sender may send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import zmq

from harness.wire import control, inquiry, sockets
from harness.wire.frames import WireError, encode
from harness.wire.keys import ServerKeys, ZapHandler, allow
from harness.wire.pump import Pump

_QUESTIONS = (
    control.GetState,
    inquiry.GetSla,
    inquiry.GetReplica,
    inquiry.GetLogs,
    inquiry.GetDescription,
    inquiry.GetFiles,
    inquiry.GetPart,
    inquiry.QueryMetrics,
    inquiry.GetMetricNames,
)
_RIGHTS: dict[str, tuple[type, ...]] = {
    "worker": (
        control.RegisterWorker,
        control.WorkerBeat,
        control.ReplicaExited,
        control.ReplicaStarting,
        control.Register,
        control.Heartbeat,
    ),
    "operator": (*_QUESTIONS, control.Command, inquiry.RecordTaken),
    "viewer": (*_QUESTIONS, control.Command),  # a viewer's Command is refused with a reply, not with REJECTED
}

Handler = Callable[[bytes, str, control.ToHead], None]


class _RolePump(Pump):
    """Puts the sender's role in front of the frames; only message objects carry it, so one frame is received uncopied."""

    def receive(self) -> list[bytes]:
        first = self.socket.recv(zmq.NOBLOCK, copy=False)
        try:
            role = str(first.get("User-Id"))
        except zmq.ZMQError:
            role = ""
        frames = [role.encode(), first.bytes]
        while self.socket.getsockopt(zmq.RCVMORE):
            frames.append(self.socket.recv(zmq.NOBLOCK))
        return frames


class ControlServer:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: ServerKeys,
        control_address: str,
        telemetry_address: str,
        handler: Handler,
    ) -> None:
        self._handler = handler
        self._zap = ZapHandler(context, allow(keys, "worker", "operator", "viewer"))
        loop.add_reader(int(self._zap.socket.getsockopt(zmq.FD)), self._authenticate)
        self._loop = loop
        router, self.endpoint = sockets.server_router(context, keys, control_address, domain="control")
        self._pub, self.telemetry = sockets.server_pub(context, keys, telemetry_address, domain="telemetry", high_water=64)
        self._pump = _RolePump(loop, router, self._on_frames)
        self.rejected = 0

    @property
    def refused_keys(self) -> int:
        return self._zap.refused

    def send(self, peer: bytes, message: msgspec.Struct) -> bool:
        """False: the peer is not there (any more)."""
        try:
            return self._pump.send((peer, encode(message)))
        except zmq.ZMQError:
            return False

    def publish(self, message: msgspec.Struct) -> None:
        self._pub.send(encode(message), zmq.NOBLOCK)

    def poke(self) -> None:
        """Called by the head's clock: an edge of the authentication socket that was missed costs at most a tick."""
        self._authenticate()

    def _authenticate(self) -> None:
        self._zap.drain()

    def _on_frames(self, frames: list[bytes]) -> None:
        if len(frames) < 3:
            return
        role, peer, body = frames[0].decode(), frames[1], frames[2]
        try:
            message = control.TO_HEAD.decode(body)
        except WireError as error:
            self.rejected += 1
            self.send(peer, control.Rejected(error.reason))
            return
        if not isinstance(message, _RIGHTS.get(role, ())):
            self.rejected += 1
            self.send(peer, control.Rejected(f"a {role or 'nameless'} key may not send {type(message).__name__}"))
            return
        self._handler(peer, role, message)

    def close(self) -> None:
        self._loop.remove_reader(int(self._zap.socket.getsockopt(zmq.FD)))
        self._pump.close()
        self._pub.close()
        self._zap.close()
