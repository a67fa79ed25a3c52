"""One life of a replica: load the engine, register, warm up, serve, end.

    LOADING ──engine.start──▶ REGISTERING ──Ack──▶ WARMING ──settled──▶ READY ──stop, died──▶ ENDED

The engine's events go from here straight to the data plane (epoch ≥ 1) or to the warm-up (epoch 0, which no attempt has).
The incarnation knows neither sockets nor pipes: the process that carries it passes in what it needs as a `Host`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from harness.engines.base import ArgumentError, Engine, EngineContext, EngineError, EngineFactory, Key
from harness.spec import RunSpec
from harness.wire.data import PREFILL, WHOLE
from harness.wire.states import READY, WARMING
from harness.worker.dataplane import DataPlane
from harness.worker.launch import SlotLife
from harness.worker.warmup import WarmUp

#: An engine that does not end within this time is left to the end of its process.
ENGINE_STOP_S = 3.0
LOADING, ENDED = "LOADING", "ENDED"

log = logging.getLogger("paceline.replica")


class Refused(Exception):
    """The head rejected this incarnation; starting the same again would be rejected again."""


class Host(Protocol):
    """What an incarnation needs from its process."""

    async def register(self, incarnation: Incarnation) -> None:
        """Returns after Ack; raises Refused."""

    def loading(self, incarnation: Incarnation, note: str) -> None: ...

    def became_ready(self, incarnation: Incarnation) -> None: ...

    def ended(self, incarnation: Incarnation, reason: str, *, final: bool, asked: bool) -> None: ...


class Incarnation:
    """Implements harness.engines.base.Events for its engine."""

    def __init__(self, spec: RunSpec, life: SlotLife, factory: EngineFactory, host: Host, plane: DataPlane) -> None:
        self.spec, self.life = spec, life
        self.slot, self.id = life.slot, life.incarnation
        self.state = LOADING
        self.note = "loading"
        self.acked_epoch = 0  # the head's epoch that acknowledged this incarnation; 0 = none
        self.engine: Engine | None = None
        self._factory, self._host, self._plane = factory, host, plane
        self._warmup: WarmUp | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, after: asyncio.Task[None] | None = None) -> None:
        """`after`: the end of the slot's previous incarnation, whose accelerator this one takes over."""
        self._task = asyncio.get_running_loop().create_task(self._live(after), name=f"life of {self.slot}")

    async def _live(self, after: asyncio.Task[None] | None) -> None:
        if after is not None:
            await asyncio.wait({after})
        spec, life = self.spec, self.life
        context = EngineContext(
            spec,
            self.slot,
            life.node,
            life.gpu,
            life.ordinal,
            self.id,
            life.life,
            role=spec.fleet.role_at(life.node, life.gpu),
            args=dict(spec.fleet.engine_args),
        )
        try:
            self.engine = engine = self._factory(context, self)
            await engine.start()
            if self.state == ENDED:
                return
            await self._host.register(self)
            self.state = WARMING
            self._warmup = WarmUp(
                engine,
                spec.fleet.warmup,
                vocab_size=spec.model.vocab_size,
                deadline_s=spec.load.sample_deadline_s,
                stage=PREFILL if context.role == "prefill" else WHOLE,
                say=self._say,
            )
            self.note = await self._warmup.run()
            self.state = READY
            log.info("%s %s: %s", self.slot, self.id, self.note)
            self._host.became_ready(self)
        except EngineError as error:
            self._over(str(error), final=isinstance(error, ArgumentError))
        except Refused as error:
            self._over(str(error), final=True)
        except Exception as error:
            log.exception("%s %s", self.slot, self.id)
            self._over(f"{type(error).__name__}: {error}")

    def stop(self) -> None:
        """End it as asked."""
        self._over("", asked=True)

    def refused(self, reason: str) -> None:
        """The head does not want this incarnation (any more)."""
        self._over(reason, final=True)

    async def release(self) -> None:
        """After the end: let go of the engine and what it holds."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=ENGINE_STOP_S)
        if self.engine is not None:
            try:
                await asyncio.wait_for(self.engine.stop(), ENGINE_STOP_S)
            except TimeoutError:
                log.warning("%s %s: the engine did not end within %g s", self.slot, self.id, ENGINE_STOP_S)
            except Exception:
                log.exception("%s %s: the engine failed while ending", self.slot, self.id)

    def _over(self, reason: str, *, final: bool = False, asked: bool = False) -> None:
        if self.state == ENDED:
            return
        self.state = ENDED
        self._plane.forget(self, reason or "stopped")
        self._host.ended(self, reason, final=final, asked=asked)

    def _say(self, note: str) -> None:
        self.note = note

    # --- Events, called by the engine -------------------------------------------------------------------------

    def first(self, key: Key, token: bytes, queue_us: int, prefill_us: int) -> None:
        if key[0]:
            self._plane.first(key, token, queue_us, prefill_us)

    def complete(self, key: Key, tokens: bytes, queue_us: int, prefill_us: int, decode_us: int) -> None:
        if key[0]:
            self._plane.complete(key, tokens, queue_us, prefill_us, decode_us)
        elif self._warmup is not None:
            self._warmup.done(key)

    def prefilled(self, key: Key, handoff: bytes, queue_us: int, prefill_us: int) -> None:
        if key[0]:
            self._plane.prefilled(key, handoff, queue_us, prefill_us)
        elif self._warmup is not None:
            self._warmup.done(key)

    def failed(self, key: Key, reason: str) -> None:
        if key[0]:
            self._plane.failed(key, reason)
        elif self._warmup is not None:
            self._warmup.failed(key, reason)

    def died(self, reason: str) -> None:
        self._over(reason)

    def loading(self, note: str) -> None:
        if self.state == LOADING:
            self.note = note
            self._host.loading(self, note)
