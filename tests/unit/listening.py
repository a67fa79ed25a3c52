"""What tests of engines give an engine to talk to: it keeps all events, and waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.engines.base import Key


@dataclass
class Listener:
    """Implements Events."""

    firsts: dict[Key, bytes] = field(default_factory=dict)
    completes: dict[Key, bytes] = field(default_factory=dict)
    prefilleds: dict[Key, bytes] = field(default_factory=dict)
    failures: dict[Key, str] = field(default_factory=dict)
    times_us: dict[Key, tuple[int, int, int]] = field(default_factory=dict)
    order: list[tuple[str, Key]] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def first(self, key: Key, token: bytes, queue_us: int, prefill_us: int) -> None:
        assert min(queue_us, prefill_us) >= 0
        self.firsts[key] = token
        self._note("first", key)

    def complete(self, key: Key, tokens: bytes, queue_us: int, prefill_us: int, decode_us: int) -> None:
        assert min(queue_us, prefill_us, decode_us) >= 0
        self.completes[key] = tokens
        self.times_us[key] = (queue_us, prefill_us, decode_us)
        self._note("complete", key)

    def prefilled(self, key: Key, handoff: bytes, queue_us: int, prefill_us: int) -> None:
        self.prefilleds[key] = handoff
        self._note("prefilled", key)

    def failed(self, key: Key, reason: str) -> None:
        self.failures[key] = reason
        self._note("failed", key)

    def loading(self, note: str) -> None:
        pass

    def died(self, reason: str) -> None:
        self.deaths.append(reason)
        self.changed.set()

    def _note(self, what: str, key: Key) -> None:
        self.order.append((what, key))
        self.changed.set()

    async def until(self, met: Callable[[], object], deadline_s: float = 60.0) -> None:
        async with asyncio.timeout(deadline_s):
            while not met():
                self.changed.clear()
                await self.changed.wait()

    async def until_complete(self, count: int, deadline_s: float = 60.0) -> None:
        await self.until(lambda: len(self.completes) >= count, deadline_s)

    async def ends(self, count: int, deadline_s: float = 60.0) -> None:
        await self.until(lambda: len(self.completes) + len(self.prefilleds) + len(self.failures) >= count, deadline_s)
