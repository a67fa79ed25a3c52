"""Acts reach the head as one command over the real CURVE sockets, and its answer becomes words and an exit code."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from console.cli import main
from harness.cluster.procinfo import start_ticks
from harness.records.layout import RunFolder
from harness.records.runfile import RunFile, write_run
from harness.wire import control, sockets
from harness.wire.frames import encode
from harness.wire.keys import ServerKeys, ZapHandler, allow

RUN = "demo-20260102-030405"


class AnsweringHead:
    """A control ROUTER in a thread that remembers commands and answers each with what `answer` says."""

    def __init__(self, folder: RunFolder) -> None:
        self.commands: list[control.Command] = []
        self.answer: Callable[[control.Command], tuple[bool, str]] = lambda command: (True, f"{command.name} accepted")
        keys = ServerKeys.fresh()
        keys.save(folder.keys)
        self._context = sockets.context()
        self._zap = ZapHandler(self._context, allow(keys, "operator", "viewer"))
        self._router, endpoint = sockets.server_router(self._context, keys, "tcp://127.0.0.1:0", domain=uuid.uuid4().hex)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        address = {"pid": os.getpid(), "ticks": start_ticks(os.getpid()), "epoch": 1, "control": endpoint, "telemetry": endpoint}
        folder.head_json.write_text(json.dumps(address))

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._zap.socket, zmq.POLLIN)
        while not self._ending.is_set():
            ready = dict(poller.poll(20))
            if self._zap.socket in ready:
                self._zap.drain()
            if self._router in ready:
                peer, frame = self._router.recv_multipart()
                command = control.TO_HEAD.decode(frame)
                assert isinstance(command, control.Command)
                self.commands.append(command)
                ok, message = self.answer(command)
                self._router.send_multipart([peer, encode(control.CommandReply(command.request_id, ok, message))])
        self._router.close(0)
        self._zap.close()
        self._context.term()

    def close(self) -> None:
        self._ending.set()
        self._thread.join(10)


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AnsweringHead]:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path))
    folder = RunFolder(tmp_path / RUN)
    folder.path.mkdir()
    write_run(folder.path, RunFile(run=RUN, spec={}, phase="MEASURING", synthetic=True))
    answering = AnsweringHead(folder)
    yield answering
    answering.close()


@pytest.mark.parametrize(
    ("tokens", "name", "args"),
    [
        (["rate", "demo", "250"], "set_rate", {"qps": 250.0}),
        (["rate", "99.5"], "set_rate", {"qps": 99.5}),
        (["rate", "demo", "250", "--ramp", "90"], "set_rate", {"qps": 250.0, "ramp_s": 90.0}),
        (["drain", "demo", "node001/gpu2"], "drain", {"slot": "node001/gpu2", "incarnation": ""}),
        (["recycle", "node001/gpu2"], "recycle", {"slot": "node001/gpu2", "incarnation": ""}),
        (["evict", "node001/gpu2", "--incarnation", "ab12"], "evict", {"slot": "node001/gpu2", "incarnation": "ab12"}),
        (["drain", "node001/gpu2", "--force"], "drain", {"slot": "node001/gpu2", "incarnation": "", "force": True}),
        (["readmit", "node001/gpu2"], "readmit", {"slot": "node001/gpu2"}),
        (["waive", RUN, "node001/gpu2"], "waive", {"slot": "node001/gpu2"}),
        (["pause"], "pause", {}),
        (["resume", "demo"], "resume", {}),
        (["take-control"], "take_control", {}),
        (["abort"], "abort", {}),
        (["stop", "0304", "--no-wait"], "stop", {}),
    ],
)
def test_an_act_is_sent_with_its_arguments_reason_and_operator(
    head: AnsweringHead, tokens: list[str], name: str, args: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*tokens, "--reason", "because"]) == 0
    (command,) = head.commands
    assert (command.name, command.args, command.reason) == (name, args, "because")
    assert "@" in command.operator
    assert f"{RUN}: {name} accepted" in capsys.readouterr().out


def test_a_refused_act_is_told_on_stderr_and_exits_with_1(head: AnsweringHead, capsys: pytest.CaptureFixture[str]) -> None:
    head.answer = lambda command: (False, "quorum: 60 replicas must stay READY")
    assert main(["evict", "node000/gpu0"]) == 1
    caught = capsys.readouterr()
    assert caught.out == ""
    assert caught.err == f"paceline: {RUN}: evict refused: quorum: 60 replicas must stay READY\n"


def test_a_refusal_that_can_be_forced_names_the_option(head: AnsweringHead, capsys: pytest.CaptureFixture[str]) -> None:
    head.answer = lambda command: (False, "node000/gpu0 is the last READY prefill replica; force to do it anyway")
    assert main(["evict", "node000/gpu0"]) == 1
    assert capsys.readouterr().err.endswith("is the last READY prefill replica; with --force it is done anyway\n")


def test_the_answer_can_be_had_as_json(head: AnsweringHead, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pause", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "run": RUN, "act": "pause", "ok": True, "message": "pause accepted", "data": {},
    }  # fmt: skip


def test_a_missing_key_is_named(head: AnsweringHead, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / RUN / "keys" / "operator.key").unlink()
    assert main(["pause"]) == 3
    assert "operator.key" in capsys.readouterr().err


def test_a_head_that_lives_needs_no_restart(head: AnsweringHead, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restart-head", "demo", "--no-console"]) == 2
    assert f"{RUN} has a head" in capsys.readouterr().err
