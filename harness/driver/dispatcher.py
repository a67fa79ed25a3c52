"""The I/O thread of an attempt: owns every socket of the driver, the ledger and the clock.

What happens to a query, and what it costs: LoadGen's callback appends (id, index, time) to a deque and writes an
eventfd if this thread sleeps · the thread picks a member, sends one frame of header and one of prompt bytes · polls,
drains up to 256 replies without blocking, passes each through the gate · hands LoadGen one list of FIRSTs and one of
COMPLETEs a drain. Two wake-ups a query at low rates, a fraction of one at high rates, no copy of token ids but zmq's
own, and no logging, JSON or Python list of ints anywhere here. A busy second Python thread would add 9 ms to the
issue lag, so there is none: the authentication handler and the supervisor's pipe are polled by this loop too.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable

import numpy as np
import zmq

from harness.datasets import Dataset
from harness.driver.ledger import Ledger, Sample, TriesExhausted
from harness.driver.outbox import Outbox
from harness.driver.pairs import Pairs
from harness.driver.pool import Pool
from harness.driver.rows import RowBuffer
from harness.driver.sinks import Answer, Sink
from harness.driver.stages import Stages
from harness.driver.watch import Watching, look
from harness.wire import attempt as up
from harness.wire import data
from harness.wire.frames import WireError, encode
from harness.wire.keys import ZapHandler

log = logging.getLogger("paceline.driver")

Issued = tuple[int, int, int, int]  # LoadGen id, QSL index, scheduled ns (-1 = look it up), issued ns
DRAIN_MAX = 256
ISSUE_MAX = 2000
BATCH_NS = 100_000_000
_MAX_I4 = 2**31 - 1
_NOW = int(zmq.NOBLOCK)  # plain ints: pyzmq converts enum flags at every call
_RCVMORE = int(zmq.RCVMORE)


class Dispatcher:
    def __init__(
        self,
        *,
        epoch: int,
        dataset: Dataset,
        make_ledger: Callable[[Outbox], Ledger | Stages],
        router: zmq.Socket[bytes],
        pair: zmq.Socket[bytes],
        zap: ZapHandler,
        n_slots: int,
        max_tokens: int,
        no_ready_grace_s: float,
        on_command: Callable[[up.ToDriver], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.epoch = epoch
        self._out = out = Outbox(router, epoch, dataset, max_tokens)
        self._n_prompt = out.n_prompt
        self._cost = [n + (expected or 1000) for n, expected in zip(out.n_prompt, out.expected, strict=True)]
        self._decode = data.TO_DRIVER.decode
        self._router, self._pair, self._zap = router, pair, zap
        self._grace_ns = int(no_ready_grace_s * 1e9)
        self._on_command = on_command
        self._clock = clock
        self.ledger = ledger = make_ledger(out)
        self.stages = ledger if isinstance(ledger, Stages) else None
        self.sink: Sink | None = None
        self._n_slots = n_slots
        self._pending: deque[Issued] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._asleep = False
        self._outgoing: deque[up.ToSupervisor] = deque()
        self.pool = Pool(epoch, ledger, out, self._outgoing.append)
        self._rows = RowBuffer()
        self._watching = Watching()
        self._firsts: list[Answer] = []
        self._completes: list[Answer] = []
        self._ttfts: list[tuple[int, int]] = []  # roster position, µs: told at once, not when the sample completes
        # written here, read by the main thread
        self.issued = 0
        self.completed = 0
        self.failed = 0
        self.failure: str | None = None
        self.zero_ns = -1  # monotonic time of the schedule's zero
        self.started_unix = 0.0
        self.due_ns: Callable[[int], int] | None = None  # seq → scheduled offset, None: the issuer says
        self.due_by: Callable[[int], int] | None = None
        self.target_qps = 0.0
        self.planned = 0  # queries the attempt will issue at least; 0 = unknown
        self.closing = False  # the test has ended: whatever arrives is dropped
        self._flush_and_stop = False
        self._no_ready_since: dict[str, int] = {}  # by role
        self._next_batch_ns = 0
        self._parent = os.getppid()

    # --- called by the main thread -----------------------------------------------------------------------

    def issue(self, queries: list[Issued]) -> None:
        self._pending.extend(queries)
        if self._asleep:
            self._asleep = False
            os.eventfd_write(self._wake_fd, 1)

    def tell(self, message: up.ToSupervisor) -> None:
        self._outgoing.append(message)
        os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        """Flush rows and messages, then leave the loop."""
        self._flush_and_stop = True
        os.eventfd_write(self._wake_fd, 1)

    @property
    def open_samples(self) -> int:
        return len(self._pending) + self.ledger.open

    @property
    def pool_size(self) -> int:
        return self.pool.size

    # --- the loop ----------------------------------------------------------------------------------------

    def run(self) -> None:
        poller = zmq.Poller()
        for watched in (self._router, self._pair, self._zap.socket, self._wake_fd):
            poller.register(watched, zmq.POLLIN)
        while True:
            self._asleep = True
            timeout_ms = 0 if self._pending or self._outgoing else 20
            ready = dict(poller.poll(timeout_ms))
            self._asleep = False
            if self._wake_fd in ready:
                os.eventfd_read(self._wake_fd)
            if self._zap.socket in ready:
                self._zap.drain()
            if self._pair in ready:
                self._read_supervisor()
            try:
                if self._pending:
                    self._take_issued()
                if self._router in ready:
                    self._drain_replies()
                now = self._clock()
                if now >= self._next_batch_ns:
                    self._next_batch_ns = now + BATCH_NS
                    self._housekeeping(now)
            except TriesExhausted as error:
                self.fail(str(error))
            stopping = self._flush_and_stop  # read once a turn: another thread sets it
            if stopping:
                self._hand_over()
                self._abandon()
                self._outgoing.append(self._batch(self._clock()))
            while self._outgoing:
                self._pair.send(encode(self._outgoing.popleft()))
            if stopping:
                return

    def fail(self, reason: str) -> None:
        """End of the attempt for a reason that is not the load's end; the first one counts."""
        if self.failure is None:
            self.failure = reason
            self._flush_and_stop = True

    # --- issuing -----------------------------------------------------------------------------------------

    def _take_issued(self) -> None:
        pending, ledger, due = self._pending, self.ledger, self.due_ns
        cost, sample_of = self._cost, ledger.sample_type
        now = self._clock()
        for _ in range(min(len(pending), ISSUE_MAX)):
            handle, index, scheduled, issued = pending.popleft()
            seq = self.issued
            self.issued = seq + 1
            if scheduled < 0 and due is not None:
                offset = due(seq)
                if self.zero_ns < 0 or issued - offset < self.zero_ns:
                    self._set_zero(issued - offset)
                scheduled = self.zero_ns + offset
            elif self.zero_ns < 0:
                self._set_zero(scheduled if scheduled >= 0 else issued)
            if scheduled < 0:
                scheduled = self.zero_ns
            ledger.issue(sample_of(seq, handle, index, scheduled, issued, cost[index]), now)

    def _set_zero(self, zero_ns: int) -> None:
        if self.zero_ns < 0:
            self.started_unix = time.time() - (self._clock() - zero_ns) / 1e9
        self.zero_ns = zero_ns

    # --- replies -----------------------------------------------------------------------------------------

    def _drain_replies(self) -> None:
        """Frames are received one by one: recv_multipart would ask twice more a message whether another one follows."""
        socket = self._router
        receive, option = socket.recv, socket.getsockopt
        now = self._clock()
        for _ in range(DRAIN_MAX):
            try:
                identity = receive(_NOW)
            except zmq.Again:
                break
            header = receive(_NOW)
            payload = b""
            if option(_RCVMORE):
                payload = receive(_NOW)
                if option(_RCVMORE):
                    self._skip_message()
                    self._out.refuse(identity, "a data message has at most a header and a payload frame")
                    continue
            try:
                message = self._decode(header)
            except WireError as error:
                self._out.refuse(identity, error.reason)
                continue
            kind = type(message)
            if kind is data.First:
                self._first(identity, message, payload, now)  # type: ignore[arg-type]
            elif kind is data.Complete:
                self._complete(identity, message, payload, now)  # type: ignore[arg-type]
            elif kind is data.Prefilled:
                self._prefilled(identity, message, payload, now)  # type: ignore[arg-type]
            else:
                self._rare(identity, message, now)
        self._hand_over()

    def _skip_message(self) -> None:
        while self._router.getsockopt(zmq.RCVMORE):
            self._router.recv(zmq.NOBLOCK)

    def _hand_over(self) -> None:
        sink = self.sink
        if sink is None or self.closing:
            self._firsts.clear()
            self._completes.clear()
            return
        if self._firsts:
            answers, self._firsts = self._firsts, []
            sink.first(answers)
        if self._completes:
            finished, self._completes = self._completes, []
            sink.complete(finished)

    def _first(self, identity: bytes, message: data.First, token: bytes, now: int) -> None:
        sample = self._counted(message, identity, now)
        if sample is None or len(token) != 4:  # without its token it is no FIRST; COMPLETE brings the token
            return
        sample.note_durations(message.queue_us, message.prefill_us)
        if sample.first_ns < 0:
            self._first_token(sample, token, now)

    def _complete(self, identity: bytes, message: data.Complete, tokens: bytes, now: int) -> None:
        sample = self._counted(message, identity, now)
        if sample is None:
            return
        n_tokens = len(tokens) >> 2
        if n_tokens < 2 or len(tokens) & 3:
            self.ledger.give_up_try(sample, now, _no_answer(tokens))
            return
        if sample.first_ns < 0:
            self._first_token(sample, tokens[:4], now)
        sample.note_durations(message.queue_us, message.prefill_us)
        member = self.ledger.complete(sample, now)
        self._completes.append((sample.handle, tokens))
        self.completed += 1
        self._rows.add(sample, member, self._n_prompt[sample.index], n_tokens, self.zero_ns, now, message.decode_us)

    def _abandon(self) -> None:
        """An exploration that drained in vain: what it leaves behind is a row too."""
        if not self.closing:
            return
        for sample in self.ledger.left():
            self._rows.add(sample, sample.member, self._n_prompt[sample.index], 0, self.zero_ns, -1, -1)

    def _counted(self, message: data.First | data.Complete, identity: bytes, now: int) -> Sample | None:
        """The exactly-once gate: None for whatever does not count."""
        if message.epoch != self.epoch or self.closing:
            self.ledger.stale += 1
            return None
        return self.ledger.current(message.seq, message.attempt_try, identity, now)

    def _first_token(self, sample: Sample, token: bytes, now: int) -> None:
        sample.first_ns = now
        self._firsts.append((sample.handle, token))
        member = sample.member
        assert member is not None
        self._ttfts.append((member.index, min((now - sample.scheduled_ns) // 1000, _MAX_I4)))

    def _prefilled(self, identity: bytes, message: data.Prefilled, handoff: bytes, now: int) -> None:
        if self.stages is None or message.epoch != self.epoch or self.closing:
            self.ledger.stale += 1
        else:
            self.stages.prefilled(message, identity, handoff, now)

    def _rare(self, identity: bytes, message: data.ToDriver, now: int) -> None:
        if isinstance(message, data.Hello):
            self.pool.hello(identity, message)
        elif isinstance(message, data.Pong):
            self.pool.pong(identity, message, now)
        elif isinstance(message, data.Failed) and message.epoch == self.epoch:
            self.ledger.failed(message.seq, message.attempt_try, identity, now, message.reason)

    # --- the supervisor's word ---------------------------------------------------------------------------

    def _read_supervisor(self) -> None:
        while True:
            try:
                message = up.TO_DRIVER.decode(self._pair.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            now = self._clock()
            try:
                self._obey(message, now)
            except TriesExhausted as error:
                self.fail(str(error))

    def _obey(self, message: up.ToDriver, now: int) -> None:
        if isinstance(message, up.Admit):
            self.pool.admit(message, now)
        elif isinstance(message, up.Hold | up.Drop):
            self.pool.hold_or_drop(message, now)
        elif isinstance(message, up.Watch):
            self._watching.begin(message, now)
            if message.slot:
                self._outgoing.append(look(message, self.ledger.members.get(message.slot), self._n_prompt, now))
        elif isinstance(message, up.Quit):
            self.fail(message.reason)
        else:
            self._on_command(message)

    # --- ten times a second ------------------------------------------------------------------------------

    def _housekeeping(self, now: int) -> None:
        if os.getppid() != self._parent:
            os._exit(3)  # the supervisor is gone: nobody would read the rest
        for member in self.ledger.take_unreachable():
            self.pool.drop(member, "its data connection is gone", now)
        for sample, member in reversed(self.ledger.overdue(now)):
            if member.accepting and member.last_reply_ns < sample.dispatched_ns:
                self.ledger.hold(member)
                self._outgoing.append(up.Silent(member.slot, member.incarnation, (now - sample.dispatched_ns) / 1e9))
            self._out.cancel(member, sample)
            self.ledger.give_up_try(sample, now, f"no answer from {member.slot} within the sample deadline")
        self.pool.report_drained()
        if self.stages is not None and self.stages.pairs is not None:
            self._watch_pairs(self.stages.pairs, now)
        self._watch_ready(now)
        if self._watching:
            self._outgoing.extend(self._watching.due(self.ledger.members, self._n_prompt, now))
        self._outgoing.append(self._batch(now))

    def _watch_pairs(self, pairs: Pairs, now: int) -> None:
        """A pair that does not warm up at the beginning ends the attempt; later it costs the newcomer its place."""
        for stuck in pairs.tick(now):
            if not pairs.settled:
                self.fail(stuck.why)
                return
            log.warning("%s: %s takes no samples", stuck.why, stuck.member.slot)
            self._outgoing.append(up.Silent(stuck.member.slot, stuck.member.incarnation, stuck.waited_s, stuck.why))
        warmed = pairs.news(now)
        if warmed is not None:
            self._outgoing.append(warmed)

    def _watch_ready(self, now: int) -> None:
        lacking = self.ledger.lacking()
        self._no_ready_since = {role: self._no_ready_since.get(role, now) for role in lacking}
        for role, since in self._no_ready_since.items():
            if now - since > self._grace_ns:
                what = f"{role} replica" if role else "replica"
                self.fail(f"no READY {what} for {self._grace_ns / 1e9:g} s while {lacking[role]} samples wait")

    def _batch(self, now: int) -> up.Batch:
        ledger, stages = self.ledger, self.stages
        outstanding = np.zeros(self._n_slots, "<i4")
        oldest = np.zeros(self._n_slots, "<i4")
        for member in ledger.members.values():
            outstanding[member.index] = len(member.inflight)
            sent = member.oldest_dispatch_ns()
            if sent >= 0:
                oldest[member.index] = (now - sent) // 1_000_000
        ttfts = np.array(self._ttfts, "<i4").tobytes()
        self._ttfts.clear()
        elapsed = now - self.zero_ns if self.zero_ns >= 0 else -1
        scheduled = self.due_by(elapsed) if self.due_by is not None and elapsed >= 0 else self.issued
        return up.Batch(
            now_ns=elapsed,
            started_unix=self.started_unix,
            issued=self.issued,
            scheduled=scheduled,
            completed=self.completed,
            failed=self.failed,
            redispatched=ledger.redispatched,
            held=len(ledger.waiting),
            in_flight=ledger.in_flight,
            stale=ledger.stale,
            target_qps=self.target_qps,
            cpu_s=time.process_time(),
            planned=self.planned,
            ttfts=ttfts,
            rows=self._rows.take(),
            outstanding=outstanding.tobytes(),
            oldest_ms=oldest.tobytes(),
            held_decode=len(stages.decode.waiting) if stages else 0,
            prefilled=stages.prefilled_samples if stages else 0,
            prefilled_tokens=stages.prefilled_tokens if stages else 0,
        )


def _no_answer(tokens: bytes) -> str:
    if len(tokens) == 4:
        return "answered with one token; TPOT needs two, and sampling.min_tokens = 2 prevents it"
    return f"answered with {len(tokens)} bytes; TPOT needs at least 2 tokens of 4 bytes"
