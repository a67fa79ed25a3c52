"""Client CPU of a streamed request: the openai engine against what `vllm bench serve` spends on one.

Both ask the same fake server (sse_server.py: 50 streams, 256 tokens each, a chunk a token and step), in turns. Ours is the
whole engine: bodies, ids, statistics and the watch of streams included. Theirs is the request path alone, and they ask for
no token ids, so their chunks are shorter. Where vLLM is not installed, our own figure is printed without a goal.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time

from harness.engines.base import EngineContext, Key, Request
from harness.engines.openai import OpenAIEngine
from harness.spec import RunSpec
from tests.bench.rig import Child, Row, children, median, peers_cpus, row

ROUNDS = 5
REQUESTS = 100
AT_ONCE = 50
PROMPT_TOKENS = 128
OUTPUT_TOKENS = 256
STEP_S = 0.02
PROMPT = b"".join(token.to_bytes(4, "little") for token in range(10, 10 + PROMPT_TOKENS))


class Listener:
    """Implements Events: keeps AT_ONCE requests under way."""

    def __init__(self) -> None:
        self.tokens = 0
        self.answered = 0
        self.reasons: list[str] = []
        self.room = asyncio.Semaphore(AT_ONCE)

    def first(self, key: Key, token: bytes, queue_us: int, prefill_us: int) -> None:
        pass

    def complete(self, key: Key, tokens: bytes, queue_us: int, prefill_us: int, decode_us: int) -> None:
        self.tokens += len(tokens) // 4
        self.answered += 1
        self.room.release()

    def prefilled(self, key: Key, handoff: bytes, queue_us: int, prefill_us: int) -> None:
        raise AssertionError("nobody asked for a prefill")

    def failed(self, key: Key, reason: str) -> None:
        self.reasons.append(reason)
        self.room.release()

    def loading(self, note: str) -> None:
        pass

    def died(self, reason: str) -> None:
        raise AssertionError(reason)


async def our_round(url: str) -> float:
    """CPU seconds of REQUESTS requests."""
    args = {"base_urls": [url], "served_model": "fake", "metrics_path": ""}
    spec = RunSpec.model_validate({"fleet": {"engine": "openai", "replicas_per_node": 1, "engine_args": args}})
    listener = Listener()
    engine = OpenAIEngine(EngineContext(spec, "node000/gpu0", 0, 0, 0, "i0", 0, args=args), listener)
    await engine.start()
    before_s = time.process_time()
    for seq in range(REQUESTS):
        await listener.room.acquire()
        engine.submit(Request(Key(1, seq, 1), PROMPT, OUTPUT_TOKENS, index=seq))
    for _ in range(AT_ONCE):
        await listener.room.acquire()
    cpu_s = time.process_time() - before_s
    await engine.stop()
    assert (listener.answered, listener.tokens) == (REQUESTS, REQUESTS * OUTPUT_TOKENS), listener.reasons[:3]
    return cpu_s


def their_round(peer: Child) -> float:
    peer.tell("go")
    said = peer.says(120)
    assert said["answered"] == REQUESTS, said
    return float(said["cpu_s"])


def run() -> list[Row]:
    ours: list[float] = []
    theirs: list[float] = []
    with children() as started:
        config = {"port": 0, "step_s": STEP_S, "prefill_steps": 2}
        server = started.start("sse_server", config, peers_cpus())
        url = f"http://127.0.0.1:{server.says(20)['port']}"
        peer = None
        if importlib.util.find_spec("vllm") is not None:
            asked = {"url": url, "model": "fake", "requests": REQUESTS, "at_once": AT_ONCE}
            asked |= {"prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS}
            os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
            peer = started.start("vllm_client", asked)
            peer.says(300)
        for _ in range(ROUNDS):
            ours.append(asyncio.run(our_round(url)))
            if peer is not None:
                theirs.append(their_round(peer))
    rows = [row(f"openai engine: client CPU of a request of {OUTPUT_TOKENS} tokens", median(ours) / REQUESTS * 1e3, "ms")]
    rows.append(row("openai engine: client CPU of a token", median(ours) / REQUESTS / OUTPUT_TOKENS * 1e6, "µs"))
    if theirs:
        ratio = median([our / their for our, their in zip(ours, theirs, strict=True)])
        rows.insert(0, row("openai engine: client CPU against `vllm bench serve`", ratio, "ratio", at_most=0.5))
        rows.append(row("vllm bench serve: client CPU of such a request", median(theirs) / REQUESTS * 1e3, "ms"))
    return rows


if __name__ == "__main__":
    for line in run():
        print(line)
