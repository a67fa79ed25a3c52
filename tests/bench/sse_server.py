"""A fast fake of an OpenAI-compatible server for the client bench: every open stream gets one token a step.

It does as little as a server can (one formatted chunk per stream and step), so that the client is what gets measured.
One JSON argument: port (0: any), step_s, prefill_steps, parent. It says its port in a JSON line.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.bench.rig import child_config

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


class Stream:
    """One answer in progress."""

    def __init__(self, transport: asyncio.Transport, body: dict[str, Any], delay_steps: int) -> None:
        self.transport = transport
        self.ids = bool(body.get("return_token_ids"))
        self.left = int(body["max_tokens"])
        self.total = self.left
        self.prompt = len(body["prompt"])
        self.delay = delay_steps
        self.started = False

    def step(self) -> bool:
        """False: it is done."""
        if self.transport.is_closing():
            return False
        if self.delay:
            self.delay -= 1
            return True
        token = 10 + (self.left * 7) % 240
        choice = {"index": 0, "text": chr(97 + token % 26), "logprobs": None, "finish_reason": None, "stop_reason": None}
        if self.ids:
            choice |= {"token_ids": [token], "prompt_token_ids": None}
        self.left -= 1
        if not self.left:
            choice["finish_reason"] = "length"
        base = {"id": "cmpl-5b1f0c9d8e7a4b6c9d0e1f2a3b4c5d6e", "object": "text_completion", "created": 1, "model": "fake"}
        data = chunk(event({**base, "choices": [choice], "usage": None}))
        if not self.started:
            self.started = True
            data = HEAD + data
        if not self.left:
            usage = {"prompt_tokens": self.prompt, "completion_tokens": self.total, "total_tokens": self.prompt + self.total}
            data += chunk(event({**base, "choices": [], "usage": usage})) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        self.transport.write(data)
        return bool(self.left)


class Server(asyncio.Protocol):
    streams: list[Stream]
    delay_steps: int

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.unread = b""

    def data_received(self, data: bytes) -> None:
        self.unread += data
        head, found, rest = self.unread.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(fields.get("content-length", 0))
        if len(rest) < length:
            return
        self.unread = rest[length:]
        method, path, _ = lines[0].split(" ")
        if method == "POST":
            self.streams.append(Stream(self.transport, json.loads(rest[:length]), self.delay_steps))
        elif path.startswith("/v1/models"):
            self.answer({"object": "list", "data": [{"id": "fake", "object": "model", "root": "fake"}]})
        else:
            self.answer({})

    def answer(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.transport.write(JSON_HEAD % (len(data), data))


async def serve(config: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    streams: list[Stream] = []
    protocol = type("Bound", (Server,), {"streams": streams, "delay_steps": config["prefill_steps"]})
    server = await loop.create_server(protocol, "127.0.0.1", config["port"])
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    due_s = loop.time()
    while True:
        due_s = max(due_s + config["step_s"], loop.time())
        await asyncio.sleep(due_s - loop.time())
        streams[:] = [stream for stream in streams if stream.step()]


if __name__ == "__main__":
    asyncio.run(serve(child_config()))
