"""A console's or CLI's side of the control socket, blocking. The async twin lives in console/feeds.

`HeadClient` asks and acts; `Telemetry` follows. Both find the head by the run folder's head.json.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec
import zmq

from harness.records.layout import RunFolder
from harness.wire import control, sockets
from harness.wire.frames import WireError, encode
from harness.wire.inquiry import Answer, Question
from harness.wire.keys import ClientKeys, load_client_keys


class HeadUnreachable(Exception):
    """No answer from the head; the text says where it was looked for and what to do."""


@dataclass(frozen=True, slots=True)
class HeadAddress:
    control: str
    telemetry: str
    pid: int
    epoch: int

    @classmethod
    def read(cls, folder: RunFolder) -> HeadAddress:
        try:
            raw = json.loads(folder.head_json.read_text())
            return cls(str(raw["control"]), str(raw["telemetry"]), int(raw["pid"]), int(raw["epoch"]))
        except FileNotFoundError as error:
            raise HeadUnreachable(f"{folder.name}: no head has started yet ({folder.head_json} is missing)") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HeadUnreachable(f"{folder.head_json} cannot be used: {error}") from error


def operator_name() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return f"unknown@{socket.gethostname()}"


class HeadClient:
    def __init__(
        self,
        address: HeadAddress,
        keys: ClientKeys,
        *,
        operator: str | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self.operator = operator or operator_name()
        self.address = address
        self._context = context or sockets.context()
        self._own_context = context is None
        self._keys = keys
        self._socket = sockets.client_dealer(self._context, keys, address.control)
        self._socket.linger = 0

    @classmethod
    def of_run(cls, path: Path, role: Literal["operator", "viewer"] = "operator", operator: str | None = None) -> HeadClient:
        folder = RunFolder(path)
        return cls(HeadAddress.read(folder), load_client_keys(folder.keys, role), operator=operator)

    def state(self, *, journal_tail: int = 500, timeout_s: float = 5.0) -> control.RunState:
        request = control.GetState(uuid.uuid4().hex, journal_tail, self.operator)
        reply = self._ask(request, request.request_id, timeout_s)
        if not isinstance(reply, control.RunState):
            raise HeadUnreachable(f"the head answered {type(reply).__name__} to a request for its state")
        return reply

    def command(
        self, name: str, args: dict[str, Any] | None = None, *, reason: str = "", timeout_s: float = 10.0
    ) -> control.CommandReply:
        request = control.Command(uuid.uuid4().hex, self.operator, name, args or {}, reason)
        reply = self._ask(request, request.request_id, timeout_s)
        if not isinstance(reply, control.CommandReply):
            raise HeadUnreachable(f"the head answered {type(reply).__name__} to {name}")
        return reply

    def ask(self, question: Question, timeout_s: float = 5.0) -> Answer:
        """The answer to a question that changes nothing (harness.wire.inquiry); viewers may ask too."""
        reply = self._ask(question, question.request_id, timeout_s)
        if not isinstance(reply, Answer):
            raise HeadUnreachable(f"the head answered {type(reply).__name__} to {type(question).__name__}")
        return reply

    def _ask(self, request: msgspec.Struct, request_id: str, timeout_s: float) -> control.ToConsole:
        """Sends with the same request id until answered: the head answers a repeat without running it again."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        tries = 3
        for _ in range(tries):
            with contextlib.suppress(zmq.Again):  # a head that refused this key has closed the pipe: a send would block
                self._socket.send(encode(request), zmq.NOBLOCK)
            while poller.poll(int(timeout_s * 1000 / tries)):
                try:
                    reply = control.TO_CONSOLE.decode(self._socket.recv())
                except WireError as error:
                    raise HeadUnreachable(f"the head's answer cannot be read: {error.reason}") from error
                if isinstance(reply, control.Rejected):
                    raise HeadUnreachable(f"the head refused: {reply.reason}")
                if getattr(reply, "request_id", "") == request_id:
                    return reply
        raise HeadUnreachable(
            f"no answer from the head at {self.address.control} within {timeout_s:g} s (process {self.address.pid}; "
            "it may have ended, or this key is not one of the run's)"
        )

    def close(self) -> None:
        self._socket.close()
        if self._own_context:
            self._context.term()

    def __enter__(self) -> HeadClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Telemetry:
    """Iterates over what the head publishes; yields None when nothing came for `timeout_s`."""

    def __init__(self, address: HeadAddress, keys: ClientKeys, timeout_s: float = 1.0) -> None:
        self._context = sockets.context()
        self._socket = sockets.client_sub(self._context, keys, address.telemetry)
        self._socket.linger = 0
        self._timeout_ms = int(timeout_s * 1000)

    @classmethod
    def of_run(cls, path: Path, role: Literal["operator", "viewer"] = "operator", timeout_s: float = 1.0) -> Telemetry:
        folder = RunFolder(path)
        return cls(HeadAddress.read(folder), load_client_keys(folder.keys, role), timeout_s)

    def __iter__(self) -> Iterator[control.FleetSnapshot | control.JournalNews | control.RosterNews | None]:
        while True:
            if not self._socket.poll(self._timeout_ms):
                yield None
                continue
            message = control.TO_CONSOLE.decode(self._socket.recv())
            if isinstance(message, control.FleetSnapshot | control.JournalNews | control.RosterNews):
                yield message

    def close(self) -> None:
        self._socket.close()
        self._context.term()
