"""(a) The dispatcher against a bare pyzmq ROUTER loop, and (e) what CURVE costs on that path.

Both loops use the same ROUTER, the same connections (one a slot) and the same payloads: 1 KB of prompt out, FIRST and
5.4 KB of COMPLETE back, a bounded window outstanding. The bare loop sends one header that was encoded beforehand, counts,
and does nothing else: no decoding, no gate, no balance, no rows. What is compared is the CPU of the thread that owns the
socket, per query; libzmq's own thread (encryption, TCP) and the whole process stand beside it. Loops take turns on the
connections of one and the same set of peers, so a busy minute of the machine hits both.

Absolute figures depend on how full the drains are, and so on how much of the second core the peers get.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from harness.datasets import Dataset
from harness.driver.balance import make_policy
from harness.driver.dispatcher import Dispatcher
from harness.driver.ledger import Ledger, Member, Sample
from harness.driver.rows import RowBuffer
from harness.driver.sinks import NullSink
from harness.spec import slot_name
from harness.wire import data, sockets
from harness.wire.frames import encode
from harness.wire.keys import ServerKeys, ZapHandler, allow
from tests.bench.rig import BenchTimeout, Row, children, median, peers_cpus, row, split, thread_cpu_s, zmq_io_threads

EPOCH = 1
PROMPT_TOKENS, ANSWER_TOKENS = 256, 1360
WARM_S, MEASURE_S, ROUNDS = 0.3, 1.2, 5
PEER_PROCESSES = 2
WINDOW = {64: 2048, 512: 4096}

_pairs = itertools.count()


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU µs per query and queries per second over one turn."""

    thread_us: float
    libzmq_us: float
    process_us: float
    rate_qps: float


class Meter:
    """Reads all clocks at the start of the measured part and again at its end."""

    def __init__(self, thread_s: Callable[[], float]) -> None:
        self._thread_s = thread_s
        self._io = zmq_io_threads()
        self._before = self._read(0)

    def _read(self, done: int) -> tuple[float, float, float, float, int]:
        libzmq_s = sum(thread_cpu_s(tid) for tid in self._io)
        return self._thread_s(), libzmq_s, time.process_time(), time.monotonic(), done

    def start(self, done: int) -> None:
        self._before = self._read(done)

    def stop(self, done: int) -> Cost:
        thread_s, libzmq_s, process_s, wall_s, queries = (
            after - before for after, before in zip(self._read(done), self._before, strict=True)
        )
        per_query = 1e6 / max(1, queries)
        return Cost(thread_s * per_query, libzmq_s * per_query, process_s * per_query, queries / wall_s)


