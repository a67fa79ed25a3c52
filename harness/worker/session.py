"""A replica process's control connection: registration, heartbeats, and news of data endpoints.

One DEALER speaks for all incarnations of the process. REGISTER is repeated with jittered back-off until Ack or Rejected,
and again (same incarnation, nothing restarted) when an answer carries another head epoch or the head says UNKNOWN.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket as os_socket
import time
from collections.abc import Callable

import msgspec
import zmq

from harness.engines.base import Engine
from harness.spec import RunSpec
from harness.wire import control, sockets
from harness.wire.frames import VersionMismatch, WireError, encode
from harness.wire.keys import ClientKeys
from harness.wire.pump import Pump
from harness.wire.states import READY, WARMING
from harness.worker.backoff import full_jitter, jittered
from harness.worker.dataplane import DataPlane
from harness.worker.hearing import Hearing
from harness.worker.incarnation import ENDED, Incarnation, Refused
from harness.worker.versions import accelerator, own_versions

#: News of several incarnations that become READY together share one beat.
NEWS_AFTER_S = 0.05

log = logging.getLogger("paceline.replica")


class Session:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: ClientKeys,
        *,
        head: str,
        spec: RunSpec,
        worker: str,
        args_hash: str,
        slots: dict[str, Incarnation],
        plane: DataPlane,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop, self._spec, self._worker, self._args_hash = loop, spec, worker, args_hash
        self._slots, self._plane, self._rng = slots, plane, rng
        self._versions = own_versions()
        self._host = os_socket.gethostname()
        self._hearing = Hearing(clock)
        self._epoch = 0
        self._answers: dict[str, asyncio.Future[None]] = {}  # incarnation → its registration
        self._again: set[asyncio.Task[None]] = set()
        self._beat: asyncio.TimerHandle | None = None
        self._beaten_s = self._loop.time()
        self._pump = Pump(loop, sockets.client_dealer(context, keys, head), self._on_frames)
        self._plan_beat(jittered(rng, spec.fleet.heartbeat_s))

    def close(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        for task in self._again:
            task.cancel()
        self._pump.close()

    # --- registration -----------------------------------------------------------------------------------------

    async def register(self, incarnation: Incarnation) -> None:
        """Repeats REGISTER until Ack; raises Refused on Rejected."""
        answer = self._answers.get(incarnation.id)
        if answer is None:
            answer = self._answers[incarnation.id] = self._loop.create_future()
        try:
            for wait_s in full_jitter(self._rng):
                self._send(self._registration(incarnation))
                done, _ = await asyncio.wait({answer}, timeout=wait_s)
                if done:
                    answer.result()
                    return
                if incarnation.state == ENDED:
                    return
        finally:
            self._answers.pop(incarnation.id, None)

    def _registration(self, incarnation: Incarnation) -> control.Register:
        spec, life, engine = self._spec, incarnation.life, incarnation.engine
        assert engine is not None, "an incarnation registers after its engine has started"
        return control.Register(
            slot=life.slot,
            incarnation=life.incarnation,
            role=spec.fleet.role_at(life.node, life.gpu),
            model=spec.model.name,
            args_hash=self._args_hash,
            engine=spec.fleet.engine,
            synthetic=engine.synthetic,
            worker=self._worker,
            pid=os.getpid(),
            host=self._host,
            versions={**self._versions, **engine.versions()},
            accelerator=accelerator(spec, life.node, life.gpu),
            facts=engine.facts(),
            head_epoch=self._epoch,
            pod=os.environ.get("POD_NAME", ""),
            node_name=os.environ.get("NODE_NAME", ""),
        )

    def _again_for(self, incarnation: Incarnation) -> None:
        """Register a live incarnation with a head that does not know it; it keeps serving meanwhile."""
        if incarnation.state not in (WARMING, READY) or incarnation.id in self._answers:
            return
        self._answers[incarnation.id] = self._loop.create_future()
        task = self._loop.create_task(self._register_again(incarnation))
        self._again.add(task)
        task.add_done_callback(self._again.discard)

    async def _register_again(self, incarnation: Incarnation) -> None:
        try:
            await self.register(incarnation)
        except Refused as refusal:
            incarnation.refused(str(refusal))

    # --- heartbeats -------------------------------------------------------------------------------------------

    def news(self) -> None:
        """Something changed that the head wants to know before the next regular beat."""
        if self._beat is None or self._beat.when() > self._loop.time() + NEWS_AFTER_S:
            self._plan_beat(NEWS_AFTER_S)

    def _plan_beat(self, after_s: float) -> None:
        if self._beat is not None:
            self._beat.cancel()
        self._beat = self._loop.call_later(after_s, self._send_beat)

    def _send_beat(self) -> None:
        self._plan_beat(jittered(self._rng, self._hearing.pace_s(self._spec.fleet.heartbeat_s)))
        beats = []
        for incarnation in list(self._slots.values()):
            if incarnation.acked_epoch and incarnation.state in (WARMING, READY) and incarnation.engine is not None:
                try:
                    beats.append(_beat_of(incarnation, incarnation.engine))
                except Exception as error:
                    log.exception("%s: stats", incarnation.slot)
                    incarnation.died(f"the engine's statistics failed: {type(error).__name__}: {error}")
        if beats:
            self._hearing.asked()
            # Measured, not nominal: beats are jittered, hastened by news and slowed while no head answers.
            now_s = self._loop.time()
            since_s, self._beaten_s = now_s - self._beaten_s, now_s
            self._send(control.Heartbeat(self._epoch, since_s, beats))

    # --- from the head ----------------------------------------------------------------------------------------

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            message = control.TO_REPLICA.decode(frames[0])
        except WireError as error:
            log.error("the head's message cannot be used: %s", error.reason)
            if isinstance(error, VersionMismatch):
                self._refused("", error.reason)
            return
        self._hearing.heard()
        match message:
            case control.Ack(slot=slot, incarnation=incarnation_id, head_epoch=epoch):
                self._acked(slot, incarnation_id, epoch)
            case control.BeatAck(head_epoch=epoch):
                self._heard_epoch(epoch)
            case control.Unknown(head_epoch=epoch, slot=slot, incarnation=incarnation_id):
                self._unknown(epoch, slot, incarnation_id)
            case control.Rejected(incarnation=incarnation_id, reason=reason):
                self._refused(incarnation_id, reason)
            case control.DataEndpoint():
                self._plane.open(message)
            case control.DataClosed(epoch=epoch):
                self._plane.close_epoch(epoch)

    def _acked(self, slot: str, incarnation_id: str, epoch: int) -> None:
        incarnation = self._slots.get(slot)
        if incarnation is None or incarnation.id != incarnation_id:
            return
        incarnation.acked_epoch = epoch
        answer = self._answers.get(incarnation_id)
        if answer is not None and not answer.done():
            answer.set_result(None)
        self._heard_epoch(epoch)
        self.news()  # the head counts on a replica from its first beat, not from its registration

    def _heard_epoch(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        if self._epoch:
            log.info("the head's epoch is %d, it was %d: registering again", epoch, self._epoch)
        self._epoch = epoch
        for incarnation in list(self._slots.values()):
            if incarnation.acked_epoch != epoch:
                self._again_for(incarnation)

    def _unknown(self, epoch: int, slot: str, incarnation_id: str) -> None:
        self._heard_epoch(epoch)
        for incarnation in [self._slots[slot]] if slot in self._slots else [] if slot else list(self._slots.values()):
            if not incarnation_id or incarnation.id == incarnation_id:
                self._again_for(incarnation)

    def _refused(self, incarnation_id: str, reason: str) -> None:
        """Without an incarnation the message itself was unusable: nobody here can be admitted."""
        refused = [incarnation_id] if incarnation_id else list(self._answers)
        for name in refused:
            answer = self._answers.get(name)
            if answer is not None:
                if not answer.done():
                    answer.set_exception(Refused(f"rejected: {reason}"))
                continue
            for incarnation in list(self._slots.values()):
                if incarnation.id == name:
                    incarnation.refused(f"rejected: {reason}")

    def _send(self, message: msgspec.Struct) -> None:
        self._pump.send([encode(message)])


def _beat_of(incarnation: Incarnation, engine: Engine) -> control.ReplicaBeat:
    stats = engine.stats()
    return control.ReplicaBeat(
        incarnation.slot, incarnation.id, incarnation.state, stats.running, stats.waiting, stats.kv_use, stats.tokens_out,
        stats.steps, stats.step_ms, stats.batch, stats.prefill_tokens, stats.preemptions, stats.failed, incarnation.note,
    )  # fmt: skip
