"""A real VllmEngine on the CPU for tests: its spec, a listener that notes what it says, and the processes it has."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))  # openai_kit: what hears an engine

import openai_kit

from harness.engines import registry
from harness.engines.base import EngineContext, EngineStats, Key, Request
from harness.engines.vllm.engine import VllmEngine
from harness.spec import Role, RunSpec

VOCAB = 512
#: What vLLM reads from the environment; set before it is imported.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": "127.0.0.1", "VLLM_LOGGING_LEVEL": "INFO"}
SMALL = {"max_model_len": 512, "max_num_seqs": 32, "max_num_batched_tokens": 512, "kv_cache_memory_bytes": 64 * 1024 * 1024}


def prepare_environment(spec: RunSpec) -> None:
    os.environ.update(ENVIRONMENT)
    os.environ.update(registry.environment(spec, 0))


def spec_of(model: Path, *, args: dict[str, Any] | None = None, sampling: dict[str, Any] | None = None, **fleet: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"name": "tiny", "path": str(model), "vocab_size": VOCAB},
            "sampling": sampling or {"ignore_eos": True},
            "fleet": {
                "nodes": 1,
                "replicas_per_node": 2,
                "engine": "vllm",
                "engine_args": SMALL if args is None else args,
                "layout": {"device": "cpu"},
                **fleet,
            },
        }
    )


def context_of(spec: RunSpec, role: Role = "both") -> EngineContext:
    return EngineContext(
        spec, "node000/gpu0", node=0, gpu=0, ordinal=0, incarnation="i0", life=0, role=role, args=dict(spec.fleet.engine_args)
    )


def prompt(seed: int, tokens: int = 24) -> bytes:
    return np.random.default_rng(seed).integers(10, 250, tokens, dtype="<i4").tobytes()


def request(seq: int, max_tokens: int = 40, epoch: int = 1, attempt_try: int = 0, tokens: int = 24) -> Request:
    return Request(Key(epoch, seq, attempt_try), prompt(seq, tokens), max_tokens, index=seq)


class Listener(openai_kit.Listener):
    """That an engine dies ends every wait, except for its death."""

    async def until(self, reached: Callable[[], object], deadline_s: float = 60.0) -> None:
        await super().until(lambda: reached() or self.deaths, deadline_s)
        assert reached(), f"the engine died: {self.deaths}"

    async def until_complete(self, count: int, deadline_s: float = 60.0) -> None:
        await self.until(lambda: len(self.completes) >= count, deadline_s)


@dataclass
class Replica:
    """An engine whose listener can be exchanged from test to test, since a start takes seconds."""

    engine: VllmEngine
    relay: Relay

    def listen(self) -> Listener:
        self.relay.to = Listener()
        return self.relay.to


class Relay:
    def __init__(self) -> None:
        self.to = Listener()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.to, name)


async def started(spec: RunSpec) -> Replica:
    relay = Relay()
    engine = VllmEngine(context_of(spec), relay)
    await engine.start()
    return Replica(engine, relay)


def core_pids(engine: VllmEngine) -> list[int]:
    assert engine._started is not None
    return [child.pid for child in engine._started.children if child.pid is not None]


def ids(tokens: bytes) -> list[int]:
    return np.frombuffer(tokens, "<i4").tolist()


def sum_of(parts: list[EngineStats]) -> tuple[int, int]:
    return sum(part.tokens_out for part in parts), sum(part.steps for part in parts)
