"""The blocking client of the control socket: finds its head, asks until answered, and says in words why not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from harness.records.layout import RunFolder
from harness.wire import control, sockets
from harness.wire.client import HeadAddress, HeadClient, HeadUnreachable, Telemetry
from harness.wire.frames import encode
from harness.wire.keys import ServerKeys, ZapHandler, allow

Answer = Callable[[control.ToHead], list[bytes]]


class ScriptedHead:
    """A control ROUTER and a telemetry PUB with real keys; `answer` decides what each request gets."""

    def __init__(self, folder: RunFolder, answer: Answer) -> None:
        self.folder = folder
        self.keys = ServerKeys.fresh()
        self.keys.save(folder.keys)
        self.asked: list[Any] = []
        self._answer = answer
        self._context = sockets.context()
        self._zap = ZapHandler(self._context, allow(self.keys, "operator", "viewer"))
        self._router, endpoint = sockets.server_router(self._context, self.keys, "tcp://127.0.0.1:0", domain="control")
        self._pub, telemetry = sockets.server_pub(self._context, self.keys, "tcp://127.0.0.1:0", domain="tele", high_water=64)
        folder.head_json.write_text(json.dumps({"control": endpoint, "telemetry": telemetry, "pid": 12345, "epoch": 3}))
        self.news: list[bytes] = []
        self._over = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in (self._zap.socket, self._router):
            poller.register(socket, zmq.POLLIN)
        while not self._over:
            ready = dict(poller.poll(10))
            if self._zap.socket in ready:
                self._zap.drain()
            if self._router in ready:
                peer, body = self._router.recv_multipart()
                self.asked.append(control.TO_HEAD.decode(body))
                for frame in self._answer(self.asked[-1]):
                    self._router.send_multipart([peer, frame])
            for frame in self.news:
                self._pub.send(frame)

    def close(self) -> None:
        self._over = True
        self._thread.join(5)
        self._context.destroy(linger=0)


@pytest.fixture
def start_head(tmp_path: Path) -> Iterator[Callable[[Answer], ScriptedHead]]:
    heads: list[ScriptedHead] = []

    def start(answer: Answer) -> ScriptedHead:
        heads.append(ScriptedHead(RunFolder(tmp_path), answer))
        return heads[-1]

    yield start
    for head in heads:
        head.close()


def done(request: Any, message: str = "done") -> bytes:
    return encode(control.CommandReply(request.request_id, True, message))


def test_a_command_carries_who_what_and_why_and_brings_the_reply(start_head: Callable[[Answer], ScriptedHead]) -> None:
    head = start_head(lambda request: [done(request, "node000/gpu0: draining 3 samples")])
    with HeadClient.of_run(head.folder.path, operator="ann@desk") as client:
        reply = client.command("drain", {"slot": "node000/gpu0"}, reason="looks slow", timeout_s=30)
    assert (reply.ok, reply.message) == (True, "node000/gpu0: draining 3 samples")
    asked = head.asked[0]
    assert (asked.operator, asked.name, asked.args, asked.reason) == ("ann@desk", "drain", {"slot": "node000/gpu0"}, "looks slow")
    assert asked.request_id == reply.request_id


def test_an_unanswered_request_is_repeated_with_the_same_id(start_head: Callable[[Answer], ScriptedHead]) -> None:
    head = start_head(lambda request: [done(request)] if len(head.asked) > 1 else [])
    with HeadClient.of_run(head.folder.path) as client:
        assert client.command("abort", timeout_s=6).ok
    assert len(head.asked) >= 2
    assert len({asked.request_id for asked in head.asked}) == 1


def test_answers_to_other_requests_and_telemetry_are_passed_over(start_head: Callable[[Answer], ScriptedHead]) -> None:
    late = control.CommandReply("an-earlier-request", False, "late")
    head = start_head(lambda request: [encode(late), encode(control.JournalNews([])), done(request, "mine")])
    with HeadClient.of_run(head.folder.path) as client:
        assert client.command("stop", timeout_s=30).message == "mine"


def test_a_silent_head_is_named_with_its_address_and_process(start_head: Callable[[Answer], ScriptedHead]) -> None:
    head = start_head(lambda request: [])
    with HeadClient.of_run(head.folder.path) as client:
        client._socket.linger = 30_000  # what it has asked is sent, however slowly
        with pytest.raises(HeadUnreachable, match=r"tcp://.* within 0\.3 s .*12345"):
            client.command("stop", timeout_s=0.3)
    deadline = time.monotonic() + 30
    while len(head.asked) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(head.asked) == 3


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda request: [encode(control.Rejected("a worker key may not send Command"))], "refused: a worker key may not"),
        (lambda request: [b"\x09nonsense"], "cannot be read: protocol version 9"),
        (lambda request: [b"\x01nonsense"], "cannot be read: malformed"),
        (lambda request: [done(request)], "CommandReply to a request for its state"),
    ],
)
def test_a_useless_answer_is_explained(start_head: Callable[[Answer], ScriptedHead], answer: Answer, words: str) -> None:
    head = start_head(answer)
    with HeadClient.of_run(head.folder.path, "viewer") as client, pytest.raises(HeadUnreachable, match=words):
        client.state(timeout_s=30)


def test_a_key_of_another_run_gets_no_answer_and_does_not_hang(start_head: Callable[[Answer], ScriptedHead]) -> None:
    head = start_head(lambda request: [done(request)])
    ServerKeys(head.keys.server, ServerKeys.fresh().roles).save(head.folder.keys)
    began = time.monotonic()
    with HeadClient.of_run(head.folder.path) as client, pytest.raises(HeadUnreachable, match="this key is not one of the run's"):
        client.command("stop", timeout_s=0.45)
    assert time.monotonic() - began < 30
    assert not head.asked


def test_telemetry_yields_what_was_published_and_none_when_nothing_comes(start_head: Callable[[Answer], ScriptedHead]) -> None:
    head = start_head(lambda request: [])
    entry = control.JournalEntry(1, 100.0, "head", "run.phase", after="READY")
    telemetry = Telemetry.of_run(head.folder.path, "viewer", timeout_s=0.05)
    stream = iter(telemetry)
    assert next(stream) is None
    head.news = [encode(control.JournalNews([entry]))]
    heard = next(news for news in stream if news is not None)
    assert isinstance(heard, control.JournalNews)
    assert heard.entries == [entry]
    telemetry.close()


def test_a_run_without_a_head_says_which_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(HeadUnreachable, match=r"no head has started yet .*head\.json is missing"):
        HeadClient.of_run(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"control": "tcp://h:1", "telemetry": "tcp://h:2", "pid": "x", "epoch": 1}']
)
def test_a_damaged_address_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "head.json").write_text(content)
    with pytest.raises(HeadUnreachable, match=r"head\.json cannot be used"):
        HeadAddress.read(RunFolder(tmp_path))
