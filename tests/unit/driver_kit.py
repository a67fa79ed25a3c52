"""A dispatcher over real CURVE sockets in one process, and replicas that are played by hand."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import numpy as np
import zmq

from harness.datasets import Dataset
from harness.driver.balance import make_policy
from harness.driver.dispatcher import Dispatcher
from harness.driver.ledger import Ledger
from harness.driver.outbox import Outbox
from harness.driver.sinks import Answer
from harness.driver.stages import Stages
from harness.wire import attempt as up
from harness.wire import data, sockets
from harness.wire.attempt import SAMPLE_DTYPE
from harness.wire.frames import encode
from harness.wire.keys import ClientKeys, ServerKeys, ZapHandler, allow

EPOCH = 7
PROMPTS = [np.arange(10 * i, 10 * i + 3 + i, dtype=np.int32) for i in range(5)]
SLOTS = ["node000/gpu0", "node000/gpu1", "node001/gpu0"]
#: For what has to come: a slow machine that stalls for seconds included.
DEADLINE_S = 30.0
M = TypeVar("M")


def until(met: Callable[[], bool], within_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not met():
        assert time.monotonic() < deadline, f"not within {within_s:g} s"
        time.sleep(0.002)


def ids(*tokens: int) -> bytes:
    return np.array(tokens, "<i4").tobytes()


class Kept:
    """A sink that keeps what LoadGen would have been told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, bytes]] = []

    def first(self, answers: list[Answer]) -> None:
        self.told += [("first", handle, payload) for handle, payload in answers]

    def complete(self, answers: list[Answer]) -> None:
        self.told += [("complete", handle, payload) for handle, payload in answers]


class FakeReplica:
    """The replica's end of the data socket, by hand."""

    def __init__(self, rig: Rig, slot: int, incarnation: str, keys: ClientKeys | None = None) -> None:
        self.slot, self.incarnation = SLOTS[slot], incarnation
        self.socket = sockets.client_dealer(rig.context, keys or rig.keys.client("worker"), rig.endpoint)
        self.socket.linger = 0

    def say(self, header: msgspec.Struct, payload: bytes | None = None) -> None:
        self.socket.send_multipart([encode(header)] if payload is None else [encode(header), payload])

    def hear(self, kind: type[M], within_s: float = DEADLINE_S) -> M:
        message, self.payload, self.handoff = self._receive(within_s)
        while kind is not data.Ping and isinstance(message, data.Ping):  # a HELLO that was repeated is answered again
            message, self.payload, self.handoff = self._receive(within_s)
        assert isinstance(message, kind), message
        return message

    def hears_nothing(self, for_s: float = 0.08) -> bool:
        return not self.socket.poll(int(for_s * 1000))

    def _receive(self, within_s: float) -> tuple[Any, bytes, bytes]:
        assert self.socket.poll(int(within_s * 1000)), "nothing came"
        frames = [*self.socket.recv_multipart(), b"", b""]
        return data.TO_REPLICA.decode(frames[0]), frames[1], frames[2]

    def greet(self) -> None:
        self.say(data.Hello(EPOCH, self.slot, self.incarnation))
        self.hear(data.Ping)
        self.say(data.Pong(EPOCH, self.slot, self.incarnation))

    def first(self, query: data.Query, *tokens: int) -> None:
        self.say(data.First(query.epoch, query.seq, query.attempt_try, 5, 6), ids(*tokens))

    def prefilled(self, query: data.Query, handoff: bytes = b"kv") -> None:
        self.say(data.Prefilled(query.epoch, query.seq, query.attempt_try, 7, 8), handoff)

    def complete(self, query: data.Query, *tokens: int) -> None:
        self.say(data.Complete(query.epoch, query.seq, query.attempt_try, 15, 16, 17), ids(*tokens))


