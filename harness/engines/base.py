"""The seam between a replica and what generates its tokens.

An Engine carries ONE replica (one incarnation). Several may live in one process and one asyncio loop when the
class says so (`many_per_process`); they may then share what they like. An engine imports its heavy library itself.
Every implementation passes tests/unit/test_engine_contract.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol

from harness.spec import Role, RunSpec
from harness.wire.data import WHOLE


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
    stage: int = WHOLE
    handoff: bytes = b""  # DECODE only: what the prefill replica's engine gave for fetching its KV cache


#: Arguments told of one replica, and how long a name or a value may be: facts travel with every REGISTER.
MOST_ARGUMENTS, NAME_CHARACTERS, VALUE_CHARACTERS = 64, 60, 120


def argument_facts(args: Mapping[str, Any]) -> dict[str, Any]:
    """Engine arguments as flat facts `arg.<name>`, comparable between replicas: numbers and words as they are, all else
    as JSON, cut where it is long. Beyond the first 64 by name only their number is told."""
    facts: dict[str, Any] = {}
    for name in sorted(args)[:MOST_ARGUMENTS]:
        value = args[name]
        if not (value is None or isinstance(value, bool | int | float | str)):
            value = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
        if isinstance(value, str) and len(value) > VALUE_CHARACTERS:
            value = value[: VALUE_CHARACTERS - 1] + "…"
        facts[f"arg.{name[:NAME_CHARACTERS]}"] = value
    if len(args) > MOST_ARGUMENTS:
        facts["arguments_left_out"] = len(args) - MOST_ARGUMENTS
    return facts


def nearest(word: str, valid: Sequence[str], listed: int = 12) -> str:
    """`; did you mean "slow"?` or, when nothing is near, the first `listed` of what is valid."""
    close = get_close_matches(word, valid, n=1, cutoff=0.5)
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"; valid: {', '.join(valid[:listed])}{', …' if len(valid) > listed else ''}" if listed else ""


class EngineError(Exception):
    """The engine cannot start or has died; the text is shown to the operator."""


class ArgumentError(EngineError):
    """What it was asked to be cannot be here: trying again would say the same, so its slot is not tried again."""


class Events(Protocol):
    """What the replica hands to its engine. Called on the asyncio loop. FIRST comes before COMPLETE, once each.

    A request with stage PREFILL is answered with `prefilled` alone. In one with stage DECODE `queue_us` is the wait for a
    place and `prefill_us` the KV transfer; its tokens are all of the sample's, the first one included.
    """

    def first(self, key: Key, token: bytes, queue_us: int, prefill_us: int) -> None: ...

    def complete(self, key: Key, tokens: bytes, queue_us: int, prefill_us: int, decode_us: int) -> None: ...

    def prefilled(self, key: Key, handoff: bytes, queue_us: int, prefill_us: int) -> None: ...

    def failed(self, key: Key, reason: str) -> None: ...

    def died(self, reason: str) -> None:
        """The engine is gone; the replica ends this incarnation."""

    def loading(self, note: str) -> None:
        """While it starts: what it is doing or waiting for, in words. The barrier shows it to the operator."""


@dataclass(slots=True)
class EngineStats:
    """Since the previous call, except the four gauges. Ten of these numbers travel with every heartbeat."""

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
    failed: int = 0  # requests refused or broken off


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
    role: Role = "both"
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

    def facts(self) -> dict[str, Any]:
        """What to show and compare; the arguments in force are among them as `argument_facts` writes them."""

    async def stop(self) -> None: ...


class EngineFactory(Protocol):
    many_per_process: bool
    synthetic: bool

    def __call__(self, context: EngineContext, events: Events) -> Engine: ...
