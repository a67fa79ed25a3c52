"""CURVE keys of a run and who they make you.

One server pair and one pair a role (worker, operator, viewer). Whoever holds a role's secret key has that role:
the ZAP handler looks the client's public key up and answers with the role as user id, so every message received on
an authenticated socket carries it. An unknown key never completes the handshake.

Local runs keep the keys in `<run>/keys/` (folder 0700, files 0600); elsewhere they come from a mounted Secret with
the same file names.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import zmq
import zmq.utils.z85

Role = Literal["worker", "operator", "viewer"]
ROLES: tuple[Role, ...] = ("worker", "operator", "viewer")


_Z85 = frozenset(zmq.utils.z85.Z85CHARS)


class KeyProblem(Exception):
    """A key file is missing, unreadable or malformed; the text names it."""


@dataclass(frozen=True, slots=True)
class Pair:
    public: bytes  # Z85, 40 characters
    secret: bytes

    @classmethod
    def fresh(cls) -> Pair:
        public, secret = zmq.curve_keypair()
        return cls(public, secret)


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """What a client needs: its own pair and the server's public key."""

    role: Role
    own: Pair
    server_public: bytes

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        socket.curve_publickey = self.own.public
        socket.curve_secretkey = self.own.secret
        socket.curve_serverkey = self.server_public


@dataclass(frozen=True, slots=True)
class ServerKeys:
    server: Pair
    roles: dict[Role, Pair]

    @classmethod
    def fresh(cls) -> ServerKeys:
        return cls(Pair.fresh(), {role: Pair.fresh() for role in ROLES})

    def client(self, role: Role) -> ClientKeys:
        return ClientKeys(role, self.roles[role], self.server.public)

    def save(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(folder, 0o700)
        _write(folder / "server.key", {"public": self.server.public, "secret": self.server.secret})
        for role, pair in self.roles.items():
            _write(folder / f"{role}.key", {"public": pair.public, "secret": pair.secret, "server": self.server.public})

    @classmethod
    def load(cls, folder: Path) -> ServerKeys:
        server = _read(folder / "server.key", "public", "secret")
        roles: dict[Role, Pair] = {}
        for role in ROLES:
            got = _read(folder / f"{role}.key", "public", "secret")
            roles[role] = Pair(got["public"], got["secret"])
        return cls(Pair(server["public"], server["secret"]), roles)


def load_client_keys(folder: Path, role: Role) -> ClientKeys:
    got = _read(folder / f"{role}.key", "public", "secret", "server")
    return ClientKeys(role, Pair(got["public"], got["secret"]), got["server"])


def _write(path: Path, fields: dict[str, bytes]) -> None:
    text = json.dumps({name: value.decode("ascii") for name, value in fields.items()})
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(handle, 0o600)  # the mode of open() does not touch a file that exists
    with os.fdopen(handle, "w") as file:
        file.write(text + "\n")


def _read(path: Path, *fields: str) -> dict[str, bytes]:
    try:
        raw = json.loads(path.read_text())
        values = {name: str(raw[name]).encode("ascii") for name in fields}
    except OSError as error:
        raise KeyProblem(f"cannot read key file {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise KeyProblem(f"key file {path} is not a paceline key (needs {', '.join(fields)})") from error
    for name, value in values.items():
        if len(value) != 40 or any(character not in _Z85 for character in value):
            raise KeyProblem(f"key file {path}: {name} is not a CURVE key (40 characters of Z85)")
    return values


class ZapHandler:
    """Answers ZeroMQ's authentication requests from whatever loop the caller runs: poll `socket`, call `drain`.

    One for a context: libzmq looks for `inproc://zeromq.zap.01`. It must be bound before a server socket accepts.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allowed: dict[bytes, Role]) -> None:
        self._allowed = allowed
        self.refused = 0
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def drain(self) -> None:
        while True:
            try:
                request = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.socket.send_multipart(self._answer(request))

    def _answer(self, request: list[bytes]) -> list[bytes]:
        version, request_id = [*request, b"", b""][:2]
        mechanism = request[5] if len(request) > 5 else b""
        role: Role | None = None
        if mechanism == b"CURVE" and len(request) > 6:
            role = self._allowed.get(zmq.utils.z85.encode(request[6]))
        if role is None:
            self.refused += 1
            return [version or b"1.0", request_id, b"400", b"unknown key", b"", b""]
        return [version, request_id, b"200", b"OK", role.encode(), b""]

    def close(self) -> None:
        self.socket.close()


def allow(keys: ServerKeys, *roles: Role) -> dict[bytes, Role]:
    return {keys.roles[role].public: role for role in roles}
