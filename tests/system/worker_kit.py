"""What the worker's system tests share: a fake head (real CURVE ROUTERs), a worker process, and an echoing engine.

Run as a program it is the worker (`worker JSON`) or the replica process (`replica`) with the echo engine registered.
The head answers only while a test waits for something; every wait has a deadline.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from harness.engines.base import EngineContext, EngineError, EngineStats, Events, Key, Request
from harness.spec import RunSpec
from harness.wire import control, data, sockets
from harness.wire.frames import encode
from harness.wire.keys import Pair, ServerKeys, ZapHandler, allow

# --- the echo engine: what the registry asks of an engine's package --------------------------------------------------

DEADLY, SILENT = 666, 667  # first prompt token: the engine dies, or keeps the request


class EchoEngine:
    many_per_process = True
    synthetic = True

    def __init__(self, context: EngineContext, events: Events) -> None:
        self._context, self._events = context, events
        self._tokens_out = 0
        self.cancelled: list[Key] = []

    async def start(self) -> None:
        if self._context.args.get("broken") == self._context.slot:
            raise EngineError("no weights here")

    def submit(self, request: Request) -> None:
        first = bytes(request.prompt[:4])
        token = int.from_bytes(first, "little")
        if token == DEADLY and request.key.epoch:
            self._events.died("told to die")
            return
        if token == SILENT and request.key.epoch:
            return
        self._tokens_out += len(request.prompt) // 4
        self._events.first(request.key, first, 11, 22)
        answer = bytes(request.prompt) * int(self._context.args.get("repeat", 1))
        self._events.complete(request.key, answer, 11, 22, 33)

    def cancel(self, key: Key) -> None:
        self.cancelled.append(key)

    def stats(self) -> EngineStats:
        done, self._tokens_out = self._tokens_out, 0
        return EngineStats(tokens_out=done)

    def versions(self) -> dict[str, str]:
        return {"echo": "1"}

    def facts(self) -> dict[str, Any]:
        return {"kind": "echo"}

    async def stop(self) -> None:
        pass


factory = EchoEngine


def check_args(spec: RunSpec) -> None:
    pass


def identity(spec: RunSpec) -> dict[str, Any]:
    return {}


def default_slots_per_process(spec: RunSpec) -> int:
    return 1


def devices(spec: RunSpec) -> int:
    return 0


def environment(spec: RunSpec, gpu: int) -> dict[str, str]:
    return {}


# --- the head --------------------------------------------------------------------------------------------------------


def spec_of(slots_per_process: int = 1, **fleet: Any) -> RunSpec:
    fleet = {
        "nodes": 2, "replicas_per_node": 4, "engine": "echo", "slots_per_process": slots_per_process, "heartbeat_s": 0.2,
        "lease_s": 5, "restart_backoff_s": 0.2, "warmup": {"batch": 2, "input_tokens": 4, "output_tokens": 2}, **fleet,
    }  # fmt: skip
    return RunSpec.model_validate({"fleet": fleet})


class FakeHead:
    """Admits whoever registers, remembers what it was told, and speaks for an attempt's driver too."""

    def __init__(self, folder: Path, spec: RunSpec, epoch: int = 1) -> None:
        self.folder, self.spec, self.epoch = folder, spec, epoch
        self.keys = ServerKeys.fresh()
        self.keys.save(folder / "keys")
        self.context = sockets.context()
        self.zap = ZapHandler(self.context, allow(self.keys, "worker"))
        self.router, self.endpoint = sockets.server_router(self.context, self.keys, "tcp://127.0.0.1:0", domain="control")
        self.driver: zmq.Socket[bytes] | None = None
        self.workers: list[Worker] = []
        self.reject: dict[str, str] = {}  # slot → reason
        self.evicted: list[str] = []
        self.forget()

    def forget(self) -> None:
        self.messages: list[msgspec.Struct] = []
        self.peers: dict[str, bytes] = {}  # worker name or slot → routing id
        self.incarnations: dict[str, str] = {}  # slot → incarnation that registered last
        self.pids: dict[str, int] = {}
        self.states: dict[str, tuple[str, str]] = {}  # slot → incarnation, state of the last beat
        self.data: list[tuple[bytes, msgspec.Struct, bytes]] = []
        self.data_peers: dict[str, bytes] = {}

    def restart(self) -> None:
        """A head that knows nothing, at the same address, with the next epoch."""
        self.router.close(linger=0)
        self.forget()
        self.epoch += 1
        deadline = time.monotonic() + 20
        while True:
            try:
                self.router, _ = sockets.server_router(self.context, self.keys, self.endpoint, domain="control")
                return
            except sockets.CannotListen:
                assert time.monotonic() < deadline, "the control port was not free again"
                time.sleep(0.05)

    def wait(self, what: str, condition: Callable[[], Any], deadline_s: float = 40) -> Any:
        deadline = time.monotonic() + deadline_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not within {deadline_s} s: {what}; told: {self.messages[-5:]}"
            self.serve(0.05)
        return found

    def serve(self, for_s: float) -> None:
        deadline = time.monotonic() + for_s
        poller = zmq.Poller()
        for socket in filter(None, (self.router, self.zap.socket, self.driver)):
            poller.register(socket, zmq.POLLIN)
        while (left_s := deadline - time.monotonic()) > 0:
            ready = dict(poller.poll(int(left_s * 1000) + 1))
            if not ready:
                return
            self.zap.drain()
            if self.router in ready:
                peer, frame = self.router.recv_multipart()
                self.hear(peer, control.TO_HEAD.decode(frame))
            if self.driver in ready and self.driver is not None:
                peer, header, *payload = self.driver.recv_multipart()
                self.hear_data(peer, data.TO_DRIVER.decode(header), payload[0] if payload else b"")

    def hear(self, peer: bytes, message: Any) -> None:
        self.messages.append(message)
        match message:
            case control.RegisterWorker(worker=name, nodes=nodes):
                self.peers[name] = peer
                slots = [slot for slot in self.spec.slots() if int(slot[4:7]) in nodes]
                plan = control.WorkerPlan(self.epoch, self.spec.model_dump_json().encode(), slots, self.evicted)
                self.say(name, plan)
            case control.WorkerBeat(worker=name):
                self.peers[name] = peer
                self.say(name, control.BeatAck(self.epoch))
            case control.Register(slot=slot, incarnation=incarnation, pid=pid):
                self.peers[slot] = peer
                if slot in self.reject:
                    self.say(slot, control.Rejected(self.reject[slot], slot, incarnation, self.epoch))
                    return
                self.incarnations[slot], self.pids[slot] = incarnation, pid
                self.say(slot, control.Ack(slot, incarnation, self.epoch))
            case control.Heartbeat(replicas=replicas):
                self.states.update({beat.slot: (beat.incarnation, beat.state) for beat in replicas})
                self.router.send_multipart([peer, encode(control.BeatAck(self.epoch))])

    def say(self, to: str, message: msgspec.Struct) -> None:
        self.router.send_multipart([self.peers[to], encode(message)])

    def told(self, kind: type, **fields: Any) -> list[Any]:
        return [m for m in self.messages if isinstance(m, kind) and all(getattr(m, k) == v for k, v in fields.items())]

    def ready(self) -> list[str]:
        return [s for s, (inc, state) in self.states.items() if state == "READY" and self.incarnations.get(s) == inc]

    def wait_ready(self, count: int, deadline_s: float = 60) -> None:
        self.wait(f"{count} replicas READY", lambda: len(self.ready()) >= count, deadline_s)

    # the driver's side

    def open_data(self, epoch: int) -> None:
        if self.driver is not None:
            self.driver.close(linger=0)
        self.data, self.data_peers = [], {}
        self.driver, endpoint = sockets.server_router(self.context, self.keys, "tcp://127.0.0.1:0", domain="data")
        news = encode(control.DataEndpoint(epoch, endpoint, self.keys.server.public.decode()))
        for peer in {self.peers[slot] for slot in self.incarnations}:
            self.router.send_multipart([peer, news])

    def hear_data(self, peer: bytes, header: Any, payload: bytes) -> None:
        self.data.append((peer, header, payload))
        assert self.driver is not None
        if isinstance(header, data.Hello):
            self.driver.send_multipart([peer, encode(data.Ping(header.epoch, header.slot))])
        elif isinstance(header, data.Pong):
            self.data_peers[header.slot] = peer

    def query(self, slot: str, query: data.Query, prompt: bytes) -> None:
        assert self.driver is not None
        self.driver.send_multipart([self.data_peers[slot], encode(query), prompt])

    def answers(self, kind: type, seq: int | None = None) -> list[tuple[Any, bytes]]:
        return [(h, p) for _, h, p in self.data if isinstance(h, kind) and (seq is None or h.seq == seq)]

    # processes

    def start_worker(self, nodes: list[int], name: str, keys: Path | None = None) -> Worker:
        worker = Worker(self, nodes, name, keys or self.folder / "keys")
        self.workers.append(worker)
        return worker

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        for socket in filter(None, (self.router, self.driver)):
            socket.close(linger=0)
        self.zap.close()
        self.context.term()


