"""A ZeroMQ socket on an asyncio loop without zmq.asyncio: no futures, no tasks, one callback a message.

zmq.asyncio makes a future for every message (about five times the cost of a plain receive); thousands of queries a
second cannot pay that. Here the loop watches the socket's ZMQ_FD and drains with NOBLOCK.

ZMQ_FD is edge-triggered and belongs to libzmq's mailbox, not to the messages. Invariant: **after anything that lets
libzmq read its mailbox (a receive, but also a send), the socket is drained until EAGAIN before the loop sleeps.**
EAGAIN is only returned once the mailbox is empty and asleep, and from then on the next command signals the fd again.
Hence `send` schedules a drain too (one for all sends of a loop turn). At most `batch` messages are handled in a turn, so
timers and other sockets are never starved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import zmq

BATCH = 256

OnMessage = Callable[[list[bytes]], None]


class Pump:
    """Owns `socket` until `close`. Not thread-safe; everything happens on `loop`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, socket: zmq.Socket[bytes], on_message: OnMessage, *, batch: int = BATCH
    ) -> None:
        self._loop = loop
        self.socket = socket
        self._on_message = on_message
        self._batch = batch
        self._turn: asyncio.Handle | None = None
        self.closed = False
        self._fd = int(socket.getsockopt(zmq.FD))
        loop.add_reader(self._fd, self._wake)
        self._wake()  # what arrived before the fd was watched will not signal again

    def send(self, frames: Sequence[bytes | memoryview]) -> bool:
        """False: the high-water mark is reached and the message was not taken. A ROUTER with ROUTER_MANDATORY raises
        zmq.ZMQError (EHOSTUNREACH) for a peer that is not there. After `close` messages are dropped (False)."""
        if self.closed:
            return False
        send = self.socket.send
        last = len(frames) - 1
        try:
            for position, frame in enumerate(frames):
                send(frame, zmq.NOBLOCK | zmq.SNDMORE if position < last else zmq.NOBLOCK)
        except zmq.Again:
            return False  # only the first frame of a message can meet EAGAIN, so nothing was sent
        finally:
            if self._turn is None:
                self._turn = self._loop.call_soon(self._drain)
        return True

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._fd)
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        self.socket.close()

    def receive(self) -> list[bytes]:
        """One message; raises zmq.Again. A subclass may add what it reads from the frames' metadata."""
        return self.socket.recv_multipart(zmq.NOBLOCK)

    def _wake(self) -> None:
        """The fd is ready, or work is left over: drain on the next turn (once, however often this is called)."""
        if self._turn is None and not self.closed:
            self._turn = self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._turn = None
        receive, handle = self.receive, self._on_message
        try:
            for _ in range(self._batch):
                if self.closed:
                    return
                try:
                    frames = receive()
                except zmq.Again:
                    return
                handle(frames)
        except BaseException:
            self._wake()  # a handler that raises must not put the socket to sleep with messages in it
            raise
        self._wake()
