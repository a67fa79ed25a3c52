"""The live feed against real CURVE sockets: a minimal head that speaks the wire, restarts and stays silent on demand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
import zmq

from console.feeds.head import HeadFeed
from console.feeds.scripted import ScriptedFleet
from console.store.fleet import FleetStore
from harness.records.layout import RunFolder
from harness.wire import control, sockets
from harness.wire.frames import encode
from harness.wire.keys import Pair, ServerKeys, ZapHandler, allow


class SmallHead:
    """Control and telemetry of a head on real sockets, in a thread of its own; its fleet is sample data."""

    def __init__(self, folder: RunFolder, epoch: int) -> None:
        self.epoch = epoch
        self.ignore_next = 0  # commands to leave unanswered
        self.heard: list[str] = []  # requests of commands, each as often as it came
        self._folder, self._fleet = folder, ScriptedFleet(nodes=2, gpus=4)
        self._ready, self._stop = threading.Event(), threading.Event()
        self.commands: list[control.Command] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    def _run(self) -> None:
        context, keys = sockets.context(), ServerKeys.load(self._folder.keys)
        zap = ZapHandler(context, allow(keys, "operator", "viewer"))
        router, control_at = sockets.server_router(context, keys, "tcp://127.0.0.1:0", domain="control")
        pub, telemetry_at = sockets.server_pub(context, keys, "tcp://127.0.0.1:0", domain="telemetry", high_water=64)
        address = {"control": control_at, "telemetry": telemetry_at, "pid": os.getpid(), "epoch": self.epoch}
        self._folder.head_json.write_text(json.dumps(address))
        poller = zmq.Poller()
        poller.register(zap.socket, zmq.POLLIN)
        poller.register(router, zmq.POLLIN)
        self._ready.set()
        sent_s = 0.0
        while not self._stop.is_set():
            for socket, _ in poller.poll(20):
                if socket is zap.socket:
                    zap.drain()
                else:
                    self._answer(router)
            if time.monotonic() - sent_s > 0.1:
                sent_s = time.monotonic()
                pub.send(encode(msgspec.structs.replace(self._fleet.snapshot(), head_epoch=self.epoch)))
        for socket in (router, pub, zap.socket):
            socket.close(linger=0)
        context.term()

    def _answer(self, router: zmq.Socket[bytes]) -> None:
        peer, frame = router.recv_multipart()
        message = control.TO_HEAD.decode(frame)
        if isinstance(message, control.GetState):
            state = msgspec.structs.replace(self._fleet.run_state(message.request_id), head_epoch=self.epoch)
            router.send_multipart([peer, encode(state)])
        elif isinstance(message, control.Command):
            self.heard.append(message.request_id)
            if self.ignore_next:
                self.ignore_next -= 1
                return
            if message.request_id not in {command.request_id for command in self.commands}:
                self.commands.append(message)  # an answer that took too long is asked for again, and the head acts once
            router.send_multipart([peer, encode(control.CommandReply(message.request_id, True, f"{message.name} done"))])

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(5)


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - a store has no event to wait for
            await asyncio.sleep(0.02)


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[tuple[RunFolder, FleetStore, HeadFeed]]:
    folder, store = RunFolder(tmp_path), FleetStore()
    ServerKeys.fresh().save(folder.keys)
    feed = HeadFeed(tmp_path, command_wait_s=1.0, operator="kim@test")
    task = asyncio.create_task(feed.follow(store))
    yield folder, store, feed
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


Run = tuple[RunFolder, FleetStore, HeadFeed]


async def test_follows_a_head_and_its_commands_are_answered(run: Run) -> None:
    folder, store, feed = run
    head = SmallHead(folder, epoch=1)
    try:
        await until(lambda: store.snapshot is not None and store.snapshot.seq > 3 and store.link().kind == "live")
        assert len(store.slots) == 8
        reply = await feed.command("drain", {"slot": "node000/gpu1", "incarnation": "x"}, "noisy")
        assert reply.ok
        assert [(command.name, command.operator, command.reason) for command in head.commands] == [("drain", "kim@test", "noisy")]
    finally:
        head.stop()


async def test_an_unanswered_command_is_sent_again_under_the_same_id(run: Run) -> None:
    folder, store, feed = run
    head = SmallHead(folder, epoch=1)
    try:
        await until(lambda: store.snapshot is not None)
        head.ignore_next = 2
        assert (await feed.command("pause")).ok
        assert [command.name for command in head.commands] == ["pause"]
        assert len(head.heard) >= 3
        assert len(set(head.heard)) == 1
        head.ignore_next = 99
        reply = await feed.command("resume")
        assert not reply.ok
        assert "no answer" in reply.message
    finally:
        head.stop()


async def test_a_restarted_head_is_found_by_its_new_address(run: Run) -> None:
    folder, store, feed = run
    first = SmallHead(folder, epoch=1)
    await until(lambda: store.snapshot is not None and store.snapshot.head_epoch == 1)
    first.stop()
    await until(lambda: store.link().kind == "stale")
    second = SmallHead(folder, epoch=2)
    try:
        await until(lambda: store.head_epoch == 2 and store.link().kind == "live")
        await until(lambda: store.snapshot is not None and store.snapshot.head_epoch == 2)
        assert (await feed.command("stop")).ok
    finally:
        second.stop()


async def test_no_head_yet_is_said_and_waited_for(run: Run) -> None:
    folder, store, _ = run
    await until(lambda: bool(store.link_note))
    assert store.link().kind == "connecting"
    assert "no head has started yet" in store.link().detail
    head = SmallHead(folder, epoch=1)
    try:
        await until(lambda: store.link().kind == "live")
    finally:
        head.stop()


async def test_a_key_that_the_head_refuses_does_not_hang_a_command(tmp_path: Path) -> None:
    folder, store = RunFolder(tmp_path), FleetStore()
    ServerKeys.fresh().save(folder.keys)
    head = SmallHead(folder, epoch=1)
    known = json.loads((folder.keys / "operator.key").read_text())
    stranger = Pair.fresh()
    foreign = {"public": stranger.public.decode(), "secret": stranger.secret.decode(), "server": known["server"]}
    (folder.keys / "operator.key").write_text(json.dumps(foreign))
    feed = HeadFeed(tmp_path, command_wait_s=0.3, operator="kim@test")
    task = asyncio.create_task(feed.follow(store))
    try:
        await asyncio.sleep(1)
        async with asyncio.timeout(60):
            reply = await feed.command("drain", {"slot": "node000/gpu0"})
        assert not reply.ok
        assert head.commands == []
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        head.stop()
