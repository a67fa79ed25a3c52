"""Echo replicas: one process, one data connection a slot, every QUERY answered at once with FIRST and COMPLETE.

`python -m tests.bench.echo JSON` with endpoint, keys (folder; empty: no CURVE), epoch, slots (pairs of slot and
incarnation) and tokens. HELLO is repeated until PING, as replicas do. Nothing is generated and nothing is remembered, so
that the load this puts on the machine is close to the least that real sockets can have. Ends with its parent.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import zmq

from harness.wire import data, sockets
from harness.wire.frames import encode
from harness.wire.keys import ClientKeys, load_client_keys
from tests.bench.rig import child_config

HELLO_EVERY_S = 0.5
DRAIN = 64


class NoKeys:
    """In place of ClientKeys: leaves the socket with ZeroMQ's NULL mechanism. Only to measure what CURVE costs."""

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        pass


class EchoPeers:
    def __init__(self, config: dict[str, Any]) -> None:
        self._context = sockets.context()
        self._epoch = int(config["epoch"])
        keys: Any = load_client_keys(Path(config["keys"]), "worker") if config["keys"] else NoKeys()
        self._answer = (7).to_bytes(4, "little") * int(config["tokens"])
        self._waiting: dict[zmq.Socket[bytes], data.Hello] = {}
        self._poller = zmq.Poller()
        for slot, incarnation in config["slots"]:
            socket = self._connect(keys, config["endpoint"])
            self._waiting[socket] = data.Hello(self._epoch, slot, incarnation)
            self._poller.register(socket, zmq.POLLIN)

    def _connect(self, keys: ClientKeys, endpoint: str) -> zmq.Socket[bytes]:
        socket = sockets.client_dealer(self._context, keys, endpoint)
        socket.linger = 0
        return socket

    def run(self) -> None:
        next_hello_s = 0.0
        while True:
            if self._waiting and time.monotonic() >= next_hello_s:
                next_hello_s = time.monotonic() + HELLO_EVERY_S
                for socket, hello in self._waiting.items():
                    socket.send(encode(hello))
            for socket, _ in self._poller.poll(200):
                self._drain(socket)

    def _drain(self, socket: zmq.Socket[bytes]) -> None:
        receive, send, decode = socket.recv_multipart, socket.send_multipart, data.TO_REPLICA.decode
        answer = self._answer
        first = answer[:4]
        for _ in range(DRAIN):
            try:
                frames = receive(zmq.NOBLOCK)
            except zmq.Again:
                return
            message = decode(frames[0])
            if type(message) is data.Query:
                epoch, seq, this_try = message.epoch, message.seq, message.attempt_try
                send((encode(data.First(epoch, seq, this_try, 10, 20)), first))
                send((encode(data.Complete(epoch, seq, this_try, 10, 20, 30)), answer))
            elif type(message) is data.Ping:
                hello = self._waiting.pop(socket, None)
                if hello is not None:
                    socket.send(encode(data.Pong(hello.epoch, hello.slot, hello.incarnation)))


if __name__ == "__main__":
    EchoPeers(child_config()).run()