class Wire:
    """A ROUTER with its echo peers behind it, ready: every slot's identity is known."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], zap: ZapHandler, router: zmq.Socket[bytes], slots: int) -> None:
        self.context, self.zap, self.router, self.slots = context, zap, router, slots
        self.window = WINDOW[slots]
        self.identities: dict[str, bytes] = {}

    def greet(self, within_s: float = 40.0) -> None:
        """HELLO, PING, PONG with everyone, as the dispatcher would do it."""
        deadline = time.monotonic() + within_s
        poller = zmq.Poller()
        poller.register(self.router, zmq.POLLIN)
        poller.register(self.zap.socket, zmq.POLLIN)
        while len(self.identities) < self.slots:
            if time.monotonic() > deadline:
                raise BenchTimeout(f"{self.slots - len(self.identities)} of {self.slots} echo replicas did not connect")
            ready = dict(poller.poll(200))
            self.zap.drain()
            if self.router in ready:
                identity, frame = self.router.recv_multipart()
                message = data.TO_DRIVER.decode(frame)
                if isinstance(message, data.Hello):
                    self.router.send_multipart((identity, encode(data.Ping(EPOCH, message.slot))))
                elif isinstance(message, data.Pong):
                    self.identities[message.slot] = identity


@contextlib.contextmanager
def wires(slots: int, *curves: bool) -> Iterator[list[Wire]]:
    """One Wire for each mechanism asked for, all in one context: they take turns, and one that rests costs next to nothing."""
    context = sockets.context()
    keys = ServerKeys.fresh()
    with children() as peers, tempfile.TemporaryDirectory(prefix="paceline-bench-") as place:
        keys.save(Path(place))
        zap = ZapHandler(context, allow(keys, "worker"))
        made = []
        names = [(slot_name(n // 8, n % 8), "bench") for n in range(slots)]
        for curve in curves:
            router, endpoint = _router(context, keys, curve)
            config = {"endpoint": endpoint, "keys": place if curve else "", "epoch": EPOCH, "tokens": ANSWER_TOKENS}
            for part in split(names, PEER_PROCESSES):
                peers.start("echo", {**config, "slots": part}, peers_cpus())
            made.append(Wire(context, zap, router, slots))
            made[-1].greet()
        try:
            yield made
        finally:
            context.destroy(linger=0)


def _router(context: zmq.Context[zmq.Socket[bytes]], keys: ServerKeys, curve: bool) -> tuple[zmq.Socket[bytes], str]:
    if curve:
        return sockets.server_router(context, keys, "tcp://127.0.0.1:0", domain="data")
    router = context.socket(zmq.ROUTER)
    router.router_mandatory = router.router_handover = 1
    router.backlog, router.sndhwm, router.rcvhwm, router.linger = sockets.BACKLOG, 0, 0, 500
    router.heartbeat_ivl, router.heartbeat_timeout, router.heartbeat_ttl = 2000, 6000, 10000
    port = router.bind_to_random_port("tcp://127.0.0.1")
    return router, f"tcp://127.0.0.1:{port}"


# --- the two loops ---------------------------------------------------------------------------------------------------


def prompts() -> Dataset:
    ids = [np.full(PROMPT_TOKENS, number, np.int32) for number in range(1000)]
    return Dataset.of("1 KB prompts", ids, [ANSWER_TOKENS] * len(ids))


def bare_turn(wire: Wire) -> Cost:
    router = wire.router
    identities = list(wire.identities.values())
    header = encode(data.Query(EPOCH, 100_000, 1, slot_name(wire.slots // 8 - 1, 7), 10240, ANSWER_TOKENS, 500))
    prompt = bytes(PROMPT_TOKENS * 4)
    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    meter = Meter(time.thread_time)
    send, receive = router.send_multipart, router.recv_multipart
    sent = done = 0
    began_s = time.monotonic()
    measuring = False
    cost: Cost | None = None
    while cost is None or done < sent:
        if cost is None:
            while sent - done < wire.window:
                send((identities[sent % len(identities)], header, prompt), zmq.NOBLOCK)
                sent += 1
        poller.poll(20)
        for _ in range(256):
            try:
                frames = receive(zmq.NOBLOCK)
            except zmq.Again:
                break
            if len(frames[2]) > 4:
                done += 1
        elapsed_s = time.monotonic() - began_s
        if not measuring and elapsed_s > WARM_S:
            measuring = True
            meter.start(done)
        elif cost is None and elapsed_s > WARM_S + MEASURE_S:
            cost = meter.stop(done)
        elif elapsed_s > 60:
            raise BenchTimeout(f"{sent - done} queries of the bare loop were not answered")
    return cost


def dispatcher_turn(wire: Wire, dataset: Dataset) -> Cost:
    ours, drivers = _pair(wire.context)
    policy = make_policy("least_outstanding", 2 * wire.window // wire.slots)
    dispatcher = Dispatcher(
        epoch=EPOCH,
        dataset=dataset,
        make_ledger=lambda out: Ledger(policy, out.query, max_tries=3, deadline_ns=300_000_000_000),
        router=wire.router,
        pair=drivers,
        zap=wire.zap,
        n_slots=wire.slots,
        max_tokens=10240,
        no_ready_grace_s=30,
        on_command=lambda message: None,
    )
    dispatcher.sink = NullSink()
    for index, (slot, identity) in enumerate(wire.identities.items()):
        dispatcher.ledger.join(Member(index, slot, "bench", 1, identity), time.monotonic_ns())
    thread = threading.Thread(target=dispatcher.run, name="dispatcher", daemon=True)
    thread.start()
    try:
        return _keep_full(dispatcher, thread, ours, wire.window, len(dataset))
    finally:
        dispatcher.stop()
        thread.join(10)
        for socket in (ours, drivers):
            socket.close(linger=0)


def _keep_full(dispatcher: Dispatcher, thread: threading.Thread, ours: zmq.Socket[bytes], window: int, samples: int) -> Cost:
    """In place of LoadGen: keeps the window full from the main thread, and reads the clocks."""
    assert thread.native_id is not None
    tid = thread.native_id
    meter = Meter(lambda: thread_cpu_s(tid))
    sent = 0
    began_s = time.monotonic()
    measuring = False
    cost: Cost | None = None
    while cost is None or dispatcher.open_samples:
        room = window - (sent - dispatcher.completed)
        if cost is None and room > 0:
            now = time.monotonic_ns()
            dispatcher.issue([(number, number % samples, now, now) for number in range(sent, sent + room)])
            sent += room
        time.sleep(0.002)
        while ours.poll(0):
            ours.recv()
        elapsed_s = time.monotonic() - began_s
        if not measuring and elapsed_s > WARM_S:
            measuring = True
            meter.start(dispatcher.completed)
        elif cost is None and elapsed_s > WARM_S + MEASURE_S:
            cost = meter.stop(dispatcher.completed)
        elif elapsed_s > 60 or dispatcher.failure:
            raise BenchTimeout(f"the dispatcher did not finish: {dispatcher.failure or dispatcher.open_samples}")
    return cost


def _pair(context: zmq.Context[zmq.Socket[bytes]]) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    ours, drivers = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    for socket in (ours, drivers):
        socket.sndhwm = socket.rcvhwm = 0
    name = f"inproc://supervisor-{next(_pairs)}"  # a name is free again only when libzmq has reaped its socket
    ours.bind(name)
    drivers.connect(name)
    return ours, drivers


# --- the dispatcher's Python, piece by piece -------------------------------------------------------------------------


def pieces(slots: int = 512) -> list[tuple[str, float]]:
    """µs a query of each piece alone (best of 5): what can be gained where, without a profiler's own cost."""
    query = data.Query(EPOCH, 100_000, 1, "node063/gpu7", 10240, ANSWER_TOKENS, 500)
    first = encode(data.First(EPOCH, 100_000, 1, 1000, 2000))
    complete = encode(data.Complete(EPOCH, 100_000, 1, 1000, 2000, 3000))
    decode = data.TO_DRIVER.decode
    ledger = Ledger(make_policy("least_outstanding", 16), lambda member, sample: True, max_tries=3, deadline_ns=10**12)
    members = [Member(n, slot_name(n // 8, n % 8), "bench", 1, b"%013d" % n) for n in range(slots)]
    for member in members:
        ledger.join(member, 0)
    for seq in range(4 * slots):
        ledger.issue(Sample(seq, seq, 0, 0, 0), 0)
    numbers = iter(range(10**9))

    def pass_through() -> None:
        number = next(numbers)
        ledger.issue(Sample(number + 4 * slots, number, 0, 0, 0), 0)
        sample = ledger.inflight[number]
        assert sample.member is not None
        identity = sample.member.identity
        ledger.current(number, 1, identity, 1)
        ledger.complete(sample, 1)

    rows, sample = RowBuffer(), Sample(1, 1, 1, 1, 1)
    parts: list[tuple[str, Callable[[], Any]]] = [
        ("encode one Query", lambda: encode(query)),
        ("decode First and Complete", lambda: (decode(first), decode(complete))),
        ("ledger and balance, issue to complete", pass_through),
        ("one sample row", lambda: rows.add(sample, members[0], 256, 1360, 0, 5, 6)),
    ]
    return [(name, min(timeit.repeat(part, number=4000, repeat=5)) / 4000 * 1e6) for name, part in parts]


# --- results ---------------------------------------------------------------------------------------------------------


def run() -> list[Row]:
    interval_s, threshold = sys.getswitchinterval(), gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)  # this and the interval as in the driver
    sys.setswitchinterval(0.0005)
    try:
        return [*_at_64(), *_at_512(), *(row(f"dispatcher: {name}", us, "us/query") for name, us in pieces())]
    finally:
        sys.setswitchinterval(interval_s)
        gc.set_threshold(*threshold)
        gc.unfreeze()


def _at_64() -> list[Row]:
    dataset = prompts()
    with wires(64, True, False) as (curve, null):
        turns = _turns(
            {
                "bare": lambda: bare_turn(curve),
                "dispatcher": lambda: dispatcher_turn(curve, dataset),
                "bare null": lambda: bare_turn(null),
                "dispatcher null": lambda: dispatcher_turn(null, dataset),
            }
        )

    def ratio(of: str) -> float:
        return _ratio(turns[of], turns[f"{of} null"], lambda cost: cost.process_us)

    added_us = median([a.process_us - b.process_us for a, b in zip(turns["bare"], turns["bare null"], strict=True)])
    return [
        *_against_bare(turns, 64),
        row("(e) CURVE against no encryption, bare loop, process CPU", ratio("bare"), "ratio"),
        row("(e) CURVE against no encryption, dispatcher, process CPU", ratio("dispatcher"), "ratio"),
        row("(e) CURVE adds, bare loop, process CPU", added_us, "us/query"),
    ]


def _at_512() -> list[Row]:
    dataset = prompts()
    with wires(512, True) as (curve,):
        turns = _turns({"bare": lambda: bare_turn(curve), "dispatcher": lambda: dispatcher_turn(curve, dataset)})
    return _against_bare(turns, 512)


def _turns(loops: dict[str, Callable[[], Cost]]) -> dict[str, list[Cost]]:
    costs: dict[str, list[Cost]] = {name: [] for name in loops}
    for _ in range(ROUNDS):
        for name, turn in loops.items():
            costs[name].append(turn())
    return costs


def _ratio(ours: list[Cost], theirs: list[Cost], figure: Callable[[Cost], float]) -> float:
    """Median of the ratios of neighbouring turns."""
    return median([figure(a) / figure(b) for a, b in zip(ours, theirs, strict=True)])


def _against_bare(turns: dict[str, list[Cost]], slots: int) -> list[Row]:
    ours, bare = turns["dispatcher"], turns["bare"]
    at = f"{slots} slots"
    return [
        row(f"(a) dispatcher against a bare ROUTER loop, {at}", _ratio(ours, bare, lambda c: c.thread_us), "ratio", at_most=1.3),
        row(f"dispatcher thread CPU, {at}", median([cost.thread_us for cost in ours]), "us/query"),
        row(f"bare loop thread CPU, {at}", median([cost.thread_us for cost in bare]), "us/query"),
        row(f"libzmq thread CPU under the dispatcher, {at}", median([cost.libzmq_us for cost in ours]), "us/query"),
        row(f"libzmq thread CPU under the bare loop, {at}", median([cost.libzmq_us for cost in bare]), "us/query"),
        row(f"dispatcher rate beside its peers, {at}", median([cost.rate_qps for cost in ours]), "query/s"),
        row(f"bare loop rate beside its peers, {at}", median([cost.rate_qps for cost in bare]), "query/s"),
    ]


if __name__ == "__main__":
    for line in run():
        print(line)
