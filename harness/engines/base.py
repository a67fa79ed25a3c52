"""The seam between a replica and what generates its tokens.

An Engine carries ONE replica (one incarnation). Several may live in one process and one asyncio loop when the
class says so (`many_per_process`); they may then share what they like. An engine imports its heavy library itself.
Every implementation passes tests/unit/test_engine_contract.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from harness.spec import RunSpec


class Key(NamedTuple):
    """One try of one sample. Warm-up requests use epoch 0, which no attempt has."""

    epoch: int
    seq: int
    attempt_try: int


@dataclass(frozen=True, slots=True)
class Request:
    key: Key
    prompt: bytes | memoryview  # little-endian int32 token ids
    max_tokens: int
    expected_tokens: int = 0  # output length known beforehand (0: the engine decides); real engines ignore it
    index: int = 0


class EngineError(Exception):
    """The engine cannot start or has died; the text is shown to the operator."""


class Events(Protocol):
    """What the replica hands to its engine. Called on the asyncio loop. FIRST comes before COMPLETE, once each."""

    def first(self, key: Key, token: bytes, queue_us: int, prefill_us: int) -> None: ...

    def complete(self, key: Key, tokens: bytes, queue_us: int, prefill_us: int, decode_us: int) -> None: ...

    def failed(self, key: Key, reason: str) -> None: ...

    def died(self, reason: str) -> None:
        """The engine is gone; the replica ends this incarnation."""


@dataclass(slots=True)
class EngineStats:
    """Since the previous call, except the four gauges."""

    running: int = 0
    waiting: int = 0
    kv_use: float = 0.0
    outstanding: int = 0
    tokens_out: int = 0
    steps: int = 0
    step_ms: float = 0.0  # mean
    batch: float = 0.0  # mean decoding sequences a step
    prefill_tokens: float = 0.0  # mean prompt tokens a step
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class EngineContext:
    """What an engine may know about its place."""

    spec: RunSpec
    slot: str
    node: int
    gpu: int
    ordinal: int  # position in the whole fleet
    incarnation: str
    life: int  # 0 for the first incarnation of the slot that this worker started
    args: dict[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    synthetic: bool
    many_per_process: bool

    async def start(self) -> None:
        """Load. Raises EngineError with a reason for people."""

    def submit(self, request: Request) -> None: ...

    def cancel(self, key: Key) -> None: ...

    def stats(self) -> EngineStats: ...

    def versions(self) -> dict[str, str]: ...

    def facts(self) -> dict[str, Any]: ...

    async def stop(self) -> None: ...


class EngineFactory(Protocol):
    many_per_process: bool
    synthetic: bool

    def __call__(self, context: EngineContext, events: Events) -> Engine: ...