class Worker:
    def __init__(self, head: FakeHead, nodes: list[int], name: str, keys: Path) -> None:
        config = {"head": head.endpoint, "keys": str(keys), "nodes": nodes, "name": name, "logs": str(head.folder / "logs")}
        config["ours"] = head.spec.fleet.engine in ("echo", "helping")
        self.log_path = head.folder / f"{name}.log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "worker", json.dumps(config)], stdout=log, stderr=log, process_group=0
            )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)

    def children(self) -> set[int]:
        return children_of(self.process.pid)


def children_of(pid: int) -> set[int]:
    try:
        return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except FileNotFoundError:
        return set()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def foreign_worker_key(head: FakeHead, folder: Path) -> Path:
    """A keys folder whose worker pair this head does not know, though it knows the head's public key."""
    foreign = ServerKeys(head.keys.server, {role: Pair.fresh() for role in head.keys.roles})
    foreign.save(folder)
    return folder


def _main() -> int:
    from harness.engines import registry

    registry._MODULES["echo"] = "worker_kit"
    registry._MODULES["helping"] = "helping_engine"
    if sys.argv[1] == "worker":
        from harness.worker.main import REPLICA_COMMAND, run_worker

        config = json.loads(sys.argv[2])
        return run_worker(
            head=config["head"],
            keys=Path(config["keys"]),
            nodes=config["nodes"],
            name=config["name"],
            logs=Path(config["logs"]),
            replica_command=[sys.executable, __file__, "replica"] if config["ours"] else REPLICA_COMMAND,
        )
    from harness.worker import replica

    return replica.main()


if __name__ == "__main__":
    sys.exit(_main())
