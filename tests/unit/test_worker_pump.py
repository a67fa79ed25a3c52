"""The socket pump: nothing sleeps in a socket, and a flood does not starve the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest
import zmq

from harness.wire.pump import Pump

Sockets = tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]


@pytest.fixture
async def pair() -> AsyncIterator[Sockets]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    left, right = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    port = left.bind_to_random_port("tcp://127.0.0.1")
    right.connect(f"tcp://127.0.0.1:{port}")
    yield left, right
    context.destroy(linger=0)


async def until(condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
    deadline = asyncio.get_running_loop().time() + deadline_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.001)


async def test_an_answer_that_arrives_while_the_loop_is_busy_and_sends_again_is_not_left_lying(pair: Sockets) -> None:
    """The second send consumes the edge of ZMQ_FD that announced the first answer."""
    got: list[bytes] = []
    pump = Pump(asyncio.get_running_loop(), pair[1], lambda frames: got.append(frames[0]))
    for number in range(20):
        pump.send([b"one"])
        answer_blocking(pair[0])
        time.sleep(0.005)  # noqa: ASYNC251 the loop is busy; libzmq looks at its mailbox on a send after about 1 ms
        pump.send([b"two"])
        answer_blocking(pair[0])
        await until(lambda number=number: len(got) == 2 * (number + 1))  # type: ignore[misc]
    pump.close()


def answer_blocking(socket: zmq.Socket[bytes]) -> None:
    assert socket.poll(5000)
    socket.send(socket.recv())


async def test_two_pumps_that_answer_each_other_carry_every_message(pair: Sockets) -> None:
    loop, seen, rounds = asyncio.get_running_loop(), 0, 3000

    def answer(frames: list[bytes]) -> None:
        right.send(frames)

    def count(frames: list[bytes]) -> None:
        nonlocal seen
        seen += 1
        if seen < rounds:
            left.send([b"n", b"%d" % seen])

    left, right = Pump(loop, pair[1], count), Pump(loop, pair[0], answer)  # the connecting side may speak at once
    for _ in range(20):
        left.send([b"n", b"0"])
    await until(lambda: seen == rounds + 19)
    left.close()
    right.close()


async def test_messages_that_came_before_the_pump_are_delivered_whole_and_in_order(pair: Sockets) -> None:
    for number in range(1000):
        pair[1].send_multipart([b"%d" % number, b"payload"])
    await asyncio.sleep(0.1)
    got: list[list[bytes]] = []
    pump = Pump(asyncio.get_running_loop(), pair[0], got.append)
    await until(lambda: len(got) == 1000)
    assert got == [[b"%d" % number, b"payload"] for number in range(1000)]
    pump.close()


async def test_a_flood_leaves_the_loop_its_turns(pair: Sockets) -> None:
    loop, got, turns = asyncio.get_running_loop(), 0, []

    def handle(frames: list[bytes]) -> None:
        nonlocal got
        got += 1

    def turn() -> None:
        turns.append(got)
        loop.call_soon(turn)

    for _ in range(1000):
        pair[1].send(b"x")
    await asyncio.sleep(0.2)
    pump = Pump(loop, pair[0], handle, batch=50)
    loop.call_soon(turn)
    await until(lambda: got == 1000)
    assert max(b - a for a, b in pairwise(turns)) <= 50
    pump.close()


async def test_a_handler_that_raises_does_not_put_the_socket_to_sleep(pair: Sockets) -> None:
    loop, got, errors = asyncio.get_running_loop(), [], []
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))

    def handle(frames: list[bytes]) -> None:
        got.append(frames[0])
        if frames[0] == b"1":
            raise ValueError("one")

    pump = Pump(loop, pair[0], handle)
    for number in range(3):
        pair[1].send(b"%d" % number)
    await until(lambda: len(got) == 3)
    assert len(errors) == 1
    pump.close()


async def test_a_full_socket_says_so_and_a_closed_pump_takes_nothing(pair: Sockets) -> None:
    lonely = pair[0].context.socket(zmq.DEALER)
    lonely.linger = 0
    lonely.sndhwm = 2
    lonely.connect("tcp://127.0.0.1:1")
    pump = Pump(asyncio.get_running_loop(), lonely, lambda frames: None)
    assert [pump.send([b"a", b"b"]) for _ in range(4)][-1] is False
    pump.close()
    assert pump.send([b"a"]) is False
    pump.close()
