"""A server that the engine starts itself: waited for, watched, its output kept, ended with all that belongs to it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from openai_kit import Listener, engine_of, request, running, serving, soon

from harness.cluster.procinfo import start_ticks
from harness.engines.base import ArgumentError, EngineError, Key

#: Speaks just enough, and has a helper process that outlives it as engine cores do.
PROGRAM = """
import json, os, signal, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

port, start_s, pids = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(pids, "w").write(f"{os.getpid()} {helper.pid}")
print("loading weights 1/2\\rloading weights 2/2", flush=True)
print("device", os.environ.get("DEVICE"), file=sys.stderr, flush=True)
time.sleep(start_s)
if "fails" in sys.argv:
    print("out of memory", flush=True)
    sys.exit(3)
healthy_at = time.monotonic() + start_s

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def say(self, status, kind, data):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        if self.path == "/health":
            self.say(200 if time.monotonic() > healthy_at else 503, "text/plain", b"")
        elif self.path == "/v1/models":
            self.say(200, "application/json", b'{"data": [{"id": "synthetic"}]}')
        elif self.path == "/version":
            self.say(200, "application/json", b'{"version": "9.9"}')
        else:
            self.say(404, "text/plain", b"")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if "dies" in sys.argv:
            print("EngineCore died", flush=True)
            os._exit(0)
        choice = {"index": 0, "text": "x", "token_ids": [11, 12], "finish_reason": "length"}
        self.say(200, "text/event-stream", b"data: " + json.dumps({"choices": [choice]}).encode() + b"\\n\\ndata: [DONE]\\n\\n")

ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
KEY = Key(1, 0, 1)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "server.py"
    path.write_text(PROGRAM)
    return path


def args_of(program: Path, *more: str, loads_s: float = 0.2, **args: Any) -> dict[str, Any]:
    words = [sys.executable, str(program), "{port}", str(loads_s), str(program.with_name("pids")), *more]
    return {"command": words, "env": {"DEVICE": "{devices}"}, "metrics_path": "", "stop_s": 1.0, **args}


def pids_of(program: Path) -> list[int]:
    return [int(word) for word in program.with_name("pids").read_text().split()]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if start_ticks(pid) is not None]