class Rig:
    roles = ("both", "both", "both")

    def __init__(
        self,
        *,
        cap: int = 8,
        max_tries: int = 3,
        deadline_s: float = 60.0,
        grace_s: float = 60.0,
        pairs_deadline_s: float | None = None,
    ) -> None:
        self._later_ns, self._stands_ns = 0, -1
        self._fences = 0
        self._cap, self._max_tries, self._deadline_ns = cap, max_tries, int(deadline_s * 1e9)
        self._pairs_deadline_ns = None if pairs_deadline_s is None else int(pairs_deadline_s * 1e9)
        self.context = sockets.context()
        self.keys = ServerKeys.fresh()
        self.zap = ZapHandler(self.context, allow(self.keys, "worker"))
        router, self.endpoint = sockets.server_router(self.context, self.keys, "tcp://127.0.0.1:0", domain="data")
        self._losses: zmq.Socket[bytes] = router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.head = self.context.socket(zmq.PAIR)
        self.head.bind("inproc://head")
        pair = self.context.socket(zmq.PAIR)
        pair.connect("inproc://head")
        self.commands: list[Any] = []
        self.dispatcher = Dispatcher(
            epoch=EPOCH,
            dataset=Dataset.of("five", PROMPTS, [4, 4, 4, 4, 4]),
            make_ledger=self.make_ledger,
            router=router,
            pair=pair,
            zap=self.zap,
            n_slots=len(SLOTS),
            max_tokens=64,
            no_ready_grace_s=grace_s,
            on_command=self.commands.append,
            clock=self.clock,
        )
        self.sink = self.dispatcher.sink = Kept()
        self.heard: list[Any] = []
        self.thread = threading.Thread(target=self.dispatcher.run, daemon=True)
        self.thread.start()

    def make_ledger(self, out: Outbox) -> Ledger | Stages:
        if self.roles[0] == "both":
            policy = make_policy("least_outstanding", self._cap)
            return Ledger(policy, out.query, max_tries=self._max_tries, deadline_ns=self._deadline_ns)
        return Stages(
            out.stage,
            out.cancel,
            out.n_prompt,
            prefill_policy="least_outstanding",
            decode_policy="least_outstanding",
            cap=self._cap,
            max_tries=self._max_tries,
            deadline_ns=self._deadline_ns,
            pairs_deadline_ns=self._pairs_deadline_ns,
        )

    def clock(self) -> int:
        return time.monotonic_ns() + self._later_ns if self._stands_ns < 0 else self._stands_ns

    def passes(self, seconds: float) -> None:
        """It is so much later for the dispatcher: what has a deadline meets it at once, however slow this machine is."""
        if self._stands_ns < 0:
            self._later_ns += int(seconds * 1e9)
        else:
            self._stands_ns += int(seconds * 1e9)

    def stands(self) -> None:
        """From now on time passes for the dispatcher by `passes` alone; what was due until now has been done."""
        self._stands_ns = self.clock() + 200_000_000
        self.settled()

    def settled(self) -> None:
        """The dispatcher has done what it does ten times a second with the time that it is now, or a later one."""
        now_ns = self.clock() - self.dispatcher.zero_ns
        self.hear(up.Batch, lambda batch: batch.now_ns >= now_ns)

    def tell(self, message: msgspec.Struct) -> None:
        self.head.send(encode(message))

    def order(self, message: msgspec.Struct) -> None:
        """Tell it, and return once it has been obeyed."""
        self.tell(message)
        self._fences += 1
        fence = up.SetRate(-float(self._fences))  # commands are obeyed one after the other
        self.tell(fence)
        until(lambda: fence in self.commands)
        self.commands.remove(fence)

    def leaves(self, replica: FakeReplica) -> None:
        """Closes its connection, and returns once that is noticed at this end."""
        while self._losses.poll(0):
            self._losses.recv_multipart()
        replica.socket.close()
        assert self._losses.poll(int(DEADLINE_S * 1000)), "the connection is still there"
        time.sleep(0.05)  # between that word and the end of the connection's pipe are a few instructions

    def hear(self, kind: type[M], fits: Callable[[M], bool] = lambda message: True, within_s: float = DEADLINE_S) -> M:
        """The next message of that kind that fits; everything that came is kept in `heard`."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if self.head.poll(50):
                self.heard.append(up.TO_SUPERVISOR.decode(self.head.recv()))
                if isinstance(self.heard[-1], kind) and fits(self.heard[-1]):
                    return self.heard[-1]
        raise AssertionError(f"no such {kind.__name__} among {self.heard[-5:]}")

    def admit(self, slot: int, incarnation: str = "a", nth: int = 1) -> None:
        self.order(up.Admit(SLOTS[slot], slot, incarnation, nth, self.roles[slot]))

    def join(self, slot: int, incarnation: str = "a", nth: int = 1) -> FakeReplica:
        self.admit(slot, incarnation, nth)
        replica = FakeReplica(self, slot, incarnation)
        replica.greet()
        self.hear(up.InPool, lambda joined: (joined.slot, joined.incarnation) == (replica.slot, incarnation))
        return replica

    def issue(self, *indices: int) -> None:
        now = time.monotonic_ns()
        self.dispatcher.issue([(900 + index, index, now - 1000, now) for index in indices])

    def told(self, count: int) -> list[tuple[str, int, bytes]]:
        until(lambda: len(self.sink.told) >= count)
        return self.sink.told

    def end(self) -> tuple[np.ndarray, up.Batch]:
        """All rows and the last batch."""
        self.dispatcher.stop()
        self.thread.join(DEADLINE_S)
        while self.head.poll(20):
            self.heard.append(up.TO_SUPERVISOR.decode(self.head.recv()))
        batches = [message for message in self.heard if isinstance(message, up.Batch)]
        return np.frombuffer(b"".join(batch.rows for batch in batches), SAMPLE_DTYPE), batches[-1]

    def failure(self) -> str:
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive(), "the attempt goes on"
        assert self.dispatcher.failure is not None
        return self.dispatcher.failure

    def close(self) -> None:
        self.dispatcher.stop()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        self.context.destroy(linger=0)


@contextlib.contextmanager
def closing_rigs(kind: type[Rig] = Rig) -> Iterator[Callable[..., Rig]]:
    """Makes rigs, and closes them all at the end."""
    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        rigs.append(kind(**options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()
