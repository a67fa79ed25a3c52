"""Keys: what is saved comes back, only its owner may read it, a damaged file is named, and ZAP lets in who is listed."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from harness.wire import sockets
from harness.wire.keys import ROLES, ClientKeys, KeyProblem, Role, ServerKeys, ZapHandler, allow, load_client_keys


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made = sockets.context()
    yield made
    made.destroy(linger=0)


def test_saved_keys_come_back_for_the_head_and_for_every_role(tmp_path: Path) -> None:
    keys = ServerKeys.fresh()
    keys.save(tmp_path / "keys")
    assert ServerKeys.load(tmp_path / "keys") == keys
    for role in ROLES:
        assert load_client_keys(tmp_path / "keys", role) == keys.client(role)


def test_every_pair_is_another_one() -> None:
    keys, others = ServerKeys.fresh(), ServerKeys.fresh()
    secrets = [keys.server.secret, others.server.secret, *(pair.secret for k in (keys, others) for pair in k.roles.values())]
    assert len(set(secrets)) == 8


def test_only_the_owner_may_enter_the_folder_and_read_the_keys(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "keys"
    folder.mkdir(parents=True, mode=0o755)
    ServerKeys.fresh().save(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["operator.key", "server.key", "viewer.key", "worker.key"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_role_key_file_does_not_hold_the_servers_secret(tmp_path: Path) -> None:
    keys = ServerKeys.fresh()
    keys.save(tmp_path)
    for role in ROLES:
        assert keys.server.secret.decode() not in (tmp_path / f"{role}.key").read_text()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'"public"',
        b"{}",
        b'{"public": "short", "secret": "short", "server": "short"}',
        json.dumps({"public": "é" * 40, "secret": "a" * 40, "server": "a" * 40}).encode(),
        json.dumps({"public": "a" * 40, "secret": "a" * 40}).encode(),
    ],
)
def test_a_damaged_key_file_is_named_in_the_error(tmp_path: Path, content: bytes) -> None:
    ServerKeys.fresh().save(tmp_path)
    path = tmp_path / "operator.key"
    path.write_bytes(content)
    with pytest.raises(KeyProblem, match=str(path)):
        load_client_keys(tmp_path, "operator")


def test_a_missing_key_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(KeyProblem, match=r"server\.key: No such file"):
        ServerKeys.load(tmp_path)


def test_the_allow_list_holds_the_named_roles_and_nobody_else() -> None:
    keys = ServerKeys.fresh()
    listed = allow(keys, "worker", "viewer")
    assert listed == {keys.roles["worker"].public: "worker", keys.roles["viewer"].public: "viewer"}


class Door:
    """A CURVE ROUTER whose ZAP handler is run by hand, as the loops of head and driver do."""

    def __init__(self, context: zmq.Context[Any], keys: ServerKeys, *roles: Role) -> None:
        self.context = context
        self.zap = ZapHandler(context, allow(keys, *roles))
        self.router, self.endpoint = sockets.server_router(context, keys, "tcp://127.0.0.1:0", domain="test")

    def knock(self, keys: ClientKeys, within_ms: int) -> str | None:
        """The role that a message of this client arrives with; None: it does not arrive."""
        client = sockets.client_dealer(self.context, keys, self.endpoint)
        client.linger = 0
        client.send(b"hello")
        poller = zmq.Poller()
        poller.register(self.zap.socket, zmq.POLLIN)
        poller.register(self.router, zmq.POLLIN)
        try:
            while ready := dict(poller.poll(within_ms)):
                if self.zap.socket in ready:
                    refused = self.zap.refused
                    self.zap.drain()
                    if self.zap.refused > refused:
                        return None if not self.router.poll(50) else "let in"
                if self.router in ready:
                    self.router.recv()
                    return str(self.router.recv(copy=False).get("User-Id"))
            return None
        finally:
            client.close()


def test_a_listed_key_arrives_with_its_role(context: zmq.Context[Any]) -> None:
    keys = ServerKeys.fresh()
    door = Door(context, keys, "worker", "operator", "viewer")
    assert {role: door.knock(keys.client(role), 30_000) for role in ROLES} == {role: role for role in ROLES}
    assert door.zap.refused == 0


def test_a_key_of_another_role_and_an_unknown_key_do_not_get_in(context: zmq.Context[Any]) -> None:
    keys = ServerKeys.fresh()
    door = Door(context, keys, "worker")
    assert door.knock(keys.client("operator"), 30_000) is None
    stranger = ClientKeys("worker", ServerKeys.fresh().roles["worker"], keys.server.public)
    assert door.knock(stranger, 30_000) is None
    assert door.zap.refused == 2
    assert door.knock(keys.client("worker"), 30_000) == "worker"


def test_a_client_that_expects_another_server_does_not_talk_to_this_one(context: zmq.Context[Any]) -> None:
    keys = ServerKeys.fresh()
    door = Door(context, keys, "worker")
    misled = ClientKeys("worker", keys.roles["worker"], ServerKeys.fresh().server.public)
    assert door.knock(misled, 300) is None


def test_plain_text_and_malformed_requests_are_answered_with_a_refusal(context: zmq.Context[Any]) -> None:
    keys = ServerKeys.fresh()
    zap = ZapHandler(context, allow(keys, "worker"))
    asking = context.socket(zmq.DEALER)
    asking.connect("inproc://zeromq.zap.01")
    for request in ([b"1.0", b"7", b"data", b"127.0.0.1", b"", b"NULL"], [b"1.0", b"7"], [b"1.0", b"7", b"", b"", b"", b"CURVE"]):
        asking.send_multipart([b"", *request])
        assert zap.socket.poll(30_000)
        zap.drain()
        answer = asking.recv_multipart()
        assert answer[:4] == [b"", b"1.0", b"7", b"400"]
    assert zap.refused == 3