async def test_it_is_waited_for_and_answers_and_its_output_is_kept(program: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(args_of(program), fleet={"layout": {"tp": 2}}) as (engine, listener):
        engine.submit(request(0))
        await listener.ends(1)
        assert len(listener.completes[KEY]) == 8
        assert engine.versions()["vllm"] == "9.9"
        assert engine.facts()["started_here"] is True
        pids = pids_of(program)
        assert len(alive(pids)) == 2
    await soon(lambda: not alive(pids))
    said = [record.getMessage() for record in caplog.records]
    for line in ("server: loading weights 1/2", "server: loading weights 2/2", "server: device 0,1"):
        assert line in said


async def test_a_server_that_ends_while_it_loads_is_told_with_its_last_line(program: Path) -> None:
    began_s = time.monotonic()
    with pytest.raises(EngineError, match="before it was ready the server ended with exit code 3; last line: out of memory"):
        async with running(args_of(program, "fails", loads_s=0.3)):
            pass
    assert time.monotonic() - began_s < 60
    await soon(lambda: not alive(pids_of(program)))


async def test_a_server_that_takes_too_long_is_ended(program: Path) -> None:
    said = f"echo $$ > {program.with_name('pids')}; echo device; exec sleep 60"  # at once, also where a Python takes seconds
    with pytest.raises(EngineError, match=r"not ready after .* its last line: device"):
        async with running({**args_of(program), "command": ["sh", "-c", said, "{port}"], "start_s": 3}):
            pass
    await soon(lambda: not alive(pids_of(program)))


async def test_a_server_that_dies_ends_the_replica_at_once_whatever_its_exit_code(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.engines.openai.engine.ENDING_S", 60.0)  # a busy machine takes its time to end a process
    async with running(args_of(program, "dies")) as (engine, listener):
        engine.submit(request(0))
        began_s = time.monotonic()
        await listener.until(lambda: listener.deaths)
        assert listener.deaths == ["the server ended by itself (exit code 0); last line: EngineCore died"]
        assert time.monotonic() - began_s < 30
        assert engine.stats().outstanding == 0
    await soon(lambda: not alive(pids_of(program)))


async def test_a_server_that_is_deaf_to_sigterm_is_killed_after_stop_s(program: Path) -> None:
    listener = Listener()
    engine = engine_of(args_of(program, "deaf", stop_s=0.5), listener)
    before = asyncio.all_tasks()
    await engine.start()
    began_s = time.monotonic()
    await engine.stop()
    assert 0.4 < time.monotonic() - began_s < 30
    await soon(lambda: not alive(pids_of(program)))
    assert asyncio.all_tasks() == before
    assert not listener.deaths


async def test_a_stop_that_is_cut_short_kills_at_once(program: Path) -> None:
    engine = engine_of(args_of(program, "deaf", stop_s=60), Listener())
    await engine.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.stop(), 0.3)
    await soon(lambda: not alive(pids_of(program)))


@pytest.mark.parametrize("program", ["/no/such/thing", "no-such-thing", "/tmp", "/etc/hostname"])
async def test_a_command_that_is_no_program_is_told_once_and_for_all(program: str) -> None:
    with pytest.raises(ArgumentError, match=rf"fleet.engine_args.command: '{program}' cannot be started: .*must be a program"):
        async with running({"command": [program, "{port}"]}):
            pass


async def test_a_port_that_is_taken_is_told_and_whoever_has_it_is_not_asked(program: Path) -> None:
    async with serving() as fake:
        port = int(fake.url.rpartition(":")[2])
        with pytest.raises(EngineError, match=rf"fleet.engine_args.port: {port} is not free for the server of node000/gpu0"):
            async with running({**args_of(program), "port": port}):
                pass
        assert not program.with_name("pids").exists(), "nothing was started"


async def test_a_server_that_writes_without_pause_does_not_hold_up_its_replica(program: Path) -> None:
    chatty = program.with_name("chatty.py")
    chatty.write_text(
        f"import runpy, subprocess\nsubprocess.Popen(['yes'])\nrunpy.run_path({str(program)!r}, run_name='__main__')\n"
    )
    async with running(args_of(chatty, loads_s=0.5)) as (engine, listener):
        engine.submit(request(0))
        await listener.ends(1)
        late_s, busy_s = [], []
        for _ in range(20):
            began_s, used_s = time.monotonic(), time.thread_time()
            await asyncio.sleep(0.01)
            late_s.append(time.monotonic() - began_s)
            busy_s.append(time.thread_time() - used_s)
        assert max(busy_s) < 1.0
        assert sorted(late_s)[10] < 1.0  # the machine may stall once
    await soon(lambda: not alive(pids_of(program)))


async def test_nothing_survives_a_replica_that_is_killed(program: Path, tmp_path: Path) -> None:
    script = tmp_path / "replica.py"
    script.write_text(
        textwrap.dedent(f"""
        import asyncio, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from openai_kit import Listener, engine_of
        async def main():
            engine = engine_of({args_of(program, "deaf")!r}, Listener())
            await engine.start()
            print("up", flush=True)
            await asyncio.sleep(600)
        asyncio.run(main())
        """)
    )
    root = Path(__file__).parents[2]
    replica = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, str(script)], stdout=subprocess.PIPE, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, text=True
    )
    try:
        assert replica.stdout is not None
        assert await asyncio.wait_for(asyncio.to_thread(replica.stdout.readline), 60) == "up\n"
        pids = pids_of(program)
        assert len(alive(pids)) == 2
        replica.send_signal(signal.SIGKILL)
        await soon(lambda: not alive(pids))
    finally:
        replica.kill()
        replica.wait(10)
        replica.stdout.close()
