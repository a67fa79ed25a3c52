"""The control socket over real CURVE connections: each key may send its own messages, and a refusal says why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from harness.head.control_server import ControlServer
from harness.wire import control, inquiry, sockets
from harness.wire.frames import encode
from harness.wire.keys import ClientKeys, Role, ServerKeys
from harness.wire.pump import Pump


class Hall:
    """A control server that keeps what reaches its handler and answers every message with BeatAck."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.context = sockets.context()
        self.keys = ServerKeys.fresh()
        self.handled: list[tuple[str, Any]] = []
        address = "tcp://127.0.0.1:0"
        self.server = ControlServer(self.loop, self.context, self.keys, address, address, self._handle)
        self._pumps: list[Pump] = []

    def _handle(self, peer: bytes, role: str, message: control.ToHead) -> None:
        self.handled.append((role, message))
        assert self.server.send(peer, control.BeatAck(1))

    def connect(self, keys: ClientKeys) -> tuple[Pump, asyncio.Queue[bytes]]:
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        socket = sockets.client_dealer(self.context, keys, self.server.endpoint)
        socket.linger = 0
        pump = Pump(self.loop, socket, lambda frames: answers.put_nowait(frames[0]))
        self._pumps.append(pump)
        return pump, answers

    async def ask(self, role: Role, body: bytes, within_s: float = 30.0) -> Any:
        pump, answers = self.connect(self.keys.client(role))
        pump.send([body])
        answer = await asyncio.wait_for(answers.get(), within_s)
        return msgspec.msgpack.decode(answer[1:])

    def close(self) -> None:
        for pump in self._pumps:
            pump.close()
        self.server.close()
        self.context.destroy(linger=0)


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    made = Hall()
    yield made
    made.close()


BEAT = control.WorkerBeat("w000", "a", 1)
COMMAND = control.Command("r1", "ann", "stop")
STATE = control.GetState("r2")
QUESTIONS = [inquiry.GetSla("r3"), inquiry.GetReplica("r4", "node000/gpu0"), inquiry.GetLogs("r5")]
REGISTER = control.Register("node000/gpu0", "a", "both", "m", "h", "synthetic", True, "w000", 1, "here")


@pytest.mark.parametrize(
    ("role", "message"),
    [
        *(("worker", message) for message in (BEAT, REGISTER)),
        *((role, message) for role in ("operator", "viewer") for message in (COMMAND, STATE, *QUESTIONS)),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_a_key_may_send_the_messages_of_its_role_and_arrives_with_that_role(
    hall: Hall, role: Role, message: msgspec.Struct
) -> None:
    assert (await hall.ask(role, encode(message)))["type"] == "BeatAck"
    assert hall.handled == [(role, message)]


@pytest.mark.parametrize(
    ("role", "message"),
    [
        *(("worker", message) for message in (COMMAND, STATE, *QUESTIONS)),
        *(("operator", message) for message in (BEAT, REGISTER)),
        ("viewer", REGISTER),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_a_message_of_another_role_is_rejected_in_words_and_never_handled(
    hall: Hall, role: Role, message: msgspec.Struct
) -> None:
    answer = await hall.ask(role, encode(message))
    assert answer["type"] == "Rejected"
    assert answer["reason"] == f"a {role} key may not send {type(message).__name__}"
    assert hall.handled == []
    assert hall.server.rejected == 1


@pytest.mark.parametrize(
    ("body", "words"), [(b"\x02anything", "protocol version 2"), (b"", "empty message"), (b"\x01\xc1", "malformed")]
)
async def test_another_version_and_nonsense_are_rejected_in_words(hall: Hall, body: bytes, words: str) -> None:
    answer = await hall.ask("worker", body)
    assert answer["type"] == "Rejected"
    assert words in answer["reason"]
    assert hall.handled == []


async def test_an_unknown_key_gets_nothing_and_is_counted(hall: Hall) -> None:
    stranger = ClientKeys("operator", ServerKeys.fresh().roles["operator"], hall.keys.server.public)
    pump, answers = hall.connect(stranger)
    pump.send([encode(COMMAND)])
    async with asyncio.timeout(30):
        while not hall.server.refused_keys:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(answers.get(), 0.3)
    assert hall.handled == []


async def test_a_message_for_a_peer_that_is_not_there_is_said_not_to_be_sent(hall: Hall) -> None:
    assert not hall.server.send(b"nobody", control.BeatAck(1))


async def test_telemetry_reaches_every_role_that_follows(hall: Hall) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    pumps = []
    for role in ("operator", "viewer"):
        socket = sockets.client_sub(hall.context, hall.keys.client(role), hall.server.telemetry)
        socket.linger = 0
        pumps.append(Pump(hall.loop, socket, lambda frames: heard.put_nowait(frames[0])))
    news = control.JournalNews([control.JournalEntry(1, 2.0, "head", "run.phase")])
    got: list[bytes] = []
    async with asyncio.timeout(30):
        while len(got) < 2:
            hall.server.publish(news)
            await asyncio.sleep(0.02)
            while not heard.empty():
                got.append(heard.get_nowait())
    assert set(got) == {encode(news)}
    for pump in pumps:
        pump.close()


async def test_a_message_of_several_frames_does_not_disturb_the_next_one(hall: Hall) -> None:
    pump, answers = hall.connect(hall.keys.client("worker"))
    pump.send([encode(BEAT), b"more", b"and more"])
    pump.send([encode(BEAT)])
    for _ in range(2):
        await asyncio.wait_for(answers.get(), 30)
    assert len(hall.handled) == 2


async def test_a_hundred_clients_at_once_are_all_let_in(hall: Hall) -> None:
    clients = [hall.connect(hall.keys.client("worker")) for _ in range(100)]
    for pump, _ in clients:
        pump.send([encode(BEAT)])
    async with asyncio.timeout(60):
        for _, answers in clients:
            await answers.get()
    assert len(hall.handled) == 100
